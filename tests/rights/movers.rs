//! Data movers of all kinds beside a Velero that does not run: everything that berth does with
//! them, it does here.

use berth_core::mover::MoverKind;
use serde_json::{Value, json};

use super::{PATIENCE, logged, refusals, start};
use crate::support::{Berth, ControlPlane, wait_for};

const CONFIG: &str = "node-agent-config";
const AGENT: &str = "node-agent";
/// The controller's patience, in place of 25 s and two minutes, because no node-agent here is
/// merely late.
pub const PATIENCE_OF_CONTROLLER: [&str; 2] = ["--mover-orphaned-after=1s", "--mover-given-up-after=2s"];
/// Long ago: before its configuration was written, and longer than anything takes.
const LONG_AGO: &str = "2020-01-01T00:00:00Z";
/// Cluster-scoped names of one namespace's scene.
fn apps(namespace: &str) -> String {
    format!("{namespace}-apps")
}

fn node(namespace: &str) -> String {
    format!("{namespace}-node")
}

fn claim(name: &str, namespace: &str, class: &str, volume: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "volumeName": volume,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

fn pod(name: &str, namespace: &str, labels: Value, node: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

/// The pod of a data mover, as a node-agent makes it.
fn mover_pod(kind: MoverKind, name: &str, namespace: &str, uid: &str) -> Value {
    let labels = json!({kind.pod_label(): name, "velero.io/exposer-pod-group": "group"});
    owned(pod(name, namespace, labels, None), kind, uid)
}

/// By the data mover of its name.
fn owned(mut object: Value, kind: MoverKind, uid: &str) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": kind.api_version(), "kind": kind.as_str(), "name": object["metadata"]["name"], "uid": uid,
        "controller": true,
    }]);
    object
}

/// What a Backup or Restore would ask for. `lost`: a node-agent that is gone has accepted it.
pub fn mover(kind: MoverKind, name: &str, namespace: &str, lost: bool) -> Value {
    let (apps, node) = (apps(namespace), node(namespace));
    let target = json!({"kind": "Pod", "namespace": apps, "name": "app"});
    let mut spec = match kind {
        MoverKind::DataUpload => json!({
            "snapshotType": "CSI", "csiSnapshot": {"volumeSnapshot": "snapshot", "storageClass": apps},
            "sourcePVC": "data", "operationTimeout": "1m",
        }),
        MoverKind::DataDownload => json!({
            "targetVolume": {"namespace": apps, "pvc": "data", "pv": ""}, "snapshotID": "s", "operationTimeout": "1m",
        }),
        MoverKind::PodVolumeBackup => {
            json!({"node": node, "pod": target, "volume": "data", "repoIdentifier": "", "uploaderType": "kopia"})
        }
        MoverKind::PodVolumeRestore => {
            json!({"pod": target, "volume": "data", "repoIdentifier": "", "uploaderType": "kopia", "snapshotID": "s"})
        }
    };
    spec["backupStorageLocation"] = json!("default");
    if kind != MoverKind::PodVolumeBackup {
        spec["sourceNamespace"] = json!(apps);
    }
    let mut object = json!({
        "apiVersion": kind.api_version(),
        "kind": kind.as_str(),
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    if lost {
        object["status"] =
            json!({"phase": "Accepted", "acceptedByNode": "gone", "acceptedTimestamp": LONG_AGO});
    }
    object
}

/// What is there before berth comes: an application with a volume, a node-agent and its
/// configuration, and what another one left behind.
pub fn prepare(plane: &ControlPlane, namespace: &str) {
    let (apps, node) = (apps(namespace), node(namespace));
    let config = json!({
        "loadConcurrency": {"globalConfig": 9, "prepareQueueLength": 9},
        "loadTolerations": [{"tolerations": [{"key": "rights", "operator": "Exists"}]}],
    });
    let labels = json!({"role": AGENT});
    let agents = pod(AGENT, namespace, labels.clone(), Some(&node));
    let mut template = agents.clone();
    template["spec"] = json!({"containers": [{
        "name": AGENT, "image": "none", "args": ["node-agent", "server", format!("--node-agent-configmap={CONFIG}")],
    }]});
    plane
        .apply(vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": apps}}),
            json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": apps},
                "provisioner": "none", "volumeBindingMode": "WaitForFirstConsumer",
            }),
            json!({
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": apps},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "storageClassName": apps,
                    "csi": {"driver": "none", "volumeHandle": "data"},
                },
            }),
            claim("data", &apps, &apps, &apps),
            pod("app", &apps, json!({}), Some(&node)),
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG, "namespace": namespace},
                "data": {"config.json": config.to_string()},
            }),
            json!({
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": AGENT, "namespace": namespace},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
                },
            }),
            agents,
            mover(MoverKind::DataDownload, "lost", namespace, true),
            mover(MoverKind::DataUpload, "taken-over", namespace, true),
        ])
        .unwrap();
    let uid = field(plane, namespace, MoverKind::DataDownload, "lost", "{.metadata.uid}");
    plane
        .apply(vec![
            mover_pod(MoverKind::DataDownload, "lost", namespace, &uid),
            owned(claim("lost", namespace, &apps, ""), MoverKind::DataDownload, &uid),
        ])
        .unwrap();
    let ready = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "startTime": LONG_AGO,
    }});
    let kubectl = plane.kubectl();
    let patch = |what: &[&str], patch: &Value| {
        let text = patch.to_string();
        let mut args = vec!["patch", "-n", namespace, "--type=merge", "-p", &text];
        args.extend_from_slice(what);
        kubectl.run(&args).unwrap();
    };
    patch(&["pod", AGENT, "--subresource=status"], &ready);
    // As a restore holds it.
    let waits = json!({"status": {"initContainerStatuses": [{
        "name": "restore-wait", "image": "none", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}},
    }]}});
    let args = [
        "patch",
        "pod",
        "app",
        "--subresource=status",
        "-n",
        &apps,
        "--type=merge",
        "-p",
        &waits.to_string(),
    ];
    kubectl.run(&args).unwrap();
    // No controller here would remove the finalizer once the claim is not in use.
    patch(&["pvc", "lost"], &json!({"metadata": {"finalizers": null}}));
}

