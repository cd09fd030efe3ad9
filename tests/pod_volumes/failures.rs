//! What goes wrong between an agent, its volumes and its repository, and that nothing is lost by
//! it.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::{NAMESPACE, Stage, pod_volume_backup};
use crate::support::{PATIENCE, wait_for};

const SECRET: &str = "berth-repository-folder.shop";

/// A pod of the node with a volume of its own, and the folder of that.
fn volume(stage: &Stage) -> (String, std::path::PathBuf) {
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let uid = stage.pod("shop", "web-0", &empty, &json!({"phase": "Running"}));
    let folder = stage.folder(&uid, "kubernetes.io~empty-dir/data");
    (uid, folder)
}

/// Bytes that do not compress, and are others for each seed.
fn noise(path: &Path, bytes: usize, seed: u64) {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let bytes: Vec<u8> = (0..bytes / 8).flat_map(|_| next()).collect();
    fs::write(path, bytes).unwrap();
}

fn set_password(stage: &Stage, password: &Value) {
    let patch = json!({"data": {"repository-password": password}}).to_string();
    let args = ["patch", "secret", SECRET, "-n", NAMESPACE, "--type=merge", "-p", &patch];
    stage.plane.kubectl().run(&args).unwrap();
}

fn status(stage: &Stage, name: &str) -> Value {
    stage.read(NAMESPACE, "podvolumebackup", name)["status"].clone()
}

/// The agent opens what it has open anew when it is another process.
fn restart(stage: &mut Stage) {
    stage.agent.terminate(PATIENCE).unwrap();
    stage.agent.restart().unwrap();
}

#[test]
fn what_ends_an_agent_or_keeps_it_from_its_repository_loses_nothing() {
    let mut stage = Stage::start();
    let (uid, folder) = volume(&stage);
    fs::write(folder.join("small"), "first").unwrap();
    stage.create(&[pod_volume_backup("first", &uid, "folder", &json!({}))]);
    stage.completed("podvolumebackup", "first");
    killed_in_mid_upload(&mut stage, &uid, &folder);
    locked(&mut stage, &uid, &folder);
    with_another_password(&mut stage, &uid);
    maintained(&mut stage, &uid);
}

fn killed_in_mid_upload(stage: &mut Stage, uid: &str, folder: &Path) {
    for number in 0..4 {
        noise(&folder.join(format!("large-{number}")), 32 << 20, number + 1);
    }
    stage.create(&[pod_volume_backup("killed", uid, "folder", &json!({}))]);
    let packs = stage.plane.folder().join("stores/bucket/some/where/restic/shop/data");
    let count = || walk(&packs);
    let before = count();
    wait_for("a part of it to be stored", PATIENCE, || {
        stage.agent.ensure_runs()?;
        let status = status(stage, "killed");
        anyhow::ensure!(status["phase"] != "Completed", "it was too fast to be killed");
        Ok((status["phase"] == "InProgress" && count() > before + 1).then_some(()))
    })
    .unwrap();
    stage.agent.kill().unwrap();
    assert_eq!(status(stage, "killed")["phase"], "InProgress");
    let stored = count();
    stage.agent.restart().unwrap();
    let done = stage.completed("podvolumebackup", "killed");
    assert_eq!(done["metadata"]["annotations"]["berth.dev/runs"], "2", "{:#}", done["metadata"]);
    assert!(count() >= stored, "what was stored stays");
    let snapshots: Value = serde_json::from_str(&stage.restic("folder", &["snapshots", "--json"])).unwrap();
    assert_eq!(snapshots.as_array().unwrap().len(), 2, "a half-read volume is no snapshot: {snapshots:#}");
    // The lock of the process that was killed is there for half an hour.
    stage.restic("folder", &["check", "--read-data", "--no-lock"]);
}

fn walk(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}

