#![allow(clippy::unwrap_used)]

use object_store::memory::InMemory;
use object_store::path::Path as StorePath;

use super::*;
use crate::beneath::descend;
use crate::repository::{Data, Repository, Source};
use crate::store::Store;

/// More than two of the largest chunks, and no whole number of anything.
const SIZE: u64 = (20 << 20) + 123;

async fn repository() -> Repository {
    let store = Store::new(Arc::new(InMemory::new()), StorePath::from("restic/shop"));
    Repository::make(&store, "secret").await.unwrap()
}

fn source(data: impl Into<Data>) -> Source {
    Source {
        data: data.into(),
        host: "shop".into(),
        tags: Vec::new(),
        reader: "n1".into(),
        same: "same=claim/u".into(),
    }
}

/// A file that stands for a device, next to nothing of which is on the disk.
fn sparse() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(SIZE).unwrap();
    for (at, byte) in [(0, 1), (9 << 20, 2), (SIZE - 5, 3)] {
        file.write_all_at(&[byte; 5], at).unwrap();
    }
    file
}

/// A file of so many bytes that no device has by chance.
fn written(size: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&vec![0xff; usize::try_from(size).unwrap()], 0).unwrap();
    file
}

fn bytes(file: &File) -> Vec<u8> {
    let mut all = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut all, 0).unwrap();
    all
}

fn device(file: &File) -> Data {
    Data::Device(Device::of(file.try_clone().unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_bytes_of_a_device_come_back_zeros_included() {
    let (repository, disk, watched) = (repository().await, sparse(), Watched::default());
    let first = repository.backup(source(device(&disk)), &watched).await.unwrap();
    assert_eq!((first.bytes, first.files), (SIZE, 1));
    assert_eq!((watched.progress().done, watched.progress().total), (SIZE, SIZE));
    let larger = written(SIZE + 1000);
    let watched = Watched::default();
    let done = repository.restore(&first.snapshot, device(&larger), "n1", &watched).await.unwrap();
    assert_eq!(done, Restored { files: 1, bytes: SIZE });
    assert_eq!(watched.progress().done, SIZE);
    let (there, size) = (bytes(&larger), usize::try_from(SIZE).unwrap());
    assert!(there[..size] == bytes(&disk), "not all bytes are the same");
    assert!(there[size..].iter().all(|byte| *byte == 0xff), "what is behind them is nobody's");

    // Nothing tells that it was written to, so it is read again, and only that is stored.
    disk.write_all_at(b"changed", 9 << 20).unwrap();
    let second = repository.backup(source(device(&disk)), &Watched::default()).await.unwrap();
    assert!(second.snapshot != first.snapshot && second.bytes == SIZE, "{second:?}");
    repository.restore(&second.snapshot, device(&larger), "n1", &Watched::default()).await.unwrap();
    assert!(bytes(&larger)[..size] == bytes(&disk), "the change is not there");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_not_written() {
    let (repository, root) = (repository().await, tempfile::tempdir().unwrap());
    std::fs::create_dir(root.path().join("volume")).unwrap();
    std::fs::write(root.path().join("volume/device"), "no device").unwrap();
    let folder = || descend(root.path(), Path::new("volume")).unwrap();
    let of_device = repository.backup(source(device(&sparse())), &Watched::default()).await.unwrap();
    let of_files = repository.backup(source(folder()), &Watched::default()).await.unwrap();
    let small = written(SIZE - 1);
    let into = async |snapshot: &str, data: Data| {
        let done = repository.restore(snapshot, data, "n1", &Watched::default()).await;
        done.unwrap_err().to_string()
    };
    let why = into(&of_device.snapshot, device(&small)).await;
    assert!(why.ends_with(&format!("and this one has only {}", SIZE - 1)), "{why}");
    let why = into(&of_files.snapshot, device(&small)).await;
    assert!(why.ends_with("has files, and the volume is a device"), "{why}");
    assert!(bytes(&small).iter().all(|byte| *byte == 0xff));
    let why = into(&of_device.snapshot, folder().into()).await;
    assert!(why.ends_with("is of a device, and the volume takes files"), "{why}");
    let text = std::fs::read_to_string(root.path().join("volume/device")).unwrap();
    assert_eq!(text, "no device");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_cannot_be_read_to_its_end_is_no_whole_one() {
    let repository = repository().await;
    let short = Device { size: SIZE + 1, ..Device::of(sparse()).unwrap() };
    let fault = repository.backup(source(Data::Device(short)), &Watched::default()).await.unwrap_err();
    let Fault::Unfinished(unfinished) = fault else { unreachable!("{fault}") };
    assert_eq!(unfinished.first, ["/volume/device: it ends before its size"]);
    let watched = Watched::default();
    watched.cancel();
    let fault = repository.backup(source(device(&sparse())), &watched).await.unwrap_err();
    assert!(matches!(fault, Fault::Canceled), "{fault}");
}

#[test]
fn a_regular_file_is_no_device() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Device::open(file.path(), false).unwrap_err();
    assert_eq!(error.to_string(), "it is no block device");
}

/// As when its storage is gone. A backup of it would be complete, and have nothing.
#[test]
fn a_device_without_bytes_is_not_opened() {
    let error = Device::of(tempfile::tempfile().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "it has no bytes");
}