/// One of each kind, and what a node-agent makes for those whose pods the scheduler places.
pub fn create(plane: &ControlPlane, namespace: &str) {
    let mut objects = MoverKind::ALL.map(|kind| mover(kind, kind.plural(), namespace, false)).to_vec();
    objects.push(claim(MoverKind::DataUpload.plural(), namespace, &apps(namespace), ""));
    plane.apply(objects).unwrap();
    for kind in [MoverKind::DataUpload, MoverKind::DataDownload] {
        let name = kind.plural();
        let uid = field(plane, namespace, kind, name, "{.metadata.uid}");
        plane.apply(vec![mover_pod(kind, name, namespace, &uid)]).unwrap();
    }
}

fn field(plane: &ControlPlane, namespace: &str, kind: MoverKind, name: &str, path: &str) -> String {
    let (plural, path) = (format!("{}.velero.io", kind.plural()), format!("jsonpath={path}"));
    plane.kubectl().run(&["get", &plural, name, "-n", namespace, "-o", &path]).unwrap()
}

fn reviewed(berth: &Berth, rule: &str) -> String {
    let begin = format!("berth_admission_reviews_total{{rule=\"{rule}\"");
    berth.webhook.metrics().unwrap().lines().filter(|line| line.starts_with(&begin)).collect()
}

#[test]
fn with_all_rules_data_movers_get_places_and_what_is_left_behind_begins_anew() {
    let berth = start("mover-rules", None, true).unwrap();
    let (plane, namespace) = (berth.plane(), berth.namespace());
    create(plane, namespace);
    for kind in MoverKind::ALL {
        let grant = r"{.metadata.annotations.berth\.dev/granted}";
        wait_for(&format!("a grant for the {kind}"), PATIENCE, || {
            Ok((!field(plane, namespace, kind, kind.plural(), grant).is_empty()).then_some(()))
        })
        .unwrap();
    }
    for name in ["datauploads", "datadownloads"] {
        let args = ["get", "pod", name, "-n", namespace, "-o", "jsonpath={.spec.tolerations[*].key}"];
        assert!(plane.kubectl().run(&args).unwrap().contains("rights"), "{name}");
    }
    let phase = |kind, name| field(plane, namespace, kind, name, "{.status.phase}");
    // A node-agent that was away for some time counts as gone, and data movers that cannot begin
    // again are given up.
    wait_for("what was lost to begin anew", PATIENCE, || {
        let anew = phase(MoverKind::DataDownload, "lost") == "New";
        Ok((anew && phase(MoverKind::DataUpload, "taken-over") == "Failed").then_some(()))
    })
    .unwrap();
    wait_for("what was made for it to go", PATIENCE, || {
        let left = plane.kubectl().run(&["get", "pod,pvc", "lost", "-n", namespace, "--ignore-not-found"])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .unwrap();
    // Pods of others never reach the webhook, and are stored as they were written.
    plane.apply(vec![pod("stranger", namespace, json!({"app": "x"}), None)]).unwrap();
    assert!(reviewed(&berth, "place").ends_with(" 2"), "{}", reviewed(&berth, "place"));
    let logs = logged(&berth.logs());
    let refusals = refusals(&logs, namespace, "");
    assert!(refusals.is_empty(), "{refusals:#?}");
}
