//! What a backup has in berth's own repositories.

use std::collections::BTreeSet;

use berth_pod_volumes::{Repository, Source, Watched, descend};

use super::super::carrying::Files;
use super::*;
use crate::node_agent::repositories::Repositories;
use crate::storage::BackupLayout;

fn secret(namespace: &str) -> Ask {
    get(&format!("/api/v1/namespaces/velero/secrets/berth-repository-l.{namespace}"))
}

fn password() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "data": {"repository-password": "c2VjcmV0"},
    })
}

/// A leader that has no repository open.
fn leader(api: &Scripted, root: &Path) -> Lifecycle {
    let lifecycle = lifecycle(api, root);
    let opener = lifecycle.opener.clone();
    let repositories = Repositories::new(api.client("velero"), "velero", None, opener);
    Lifecycle { repositories: Arc::new(repositories), ..lifecycle }
}

async fn saves(repository: &Repository, tags: [&str; 2]) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("volume")).unwrap();
    let source = Source {
        data: descend(root.path(), Path::new("volume")).unwrap().into(),
        host: "app".to_owned(),
        tags: tags.map(str::to_owned).to_vec(),
        reader: "n1".to_owned(),
        same: "same=claim/c".to_owned(),
    };
    repository.backup(source, &Watched::default()).await.unwrap();
}

/// How many snapshots the repository of a namespace has. A folder goes with its last file.
fn snapshots(root: &Path, namespace: &str) -> usize {
    let repository = root.join("bucket/restic").join(namespace);
    assert!(repository.join("config").exists());
    std::fs::read_dir(repository.join("snapshots")).map_or(0, Iterator::count)
}

