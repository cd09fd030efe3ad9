//! What is seen of groups, and what becomes of them.

use berth_test_scripted::{Scripted, delete, get, list, patch};
use serde_json::{Value, json};

use super::*;

const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots";
const IN_APP: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/app/volumegroupsnapshots";
const CONTENTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotcontents";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots";
const OF_SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";

fn group(name: &str, source: &Value) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": GROUP,
        "metadata": {"name": name, "namespace": "app", "uid": "g"},
        "spec": {"source": source}, "status": {"boundVolumeGroupSnapshotContentName": "another"},
    })
}

#[tokio::test(start_paused = true)]
async fn a_group_that_only_has_the_label_of_a_backup_is_left_alone() {
    let selector = || json!({"selector": {"matchLabels": {"velero.io/volume-group": "g"}}});
    let own = group_name(&"0f".repeat(32));
    let api = Scripted::new().next(get(GROUPS).answers(list(
        "7",
        &[
            group(&own, &selector()),
            group("mine", &selector()),
            group("velero-0f0f", &selector()),
            group(&format!("velero-{}", "g".repeat(OF_NAME)), &selector()),
            group(&own, &json!({"volumeGroupSnapshotContentName": "another"})),
        ],
    )));
    api.next(get(SNAPSHOTS).answers(list("7", &[])));
    api.next(get(&format!("{CONTENTS}/groupsnapcontent-g")).refuses(404));
    let found = made(&api.client("velero"), ("b", "b")).await.unwrap();
    assert_eq!(found.len(), 1);
    let group = &found[0].group;
    assert!(group.name_any() == own && group.data["spec"]["source"] == selector());
    api.finish();
}

/// A snapshot of group `g`, without any label.
fn member(name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {
            "name": name, "namespace": "app", "uid": format!("uid-{name}"),
            "ownerReferences": [{
                "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": GROUP, "name": "g", "uid": "g",
            }],
        },
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    })
}

/// Its content.
fn content(name: &str, labels: &Value, policy: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": format!("snapcontent-uid-{name}"), "uid": "c", "labels": labels},
        "spec": {
            "deletionPolicy": policy, "driver": "d", "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "app", "name": name, "uid": format!("uid-{name}")},
        },
        "status": {"snapshotHandle": format!("h-{name}")},
    })
}

