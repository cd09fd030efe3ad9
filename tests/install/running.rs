//! Backups that run while it changes who runs them, or while berth is removed. No controller runs
//! here: they stay as they are.

use std::path::Path;

use serde_json::{Value, json};

use super::{apply, berth, finish_namespaces, said};
use crate::support::ControlPlane;
use crate::support::backup::backup_of;

const NAMESPACE: &str = "velero";

fn location(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"provider": "aws", "objectStorage": {"bucket": name}},
    })
}

pub fn what_berth_runs_ends_before_a_velero_is_to_run_backups(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    // No pod comes up: what is written is there, and nothing guards Backups.
    let install = |executor: &str| berth(admin, &["install", "--timeout=1s", "--executor", executor]);
    let executor = || {
        let path = "jsonpath={.spec.template.spec.containers[0].args}";
        let args = ["get", "deployment", "berth-controller", "-n", NAMESPACE, "-o", path];
        let is_velero = kubectl.run(&args).unwrap().contains("--executor=velero");
        if is_velero { "velero" } else { "berth" }
    };
    let text = said(&install("berth"));
    assert!(text.contains("not ready after 1 s"), "{text}");
    kubectl.await_definitions().unwrap();
    apply(plane, &[location("default"), location("cold")]);
    let mut running = backup_of("long", &["default"]);
    running["spec"]["storageLocation"] = json!("cold");
    running["metadata"]["annotations"] = json!({"berth.dev/run": "a", "berth.dev/runs": "1"});
    running["status"] = json!({"phase": "InProgress"});
    let waiting = backup_of("next", &["default"]);
    let made = kubectl.create(NAMESPACE, &[running, waiting]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);

    let refused = install("velero");
    let text = said(&refused);
    assert!(!refused.status.success(), "{text}");
    for words in [
        "waiting: berth runs long ",
        "berth still runs long after 1 s",
        "nothing was changed",
        "berth queue cancel",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(executor(), "berth");
    let dry_run = said(&berth(admin, &["uninstall", "--dry-run"]));
    assert!(dry_run.contains("1 Backup is running (long)"), "{dry_run}");

    // What runs is canceled with what waits.
    let queue = |args: &[&str]| said(&berth(admin, &[&["queue"][..], args].concat()));
    assert_eq!(queue(&["cancel", "--location", "cold"]), "long canceled\n");
    assert_eq!(queue(&["hold", "--all"]), "next held\n");
    assert_eq!(queue(&["cancel", "--all"]), "next canceled\nlong canceled\n");

    // As a controller would end it.
    let phase = |phase: &str| {
        let patch = json!({"status": {"phase": phase}}).to_string();
        kubectl
            .run(&["patch", "backup.velero.io", "long", "-n", NAMESPACE, "--type=merge", "-p", &patch])
            .unwrap();
    };
    phase("Failed");
    let text = said(&install("velero"));
    assert!(text.contains("not ready after 1 s") && !text.contains("berth still runs"), "{text}");
    assert_eq!(executor(), "velero");

    // One that was left behind all the same.
    phase("InProgress");
    let text = said(&install("velero"));
    assert!(text.contains("berth began long, and nobody runs that"), "{text}");
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "berth-controller", "namespace": NAMESPACE, "annotations": {"berth.dev/executor": "velero"}},
    });
    apply(plane, &[lease]);
    assert!(queue(&["cancel", "--all"]).contains("nothing waits or runs here"));
    let text = queue(&["cancel", "long"]);
    assert!(text.contains("long canceled\n") && text.contains("`berth install --executor=berth`"), "{text}");
    kubectl.run(&["annotate", "backup.velero.io", "long", "-n", NAMESPACE, "berth.dev/run-"]).unwrap();
    assert!(queue(&["cancel", "long"]).contains("Velero runs Backup long"));

    kubectl.run(&["delete", "backup.velero.io,bsl", "--all", "-n", NAMESPACE]).unwrap();
    let output = berth(admin, &["uninstall"]);
    assert!(output.status.success() && !said(&output).contains("is running"), "{}", said(&output));
    finish_namespaces(plane);
}
