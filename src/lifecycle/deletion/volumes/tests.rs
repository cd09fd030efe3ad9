use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use object_store::memory::InMemory;
use serde_json::json;

use super::*;

#[test]
fn each_entry_tells_who_can_remove_its_data() {
    let snapshot = json!({"driver": "d", "snapshotHandle": "h", "vscName": "c"});
    let [driver, handle, content, namespace] = ["d", "h", "c", "shop"].map(str::to_owned);
    let found = StoredSnapshot { driver, handle, content, namespace };
    let unknown = json!({"driver": "d", "snapshotHandle": "unknown", "vscName": "unknown"});
    let id = "0123456789abcdef".repeat(4);
    let own = |namespace: &str, handle: &str| {
        json!({
            "backupMethod": "CSISnapshot", "pvcNamespace": namespace, "snapshotDataMoved": true,
            "snapshotDataMovementInfo": {"dataMover": "berth", "snapshotHandle": handle},
        })
    };
    let of_own = |snapshot: Option<&str>| {
        let (snapshot, backup_uid) = (snapshot.map(str::to_owned), Some("u".to_owned()));
        VolumeInfoEntry::Own(Files { namespace: "shop".to_owned(), snapshot, backup_uid })
    };
    for (info, told) in [
        (
            json!({"backupMethod": "CSISnapshot", "pvcNamespace": "shop", "csiSnapshotInfo": snapshot}),
            VolumeInfoEntry::Snapshot(found),
        ),
        (json!({"backupMethod": "CSISnapshot", "csiSnapshotInfo": unknown}), VolumeInfoEntry::Nothing),
        (
            json!({"backupMethod": "CSISnapshot", "snapshotDataMoved": true, "csiSnapshotInfo": snapshot,
                "snapshotDataMovementInfo": {"snapshotHandle": "k"}}),
            VolumeInfoEntry::Moved,
        ),
        (own("shop", &id), of_own(Some(&id))),
        (own("shop", ""), of_own(None)),
        (own("shop", "unknown"), of_own(None)),
        (own("shop", "latest"), VolumeInfoEntry::Nothing),
        (own("../shop", &id), VolumeInfoEntry::Nothing),
        (json!({"snapshotDataMoved": true}), VolumeInfoEntry::Nothing),
        (json!({"skipped": true}), VolumeInfoEntry::Nothing),
        (json!({"backupMethod": null, "csiSnapshotInfo": null}), VolumeInfoEntry::Nothing),
    ] {
        assert_eq!(told_by(VolumeInfo::deserialize(&info).unwrap(), "u"), told, "{info}");
    }
    for strange in [json!("x"), json!({"backupMethod": 7})] {
        assert!(VolumeInfo::deserialize(&strange).is_err(), "{strange}");
    }
}

#[test]
fn data_that_berth_moved_is_berths_to_forget() {
    let id = "0123456789abcdef".repeat(4);
    let upload = |datamover: &str, namespace: &str, id: &str| {
        let mut object = DynamicObject::new("up", &ApiResource::erase::<DataUpload>(&()));
        object.data = json!({
            "spec": {"datamover": datamover, "sourceNamespace": namespace}, "status": {"snapshotID": id},
        });
        own_movement(&object, "u").map(|files| (files.namespace, files.snapshot, files.backup_uid))
    };
    let (shop, uid) = ("shop".to_owned(), Some("u".to_owned()));
    assert_eq!(upload("berth", "shop", &id), Some((shop.clone(), Some(id.clone()), uid.clone())));
    assert_eq!(upload("berth", "shop", ""), Some((shop, None, uid)), "it may have failed late");
    for (datamover, namespace, id) in
        [("", "shop", id.as_str()), ("velero", "shop", &id), ("berth", "", &id), ("berth", "shop", "latest")]
    {
        assert_eq!(upload(datamover, namespace, id), None, "{datamover} {namespace} {id}");
    }
}

#[test]
fn what_is_stored_has_an_id() {
    for (entry, is_in_repository, is_native) in [
        (json!({"spec": {}, "status": {"snapshotID": "x", "phase": "New"}}), true, false),
        (json!({"spec": {}, "status": {"providerSnapshotID": "x"}}), false, true),
        (json!({"status": {"snapshotID": "", "providerSnapshotID": null}}), false, false),
        (json!({"status": null}), false, false),
        (json!({}), false, false),
    ] {
        let stored = StoredVolumeObject::deserialize(&entry).unwrap();
        let found = (stored.is_in_repository(), stored.is_native());
        assert_eq!(found, (is_in_repository, is_native), "{entry}");
    }
}

#[test]
fn files_in_a_restic_repository_are_berths_to_forget() {
    let id = "0123456789abcdef".repeat(4);
    let stored = |uploader: &str, namespace: &str, id: &str| {
        let entry = json!({
            "spec": {"uploaderType": uploader, "pod": {"namespace": namespace}, "volume": "v"},
            "status": {"snapshotID": id},
        });
        StoredVolumeObject::deserialize(&entry).unwrap().own_files()
    };
    let files = Files { namespace: "shop".to_owned(), snapshot: Some(id.clone()), backup_uid: None };
    assert_eq!(stored("restic", "shop", &id), Some(files));
    // Of one that failed the snapshot has the tag.
    let mut failed = json!({
        "spec": {"uploaderType": "restic", "pod": {"namespace": "shop"}, "tags": {"backup-uid": "u"}},
        "status": {"phase": "Failed", "message": "m"},
    });
    let own = |entry: &Value| StoredVolumeObject::deserialize(entry).unwrap().own_files();
    let files = Files { namespace: "shop".to_owned(), snapshot: None, backup_uid: Some("u".to_owned()) };
    assert_eq!(own(&failed), Some(files));
    failed["spec"]["tags"] = json!(null);
    assert_eq!(own(&failed), None);
    for (uploader, namespace, id) in [
        ("kopia", "shop", id.as_str()),
        ("", "shop", &id),
        ("restic", "../shop", &id),
        ("restic", "", &id),
        ("restic", "shop", "latest"),
    ] {
        assert_eq!(stored(uploader, namespace, id), None, "{uploader} {namespace} {id}");
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

#[tokio::test]
async fn what_is_small_in_the_store_and_large_in_memory_is_not_parsed() {
    let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
    let path = layout.folder().join("b-x.gz");
    let bomb = format!("[{}]", vec![r#"{"":0}"#; VALUES / 2].join(","));
    for text in [bomb, " ".repeat(usize::try_from(UNPACKED).unwrap() + 1)] {
        layout.store().put(&path, gzip(&text).into()).await.unwrap();
        let refused = read::<VolumeInfo>(&layout, None, "-x.gz").await.err().unwrap().to_string();
        assert!(refused.contains("b-x.gz") && refused.contains("too large"), "{refused}");
    }
}

#[tokio::test]
async fn a_list_is_read_whatever_the_store_holds() {
    let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
    let path = layout.folder().join("b-x.gz");
    assert!(read::<VolumeInfo>(&layout, None, "-x.gz").await.unwrap().is_empty());
    for (text, entries) in [("null\n", Some(0)), ("[]\n", Some(0)), ("[{}]", Some(1)), ("{", None)] {
        layout.store().put(&path, gzip(text).into()).await.unwrap();
        let read = read::<VolumeInfo>(&layout, None, "-x.gz").await;
        assert_eq!(read.ok().map(|entries| entries.len()), entries, "{text}");
    }
    layout.store().put(&path, "no gzip".into()).await.unwrap();
    assert!(read::<VolumeInfo>(&layout, None, "-x.gz").await.is_err());
}
