//! A cluster on which stock Velero was installed first keeps its definitions, and later Veleros add
//! fields.

use std::sync::Arc;

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{PATIENCE, ended};
use crate::support::backup::backup_of;
use crate::support::peers::install_definitions;
use crate::support::{Berth, ControlPlane, Options, backup, wait_for};

/// Berths on definitions that are stock Velero's. One after the other: the second one changes a
/// definition.
#[test]
fn berth_runs_on_stock_veleros_own_definitions_and_leaves_later_fields_as_they_are() {
    let plane = ControlPlane::start().unwrap();
    // An installation of berth writes none over them.
    plane.define().unwrap();
    install_definitions(&plane).unwrap();
    let args = ["get", "crd", "backups.velero.io", "-o", "json"];
    let text = plane.kubectl().run(&args).unwrap();
    assert!(text.contains("controller-gen.kubebuilder.io/version"), "these are not Velero's: {text}");
    let plane = Arc::new(plane);
    let on_it =
        |namespace: &str| Berth::start(Arc::clone(&plane), Options::new(program(), namespace)).unwrap();
    berth_runs_on_stock_veleros_own_definitions(on_it("stock-definitions"));
    fields_that_berth_does_not_know_outlive_its_writes(&on_it("unknown-fields"));
}

fn raw(berth: &Berth, name: &str) -> Value {
    let args = ["get", "backups.velero.io", name, "-n", berth.namespace(), "-o", "json"];
    serde_json::from_str(&berth.kubectl().run(&args).unwrap()).unwrap()
}

fn berth_runs_on_stock_veleros_own_definitions(mut berth: Berth) {
    // Or the first might have ended when the second is created.
    berth.controller.stop().unwrap();
    let mut labelled = backup_of("labelled", &["default"]);
    labelled["metadata"]["labels"] = json!({"team": "north"});
    labelled["metadata"]["annotations"] = json!({"example.com/note": "kept"});
    labelled["spec"]["hooks"] = json!({"resources": []});
    let answer = berth.kubectl().create(berth.namespace(), &[labelled, backup_of("second", &["default"])]);
    let answer = answer.unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let waits =
        "berth: queued at position 2; waits for labelled (ahead in the queue), which also takes default";
    let warnings = answer.warnings();
    assert_eq!(warnings, ["berth: queued at position 1; it starts next", waits]);
    berth.controller.process.restart().unwrap();
    let done = ended(&berth, &["labelled", "second"]);
    for (name, backup) in &done {
        assert_eq!(backup.phase(), BackupPhase::Completed, "{name}: {:?}", backup.status);
    }
    let labelled = raw(&berth, "labelled");
    assert_eq!(labelled["metadata"]["labels"]["team"], "north");
    assert_eq!(labelled["metadata"]["annotations"]["example.com/note"], "kept");
    assert_eq!(labelled["spec"]["hooks"], json!({"resources": []}), "{labelled}");
}

