use std::path::Path;

use berth_garden_api::StoreConfig;
use berth_garden_api::extensions::BackupEntrySpec;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::storage::Roots;

/// A bucket that is a folder.
fn store() -> (tempfile::TempDir, Bucket) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("shared")).unwrap();
    let config = StoreConfig { path: Some(root.path().display().to_string()), ..StoreConfig::default() };
    let roots = Roots::from(vec![root.path().to_owned()]);
    let bucket = Bucket::open(keys::FILESYSTEM_PROVIDER, "shared", "r", &config, &Secret::default(), &roots);
    (root, bucket.unwrap())
}

/// Of namespace `namespace` of a hub, or a gardenlet's.
fn entry(name: &str, namespace: Option<&str>, uid: &str) -> BackupEntry {
    let mut metadata =
        ObjectMeta { name: Some(name.to_owned()), uid: Some(uid.to_owned()), ..ObjectMeta::default() };
    if let Some(namespace) = namespace {
        let labels = [(keys::CARRIED_FOR, "ship"), (keys::HUB_UID, uid)];
        metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        metadata.annotations = Some([(keys::HUB_NAMESPACE.to_owned(), namespace.to_owned())].into());
    }
    BackupEntry { metadata, spec: BackupEntrySpec::default(), status: None }
}

fn scope(name: &str) -> RemovalScope {
    RemovalScope::of_entry(name, None).unwrap()
}

async fn take(bucket: &Bucket, object: &BackupEntry, record: &ProviderStatus) -> Option<String> {
    let scope = scope(&object.name_any());
    let claim = DirectoryClaim::of(object, record, &scope, false).unwrap();
    claim.take(bucket, &scope).await.unwrap().map(|why| why.to_string())
}

/// What becomes of the directory of a deleted entry.
async fn ends(bucket: &Bucket, object: &BackupEntry, record: &ProviderStatus) -> DirectoryEnd {
    let scope = scope(&object.name_any());
    let claim = DirectoryClaim::of(object, record, &scope, false).unwrap();
    claim.end(bucket, &scope).await.unwrap()
}

/// An earlier version made it.
fn made() -> ProviderStatus {
    ProviderStatus { made: Some(true), ..ProviderStatus::default() }
}

fn mark(root: &Path, name: &str) -> String {
    std::fs::read_to_string(root.join(format!("shared/_berth/{name}/owner.json"))).unwrap()
}

fn fill(root: &Path, name: &str) {
    let folder = root.join("shared").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("data"), "precious").unwrap();
}

#[tokio::test]
async fn the_mark_is_written_once_and_says_whose_the_directory_is() {
    let (root, bucket) = store();
    assert_eq!(take(&bucket, &entry("a", Some("one"), "1"), &ProviderStatus::default()).await, None);
    let written = mark(root.path(), "a");
    let told: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(told, json!({"entry": "a", "namespace": "one", "seed": "ship", "uid": "1"}));
    // Made again in its namespace: the mark stays as it is.
    assert_eq!(take(&bucket, &entry("a", Some("one"), "2"), &ProviderStatus::default()).await, None);
    assert_eq!(mark(root.path(), "a"), written);
    let left: Vec<_> = std::fs::read_dir(root.path().join("shared/_berth/a")).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing else is left beside it");
}

#[tokio::test]
async fn what_one_namespace_left_no_other_one_gets_or_removes() {
    let (root, bucket) = store();
    assert_eq!(take(&bucket, &entry("a", Some("one"), "1"), &ProviderStatus::default()).await, None);
    fill(root.path(), "a");
    let written = mark(root.path(), "a");
    for second in [entry("a", Some("two"), "2"), entry("a", None, "3")] {
        for record in [&ProviderStatus::default(), &made()] {
            let why = take(&bucket, &second, record).await.unwrap();
            assert!(why.contains("BackupEntry one/a of a hub (UID 1, Seed ship)"), "{why}");
            assert!(why.contains("another name") && why.contains("_berth/a/owner.json"), "{why}");
            let end = ends(&bucket, &second, record).await;
            assert!(matches!(end, DirectoryEnd::LeftAlone(DirectoryRefusal::Anothers(..))), "{end:?}");
        }
    }
    assert_eq!(mark(root.path(), "a"), written);
    // Made again in its namespace, by a cluster that never set it up.
    assert_eq!(
        ends(&bucket, &entry("a", Some("one"), "4"), &ProviderStatus::default()).await,
        DirectoryEnd::Remove
    );
}

