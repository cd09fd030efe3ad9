//! What backups that are gone have left: told, and removed where that is proven.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::admission::program;
use crate::hooks::namespace;
use crate::install::said;
use crate::queue::ended;
use crate::support::csi::define_snapshots;
use crate::support::peers::install_definitions;
use crate::support::{Berth, ControlPlane, Options, PATIENCE, backup, wait_for};

/// Fifteen minutes are fifteen seconds.
const PACE: &str = "60";

fn check(berth: &Berth, args: &[&str]) -> Output {
    check_at(PACE, berth, args)
}

fn check_at(pace: &str, berth: &Berth, args: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.arg("check").args(args).args(["--namespace", berth.namespace(), "--kubeconfig"]);
    command.arg(berth.plane().kubeconfig()).env("BERTH_PACE", pace).stdin(Stdio::null());
    command.output().unwrap()
}

fn create(berth: &Berth, space: &str, object: &Value) -> String {
    let made = berth.kubectl().create(space, std::slice::from_ref(object)).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
    let path = "jsonpath={.metadata.uid}";
    berth.kubectl().run(&["get", kind, name, "-n", space, "-o", path]).unwrap()
}

fn labels(backup: &str) -> Value {
    json!({"velero.io/backup-name": backup})
}

/// A VolumeSnapshot with its content.
fn snapshot(berth: &Berth, name: &str, backup: &str, policy: &str) {
    let uid = create(
        berth,
        "shop",
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": name, "labels": labels(backup)},
            "spec": {"source": {"persistentVolumeClaimName": "data"}},
        }),
    );
    content(berth, &format!("of-{name}"), backup, policy, &uid);
}

fn content(berth: &Berth, name: &str, backup: &str, policy: &str, of: &str) {
    create(
        berth,
        "shop",
        &json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": name, "labels": labels(backup)},
            "spec": {
                "deletionPolicy": policy, "driver": "d", "source": {"volumeHandle": name},
                "volumeSnapshotRef": {"namespace": "shop", "name": name, "uid": of},
            },
        }),
    );
}

/// A VolumeGroupSnapshot with its content.
fn group(berth: &Berth, name: &str, backup: &str, policy: &str) {
    let uid = create(
        berth,
        "shop",
        &json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot",
            "metadata": {"name": name, "labels": labels(backup)},
            "spec": {"source": {"selector": {"matchLabels": {"velero.io/volume-group": "g"}}}},
        }),
    );
    group_content(berth, &format!("of-{name}"), backup, policy, &uid);
}

fn group_content(berth: &Berth, name: &str, backup: &str, policy: &str, of: &str) {
    create(
        berth,
        "shop",
        &json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": name, "labels": labels(backup)},
            "spec": {
                "deletionPolicy": policy, "driver": "d", "source": {"volumeHandles": [name]},
                "volumeGroupSnapshotRef": {"namespace": "shop", "name": name, "uid": of},
            },
        }),
    );
}

fn upload(berth: &Berth, name: &str, backup: &str) {
    let mut labels = labels(backup);
    labels["velero.io/backup-uid"] = json!("0e4b");
    create(
        berth,
        berth.namespace(),
        &json!({
            "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "metadata": {"name": name, "labels": labels},
            "spec": {
                "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": "shop",
                "backupStorageLocation": "default", "operationTimeout": "10m0s",
                "csiSnapshot": {"volumeSnapshot": "s", "storageClass": "any"},
            },
        }),
    );
}

