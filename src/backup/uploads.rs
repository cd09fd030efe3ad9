//! Uploads that no run completes any more. Why nobody aborts what another run goes on with is said in [`berth_core::upload`].

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::Claim;
use berth_core::upload::may_abort;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::Site;
use super::checkpoint::{HEAD, Head};
use super::engine::Engine;
use super::noted::Noted;
use super::upload::abort;
use crate::storage::{ClaimError, Layout, Parts, Staged};

/// For all of it: the store may be what failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any claim is being written: the next run writes its own before anything says that the folder is not ours any more.
const AT_REST: Duration = Duration::from_secs(600);

/// Where an archive goes.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub location: &'a BackupStorageLocation,
    pub layout: &'a Layout,
    pub parts: &'a Parts,
    /// By whoever takes it over: what an earlier run was once writing as its claim goes, too.
    pub is_taken_over: bool,
}

impl Site {
    pub(super) fn place(&self) -> Place<'_> {
        Place {
            location: &self.location,
            layout: &self.layout,
            parts: &self.parts,
            is_taken_over: self.is_taken_over,
        }
    }
}

impl Engine {
    /// Aborts everything that was begun of the archive and is not complete, by whichever run, as long as the folder is claimed by `claim`;
    /// nobody goes on from its checkpoint any more. `own`: what the run that ends was at. It is paid for where that fails.
    pub(super) async fn clear(&self, place: Place<'_>, claim: &Claim, own: Option<&Staged>) {
        let name = place.layout.backup();
        let cleared = timeout(PATIENCE, self.try_clear(place, claim, own)).await;
        let Err(error) = cleared.unwrap_or_else(|_| Err(anyhow!("the store did not answer in time"))) else {
            return;
        };
        if let Some(ClaimError::Taken { .. } | ClaimError::Lost(_)) = error.downcast_ref::<ClaimError>() {
            info!(%name, "another run has the folder: what it may go on with is left to it");
            if let Some(own) = own {
                self.let_go(place.layout, own).await;
            }
            return;
        }
        warn!(%name, error = format!("{error:#}"), "uploads that a run has begun could not be aborted: the bucket may keep their parts");
    }

    async fn try_clear(&self, place: Place<'_>, claim: &Claim, own: Option<&Staged>) -> anyhow::Result<()> {
        let Place { layout, parts, .. } = place;
        let start = layout.void_checkpoint(claim, HEAD).await?;
        // Be it one of an older berth, from which nobody goes on.
        let named = start.as_deref().and_then(Head::upload_of);
        let is_hidden = named.is_none() && start.is_some_and(|start| Head::read(start).is_err());
        let named = named.and_then(|upload| parts.known(&layout.archive(), &upload).ok());
        // By their ids, because many a key may not list uploads.
        let own = own.filter(|own| named.as_ref().is_none_or(|named| named.id() != own.id()));
        for upload in named.iter().chain(own) {
            abort(upload).await;
        }
        let swept = self.sweep(place, claim).await;
        if is_hidden { swept.context("the checkpoint there does not say which it began") } else { swept }
    }

    /// Aborts what is begun and named by nobody.
    ///
    /// # Errors
    /// When the folder is somebody else's by now, or the store does not let us look, or does not do it.
    pub(super) async fn sweep(&self, place: Place<'_>, claim: &Claim) -> anyhow::Result<()> {
        let Place { location, layout, .. } = place;
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
            // What a later run begins is not in that list, if none has claimed the folder yet.
            layout.confirm(claim).await?;
            found.abort().await?;
        }
        Ok(())
    }

    /// Aborts an upload that this run alone knows, whoever has the folder by now.
    pub(super) async fn let_go(&self, layout: &Layout, upload: &Staged) {
        let Ok(Ok(found)) = timeout(PATIENCE, layout.read_checkpoint_start(HEAD)).await else { return };
        let noted = Noted::of(found.map(|(start, _)| start));
        if may_abort(upload.id(), &noted.standing()) {
            abort(upload).await;
        }
    }
}
