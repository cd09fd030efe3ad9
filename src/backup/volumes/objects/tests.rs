use std::collections::BTreeMap;

use berth_api::snapshot::VolumeSnapshotSpec;
use berth_api::velero::mover::PodVolumeBackup;
use berth_test_scripted::{self as scripted, Scripted, get};
use kube::api::{ApiResource, DynamicObject};

use super::*;

const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
const CONTENT: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/c";

/// Another writer, as the snapshot controller, causes a conflict, too.
#[tokio::test(start_paused = true)]
async fn a_write_that_meets_a_conflict_is_repeated_unless_the_object_is_another_one_by_now() {
    let content = |uid: &str| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c", "uid": uid},
            "spec": {"driver": "d", "deletionPolicy": "Retain", "source": {}, "volumeSnapshotRef": {}},
        })
    };
    for deletes in [true, false] {
        let ask = if deletes { scripted::delete(CONTENT) } else { scripted::patch(CONTENT) };
        let refused = |code: u16| ask.clone().refuses(code);
        for (at, (script, is_done)) in [
            (vec![ask.clone().answers(content("u"))], true),
            (vec![refused(404)], true),
            (vec![refused(409), get(CONTENT).answers(content("another"))], true),
            (vec![refused(422), get(CONTENT).answers(content("another"))], true),
            (vec![refused(409), get(CONTENT).refuses(404)], true),
            (vec![refused(409), get(CONTENT).answers(content("u")), ask.clone().answers(content("u"))], true),
            (vec![refused(409), get(CONTENT).refuses(500), ask.clone().answers(content("u"))], true),
            (vec![refused(409), get(CONTENT).never_answers(), refused(404)], true),
            (vec![refused(409), get(CONTENT).refuses(403)], false),
            (vec![refused(422), get(CONTENT).answers(content("u"))], false),
            (vec![refused(403)], false),
        ]
        .into_iter()
        .enumerate()
        {
            let api = Scripted::new();
            for line in script {
                api.next(line);
            }
            assert_eq!(write(&api, deletes).await.is_ok(), is_done, "deletes: {deletes}, line {at}");
            api.finish();
        }
        // It is not repeated for ever.
        let api = Scripted::new().always(refused(409)).always(get(CONTENT).answers(content("u")));
        assert!(write(&api, deletes).await.is_err());
    }
}

/// Anybody may make objects with the label of a Backup.
#[tokio::test(start_paused = true)]
async fn a_list_keeps_what_is_wanted_of_each_page_and_ends_when_it_is_too_long() {
    let bounds = |most, bytes| ListBounds { page: 2, most, bytes };
    let named = |name: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {"name": name, "managedFields": [{"manager": "m"}]}, "spec": {"node": "x"},
        })
    };
    let script = || {
        let first = [named("a"), named("other")];
        let api = Scripted::new().next(get(FILES).limit(2).answers(scripted::page("7", "more", &first)));
        api.next(get(FILES).page("more").answers(scripted::list("7", &[named("b")])))
    };
    for (bounds, is_well) in [(bounds(2, 1000), true), (bounds(1, 1000), false), (bounds(2, 150), false)] {
        let api = script();
        let found = listed(&api, &bounds).await;
        assert_eq!(found.is_ok(), is_well, "{found:?}");
        for found in found.into_iter().flatten() {
            assert!(found.metadata.managed_fields.is_none() && found.name_any() != "other");
        }
        api.finish();
    }
    let api = Scripted::new()
        .always(get(FILES).answers(scripted::page("7", "more", &[])))
        .always(get(FILES).page("more").answers(scripted::page("7", "more", &[])));
    let error = listed(&api, &bounds(2, 1000)).await.unwrap_err();
    assert!(chain(&error).contains("1000 pages"), "{error:?}");
}

/// Whoever writes to a store chooses the UID of a claim.
#[tokio::test]
async fn what_is_no_uid_selects_nothing_because_it_would_become_part_of_a_selector() {
    let long = "u".repeat(64);
    for uid in ["", "u,app=shop", "u in (v)", long.as_str()] {
        let api = Scripted::new();
        let kind = ApiResource::erase::<PodVolumeBackup>(&());
        let files: Api<DynamicObject> = Api::namespaced_with(api.client("velero"), "velero", &kind);
        assert!(list_all(&files, uid, &OWN, |_| true).await.unwrap().is_empty(), "{uid}");
        assert!(api.asked().is_empty(), "{uid}");
        api.finish();
    }
}

async fn listed(api: &Scripted, bounds: &ListBounds) -> Result<Vec<DynamicObject>, kube::Error> {
    let kind = ApiResource::erase::<PodVolumeBackup>(&());
    let files = Api::namespaced_with(api.client("velero"), "velero", &kind);
    list_all(&files, "u", bounds, |one: &DynamicObject| one.name_any() != "other").await
}

async fn write(api: &Scripted, deletes: bool) -> Result<(), String> {
    let contents: Api<VolumeSnapshotContent> = Api::all(api.client("velero"));
    let found = ("c", Some("u"));
    if deletes { delete_own(&contents, found).await } else { patch_own(&contents, found, policy(true)).await }
}

#[test]
fn a_content_is_known_by_the_snapshot_that_it_may_not_be_bound_to_yet() {
    let mut snapshot = VolumeSnapshot::new("s", VolumeSnapshotSpec::default());
    assert_eq!(content_of(&snapshot), None);
    snapshot.metadata.uid = Some("u".to_owned());
    assert_eq!(content_of(&snapshot).as_deref(), Some("snapcontent-u"));
    let status = json!({"boundVolumeSnapshotContentName": "c"});
    snapshot.status = Some(serde_json::from_value(status).unwrap());
    assert_eq!(content_of(&snapshot).as_deref(), Some("c"));
    assert!(!is_kept(&snapshot));
    snapshot.metadata.annotations = Some(BTreeMap::from([(SNAPSHOT_HANDLE.to_owned(), "h".to_owned())]));
    assert!(is_kept(&snapshot));
}

#[test]
fn the_group_of_a_snapshot_is_of_the_api_of_groups() {
    let owner = |api_version: &str, kind: &str| OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        uid: "u".to_owned(),
        ..OwnerReference::default()
    };
    for (api_version, kind, expected) in [
        ("groupsnapshot.storage.k8s.io/v1", GROUP, Some("u")),
        ("groupsnapshot.storage.k8s.io/v1beta2", GROUP, Some("u")),
        ("example.com/v1", GROUP, None),
        ("groupsnapshot.storage.k8s.io", GROUP, None),
        ("groupsnapshot.storage.k8s.io/v1", "VolumeGroup", None),
    ] {
        assert_eq!(group_of(&[owner(api_version, kind)]), expected, "{api_version} {kind}");
    }
}