/// Kind and name of all that is there.
fn there(berth: &Berth) -> Vec<String> {
    let kubectl = berth.kubectl();
    let mut found = String::new();
    for (kind, space) in [
        ("volumesnapshots", "shop"),
        ("volumegroupsnapshots", "shop"),
        ("volumesnapshotcontents", "shop"),
        ("volumegroupsnapshotcontents", "shop"),
        ("datauploads", berth.namespace()),
    ] {
        found += &kubectl.run(&["get", kind, "-n", space, "-o", "name"]).unwrap();
    }
    found.lines().map(|line| line.rsplit('/').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn what_backups_that_are_gone_have_left_is_told_and_removed_when_somebody_says_so() {
    let plane = ControlPlane::start().unwrap();
    install_definitions(&plane).unwrap();
    define_snapshots(&plane).unwrap();
    let berth = Berth::start(plane, Options::new(program(), "left")).unwrap();
    let (kubectl, ns) = (berth.kubectl(), berth.namespace());
    let often = json!({"spec": {"backupSyncPeriod": "1s"}}).to_string();
    kubectl.run(&["patch", "bsl", "default", "-n", ns, "--type=merge", "-p", &often]).unwrap();
    let made = kubectl.create("default", &[namespace("shop")]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    for name in ["here", "back"] {
        let spec = json!({"includedNamespaces": ["shop"], "snapshotVolumes": false});
        let made = kubectl.create(ns, &[backup(name, spec)]).unwrap();
        assert!(made.status.success(), "{}", made.stderr);
    }
    ended(&berth, &["here", "back"]);

    snapshot(&berth, "velero-gone", "gone", "Delete");
    snapshot(&berth, "velero-retained", "gone", "Retain");
    snapshot(&berth, "velero-here", "here", "Delete");
    snapshot(&berth, "velero-back", "back", "Delete");
    snapshot(&berth, "mine", "gone", "Delete");
    content(&berth, "alone", "gone", "Retain", "0e4c");
    group(&berth, "velero-group-gone", "gone", "Delete");
    group(&berth, "velero-group-retained", "gone", "Retain");
    group(&berth, "velero-group-here", "here", "Delete");
    group_content(&berth, "group-alone", "gone", "Retain", "0e4d");
    upload(&berth, "gone-1", "gone");
    upload(&berth, "here-1", "here");
    // At the usual pace, because a busy machine may take fifteen seconds until here.
    let young = check_at("1", &berth, &["--clean"]);
    assert!(said(&young).contains("nothing to remove"), "{}", said(&young));

    let told = wait_for("what is left to be told", PATIENCE, || {
        let text = said(&check(&berth, &[]));
        Ok(text.contains("7 objects seem to be left of backups that are gone").then_some(text))
    })
    .unwrap();
    for name in
        ["DataUpload left/gone-1", "VolumeSnapshot shop/velero-gone", "removes 3 of them, after asking"]
    {
        assert!(told.contains(name), "{name}: {told}");
    }
    let before = there(&berth);
    let asked = check(&berth, &["--clean"]);
    assert_eq!(asked.status.code(), Some(2), "{}", said(&asked));
    assert!(said(&asked).contains("nobody can be asked"), "{}", said(&asked));
    assert_eq!(there(&berth), before);

    // It comes back with the next sync, because the location has it.
    kubectl.run(&["delete", "backup.velero.io", "back", "-n", ns]).unwrap();
    let cleaned = check(&berth, &["--clean", "--confirm", "-o", "json"]);
    assert!(cleaned.status.success(), "{}", said(&cleaned));
    let all: Value = serde_json::from_slice(&cleaned.stdout).unwrap();
    let outcome = |name: &str| {
        let of = |one: &&Value| one["name"] == name;
        let one = all.as_array().unwrap().iter().find(of);
        one.map(|one| one["outcome"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    };
    let removed = ["velero-gone", "velero-group-gone", "gone-1"];
    assert_eq!(removed.map(outcome), ["removed"; 3]);
    for name in ["velero-retained", "alone", "velero-group-retained", "group-alone"] {
        assert!(outcome(name).contains("Retain"), "{all:#}");
    }
    assert_eq!(
        all.as_array().unwrap().iter().filter(|one| one["outcome"] == "removed").count(),
        3,
        "{all:#}"
    );
    let left: Vec<String> = before.into_iter().filter(|name| !removed.contains(&name.as_str())).collect();
    assert_eq!(there(&berth), left);
    let back = || Ok(kubectl.run(&["get", "backup.velero.io", "back", "-n", ns]).ok());
    wait_for("the Backup to come back", PATIENCE, back).unwrap();

    // A location that is not available says nothing of what is in its store.
    snapshot(&berth, "velero-late", "late", "Delete");
    let file = berth.archives().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let away =
        json!({"spec": {"config": {"path": file.join("none")}, "validationFrequency": "1s"}}).to_string();
    kubectl.run(&["patch", "bsl", "default", "-n", ns, "--type=merge", "-p", &away]).unwrap();
    wait_for("the location to be unavailable", PATIENCE, || {
        let phase = kubectl.run(&["get", "bsl", "default", "-n", ns, "-o", "jsonpath={.status.phase}"])?;
        Ok((phase == "Unavailable").then_some(()))
    })
    .unwrap();
    wait_for("the doubt to be told", PATIENCE, || {
        let text = said(&check(&berth, &["--clean", "--confirm"]));
        let told = text.lines().find(|line| line.contains("velero-late"));
        let is_doubted = told.is_some_and(|line| line.contains("may still bring its Backup"));
        assert!(told.is_none() || is_doubted, "{text}");
        Ok((is_doubted && text.contains("storage location left/default")).then_some(()))
    })
    .unwrap();
    assert!(there(&berth).contains(&"velero-late".to_owned()));
}