/// Repositories of these namespaces, each with a snapshot of Backup b with UID u.
async fn stored(api: &Scripted, root: &Path, namespaces: &[&str]) {
    std::fs::create_dir_all(root.join("bucket")).unwrap();
    let lifecycle = leader(api, root);
    for namespace in namespaces {
        api.once(secret(namespace).answers(password()));
        let repository = lifecycle.repositories.get("l", namespace, true).await.unwrap();
        saves(&repository, ["backup=b", "backup-uid=u"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_that_fails_does_not_keep_what_is_in_the_others() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let api = script(root);
    stored(&api, root, &["a", "b", "c"]).await;
    for lost in ["a", "c"] {
        api.once(secret(lost).refuses(404));
    }
    api.once(secret("b").answers(password()));
    let (lifecycle, requests) = (leader(&api, root), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
    let carrying = Carrying::new(&lifecycle, &requests, request);
    let location = serde_json::from_value(location(root)).unwrap();
    let files = |namespace: &str| Files {
        namespace: namespace.to_owned(),
        snapshot: None,
        backup_uid: Some("u".to_owned()),
    };
    let all: BTreeSet<Files> = ["a", "b", "c"].map(files).into();
    let failed = carrying.forget_files(Some(&location), &all, true).await.unwrap_err().to_string();
    for lost in ["namespace a: Secret", "namespace c: Secret"] {
        assert!(failed.contains(lost), "{failed}");
    }
    assert_eq!(["a", "b", "c"].map(|namespace| snapshots(root, namespace)), [1, 0, 1]);
    api.finish();
}

/// Of a run that never made it visible, whose Backup is gone.
fn left(root: &Path, claimed_by: &str) {
    let folder = root.join("bucket/backups/b");
    std::fs::create_dir_all(&folder).unwrap();
    let claim = json!({"cluster": "c", "namespace": "velero", "backup": claimed_by, "run": "r"});
    std::fs::write(folder.join("b.tar.gz"), "x").unwrap();
    std::fs::write(folder.join("berth-run.json"), claim.to_string()).unwrap();
}

/// It stores where `location` leads.
fn later(location: &str) -> Value {
    let mut later = backup("9", "InProgress");
    later["metadata"]["uid"] = json!("later");
    later["spec"]["storageLocation"] = json!(location);
    later
}

#[tokio::test(start_paused = true)]
async fn a_later_backup_of_the_name_ends_a_deletion_only_where_it_stores_in_the_same_place() {
    for (bucket, is_same) in [("bucket", true), ("another", false)] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        left(root, "u");
        let mut other = location(root);
        other["metadata"]["name"] = json!("other");
        other["spec"]["objectStorage"]["bucket"] = json!(bucket);
        let request_path = path("deletebackuprequests", "r");
        let api = script(root)
            .always(get(&path("backupstoragelocations", "other")).answers(other))
            .always(get(&request_path).answers(request("2", "InProgress")))
            .always(get(&path("backups", "b")).answers(later("other")))
            .next(deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"})));
        assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
        assert_eq!(root.join("bucket/backups/b/b.tar.gz").exists(), is_same, "its run takes that over");
        let [write] = api.writes().try_into().unwrap();
        assert_eq!(write.body["preconditions"], json!({"uid": "ru"}), "no other request goes");
        api.finish();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn recorded_data_is_forgotten_once_a_later_backup_has_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let api = script(root);
    stored(&api, root, &["app"]).await;
    let mut asked = request("2", "InProgress");
    asked["metadata"]["annotations"][berth_api::keys::DATA_IN] = json!("app,gone");
    let request_path = path("deletebackuprequests", "r");
    let api = api
        .always(get(&request_path).answers(asked))
        .always(get(&path("backups", "b")).answers(later("l")))
        .always(secret("app").answers(password()));
    let requests = DeletionRequests::default();
    let carries = async || {
        let lifecycle = leader(&api, root);
        let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
        Carrying::new(&lifecycle, &requests, request).run(Instant::now()).await
    };
    left(root, "u");
    assert_eq!(carries().await, DeletionEnd::Not, "it has not taken the folder over yet");
    assert_eq!(snapshots(root, "app"), 1);
    left(root, "later");
    api.next(deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"})));
    assert_eq!(carries().await, DeletionEnd::Yes);
    assert_eq!(snapshots(root, "app"), 0);
    assert!(root.join("bucket/backups/b/b.tar.gz").exists(), "it is the later one's");
    api.finish();
}

/// Only the request tells: the run could not write another checkpoint.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_records_is_forgotten_before_the_folder_goes() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let api = script(root);
    stored(&api, root, &["app"]).await;
    left(root, "u");
    let mut asked = request("2", "InProgress");
    asked["metadata"]["annotations"][berth_api::keys::DATA_IN] = json!("app");
    let request_path = path("deletebackuprequests", "r");
    let api = api
        .always(get(&request_path).answers(asked))
        .always(get(&path("backups", "b")).refuses(404))
        .always(secret("app").answers(password()))
        .next(deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"})));
    let (lifecycle, requests) = (leader(&api, root), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
    let ended = Carrying::new(&lifecycle, &requests, request).run(Instant::now()).await;
    assert_eq!(ended, DeletionEnd::Yes);
    assert_eq!(snapshots(root, "app"), 0);
    assert!(!root.join("bucket/backups/b").exists());
    api.finish();
}

/// Whoever removed the folder has not forgotten what no file of it told.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_request_records_is_forgotten_also_where_the_folder_is_gone() {
    for has_others in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let api = script(root);
        stored(&api, root, &["app"]).await;
        let mut asked = request("2", "InProgress");
        asked["metadata"]["annotations"][berth_api::keys::DATA_IN] = json!("app");
        let request_path = path("deletebackuprequests", "r");
        let api = api
            .always(get(&request_path).answers(asked))
            .always(get(&path("backups", "b")).refuses(404))
            .always(secret("app").answers(password()));
        if has_others {
            let other = root.join("bucket/backups/other");
            std::fs::create_dir_all(&other).unwrap();
            std::fs::write(other.join("velero-backup.json"), "{}").unwrap();
            api.next(deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"})));
        }
        let (lifecycle, requests) = (leader(&api, root), DeletionRequests::default());
        let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
        let ended = Carrying::new(&lifecycle, &requests, request).run(Instant::now()).await;
        // A location without any backup may be a volume that is not mounted.
        assert_eq!(ended, if has_others { DeletionEnd::Yes } else { DeletionEnd::Not });
        assert_eq!(snapshots(root, "app"), usize::from(!has_others));
        api.finish();
    }
}

/// The files of its folder say where they are.
#[tokio::test]
async fn a_folder_stays_whose_data_is_in_more_namespaces_than_one_deletion_forgets() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let api = script(root);
    left(root, "u");
    let (lifecycle, requests) = (leader(&api, root), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "InProgress")).unwrap());
    let mut carrying = Carrying::new(&lifecycle, &requests, request);
    carrying.is_backup_gone = true;
    let location = serde_json::from_value(location(root)).unwrap();
    let store = lifecycle.opener.open_existing(&location).await.unwrap();
    let layout = BackupLayout::new(store, None, "b");
    let mut names: BTreeSet<String> = (0..10_000).map(|i| i.to_string()).collect();
    let found = carrying.look_at_volumes(Some(&layout), None, "u", &names).await.unwrap();
    assert_eq!(found.files.len(), 10_000);
    names.insert("one-more".to_owned());
    let failed = carrying.look_at_volumes(Some(&layout), None, "u", &names).await.err().unwrap().to_string();
    assert!(failed.contains("10001 places"), "{failed}");
    api.finish();
}
