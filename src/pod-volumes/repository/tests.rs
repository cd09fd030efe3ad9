#![allow(clippy::unwrap_used)]

mod packs;

use std::path::Path as FilePath;

use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::beneath::descend;
use crate::forget::Unneeded;

fn store() -> Store {
    Store::new(Arc::new(InMemory::new()), Path::from("restic/shop"))
}

fn source(root: &FilePath) -> Source {
    Source {
        data: descend(root, FilePath::new("volume")).unwrap().into(),
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
    assert_eq!((watched.progress().done, watched.progress().total, watched.files()), (9, 9, 1));
    let second = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    assert!(second.snapshot != first.snapshot && second.added == 0, "{second:?}");

    let target = || descend(root.path(), FilePath::new("target")).unwrap();
    let watched = Watched::default();
    let done = repository.restore(&first.snapshot, target(), "n1", &watched).await.unwrap();
    assert_eq!(done, Restored { files: 1, bytes: 9 });
    assert_eq!((watched.progress().done, watched.files()), (9, 1));
    let text = std::fs::read_to_string(root.path().join("target/folder/file")).unwrap();
    assert_eq!(text, "some text");
    for none in ["", "latest", "0123456789abcdef", "xyz"] {
        let fault = repository.restore(none, target(), "n1", &Watched::default()).await;
        assert!(matches!(fault, Err(Fault::NoSnapshot(_))), "{none}");
    }
    assert!(store.list("locks").await.unwrap().is_empty());
}

/// Of the backup b.
fn unneeded(ids: &[String]) -> Unneeded {
    Unneeded { tag: "backup=b".to_owned(), ids: ids.to_vec(), tags: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_backup_left_under_no_id_that_anybody_was_told_is_forgotten_by_its_tag() {
    let (root, store) = (volume(), store());
    let repository = Repository::make(&store, "secret").await.unwrap();
    for tags in [["backup=b", "backup-uid=u"], ["backup=b", "backup-uid=v"], ["backup=c", "backup-uid=u"]] {
        let source = Source { tags: tags.map(str::to_owned).to_vec(), ..source(root.path()) };
        repository.backup(source, &Watched::default()).await.unwrap();
    }
    let of = Unneeded { tags: vec!["backup-uid=u".to_owned()], ..unneeded(&[]) };
    assert_eq!(repository.forget(of, "n1").await.unwrap(), 1);
    assert_eq!(store.list("snapshots").await.unwrap().len(), 2, "the others are of other backups");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_snapshots_of_the_backup_are_forgotten_and_what_is_gone_is_passed_over() {
    let (root, store) = (volume(), store());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let mut ids = Vec::new();
    for backup in ["b", "b", "c"] {
        let source = Source { tags: vec![format!("backup={backup}")], ..source(root.path()) };
        ids.push(repository.backup(source, &Watched::default()).await.unwrap().snapshot);
    }
    let odd = ["0".repeat(64), ids[0][..8].to_owned()];
    for (ids, count, what) in [
        (&ids[1..], 1, "the other one is another backup's"),
        (&ids[1..2], 0, "it is gone"),
        (&odd[..], 0, "IDs are whole"),
    ] {
        assert_eq!(repository.forget(unneeded(ids), "n1").await.unwrap(), count, "{what}");
    }
    let mut left: Vec<String> =
        store.list("snapshots").await.unwrap().into_iter().map(|(name, _)| name).collect();
    let mut wanted = vec![ids[0].clone(), ids[2].clone()];
    left.sort();
    wanted.sort();
    assert_eq!(left, wanted);
    assert!(store.list("locks").await.unwrap().is_empty());
    // What is left is whole.
    let target = descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&ids[0], target, "n1", &Watched::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_wait_until_snapshots_are_forgotten_leaves_no_lock() {
    let (root, store) = (volume(), store());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let locks = async |count: usize| {
        while store.list("locks").await.unwrap().len() != count {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = unneeded(std::slice::from_ref(&saved.snapshot));
    tokio::select! {
        done = repository.forget(gone, "n1") => unreachable!("the second look for other locks comes later: {done:?}"),
        () = locks(1) => {}
    }
    tokio::time::timeout(Duration::from_secs(60), locks(0)).await.unwrap();
    assert_eq!(store.list("snapshots").await.unwrap().len(), 1, "nobody waited for that");
}

#[tokio::test(flavor = "multi_thread")]
async fn maintenance_leaves_what_snapshots_need_and_tells_of_what_they_lack() {
    let (root, store, watched) = (volume(), store(), Watched::default());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let first = repository.backup(source(root.path()), &watched).await.unwrap();
    std::fs::write(root.path().join("volume/folder/file"), "another text").unwrap();
    let second = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let gone = unneeded(std::slice::from_ref(&first.snapshot));
    assert_eq!(repository.forget(gone, "n1").await.unwrap(), 1);
    repository.maintain("n1", &Watched::default()).await.unwrap();
    assert!(store.list("locks").await.unwrap().is_empty());
    let target = || descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&second.snapshot, target(), "n1", &Watched::default()).await.unwrap();
    let text = std::fs::read_to_string(root.path().join("target/folder/file")).unwrap();
    assert_eq!(text, "another text");
    // And others go on adding to it.
    repository.backup(source(root.path()), &Watched::default()).await.unwrap();

    for (name, _) in store.list("data").await.unwrap() {
        let path = store.folder("data").join(&name[..2]).join(name.as_str());
        store.remove(&path).await.unwrap();
    }
    let fault = repository.maintain("n1", &Watched::default()).await.unwrap_err();
    assert!(matches!(fault, Fault::Repository(_)), "{fault}");
    assert!(store.list("locks").await.unwrap().is_empty());
}

/// Two files that differ in nothing but their bytes and their inodes.
fn twins(volume: &FilePath) {
    use std::os::unix::fs::MetadataExt as _;
    let files = [("one", "text one"), ("two", "text two")].map(|(folder, text)| {
        std::fs::create_dir(volume.join(folder)).unwrap();
        (volume.join(folder).join("file"), text)
    });
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for _ in 0..10_000 {
        let opened = files.each_ref().map(|(path, text)| {
            let _ = std::fs::remove_file(path);
            std::fs::write(path, text).unwrap();
            std::fs::File::options().write(true).open(path).unwrap()
        });
        for file in &opened {
            file.set_modified(time).unwrap();
        }
        let [one, two] = opened.map(|file| file.metadata().unwrap());
        if (one.ctime(), one.ctime_nsec()) == (two.ctime(), two.ctime_nsec()) {
            return;
        }
    }
    unreachable!("the clock of files has ticks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_only_its_inode_tells_apart_is_read_again() {
    let (root, store) = (volume(), store());
    let volume = root.path().join("volume");
    twins(&volume);
    let repository = Repository::make(&store, "secret").await.unwrap();
    repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    for (from, to) in [("one", "three"), ("two", "one"), ("three", "two")] {
        std::fs::rename(volume.join(from), volume.join(to)).unwrap();
    }
    let second = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let target = descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&second.snapshot, target, "n1", &Watched::default()).await.unwrap();
    let text = std::fs::read_to_string(root.path().join("target/one/file")).unwrap();
    assert_eq!(text, "text two");
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_of_files_links_and_folders_come_back() {
    let (root, store) = (volume(), store());
    let (volume, target) = (root.path().join("volume"), root.path().join("target"));
    std::os::unix::fs::symlink("folder/file", volume.join("link")).unwrap();
    std::fs::hard_link(volume.join("folder/file"), volume.join("same")).unwrap();
    let names = ["folder", "folder/file"];
    if names.iter().any(|name| xattr::set(volume.join(name), "user.berth", name.as_bytes()).is_err()) {
        // The file system of this machine has none.
        return;
    }
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    assert_eq!(saved.files, 3);
    let folder = descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&saved.snapshot, folder, "n1", &Watched::default()).await.unwrap();
    for name in names {
        let value = xattr::get(target.join(name), "user.berth").unwrap();
        assert_eq!(value.as_deref(), Some(name.as_bytes()), "{name}");
    }
    assert_eq!(xattr::list(target.join("link")).unwrap().count(), 0);
    assert_eq!(std::fs::read_link(target.join("link")).unwrap(), FilePath::new("folder/file"));
}

/// restic itself takes no sockets.
#[tokio::test(flavor = "multi_thread")]
async fn sockets_and_devices_come_back_and_nobody_opens_them() {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let (root, store, watched) = (volume(), store(), Watched::default());
    let (volume, target) = (root.path().join("volume"), root.path().join("target"));
    let (mode, null) = (Mode::S_IRUSR | Mode::S_IWUSR, makedev(1, 3));
    mknod(&volume.join("socket"), SFlag::S_IFSOCK, mode, 0).unwrap();
    // Only root may make one.
    let has_device = mknod(&volume.join("device"), SFlag::S_IFCHR, mode, null).is_ok();
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &watched).await.unwrap();
    assert_eq!((saved.bytes, watched.notes().as_str()), (9, ""), "they have no bytes");
    let folder = descend(root.path(), FilePath::new("target")).unwrap();
    repository.restore(&saved.snapshot, folder, "n1", &Watched::default()).await.unwrap();
    let found = |name: &str| std::fs::symlink_metadata(target.join(name)).unwrap();
    assert!(found("socket").file_type().is_socket());
    assert_eq!(found("socket").mode() & 0o7777, 0o600);
    if has_device {
        assert!(found("device").file_type().is_char_device());
        assert_eq!(found("device").rdev(), null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attribute_whose_name_is_no_text_is_told() {
    use std::os::unix::ffi::OsStrExt as _;
    let (root, store, watched) = (volume(), store(), Watched::default());
    let file = root.path().join("volume/folder/file");
    if xattr::set(&file, std::ffi::OsStr::from_bytes(b"user.odd\xff"), b"value").is_err() {
        // The file system of this machine has none.
        return;
    }
    let repository = Repository::make(&store, "secret").await.unwrap();
    repository.backup(source(root.path()), &watched).await.unwrap();
    let notes = watched.notes();
    assert!(notes.contains("/volume/folder/file: its attribute user.odd"), "{notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_has_fewer_files_than_were_found_is_none_to_rely_on() {
    let (root, store, watched) = (volume(), store(), Watched::default());
    let repository = Repository::make(&store, "secret").await.unwrap();
    watched.begin_file();
    let fault = repository.backup(source(root.path()), &watched).await.unwrap_err();
    assert!(fault.to_string().starts_with("of 2 files that were found, snapshot "), "{fault}");
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
async fn what_cannot_be_written_ends_the_job_and_is_told() {
    let (root, disk, watched) = (volume(), tempfile::tempdir().unwrap(), Watched::default());
    let objects = LocalFileSystem::new_with_prefix(disk.path()).unwrap();
    let store = Store::new(Arc::new(objects), Path::from("restic/shop"));
    let repository = Repository::make(&store, "secret").await.unwrap();
    // No pack can be written where its folder cannot be made.
    let data = disk.path().join("restic/shop/data");
    let _ = std::fs::remove_dir_all(&data);
    std::fs::write(&data, "no folder").unwrap();
    let fault = repository.backup(source(root.path()), &watched).await.unwrap_err().to_string();
    let wanted = ["the repository takes nothing any more: ", "Not a directory", "when restic/shop/data/"];
    assert!(wanted.iter().all(|part| fault.contains(part)), "{fault}");
    assert!(watched.is_canceled(), "nothing more is read");
    assert!(store.list("snapshots").await.unwrap().is_empty());
    assert!(store.list("locks").await.unwrap().is_empty());
    std::fs::remove_file(&data).unwrap();
    repository.backup(source(root.path()), &Watched::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_does_not_end_when_it_is_canceled_is_given_up() {
    let watched = Watched::default();
    watched.cancel();
    let (end, ends) = tokio::sync::oneshot::channel::<()>();
    let work = async move {
        let _ = ends.await;
        Ok(())
    };
    let hung = (0..3).map(|_| Hung::new("given-up")).collect::<Vec<_>>();
    assert!(Hung::ensure_few("given-up").is_ok());
    let done = until_canceled(&watched, "given-up", work, Duration::ZERO).await;
    assert!(matches!(done, Err(Fault::Hung)));
    assert!(Hung::ensure_few("given-up").is_err(), "its thread is one of four");
    end.send(()).unwrap();
    while Hung::ensure_few("given-up").is_err() {
        tokio::task::yield_now().await;
    }
    drop(hung);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_repository_gives_what_it_has_and_gets_no_lock() {
    let (root, store) = (volume(), store());
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let before = store.list("").await.unwrap();
    let target = descend(root.path(), FilePath::new("target")).unwrap();
    let repository = repository.read_only();
    assert!(matches!(repository.maintain("n1", &Watched::default()).await, Err(Fault::ReadOnly(_))));
    let forgotten = repository.forget(unneeded(std::slice::from_ref(&saved.snapshot)), "n1").await;
    assert!(matches!(forgotten, Err(Fault::ReadOnly(_))));
    repository.restore(&saved.snapshot, target, "n1", &Watched::default()).await.unwrap();
    assert!(root.path().join("target/folder/file").exists());
    assert_eq!(store.list("").await.unwrap(), before);
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
