use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};

use berth_test_scripted::{Scripted, get, patch};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};

use super::*;

const UID: &str = "0b1c2d3e-0000";
const NAME: &str = "location-keys-ship--1-0b1c2";

fn entry(uid: &str, bucket: &str, finalizers: &[&str]) -> Arc<BackupEntry> {
    let entry = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
        "metadata": {"name": "ship--1", "namespace": "dev", "uid": uid, "finalizers": finalizers},
        "spec": {"seedName": "ship", "bucketName": bucket},
    });
    Arc::new(serde_json::from_value(entry).unwrap())
}

fn bucket(config: Value) -> Arc<BackupBucket> {
    let bucket = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupBucket", "metadata": {"name": "eu-1"},
        "spec": {
            "provider": "aws", "region": "eu-west-1", "providerConfig": config,
            "secretRef": {"name": "store", "namespace": "garden"},
        },
        "status": {"allocated": [UID]},
    });
    Arc::new(serde_json::from_value(bucket).unwrap())
}

fn store(version: &str) -> Arc<SecretMetadata> {
    let metadata = ObjectMeta {
        name: Some("store".to_owned()),
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    };
    Arc::new(SecretMetadata { metadata, ..SecretMetadata::default() })
}

fn keys_until(expire_at: &str) -> SecretMetadata {
    let annotations = [
        (keys::MADE_FROM, "store@7 "),
        (keys::MADE_AT, "2026-01-01T00:00:00Z"),
        (keys::EXPIRE_AT, expire_at),
    ];
    let metadata = ObjectMeta {
        name: Some(NAME.to_owned()),
        labels: Some([(keys::LOCATION_KEYS.to_owned(), "true".to_owned())].into()),
        annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
        ..ObjectMeta::default()
    };
    SecretMetadata { metadata, ..SecretMetadata::default() }
}

fn frozen(config: Value, entry: Arc<BackupEntry>) -> HubSnapshot {
    HubSnapshot {
        buckets: vec![bucket(config)],
        entries: vec![entry],
        secrets: vec![store("7")],
        ..HubSnapshot::default()
    }
}

#[test]
fn keys_are_for_entries_that_have_a_place_where_such_are_wanted() {
    let scoped = json!({"locationKeys": "scoped", "roleArn": "arn:aws:iam::1:role/a"});
    let count = |config: &Value, entry| orders(&frozen(config.clone(), entry), "garden").len();
    let placed = || entry(UID, "eu-1", &[GARDEN_FINALIZER]);
    assert_eq!(count(&scoped, placed()), 1);
    assert_eq!(count(&json!({"locationKeys": "shared"}), placed()), 0);
    assert_eq!(count(&json!({}), placed()), 0);
    assert_eq!(count(&scoped, entry("another", "eu-1", &[GARDEN_FINALIZER])), 0, "it has no place there");
    assert_eq!(count(&scoped, entry(UID, "eu-1", &[])), 0, "it was not given its place");
    assert_eq!(count(&scoped, entry(UID, "eu-2", &[GARDEN_FINALIZER])), 0);
    assert!(orders(&frozen(scoped.clone(), placed()), "elsewhere").is_empty());
    let orders = orders(&frozen(scoped, placed()), "garden");
    assert_eq!((orders[0].secret.as_str(), orders[0].source.as_str()), (NAME, "store"));
    assert_eq!(orders[0].from, "store@7 arn:aws:iam::1:role/a");
}

#[test]
fn what_was_made_is_read_from_its_secret_and_removed_once_it_is_of_no_use() {
    let keys = keys_until("2026-01-01T01:00:00Z");
    let found = made(&keys).unwrap();
    assert_eq!(found.from, "store@7 ");
    assert_eq!(found.renewed_at().to_string(), "2026-01-01T00:30:00Z");
    let (before, after) = ("2026-01-01T00:59:59Z".parse().unwrap(), "2026-01-01T01:00:00Z".parse().unwrap());
    let (none, wanted) = (BTreeSet::new(), BTreeSet::from([NAME]));
    assert!(!is_over(&keys, &none, before) && is_over(&keys, &none, after));
    assert!(!is_over(&keys, &wanted, after));
    assert!(!is_over(&store("7"), &none, after), "it is somebody else's");
    assert!(is_over(&keys_until("soon"), &none, before), "it says nothing");
}

/// Answers one request to make keys.
fn service() -> (String, std::thread::JoinHandle<String>) {
    const BODY: &str = "<GetFederationTokenResponse><GetFederationTokenResult><Credentials><AccessKeyId>ASIA1</AccessKeyId>\
        <SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2026-01-01T12:00:00Z</Expiration>\
        </Credentials></GetFederationTokenResult></GetFederationTokenResponse>";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut bytes) = (String::new(), [0; 4096]);
        // The policy is the last of what is asked for, and its own last is a bracket.
        while !request.ends_with("%7D") {
            let read = stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "{request}");
            request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        let length = BODY.len();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{BODY}")
            .unwrap();
        request
    });
    (url, served)
}

#[tokio::test]
async fn keys_of_a_directory_are_made_by_those_of_the_store_and_say_when_they_end() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (url, served) = service();
    let source = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "store", "namespace": "garden"},
        "data": {"accessKeyID": "aWQ=", "secretAccessKey": "d29yZA=="},
    });
    let path = format!("/api/v1/namespaces/garden/secrets/{NAME}");
    let written =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": "garden"}});
    let api = Scripted::new()
        .next(get("/api/v1/namespaces/garden/secrets/store").answers(source))
        .next(patch(&path).answers(written));
    let client = api.client("garden");
    let (events, _sending) = Events::new(client.clone(), "velero", Counter::default());
    let keeper = LocationKeyKeeper { client: &client, namespace: "garden", events: &events };
    let config = json!({"locationKeys": "scoped", "stsEndpoint": url});
    let orders = orders(&frozen(config, entry(UID, "eu-1", &[GARDEN_FINALIZER])), "garden");
    keeper.make(&orders[0], None).await.unwrap();
    let asked = served.join().unwrap();
    assert!(asked.contains("Action=GetFederationToken") && asked.contains("Name=berth-ship--1"), "{asked}");
    assert!(asked.contains("eu-1%2Fship--1%2F%2A"), "{asked}");
    let writes = api.writes();
    let body = &writes[0].body;
    let encoded = |key: &str| body["data"][key].as_str().unwrap_or_default().to_owned();
    assert_eq!(["accessKeyID", "secretAccessKey", "sessionToken"].map(encoded), ["QVNJQTE=", "cw==", "dA=="]);
    assert_eq!(body["metadata"]["labels"]["velero.io/exclude-from-backup"], "true");
    assert_eq!(body["metadata"]["annotations"][keys::EXPIRE_AT], "2026-01-01T12:00:00Z");
    assert_eq!(body["metadata"]["annotations"][keys::MADE_FROM], "store@7 ");
    // Somebody else's Secret of that name is left alone.
    let foreign = store("7");
    let refused = keeper.make(&orders[0], Some(&*foreign)).await;
    assert!(refused.err().unwrap().to_string().contains("is somebody else's"));
    api.finish();
}
