//! What a backup has in berth's own repositories.

use std::collections::BTreeSet;

use berth_pod_volumes::{Repository, Source, Watched, descend};

use super::super::carrying::Files;
use super::*;
use crate::node_agent::repositories::Repositories;

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
