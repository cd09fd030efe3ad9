//! The folder that a Backup has in its location.

use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;

use super::engine::Engine;
use super::list::ListError;
use crate::storage::{BackupLayout, ClaimedFolder, MultipartTarget, Opened};

/// As it was found a moment ago.
pub(super) struct OpenedFolder {
    pub(super) layout: BackupLayout,
    pub(super) parts: MultipartTarget,
    pub(super) found: ClaimedFolder,
    /// By which the run that opened it would have it. It is not written yet.
    pub(super) ours: FolderClaim,
}

impl Engine {
    /// Opens the folder of the Backup with this name and UID for a run.
    pub(super) async fn open_folder(
        &self,
        location: &BackupStorageLocation,
        name: &str,
        uid: &str,
        run: &str,
    ) -> anyhow::Result<OpenedFolder> {
        let Opened { store, parts } = self.opener.open_with_parts(location).await?;
        let layout = BackupLayout::new(store, location.spec.object_storage.prefix.as_deref(), name);
        let found = layout.look().await?;
        let ours = self.claim_of(uid, run).await?;
        Ok(OpenedFolder { layout, parts, found, ours })
    }

    /// The claim of a run of the Backup with this UID.
    pub(super) async fn claim_of(&self, uid: &str, run: &str) -> Result<FolderClaim, ListError> {
        Ok(FolderClaim {
            cluster: self.cluster_uid().await?.to_owned(),
            namespace: self.namespace.clone(),
            backup: uid.to_owned(),
            run: run.to_owned(),
            before: None,
        })
    }
}
