//! What berth stored comes back through a stock Velero that has never seen berth.

use std::collections::BTreeMap;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::archive;
use crate::queue::ended;
use crate::support::PATIENCE;
use crate::support::peers::{S3, Velero, install_definitions, prepare};
use crate::support::process::without_proxies;
use crate::support::{Berth, ControlPlane, Options, backup, wait_for};

const NAMESPACE: &str = "velero";
const PREFIX: &str = "teams/north";
const GROUP: &str = "harbour.example.com";

fn definition(scope: &str, plural: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}"), "labels": {"kind": "custom"}},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

fn object(version: &str, kind: &str, namespace: &str, name: &str, more: Value) -> Value {
    let mut object = more;
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object["metadata"]["name"] = json!(name);
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// Everything that must come back. Some of it is odd on purpose.
fn cargo() -> Vec<Value> {
    let odd = "quotes \" backslash \\ <&> \u{2028} ünïcödé 錨 \u{1F6A2} \t end";
    let annotated = json!({"metadata": {
        "labels": {"app": "crane", "app.kubernetes.io/part-of": "harbour", "empty": ""},
        "annotations": {"note": odd, "example.com/json": "{\"a\":[1,2]}", "empty": ""},
    }});
    let mut all = vec![
        object("v1", "Namespace", "", "north", annotated.clone()),
        object("v1", "Namespace", "", "south-1", json!({})),
        object(
            "v1",
            "ConfigMap",
            "north",
            "odd",
            json!({"data": {"text": odd, "number": "9223372036854775807", "lines": "a\nb\r\n"}}),
        ),
        object(
            "v1",
            "ConfigMap",
            "north",
            "binary",
            json!({"binaryData": {"bytes": "AAECA//+fwo="}, "data": {"also": "text"}, "immutable": true}),
        ),
        object("v1", "ConfigMap", "north", "empty", json!({})),
        object("v1", "ConfigMap", "south-1", "a.name.with.dots", annotated.clone()),
        object("v1", "Secret", "north", "opaque", json!({"data": {"k": "//79"}, "type": "Opaque"})),
        object("v1", "Secret", "south-1", "typed", json!({"type": "example.com/odd", "data": {"x": ""}})),
        object("v1", "ServiceAccount", "north", "crane", json!({"automountServiceAccountToken": false})),
        object(
            "rbac.authorization.k8s.io/v1",
            "Role",
            "north",
            "reader",
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        object(
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            "north",
            "reader",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
                "subjects": [{"kind": "ServiceAccount", "name": "crane", "namespace": "north"}],
            }),
        ),
        // Not asked for by its type: it comes with the account, as the volume comes with its claim.
        object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRole",
            "",
            "harbour-crane",
            json!({"rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]}),
        ),
        object(
            "rbac.authorization.k8s.io/v1",
            "ClusterRoleBinding",
            "",
            "harbour-crane",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "harbour-crane"},
                "subjects": [{"kind": "ServiceAccount", "name": "crane", "namespace": "north"}],
            }),
        ),
        object(
            "v1",
            "PersistentVolume",
            "",
            "harbour-hold",
            json!({"spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/srv/hold"}, "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "north", "name": "hold"},
            }}),
        ),
        object(
            "v1",
            "PersistentVolumeClaim",
            "north",
            "hold",
            json!({"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "", "volumeName": "harbour-hold",
            }}),
        ),
        object(
            "apps/v1",
            "Deployment",
            "south-1",
            "web",
            json!({"spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "100m"}}}]}},
            }}),
        ),
        object(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            "",
            "harbour-first",
            json!({"value": 1_000_000, "description": odd, "preemptionPolicy": "Never"}),
        ),
        object(
            "harbour.example.com/v1",
            "Ship",
            "north",
            "annie",
            json!({
                "metadata": {"labels": {"flag": "no"}},
                "spec": {"tons": 9_007_199_254_740_993_i64, "draught": 1.5, "crew": [], "holds": {}, "owner": null, "name": odd},
            }),
        ),
        object(
            "harbour.example.com/v1",
            "Sea",
            "",
            "baltic",
            json!({"spec": {"ports": ["Gdańsk", "Malmö"]}, "metadata": {"annotations": {"a": "b"}}}),
        ),
    ];
    all.extend((0..40).map(|i| {
        let labels = json!({"i": i.to_string()});
        object(
            "v1",
            if i % 2 == 0 { "ConfigMap" } else { "Secret" },
            "south-1",
            &format!("many-{i}"),
            json!({"metadata": {"labels": labels}}),
        )
    }));
    all
}

/// The objects of `cargo` as they stand on the plane, by kind, namespace and name, without what a
/// server sets.
fn standing(plane: &ControlPlane) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for wanted in cargo() {
        let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
        let (kind, metadata) = (text(&wanted["kind"]), &wanted["metadata"]);
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let args = ["get", &kind, &name, "--namespace", &namespace, "-o", "json"];
        let mut object: Value = serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap();
        object.as_object_mut().unwrap().remove("status");
        let metadata = object["metadata"].as_object_mut().unwrap();
        for set_by_server in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
            metadata.remove(set_by_server);
        }
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|key, _| !key.starts_with("velero.io/"));
            if labels.is_empty() {
                metadata.remove("labels");
            }
        }
        found.insert(format!("{kind} {namespace}/{name}"), object);
    }
    found
}

