//! What Backups have left that were deleted while they ran and nobody led: nobody saw that they
//! went, so their folders are found here.

use std::collections::BTreeSet;

use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation, DeleteBackupRequest};
use berth_core::sync::{Doubtful, is_orphaned};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::take::CALL;
use super::{Past, Sync};
use crate::backup::removals::{is_for_the_same, request};
use crate::storage::StoredBackups;
use crate::text::chain;
use crate::write::{WriteResult, create};

/// Of how many finished backups of one location it is logged that they have lost their metadata.
const MOST_FINISHED: usize = 100;

impl Sync<'_> {
    /// Asks for the removal of what is in a folder without `velero-backup.json`, once it was found
    /// twice that its Backup is gone. The deletion looks at everything again before it removes
    /// anything. `true`: it was asked for.
    pub(super) async fn look_for_orphan(
        &self,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        folder: &str,
        past: &mut Past,
    ) -> bool {
        let lifecycle = self.lifecycle;
        let is_read_only = location.spec.access_mode == Some(AccessMode::ReadOnly);
        if is_read_only || !lifecycle.removals.are_carried_out() {
            return false;
        }
        let layout = stored.layout(folder);
        let Ok(Ok(found)) = timeout(CALL, layout.look()).await else { return false };
        let is_finished = found.is_finished(&layout);
        let Some(claim) = found.folder.claim.filter(|_| !found.folder.published) else { return false };
        let (Ok(cluster), Ok(written)) = (lifecycle.cluster_uid().await, stored.last_written(folder).await)
        else {
            return false;
        };
        if !is_orphaned(&claim, cluster, &lifecycle.namespace, written, Timestamp::now()) {
            return false;
        }
        let one = Doubtful { name: folder.to_owned(), uid: claim.backup };
        let is_gone = self.is_gone(&one).await;
        if !past.memory.orphaned(&one, is_gone) {
            return false;
        }
        if is_finished {
            if past.finished.len() < MOST_FINISHED && past.finished.insert(folder.to_owned()) {
                warn!(
                    location = location.name_any(),
                    folder,
                    "a finished backup has lost its velero-backup.json, and its Backup is gone: leaving its folder alone, because it can be repaired"
                );
            }
            return false;
        }
        self.ask_for_removal(&location.name_any(), &one).await;
        true
    }

    /// `None`: nobody can tell.
    async fn is_gone(&self, one: &Doubtful) -> Option<bool> {
        let api: Api<Backup> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        let found = timeout(CALL, api.get_metadata_opt(&one.name)).await.ok()?.ok()?;
        Some(found.is_none_or(|found| found.metadata.uid.as_ref() != Some(&one.uid)))
    }

    async fn ask_for_removal(&self, location: &str, one: &Doubtful) {
        let Doubtful { name, uid } = one;
        let api: Api<DeleteBackupRequest> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        let mut wanted = request(name, uid, location, &BTreeSet::new());
        let mut created = create(&api, &wanted).await;
        if let WriteResult::Conflict(_) = created {
            let found = timeout(CALL, api.get_opt(&wanted.name_any())).await;
            let Ok(Ok(found)) = found else {
                debug!(location, %name, %uid, "it cannot be read who has asked for the removal of what a Backup has left: the next round looks again");
                return;
            };
            // Somebody else may have taken the name. The other name is always the same, so that
            // there is no request more in each round.
            if !found.is_some_and(|found| is_for_the_same(&found, &wanted)) {
                wanted.metadata.name = Some(format!("{}-again", wanted.name_any()));
                created = create(&api, &wanted).await;
            }
        }
        match created {
            WriteResult::Written(request) => {
                let request = request.name_any();
                info!(location, %name, %uid, request, "asked for the removal of what a Backup has left that was deleted while it ran");
            }
            // It was asked for before, and could not be removed.
            WriteResult::Conflict(_) => {
                debug!(location, %name, %uid, "the removal of what a Backup has left was asked for before");
            }
            WriteResult::Gone(error) | WriteResult::Refused(error) => {
                let error = chain(&error);
                warn!(location, %name, %uid, error, "could not ask for the removal of what a Backup has left");
            }
            WriteResult::TimedOut => {
                warn!(location, %name, %uid, "asking for the removal of what a Backup has left took too long");
            }
        }
    }
}
