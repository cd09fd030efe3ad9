//! Snapshots of a dead run, where the run that takes the backup up has lost it in its turn.

use std::collections::BTreeSet;

use berth_test_scripted::delete;

use super::*;

const ALL: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";
const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots";
const OF_GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotcontents";
const GROUPS_IN_APP: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/app/volumegroupsnapshots";

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

fn group(name: &str) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name_of(name), "namespace": "app", "uid": format!("uid-{name}")},
        "spec": {"source": {"selector": {"matchLabels": {"velero.io/volume-group": "g"}}}},
    })
}

/// The content of a group, whose status does not name it yet.
fn content_of(group: &str) -> (String, Value) {
    let name = format!("groupsnapcontent-uid-{group}");
    let content = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": name, "uid": format!("uid-{name}")},
        "spec": {"deletionPolicy": "Delete", "volumeGroupSnapshotRef": {"uid": format!("uid-{group}")}},
    });
    (format!("{OF_GROUPS}/{name}"), content)
}

#[tokio::test]
async fn what_a_dead_run_has_begun_is_removed_by_nobody_but_the_run_that_has_the_backup() {
    let kept = BTreeSet::from(["app/kept".to_owned()]);
    for run in ["ours", "of another"] {
        let had = |run: &str| {
            let mut had = backup("8", "InProgress");
            had["metadata"]["annotations"] = json!({keys::RUN: run});
            had
        };
        let folder = tempfile::tempdir().unwrap();
        let api = Scripted::new().next(get(ONE).answers(backup("7", "InProgress")));
        api.next(patch(ONE).answers(had("ours")));
        let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
        record.take_over("ours", OPENING).await.unwrap();
        api.next(get(ALL).answers(list("1", &[snapshot("kept"), snapshot("begun")])));
        api.next(get(GROUPS).answers(list("1", &[group("of-kept"), group("of-begun")])));
        // It may have been taken over while that was listed.
        api.next(get(ONE).answers(had(run)));
        if run == "ours" {
            let content = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-uid-begun";
            let begun = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/begun";
            api.next(get(content).refuses(404)).next(delete(begun).answers(snapshot("begun")));
            // Only with the group the storage removes them.
            let (path, content) = content_of("of-begun");
            api.next(get(&path).answers(content.clone())).next(patch(&path).answers(content));
            api.next(delete(&format!("{GROUPS_IN_APP}/{}", name_of("of-begun"))).answers(group("of-begun")));
        }
        let engine = engine(&api, &folder, AfterInterruption::Resume);
        engine.remove_snapshots_but("one", &record, &kept).await;
        api.finish();
    }
}

/// An archive may name the snapshots of a group of which nothing is seen.
#[tokio::test]
async fn a_group_goes_from_the_storage_only_if_a_snapshot_of_it_is_seen_that_no_archive_names() {
    for (is_seen, is_kept, policy) in
        [(true, true, "Retain"), (true, false, "Delete"), (false, false, "Retain")]
    {
        let folder = tempfile::tempdir().unwrap();
        let mut one = snapshot(if is_seen { "one" } else { "another" });
        if is_kept {
            one["metadata"]["annotations"] = json!({"velero.io/csi-volumesnapshot-handle": "h"});
        }
        let api = Scripted::new().next(get(ALL).answers(list("1", &[one.clone()])));
        api.next(get(GROUPS).answers(list("1", &[group("of-one")])));
        let name = one["metadata"]["name"].as_str().unwrap();
        let of_snapshot = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-uid";
        api.next(get(&format!("{of_snapshot}-{name}")).refuses(404));
        let path = format!("/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/{name}");
        api.next(delete(&path).answers(one.clone()));
        let (path, content) = content_of("of-one");
        api.next(get(&path).answers(content.clone())).next(patch(&path).answers(content.clone()));
        if policy == "Retain" {
            api.next(delete(&path).answers(content));
        }
        let path = format!("{GROUPS_IN_APP}/{}", name_of("of-one"));
        api.next(delete(&path).answers(group("of-one")));
        engine(&api, &folder, AfterInterruption::Resume).let_go_of_snapshots("one", "u").await;
        let policies: Vec<Value> = api
            .writes()
            .into_iter()
            .filter(|write| write.method == "PATCH")
            .map(|write| write.body["spec"]["deletionPolicy"].clone())
            .collect();
        assert_eq!(policies, [policy]);
        api.finish();
    }
}
