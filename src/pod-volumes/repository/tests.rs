#![allow(clippy::unwrap_used)]

use std::path::Path as FilePath;

use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::beneath::descend;

fn store() -> Store {
    Store::new(Arc::new(InMemory::new()), Path::from("restic/shop"))
}

fn source(root: &FilePath) -> Source {
    Source {
        folder: descend(root, FilePath::new("volume")).unwrap(),
        host: "shop".into(),
        tags: vec!["backup=b".into()],
        reader: "n1".into(),
        same: "same=claim/u".into(),
    }
}

fn volume() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("volume/folder")).unwrap();
    std::fs::create_dir(root.path().join("target")).unwrap();
    std::fs::write(root.path().join("volume/folder/file"), "some text").unwrap();
    root
}

#[tokio::test(flavor = "multi_thread")]
async fn of_those_that_make_a_repository_at_once_all_get_the_same() {
    let store = store();
    let made = futures::future::join_all((0..3).map(|_| Repository::make(&store, "secret"))).await;
    let keys: Vec<_> = made.into_iter().map(|made| made.unwrap().key.encrypt).collect();
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(Repository::open(&store, "secret").await.unwrap().key.encrypt, keys[0]);
    assert!(matches!(Repository::open(&store, "other").await, Err(Fault::Password(_))));
    let elsewhere = Store::new(Arc::new(InMemory::new()), Path::from("elsewhere"));
    assert!(matches!(Repository::open(&elsewhere, "secret").await, Err(Fault::Missing(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_comes_back_and_the_next_one_adds_little() {
    let (root, store, watched) = (volume(), store(), Watched::default());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let first = repository.backup(source(root.path()), &watched).await.unwrap();
    assert_eq!((first.bytes, first.files, first.snapshot.len()), (9, 1, 64));
    assert_eq!((watched.progress().done, watched.progress().total), (9, 9));
    let second = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    assert!(second.snapshot != first.snapshot && second.added == 0, "{second:?}");

    let target = || descend(root.path(), FilePath::new("target")).unwrap();
    let done = repository.restore(&first.snapshot, target(), "n1", &Watched::default()).await.unwrap();
    assert_eq!(done, Restored { files: 1, bytes: 9 });
    let text = std::fs::read_to_string(root.path().join("target/folder/file")).unwrap();
    assert_eq!(text, "some text");
    for none in ["", "latest", "0123456789abcdef", "xyz"] {
        let fault = repository.restore(none, target(), "n1", &Watched::default()).await;
        assert!(matches!(fault, Err(Fault::NoSnapshot(_))), "{none}");
    }
    assert!(store.list("locks").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_canceled_leaves_no_snapshot() {
    let (root, store, watched) = (volume(), store(), Watched::default());
    let repository = Repository::make(&store, "secret").await.unwrap();
    watched.cancel();
    let canceled = repository.backup(source(root.path()), &watched).await;
    assert!(matches!(canceled, Err(Fault::Canceled)), "{canceled:?}");
    assert!(store.list("snapshots").await.unwrap().is_empty());
    assert!(store.list("locks").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_a_link_has_replaced_is_not_entered() {
    let (root, store) = (volume(), store());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    std::fs::create_dir(root.path().join("outside")).unwrap();
    std::os::unix::fs::symlink("../outside", root.path().join("target/folder")).unwrap();
    let target = descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&saved.snapshot, target, "n1", &Watched::default()).await.unwrap();
    assert!(root.path().join("target/folder/file").exists());
    assert_eq!(std::fs::read_dir(root.path().join("outside")).unwrap().count(), 0);
}