/// As long as a prune of restic's works, nothing is begun; when it has ended, it is.
fn locked(stage: &mut Stage, uid: &str, folder: &Path) {
    stage.restic("folder", &["unlock", "--remove-all"]);
    let locks = stage.plane.folder().join("stores/bucket/some/where/restic/shop/locks");
    let (mut child, pid) = wait_for("a restic that is stopped with its lock", PATIENCE, || {
        let mut command = stage.restic_command("folder");
        command.args(["check", "--read-data"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        wait_for("restic's exclusive lock", PATIENCE, || {
            Ok((walk(&locks) > 0 || child.try_wait()?.is_some()).then_some(()))
        })?;
        kill(pid, Signal::SIGSTOP)?;
        // On a busy machine it may be done before it is stopped.
        if walk(&locks) > 0 {
            return Ok(Some((child, pid)));
        }
        kill(pid, Signal::SIGCONT)?;
        child.wait()?;
        Ok(None)
    })
    .unwrap();
    fs::write(folder.join("small"), "second").unwrap();
    stage.create(&[pod_volume_backup("locked", uid, "folder", &json!({}))]);
    // Twice: it has looked again, and the lock was still there.
    wait_for("the agent to wait", PATIENCE, || {
        stage.agent.ensure_runs()?;
        let text = stage.agent.log_text()?;
        let waits = |line: &&str| line.contains("waiting") && line.contains("locked exclusively");
        Ok((text.lines().filter(waits).count() > 1).then_some(()))
    })
    .unwrap();
    assert_eq!(status(stage, "locked")["phase"], "InProgress");
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(child.wait().unwrap().success());
    stage.completed("podvolumebackup", "locked");
    stage.restic("folder", &["check", "--read-data"]);
}

/// Neither another password nor none makes a repository, or harms the one that is there.
fn with_another_password(stage: &mut Stage, uid: &str) {
    let secret = stage.read(NAMESPACE, "secret", SECRET);
    let password = secret["data"]["repository-password"].clone();
    set_password(stage, &json!("d3Jvbmc="));
    restart(stage);
    stage.create(&[pod_volume_backup("wrong", uid, "folder", &json!({}))]);
    let failed = stage.ended("podvolumebackup", "wrong");
    let message = failed["status"]["message"].as_str().unwrap().to_owned();
    assert_eq!(failed["status"]["phase"], "Failed", "{message}");
    assert!(message.contains("the password is not the one of the repository"), "{message}");
    assert!(!message.contains("wrong"), "it tells no password: {message}");
    let told = stage.read(NAMESPACE, "backuprepository", "shop-folder-restic");
    assert_eq!(
        (&told["status"]["phase"], &told["status"]["message"]),
        (&json!("NotReady"), &json!(message)),
        "{told:#}"
    );
    stage.plane.kubectl().run(&["delete", "secret", SECRET, "-n", NAMESPACE]).unwrap();
    stage.create(&[pod_volume_backup("none", uid, "folder", &json!({}))]);
    let failed = stage.ended("podvolumebackup", "none");
    let message = failed["status"]["message"].as_str().unwrap();
    assert!(message.contains("is not there: bring it back"), "{message}");
    let back = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
        "data": {"repository-password": password},
    });
    stage.create(&[back]);
    stage.create(&[pod_volume_backup("again", uid, "folder", &json!({}))]);
    stage.completed("podvolumebackup", "again");
    assert_eq!(stage.read(NAMESPACE, "backuprepository", "shop-folder-restic")["status"]["phase"], "Ready");
    stage.restic("folder", &["check", "--read-data"]);
}

/// When its time has come one of the agents prunes and checks the repository, and says so.
fn maintained(stage: &mut Stage, uid: &str) {
    let name = "shop-folder-restic";
    let patch = json!({"status": {"lastMaintenanceTime": "2020-01-01T00:00:00Z"}}).to_string();
    let args = ["patch", "backuprepository", name, "-n", NAMESPACE, "--type=merge", "-p", &patch];
    stage.plane.kubectl().run(&args).unwrap();
    let maintained = wait_for("the repository to be maintained", PATIENCE, || {
        stage.agent.ensure_runs()?;
        let status = stage.read(NAMESPACE, "backuprepository", name)["status"].clone();
        let result = status["recentMaintenance"][0]["result"].clone();
        anyhow::ensure!(result != "Failed", "{status:#}");
        Ok((result == "Succeeded").then_some(status))
    })
    .unwrap();
    assert_ne!(maintained["lastMaintenanceTime"], "2020-01-01T00:00:00Z", "{maintained:#}");
    stage.restic("folder", &["check", "--read-data"]);
    stage.create(&[pod_volume_backup("after", uid, "folder", &json!({}))]);
    stage.completed("podvolumebackup", "after");
}
