//! What berth sets on buckets at S3, read back from the server by another client. The server is
//! moto, which knows these calls.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::anyhow;
use http::Method;
use serde_json::{Value, json};

use super::executor::site::{BUCKETS, Site, asked, is_healthy, runtime};
use crate::support::moto::{Moto, texts};

const KEYS: &str = "moto-keys";
const UNNAMED_REGION: &str = "us-east-1";
/// All but the policy, which is JSON.
const DOCUMENTS: [&str; 6] =
    ["encryption", "publicAccessBlock", "lifecycle", "object-lock", "versioning", "location"];

type Texts = Vec<(String, String)>;

/// A bucket's settings; of those that are not set, the server's word for that.
#[derive(Debug, PartialEq)]
struct Settings {
    documents: BTreeMap<&'static str, Texts>,
    policy: Value,
}

impl Settings {
    fn is(&self, name: &str, wanted: &[(&str, &str)]) {
        let wanted: Texts = wanted.iter().map(|(at, text)| ((*at).to_owned(), (*text).to_owned())).collect();
        assert_eq!(self.documents[name], wanted, "{name}");
    }

    /// Besides what else the server tells.
    fn has(&self, name: &str, at: &str, text: &str) {
        let found: Vec<&str> = self.documents[name]
            .iter()
            .filter(|(path, _)| path == at)
            .map(|(_, text)| text.as_str())
            .collect();
        assert_eq!(found, [text], "{name}: {at}");
    }

    /// As berth makes a bucket that has none of them yet.
    fn are_berths(&self, partition: &str, bucket: &str) {
        self.has("encryption", "Rule/ApplyServerSideEncryptionByDefault/SSEAlgorithm", "AES256");
        self.is(
            "publicAccessBlock",
            &[
                ("BlockPublicAcls", "true"),
                ("IgnorePublicAcls", "true"),
                ("BlockPublicPolicy", "true"),
                ("RestrictPublicBuckets", "true"),
            ],
        );
        self.is("lifecycle", &UNFINISHED_UPLOADS);
        let bucket = format!("arn:{partition}:s3:::{bucket}");
        let wanted = json!({
            "Version": "2012-10-17",
            "Statement": [{
                "Sid": "BerthOnlyWithTLS", "Effect": "Deny", "Principal": "*", "Action": "s3:*",
                "Resource": [bucket, format!("{bucket}/*")],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }],
        });
        assert_eq!(self.policy, wanted);
    }
}

const UNFINISHED_UPLOADS: [(&str, &str); 4] = [
    ("Rule/ID", "berth-unfinished-uploads"),
    ("Rule/Filter/Prefix", ""),
    ("Rule/Status", "Enabled"),
    ("Rule/AbortIncompleteMultipartUpload/DaysAfterInitiation", "7"),
];

/// `None`: it cannot run here.
fn moto() -> Option<&'static Moto> {
    static MOTO: OnceLock<Result<Option<Moto>, String>> = OnceLock::new();
    let start = || {
        let site = Site::shared();
        let started = Moto::start(&site.plane, "garden")?;
        if let Some(moto) = &started {
            site.apply(&json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS, "namespace": "garden"},
                "stringData": moto.secret(),
            }));
        }
        Ok(started)
    };
    let moto = MOTO.get_or_init(|| start().map_err(|error: anyhow::Error| format!("{error:#}")));
    moto.as_ref().map_err(|error| anyhow!("{error}")).unwrap().as_ref()
}

/// Made by the agent, in whatever state it was; gives its description.
fn make(moto: &Moto, region: &str, name: &str, more: &Value) -> String {
    let site = Site::shared();
    let mut config = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig",
        "endpoint": moto.url(), "caCert": moto.ca,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    site.apply(&json!({
        "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "BackupBucket",
        "metadata": {"name": name, "annotations": asked("reconcile")},
        "spec": {
            "type": "aws", "region": region, "providerConfig": config,
            "secretRef": {"name": KEYS, "namespace": "garden"},
        },
    }));
    description(&site.waits("to be healthy", BUCKETS, name, |bucket| bucket.is_some_and(is_healthy)).unwrap())
}

/// Makes the agent reconcile it once more, and waits until it has.
fn look_again(moto: &Moto, name: &str) -> String {
    let site = Site::shared();
    let looks = || {
        let asked = moto.asked(name).unwrap();
        DOCUMENTS[..3]
            .iter()
            .map(|one| asked.iter().filter(|asked| **asked == format!("GET ?{one}=")).count())
            .min()
    };
    let before = looks();
    let ahead = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
    let patch = json!({"metadata": {"annotations": {
        "gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": ahead.to_string(),
    }}});
    site.kubectl().run(&["patch", BUCKETS, name, "--type=merge", "-p", &patch.to_string()]).unwrap();
    let looked = |bucket: Option<&Value>| bucket.is_some_and(is_healthy) && looks() > before;
    description(&site.waits("to be looked at again", BUCKETS, name, looked).unwrap())
}