#[tokio::test]
async fn what_lay_there_before_is_taken_only_where_somebody_says_so() {
    let (root, bucket) = store();
    fill(root.path(), "a");
    let mut us = entry("a", Some("one"), "1");
    let why = take(&bucket, &us, &ProviderStatus::default()).await.unwrap();
    assert!(why.contains("garden.berth.dev/own-directory=a"), "{why}");
    assert!(!root.path().join("shared/_berth").exists(), "it is not marked");
    let refused = ProviderStatus { name_taken: Some(true), ..made() };
    for record in [&ProviderStatus::default(), &refused] {
        let end = ends(&bucket, &us, record).await;
        assert!(matches!(end, DirectoryEnd::LeftAlone(DirectoryRefusal::Unmarked(..))), "{end:?}");
    }
    assert_eq!(
        ends(&bucket, &entry("none", Some("one"), "3"), &ProviderStatus::default()).await,
        DirectoryEnd::Nothing
    );
    // Of another name: that is not meant.
    for (value, is_taken) in [("b", false), ("a", true)] {
        let annotations = us.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::OWN_DIRECTORY.to_owned(), value.to_owned());
        assert_eq!(take(&bucket, &us, &ProviderStatus::default()).await.is_none(), is_taken, "{value}");
    }
}

#[tokio::test]
async fn what_an_earlier_version_set_up_needs_no_word_and_goes_when_it_is_deleted() {
    let (root, bucket) = store();
    let begun =
        ProviderStatus { found: Some(berth_garden_api::Removed::default()), ..ProviderStatus::default() };
    for (name, record) in [("a", made()), ("b", begun)] {
        fill(root.path(), name);
        let us = entry(name, Some("one"), "2");
        assert_eq!(ends(&bucket, &us, &record).await, DirectoryEnd::Remove, "{name}");
        // Its hub is gone, and somebody took the label of the Seed off; an earlier version did not
        // say the namespace.
        let mut orphan = us.clone();
        orphan.metadata.labels.as_mut().unwrap().remove(keys::CARRIED_FOR);
        orphan.metadata.annotations = None;
        assert_eq!(ends(&bucket, &orphan, &record).await, DirectoryEnd::Remove, "{name}");
        assert_eq!(take(&bucket, &us, &record).await, None);
        assert!(mark(root.path(), name).contains("one"));
        // The same by its mark alone.
        assert_eq!(ends(&bucket, &orphan, &ProviderStatus::default()).await, DirectoryEnd::Remove, "{name}");
    }
}

#[tokio::test]
async fn of_two_that_come_at_once_one_gets_it() {
    let (_root, bucket) = store();
    let (one, two) = (entry("a", Some("one"), "1"), entry("a", Some("two"), "2"));
    let record = ProviderStatus::default();
    let (first, second) = tokio::join!(take(&bucket, &one, &record), take(&bucket, &two, &record));
    assert_ne!(first.is_none(), second.is_none(), "{first:?} {second:?}");
}

#[tokio::test]
async fn what_is_no_mark_is_an_error_and_stays() {
    let (root, bucket) = store();
    std::fs::create_dir_all(root.path().join("shared/_berth/a")).unwrap();
    let (us, scope) = (entry("a", Some("one"), "1"), scope("a"));
    let claim = DirectoryClaim::of(&us, &ProviderStatus::default(), &scope, true).unwrap();
    let named = |uid: &str| json!({"entry": "a", "namespace": "one", "uid": uid}).to_string();
    for text in [
        "[]".to_owned(),
        named("a\nline"),
        named(&"1".repeat(254)),
        format!("{}{}", named("1"), " ".repeat(5000)),
    ] {
        std::fs::write(root.path().join("shared/_berth/a/owner.json"), &text).unwrap();
        let error = claim.take(&bucket, &scope).await.unwrap_err();
        assert_eq!(error.fault, StoreFault::Configuration);
        assert!(error.message.len() < 500 && !error.message.contains(char::is_control), "{error}");
        assert!(claim.end(&bucket, &scope).await.is_err(), "nor is anything removed");
        assert_eq!(mark(root.path(), "a"), text);
    }
}

/// An earlier version made it, and its hub says the namespace when it is next looked at.
#[tokio::test]
async fn an_object_that_does_not_say_its_namespace_yet_marks_nothing_and_waits_where_that_decides() {
    let (root, bucket) = store();
    let mut us = entry("a", Some("one"), "2");
    us.metadata.annotations = None;
    assert_eq!(take(&bucket, &us, &ProviderStatus::default()).await, None);
    assert!(!root.path().join("shared/_berth").exists(), "it is not marked");
    assert_eq!(take(&bucket, &entry("a", Some("one"), "1"), &ProviderStatus::default()).await, None);
    let scope = scope("a");
    let claim = DirectoryClaim::of(&us, &made(), &scope, false).unwrap();
    let error = claim.end(&bucket, &scope).await.unwrap_err();
    assert_eq!(error.fault, StoreFault::Unavailable, "the hub may have been restored: {error}");
}
