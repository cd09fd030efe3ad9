//! Rights by which the leader has the data of snapshots moved by pods of its own. A controller runs
//! with all rules of these roles but one. That they are enough is shown where data is moved
//! (`pod_volumes::movements`).

use berth::install::pod_volumes::AGENT;
use berth::install::{InstallSettings, render};
use serde_json::{Value, json};

use super::none::{DATA_MOVERS, NOBODY, granted};
use super::{logged, refusals, tail};
use crate::admission::program;
use crate::support::csi::define_snapshots;
use crate::support::peers::define_movers;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, wait_for};

const ROLE: &str = "berth-data-movers";
const NAMESPACE: &str = "velero";

/// A rule of these roles.
pub struct Right {
    kind: &'static str,
    rule: usize,
    needed_for: &'static str,
    /// What is refused without it: verb and resource.
    refused: (&'static str, &'static str),
}

pub const RIGHTS: [Right; 3] = [
    Right {
        kind: "Role",
        rule: 0,
        needed_for: "making the claim and the pod by which the data of a snapshot is moved",
        refused: ("create", "persistentvolumeclaims"),
    },
    Right {
        kind: "ClusterRole",
        rule: 0,
        needed_for: "making a claim of a snapshot in berth's namespace",
        refused: ("create", "volumesnapshotcontents"),
    },
    Right {
        kind: "ClusterRole",
        rule: 1,
        needed_for: "giving a restored volume to its claim",
        refused: ("patch", "persistentvolumes"),
    },
];

pub fn needed_for(role: &Value, rule: usize) -> Option<&'static str> {
    let is_it =
        |right: &&Right| role["metadata"]["name"] == ROLE && role["kind"] == right.kind && right.rule == rule;
    RIGHTS.iter().find(is_it).map(|right| right.needed_for)
}

/// The roles, but for one rule, and the node agents whose image and account the pods have.
fn objects(without: Option<&Right>) -> Vec<Value> {
    let mut objects =
        render(&InstallSettings { pod_volumes: true, ..InstallSettings::new(NAMESPACE) }).unwrap();
    objects.retain(|object| {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        name == ROLE || (name == AGENT && (kind == "DaemonSet" || kind == "ServiceAccount"))
    });
    if let Some(right) = without {
        let role =
            objects.iter_mut().find(|one| one["metadata"]["name"] == ROLE && one["kind"] == right.kind);
        role.unwrap()["rules"].as_array_mut().unwrap().remove(right.rule);
    }
    objects
}

fn claim(namespace: &str, name: &str, volume: &str, of: Option<&Value>) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    if let Some(of) = of {
        let uid = &of["metadata"]["uid"];
        claim["metadata"]["labels"] = json!({"berth.dev/made-for": uid});
        claim["metadata"]["ownerReferences"] = json!([{
            "apiVersion": of["apiVersion"], "kind": of["kind"], "name": name, "uid": uid, "controller": true,
        }]);
    }
    claim
}

