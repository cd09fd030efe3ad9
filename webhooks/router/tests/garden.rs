//! Shared buckets. The rules are tested in `berth_garden_core::check`; here: which rule answers,
//! waiting for other objects, and the roles of users.

use berth_garden_core::bucket::GardenBucket;
use berth_garden_core::check::SecretLookup;
use berth_garden_core::entry::GardenEntry;
use berth_garden_core::{GardenView, Profile, ProfileBackupSettings, ProviderRegion, SecretRef, Seed, Store};

use super::*;
use crate::listers::GardenListers;

#[derive(Default)]
pub struct Garden {
    view: Mutex<Option<Arc<GardenView>>>,
    credentials: Mutex<Option<SecretLookup>>,
    asked: Mutex<Vec<String>>,
    changed: Notify,
}

impl GardenListers for Arc<Cluster> {
    fn garden(&self) -> Option<Arc<GardenView>> {
        self.garden.view.lock().clone()
    }
    fn garden_changed(&self) -> impl Future<Output = ()> + Send {
        self.garden.changed.notified()
    }
    async fn credentials(&self, secret: &SecretRef) -> SecretLookup {
        self.garden.asked.lock().push(format!("{}/{}", secret.namespace, secret.name));
        let whole = || SecretLookup::Found(vec!["accessKeyID".to_owned(), "secretAccessKey".to_owned()]);
        self.garden.credentials.lock().clone().unwrap_or_else(whole)
    }
}

/// A profile, a seed, a bucket and an entry in it.
fn view() -> GardenView {
    let mut view = GardenView { garden_namespace: "garden".to_owned(), ..GardenView::default() };
    let profile = Profile {
        name: "main".to_owned(),
        provider: "aws".to_owned(),
        regions: vec!["eu".to_owned()],
        backup: Some(ProfileBackupSettings::default()),
        ..Profile::default()
    };
    view.profiles.insert("main".to_owned(), profile);
    let seed =
        Seed { name: "s".to_owned(), profile: "main".to_owned(), region: "eu".to_owned(), reaches: None };
    view.seeds.insert("s".to_owned(), seed);
    let place = ProviderRegion { provider: "aws".to_owned(), region: "eu".to_owned() };
    let bucket = GardenBucket {
        name: "bucket".to_owned(),
        store: Store { place, ..Store::default() },
        profile: Some("main".to_owned()),
        ..GardenBucket::default()
    };
    view.buckets.insert("bucket".to_owned(), bucket);
    let entry = GardenEntry {
        namespace: "dev".to_owned(),
        name: "e".to_owned(),
        seed: "s".to_owned(),
        bucket: Some("bucket".to_owned()),
        ..GardenEntry::default()
    };
    view.entries.insert(("dev".to_owned(), "e".to_owned()), entry);
    view
}

fn know(cluster: &Cluster, view: GardenView) {
    *cluster.garden.view.lock() = Some(Arc::new(view));
    cluster.garden.changed.notify_waiters();
}

fn gardener() -> (Arc<Cluster>, Router) {
    let (cluster, router) = state();
    know(&cluster, view());
    (cluster, router)
}

fn review_of(kind: &str, group: &str, new: Value, old: Value) -> Value {
    let operation = match (&new, &old) {
        (Value::Null, _) => "DELETE",
        (_, Value::Null) => "CREATE",
        _ => "UPDATE",
    };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "operation": operation, "name": "x", "kind": {"group": group, "version": "v1", "kind": kind},
        "userInfo": {"username": "somebody"}, "object": new, "oldObject": old}})
}

const HUB: &str = "garden.berth.dev";

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn profile(mut backup: Value) -> Value {
    backup["providerConfig"]["locationKeys"] = json!("shared");
    object(
        "CloudProfile",
        "x",
        json!({"provider": "packet", "constraints": {"regions": ["ewr1"]}, "backup": backup}),
    )
}

fn refused(answer: &Value) -> (u64, &str) {
    (
        answer["status"]["code"].as_u64().unwrap_or_default(),
        answer["status"]["message"].as_str().unwrap_or_default(),
    )
}

#[tokio::test]
async fn every_fault_of_a_profile_is_in_one_refusal() {
    let (cluster, router) = gardener();
    *cluster.garden.credentials.lock() = Some(SecretLookup::Missing);
    let secret = json!({"name": "operator", "namespace": "garden"});
    let wrong = profile(json!({"provider": "aws", "secretRef": secret, "providerConfig": {"path": "/x"}}));
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, wrong, Value::Null)).await;
    let (code, message) = refused(&answer);
    assert_eq!(code, 422);
    for field in [
        "spec.backup.region: required: backups go to provider \"aws\"",
        "spec.backup.providerConfig.path: ",
        "spec.backup.secretRef.name: Secret garden/operator does not exist",
    ] {
        assert!(message.contains(field), "{field}: {message}");
    }
    assert_eq!(*cluster.garden.asked.lock(), ["garden/operator"]);
}

