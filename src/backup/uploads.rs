//! Aborts uploads that no run will complete. [`berth_core::upload`] says why this never aborts an
//! upload that another run continues.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;
use berth_core::upload::may_abort;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::RunSite;
use super::checkpoint::{CheckpointHead, HEAD};
use super::engine::Engine;
use super::noted::CheckpointUpload;
use super::upload::abort;
use crate::storage::{BackupLayout, ClaimError, MultipartTarget, Staged};

/// Time-out of everything, because the store may be what failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than writing a claim takes: the next run writes its own claim before anything says that
/// the folder is not ours any more.
const AT_REST: Duration = Duration::from_secs(600);

/// Where an archive goes.
#[derive(Clone, Copy)]
pub(super) struct ArchivePlace<'a> {
    pub location: &'a BackupStorageLocation,
    pub layout: &'a BackupLayout,
    pub parts: &'a MultipartTarget,
    /// The folder was taken over, so what an earlier run was writing as its claim is aborted, too.
    pub is_taken_over: bool,
}

impl RunSite {
    pub(super) fn place(&self) -> ArchivePlace<'_> {
        ArchivePlace {
            location: &self.location,
            layout: &self.layout,
            parts: &self.parts,
            is_taken_over: self.is_taken_over,
        }
    }
}

impl Engine {
    /// Aborts every upload of the archive that is begun and not complete, of whichever run, as long
    /// as the folder has the claim `claim`; no run can continue from its checkpoint afterwards.
    /// `own`: the upload of the run that ends. If this fails, the bucket keeps parts that cost
    /// money.
    pub(super) async fn clear(&self, place: ArchivePlace<'_>, claim: &FolderClaim, own: Option<&Staged>) {
        let name = place.layout.backup();
        let cleared = timeout(PATIENCE, self.try_clear(place, claim, own)).await;
        let Err(error) = cleared.unwrap_or_else(|_| Err(anyhow!("the store did not answer in time"))) else {
            return;
        };
        if let Some(ClaimError::Taken { .. } | ClaimError::Lost(_)) = error.downcast_ref::<ClaimError>() {
            info!(%name, "another run has the folder: leaving its uploads to it");
            if let Some(own) = own {
                self.let_go(place.layout, own).await;
            }
            return;
        }
        warn!(%name, error = format!("{error:#}"), "could not abort the uploads of a run: the bucket may keep their parts");
    }

    async fn try_clear(
        &self,
        place: ArchivePlace<'_>,
        claim: &FolderClaim,
        own: Option<&Staged>,
    ) -> anyhow::Result<()> {
        let ArchivePlace { layout, parts, .. } = place;
        let start = layout.void_checkpoint(claim, HEAD).await?;
        // Also one of an older berth, from which no run continues.
        let named = start.as_deref().and_then(CheckpointHead::upload_of);
        let is_hidden = named.is_none() && start.is_some_and(|start| CheckpointHead::read(start).is_err());
        let named = named.and_then(|upload| parts.known(&layout.archive(), &upload).ok());
        // By their IDs, because many keys may not list uploads.
        let own = own.filter(|own| named.as_ref().is_none_or(|named| named.id() != own.id()));
        for upload in named.iter().chain(own) {
            abort(upload).await;
        }
        let swept = self.sweep(place, claim).await;
        if is_hidden { swept.context("the checkpoint there does not say which it began") } else { swept }
    }

    /// Aborts the uploads that are begun and that no checkpoint names.
    ///
    /// # Errors
    /// When another run has the folder by now, or the store refuses.
    pub(super) async fn sweep(&self, place: ArchivePlace<'_>, claim: &FolderClaim) -> anyhow::Result<()> {
        let ArchivePlace { location, layout, .. } = place;
        let mut keys = vec![(layout.archive(), None), (layout.checkpoint_path(), None)];
        if place.is_taken_over {
            keys.push((layout.claim_path(), Some(AT_REST)));
        }
        for (key, at_rest) in keys {
            let found = self.opener.unfinished(location, &key).await?;
            let found = match at_rest {
                Some(least) => found.at_rest(least),
                None => found,
            };
            // An upload that a later run begins is not in that list, unless that run has claimed
            // the folder already.
            layout.confirm(claim).await?;
            found.abort().await?;
        }
        Ok(())
    }

    /// Aborts an upload that only this run knows, whichever run has the folder by now.
    pub(super) async fn let_go(&self, layout: &BackupLayout, upload: &Staged) {
        let Ok(Ok(found)) = timeout(PATIENCE, layout.read_checkpoint_start(HEAD)).await else { return };
        let noted = CheckpointUpload::of(found.map(|(start, _)| start));
        if may_abort(upload.id(), &noted.standing()) {
            abort(upload).await;
        }
    }
}