fn movement(kind: &str, name: &str, spec: &Value, phase: &str) -> Value {
    let mut object = json!({
        "apiVersion": "velero.io/v2alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "datamover": "berth", "backupStorageLocation": "default", "sourceNamespace": "shop",
            "operationTimeout": "10m",
        },
        "status": {"phase": phase},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// A snapshot that is cut, and what asks for its data; a volume with restored data, and what asks
/// for its end.
fn give_work(plane: &ControlPlane, name: &str) {
    let kubectl = plane.kubectl();
    let read = |kind: &str, namespace: &str, name: &str| -> Value {
        let args = ["get", kind, name, "-n", namespace, "-o", "json"];
        serde_json::from_str(&kubectl.run(&args).unwrap()).unwrap()
    };
    let patch = |what: &[&str], patch: &Value| {
        let text = patch.to_string();
        kubectl.run(&[&["patch"][..], what, &["--type=merge", "--patch", &text]].concat()).unwrap();
    };
    plane
        .apply(vec![
            claim("shop", name, "", None),
            json!({
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {"name": name, "namespace": "shop"},
                "spec": {"source": {"persistentVolumeClaimName": name}},
            }),
        ])
        .unwrap();
    let snapshot = read("volumesnapshots", "shop", name);
    plane
        .apply(vec![json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": format!("of-{name}")},
            "spec": {
                "deletionPolicy": "Delete", "driver": "csi.test", "source": {"volumeHandle": "h"},
                "sourceVolumeMode": "Filesystem",
                "volumeSnapshotRef": {
                    "name": name, "namespace": "shop", "uid": snapshot["metadata"]["uid"],
                },
            },
        })])
        .unwrap();
    let content = format!("of-{name}");
    patch(
        &["volumesnapshots", name, "-n", "shop", "--subresource=status"],
        &json!({"status": {"boundVolumeSnapshotContentName": content}}),
    );
    patch(
        &["volumesnapshotcontents", &content, "--subresource=status"],
        &json!({"status": {"snapshotHandle": "h", "restoreSize": 1}}),
    );
    let of_upload = json!({
        "snapshotType": "CSI", "sourcePVC": name,
        "csiSnapshot": {"volumeSnapshot": name, "storageClass": ""},
    });
    let down = format!("{name}-down");
    let restored = json!({"berth.dev/restored": jiff::Timestamp::now().to_string()});
    let of_download = json!({
        "snapshotID": "s", "targetVolume": {"namespace": "shop", "pvc": name, "pv": ""},
    });
    plane
        .apply(vec![
            movement("DataUpload", name, &of_upload, "New"),
            // Nobody looks at it before its claim is there.
            movement("DataDownload", &down, &of_download, "Completed"),
        ])
        .unwrap();
    let download = read("datadownloads.velero.io", NAMESPACE, &down);
    plane.apply(vec![claim(NAMESPACE, &down, &down, Some(&download))]).unwrap();
    let made = read("persistentvolumeclaims", NAMESPACE, &down);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": down},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "storageClassName": "",
            "csi": {"driver": "csi.test", "volumeHandle": down},
            "claimRef": {
                "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": down,
                "uid": made["metadata"]["uid"],
            },
        },
    });
    plane.apply(vec![volume]).unwrap();
    // No controller here would remove the finalizer once the claim is not in use.
    patch(&["pvc", &down, "-n", NAMESPACE], &json!({"metadata": {"finalizers": null}}));
    patch(
        &["datadownloads.velero.io", &down, "-n", NAMESPACE],
        &json!({"metadata": {"annotations": restored}, "status": {"phase": "InProgress"}}),
    );
}

#[test]
fn without_any_one_rule_the_leader_cannot_have_data_moved() {
    let plane = ControlPlane::start().unwrap();
    define_movers(&plane).unwrap();
    define_snapshots(&plane).unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    plane.apply(vec![namespace]).unwrap();
    let berth = Berth::start(plane, Options::new(program(), NAMESPACE)).unwrap();
    let plane = berth.plane();
    let _report = plane.report_on_panic();
    let kubectl = plane.kubectl();
    let account = format!("system:serviceaccount:{NAMESPACE}:berth-controller");
    plane.apply(objects(None)).unwrap();
    kubectl.await_right(&account, NAMESPACE, "create", "pods").unwrap();
    kubectl.await_right(&account, "shop", "patch", "persistentvolumeclaims").unwrap();
    let too_many = granted(kubectl, NAMESPACE, "berth-controller", NOBODY.iter().chain(DATA_MOVERS));
    assert_eq!(too_many, [("create", "pods", "OWN")], "the pods of data movers");
    // The deletion of backups makes contents, too, and its role would hide what these lack.
    kubectl.run(&["delete", "clusterrole", "berth-lifecycle"]).unwrap();
    for (index, right) in RIGHTS.iter().enumerate() {
        let name = format!("rule-{index}");
        plane.apply(objects(Some(right))).unwrap();
        let (verb, resource) = right.refused;
        let group = if resource.starts_with("volumesnapshot") { ".snapshot.storage.k8s.io" } else { "" };
        let full = format!("{resource}{group}");
        let may = ["auth", "can-i", verb, &full, "-n", NAMESPACE, "--as", &account];
        let may = || anyhow::Ok(plane.kubectl().answer(&may, "")?.status.success());
        wait_for("the rule to be gone", PATIENCE, || Ok((!may()?).then_some(()))).unwrap();
        give_work(plane, &name);
        let what = format!("{} rule {} ({})", right.kind, right.rule, right.needed_for);
        let refusal = format!(r#"cannot {verb} resource "{resource}""#);
        wait_for(&format!("{refusal:?} without {what}"), PATIENCE, || {
            let text = logged(&berth.logs()).replace(r#"\""#, "\"");
            let told = refusals(&text, NAMESPACE, "controller");
            Ok(told.iter().any(|line| line.contains(&refusal)).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: {}", tail(&logged(&berth.logs()))));
        // It would keep the only place for movements, which the next one needs. What was made for
        // it is not removed where the rule for that is missing.
        let upload = ["datauploads.velero.io", &name, "-n", NAMESPACE];
        let delete = [&["delete"][..], &upload, &["--wait=false"]].concat();
        plane.kubectl().run(&delete).unwrap();
        let unheld = r#"--patch={"metadata":{"finalizers":null}}"#;
        let patch = [&["patch"][..], &upload, &["--type=merge", unheld]].concat();
        plane.kubectl().answer(&patch, "").unwrap();
    }
}
