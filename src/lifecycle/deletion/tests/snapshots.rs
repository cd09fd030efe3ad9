//! Snapshots that go with their backup.

use std::collections::BTreeSet;
use std::io::Write as _;

use berth_test_scripted::page;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::super::carrying::StoredSnapshot;
use super::*;
use crate::storage::BackupLayout;

#[tokio::test(start_paused = true)]
async fn a_snapshot_in_its_storage_gets_a_content_that_takes_it_along() {
    let root = tempfile::tempdir().unwrap();
    let all = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
    let others = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "others"}, "spec": {"driver": "d", "source": {"snapshotHandle": "h"}},
    });
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "c"}, "driver": "e", "parameters": {
            "csi.storage.k8s.io/snapshotter-secret-name": "s",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "ceph",
        },
    });
    let classes = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses";
    // The one that counts is behind a page of others.
    let api = Scripted::new()
        .always(get(classes).answers(page("1", "more", &[])))
        .always(get(classes).page("more").answers(list("1", &[class])));
    let lifecycle = lifecycle(&api, root.path());
    let requests = DeletionRequests::default();
    let request: berth_api::velero::DeleteBackupRequest =
        serde_json::from_value(request("1", "New")).unwrap();
    let carrying = Carrying::new(&lifecycle, &requests, Arc::new(request));
    let snapshot = |handle: &str| {
        let [driver, handle, content, namespace] = ["d", handle, "c", "shop"].map(str::to_owned);
        StoredSnapshot { driver, handle, content, namespace }
    };
    // Of a Backup of the same name in another namespace.
    let mut same_name = others.clone();
    same_name["metadata"]["labels"] = json!({"velero.io/backup-name": "b"});
    same_name["spec"]["volumeSnapshotRef"] = json!({"namespace": "berth-too", "name": "s", "uid": "s"});
    for others in [others, same_name.clone()] {
        api.next(get(all).answers(list("1", &[others])));
        let refused = carrying.remove_snapshots(&[snapshot("h")].into(), true).await.unwrap_err();
        assert!(refused.to_string().contains("VolumeSnapshotContent others"), "{refused}");
        assert!(api.writes().is_empty());
    }
    // What nothing in the cluster names stays where the backup was never visible: the folder may be
    // forged.
    api.next(get(all).answers(list("1", &[]))).next(get(&format!("{all}/c")).refuses(404));
    carrying.remove_snapshots(&[snapshot("h")].into(), false).await.unwrap();
    assert!(api.writes().is_empty());

    // The backup's own, which was kept: it is taken over.
    let mut kept = same_name;
    kept["metadata"] = json!({"name": "c", "uid": "cu", "labels": {"velero.io/backup-name": "b"}});
    kept["spec"]["deletionPolicy"] = json!("Delete");
    kept["spec"]["volumeSnapshotRef"] = json!({"namespace": "shop", "name": "s"});
    let content = format!("{all}/c");
    api.next(get(all).answers(list("1", std::slice::from_ref(&kept))))
        .next(get(&content).answers(kept.clone()))
        .next(deleting(&content).answers(kept))
        .next(get(&content).refuses(404));
    carrying.remove_snapshots(&[snapshot("h")].into(), false).await.unwrap();
    let before = api.writes().len();

    let name = format!("berth-delete-{:.32}", crate::patch::digest("d/i"));
    let own = format!("{all}/{name}");
    let stands = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": name}});
    // Without a handle in its status the sidecar would leave the snapshot in the storage.
    let (mut failing, mut known, mut goes) = (stands.clone(), stands.clone(), stands.clone());
    failing["status"] = json!({"readyToUse": false, "error": {"message": "the driver is away"}});
    known["metadata"] = json!({"name": name, "uid": "iu", "resourceVersion": "3"});
    known["status"] = json!({"readyToUse": true, "snapshotHandle": "i"});
    goes["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    api.next(get(all).answers(list("1", &[])))
        .next(get(&format!("{all}/c")).refuses(404))
        .next(post(all).answers(stands.clone()))
        .next(get(&own).answers(stands.clone()))
        .next(get(&own).answers(failing.clone()))
        .next(get(&own).answers(known.clone()))
        .next(deleting(&own).refuses(409))
        .next(get(&own).answers(known))
        .next(deleting(&own).answers(goes.clone()))
        .next(get(&own).answers(goes))
        .next(get(&own).refuses(404));
    carrying.remove_snapshots(&[snapshot("i")].into(), true).await.unwrap();
    let made = &api.writes()[before].body;
    assert_eq!(made["spec"]["deletionPolicy"], "Delete");
    assert_eq!(made["spec"]["source"]["snapshotHandle"], "i");
    assert!(made["metadata"]["finalizers"][0].as_str().unwrap().ends_with("bound-protection"));
    let preconditions = json!({"uid": "iu", "resourceVersion": "3"});
    assert_eq!(api.writes()[before + 1].body["preconditions"], preconditions);

    // A deletion that was interrupted had it removed from the storage.
    let mut missing = failing.clone();
    missing["status"]["error"]["message"] =
        json!("failed to list snapshot for content c: \"can not find snapshot for snapshotID i\"");
    api.next(get(all).answers(list("1", &[])))
        .next(get(&format!("{all}/c")).refuses(404))
        .next(post(all).already_exists())
        .next(get(&own).answers(missing.clone()))
        .next(deleting(&own).answers(missing))
        .next(get(&own).refuses(404));
    carrying.remove_snapshots(&[snapshot("i")].into(), true).await.unwrap();

    // A driver that needs a Secret finds it named, also on what was made before it was.
    let secret = json!({
        "snapshot.storage.kubernetes.io/deletion-secret-name": "s",
        "snapshot.storage.kubernetes.io/deletion-secret-namespace": "ceph",
    });
    let of_other = StoredSnapshot { driver: "e".to_owned(), ..snapshot("i") };
    let other_name = format!("berth-delete-{:.32}", crate::patch::digest("e/i"));
    let other = format!("{all}/{other_name}");
    let mut made = stands.clone();
    made["metadata"] = json!({"name": other_name, "resourceVersion": "7"});
    let before = api.writes().len();
    api.next(get(all).answers(list("1", &[])))
        .next(get(&format!("{all}/c")).refuses(404))
        .next(post(all).already_exists())
        .next(get(&other).answers(made.clone()))
        .next(patching(&other).answers(made))
        .next(get(&other).refuses(404))
        .next(get(&other).refuses(404));
    carrying.remove_snapshots(&[of_other].into(), true).await.unwrap();
    for write in &api.writes()[before..before + 2] {
        assert_eq!(write.body["metadata"]["annotations"], secret, "{}", write.method);
    }

    // A driver that does not know it in time has not been asked to delete it.
    api.next(get(all).answers(list("1", &[])))
        .next(get(&format!("{all}/c")).refuses(404))
        .next(post(all).answers(stands))
        .always(get(&own).answers(failing));
    let late = carrying.remove_snapshots(&[snapshot("i")].into(), true).await.unwrap_err().to_string();
    assert!(late.contains("has not found a snapshot yet") && late.contains("the driver is away"), "{late}");
    assert!(api.writes().last().is_some_and(|write| write.method == "POST"), "{:#?}", api.writes());
    api.finish();
}

