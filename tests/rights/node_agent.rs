//! Rights of berth's node agents. One agent runs at a time, with all rules of its roles but one.

use std::path::Path;

use berth::install::pod_volumes::AGENT;
use serde_json::{Value, json};

use super::none::{NOBODY, NODE_AGENT, granted};
use super::{PATIENCE, refusals, tail};
use crate::pod_volumes::{agent_with, roles};
use crate::support::peers::install_definitions;
use crate::support::{ControlPlane, wait_for};

const NODE: &str = "node-1";

/// A rule of the agents' roles.
pub struct Right {
    kind: &'static str,
    rule: usize,
    needed_for: &'static str,
    /// What the agent that lacks it is refused first: verb, resource and its group.
    refused: (&'static str, &'static str, &'static str),
}

pub const RIGHTS: [Right; 9] = [
    Right {
        kind: "Role",
        rule: 0,
        needed_for: "knowing which volumes are to be read or restored, and telling how far that is",
        refused: ("list", "podvolumebackups", "velero.io"),
    },
    Right {
        kind: "Role",
        rule: 1,
        needed_for: "finding the repository: without, nothing is read",
        refused: ("get", "backupstoragelocations", "velero.io"),
    },
    Right {
        kind: "Role",
        rule: 2,
        needed_for: "telling whether a repository can be used, and maintaining it",
        refused: ("list", "backuprepositories", "velero.io"),
    },
    Right {
        kind: "Role",
        rule: 3,
        needed_for: "the stores' keys, and the passwords of repositories",
        refused: ("get", "secrets", ""),
    },
    Right {
        kind: "Role",
        rule: 4,
        needed_for: "how many volumes at the same time, where a ConfigMap says so",
        refused: ("get", "configmaps", ""),
    },
    Right {
        kind: "Role",
        rule: 5,
        needed_for: "moving the data of snapshots, in a data mover pod",
        refused: ("get", "datauploads", "velero.io"),
    },
    Right {
        kind: "ClusterRole",
        rule: 0,
        needed_for: "knowing the volumes of its node's pods, and which pods wait for a restore",
        refused: ("list", "pods", ""),
    },
    Right {
        kind: "ClusterRole",
        rule: 1,
        needed_for: "finding the folder of a claim's volume",
        refused: ("get", "persistentvolumeclaims", ""),
    },
    Right {
        kind: "ClusterRole",
        rule: 2,
        needed_for: "the labels of its node, by which that ConfigMap says it",
        refused: ("get", "nodes", ""),
    },
];

impl Right {
    fn is_of(&self, role: &Value) -> bool {
        role["metadata"]["name"] == AGENT && role["kind"] == self.kind
    }
}

pub fn needed_for(role: &Value, rule: usize) -> Option<&'static str> {
    RIGHTS.iter().find(|right| right.rule == rule && right.is_of(role)).map(|right| right.needed_for)
}

fn roles_without(right: &Right) -> Vec<Value> {
    let mut objects = roles();
    let role = objects.iter_mut().find(|object| right.is_of(object)).unwrap();
    role["rules"].as_array_mut().unwrap().remove(right.rule);
    objects
}

/// A volume of a claim in a pod of the node, and what asks for its files.
fn give_work(plane: &ControlPlane, pods: &Path, name: &str) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": NODE, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    let kubectl = plane.kubectl();
    let made = kubectl.create("default", &[pod]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let status = json!({"status": {"phase": "Running"}}).to_string();
    let args = ["patch", "pod", name, "-n", "default", "--subresource=status", "--type=merge"];
    kubectl.run(&[&args[..], &["--patch", &status]].concat()).unwrap();
    let uid = kubectl.run(&["get", "pod", name, "-n", "default", "-o", "jsonpath={.metadata.uid}"]).unwrap();
    let folder = pods.join(&uid).join("volumes/kubernetes.io~csi/pv-data/mount");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("file"), name).unwrap();
    let asked = json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup", "metadata": {"name": name},
        "spec": {
            "node": NODE, "volume": "data", "backupStorageLocation": "folder", "repoIdentifier": "",
            "uploaderType": "restic",
            "pod": {"kind": "Pod", "namespace": "default", "name": name, "uid": uid},
        },
    });
    let made = kubectl.create("velero", &[asked]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

fn objects(plane: &ControlPlane) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "folder", "namespace": "velero"},
            "spec": {
                "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket"},
                "config": {"path": plane.folder().join("stores")},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "node-agents", "namespace": "velero"},
            "data": {"config.json": json!({"loadConcurrency": {"globalConfig": 2}}).to_string()},
        }),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-data"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "csi.test", "volumeHandle": "h"},
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": "pv-data", "storageClassName": "",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }),
    ]
}

