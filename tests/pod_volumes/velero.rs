//! A stock Velero restores a Backup of berth's into another cluster, and has no node-agents:
//! berth's agent brings the files of the pod's volume back, behind the init container that Velero
//! adds.

use std::fs;

use anyhow::ensure;
use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use super::alone::{self, agents_pod, files_of, volume};
use super::{NAMESPACE, NODE, agent, assert_same, fill, pod, read, roles, waiting};
use crate::queue::ended;
use crate::support::peers::{S3, Velero, install_definitions, prepare};
use crate::support::{ControlPlane, PATIENCE, backup, wait_for};

const PREFIX: &str = "some/where";
const RESTORE: &str = "back";

fn create(plane: &ControlPlane, namespace: &str, objects: &[Value]) {
    let made = plane.kubectl().create(namespace, objects).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

/// What docs/pod-volumes.md has people create before the first restore: a Velero asks for a
/// DaemonSet of this name and for a repository that is ready.
fn prepared() -> [Value; 2] {
    let labels = json!({"app": "node-agent-of-berth"});
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "node-agent"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"berth.dev/no-node": "true"},
                    "containers": [{"name": "none", "image": "none"}],
                },
            },
        },
    });
    let repository = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupRepository",
        "metadata": {"name": "shop-default-restic", "labels": {
            "velero.io/volume-namespace": "shop", "velero.io/storage-location": "default",
            "velero.io/repository-type": "restic",
        }},
        "spec": {
            "volumeNamespace": "shop", "backupStorageLocation": "default", "repositoryType": "restic",
            "maintenanceFrequency": "168h0m0s",
        },
        "status": {"phase": "Ready"},
    });
    [daemon_set, repository]
}

#[test]
fn a_velero_without_node_agents_restores_a_pod_and_berths_agent_its_files() {
    // The cluster to restore into comes up meanwhile.
    let other = std::thread::spawn(|| {
        let other = ControlPlane::start().unwrap();
        install_definitions(&other).unwrap();
        other
    });
    let mut berth = alone::cluster();
    let s3 = S3::start(berth.plane(), "restored").unwrap();
    create(berth.plane(), NAMESPACE, &[s3.keys.secret_object(NAMESPACE), s3.location("s3", PREFIX)]);
    berth.await_location("s3").unwrap();
    agents_pod(berth.plane());
    let pods = berth.plane().folder().join("pods");
    let named = json!({"backup.velero.io/backup-volumes": "data"});
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    let uid = pod(berth.plane(), "shop", "web-0", &empty, &named, &json!({"phase": "Running"}));
    let source = volume(&pods, &uid, "kubernetes.io~empty-dir/data");
    fill(&source);
    let first_agent = agent(berth.plane(), &pods, "node-agent");
    let spec = json!({"includedNamespaces": ["shop"], "storageLocation": "s3"});
    create(berth.plane(), NAMESPACE, &[backup("files", spec)]);
    let done = ended(&berth, &["files"]).remove("files").unwrap();
    assert_eq!(
        done.phase(),
        BackupPhase::Completed,
        "{:?}\n{}",
        done.status,
        first_agent.log_text().unwrap()
    );
    let mut password = read(berth.plane(), NAMESPACE, "secret", "berth-repository-s3.shop");
    password["metadata"] = json!({"name": "berth-repository-default.shop"});
    drop(first_agent);
    berth.controller.process.kill().unwrap();

    let other = other.join().unwrap();
    let _report = other.report_on_panic();
    prepare(&other, NAMESPACE, &s3, PREFIX).unwrap();
    other.apply(roles()).unwrap();
    create(&other, NAMESPACE, &[password]);
    create(&other, NAMESPACE, &prepared());
    agents_pod(&other);
    let pods = other.folder().join("pods");
    fs::create_dir_all(&pods).unwrap();
    let mut agent = agent(&other, &pods, "node-agent-of-restores");
    // As a Velero before it has left it: then this one looks for backups as soon as it starts.
    let available = json!({"status": {"phase": "Available"}}).to_string();
    let args =
        ["patch", "backupstoragelocation", "default", "-n", NAMESPACE, "--type=merge", "--patch", &available];
    other.kubectl().run(&args).unwrap();
    let disabled = ["backup-queue", "backup", "backup-repo"];
    let velero = Velero::start(&other, NAMESPACE, &s3, &disabled, &[]).unwrap();
    wait_for("stock Velero to see the backup and its files", PATIENCE, || {
        let found = other.kubectl().backups(NAMESPACE)?;
        Ok((found.contains_key("files") && files_of(&other, "files").len() == 1).then_some(()))
    })
    .unwrap();
    velero.run(&["restore", "create", RESTORE, "--from-backup", "files"]).unwrap();
    let restore = || -> anyhow::Result<Value> {
        let restore = read(&other, NAMESPACE, "restores.velero.io", RESTORE);
        let phase = restore["status"]["phase"].as_str().unwrap_or_default();
        ensure!(
            !phase.contains("Failed"),
            "{}\n{}",
            velero.run(&["restore", "describe", RESTORE, "--details", "--colorized=false"])?,
            agent_log(&other)
        );
        Ok(restore)
    };
    let restored = wait_for("Velero to create the pod", PATIENCE, || {
        restore()?;
        let found = other.kubectl().run(&[
            "get",
            "pods",
            "-n",
            "shop",
            "--field-selector=metadata.name=web-0",
            "-o",
            "json",
        ])?;
        let found: Value = serde_json::from_str(&found)?;
        Ok(found["items"].get(0).cloned())
    })
    .unwrap();
    let waits = &restored["spec"]["initContainers"][0];
    let restore_uid = restore().unwrap()["metadata"]["uid"].clone();
    assert_eq!(
        (&waits["name"], &waits["args"]),
        (&json!("restore-wait"), &json!([restore_uid])),
        "{restored:#}"
    );

    // What a scheduler and a kubelet do.
    let uid = restored["metadata"]["uid"].as_str().unwrap();
    let target = volume(&pods, uid, "kubernetes.io~empty-dir/data");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web-0", "namespace": "shop"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    let path = "/api/v1/namespaces/shop/pods/web-0/binding";
    let bound =
        other.kubectl().answer_by_process(&["create", "--raw", path, "-f", "-"], &binding.to_string());
    let bound = bound.unwrap();
    assert!(bound.status.success(), "{}", bound.stderr);
    let patch = json!({"status": waiting()}).to_string();
    let args = ["patch", "pod", "web-0", "-n", "shop", "--subresource=status", "--type=merge"];
    other.kubectl().run(&[&args[..], &["--patch", &patch]].concat()).unwrap();

    wait_for("the restore to be Completed", PATIENCE, || {
        agent.ensure_runs()?;
        Ok((restore()?["status"]["phase"] == "Completed").then_some(()))
    })
    .unwrap();
    assert_same(&source, &target);
    let mark = restore_uid.as_str().unwrap();
    assert!(target.join(".velero").join(mark).exists(), "or the init container would wait for ever");
}

fn agent_log(plane: &ControlPlane) -> String {
    fs::read_to_string(plane.folder().join("node-agent-of-restores.log")).unwrap_or_default()
}
