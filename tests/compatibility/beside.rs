//! Beside a stock Velero: berth queues, Velero runs.

use std::collections::BTreeMap;

use anyhow::Context as _;
use berth_api::velero::{Backup, BackupPhase};
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
    // Checks of the location are rare, because Velero fails each Backup that it picks up after a
    // failed check.
    location["spec"]["validationFrequency"] = json!("1m");
    location["status"] = json!({"phase": "Unavailable", "message": "no route"});
    location
}

/// Waits until that many have ended; gives all, as they were then: Velero may remove one for a
/// while that its own look at the store has missed.
fn wait_ended(kubectl: &Kubectl, berth: &Berth, velero: &Velero, count: usize) -> BTreeMap<String, Backup> {
    let mut ended = 0;
    loop {
        let more = wait_for(&format!("more than {ended} of {count} backups to end"), PATIENCE, || {
            let backups = kubectl.backups(NAMESPACE)?;
            let now = backups.values().filter(|b| b.phase().is_final()).count();
            Ok((now > ended).then_some((now, backups)))
        });
        let (now, backups) = more.unwrap_or_else(|error| {
            let backups = kubectl.backups(NAMESPACE).unwrap();
            let phases: Vec<_> = backups.values().map(|b| (b.name_any(), b.phase())).collect();
            let (berth, velero) = (berth.controller.process.log(), velero.log());
            panic!("{error:#}\n{phases:?}\n{}\n{}", log::tail(berth, 30), log::tail(velero, 30))
        });
        if now >= count {
            return backups;
        }
        ended = now;
    }
}

fn not_completed(backups: &BTreeMap<String, Backup>) -> Vec<&Backup> {
    backups.values().filter(|backup| backup.phase() != BackupPhase::Completed).collect()
}

/// Until Velero has looked at its location it would fail what it picks up, should that look fail:
/// berth waits for it.
fn await_a_look(kubectl: &Kubectl) {
    let status =
        json!({"phase": "Unavailable", "message": "nobody has looked yet", "lastValidationTime": null});
    let patch = json!({"status": status}).to_string();
    let args = ["patch", "backupstoragelocation", "default", "-n", NAMESPACE, "--type=merge", "-p", &patch];
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
    // It gives up sooner to hear from a Velero that is not there.
    options.env = vec![("BERTH_PACE".to_owned(), "4".to_owned())];
    let mut berth = Berth::start(plane, options).unwrap();
    let kubectl = berth.kubectl().clone();

    await_a_look(&kubectl);
    // No program runs backups: each Backup keeps its place and says so.
    let namespaces: [&[&str]; 5] =
        [&["ns1", "ns2"], &["ns2", "ns3", "ns5"], &["ns4", "ns3"], &["ns5", "ns6"], &["ns8", "ns9"]];
    for name in (1..=9).map(|i| format!("ns{i}")) {
        kubectl.run(&["create", "namespace", &name]).unwrap();
    }
    let five: Vec<Value> = (1..).zip(namespaces).map(|(i, n)| backup_of(&format!("backup{i}"), n)).collect();
    let answer = kubectl.create(NAMESPACE, &five).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    // Velero's own queue knows no hold: it wants to start this one whenever it has a slot.
    let mut held = backup_of("held", &["ns7"]);
    held["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    let answer = kubectl.create(NAMESPACE, &[held]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
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
    berth.controller.await_metric("berth_queue_executor_available 0").unwrap();

    // Velero's own queue was left on by mistake: its writes are refused with a message, and the
    // order is still berth's.
    let velero = Velero::start(berth.plane(), NAMESPACE, &s3, &[], &["--concurrent-backups=2"]).unwrap();
    let mut done = wait_ended(&kubectl, &berth, &velero, 5);
    assert_eq!(done.remove("held").unwrap().phase(), BackupPhase::Queued);
    assert!(not_completed(&done).is_empty(), "{:#?}", not_completed(&done));
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
    berth.await_location("away").unwrap();
    let patient = backup("patient", json!({"includedNamespaces": ["ns1"], "storageLocation": "away"}));
    let answer = kubectl.create(NAMESPACE, &[patient]).unwrap();
    let reason = "waits for storage location away: it is unavailable (no route)";
    assert!(answer.stderr.contains(reason), "{}", answer.stderr);
    // The controller learns of both locations through one watch: from here on it starts nothing
    // before Velero has looked.
    wait_for("the controller to know of the locations", PATIENCE, || {
        let counted = berth.controller.metrics()?;
        let waits = |why: &str| counted.contains(&format!("berth_queue_waiting{{reason=\"{why}\"}} 1\n"));
        Ok((waits("LocationUnavailable") || waits("NoExecutor")).then_some(()))
    })
    .unwrap();

    // As it should be, and a burst. On a busy machine a stock Velero takes seconds for each. One is
    // held, so that it waits when it is described.
    let mut burst: Vec<Value> =
        (0..24).map(|i| backup_of(&format!("burst{i}"), &[&format!("ns{}", 1 + i % 9)])).collect();
    burst[23]["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
    let answer = kubectl.create(NAMESPACE, &burst).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let velero =
        Velero::start(berth.plane(), NAMESPACE, &s3, &["backup-queue"], &["--concurrent-backups=2"]).unwrap();
    // Velero's command waits half a minute for what only a backup that has ended has: meanwhile the
    // others end.
    let described = std::thread::scope(|scope| {
        let describing =
            scope.spawn(|| velero.run(&["backup", "describe", "burst23", "--colorized=false"]).unwrap());
        wait_ended(&kubectl, &berth, &velero, 28);
        describing.join().unwrap()
    });
    assert!(described.contains("Queued") && described.contains("Queue position:"), "{described}");
    kubectl.run(&["annotate", "backups.velero.io", "burst23", "-n", NAMESPACE, "berth.dev/hold-"]).unwrap();
    let mut done = wait_ended(&kubectl, &berth, &velero, 29);
    assert_eq!(done.remove("patient").unwrap().phase(), BackupPhase::Queued);
    // Those of before were looked at before. A stock Velero whose cache is behind runs one that has
    // ended once more, and fails it where it is ended itself meanwhile.
    done.retain(|name, _| name.starts_with("burst"));
    assert!(not_completed(&done).is_empty(), "{:#?}", not_completed(&done));
    let there = s3.location("away", "away")["spec"]["objectStorage"].clone();
    let back = json!({"spec": {"objectStorage": there}}).to_string();
    kubectl
        .run(&["patch", "backupstoragelocation", "away", "-n", NAMESPACE, "--type=merge", "-p", &back])
        .unwrap();
    let done = wait_ended(&kubectl, &berth, &velero, 30);
    assert_eq!(done["patient"].phase(), BackupPhase::Completed, "{:?}", done["patient"].status);
    berth.ensure_runs().unwrap();
}
