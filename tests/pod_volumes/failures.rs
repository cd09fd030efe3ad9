//! What goes wrong between an agent, its volumes and its repository, and that nothing is lost by
//! it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_api::velero::BackupPhase;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::alone::{self, backed_up, files_of};
use super::{NAMESPACE, Stage, agent, agent_by, pod, pod_volume_backup, restic_on};
use crate::admission::program;
use crate::archive::items;
use crate::queue::ended;
use crate::support::peers::S3;
use crate::support::process::in_own_session;
use crate::support::{ControlPlane, PATIENCE, Process, backup, wait_for};

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
    denied(&mut stage, &uid, &folder);
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
    // It lives, and goes on with its lock whatever restic does meanwhile.
    stage.agent.signal(Signal::SIGSTOP).unwrap();
    assert_not_pruned(stage);
    stage.agent.kill().unwrap();
    assert_eq!(status(stage, "killed")["phase"], "InProgress");
    let stored = count();
    stage.agent.restart().unwrap();
    let done = stage.completed("podvolumebackup", "killed");
    assert_eq!(done["metadata"]["annotations"]["berth.dev/runs"], "2", "{:#}", done["metadata"]);
    assert!(count() >= stored, "what was stored stays");
    let snapshots: Value = serde_json::from_str(&stage.restic("folder", &["snapshots", "--json"])).unwrap();
    assert_eq!(snapshots.as_array().unwrap().len(), 2, "a half-read volume is no snapshot: {snapshots:#}");
    // The lock of the process that was killed is there for half an hour, and restic removes nothing
    // beside it.
    stage.restic("folder", &["check", "--read-data", "--no-lock"]);
    assert_not_pruned(stage);
}

/// restic prunes nothing beside the lock of an agent.
fn assert_not_pruned(stage: &Stage) {
    let prune = stage.restic_command("folder").arg("prune").output().unwrap();
    let said = String::from_utf8_lossy(&prune.stderr).into_owned();
    assert!(!prune.status.success() && said.contains("already locked"), "{said}");
    assert!(said.contains("on node-1 by berth"), "{said}");
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
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let other = stage.pod("shop", "other", &empty, &json!({"phase": "Running"}));
    fs::write(stage.folder(&other, "kubernetes.io~empty-dir/data").join("small"), "of another").unwrap();
    stage.create(&[pod_volume_backup("locked", uid, "folder", &json!({}))]);
    // Twice: it has looked again, and the lock was still there.
    wait_for("the agent to wait", PATIENCE, || {
        stage.agent.ensure_runs()?;
        let text = stage.agent.log_text()?;
        let waits = |line: &&str| line.contains("waiting") && line.contains("locked exclusively");
        let is_told = status(stage, "locked")["message"]
            .as_str()
            .is_some_and(|message| message.contains("waits") && message.contains("locked exclusively"));
        Ok((is_told && text.lines().filter(waits).count() > 1).then_some(()))
    })
    .unwrap();
    // The node reads one volume at a time, and a repository that is not locked need not wait.
    let pod = json!({"kind": "Pod", "namespace": "shop", "name": "other", "uid": other});
    stage.create(&[pod_volume_backup("beside", &other, "s3", &json!({"pod": pod}))]);
    stage.completed("podvolumebackup", "beside");
    canceled(stage, uid);
    assert_eq!(status(stage, "locked")["phase"], "InProgress");
    kill(pid, Signal::SIGCONT).unwrap();
    assert!(child.wait().unwrap().success());
    let done = stage.completed("podvolumebackup", "locked");
    assert_eq!(done["status"]["message"], "", "what it waited for is told no more: {done:#}");
    stage.restic("folder", &["check", "--read-data"]);
}