fn description(bucket: &Value) -> String {
    bucket["status"]["lastOperation"]["description"].as_str().unwrap_or_default().to_owned()
}

fn settings(moto: &Moto, region: &str, bucket: &str) -> Settings {
    runtime().block_on(async {
        let get = async |setting: &str| {
            moto.call(Method::GET, region, &format!("/{bucket}?{setting}="), &[], "").await.unwrap()
        };
        let mut documents = BTreeMap::new();
        for name in DOCUMENTS {
            let answer = get(name).await;
            let mut found = texts(&answer.text).unwrap();
            // Of a refusal the rest is about the request.
            found.retain(|(at, _)| answer.status == 200 || at == "Code");
            documents.insert(name, found);
        }
        let policy = get("policy").await;
        let policy = match policy.status {
            200 => serde_json::from_str(&policy.text).unwrap(),
            404 => Value::Null,
            _ => panic!("{policy:?}"),
        };
        Settings { documents, policy }
    })
}

/// Whatever was to change something, in its order.
fn writes(moto: &Moto, bucket: &str) -> Vec<String> {
    moto.asked(bucket).unwrap().into_iter().filter(|asked| !asked.starts_with("GET ")).collect()
}

fn put(moto: &Moto, region: &str, path: &str, body: &str) {
    runtime().block_on(moto.put(region, path, body)).unwrap();
}

fn remove(moto: &Moto, region: &str, name: &str) {
    let site = Site::shared();
    site.delete(BUCKETS, name);
    site.is_gone(BUCKETS, name);
    let left = runtime().block_on(moto.call(Method::GET, region, &format!("/{name}"), &[], "")).unwrap();
    assert_eq!(left.status, 404, "{}", left.text);
    assert!(left.text.contains("NoSuchBucket"), "{}", left.text);
}

#[test]
fn what_berth_sets_at_s3_is_there_and_is_set_once() {
    let Some(moto) = moto() else { return };
    // In the first of them naming the region is refused, in all others not naming it.
    for (region, location, partition) in [
        (UNNAMED_REGION, "", "aws"),
        ("eu-west-1", "eu-west-1", "aws"),
        ("cn-north-1", "cn-north-1", "aws-cn"),
    ] {
        let name = format!("settings-{region}");
        // Nothing that the store did not know.
        assert_eq!(make(moto, region, &name, &json!({})), format!("bucket {name} was made"));
        let made = settings(moto, region, &name);
        made.are_berths(partition, &name);
        made.is("location", &[("", location)]);
        made.is("object-lock", &[("Code", "ObjectLockConfigurationNotFoundError")]);
        made.is("versioning", &[("", "")]);
        let written = writes(moto, &name);
        assert_eq!(
            written,
            ["PUT ", "PUT ?encryption=", "PUT ?publicAccessBlock=", "PUT ?lifecycle=", "PUT ?policy="]
        );

        assert_eq!(look_again(moto, &name), format!("bucket {name} is there"));
        assert_eq!(writes(moto, &name), written);
        assert_eq!(settings(moto, region, &name), made);
        remove(moto, region, &name);
    }
}

#[test]
fn a_lock_at_s3_is_the_buckets_default_and_only_grows() {
    let Some(moto) = moto() else { return };
    let (region, name) = ("eu-west-1", "settings-locked");
    let lock = |mode: &str, days: u32| json!({"objectLock": {"mode": mode, "retentionDays": days}});
    let retention = |mode: &str, days: &str| {
        let found = settings(moto, region, name);
        found.has("object-lock", "ObjectLockEnabled", "Enabled");
        found.has("object-lock", "Rule/DefaultRetention/Mode", mode);
        found.has("object-lock", "Rule/DefaultRetention/Days", days);
        found.is("versioning", &[("Status", "Enabled")]);
        found.are_berths("aws", name);
    };
    assert_eq!(make(moto, region, name, &lock("governance", 2)), format!("bucket {name} was made"));
    retention("GOVERNANCE", "2");
    let written = writes(moto, name);
    look_again(moto, name);
    assert_eq!(writes(moto, name), written);

    make(moto, region, name, &lock("compliance", 3));
    retention("COMPLIANCE", "3");
    // By days, and by years.
    for (time, days) in [("<Days>30</Days>", 30), ("<Years>1</Years>", 365)] {
        let longer = format!(
            "<ObjectLockConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><ObjectLockEnabled>Enabled</ObjectLockEnabled>\
             <Rule><DefaultRetention><Mode>COMPLIANCE</Mode>{time}</DefaultRetention></Rule></ObjectLockConfiguration>"
        );
        put(moto, region, &format!("/{name}?object-lock="), &longer);
        let (theirs, written) = (settings(moto, region, name), writes(moto, name));
        let said = look_again(moto, name);
        assert!(said.contains(&format!("(compliance, {days} days) is stronger")), "{said}");
        assert_eq!(settings(moto, region, name), theirs);
        assert_eq!(writes(moto, name), written);
    }
    remove(moto, region, name);
}

