//! Buckets at Azure and Google, by their emulators: berth's administration of them, the agent as a
//! gardenlet drives it, and locations there.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth::storage::Roots;
use berth::storage::bucket::{Bucket, BucketRemoval, Created, Hold, Marker, PAGE, Version};
use berth_api::velero::BackupPhase;
use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use serde_json::{Value, json};

use super::executor::site::{BUCKETS, ENTRIES, ENTRY_FINALIZER, PATIENCE, Site, asked, finalizers, runtime};
use crate::queue::{ended, start};
use crate::support::clouds::{Azurite, Gcs};
use crate::support::{Berth, backup, wait_for};

/// One of them, and how a test writes there.
enum Cloud {
    Azure(Azurite),
    Google(Gcs),
}

/// Those that run here.
fn clouds() -> &'static [Cloud] {
    static CLOUDS: OnceLock<Result<Vec<Cloud>, String>> = OnceLock::new();
    let start = || {
        let plane = &Site::shared().plane;
        let mut clouds = vec![Cloud::Google(Gcs::start(plane, "garden")?)];
        clouds.extend(Azurite::start(plane, "garden")?.map(Cloud::Azure));
        Ok(clouds)
    };
    let clouds = CLOUDS.get_or_init(|| start().map_err(|error: anyhow::Error| format!("{error:#}")));
    clouds.as_ref().map_err(|error| anyhow!("{error}")).unwrap()
}

fn azurite() -> Option<&'static Azurite> {
    clouds().iter().find_map(|cloud| match cloud {
        Cloud::Azure(azurite) => Some(azurite),
        Cloud::Google(_) => None,
    })
}

fn gcs() -> &'static Gcs {
    let found = clouds().iter().find_map(|cloud| match cloud {
        Cloud::Google(gcs) => Some(gcs),
        Cloud::Azure(_) => None,
    });
    found.unwrap()
}

impl Cloud {
    fn provider(&self) -> &'static str {
        match self {
            Self::Azure(_) => "azure",
            Self::Google(_) => "gcp",
        }
    }

    fn secret(&self) -> Value {
        match self {
            Self::Azure(azurite) => azurite.secret(),
            Self::Google(gcs) => gcs.secret(),
        }
    }

    fn config(&self) -> Value {
        let url = match self {
            Self::Azure(azurite) => azurite.url(),
            Self::Google(gcs) => gcs.url(),
        };
        json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig", "endpoint": url})
    }

    fn bucket(&self, name: &str) -> Bucket {
        self.bucket_with(name, &self.secret(), &json!({}))
    }

    fn bucket_with(&self, name: &str, secret: &Value, more: &Value) -> Bucket {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = self.config();
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let config: StoreConfig = serde_json::from_value(config).unwrap();
        let text = |value: &Value| ByteString(value.as_str().unwrap().as_bytes().to_vec());
        let data = secret.as_object().unwrap().iter().map(|(key, value)| (key.clone(), text(value)));
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        Bucket::open(self.provider(), name, "europe-west1", &config, &secret, &Roots::default()).unwrap()
    }

    /// Seven bytes each, as another program writes them, with every character that a key may hold.
    async fn fill(&self, bucket: &str, prefix: &str, count: usize) {
        let keys = (0..count).map(|i| format!("{prefix}etcd-main/part {}/äöü+&#{i}", i % 7));
        match self {
            Self::Azure(azurite) => {
                let store = &azurite.store(bucket).unwrap();
                let puts = keys.map(|key| async move {
                    store.put(&Path::parse(key).unwrap(), "sevenby".into()).await.map(|_| ())
                });
                stream::iter(puts).buffer_unordered(16).try_collect::<Vec<_>>().await.unwrap();
            }
            Self::Google(gcs) => {
                let uploads = &gcs.uploads(bucket).unwrap();
                let puts = keys.map(|key| async move { uploads.put(&encoded(&key), "sevenby").await });
                stream::iter(puts).buffer_unordered(16).try_collect::<Vec<_>>().await.unwrap();
            }
        }
    }
}