/// A backup that has begun, and cannot go on now.
fn canceled(stage: &mut Stage, uid: &str) {
    stage.create(&[pod_volume_backup("unwanted", uid, "folder", &json!({}))]);
    wait_for("another one to wait", PATIENCE, || {
        stage.agent.ensure_runs()?;
        let message = status(stage, "unwanted")["message"].clone();
        Ok(message.as_str().is_some_and(|message| message.contains("waits")).then_some(()))
    })
    .unwrap();
    let cancel = r#"{"spec": {"cancel": true}}"#;
    let args = ["patch", "podvolumebackup", "unwanted", "-n", NAMESPACE, "--type=merge", "--patch", cancel];
    stage.plane.kubectl().run(&args).unwrap();
    let ended = stage.ended("podvolumebackup", "unwanted");
    assert_eq!(ended["status"]["phase"], "Canceled", "{ended:#}");
    assert!(ended["status"]["snapshotID"].is_null(), "{ended:#}");
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

/// A file that the agent may not read is told, and all others are in the snapshot.
fn denied(stage: &mut Stage, uid: &str, folder: &Path) {
    stage.agent.terminate(PATIENCE).unwrap();
    fs::write(folder.join("denied"), "of somebody else").unwrap();
    fs::set_permissions(folder.join("denied"), fs::Permissions::from_mode(0o600)).unwrap();
    chown(folder.join("denied"), Some(999), Some(999)).unwrap();
    fs::write(folder.join("beside"), "may be read").unwrap();
    let mut command = in_own_session(Path::new("setpriv"));
    // What makes root read the files of others.
    command.arg("--bounding-set=-dac_override,-dac_read_search").arg(program());
    stage.agent = agent_by(command, &stage.plane, &stage.pods, "agent-without-rights", &[]);
    stage.create(&[pod_volume_backup("denied", uid, "folder", &json!({}))]);
    let failed = stage.ended("podvolumebackup", "denied");
    let message = failed["status"]["message"].as_str().unwrap();
    assert_eq!(failed["status"]["phase"], "Failed", "{message}");
    let wanted = ["1 files are not whole in snapshot ", "/volume/denied: Permission denied"];
    assert!(wanted.iter().all(|part| message.contains(part)), "{message}");
    let id = message.split("snapshot ").nth(1).unwrap().split(':').next().unwrap();
    let listed = stage.restic("folder", &["ls", id]);
    assert!(listed.contains("/volume/beside") && !listed.contains("/volume/denied"), "{listed}");
    stage.restic("folder", &["check", "--read-data"]);
}

/// A pod of a node with an agent, whose volume is to be backed up. The folder of all pods, and that
/// of the volume.
fn application(plane: &ControlPlane) -> (PathBuf, PathBuf) {
    alone::agents_pod(plane);
    let pods = plane.folder().join("pods");
    let named = json!({"backup.velero.io/backup-volumes": "data"});
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let uid = pod(plane, "shop", "web-0", &empty, &named, &json!({"phase": "Running"}));
    let folder = alone::volume(&pods, &uid, "kubernetes.io~empty-dir/data");
    fs::write(folder.join("small"), "first").unwrap();
    (pods, folder)
}

/// An agent that sees a disk of this size in place of a folder, in a mount namespace of its own.
fn agent_on_a_disk(plane: &ControlPlane, pods: &Path, disk: &Path, size: &str) -> Process {
    let mut command = in_own_session(Path::new("unshare"));
    let script =
        format!("mount -t tmpfs -o size={size} tmpfs \"$0\" && exec \"{}\" \"$@\"", program().display());
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]).arg(disk);
    agent_by(command, plane, pods, "agent-on-a-disk", &[])
}

/// What is in the repository is whole, whoever has a lock. How many snapshots that is.
fn whole(plane: &ControlPlane, location: &str, repository: &Path) -> usize {
    let restic = |args: &[&str]| {
        let mut command = restic_on(plane, location, &repository.display().to_string());
        let output = command.arg("--no-lock").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {}{said}", String::from_utf8_lossy(&output.stdout));
        output.stdout
    };
    restic(&["check", "--read-data"]);
    let snapshots: Value = serde_json::from_slice(&restic(&["snapshots", "--json"])).unwrap();
    snapshots.as_array().unwrap().len()
}

