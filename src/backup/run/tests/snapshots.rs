//! Snapshots of a dead run, where the run that takes the backup up has lost it in its turn, and
//! groups of snapshots, of which not all may be seen.

use std::collections::BTreeSet;

use berth_test_scripted::delete;

use super::*;

const ALL: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
const IN_APP: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots";
const OF_GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotcontents";
const GROUPS_IN_APP: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/app/volumegroupsnapshots";
const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";

/// The name of a group, as berth gives it.
fn name_of(group: &str) -> String {
    format!("velero-{}", &crate::patch::digest(group)[..20])
}

/// A snapshot of group `of-NAME`.
fn snapshot(name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "name": name, "namespace": "app", "uid": format!("uid-{name}"),
            "ownerReferences": [{
                "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
                "name": name_of(&format!("of-{name}")), "uid": format!("uid-of-{name}"),
            }],
        },
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    })
}

/// Its folder is there when it is looked at, and gone when it is opened for the run that takes the
/// backup up. It is waited for as one that cannot be looked at, and does not come back.
#[tokio::test(start_paused = true)]
async fn a_location_that_goes_between_two_looks_leaves_nothing_of_a_dead_run_in_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    std::fs::create_dir(&bucket).unwrap();
    let mut begun = backup("8", "InProgress");
    begun["metadata"]["annotations"] = json!({keys::RUN: "dead", keys::RUNS: "1"});
    let standing = Arc::new(Mutex::new(begun));
    let (read, written) = (Arc::clone(&standing), Arc::clone(&standing));
    // One that was validated is not created.
    let mut validated = location(folder.path());
    validated["status"] = json!({"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"});
    let content = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-uid-velero-begun";
    let api = Scripted::new()
        .always(get(ONE).answers_with(move |_| read.lock().clone()))
        .always(patch(ONE).answers_with(move |sent| {
            let mut standing = written.lock();
            json_patch::merge(&mut standing, sent);
            standing.clone()
        }))
        .always(get(LOCATION).answers(validated))
        .once(get("/api/v1/namespaces/kube-system").answers_with(move |_| {
            std::fs::remove_dir(&bucket).unwrap();
            json!({"metadata": {"name": "kube-system", "uid": "here"}})
        }))
        .once(get(ALL).answers(list("1", &[snapshot("velero-begun")])))
        .once(get(GROUPS).answers(list("1", &[])))
        .once(get("/apis/velero.io/v1/namespaces/velero/podvolumebackups").answers(list("1", &[])))
        .once(get(content).refuses(404))
        .once(
            delete("/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/velero-begun")
                .answers(snapshot("velero-begun")),
        );
    let (engine, begun) = (engine(&api, &folder, AfterInterruption::Resume), Instant::now());
    let ended = engine.recover("one", "u", Signals::default(), |_| {}).await.unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Failed, "{:?}", ended.status);
    assert!(ended.status.unwrap().failure_reason.unwrap().contains("does not exist"));
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(600) && waited < Duration::from_secs(700), "{waited:?}");
    api.finish();
}

/// The content of a snapshot, whose status does not name it yet, and where it is.
fn content(snapshot: &str) -> (String, Value) {
    let name = format!("snapcontent-uid-{snapshot}");
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {
            "deletionPolicy": "Delete", "driver": "d", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "app", "name": snapshot, "uid": format!("uid-{snapshot}")},
        },
        "status": {"snapshotHandle": snapshot},
    });
    (format!("{CONTENTS}/{name}"), content)
}

fn group(name: &str) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name_of(name), "namespace": "app", "uid": format!("uid-{name}")},
        "spec": {"source": {"selector": {"matchLabels": {"velero.io/volume-group": "g"}}}},
    })
}

/// The content of a group, whose status does not name it yet, and where it is. `handles`: what the
/// storage has of the group.
fn content_of(group: &str, handles: &[&str]) -> (String, Value) {
    let name = format!("groupsnapcontent-uid-{group}");
    let infos: Vec<Value> = handles.iter().map(|handle| json!({"snapshotHandle": handle})).collect();
    let handle = (!infos.is_empty()).then_some("h");
    let content = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"deletionPolicy": "Delete", "volumeGroupSnapshotRef": {"uid": format!("uid-{group}")}},
        "status": {"volumeGroupSnapshotHandle": handle, "volumeSnapshotInfoList": infos},
    });
    (format!("{OF_GROUPS}/{name}"), content)
}

/// The Backup as this run has it.
fn had_by(run: &str) -> Value {
    let mut had = backup("8", "InProgress");
    had["metadata"]["annotations"] = json!({keys::RUN: run});
    had
}

/// Takes the Backup over.
async fn taken_over(api: &Scripted) -> BackupWriter {
    api.next(get(ONE).answers(backup("7", "InProgress"))).next(patch(ONE).answers(had_by("ours")));
    let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
    record.take_over("ours", OPENING).await.unwrap();
    record
}

