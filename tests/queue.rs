//! The queue on the real thing: order, slots, places, and what a restart leaves.

use std::collections::BTreeMap;

use berth_api::velero::{Backup, BackupPhase};
use serde_json::json;

use crate::admission::program;
pub use crate::support::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::berth::SHORT_LEASE;
use crate::support::{Berth, ControlPlane, Options, wait_for};

pub fn start(namespace: &str, slots: u16) -> Berth {
    let mut options = Options::new(program(), namespace);
    options.concurrent_backups = slots;
    Berth::start(ControlPlane::shared().unwrap(), options).unwrap()
}

/// Waits until all of `names` have ended.
pub fn ended(berth: &Berth, names: &[&str]) -> BTreeMap<String, Backup> {
    wait_for(&format!("{names:?} to end"), PATIENCE, || {
        let backups = berth.kubectl().backups(berth.namespace())?;
        let all = names.iter().all(|name| backups.get(*name).is_some_and(|b| b.phase().is_final()));
        Ok(all.then_some(backups))
    })
    .unwrap()
}

fn started(backup: &Backup) -> jiff::Timestamp {
    backup.status.as_ref().unwrap().start_timestamp.as_ref().unwrap().0
}

fn completed(backup: &Backup) -> jiff::Timestamp {
    backup.status.as_ref().unwrap().completion_timestamp.as_ref().unwrap().0
}

/// Names in the order in which they were dequeued.
pub fn dequeued(log: &str) -> Vec<&str> {
    let lines = log.lines().filter(|line| line.contains("dequeued"));
    lines.filter_map(|line| line.split("name=").nth(1)?.split(' ').next()).collect()
}

#[test]
fn the_worked_example_runs_in_the_order_that_the_design_derives() {
    let mut berth = start("worked-example", 2);
    let ns = berth.namespace().to_owned();
    // Created while there is no leader, so that all five wait when the first cycle decides.
    berth.controller.stop().unwrap();
    let namespaces: [&[&str]; 5] =
        [&["ns1", "ns2"], &["ns2", "ns3", "ns5"], &["ns4", "ns3"], &["ns5", "ns6"], &["ns8", "ns9"]];
    let backups: Vec<_> = (1..).zip(namespaces).map(|(i, n)| backup_of(&format!("backup{i}"), n)).collect();
    let answer = berth.kubectl().create(&ns, &backups).unwrap();
    assert_eq!(
        answer.warnings(),
        [
            "berth: queued at position 1; it starts next",
            "berth: queued at position 2; waits for backup1 (ahead in the queue), which also takes ns2",
            "berth: queued at position 3; waits for backup2 (ahead in the queue), which also takes ns3",
            "berth: queued at position 4; waits for backup2 (ahead in the queue), which also takes ns5",
            "berth: queued at position 5; it starts next",
        ]
    );
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["backup1", "backup2", "backup3", "backup4", "backup5"]);
    // The namespaces do not exist: said in the backup, which takes nothing else.
    assert!(done.values().all(|b| b.phase() == BackupPhase::PartiallyFailed), "{done:#?}");
    let log = berth.controller.process.log_text().unwrap();
    let dequeued = dequeued(&log);
    assert_eq!(dequeued[..3], ["backup1", "backup5", "backup2"], "{log}");
    assert!(
        log.contains("passed over: namespaces in conflict name=backup2") && log.contains("namespaces=ns2"),
        "{log}"
    );
    for (earlier, later) in [("backup1", "backup2"), ("backup2", "backup3"), ("backup2", "backup4")] {
        assert!(
            completed(&done[earlier]) <= started(&done[later]),
            "{later} began before {earlier} had ended"
        );
    }
}

#[test]
fn what_is_created_while_the_webhook_is_down_is_queued_by_the_controller() {
    let mut berth = start("webhook-down", 1);
    let ns = berth.namespace().to_owned();
    berth.webhook.process.kill().unwrap();
    let answer = berth.kubectl().create(&ns, &[backup_of("unseen", &["default"])]).unwrap();
    assert!(answer.status.success() && answer.warnings().is_empty(), "{}", answer.stderr);
    let done = ended(&berth, &["unseen"]);
    assert_eq!(done["unseen"].phase(), BackupPhase::Completed);
    assert!(done["unseen"].metadata.annotations.as_ref().unwrap().contains_key("berth.dev/enqueued-at"));
}