/// The snapshot controller writes to a VolumeSnapshot, too, and the API server answers both alike.
#[tokio::test(start_paused = true)]
async fn a_volume_snapshot_goes_although_a_write_meets_another_one_and_one_of_its_name_stays() {
    let root = tempfile::tempdir().unwrap();
    let all = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
    let (of_snapshot, of_content) =
        ("/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/s", format!("{all}/c"));
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": "c", "uid": "cu", "labels": {"velero.io/backup-name": "b"}},
        "spec": {
            "deletionPolicy": "Delete", "driver": "d", "source": {"snapshotHandle": "h"},
            "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "su"},
        },
    });
    let found = |uid: &str| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": "shop", "uid": uid}, "spec": {"source": {}},
        })
    };
    let gone = json!({"kind": "Status", "status": "Success"});
    for (uid, deletions) in [("su", 2), ("another", 1)] {
        let api = Scripted::new()
            .always(get("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses").answers(list("1", &[])))
            .next(get(all).answers(list("1", std::slice::from_ref(&content))))
            .next(get(&of_content).answers(content.clone()))
            .next(deleting(of_snapshot).refuses(409))
            .next(get(of_snapshot).answers(found(uid)));
        if uid == "su" {
            api.next(deleting(of_snapshot).answers(gone.clone()));
        }
        api.next(deleting(&of_content).answers(gone.clone())).next(get(&of_content).refuses(404));
        let (lifecycle, requests) = (lifecycle(&api, root.path()), DeletionRequests::default());
        let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
        let carrying = Carrying::new(&lifecycle, &requests, request);
        let [driver, handle, of, namespace] = ["d", "h", "c", "shop"].map(str::to_owned);
        let snapshot = StoredSnapshot { driver, handle, content: of, namespace };
        carrying.remove_snapshots(&[snapshot].into(), true).await.unwrap();
        let writes = api.writes();
        let meant = writes.iter().filter(|write| write.path == of_snapshot);
        let meant: Vec<&Value> = meant.map(|write| &write.body["preconditions"]).collect();
        assert_eq!(meant, vec![&json!({"uid": "su"}); deletions], "{uid}");
        api.finish();
    }
}

/// The file that names them must stay, because nothing else does.
#[tokio::test]
async fn too_many_snapshots_are_told_of_and_keep_the_folder_of_a_backup_that_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"}));
    let info = |handle: usize| {
        json!({
            "backupMethod": "CSISnapshot", "pvcNamespace": "shop",
            "csiSnapshotInfo": {"driver": "d", "snapshotHandle": handle.to_string(), "vscName": ""},
        })
    };
    let infos: Vec<Value> = (0..=10_000).map(info).collect();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(json!(infos).to_string().as_bytes()).unwrap();
    std::fs::write(root.join("bucket/backups/b/b-volumeinfo.json.gz"), packed.finish().unwrap()).unwrap();
    let api = script(root);
    let (lifecycle, requests) = (lifecycle(&api, root), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "InProgress")).unwrap());
    let mut carrying = Carrying::new(&lifecycle, &requests, request);
    let location = serde_json::from_value(location(root)).unwrap();
    let opened = lifecycle.opener.open_existing(&location).await.unwrap();
    let layout = BackupLayout::new(opened, None, "b");
    let found = carrying.look_at_volumes(Some(&layout), None, "u", &BTreeSet::new()).await.unwrap();
    assert_eq!((found.snapshots.len(), found.out_of_reach.len()), (0, 1), "{:?}", found.out_of_reach);
    assert!(found.out_of_reach[0].starts_with("10001 CSI snapshots, "), "{:?}", found.out_of_reach);
    carrying.is_backup_gone = true;
    let failed = carrying.look_at_volumes(Some(&layout), None, "u", &BTreeSet::new()).await.err().unwrap();
    assert!(failed.to_string().contains("10001 CSI snapshots"), "{failed}");
    api.finish();
}