fn fill(plane: &ControlPlane) {
    let definitions = [definition("Namespaced", "ships", "Ship"), definition("Cluster", "seas", "Sea")];
    let kubectl = plane.kubectl();
    assert!(kubectl.create("default", &definitions).unwrap().status.success());
    kubectl.await_definitions().unwrap();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": cargo()});
    kubectl.run_with(&["create", "-f", "-"], &list.to_string()).unwrap();
    // No controller binds claims here.
    let bound = json!({"status": {"phase": "Bound"}}).to_string();
    let claim = ["persistentvolumeclaim", "hold", "--namespace", "north", "--subresource=status"];
    kubectl.run(&[&["patch"][..], &claim, &["--type=merge", "--patch", &bound]].concat()).unwrap();
    // They stand on every cluster; a restore would tell that they are there already.
    for class in ["system-cluster-critical", "system-node-critical"] {
        kubectl.run(&["label", "priorityclass", class, "velero.io/exclude-from-backup=true"]).unwrap();
    }
}

#[test]
fn a_stock_velero_restores_what_berth_stored() {
    // The cluster to restore into comes up meanwhile.
    let other = std::thread::spawn(|| {
        let other = ControlPlane::start().unwrap();
        install_definitions(&other).unwrap();
        other
    });
    let mut berth = Berth::start(ControlPlane::start().unwrap(), Options::new(program(), NAMESPACE)).unwrap();
    let s3 = S3::start(berth.plane(), "restore").unwrap();
    let kubectl = berth.kubectl();
    let location = s3.location("away", PREFIX);
    let answer = kubectl.create(NAMESPACE, &[s3.keys.secret_object(NAMESPACE), location]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    fill(berth.plane());
    let spec = json!({
        "includedNamespaces": ["north", "south-*"],
        "includedClusterScopedResources": ["priorityclasses", format!("seas.{GROUP}")],
        "includedNamespaceScopedResources": ["*"],
        "storageLocation": "away",
        "snapshotVolumes": false,
        "ttl": "48h",
    });
    berth.await_location("away").unwrap();
    let answer = kubectl.create(NAMESPACE, &[backup("voyage", spec)]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(&berth, &["voyage"]).remove("voyage").unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    let (shipped, items) =
        (standing(berth.plane()), done.status.unwrap().progress.unwrap().items_backed_up.unwrap());
    berth.controller.process.kill().unwrap();

    let other = other.join().unwrap();
    let _report = other.report_on_panic();
    prepare(&other, NAMESPACE, &s3, PREFIX).unwrap();
    // As a Velero before it has left it: then this one looks for backups as soon as it starts, and
    // else a minute after.
    let available = json!({"status": {"phase": "Available"}}).to_string();
    let args =
        ["patch", "backupstoragelocation", "default", "-n", NAMESPACE, "--type=merge", "-p", &available];
    other.kubectl().run(&args).unwrap();
    let velero = Velero::start(&other, NAMESPACE, &s3, &["backup-queue", "backup"], &[]).unwrap();
    wait_for("stock Velero to see the backup", PATIENCE, || {
        let found = other.kubectl().backups(NAMESPACE)?;
        Ok(found.contains_key("voyage").then_some(()))
    })
    .unwrap();

    // It waits half a minute for each file that the server is to hand out, whatever it is told.
    let described = wait_for("a description that is whole", PATIENCE, || {
        let text = velero.run(&["backup", "describe", "voyage", "--details", "--colorized=false"])?;
        Ok((!text.contains("url timeout")).then_some(text))
    })
    .unwrap();
    for wanted in [
        "Phase:  Completed",
        &format!("Items backed up:              {items}"),
        "v1/ConfigMap:",
        "- north/odd",
        "harbour.example.com/v1/Ship:",
        "- north/annie",
        "- baltic",
        "scheduling.k8s.io/v1/PriorityClass:",
        "Backup Volumes:",
    ] {
        assert!(described.contains(wanted), "{wanted:?} is not in\n{described}");
    }
    assert!(!described.contains("error"), "{described}");
    let log = velero.run(&["backup", "logs", "voyage", "--timeout=10m"]).unwrap();
    assert!(log.contains("backup=velero/voyage"), "{log}");
    let file = other.folder().join("voyage.tar.gz");
    let file_name = file.display().to_string();
    velero.run(&["backup", "download", "voyage", "--timeout=10m", "--output", &file_name]).unwrap();
    assert_eq!(archive::items(&file).len() as i64, items);

    // The same with berth's command, against Velero's server. It knows nothing of an index, and
    // gives the link to the archive instead.
    let ours = |args: &[&str]| {
        let mut command = std::process::Command::new(program());
        command.args(args).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(other.kubeconfig());
        command.env("HOME", other.folder());
        without_proxies(&mut command);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(ours(&["backup", "get", "-o", "name"]), "voyage\n");
    assert_eq!(ours(&["backup", "logs", "voyage", "--timeout=10m"]), log);
    let odd = ours(&["backup", "contents", "voyage", "configmaps/north/odd", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&odd).unwrap()["metadata"]["name"], "odd");
    let listed = ours(&["backup", "contents", "voyage"]);
    assert_eq!(listed.lines().count() as i64, items, "{listed}");

    velero.run(&["restore", "create", "back", "--from-backup", "voyage", "--wait"]).unwrap();
    let args = ["get", "restores.velero.io", "back", "-n", NAMESPACE, "-o", "json"];
    let restore: Value = serde_json::from_str(&other.kubectl().run(&args).unwrap()).unwrap();
    let status = &restore["status"];
    let told =
        || velero.run(&["restore", "describe", "back", "--details", "--colorized=false"]).unwrap_or_default();
    assert_eq!(status["phase"], "Completed", "{}", told());
    assert!(status["errors"].is_null() && status["warnings"].is_null(), "{}", told());
    assert_eq!(status["progress"]["itemsRestored"], json!(items), "{}", told());
    let landed = standing(&other);
    assert_eq!(landed["PersistentVolumeClaim north/hold"]["spec"]["volumeName"], "harbour-hold");
    for (name, object) in &shipped {
        assert_eq!(object, &landed[name], "{name} is not what it was");
    }
}