#[test]
fn places_become_unique_and_dense_whatever_was_written() {
    let mut berth = start("places", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.stop().unwrap();
    berth.webhook.process.kill().unwrap();
    // Two replicas that answered at once, a gap, and a Backup that no replica saw. A running Backup
    // that never ends keeps the first from starting.
    let mut objects = vec![backup_of("holder", &["*"])];
    objects[0]["status"] = json!({"phase": "ReadyToStart"});
    objects[0]["spec"]["storageLocation"] = json!("gone");
    for (name, position) in [("a", 4), ("b", 4), ("c", 9)] {
        let mut object = backup_of(name, &["x"]);
        object["status"] = json!({"phase": "Queued", "queuePosition": position});
        object["metadata"]["annotations"] =
            json!({"berth.dev/enqueued-at": format!("2026-01-01T00:00:0{position}.{}00000Z", name.len())});
        objects.push(object);
    }
    objects.push(backup_of("unseen", &["x"]));
    // An API server without the guard lets that happen.
    berth.kubectl().run(&["delete", "validatingadmissionpolicybinding", "berth-guard-places"]).unwrap();
    wait_for("the guard to be off", PATIENCE, || {
        let first = berth.kubectl().create(&ns, &objects[..1])?;
        Ok(first.status.success().then_some(()))
    })
    .unwrap();
    assert!(berth.kubectl().create(&ns, &objects[1..]).unwrap().status.success());
    berth.controller.process.restart().unwrap();
    // `holder` fails validation, which frees the queue at once; then the others run, each once, in
    // order.
    let done = ended(&berth, &["holder", "a", "b", "c", "unseen"]);
    assert_eq!(done["holder"].phase(), BackupPhase::FailedValidation);
    let errors = done["holder"].status.as_ref().unwrap().validation_errors.clone().unwrap_or_default();
    assert!(errors.iter().any(|e| e.starts_with("spec.storageLocation: ")), "{errors:?}");
    let log = berth.controller.process.log_text().unwrap();
    let dequeued = dequeued(&log);
    assert_eq!(dequeued[2..], ["c", "unseen"], "{dequeued:?}");
    assert_eq!(dequeued.len(), 4, "each starts once");
}

#[test]
fn of_two_controllers_one_leads_and_the_other_takes_over() {
    let mut options = Options::new(program(), "two-controllers");
    options.controller_args.push(SHORT_LEASE.to_owned());
    let mut berth = Berth::start(ControlPlane::shared().unwrap(), options).unwrap();
    let ns = berth.namespace().to_owned();
    let other = berth.start_another_controller("controller-2").unwrap();
    wait_for("the second one to wait", PATIENCE, || {
        Ok(other.process.log_text()?.contains("waiting: another one leads").then_some(()))
    })
    .unwrap();
    berth.controller.process.kill().unwrap();
    berth.kubectl().create(&ns, &[backup_of("after", &["default"])]).unwrap();
    assert_eq!(ended(&berth, &["after"])["after"].phase(), BackupPhase::Completed);
    assert!(other.process.log_text().unwrap().contains("dequeued name=after"));
}

#[test]
fn a_create_that_somebody_else_refuses_leaves_no_gap() {
    let berth = start("refused-later", 1);
    let ns = berth.namespace().to_owned();
    let held = |name: &str| {
        let mut object = backup_of(name, &["default"]);
        object["metadata"]["annotations"] = json!({"berth.dev/hold": "true"});
        object
    };
    // Judged after berth has given it a place.
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "no-later"},
    "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": ["velero.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["backups"]}]},
        "validations": [{"expression": "!object.metadata.name.startsWith('refused')", "message": "not here"}],
    }});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "no-later"},
    "spec": {
        "policyName": "no-later",
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns}}},
    }});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    berth.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string()).unwrap();
    wait_for("the policy to hold", PATIENCE, || {
        let text = held("refused").to_string();
        let tried = berth.kubectl().answer(&["create", "--dry-run=server", "-n", &ns, "-f", "-"], &text)?;
        Ok(tried.stderr.contains("not here").then_some(()))
    })
    .unwrap();
    let answer =
        berth.kubectl().create(&ns, &[held("a"), held("refused-1"), held("refused-2"), held("b")]).unwrap();
    assert!(answer.stderr.contains("not here"), "{}", answer.stderr);
    let place = |name: &str| berth.kubectl().backup(&ns, name).unwrap().status.unwrap().queue_position;
    assert_eq!(place("a"), Some(1));
    wait_for("the gap to close", PATIENCE, || Ok((place("b") == Some(2)).then_some(()))).unwrap();
    // Nor does what was refused stand in anybody's way.
    berth.kubectl().create(&ns, &[held("c")]).unwrap();
    wait_for("the next one to stand behind", PATIENCE, || Ok((place("c") == Some(3)).then_some(()))).unwrap();
}
