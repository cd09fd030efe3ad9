//! Backups whose data is still moved when all objects are stored: berth runs them, stock
//! node-agents move the data that a CSI driver has snapshots of, and a stock Velero describes and
//! restores them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, images, run};
use crate::support::PATIENCE;
use crate::support::csi::{self, Csi, IMMEDIATE};
use crate::support::peers::{self, S3, Velero};
use crate::support::pods::{Cluster, Node};
use crate::support::{backup, node_agent, wait_for};

/// Of the server. It looks every three seconds, in place of ten, whether the data has been moved.
const FLAGS: [&str; 2] = ["--features=EnableCSI", "--item-operation-sync-frequency=3s"];
const CONTROLLERS: [&str; 4] = ["backup-queue", "backup", "backup-operations", "backup-finalizer"];
const WAITING: &str = "WaitingForPluginOperations";

fn read(cluster: &Cluster, kind: &str, name: &str) -> Value {
    let args = ["get", kind, name, "--namespace", NAMESPACE, "-o", "json"];
    serde_json::from_str(&cluster.kubectl().run(&args).unwrap()).unwrap()
}

fn wait_phase(cluster: &Cluster, kind: &str, name: &str, wanted: &str) -> Value {
    wait_for(&format!("{kind} {name} to be {wanted}"), PATIENCE, || {
        let object = read(cluster, kind, name);
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        assert!(wanted.contains("Failed") || !phase.contains("Failed"), "{:#}", object["status"]);
        Ok((phase == wanted).then_some(object))
    })
    .unwrap()
}