fn encoded(key: &str) -> String {
    percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Page by page, as the store gives them.
async fn list(bucket: &Bucket, prefix: &str) -> Vec<Vec<Version>> {
    let (mut pages, mut after): (Vec<_>, Option<Marker>) = (Vec::new(), None);
    loop {
        let page = bucket.page(prefix, after.as_ref(), PAGE).await.unwrap();
        assert!(page.versions.len() <= PAGE);
        pages.push(page.versions);
        after = page.next;
        if after.is_none() {
            return pages;
        }
    }
}

async fn count(bucket: &Bucket, prefix: &str) -> usize {
    list(bucket, prefix).await.iter().map(Vec::len).sum()
}

async fn empty(bucket: &Bucket, prefix: &str) {
    for page in list(bucket, prefix).await {
        let removal = bucket.remove(page).await.unwrap();
        assert_eq!((removal.kept, removal.failed), (Vec::new(), None));
    }
    bucket.sweep(prefix).await.unwrap();
}

#[test]
fn a_bucket_is_made_set_up_and_removed_once_it_is_empty() {
    for cloud in clouds() {
        let bucket = cloud.bucket("lifetime");
        runtime().block_on(async {
            assert_eq!(bucket.exists().await, Ok(false));
            let error = bucket.page("", None, 1).await.unwrap_err();
            assert_eq!(error.fault, StoreFault::NoSuchBucket, "{error}");
            assert_eq!(bucket.delete().await, Ok(BucketRemoval::WasAbsent));

            assert_eq!(bucket.create().await, Ok(Created::New));
            assert_eq!(bucket.create().await, Ok(Created::Already));
            assert_eq!(bucket.exists().await, Ok(true));
            let warnings = bucket.configure().await.unwrap();
            let wanted = match cloud {
                Cloud::Azure(_) => vec![],
                Cloud::Google(_) => {
                    vec!["the store does not support iamConfiguration, lifecycle: skipped"]
                }
            };
            assert_eq!(warnings, wanted);

            cloud.fill("lifetime", "e/", 2).await;
            let error = bucket.delete().await.unwrap_err();
            assert_eq!(error.fault, StoreFault::NotEmpty, "{error}");
            assert_eq!(count(&bucket, "").await, 2);
            let versions = list(&bucket, "e/").await.concat();
            assert_eq!(versions.iter().map(|version| version.bytes).sum::<u64>(), 14);
            assert!(versions.iter().all(|version| version.modified.is_some()));
            assert_eq!(bucket.hold(&versions[0]).await, Ok(Hold::None));

            assert_eq!(bucket.remove(versions.clone()).await.unwrap().removed.len(), 2);
            // What is gone already is removed.
            assert_eq!(bucket.remove(versions.clone()).await.unwrap().removed.len(), 2);
            assert_eq!(bucket.hold(&versions[0]).await, Ok(Hold::None));
            bucket.sweep("").await.unwrap();
            assert_eq!(bucket.delete().await, Ok(BucketRemoval::Now));
            assert_eq!(bucket.delete().await, Ok(BucketRemoval::WasAbsent));
            assert_eq!(bucket.exists().await, Ok(false));
        });
    }
}

#[test]
fn an_object_is_created_once_and_is_none_where_only_others_begin_alike() {
    const KEY: &str = "_berth/e/owner.json";
    for cloud in clouds() {
        let bucket = cloud.bucket("marked-once");
        runtime().block_on(async {
            bucket.create().await.unwrap();
            assert_eq!(bucket.read_object(KEY).await, Ok(None));
            bucket.create_object(&format!("{KEY}.other"), &json!(0)).await.unwrap();
            assert_eq!(bucket.read_object(KEY).await, Ok(None));
            assert_eq!(bucket.versions_of(KEY).await, Ok(Vec::new()));
            bucket.create_object(KEY, &json!(1)).await.unwrap();
            assert!(bucket.create_object(KEY, &json!(2)).await.is_err());
            assert_eq!(bucket.read_object(KEY).await, Ok(Some("1".into())));
            assert!(bucket.holds("_berth/e/").await.unwrap() && !bucket.holds("e/").await.unwrap());
            let versions = bucket.versions_of(KEY).await.unwrap();
            assert_eq!(bucket.remove(versions).await.unwrap().removed.len(), 1);
            assert_eq!(bucket.read_object(KEY).await, Ok(None));
            empty(&bucket, "").await;
            bucket.delete().await.unwrap();
        });
    }
}

#[test]
fn a_directory_of_many_pages_is_removed_whole_and_no_other_is_touched() {
    const COUNT: usize = 1_203;
    for cloud in clouds() {
        let bucket = cloud.bucket("many-pages");
        runtime().block_on(async {
            bucket.create().await.unwrap();
            cloud.fill("many-pages", "e1/", COUNT).await;
            for other in ["e10/", "e/", "E1/"] {
                cloud.fill("many-pages", other, 3).await;
            }
            let pages = list(&bucket, "e1/").await;
            assert!(pages.len() > 1, "{} pages", pages.len());
            let keys: BTreeSet<&str> = pages.iter().flatten().map(|version| version.key.as_str()).collect();
            assert_eq!((keys.len(), pages.iter().map(Vec::len).sum::<usize>()), (COUNT, COUNT));
            assert!(keys.contains("e1/etcd-main/part 3/äöü+&#3"), "{:?}", keys.first());
            empty(&bucket, "e1/").await;
            assert_eq!(count(&bucket, "e1/").await, 0);
            for other in ["e10/", "e/", "E1/"] {
                assert_eq!(count(&bucket, other).await, 3, "{other}");
            }
            empty(&bucket, "").await;
            bucket.delete().await.unwrap();
        });
    }
}

#[test]
fn earlier_versions_of_a_bucket_at_google_go_too() {
    let (gcs, cloud) = (gcs(), clouds().iter().find(|cloud| cloud.provider() == "gcp").unwrap());
    let bucket = cloud.bucket("generations");
    runtime().block_on(async {
        bucket.create().await.unwrap();
        let versioning = json!({"versioning": {"enabled": true}});
        gcs.call(Method::PATCH, "/storage/v1/b/generations", versioning).await.unwrap();
        let uploads = gcs.uploads("generations").unwrap();
        for text in ["one", "three", "seventy"] {
            uploads.put("e%2Fkey", text).await.unwrap();
        }
        let versions = list(&bucket, "e/").await.concat();
        assert_eq!(versions.len(), 3, "{versions:?}");
        let ids: BTreeSet<_> = versions.iter().map(|version| version.id.clone().unwrap()).collect();
        assert_eq!(ids.len(), 3);
        assert_eq!(versions.iter().map(|version| version.bytes).sum::<u64>(), 15);
        assert_eq!(bucket.delete().await.unwrap_err().fault, StoreFault::NotEmpty);
        empty(&bucket, "e/").await;
        assert_eq!(count(&bucket, "").await, 0);
        bucket.delete().await.unwrap();
    });
}

#[test]
fn snapshots_at_azure_go_with_their_blobs() {
    let Some(azurite) = azurite() else { return };
    let cloud = clouds().iter().find(|cloud| cloud.provider() == "azure").unwrap();
    let bucket = cloud.bucket("snapshots");
    runtime().block_on(async {
        bucket.create().await.unwrap();
        let store = azurite.store("snapshots").unwrap();
        store.put(&Path::from("e/key"), "one".into()).await.unwrap();
        azurite.put("snapshots/e/key?comp=snapshot", &[]).await.unwrap();
        store.put(&Path::from("e/key"), "seventy".into()).await.unwrap();
        let versions = list(&bucket, "e/").await.concat();
        assert_eq!(versions.len(), 2, "{versions:?}");
        assert_eq!(versions.iter().map(|version| version.bytes).sum::<u64>(), 10);
        // The snapshot alone.
        let (snapshot, whole): (Vec<_>, Vec<_>) =
            versions.into_iter().partition(|version| version.id.is_some());
        assert_eq!(bucket.remove(snapshot.clone()).await.unwrap().removed, snapshot);
        assert_eq!(list(&bucket, "e/").await.concat(), whole);
        // Both, in whatever order they are answered.
        azurite.put("snapshots/e/key?comp=snapshot", &[]).await.unwrap();
        empty(&bucket, "").await;
        assert_eq!(count(&bucket, "").await, 0);
        bucket.delete().await.unwrap();
    });
}

#[test]
fn what_only_azures_management_api_can_set_is_said() {
    let Some(azurite) = azurite() else { return };
    let cloud = clouds().iter().find(|cloud| cloud.provider() == "azure").unwrap();
    let lock = json!({"objectLock": {"mode": "governance", "retentionDays": 2}});
    let bucket = cloud.bucket_with("in-public", &azurite.secret(), &lock);
    runtime().block_on(async {
        let public = [("x-ms-blob-public-access", "blob")];
        azurite.put("in-public?restype=container", &public).await.unwrap();
        assert_eq!(bucket.create().await, Ok(Created::Already));
        let warnings = bucket.configure().await.unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(
            warnings[0].starts_with("anybody may read the container (public access: blob)"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].contains("only Azure's management API sets immutability policies"),
            "{warnings:?}"
        );
        bucket.delete().await.unwrap();
    });
}

#[test]
fn wrong_keys_of_an_account_are_told_and_not_quoted() {
    let Some(azurite) = azurite() else { return };
    let cloud = clouds().iter().find(|cloud| cloud.provider() == "azure").unwrap();
    let wrong = "bm90LXRoZS1rZXktb2YtdGhpcy1hY2NvdW50";
    let secret = json!({"storageAccount": azurite.account, "storageKey": wrong});
    let bucket = cloud.bucket_with("strange", &secret, &json!({}));
    runtime().block_on(async {
        for error in [
            bucket.create().await.map(drop).unwrap_err(),
            bucket.exists().await.map(drop).unwrap_err(),
            bucket.delete().await.map(drop).unwrap_err(),
        ] {
            // Azurite's word for it; Azure itself says AuthenticationFailed, and keeps this one for
            // its firewall.
            assert_eq!(
                (error.fault, error.word.as_str()),
                (StoreFault::Unauthorized, "AuthorizationFailure"),
                "{error}"
            );
            assert!(!error.message.contains(wrong), "{error}");
        }
    });
}

#[test]
fn an_agent_serves_every_cloud_as_a_gardenlet_wants_it() {
    let site = Site::shared();
    for cloud in clouds() {
        let (bucket, keys) = (format!("shared-{}", cloud.provider()), format!("{}-keys", cloud.provider()));
        let entry = |name: &str| format!("{name}-{}", cloud.provider());
        site.apply(&json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": keys, "namespace": "garden"},
            "stringData": cloud.secret(),
        }));
        let object = |kind: &str, name: &str| {
            json!({
                "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": kind,
                "metadata": {"name": name, "annotations": asked("reconcile")},
                "spec": {
                    "type": cloud.provider(), "region": "europe-west1", "providerConfig": cloud.config(),
                    "secretRef": {"name": keys, "namespace": "garden"},
                },
            })
        };
        // Its directory has nowhere to be yet.
        let mut first = object("BackupEntry", &entry("a"));
        first["spec"]["bucketName"] = json!(bucket);
        site.apply(&first);
        let waiting = site.becomes(ENTRIES, &entry("a"), "Error");
        assert_eq!(waiting["status"]["lastError"]["codes"], json!(["ERR_INFRA_DEPENDENCIES"]), "{waiting:#}");
        site.apply(&object("BackupBucket", &bucket));
        let made = site.becomes(BUCKETS, &bucket, "Succeeded");
        let said = made["status"]["lastOperation"]["description"].as_str().unwrap();
        assert!(said.contains(&format!("bucket {bucket} was made")), "{said}");
        site.becomes(ENTRIES, &entry("a"), "Succeeded");

        runtime().block_on(async {
            cloud.fill(&bucket, &format!("{}/", entry("a")), 1_001).await;
            cloud.fill(&bucket, &format!("{}/", entry("ab")), 2).await;
        });
        let patch = json!({"metadata": {"finalizers": [ENTRY_FINALIZER, "example.com/reader"]}}).to_string();
        site.kubectl().run(&["patch", ENTRIES, &entry("a"), "--type=merge", "-p", &patch]).unwrap();
        site.delete(ENTRIES, &entry("a"));
        let is_let_go =
            |entry: Option<&Value>| entry.is_some_and(|one| finalizers(one) == ["example.com/reader"]);
        let gone = site.waits("to be let go", ENTRIES, &entry("a"), is_let_go).unwrap();
        assert_eq!(gone["status"]["providerStatus"]["objects"], 1_001, "{gone:#}");
        assert_eq!(gone["status"]["providerStatus"]["bytes"], 7 * 1_001, "{gone:#}");
        let patch = json!({"metadata": {"finalizers": null}}).to_string();
        site.kubectl().run(&["patch", ENTRIES, &entry("a"), "--type=merge", "-p", &patch]).unwrap();
        let administered = cloud.bucket(&bucket);
        let left = runtime().block_on(count(&administered, ""));
        assert_eq!(left, 2, "its name only begins alike");

        site.delete(BUCKETS, &bucket);
        let full = site.becomes(BUCKETS, &bucket, "Error");
        let said = full["status"]["lastError"]["description"].as_str().unwrap();
        assert!(said.contains("2 objects with 14 bytes"), "{said}");
        site.annotate(BUCKETS, &bucket, &format!("garden.berth.dev/empty-bucket={bucket}"));
        site.is_gone(BUCKETS, &bucket);
        assert_eq!(runtime().block_on(administered.exists()), Ok(false));
    }
}