#[test]
fn a_disk_that_is_full_in_mid_upload_costs_the_volume_and_nothing_else() {
    let berth = alone::cluster();
    let plane = berth.plane();
    let _report = plane.report_on_panic();
    let (pods, folder) = application(plane);
    let disk = berth.archives().join("restic");
    fs::create_dir(&disk).unwrap();
    let mut agent = agent_on_a_disk(plane, &pods, &disk, "48m");
    let (phase, log) = backed_up(&berth, "first");
    assert_eq!(phase, BackupPhase::Completed, "{log}\n{}", agent.log_text().unwrap());
    let repository = PathBuf::from(format!("/proc/{}/root{}/shop", agent.id(), disk.display()));
    let before = walk(&repository.join("data"));

    // Many times what has room, so that much is left to be read when it is full.
    let large = |number: u64| folder.join(format!("large-{number}"));
    for number in 0..10 {
        noise(&large(number), 32 << 20, number + 1);
    }
    let (phase, log) = backed_up(&berth, "full");
    assert_eq!(phase, BackupPhase::PartiallyFailed, "{log}\n{}", agent.log_text().unwrap());
    let wanted = ["volume data of pod web-0 is not backed up", "No space left on device"];
    assert!(wanted.iter().all(|part| log.contains(part)), "{log}");
    let found = files_of(plane, "full");
    let [files] = found.as_slice() else { panic!("{found:#?}") };
    let message = files["status"]["message"].as_str().unwrap();
    assert_eq!(files["status"]["phase"], "Failed", "{message}");
    let wanted = ["the repository takes nothing any more", "No space left on device"];
    assert!(wanted.iter().all(|part| message.contains(part)), "{message}");
    assert!(walk(&repository.join("data")) > before, "a part of it had room");
    assert!(items(&berth.archive("full")).iter().any(|item| item == "pods/namespaces/shop/web-0"));
    assert_eq!(whole(plane, "default", &repository), 1);

    // There is room again.
    for number in 1..10 {
        fs::remove_file(large(number)).unwrap();
    }
    let mut mount = Command::new("nsenter");
    mount.arg(format!("--mount=/proc/{}/ns/mnt", agent.id()));
    let mounted = mount.args(["mount", "-o", "remount,size=128m"]).arg(&disk).status().unwrap();
    assert!(mounted.success(), "{mounted}");
    let (phase, log) = backed_up(&berth, "after");
    assert_eq!(phase, BackupPhase::Completed, "{log}\n{}", agent.log_text().unwrap());
    agent.ensure_runs().unwrap();
    assert_eq!(whole(plane, "default", &repository), 2);
}

#[test]
fn a_store_that_is_killed_in_mid_upload_is_waited_for_and_nothing_is_lost() {
    let berth = alone::cluster();
    let plane = berth.plane();
    let _report = plane.report_on_panic();
    let (pods, folder) = application(plane);
    let mut s3 = S3::start(plane, "killed").unwrap();
    let create = |object: Value| {
        let made = plane.kubectl().create(NAMESPACE, &[object]).unwrap();
        assert!(made.status.success(), "{}", made.stderr);
    };
    create(s3.keys.secret_object(NAMESPACE));
    create(s3.location("s3", "some/where"));
    berth.await_location("s3").unwrap();
    let of = |name: &str| backup(name, json!({"includedNamespaces": ["shop"], "storageLocation": "s3"}));
    let mut agent = agent(plane, &pods, "node-agent");
    create(of("first"));
    let done = ended(&berth, &["first"]).remove("first").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}\n{}", done.status, agent.log_text().unwrap());

    for number in 0..8 {
        noise(&folder.join(format!("large-{number}")), 32 << 20, number + 1);
    }
    let repository = s3.file("some/where/restic/shop");
    let before = walk(&repository.join("data"));
    let phase = || files_of(plane, "killed").first().map(|files| files["status"]["phase"].clone());
    create(of("killed"));
    wait_for("a part of it to be stored", PATIENCE, || {
        agent.ensure_runs()?;
        let phase = phase();
        anyhow::ensure!(phase != Some(json!("Completed")), "it was too fast to be killed");
        Ok((phase == Some(json!("InProgress")) && walk(&repository.join("data")) > before).then_some(()))
    })
    .unwrap();
    s3.process.kill().unwrap();
    assert_eq!(phase(), Some(json!("InProgress")));
    s3.start_again().unwrap();
    let done = ended(&berth, &["killed"]).remove("killed").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}\n{}", done.status, agent.log_text().unwrap());
    assert_eq!(phase(), Some(json!("Completed")));
    agent.ensure_runs().unwrap();
    assert_eq!(whole(plane, "s3", &repository), 2);
    assert_eq!(walk(&repository.join("locks")), 0);
}