fn create(cluster: &Cluster, object: Value) {
    let made = cluster.kubectl().create(NAMESPACE, &[object]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

/// The DataUploads of a Backup.
fn uploads(cluster: &Cluster, backup: &Value) -> Vec<Value> {
    let label = format!("velero.io/backup-uid={}", backup["metadata"]["uid"].as_str().unwrap());
    let args = ["get", "datauploads", "--namespace", NAMESPACE, "-l", &label, "-o", "json"];
    let list: Value = serde_json::from_str(&cluster.kubectl().run(&args).unwrap()).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Until there is this Event about a Backup; gives its note.
fn told(cluster: &Cluster, reason: &str, backup: &str) -> String {
    let selector = format!("reason={reason},reportingController=berth.dev");
    let args = ["get", "events.events.k8s.io", "-n", NAMESPACE, "--field-selector", &selector, "-o", "json"];
    wait_for(&format!("the Event {reason} about {backup}"), PATIENCE, || {
        let all: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        let mut all = all["items"].as_array().into_iter().flatten();
        let event = all.find(|event| event["regarding"]["name"] == backup);
        Ok(event.map(|event| event["note"].as_str().unwrap_or_default().to_owned()))
    })
    .unwrap()
}

fn text(cluster: &Cluster, app: &str) -> String {
    let volume = csi::bound(cluster.plane(), app, "data").unwrap();
    std::fs::read_to_string(csi::folder(&volume).unwrap().join("file")).unwrap()
}

#[test]
fn data_is_moved_without_a_slot_whoever_leads_and_comes_back_through_a_stock_velero() {
    let mut programs: BTreeMap<String, PathBuf> = images();
    programs.insert("bash:test".to_owned(), PathBuf::from("/bin/bash"));
    let nodes = vec![Node::new("node-a", "zone-a"), Node::new("node-b", "zone-b")];
    let cluster = Cluster::start_with_nodes(programs, nodes).unwrap();
    let plane = cluster.plane();
    peers::install_definitions(plane).unwrap();
    let _csi = Csi::start(&cluster).unwrap();
    let s3 = S3::start(plane, "operations").unwrap();
    peers::prepare(plane, NAMESPACE, &s3, "").unwrap();
    run(&cluster, "berth install --adjust-velero");
    for app in ["bank", "shop"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app}});
        plane.apply(vec![namespace, csi::claim(app, "data", IMMEDIATE)]).unwrap();
        csi::write(&csi::bound(plane, app, "data").unwrap(), "file", &format!("of {app}\n")).unwrap();
    }
    let moving = |app: &str| json!({"includedNamespaces": [app], "snapshotMoveData": true});

    // No node-agent is there yet, so both wait, and there is one slot.
    create(&cluster, backup("moved", moving("bank")));
    let waits = wait_phase(&cluster, "backup.velero.io", "moved", WAITING);
    assert_eq!(waits["status"]["backupItemOperationsAttempted"], 1, "{:#}", waits["status"]);
    let note = told(&cluster, "OperationsBegun", "moved");
    assert!(note.contains("all objects are stored; 1 data movement"), "{note}");
    let listed = run(&cluster, &format!("berth queue list --namespace {NAMESPACE}"));
    assert!(
        listed.contains(WAITING) && listed.contains("OPERATIONS") && listed.contains("0 of 1"),
        "{listed}"
    );
    let listed = run(&cluster, &format!("berth queue list --namespace {NAMESPACE} -o json"));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["name"], "moved", "{listed:#}");
    assert_eq!(listed[0]["operations"], json!({"attempted": 1, "completed": 0, "failed": 0}), "{listed:#}");
    let explained = run(&cluster, &format!("berth queue explain moved --namespace {NAMESPACE}"));
    assert!(explained.contains("moved waits for its data to be moved"), "{explained}");
    create(&cluster, backup("canceled", moving("shop")));
    let other = wait_phase(&cluster, "backup.velero.io", "canceled", WAITING);
    create(&cluster, backup("beside", json!({"includedNamespaces": ["bank"], "snapshotVolumes": false})));
    wait_phase(&cluster, "backup.velero.io", "beside", "Completed");
    assert_eq!(read(&cluster, "backup.velero.io", "moved")["status"]["phase"], WAITING);

    assert_eq!(uploads(&cluster, &other).len(), 1);
    let cancel = ["annotate", "backup.velero.io", "canceled", "-n", NAMESPACE, "berth.dev/cancel=true"];
    cluster.kubectl().run(&cancel).unwrap();
    wait_phase(&cluster, "backup.velero.io", "canceled", "Failed");
    assert!(uploads(&cluster, &other).iter().all(|upload| upload["spec"]["cancel"] == true));

    // Whoever leads now dies.
    let pods = ["delete", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=berth-controller"];
    cluster.kubectl().run(&pods).unwrap();
    node_agent::start(&cluster, NAMESPACE, &json!({}), &[]).unwrap();
    let velero = Velero::start(plane, NAMESPACE, &s3, &CONTROLLERS, &FLAGS).unwrap();
    let done = wait_phase(&cluster, "backup.velero.io", "moved", "Completed");
    assert_eq!(done["status"]["backupItemOperationsCompleted"], 1, "{:#}", done["status"]);
    // By the next leader.
    assert_eq!(told(&cluster, "OperationsEnded", "moved"), "1 of 1 data movements completed, 0 failed");
    assert_eq!(uploads(&cluster, &done).len(), 1, "none is begun twice");
    let described = velero.run(&["backup", "describe", "moved", "--details", "--colorized=false"]).unwrap();
    for said in ["Operation for persistentvolumeclaims bank/data:", "Data Movement", "Completed"] {
        assert!(described.contains(said), "{said}: {described}");
    }

    // First the claim: a namespace in which something is left is looked at again after eight
    // seconds.
    cluster.kubectl().run(&["delete", "pvc", "data", "-n", "bank"]).unwrap();
    cluster.kubectl().run(&["delete", "namespace", "bank"]).unwrap();
    create(
        &cluster,
        json!({
            "apiVersion": "velero.io/v1", "kind": "Restore",
            "metadata": {"name": "moved"}, "spec": {"backupName": "moved"},
        }),
    );
    wait_phase(&cluster, "restore.velero.io", "moved", "Completed");
    assert_eq!(text(&cluster, "bank"), "of bank\n");
    drop(velero);
}