#[test]
fn a_lock_that_is_wanted_later_is_set_on_a_bucket_without_versions_too() {
    let Some(moto) = moto() else { return };
    let (region, name) = ("eu-west-1", "settings-locked-later");
    make(moto, region, name, &json!({}));
    settings(moto, region, name).is("versioning", &[("", "")]);
    let lock = json!({"objectLock": {"mode": "governance", "retentionDays": 2}});
    assert_eq!(make(moto, region, name, &lock), format!("bucket {name} is there"));
    let found = settings(moto, region, name);
    found.is("versioning", &[("Status", "Enabled")]);
    found.has("object-lock", "Rule/DefaultRetention/Mode", "GOVERNANCE");
    found.has("object-lock", "Rule/DefaultRetention/Days", "2");
    let written = writes(moto, name);
    look_again(moto, name);
    assert_eq!(writes(moto, name), written);
    remove(moto, region, name);
}

const KMS: &str = "<ServerSideEncryptionConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Rule>\
    <ApplyServerSideEncryptionByDefault><SSEAlgorithm>aws:kms</SSEAlgorithm><KMSMasterKeyID>ours</KMSMasterKeyID>\
    </ApplyServerSideEncryptionByDefault></Rule></ServerSideEncryptionConfiguration>";
const OWN_RULE: &str = "<LifecycleConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Rule><ID>ours</ID>\
    <Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status><Expiration><Days>30</Days></Expiration></Rule></LifecycleConfiguration>";
const OPEN_TO_POLICIES: &str = "<PublicAccessBlockConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
    <BlockPublicAcls>true</BlockPublicAcls><IgnorePublicAcls>true</IgnorePublicAcls><BlockPublicPolicy>false</BlockPublicPolicy>\
    <RestrictPublicBuckets>false</RestrictPublicBuckets></PublicAccessBlockConfiguration>";

fn own_policy(bucket: &str) -> Value {
    json!({
        "Version": "2012-10-17",
        "Statement": [{
            "Sid": "Ours", "Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
            "Action": "s3:GetObject", "Resource": format!("arn:aws:s3:::{bucket}/*"),
        }],
    })
}

#[test]
fn what_somebody_has_set_at_s3_stays() {
    let Some(moto) = moto() else { return };
    let (region, name) = ("eu-west-1", "settings-theirs");
    let at = |setting: &str| format!("/{name}?{setting}=");
    let here = "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                <LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>";
    put(moto, region, &format!("/{name}"), here);
    for (setting, body) in
        [("encryption", KMS), ("lifecycle", OWN_RULE), ("publicAccessBlock", OPEN_TO_POLICIES)]
    {
        put(moto, region, &at(setting), body);
    }
    put(moto, region, &at("policy"), &own_policy(name).to_string());
    let (theirs, written) = (settings(moto, region, name), writes(moto, name));
    theirs.has("encryption", "Rule/ApplyServerSideEncryptionByDefault/SSEAlgorithm", "aws:kms");
    theirs.has("lifecycle", "Rule/ID", "ours");
    assert_eq!(theirs.policy, own_policy(name));

    assert_eq!(make(moto, region, name, &json!({})), format!("bucket {name} is there"));
    look_again(moto, name);
    assert_eq!(settings(moto, region, name), theirs);
    // That it is there already, the store says when it is to be made.
    assert_eq!(writes(moto, name)[written.len()..], ["PUT "]);
    remove(moto, region, name);
}

/// Where S3 says of a bucket of one's own that it was made.
#[test]
fn what_somebody_has_not_set_at_s3_is_added_to_what_they_have() {
    let Some(moto) = moto() else { return };
    let (region, name) = (UNNAMED_REGION, "settings-half-theirs");
    let at = |setting: &str| format!("/{name}?{setting}=");
    put(moto, region, &format!("/{name}"), "");
    put(moto, region, &at("encryption"), KMS);
    put(moto, region, &at("policy"), &own_policy(name).to_string());
    assert_eq!(make(moto, region, name, &json!({})), format!("bucket {name} is there"));
    let found = settings(moto, region, name);
    found.has("encryption", "Rule/ApplyServerSideEncryptionByDefault/KMSMasterKeyID", "ours");
    assert_eq!(found.policy, own_policy(name));
    found.has("publicAccessBlock", "RestrictPublicBuckets", "true");
    found.is("lifecycle", &UNFINISHED_UPLOADS);

    // What berth has set is theirs to change.
    put(moto, region, &at("lifecycle"), OWN_RULE);
    put(moto, region, &at("publicAccessBlock"), OPEN_TO_POLICIES);
    let (theirs, written) = (settings(moto, region, name), writes(moto, name));
    look_again(moto, name);
    assert_eq!(settings(moto, region, name), theirs);
    assert_eq!(writes(moto, name), written);
    remove(moto, region, name);
}
