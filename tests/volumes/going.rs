//! Claims and classes that go while a snapshot is cut.

use berth_api::velero::BackupPhase;
use serde_json::json;

use super::played::{begin, csi, make, start, stored, wait_asked, wait_gone};
use super::player::DRIVER;
use crate::archive::{items, side_text};
use crate::hooks::{create, namespace};
use crate::queue::ended;
use crate::support::{PATIENCE, wait_for};

/// It was there when the backup began, and the snapshot is cut nonetheless.
#[test]
fn a_claim_that_is_deleted_while_its_snapshot_is_cut_is_stored_with_its_data() {
    let (berth, player) = start("vol-going", &[]);
    create(&berth, &[namespace("going")]);
    make(&berth, "going", "data", &csi(DRIVER), &json!({}));
    player.hold("going/data");
    begin(&berth, "going", json!({"includedNamespaces": ["going"]}));
    wait_asked(player, "going/data", 1);
    berth.kubectl().run(&["delete", "pvc", "data", "-n", "going", "--wait=false"]).unwrap();
    player.let_go("going/data");
    let done = ended(&berth, &["going"]).remove("going").unwrap();
    let folder = stored(&berth, "going");
    let status = done.status.unwrap();
    let log = side_text(&folder, "going-logs.gz");
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (Some(1), Some(1)),
        "{log}"
    );
    let found = items(&folder.join("going.tar.gz"));
    assert!(found.iter().any(|item| item == "persistentvolumeclaims/namespaces/going/data"), "{found:?}");
    wait_gone(&berth, "going");
    // The snapshot that the archive names.
    assert_eq!(player.stored("going"), ["going/data"]);
}

/// Somebody deletes the VolumeSnapshot itself, as a clean-up by hand would.
#[test]
fn a_snapshot_that_somebody_deletes_before_it_is_ready_is_an_error_of_its_claim() {
    let (berth, player) = start("vol-taken", &[]);
    create(&berth, &[namespace("taken")]);
    for name in ["data", "late"] {
        make(&berth, "taken", name, &csi(DRIVER), &json!({}));
    }
    player.make_late("taken/late");
    begin(&berth, "taken", json!({"includedNamespaces": ["taken"]}));
    wait_asked(player, "taken/late", 1);
    // Only one that is cut is in the storage.
    wait_for("both to be cut", PATIENCE, || Ok((player.stored("taken").len() == 2).then_some(()))).unwrap();
    let path =
        "jsonpath={range .items[?(@.spec.source.persistentVolumeClaimName==\"late\")]}{.metadata.name}{end}";
    let name = berth.kubectl().run(&["get", "volumesnapshots", "-n", "taken", "-o", path]).unwrap();
    berth.kubectl().run(&["delete", "volumesnapshot", name.trim(), "-n", "taken", "--wait=false"]).unwrap();
    let done = ended(&berth, &["taken"]).remove("taken").unwrap();
    let log = side_text(&stored(&berth, "taken"), "taken-logs.gz");
    let status = done.status.unwrap();
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed, status.errors),
        (Some(2), Some(1), Some(1)),
        "{log}"
    );
    let told = "claim late is stored without the data of its volume: somebody deleted its VolumeSnapshot";
    assert!(log.contains(told), "{log}");
    player.make_ready("taken/late");
    wait_gone(&berth, "taken");
}

/// berth has decided by then. A snapshot that is cut needs its class no more; the other one cannot
/// be cut.
#[test]
fn a_class_that_is_deleted_after_the_decision_costs_the_data_that_is_not_cut_yet() {
    const CLASS: &str = "short-lived";
    // Nobody else chooses among the classes of this driver.
    const ITS_DRIVER: &str = "short-lived.berth.test";
    let (berth, player) = start("vol-class", &[]);
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": CLASS}, "driver": ITS_DRIVER, "deletionPolicy": "Delete",
    });
    create(&berth, &[namespace("class"), class]);
    for name in ["cut", "uncut"] {
        make(&berth, "class", name, &csi(ITS_DRIVER), &json!({}));
    }
    player.make_late("class/cut");
    player.hold("class/uncut");
    // Long enough for a busy machine to make the other one ready.
    begin(&berth, "class", json!({"includedNamespaces": ["class"], "csiSnapshotTimeout": "20s"}));
    wait_asked(player, "class/uncut", 1);
    wait_for("the other one to be cut", PATIENCE, || {
        Ok((player.stored("class") == ["class/cut"]).then_some(()))
    })
    .unwrap();
    berth.kubectl().run(&["delete", "volumesnapshotclass", CLASS]).unwrap();
    player.let_go("class/uncut");
    player.make_ready("class/cut");
    let done = ended(&berth, &["class"]).remove("class").unwrap();
    let folder = stored(&berth, "class");
    let log = side_text(&folder, "class-logs.gz");
    let status = done.status.unwrap();
    assert_eq!((status.phase, status.errors), (Some(BackupPhase::PartiallyFailed), Some(1)), "{log}");
    assert_eq!(
        (status.csi_volume_snapshots_attempted, status.csi_volume_snapshots_completed),
        (Some(2), Some(1)),
        "{log}"
    );
    for words in [
        "claim uncut is stored without the data of its volume: its snapshot was not cut within 20 s",
        "failed to retrieve snapshot class short-lived",
    ] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let found = items(&folder.join("class.tar.gz"));
    for name in ["cut", "uncut"] {
        assert!(found.contains(&format!("persistentvolumeclaims/namespaces/class/{name}")), "{found:?}");
    }
    assert_eq!(found.iter().filter(|item| item.starts_with("volumesnapshots.")).count(), 1, "{found:?}");
    wait_gone(&berth, "class");
    assert_eq!(player.stored("class"), ["class/cut"]);
}
