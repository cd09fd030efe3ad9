//! What another version of berth has left.

use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;
use object_store::memory::InMemory;

use super::*;
use crate::backup::uploads::ArchivePlace;
use crate::storage::MultipartTarget;

fn claim() -> FolderClaim {
    let [cluster, namespace, backup, run] = ["here", "velero", "u", "dead"].map(str::to_owned);
    FolderClaim { cluster, namespace, backup, run, before: None }
}

/// Many a key may not list uploads, so nobody else would find it: here the list is made elsewhere.
#[tokio::test]
async fn the_upload_that_a_checkpoint_of_another_version_names_is_aborted_by_its_id() {
    for (names_it, is_left) in [(true, false), (false, true)] {
        let (api, folder, bucket) =
            (Scripted::new(), tempfile::tempdir().unwrap(), Arc::new(InMemory::new()));
        let (layout, parts) =
            (BackupLayout::new(bucket.clone(), None, "one"), MultipartTarget::Bucket(bucket));
        layout.claim(&claim(), None).await.unwrap();
        let upload = parts.begin(&layout.archive()).await.unwrap();
        let mut line =
            json!({"version": 2, "run": "dead", "scope": "", "lengths": [0, 0, 0, 0, 0, 0], "digest": ""});
        if names_it {
            line["upload"] = json!(upload.id());
        }
        layout.put_checkpoint(format!("{line}\n").into(), None).await.unwrap();
        let location: BackupStorageLocation = serde_json::from_value(location(folder.path())).unwrap();
        let place = ArchivePlace { location: &location, layout: &layout, parts: &parts, is_taken_over: true };
        engine(&api, &folder, AfterInterruption::Resume).clear(place, &claim(), None).await;
        let (content, _) = layout.read_checkpoint().await.unwrap().unwrap();
        assert!(content.is_empty(), "nobody goes on from it");
        assert_eq!(upload.put(0, 0, "late".into()).await.is_ok(), is_left);
    }
}
