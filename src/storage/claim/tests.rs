use std::sync::Arc;

use object_store::DynObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use tempfile::TempDir;

use super::*;
use crate::storage::BackupArtifact;

fn claim(cluster: &str, backup: &str, run: &str) -> FolderClaim {
    let [cluster, backup, run] = [cluster, backup, run].map(str::to_owned);
    FolderClaim { cluster, namespace: "velero".to_owned(), backup, run, before: None }
}

/// One that knows conditions, and one that knows but one of them.
fn stores() -> (TempDir, [Arc<DynObjectStore>; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    (folder, [Arc::new(InMemory::new()), Arc::new(local)])
}

async fn store_all(layout: &BackupLayout, content: &'static str) {
    layout.store().put(&layout.archive(), PutPayload::from(content)).await.unwrap();
    layout.put_artifact(BackupArtifact::Logs, content.into()).await.unwrap();
}

#[tokio::test]
async fn of_two_runs_in_one_folder_the_second_finds_out_whose_it_is_and_leaves_no_trace() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(store, Some("shared"), "nightly");
        let (first, second) = (claim("a", "1", "x"), claim("b", "2", "y"));
        assert_eq!(layout.look().await.unwrap().folder, FolderContents::default());
        layout.claim(&first, None).await.unwrap();
        // Both had seen an empty folder.
        let taken = layout.claim(&second, None).await.unwrap_err().to_string();
        for words in ["shared/backups/nightly", "velero/nightly", "UID 1", "cluster with UID a"] {
            assert!(taken.contains(words), "{words}: {taken}");
        }
        // Its own write, whose answer was lost, is no other's.
        layout.claim(&first, None).await.unwrap();
        store_all(&layout, "first").await;
        assert!(!layout.remove(&second, true).await.unwrap());
        let found = layout.look().await.unwrap();
        assert_eq!((found.folder.claim, found.files.len()), (Some(first.clone()), 3));
        assert!(layout.remove(&first, true).await.unwrap());
        assert_eq!(layout.look().await.unwrap().folder, FolderContents::default());
    }
}

#[tokio::test]
async fn an_index_of_an_earlier_run_is_removed_by_whoever_has_the_claim() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(store, None, "nightly");
        let (ours, other) = (claim("a", "1", "x"), claim("a", "1", "y"));
        layout.claim(&ours, None).await.unwrap();
        store_all(&layout, "ours").await;
        layout.remove_index(&ours).await.unwrap();
        layout.put_artifact(BackupArtifact::Index, "old".into()).await.unwrap();
        assert!(matches!(layout.remove_index(&other).await, Err(ClaimError::Taken { .. })));
        assert_eq!(layout.look().await.unwrap().files.len(), 4);
        layout.remove_index(&ours).await.unwrap();
        let found = layout.look().await.unwrap();
        assert!(!found.files.contains("nightly-index.json.gz"), "{found:?}");
        assert_eq!(found.files.len(), 3, "only that");
    }
}

#[tokio::test]
async fn a_claim_is_replaced_only_as_it_was_read() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(store, None, "nightly");
        let [dead, next, late] = ["dead", "next", "late"].map(|run| claim("a", run, run));
        layout.claim(&dead, None).await.unwrap();
        let read = layout.look().await.unwrap().version;
        layout.claim(&next, read.clone()).await.unwrap();
        assert!(matches!(layout.claim(&late, read).await, Err(ClaimError::Taken { .. })));
        layout.confirm(&next).await.unwrap();
        assert!(matches!(layout.confirm(&dead).await, Err(ClaimError::Taken { .. })));
    }
}

#[tokio::test]
async fn what_is_published_is_not_removed_and_not_published_twice() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(store, None, "nightly");
        let ours = claim("a", "1", "x");
        layout.claim(&ours, None).await.unwrap();
        store_all(&layout, "ours").await;
        assert!(layout.put_metadata(b"{}").await.unwrap());
        assert!(!layout.put_metadata(b"{\"of\": \"another\"}").await.unwrap());
        assert!(!layout.remove(&ours, true).await.unwrap());
        assert_eq!(layout.look().await.unwrap().files.len(), 4);
        assert_eq!(layout.read_metadata().await.unwrap().unwrap(), b"{}");
    }
}

#[tokio::test]
async fn what_no_run_writes_stays_and_so_does_what_lies_beside_the_folder() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(Arc::clone(&store), None, "nightly");
        let ours = claim("a", "1", "x");
        layout.claim(&ours, None).await.unwrap();
        store_all(&layout, "ours").await;
        let strange =
            [layout.folder().join("note.txt"), layout.folder().join("deeper").join("nightly.tar.gz")];
        let beside = BackupLayout::new(Arc::clone(&store), None, "nightly-2").archive();
        for path in strange.iter().chain([&beside]) {
            store.put(path, PutPayload::from("somebody's")).await.unwrap();
        }
        assert!(layout.remove(&ours, true).await.unwrap());
        let found = layout.look().await.unwrap();
        assert_eq!((found.folder.claim, found.folder.others), (None, true));
        assert_eq!(found.files.iter().collect::<Vec<_>>(), ["deeper/nightly.tar.gz", "note.txt"]);
        store.head(&beside).await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_is_somebody_elses() {
    let (_folder, stores) = stores();
    for store in stores {
        let layout = BackupLayout::new(store, None, "nightly");
        for text in ["{}".to_owned(), " ".repeat(20_000)] {
            layout.store().put(&layout.claim_path(), PutPayload::from(text)).await.unwrap();
            assert!(matches!(layout.look().await, Err(ClaimError::Unreadable(_))));
            assert!(layout.claim(&claim("a", "1", "x"), None).await.is_err());
        }
    }
}
