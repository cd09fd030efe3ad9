//! A million files and a large hole, in the memory that an agent may have.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{NAMESPACE, Stage, pod_volume_backup, pod_volume_restore, waiting};

const FOLDERS: usize = 1_000;
const OF_FOLDER: usize = 1_000;
const HOLE: u64 = 20 << 30;
const MOST_MEMORY: u64 = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(3600);

/// Each tenth file has bytes.
fn fill(volume: &Path) {
    for folder in 0..FOLDERS {
        let folder = volume.join(folder.to_string());
        fs::create_dir(&folder).unwrap();
        for number in 0..OF_FOLDER {
            let path = folder.join(number.to_string());
            let bytes = if number % 10 == 0 { path.display().to_string() } else { String::new() };
            fs::write(path, bytes).unwrap();
        }
    }
    let mut sparse = File::create(volume.join("sparse")).unwrap();
    sparse.seek(SeekFrom::Start(HOLE)).unwrap();
    sparse.write_all(b"end").unwrap();
}

/// The most memory that a process ever held, in KiB.
fn peak(id: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "takes minutes: make test-large"]
fn a_million_files_and_a_large_hole_fit_into_the_memory_of_an_agent() {
    let mut stage = Stage::start();
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let uid = stage.pod("shop", "web-0", &empty, &json!({"phase": "Running"}));
    let volume = stage.folder(&uid, "kubernetes.io~empty-dir/data");
    fill(&volume);
    for name in ["first", "second"] {
        stage.create(&[pod_volume_backup(name, &uid, "folder", &json!({}))]);
        let done = stage.ended_within(PATIENCE, "podvolumebackup", name);
        assert_eq!(done["status"]["phase"], "Completed", "{:#}", done["status"]);
    }
    let second = stage.read(NAMESPACE, "podvolumebackup", "second");
    let added = second["status"]["incrementalBytes"].as_i64().unwrap();
    assert!(added < 1 << 20, "nothing has changed, and {added} bytes were added");

    let other = stage.pod("elsewhere", "web-0", &empty, &waiting());
    let target = stage.folder(&other, "kubernetes.io~empty-dir/data");
    let snapshot = second["status"]["snapshotID"].as_str().unwrap();
    stage.create(&[pod_volume_restore("back", &other, "folder", snapshot)]);
    let done = stage.ended_within(PATIENCE, "podvolumerestore", "back");
    assert_eq!(done["status"]["phase"], "Completed", "{:#}", done["status"]);
    for folder in 0..FOLDERS {
        let folder = folder.to_string();
        assert_eq!(fs::read_dir(target.join(&folder)).unwrap().count(), OF_FOLDER, "{folder}");
        let read = |top: &Path| fs::read(top.join(&folder).join("990")).unwrap();
        assert_eq!(read(&target), read(&volume), "{folder}");
    }
    let mut sparse = File::open(target.join("sparse")).unwrap();
    let meta = sparse.metadata().unwrap();
    assert_eq!(meta.len(), HOLE + 3);
    assert!(meta.blocks() < 64 << 10, "it is sparse again: {} blocks", meta.blocks());
    let mut end = String::new();
    sparse.seek(SeekFrom::Start(HOLE)).unwrap();
    sparse.read_to_string(&mut end).unwrap();
    assert_eq!(end, "end");
    stage.restic("folder", &["check"]);
    let peak = peak(stage.agent.id());
    assert!(peak <= MOST_MEMORY, "the agent held {peak} KiB");
}