#[test]
fn without_any_one_rule_the_node_agent_cannot_do_something() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    install_definitions(&plane).unwrap();
    std::fs::create_dir_all(plane.folder().join("stores/bucket")).unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "velero"}});
    plane.apply(vec![namespace]).unwrap();
    plane.apply([roles(), objects(&plane)].concat()).unwrap();
    let account = format!("system:serviceaccount:velero:{AGENT}");
    for (verb, resource) in [("list", "podvolumebackups.velero.io"), ("list", "pods"), ("get", "secrets")] {
        plane.kubectl().await_right(&account, "velero", verb, resource).unwrap();
    }
    plane.kubectl().await_right(&account, "default", "get", "persistentvolumeclaims").unwrap();
    let too_many = granted(plane.kubectl(), "velero", AGENT, NOBODY.iter().chain(NODE_AGENT));
    assert!(too_many.is_empty(), "{too_many:?}");
    let (kubectl, pods) = (plane.kubectl(), plane.folder().join("pods"));
    std::fs::create_dir_all(&pods).unwrap();
    let agent = |name: &str| agent_with(&plane, &pods, name, &["--node-agent-configmap=node-agents"]);
    let mut whole = agent("whole");
    give_work(&plane, &pods, "whole");
    wait_for("the files to be read with all rights", PATIENCE, || {
        whole.ensure_runs()?;
        let args = ["get", "podvolumebackup", "whole", "-n", "velero", "-o", "jsonpath={.status.phase}"];
        let phase = kubectl.run(&args)?;
        anyhow::ensure!(phase != "Failed", "{}", whole.log_text()?);
        Ok((phase == "Completed").then_some(()))
    })
    .unwrap();
    wait_for("the ConfigMap to be read", PATIENCE, || {
        Ok(whole.log_text()?.contains("at the same time from now on").then_some(()))
    })
    .unwrap();
    let text = whole.log_text().unwrap();
    assert!(refusals(&text, "velero", "node-agent").is_empty(), "{text}");
    drop(whole);

    for (index, right) in RIGHTS.iter().enumerate() {
        let name = format!("rule-{index}");
        plane.apply(roles_without(right)).unwrap();
        let (verb, resource, group) = right.refused;
        let refusal = format!(r#"cannot {verb} resource "{resource}""#);
        let full = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        let may = ["auth", "can-i", verb, &full, "-n", "velero", "--as", &account];
        wait_for(&format!("{refusal:?} to be so"), PATIENCE, || {
            Ok((!kubectl.answer(&may, "")?.status.success()).then_some(()))
        })
        .unwrap();
        let running = match resource {
            "datauploads" => agent_with(&plane, &pods, &name, &["--carry=DataUpload/none/none"]),
            _ => agent(&name),
        };
        give_work(&plane, &pods, &name);
        let what = format!("{} rule {} ({})", right.kind, right.rule, right.needed_for);
        wait_for(&format!("{refusal:?} without {what}"), PATIENCE, || {
            // Logged as a field, in quotes.
            let text = running.log_text()?.replace(r#"\""#, "\"");
            let is_told = refusals(&text, "velero", "node-agent").iter().any(|line| line.contains(&refusal));
            Ok(is_told.then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", tail(&running.log_text().unwrap_or_default())));
        drop(running);
        plane.apply(roles()).unwrap();
        plane.kubectl().await_right(&account, "velero", verb, &full).unwrap();
    }
}
