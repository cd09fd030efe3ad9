use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::thread::JoinHandle;

use k8s_openapi::ByteString;
use serde_json::Value;

use super::*;

fn secret() -> Secret {
    let pairs = [("accessKeyID", "id"), ("secretAccessKey", "word")];
    let data = pairs.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret { data: Some(data.into()), ..Secret::default() }
}

fn open(config: &StoreConfig) -> Result<Sts> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Sts::open("eu-west-1", config, &secret())
}

fn directory() -> RemovalScope {
    RemovalScope::of_entry("ship--1", None).unwrap()
}

/// Gives that answer to one request, and that request.
fn server(status: &'static str, body: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = String::new();
        let mut bytes = [0; 4096];
        loop {
            let read = stream.read(&mut bytes).unwrap();
            request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
            let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap_or_default() {
                break;
            }
        }
        let length = body.len();
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
            .unwrap();
        request
    });
    (url, served)
}

#[test]
fn keys_open_one_directory_and_what_berth_notes_of_it() {
    let policy: Value = serde_json::from_str(&policy("eu-1", "eu-west-1", &directory())).unwrap();
    let objects = &policy["Statement"][0];
    let wanted = json!(["arn:aws:s3:::eu-1/ship--1/*", "arn:aws:s3:::eu-1/_berth/ship--1/*"]);
    assert_eq!(objects["Resource"], wanted);
    assert_eq!(policy["Statement"][1]["Resource"], "arn:aws:s3:::eu-1");
    // Nothing else makes or ends a bucket, its settings or its locks.
    for statement in policy["Statement"].as_array().unwrap() {
        assert_eq!(statement["Effect"], "Allow");
        for action in statement["Action"].as_array().unwrap() {
            let action = action.as_str().unwrap();
            let is_of_bucket = action.contains("Bucket") && !action.starts_with("s3:ListBucket");
            assert!(!is_of_bucket || action.starts_with("s3:GetBucket"), "{action}");
            assert!(
                !action.contains('*') && !action.contains("Bypass") && !action.contains("Acl"),
                "{action}"
            );
        }
    }
    assert!(super::policy("b", "cn-north-1", &directory()).contains("arn:aws-cn:s3:::b/ship--1/*"));
}

#[test]
fn a_policy_is_no_longer_than_the_service_takes() {
    let longest = RemovalScope::of_entry(&"e".repeat(63), None).unwrap();
    let policy = policy(&"b".repeat(63), "us-gov-west-1", &longest);
    assert!(policy.len() <= 2048, "{}", policy.len());
}

#[test]
fn a_role_is_assumed_where_one_is_named() {
    let role = "arn:aws:iam::1:role/backups".to_owned();
    let config = StoreConfig { role_arn: Some(role), ..StoreConfig::default() };
    let body = open(&config).unwrap().body("ship--1", "{}");
    let wanted = "Action=AssumeRole&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fbackups\
                  &RoleSessionName=berth-ship--1&DurationSeconds=3600&Policy=%7B%7D";
    assert_eq!(body, wanted);
    let config = StoreConfig { key_minutes: Some(15), ..StoreConfig::default() };
    let body = open(&config).unwrap().body(&"e".repeat(63), "{}");
    let name = "e".repeat(26);
    let wanted = format!(
        "Action=GetFederationToken&Version=2011-06-15&Name=berth-{name}&DurationSeconds=900&Policy=%7B%7D"
    );
    assert_eq!(body, wanted);
}

#[test]
fn the_service_is_the_regions_unless_another_is_named() {
    let url = |config: &StoreConfig| open(config).map(|sts| sts.url).map_err(|error| error.message);
    assert_eq!(url(&StoreConfig::default()).as_deref(), Ok("https://sts.eu-west-1.amazonaws.com/"));
    let named = |url: &str| StoreConfig { sts_endpoint: Some(url.to_owned()), ..StoreConfig::default() };
    assert_eq!(url(&named("http://127.0.0.1:1")).as_deref(), Ok("http://127.0.0.1:1/"));
    assert!(url(&named("http://a b")).is_err());
}

#[tokio::test]
async fn what_is_made_is_read_and_asked_for_by_a_signature() {
    let (url, served) = server(
        "200 OK",
        r#"<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>
            <AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/a/b</Arn></AssumedRoleUser>
            <Credentials><AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>s+/=</SecretAccessKey>
            <SessionToken>t+/=</SessionToken><Expiration>2026-01-01T01:00:00Z</Expiration></Credentials>
            <PackedPolicySize>6</PackedPolicySize></AssumeRoleResult></AssumeRoleResponse>"#,
    );
    let role = "arn:aws:iam::1:role/a".to_owned();
    let config = StoreConfig { sts_endpoint: Some(url), role_arn: Some(role), ..StoreConfig::default() };
    let policy = policy("eu-1", "eu-west-1", &directory());
    let made = open(&config).unwrap().make("ship--1", &policy).await.unwrap();
    let keys = [&made.access_key_id, &made.secret_access_key, &made.session_token];
    assert_eq!(keys, ["ASIA1", "s+/=", "t+/="]);
    assert_eq!(made.expire_at.to_string(), "2026-01-01T01:00:00Z");
    let request = served.join().unwrap();
    assert!(request.starts_with("POST / HTTP/1.1"), "{request}");
    assert!(request.contains("/eu-west-1/sts/aws4_request"), "{request}");
    assert!(request.contains("Policy=%7B%22"), "{request}");
    assert!(!request.contains("word"), "{request}");
}

#[tokio::test]
async fn what_is_refused_is_said_in_the_services_words() {
    let (url, served) = server(
        "403 Forbidden",
        r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
            <Code>AccessDenied</Code><Message>User a may not.</Message></Error></ErrorResponse>"#,
    );
    let config = StoreConfig { sts_endpoint: Some(url.clone()), ..StoreConfig::default() };
    let refused = open(&config).unwrap().make("ship--1", "{}").await.err().unwrap();
    assert_eq!(refused.fault, StoreFault::Unauthorized);
    let wanted = format!("GetFederationToken at {url}/: 403 AccessDenied User a may not.");
    assert_eq!(refused.message, wanted);
    served.join().unwrap();
    assert!(read(b"<html>hello</html>").is_err());
    let silent = b"<GetFederationTokenResponse></GetFederationTokenResponse>";
    assert_eq!(read(silent).err().as_deref(), Some("it has no keys"));
}
