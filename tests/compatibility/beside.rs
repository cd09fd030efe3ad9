//! Beside a stock Velero: berth queues, Velero runs.

use anyhow::Context as _;
use berth_api::velero::BackupPhase;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::dequeued;
use crate::support::PATIENCE;
use crate::support::backup::{backup, backup_of};
use crate::support::peers::{S3, Velero, install_definitions, prepare};
use crate::support::{Berth, ControlPlane, Kubectl, Options, log, wait_for};

const NAMESPACE: &str = "velero";

fn events(kubectl: &Kubectl, reason: &str) -> Vec<Value> {
    let selector = format!("reason={reason},reportingController=berth.dev");
    let args = ["get", "events.events.k8s.io", "-n", NAMESPACE, "--field-selector", &selector, "-o", "json"];
    let list: Value = serde_json::from_str(&kubectl.run(&args).unwrap()).unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// A location whose bucket is not there, and that was looked at before.
fn away(s3: &S3) -> Value {
    let mut location = s3.location("away", "away");
    location["metadata"]["namespace"] = json!(NAMESPACE);
    location["spec"]["objectStorage"]["bucket"] = json!("nowhere");
    location["status"] = json!({"phase": "Unavailable", "message": "no route"});
    location
}

fn wait_ended(kubectl: &Kubectl, berth: &Berth, velero: &Velero, count: usize) {
    let mut ended = 0;
    while ended < count {
        let more = wait_for(&format!("more than {ended} of {count} backups to end"), PATIENCE, || {
            let backups = kubectl.backups(NAMESPACE)?;
            let now = backups.values().filter(|b| b.phase().is_final()).count();
            Ok((now > ended).then_some(now))
        });
        ended = more.unwrap_or_else(|error| {
            let backups = kubectl.backups(NAMESPACE).unwrap();
            let phases: Vec<_> = backups.values().map(|b| (b.name_any(), b.phase())).collect();
            let (berth, velero) = (berth.controller.process.log(), velero.log());
            panic!("{error:#}\n{phases:?}\n{}\n{}", log::tail(berth, 30), log::tail(velero, 30))
        });
    }
}

/// Until Velero has looked at its location it would fail what it picks up, should that look fail: berth waits for it.
fn await_a_look(kubectl: &Kubectl) {
    let status = json!({"status": {"phase": "Unavailable", "message": "nobody has looked yet"}}).to_string();
    let args = ["patch", "backupstoragelocation", "default", "-n", NAMESPACE, "--type=merge", "-p", &status];
    kubectl.run(&args).unwrap();
}

/// One control plane and one stock Velero after the other: each takes a minute to start.
#[test]
fn berth_queues_and_a_stock_velero_runs() {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    install_definitions(&plane).unwrap();
    let s3 = S3::start(&plane, "beside").unwrap();
    prepare(&plane, NAMESPACE, &s3, "beside").unwrap();
    let mut options = Options::new(program(), NAMESPACE);
    options.concurrent_backups = 2;
    options.beside_velero = true;
    let mut berth = Berth::start(plane, options).unwrap();
    let kubectl = berth.kubectl().clone();

    await_a_look(&kubectl);
    // Nobody is there to run anything: everything keeps its place and says so.
    let namespaces: [&[&str]; 5] =
        [&["ns1", "ns2"], &["ns2", "ns3", "ns5"], &["ns4", "ns3"], &["ns5", "ns6"], &["ns8", "ns9"]];
    for name in (1..=9).map(|i| format!("ns{i}")) {
        kubectl.run(&["create", "namespace", &name]).unwrap();
    }
    let five: Vec<Value> = (1..).zip(namespaces).map(|(i, n)| backup_of(&format!("backup{i}"), n)).collect();
    kubectl.create(NAMESPACE, &five).unwrap();
    // Velero's own queue knows no hold: it wants to start this one whenever it has a slot.
    let mut held = backup_of("held", &["ns7"]);
    held["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    kubectl.create(NAMESPACE, &[held]).unwrap();
    wait_for("the controller to miss Velero", PATIENCE, || {
        Ok(berth
            .controller
            .process
            .log_text()?
            .contains("no Velero server answers in namespace velero")
            .then_some(()))
    })
    .unwrap();
    assert!(kubectl.backups(NAMESPACE).unwrap().values().all(|b| b.phase() == BackupPhase::Queued));
    assert!(berth.controller.metrics().unwrap().contains("berth_queue_executor_available 0"));

    // Its own queue left on by mistake: its writes are refused, it is told, and the order is berth's all the same.
    let velero = Velero::start(berth.plane(), NAMESPACE, &s3, &[], &["--concurrent-backups=2"]).unwrap();
    wait_ended(&kubectl, &berth, &velero, 5);
    let mut done = kubectl.backups(NAMESPACE).unwrap();
    assert_eq!(done.remove("held").unwrap().phase(), BackupPhase::Queued);
    assert!(done.values().all(|b| b.phase() == BackupPhase::Completed), "{done:#?}");
    let log = berth.controller.process.log_text().unwrap();
    assert_eq!(dequeued(&log)[..3], ["backup1", "backup5", "backup2"], "{log}");
    wait_for("Velero's queue to be refused something", PATIENCE, || {
        let counted = berth.webhook.metrics()?;
        let refused =
            counted.lines().find_map(|l| l.strip_prefix("berth_admission_foreign_queue_writes_total "));
        Ok((refused.context("no such metric")? != "0").then_some(()))
    })
    .unwrap();
    wait_for("the Event about the other queue", PATIENCE, || {
        Ok((!events(&kubectl, "ForeignQueue").is_empty()).then_some(()))
    })
    .unwrap();
    kubectl.run(&["delete", "backup", "held", "-n", NAMESPACE]).unwrap();
    drop(velero);
    await_a_look(&kubectl);

    // Velero would fail what goes to a store that is away.
    let away = away(&s3);
    kubectl.run_with(&["create", "-f", "-"], &away.to_string()).unwrap();
    let patient = backup("patient", json!({"includedNamespaces": ["ns1"], "storageLocation": "away"}));
    let answer = kubectl.create(NAMESPACE, &[patient]).unwrap();
    let reason = "waits for storage location away: it is unavailable (no route)";
    assert!(answer.stderr.contains(reason), "{}", answer.stderr);

    // As it should be, and a burst. On a busy machine a stock Velero takes seconds for each.
    let burst: Vec<Value> =
        (0..24).map(|i| backup_of(&format!("burst{i}"), &[&format!("ns{}", 1 + i % 9)])).collect();
    kubectl.create(NAMESPACE, &burst).unwrap();
    let velero =
        Velero::start(berth.plane(), NAMESPACE, &s3, &["backup-queue"], &["--concurrent-backups=2"]).unwrap();
    let described = velero.run(&["backup", "describe", "burst23", "--colorized=false"]).unwrap();
    assert!(described.contains("Queued") && described.contains("Queue position:"), "{described}");
    wait_ended(&kubectl, &berth, &velero, 29);
    let done = kubectl.backups(NAMESPACE).unwrap();
    let failed: Vec<_> = done.values().filter(|b| b.phase() != BackupPhase::Completed).collect();
    let failed: Vec<_> = failed.into_iter().filter(|b| b.name_any() != "patient").collect();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(kubectl.backups(NAMESPACE).unwrap()["patient"].phase(), BackupPhase::Queued);
    let there = s3.location("away", "away")["spec"]["objectStorage"].clone();
    let back = json!({"spec": {"objectStorage": there}}).to_string();
    kubectl
        .run(&["patch", "backupstoragelocation", "away", "-n", NAMESPACE, "--type=merge", "-p", &back])
        .unwrap();
    wait_ended(&kubectl, &berth, &velero, 30);
    assert_eq!(kubectl.backups(NAMESPACE).unwrap()["patient"].phase(), BackupPhase::Completed);
    berth.ensure_runs().unwrap();
}