#[tokio::test]
async fn what_a_dead_run_has_begun_is_removed_by_nobody_but_the_run_that_has_the_backup() {
    let kept = BTreeSet::from(["app/kept".to_owned()]);
    for run in ["ours", "of another"] {
        let folder = tempfile::tempdir().unwrap();
        let api = Scripted::new();
        let record = taken_over(&api).await;
        let snapshots = [snapshot("kept"), snapshot("begun")];
        api.next(get(ALL).answers(list("1", &snapshots)));
        api.next(get(GROUPS).answers(list("1", &[group("of-kept"), group("of-begun")])));
        api.next(get(IN_APP).answers(list("1", &snapshots)));
        for name in ["kept", "begun"] {
            for (path, content) in [content_of(&format!("of-{name}"), &[name]), content(name)] {
                api.next(get(&path).answers(content));
            }
        }
        // It may have been taken over while that was listed.
        api.next(get(ONE).answers(had_by(run)));
        if run == "ours" {
            let (path, content) = content("begun");
            api.next(get(&path).answers(content.clone())).next(patch(&path).answers(content));
            api.next(delete(&format!("{IN_APP}/begun")).answers(snapshot("begun")));
            // Only with the group the storage removes them.
            let (path, content) = content_of("of-begun", &["begun"]);
            api.next(get(&path).answers(content.clone())).next(patch(&path).answers(content));
            api.next(delete(&format!("{GROUPS_IN_APP}/{}", name_of("of-begun"))).answers(group("of-begun")));
        }
        let engine = engine(&api, &folder, AfterInterruption::Resume);
        engine.remove_snapshots_but("one", &record, &kept).await;
        api.finish();
    }
}