/// Waits until a location is in `phase`, with `part` in its message; gives that.
fn becomes(berth: &Berth, name: &str, phase: &str, part: &str) -> String {
    let mut seen = Value::Null;
    let waited = wait_for(&format!("location {name} to be {phase}"), PATIENCE, || {
        let args = ["get", "backupstoragelocations", name, "-n", berth.namespace(), "-o", "json"];
        let mut location: Value = serde_json::from_str(&berth.kubectl().run(&args)?)?;
        seen = location["status"].take();
        let message = seen["message"].as_str().unwrap_or_default();
        Ok((seen["phase"] == phase && message.contains(part)).then(|| message.to_owned()))
    });
    waited.unwrap_or_else(|error| panic!("{error}; it is {seen}"))
}

#[test]
fn berth_opens_locations_in_every_cloud() {
    let berth = start("clouds", 1);
    let apply = |object: &Value| {
        let args = ["apply", "--server-side", "--force-conflicts", "-n", berth.namespace(), "-f", "-"];
        berth.kubectl().run_with(&args, &object.to_string()).unwrap();
    };
    for cloud in clouds() {
        let provider = cloud.provider();
        let bucket = format!("archives-{provider}");
        runtime().block_on(cloud.bucket(&bucket).create()).unwrap();
        // As the courier makes them of what the hub gives.
        let data = cloud.secret();
        let bytes = |value: &Value| value.as_str().unwrap().as_bytes().to_vec();
        let data = data.as_object().unwrap().iter().map(|(key, value)| (key.clone(), bytes(value)));
        let data = data.collect();
        let file = berth_garden_api::location::cloud_file(provider, &data).unwrap();
        let config = match cloud {
            Cloud::Azure(azurite) => json!({
                "storageAccount": azurite.account, "storageAccountURI": azurite.url(),
                "storageAccountKeyEnvVar": "AZURE_STORAGE_ACCOUNT_ACCESS_KEY",
            }),
            Cloud::Google(gcs) => json!({"storeEndpoint": format!("{}/storage/v1/", gcs.url())}),
        };
        let secret = |file: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{provider}-credentials")},
                "data": {"cloud": STANDARD.encode(file)},
            })
        };
        apply(&secret(&file));
        apply(&json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": provider},
            "spec": {
                "provider": provider, "objectStorage": {"bucket": bucket, "prefix": "ship--1/velero"},
                "config": config, "credential": {"name": format!("{provider}-credentials"), "key": "cloud"},
                "validationFrequency": "1s",
            },
        }));
        assert_eq!(becomes(&berth, provider, "Available", ""), "");
        let wrong = match cloud {
            Cloud::Azure(azurite) => file.replace(&azurite.key, "bm90LXRoZS1rZXktb2YtdGhpcy1hY2NvdW50"),
            Cloud::Google(_) => file.replace("private_key_id", "private_key_id_of_nobody"),
        };
        apply(&secret(&wrong));
        let message = becomes(&berth, provider, "Unavailable", &format!("{provider}-credentials"));
        assert!(!message.contains("bm90LXRo") && !message.contains("of_nobody"), "{message}");
        apply(&secret(&file));
        assert_eq!(becomes(&berth, provider, "Available", ""), "");
    }
    // What is written to Google in parts and conditions is more than its emulator knows.
    let Some(azurite) = azurite() else { return };
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": "azure"});
    let answer = berth.kubectl().create(berth.namespace(), &[backup("to-azure", spec)]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(&berth, &["to-azure"]).remove("to-azure").unwrap();
    assert_eq!(done.status.unwrap().phase, Some(BackupPhase::Completed));
    let store = azurite.store("archives-azure").unwrap();
    let below = Path::from("ship--1/velero/backups/to-azure");
    let found = runtime().block_on(async { store.list(Some(&below)).try_collect::<Vec<_>>().await.unwrap() });
    let names: Vec<&str> = found.iter().filter_map(|object| object.location.filename()).collect();
    assert!(names.contains(&"velero-backup.json") && names.contains(&"to-azure.tar.gz"), "{names:?}");
    assert!(!berth.controller.process.log_text().unwrap().contains(&azurite.key), "the key is in the log");
}
