//! A cluster without any Velero: the controller has berth's own agent read files, and what was lost
//! comes back.

use std::fs;
use std::path::Path;

use berth::install::{InstallSettings, render};
use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use super::{
    NAMESPACE, NODE, agent, assert_same, claim, fill, pod, pod_volume_restore, read, roles, waiting,
};
use crate::admission::program;
use crate::archive::{side, side_text};
use crate::queue::ended;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, wait_for};

/// The pod of an agent, as its DaemonSet makes it.
pub fn agents_pod(plane: &ControlPlane) {
    let settings = InstallSettings { pod_volumes: true, ..InstallSettings::new(NAMESPACE) };
    let objects = render(&settings).unwrap();
    let set = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "berth-node-agent-x", "labels": set["spec"]["template"]["metadata"]["labels"]},
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "containers": [{"name": "berth", "image": "i"}],
        },
    });
    let made = plane.kubectl().create(NAMESPACE, &[pod]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let status = json!({"status": {"phase": "Running"}}).to_string();
    let args =
        ["patch", "pod", "berth-node-agent-x", "-n", NAMESPACE, "--subresource=status", "--type=merge"];
    plane.kubectl().run(&[&args[..], &["--patch", &status]].concat()).unwrap();
}

pub fn backed_up(berth: &Berth, name: &str) -> (BackupPhase, String) {
    let made = backup(name, json!({"includedNamespaces": ["shop"]}));
    let made = berth.kubectl().create(NAMESPACE, &[made]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let done = ended(berth, &[name]).remove(name).unwrap();
    let folder = berth.archives().join("backups").join(name);
    (done.phase(), side_text(&folder, &format!("{name}-logs.gz")))
}

pub fn files_of(plane: &ControlPlane, backup: &str) -> Vec<Value> {
    let label = format!("velero.io/backup-name={backup}");
    let args = ["get", "podvolumebackups", "-n", NAMESPACE, "-l", &label, "-o", "json"];
    let found: Value = serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap();
    found["items"].as_array().unwrap().clone()
}

pub fn volume(pods: &Path, uid: &str, below: &str) -> std::path::PathBuf {
    let folder = pods.join(uid).join("volumes").join(below);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// berth with what `berth install --pod-volumes` brings, but for what needs a kubelet.
pub fn cluster() -> Berth {
    let berth = Berth::start(ControlPlane::start().unwrap(), Options::new(program(), NAMESPACE)).unwrap();
    let plane = berth.plane();
    let definitions = berth_api::crd::pod_volumes();
    plane.apply(definitions.iter().map(|definition| json!(definition)).collect()).unwrap();
    plane.kubectl().await_definitions().unwrap();
    plane.apply(roles()).unwrap();
    let namespace = |name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    plane.apply(["shop", "elsewhere"].map(namespace).into()).unwrap();
    berth
}

#[test]
fn berths_own_agent_reads_the_files_of_a_backup_and_brings_them_back() {
    let berth = cluster();
    let plane = berth.plane();
    let _report = plane.report_on_panic();
    plane.apply(claim().to_vec()).unwrap();
    let pods = plane.folder().join("pods");
    let named = json!({"backup.velero.io/backup-volumes": "data"});
    let of_claim = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let uid = pod(plane, "shop", "web-0", &of_claim, &named, &json!({"phase": "Running"}));
    let source = volume(&pods, &uid, "kubernetes.io~csi/pv-data/mount");
    fill(&source);

    let (phase, log) = backed_up(&berth, "nobody-reads");
    assert_eq!(phase, BackupPhase::PartiallyFailed, "{log}");
    assert!(log.contains("no node-agent runs on node node-1 (`berth install --pod-volumes`"), "{log}");

    agents_pod(plane);
    let mut agent = agent(plane, &pods, "node-agent");
    let (phase, log) = backed_up(&berth, "files");
    let told = agent.log_text().unwrap();
    assert_eq!(phase, BackupPhase::Completed, "{log}\n{told}");
    agent.ensure_runs().unwrap();
    let found = files_of(plane, "files");
    let [files] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(
        (&files["spec"]["uploaderType"], &files["status"]["phase"]),
        (&json!("restic"), &json!("Completed")),
        "{files:#}"
    );
    assert_eq!(files["metadata"]["annotations"]["velero.io/pvc-name"], "data");
    assert!(files["status"]["progress"]["bytesDone"].as_i64().unwrap() > 9_000_000, "{files:#}");
    let folder = berth.archives().join("backups/files");
    let stored = side(&folder, "files-podvolumebackups.json.gz");
    assert_eq!(stored[0]["status"]["snapshotID"], files["status"]["snapshotID"], "{stored:#}");
    let repository = read(plane, NAMESPACE, "backuprepository", "shop-default-restic");
    assert_eq!(
        (&repository["spec"]["repositoryType"], &repository["status"]["phase"]),
        (&json!("restic"), &json!("Ready")),
        "{repository:#}"
    );
    assert!(berth.archives().join("restic/shop/config").exists());

    // A snapshot of the backup of which its list says nothing, as of one that failed.
    let mut left = files.clone();
    left["metadata"] = json!({"name": "left"});
    left["status"] = json!({});
    let made = plane.kubectl().create(NAMESPACE, &[left]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_for("the second snapshot", PATIENCE, || {
        agent.ensure_runs()?;
        let status = read(plane, NAMESPACE, "podvolumebackup", "left")["status"].clone();
        anyhow::ensure!(status["phase"] != "Failed", "{status:#}");
        Ok((status["phase"] == "Completed").then_some(()))
    })
    .unwrap();

    // The application is lost, and its files come back into another pod's volume.
    let kept = plane.folder().join("kept");
    fs::rename(&source, &kept).unwrap();
    plane.kubectl().run(&["delete", "pod", "web-0", "-n", "shop", "--force"]).unwrap();
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let uid = pod(plane, "elsewhere", "web-0", &empty, &json!({}), &waiting());
    let target = volume(&pods, &uid, "kubernetes.io~empty-dir/data");
    let snapshot = files["status"]["snapshotID"].as_str().unwrap();
    let asked = pod_volume_restore("back", &uid, "default", snapshot);
    let made = plane.kubectl().create(NAMESPACE, &[asked]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_for("the files to be back", PATIENCE, || {
        agent.ensure_runs()?;
        let status = read(plane, NAMESPACE, "podvolumerestore", "back")["status"].clone();
        anyhow::ensure!(status["phase"] != "Failed", "{status:#}");
        Ok((status["phase"] == "Completed").then_some(()))
    })
    .unwrap();
    assert_same(&kept, &target);

    // Who deletes the backup has its snapshots forgotten.
    let snapshots = berth.archives().join("restic/shop/snapshots");
    let count = || fs::read_dir(&snapshots).map_or(0, Iterator::count);
    assert_eq!(count(), 2);
    let deletion = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest", "metadata": {"name": "files-1"},
        "spec": {"backupName": "files"},
    });
    let made = plane.kubectl().create(NAMESPACE, &[deletion]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_for("the backup to be deleted", PATIENCE, || {
        let args =
            ["get", "deletebackuprequests", "-n", NAMESPACE, "-o", "jsonpath={.items[*].status.errors}"];
        let errors = plane.kubectl().run(&args)?;
        anyhow::ensure!(errors.is_empty(), "{errors}");
        Ok((!plane.kubectl().backups(NAMESPACE)?.contains_key("files")).then_some(()))
    })
    .unwrap();
    assert_eq!(count(), 0);
}