/// An archive, or a checkpoint, may name the snapshots that are not seen.
#[tokio::test]
async fn a_group_is_removed_only_if_all_of_its_snapshots_are_seen_and_go() {
    for (how, named, is_seen, handles, goes) in [
        // A run that died has not labelled it.
        ("all", "", true, &["one"][..], true),
        ("all", "", false, &["one"], false),
        ("all", "", true, &["one", "other"], false),
        // It is not cut yet.
        ("all", "", false, &[], true),
        ("but", "app/other", true, &["one"], true),
        // Somebody has taken its label.
        ("but", "app/one", true, &["one"], false),
        ("but", "app/one", false, &["one"], false),
        ("only", "app/one", true, &["one"], true),
        ("only", "app/other", true, &["one"], false),
        ("only", "app/one", false, &[], false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let api = Scripted::new();
        let record = taken_over(&api).await;
        api.next(get(ALL).answers(list("1", &[])));
        api.next(get(GROUPS).answers(list("1", &[group("of-one")])));
        let seen = if is_seen { vec![snapshot("one")] } else { Vec::new() };
        api.next(get(IN_APP).answers(list("1", &seen)));
        let (of_group, content_of_group) = content_of("of-one", handles);
        api.next(get(&of_group).answers(content_of_group.clone()));
        if is_seen {
            let (path, content) = content("one");
            api.next(get(&path).answers(content));
        }
        if how == "all" {
            api.next(get(FILES).answers(list("1", &[])));
        }
        if goes {
            api.next(get(ONE).answers(had_by("ours")));
            api.next(get(&of_group).answers(content_of_group.clone()));
            api.next(patch(&of_group).answers(content_of_group));
            api.next(delete(&format!("{GROUPS_IN_APP}/{}", name_of("of-one"))).answers(group("of-one")));
        }
        let engine = engine(&api, &folder, AfterInterruption::Resume);
        let names = BTreeSet::from([named.to_owned()]);
        match how {
            "all" => engine.remove_snapshots("one", &record).await,
            "but" => engine.remove_snapshots_but("one", &record, &names).await,
            _ => engine.remove_unmet("one", &record, &names).await,
        }
        let policies: Vec<Value> =
            api.writes().iter().skip(1).map(|write| write.body["spec"]["deletionPolicy"].clone()).collect();
        let expected = if goes { vec![json!("Delete"), Value::Null] } else { Vec::new() };
        // After the one by which the Backup was taken over.
        assert_eq!(policies.len(), expected.len(), "{how} {named} {is_seen} {handles:?}");
        assert_eq!(policies.first(), expected.first());
        api.finish();
    }
}

/// An archive may name the snapshots that are not seen.
#[tokio::test]
async fn the_group_of_a_stored_backup_leaves_the_storage_only_if_none_of_its_snapshots_may_be_named() {
    for (is_kept, is_labelled, handles, policy) in [
        (true, true, &["one"][..], "Retain"),
        (false, true, &["one"], "Delete"),
        // A run that died has not labelled it.
        (false, false, &["one"], "Delete"),
        (false, true, &["one", "other"], "Retain"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut one = snapshot("one");
        if is_kept {
            one["metadata"]["annotations"] = json!({"velero.io/csi-volumesnapshot-handle": "h"});
        }
        let labelled = if is_labelled { vec![one.clone()] } else { Vec::new() };
        let api = Scripted::new().next(get(ALL).answers(list("1", &labelled)));
        api.next(get(GROUPS).answers(list("1", &[group("of-one")])));
        api.next(get(IN_APP).answers(list("1", std::slice::from_ref(&one))));
        let (of_one, content_of_one) = content("one");
        let (of_group, content_of_group) = content_of("of-one", handles);
        api.next(get(&of_group).answers(content_of_group.clone()));
        api.next(get(&of_one).answers(content_of_one.clone()));
        if is_labelled {
            api.next(get(&of_one).answers(content_of_one.clone()));
            api.next(patch(&of_one).answers(content_of_one.clone()));
            if is_kept {
                api.next(delete(&of_one).answers(content_of_one));
            }
            api.next(delete(&format!("{IN_APP}/one")).answers(one));
        }
        api.next(get(&of_group).answers(content_of_group.clone()));
        api.next(patch(&of_group).answers(content_of_group.clone()));
        if policy == "Retain" {
            api.next(delete(&of_group).answers(content_of_group));
        }
        api.next(delete(&format!("{GROUPS_IN_APP}/{}", name_of("of-one"))).answers(group("of-one")));
        engine(&api, &folder, AfterInterruption::Resume).let_go_of_snapshots("one", "u").await;
        let patched =
            api.writes().into_iter().filter(|write| write.method == "PATCH" && write.path == of_group);
        let policies: Vec<Value> =
            patched.map(|write| write.body["spec"]["deletionPolicy"].clone()).collect();
        assert_eq!(policies, [policy], "{is_kept} {is_labelled} {handles:?}");
        api.finish();
    }
}

/// Whoever may change a VolumeSnapshot can take the annotation from it.
#[tokio::test]
async fn a_snapshot_without_its_annotation_leaves_the_storage_only_if_its_content_was_not_kept() {
    let labelled = json!({"velero.io/backup-name": "one"});
    for (labels, kept_as, policy) in [
        (labelled.clone(), "Retain", "Retain"),
        // It was given up, or its class retains all.
        (labelled, "Delete", "Delete"),
        (json!({}), "Retain", "Delete"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (of_one, mut content_of_one) = content("velero-one");
        content_of_one["metadata"]["labels"] = labels;
        content_of_one["spec"]["deletionPolicy"] = json!(kept_as);
        let api = Scripted::new().next(get(ALL).answers(list("1", &[snapshot("velero-one")])));
        api.next(get(GROUPS).answers(list("1", &[])));
        api.next(get(&of_one).answers(content_of_one.clone()));
        api.next(patch(&of_one).answers(content_of_one.clone()));
        if policy == "Retain" {
            api.next(delete(&of_one).answers(content_of_one));
        }
        api.next(delete(&format!("{IN_APP}/velero-one")).answers(snapshot("velero-one")));
        engine(&api, &folder, AfterInterruption::Resume).let_go_of_snapshots("one", "u").await;
        assert_eq!(api.writes()[0].body["spec"]["deletionPolicy"], policy);
        api.finish();
    }
}

/// Whoever may change a VolumeSnapshot can give it the label of another Backup, and end that one.
#[tokio::test]
async fn what_another_backup_has_kept_stays_whichever_label_it_was_given() {
    let of_other = json!({"velero.io/backup-name": "other"});
    for is_stored in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let api = Scripted::new();
        let record = taken_over(&api).await;
        let (of_one, mut content_of_one) = content("velero-one");
        let (of_group, mut content_of_group) = content_of("of-velero-one", &["velero-one"]);
        for content in [&mut content_of_one, &mut content_of_group] {
            content["metadata"]["labels"] = of_other.clone();
            content["spec"]["deletionPolicy"] = json!("Retain");
        }
        // An archive may name what a restore has brought. Nobody looks at its content.
        let mut brought = snapshot("brought");
        brought["spec"]["source"] = json!({"volumeSnapshotContentName": "c"});
        // No backup gives such a name, and it is not of a group.
        let mut manual = snapshot("manual");
        manual["metadata"]["ownerReferences"] = json!([]);
        // Its group is not one of the Backup's.
        let strange = snapshot("strange");
        api.next(get(ALL).answers(list("1", &[brought, manual, strange, snapshot("velero-one")])));
        api.next(get(GROUPS).answers(list("1", &[group("of-velero-one")])));
        api.next(get(IN_APP).answers(list("1", &[snapshot("velero-one")])));
        api.next(get(&of_group).answers(content_of_group));
        if !is_stored {
            api.next(get(FILES).answers(list("1", &[]))).next(get(ONE).answers(had_by("ours")));
        }
        api.next(get(&of_one).answers(content_of_one));
        let engine = engine(&api, &folder, AfterInterruption::Resume);
        if is_stored {
            engine.let_go_of_snapshots("one", "u").await;
        } else {
            engine.remove_snapshots("one", &record).await;
        }
        assert_eq!(api.writes().len(), 1, "that by which the Backup was taken over");
        api.finish();
    }
}