/// What removes a group from the storage takes all of its snapshots.
#[tokio::test(start_paused = true)]
async fn a_group_is_whole_if_each_of_its_snapshots_is_seen_and_named_if_one_was_kept() {
    let own = group_name(&"0f".repeat(32));
    let cut = |handles: &[&str]| {
        let all: Vec<Value> = handles.iter().map(|handle| json!({"snapshotHandle": handle})).collect();
        Some(json!({"volumeGroupSnapshotHandle": "h", "volumeSnapshotInfoList": all}))
    };
    let (none, labelled) = (json!({}), json!({"velero.io/backup-name": "b"}));
    let mut annotated = member("a");
    annotated["metadata"]["annotations"] = json!({"velero.io/csi-volumesnapshot-handle": "h-a"});
    let mut of_another = content("a", &none, "Delete");
    of_another["spec"]["volumeSnapshotRef"]["uid"] = json!("uid-b");
    let begun = |name: &str| content(name, &none, "Delete");
    for (status, members, contents, is_whole, is_named) in [
        (cut(&["h-a", "h-b"]), vec![member("a"), member("b")], vec![begun("a"), begun("b")], true, false),
        // Somebody has deleted one, or taken it from the group.
        (cut(&["h-a", "h-b"]), vec![member("a")], vec![begun("a")], false, false),
        (cut(&["h-a"]), vec![], vec![], false, false),
        (cut(&["h-a"]), vec![member("a")], vec![], false, false),
        (cut(&["h-a"]), vec![member("a")], vec![of_another], false, false),
        // The storage has not cut it, or nobody has asked for it.
        (Some(none.clone()), vec![], vec![], true, false),
        (None, vec![], vec![], true, false),
        (Some(json!({"volumeGroupSnapshotHandle": "h"})), vec![], vec![], false, false),
        (cut(&["h-a"]), vec![annotated], vec![begun("a")], true, true),
        (cut(&["h-a"]), vec![member("a")], vec![content("a", &labelled, "Retain")], true, true),
        // It was kept and given up, or its class retains all.
        (cut(&["h-a"]), vec![member("a")], vec![content("a", &labelled, "Delete")], true, false),
        (cut(&["h-a"]), vec![member("a")], vec![content("a", &none, "Retain")], true, false),
    ] {
        let api = Scripted::new();
        api.next(get(GROUPS).answers(list("7", &[group(&own, &json!({"selector": {}}))])));
        let mut others = member("c");
        others["metadata"]["ownerReferences"][0]["uid"] = json!("another");
        let listed = [members.clone(), vec![others]].concat();
        api.next(get(SNAPSHOTS).answers(list("7", &listed)));
        let of_group = get(&format!("{CONTENTS}/groupsnapcontent-g"));
        api.next(match &status {
            Some(status) => of_group.answers(json!({
                "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
                "metadata": {"name": "groupsnapcontent-g", "uid": "c"},
                "spec": {"volumeGroupSnapshotRef": {"uid": "g"}, "source": {"volumeHandles": ["v"]}},
                "status": status,
            })),
            None => of_group.refuses(404),
        });
        for member in &members {
            let name = format!("snapcontent-{}", member["metadata"]["uid"].as_str().unwrap());
            let found = contents.iter().find(|content| content["metadata"]["name"] == name.as_str());
            let path = get(&format!("{OF_SNAPSHOTS}/{name}"));
            api.once(
                found.map_or_else(|| path.clone().refuses(404), |found| path.clone().answers(found.clone())),
            );
        }
        let seen = made(&api.client("velero"), ("b", "b")).await.unwrap().remove(0);
        assert_eq!(
            (seen.is_whole, seen.is_named),
            (is_whole, is_named),
            "{status:?} {members:?} {contents:?}"
        );
        assert_eq!(seen.members.len(), members.len());
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_group_that_more_snapshots_name_than_it_can_have_nothing_is_believed() {
    let all: Vec<VolumeSnapshot> =
        (0..=MOST).map(|at| serde_json::from_value(member(&at.to_string())).unwrap()).collect();
    let api = Scripted::new();
    let group = serde_json::from_value(group("velero-1", &json!({"selector": {}}))).unwrap();
    let seen = see(&api.client("velero"), "b", group, all).await.unwrap().unwrap();
    assert!(!seen.is_whole && seen.is_named);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn only_the_content_that_was_made_for_a_group_goes_with_it() {
    let path = format!("{CONTENTS}/groupsnapcontent-g");
    let of = |uid: &str, source: Value| {
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
            "metadata": {"name": "groupsnapcontent-g", "uid": "c"},
            "spec": {"volumeGroupSnapshotRef": {"uid": uid}, "source": source},
        })
    };
    for (content, is_own) in [
        (of("g", json!({"volumeHandles": ["v"]})), true),
        (of("other", json!({"volumeHandles": ["v"]})), false),
        (of("g", json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "h"}})), false),
    ] {
        let group = group("velero-1", &json!({"selector": {}}));
        let api = Scripted::new().next(get(&path).answers(content.clone()));
        if is_own {
            api.next(patch(&path).answers(content.clone()));
        }
        api.next(delete(&format!("{IN_APP}/velero-1")).answers(group.clone()));
        let group: DynamicObject = serde_json::from_value(group).unwrap();
        remove(&api.client("velero"), &group).await.unwrap();
        api.finish();
        let api = Scripted::new().next(get(&path).answers(content.clone()));
        if is_own {
            api.next(patch(&path).answers(content));
        }
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        assert_eq!(retain(&api.client("velero"), &group, &labels).await.is_ok(), is_own);
        api.finish();
    }
}
