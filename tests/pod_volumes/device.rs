//! A real block device: read into a repository, and written back over another one. The nodes of
//! other tests have none.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use berth_pod_volumes::{Data, Device, Repository, Source, Store, Watched};
use object_store::memory::InMemory;

const SIZE: u64 = 64 << 20;

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    /// `None`: this machine gives none.
    fn attach(file: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| Self(PathBuf::from(name.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A file of so many bytes, each of which is this one.
fn file(path: &Path, byte: u8) {
    fs::write(path, vec![byte; usize::try_from(SIZE).unwrap()]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs loop devices: make test-large"]
async fn a_real_device_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let (from, to) = (root.path().join("from"), root.path().join("to"));
    file(&from, 0);
    let disk = File::options().write(true).open(&from).unwrap();
    for at in [0, 5 << 20, SIZE - 512] {
        disk.write_all_at(&[7; 512], at).unwrap();
    }
    disk.sync_all().unwrap();
    file(&to, 0xff);
    let there = Path::new("/dev/loop-control").exists();
    let devices = there.then(|| Some((Loop::attach(&from)?, Loop::attach(&to)?))).flatten();
    let Some((source, target)) = devices else {
        println!("skipped: this machine gives no loop device, so no real device was read or written");
        return;
    };
    let store = Store::new(Arc::new(InMemory::new()), object_store::path::Path::from("restic/shop"));
    let repository = Repository::make(&store, "secret").await.unwrap();
    let source = Source {
        data: Data::Device(Device::open(&source.0, false).unwrap()),
        host: "shop".to_owned(),
        tags: Vec::new(),
        reader: "n1".to_owned(),
        same: "same=claim/u".to_owned(),
    };
    let saved = repository.backup(source, &Watched::default()).await.unwrap();
    assert_eq!(saved.bytes, SIZE);
    let written = Data::Device(Device::open(&target.0, true).unwrap());
    let done = repository.restore(&saved.snapshot, written, "n1", &Watched::default()).await.unwrap();
    assert_eq!(done.bytes, SIZE);
    // A device that is detached has written all it was given to its file.
    drop(target);
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "not all bytes came back");
}