/// The API server sets `generateName`'s name after mutating webhooks, and before policies and
/// validating ones.
#[tokio::test]
async fn what_has_no_name_yet_is_not_blamed_for_it() {
    let (_, router) = gardener();
    for (metadata, is_blamed) in [(json!({"name": "x-"}), true), (json!({"generateName": "x-"}), false)] {
        let mut bucket = object("BackupBucket", "", json!({"provider": "aws", "region": "eu"}));
        bucket["metadata"] = metadata;
        let answer = ask(&router, GARDEN_PATH, review_of("BackupBucket", HUB, bucket, Value::Null)).await;
        let (code, message) = refused(&answer);
        assert_eq!(code, 422);
        assert!(message.contains("spec.secretRef: required"), "{message}");
        assert_eq!(message.contains("metadata.name"), is_blamed, "{message}");
    }
}

/// Any client that reaches the port can make the webhook read one after the other.
#[tokio::test]
async fn of_secrets_so_many_are_read_in_a_second_and_a_warning_tells_of_the_rest() {
    let cluster = Arc::new(Cluster::default());
    know(&cluster, view());
    let identities = crate::Identities::default();
    let state = AdmissionState::new(cluster.clone(), cluster.clone(), identities, || Timestamp::UNIX_EPOCH);
    // A second that begins in an hour lasts longer than this test.
    let later = Instant::now() + Duration::from_secs(3600);
    while state.may_read_secret(later) {}
    let router = router(Arc::new(state));
    let secret = json!({"name": "operator", "namespace": "garden"});
    let right = profile(json!({"provider": "packet", "secretRef": secret}));
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, right, Value::Null)).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    let warnings = answer["warnings"].to_string();
    assert!(warnings.contains("could not be found out: too many Secrets are asked for at once"), "{answer}");
    assert_eq!(*cluster.garden.asked.lock(), [""; 0]);
}

#[tokio::test]
async fn who_opts_out_is_warned_and_let_in() {
    let (_, router) = gardener();
    let mut odd =
        profile(json!({"provider": "aws", "secretRef": {"name": "operator", "namespace": "garden"}}));
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, odd.clone(), Value::Null)).await;
    assert_eq!(answer["allowed"], false);
    let old = odd.clone();
    odd["metadata"]["annotations"] = json!({"garden.berth.dev/allow-cross-provider": "true"});
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, odd.clone(), Value::Null)).await;
    assert_eq!(answer["allowed"], true);
    let warning = "berth: let in as its annotation asks, and yields no bucket: no region of \"aws\" is named";
    assert_eq!(answer["warnings"], json!([warning]));
    // The annotation cannot be taken off again without a region.
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, old, odd)).await;
    assert_eq!(answer["allowed"], false);
}

#[tokio::test]
async fn what_was_let_in_once_may_be_labelled_and_lose_finalizers() {
    let (cluster, router) = gardener();
    *cluster.garden.credentials.lock() = Some(SecretLookup::Missing);
    let wrong = profile(json!({"provider": "aws"}));
    let mut labelled = wrong.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    labelled["metadata"]["finalizers"] = json!([]);
    let answer = ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, labelled, wrong)).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    assert!(cluster.garden.asked.lock().is_empty(), "and nothing is asked for it");
}

#[tokio::test]
async fn deletions_of_what_others_need_are_forbidden() {
    let (_, router) = gardener();
    for (kind, name, expected) in [
        ("BackupBucket", "bucket", "metadata.deletionTimestamp: holds 1 entry (e)"),
        ("CloudProfile", "main", "metadata.deletionTimestamp: needed by 1 entry (e) in 1 bucket"),
        ("BackupBucket", "other", ""),
        ("CloudProfile", "other", ""),
        ("Seed", "s", ""),
        ("BackupEntry", "e", ""),
    ] {
        let spec = json!({"provider": "aws", "region": "eu", "cloudProfileName": "main", "seedName": "s"});
        let gone = review_of(kind, HUB, Value::Null, object(kind, name, spec));
        let answer = ask(&router, GARDEN_PATH, gone).await;
        assert_eq!(answer["allowed"], expected.is_empty(), "{kind} {name}: {answer}");
        if !expected.is_empty() {
            let (code, message) = refused(&answer);
            assert!(code == 403 && message.starts_with(expected), "{message}");
        }
    }
}