fn fields_that_berth_does_not_know_outlive_its_writes(berth: &Berth) {
    let open = |part: &str| {
        let path = format!("/spec/versions/0/schema/openAPIV3Schema/properties/{part}");
        json!({"op": "add", "path": format!("{path}/x-kubernetes-preserve-unknown-fields"), "value": true})
    };
    let patch = json!([open("spec"), open("status")]).to_string();
    berth.kubectl().run(&["patch", "crd", "backups.velero.io", "--type=json", "-p", &patch]).unwrap();
    let fields = json!({"mode": "fast", "list": [1, {"a": null}], "huge": 9_007_199_254_740_993_i64});
    // The API server takes a moment to serve a changed definition.
    crate::support::wait_for("the definition to be served", crate::queue::PATIENCE, || {
        let probe = backup("probe", json!({"laterField": fields}));
        let args = ["create", "--dry-run=server", "-n", berth.namespace(), "-o", "json", "-f", "-"];
        let answer = berth.kubectl().answer(&args, &probe.to_string())?;
        let object: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        Ok(object["spec"]["laterField"].is_object().then_some(()))
    })
    .unwrap();
    let mut later = backup("later", json!({"includedNamespaces": ["default"], "laterField": fields}));
    later["status"] = json!({"laterStatus": {"seen": [true]}});
    let answer = berth.kubectl().create(berth.namespace(), &[later]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(berth, &["later"]);
    assert_eq!(done["later"].phase(), BackupPhase::Completed, "{:?}", done["later"].status);
    let kept = &raw(berth, "later");
    assert_eq!(kept["spec"]["laterField"], fields, "{kept}");
    assert_eq!(kept["status"]["laterStatus"], json!({"seen": [true]}), "{kept}");
    let stored = std::fs::read(berth.archives().join("backups/later/velero-backup.json")).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(stored["spec"]["laterField"], fields, "the copy in the store has them too");
    assert_eq!(stored["status"]["laterStatus"], json!({"seen": [true]}), "{stored}");
}

#[test]
fn on_a_definition_from_before_the_queue_nothing_is_queued_and_nothing_is_lost() {
    let plane = ControlPlane::start().unwrap();
    let mut options = Options::new(program(), "old-definition");
    // Otherwise the webhook reads the definition twice a minute.
    options.env = vec![("BERTH_PACE".to_owned(), "10".to_owned())];
    let mut berth = Berth::start(plane, options).unwrap();
    let ns = berth.namespace().to_owned();
    let kubectl = berth.kubectl().clone();
    let args = ["get", "crd", "backups.velero.io", "-o", "json"];
    let current: Value = serde_json::from_str(&kubectl.run(&args).unwrap()).unwrap();
    let phases = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum";
    let known: Vec<Value> = current.pointer(phases).unwrap().as_array().unwrap().clone();
    let set = |values: &[Value]| {
        let patch = json!([{"op": "replace", "path": phases, "value": values}]).to_string();
        kubectl.run(&["patch", "crd", "backups.velero.io", "--type=json", "-p", &patch]).unwrap();
    };
    let old: Vec<Value> = known
        .iter()
        .filter(|phase| !["Queued", "ReadyToStart"].contains(&phase.as_str().unwrap()))
        .cloned()
        .collect();
    set(&old);
    let tried = |wanted: &str| {
        let text = backup_of("probe", &["default"]).to_string();
        let tried = kubectl.answer(&["create", "--dry-run=server", "-n", &ns, "-f", "-"], &text)?;
        Ok((tried.status.success() && tried.warnings().iter().any(|w| w.starts_with(wanted))).then_some(()))
    };
    let says = "berth: not queued: the definition backups.velero.io has no phase Queued and no phase ReadyToStart: it is from before Velero 1.18; apply what `berth crd` prints";
    wait_for("the webhook to see the old definition", PATIENCE, || tried(says)).unwrap();
    assert!(berth.kubectl().create(&ns, &[backup_of("early", &["default"])]).unwrap().status.success());
    berth.controller.stop().unwrap();
    berth.controller.process.restart().unwrap();
    wait_for("the controller to see it too", PATIENCE, || {
        let list = std::process::Command::new(program())
            .args(["queue", "list", "-n", &ns, "--kubeconfig", berth.plane().kubeconfig().to_str().unwrap()])
            .output()?;
        Ok(String::from_utf8_lossy(&list.stdout).contains("has no phase Queued").then_some(()))
    })
    .unwrap();
    assert_eq!(berth.kubectl().phase(&ns, "early").unwrap(), BackupPhase::New);
    berth.controller.await_metric("berth_queue_executor_available 0").unwrap();
    set(&known);
    let done = ended(&berth, &["early"]);
    assert_eq!(done["early"].phase(), BackupPhase::Completed, "queued once it can be");
    wait_for("the webhook to queue again", PATIENCE, || tried("berth: queued at position 1")).unwrap();
}