/// An entry with a bucket, and what else its metadata has.
fn placed(metadata: Value) -> Value {
    let mut entry = object("BackupEntry", "e", json!({"seedName": "s", "bucketName": "bucket"}));
    for (key, value) in metadata.as_object().into_iter().flatten() {
        entry["metadata"][key] = value.clone();
    }
    entry
}

#[tokio::test]
async fn an_entry_with_a_bucket_is_deleted_once_the_hub_keeps_a_record_of_it() {
    let (cluster, router) = state();
    let delete = |metadata: Value| {
        let (router, old) = (router.clone(), placed(metadata));
        async move { ask(&router, GARDEN_PATH, review_of("BackupEntry", HUB, Value::Null, old)).await }
    };
    let claimed = json!({"finalizers": ["example.com/other", "garden.berth.dev/backup"]});
    let other = json!({"finalizers": ["example.com/other"]});
    let going = json!({"finalizers": ["example.com/other"], "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let meant = json!({"annotations": {"garden.berth.dev/forget-data": "the store is given up"}});
    let unmeant = json!({"annotations": {"garden.berth.dev/forget-data": "false"}});
    // This fault follows from the object itself.
    for is_known in [false, true] {
        if is_known {
            know(&cluster, view());
        }
        for metadata in [json!({}), other.clone(), unmeant.clone()] {
            let answer = delete(metadata).await;
            let (code, message) = refused(&answer);
            assert!(
                code == 403 && message.starts_with("metadata.finalizers: its data would be left"),
                "{answer}"
            );
        }
        for metadata in [claimed.clone(), going.clone(), meant.clone()] {
            let answer = delete(metadata.clone()).await;
            assert_eq!(answer["allowed"], true, "{metadata}: {answer}");
        }
    }
}

#[tokio::test]
async fn finalizers_of_an_entry_come_and_go() {
    let (_, router) = gardener();
    // An object that was admitted once, and would be refused now.
    let named = |metadata: Value| {
        let mut entry = placed(metadata);
        entry["spec"]["seedName"] = json!("");
        entry
    };
    let claimed = named(json!({"finalizers": ["garden.berth.dev/backup"]}));
    for (new, old) in [(claimed.clone(), named(json!({}))), (named(json!({})), claimed)] {
        let answer = ask(&router, GARDEN_PATH, review_of("BackupEntry", HUB, new, old)).await;
        assert_eq!(answer["allowed"], true, "{answer}");
    }
}

#[tokio::test]
async fn while_nothing_is_known_only_deletions_are_refused() {
    let (cluster, router) = state();
    let bucket = object("BackupBucket", "bucket", json!({"provider": "aws", "region": "eu"}));
    let answer = ask(&router, GARDEN_PATH, review_of("BackupBucket", HUB, Value::Null, bucket)).await;
    assert!(refused(&answer).0 == 403 && refused(&answer).1.contains("try again in a moment"), "{answer}");
    let seed = object("Seed", "new", json!({"cloudProfileName": "nobody-knows", "region": "eu"}));
    let answer = ask(&router, GARDEN_PATH, review_of("Seed", HUB, seed.clone(), Value::Null)).await;
    assert_eq!((&answer["allowed"], answer["warnings"].as_array().map(Vec::len)), (&json!(true), Some(1)));
    // A fault of the object itself is refused all the same.
    let answer =
        ask(&router, GARDEN_PATH, review_of("CloudProfile", HUB, profile(json!({})), Value::Null)).await;
    assert!(refused(&answer).1.contains("spec.backup.secretRef: required"), "{answer}");
    know(&cluster, view());
    let answer = ask(&router, GARDEN_PATH, review_of("Seed", HUB, seed, Value::Null)).await;
    assert!(refused(&answer).1.contains("CloudProfile \"nobody-knows\" does not exist"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn what_is_applied_in_one_go_is_waited_for() {
    let (cluster, router) = gardener();
    let seed = object("Seed", "new", json!({"cloudProfileName": "late", "region": "eu"}));
    let asked = review_of("Seed", HUB, seed, Value::Null);
    let asked = tokio::spawn(async move { ask(&router, GARDEN_PATH, asked).await });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    let mut later = view();
    let profile = Profile { name: "late".to_owned(), ..view().profiles["main"].clone() };
    later.profiles.insert("late".to_owned(), profile);
    know(&cluster, later);
    let answer = asked.await.unwrap_or_default();
    assert_eq!(answer["allowed"], true, "{answer}");
}

#[tokio::test]
async fn the_hub_moves_entries_and_nobody_else_does() {
    let (_, router) = gardener();
    let entry = |bucket: &str| {
        let mut entry = object("BackupEntry", "e", json!({"seedName": "s", "bucketName": bucket}));
        entry["metadata"]["namespace"] = json!("dev");
        entry
    };
    let mut moved = review_of("BackupEntry", HUB, entry("bucket"), entry("elsewhere"));
    let answer = ask(&router, GARDEN_PATH, moved.clone()).await;
    assert!(refused(&answer).1.starts_with("spec.bucketName: cannot change"), "{answer}");
    moved["request"]["userInfo"]["username"] = json!("berth");
    assert_eq!(ask(&router, GARDEN_PATH, moved).await["allowed"], true);
}

#[tokio::test]
async fn a_restore_brings_things_in_its_own_order() {
    let (_, router) = gardener();
    let entry = object("BackupEntry", "new", json!({"seedName": "later", "bucketName": "later"}));
    let mut restored = review_of("BackupEntry", HUB, entry, Value::Null);
    assert_eq!(ask(&router, GARDEN_PATH, restored.clone()).await["allowed"], false);
    restored["request"]["userInfo"]["username"] = json!("velero");
    let answer = ask(&router, GARDEN_PATH, restored).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    assert!(answer["warnings"][0].as_str().unwrap_or_default().contains("Seed \"later\" does not exist"));
}

#[tokio::test]
async fn an_entry_with_another_clusters_uid_in_its_name_is_let_in_with_a_warning() {
    let (_, router) = gardener();
    for (name, warnings) in [("shoot--dev--example--3ef42", 0), ("shoot--dev--example--3ef43", 1)] {
        let spec = json!({"seedName": "s", "shootUID": "19a9538b-5058-11e9-b5a6-5e696cab3bc8"});
        let answer = ask(
            &router,
            GARDEN_PATH,
            review_of("BackupEntry", HUB, object("BackupEntry", name, spec), Value::Null),
        )
        .await;
        let told: Vec<&Value> = answer["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|warning| warning.as_str().unwrap().contains("SHA-1"))
            .collect();
        assert_eq!((&answer["allowed"], told.len()), (&json!(true), warnings), "{answer}");
    }
}

#[tokio::test]
async fn members_objects_are_judged_where_berth_serves_them() {
    let (_, router) = gardener();
    const MEMBER: &str = "extensions.gardener.cloud";
    let bucket = |provider: &str, region: &str| {
        let secret = json!({"name": "bucket-b", "namespace": "garden"});
        object("BackupBucket", "b", json!({"type": provider, "region": region, "secretRef": secret}))
    };
    let judge = |new: Value, old: Value| {
        let router = router.clone();
        async move { ask(&router, GARDEN_PATH, review_of("BackupBucket", MEMBER, new, old)).await }
    };
    assert_eq!(judge(bucket("aws", "eu"), Value::Null).await["allowed"], true);
    assert_eq!(refused(&judge(bucket("aws", ""), Value::Null).await).0, 422);
    assert_eq!(judge(bucket("openstack", ""), Value::Null).await["allowed"], true, "somebody else's");
    assert_eq!(
        refused(&judge(bucket("openstack", "eu"), bucket("aws", "eu")).await).0,
        422,
        "it was berth's"
    );
    assert_eq!(refused(&judge(Value::Null, bucket("aws", "eu")).await).0, 403);
    assert_eq!(judge(Value::Null, bucket("openstack", "eu")).await["allowed"], true);
    let mut confirmed = bucket("aws", "eu");
    confirmed["metadata"]["annotations"] = json!({"confirmation.gardener.cloud/deletion": "true"});
    assert_eq!(judge(Value::Null, confirmed).await["allowed"], true);
}

#[tokio::test]
async fn locations_keep_to_their_own_directory_of_a_shared_bucket() {
    let (_, router) = gardener();
    let location = |prefix: &str| {
        object(
            "BackupStorageLocation",
            "mine",
            json!({"provider": "aws", "objectStorage": {"bucket": "bucket", "prefix": prefix}}),
        )
    };
    let judge = |prefix: &str| review_of("BackupStorageLocation", "velero.io", location(prefix), Value::Null);
    let answer = ask(&router, GARDEN_PATH, judge("e/velero")).await;
    assert!(
        refused(&answer).1.starts_with("spec.objectStorage.prefix: \"e\" is the directory of"),
        "{answer}"
    );
    let answer = ask(&router, GARDEN_PATH, judge("mine/velero")).await;
    assert_eq!(answer["allowed"], true);
}

#[tokio::test]
async fn kinds_that_nobody_judges_pass() {
    let (_, router) = gardener();
    let other = review_of("Shoot", "core.gardener.cloud", json!({"spec": 1}), Value::Null);
    assert_eq!(ask(&router, GARDEN_PATH, other).await["allowed"], true);
    let gone = review_of("CloudProfile", HUB, Value::Null, Value::Null);
    let (status, _) = post(&router, GARDEN_PATH, gone.to_string().into_bytes()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "without the object there is no verdict");
}
