//! What is left of a Backup that was deleted while it waited for its operations: they are canceled,
//! and what it has stored is removed.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::{FolderClaim, is_forsaken};
use berth_pod_volumes::Unneeded;
use kube::ResourceExt as _;
use kube::api::Api;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::uploads::{DataUploadObject, cancel_all, of_backup};
use crate::backup::checkpoint::{Checkpoint, NOTES};
use crate::backup::engine::Engine;
use crate::backup::folder::OpenedFolder;
use crate::backup::status::run_id;
use crate::backup::uploads::ArchivePlace;
use crate::node_agent::repositories::Missing;
use crate::pace::paced;
use crate::storage::BackupLayout;

/// How long the removal of what a deleted Backup has stored is tried.
const REMOVAL: Duration = Duration::from_secs(120);
/// The same of what is in berth's own repositories.
const FORGETTING: Duration = Duration::from_secs(240);
/// How long its movements, which are canceled, may take to end before that. A Backup that is created
/// with the same name waits for it.
const ENDING: Duration = Duration::from_secs(120);
/// Between two looks at them.
const LOOK: Duration = Duration::from_secs(2);
/// Whom restic shows as the holder of a lock.
const HOST: &str = "berth-controller";

impl Engine {
    /// Does what is left of a Backup that was deleted while it waited: cancels its operations, and
    /// removes what it has stored.
    pub async fn forget(&self, name: &str, uid: &str, location: &str) {
        cancel_all(&self.client, &self.namespace, uid, false).await;
        self.own.lock().remove(uid);
        if let Err(error) = self.try_forget(name, uid, location).await {
            warn!(%name, %uid, error = format!("{error:#}"), "could not remove what a deleted Backup has stored");
        }
    }

    async fn try_forget(&self, name: &str, uid: &str, location: &str) -> anyhow::Result<()> {
        let removal = async {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            let Some(location) = api.get_opt(location).await? else { return Ok(()) };
            let OpenedFolder { layout, parts, found, ours } =
                self.open_folder(&location, name, uid, &run_id()).await?;
            let is_its = found.folder.claim.as_ref().is_some_and(|claim| claim.is_of_backup_of(&ours));
            if !is_its || found.folder.published {
                return Ok(());
            }
            // A former leader that got the permission to publish before the deletion looks for its
            // own claim before it does.
            layout.claim(&ours, found.version).await?;
            self.await_end(name, uid).await;
            // Before the checkpoint goes, which alone tells of which namespaces the data is.
            let forgetting = self.forget_data(name, uid, &location, &layout, &ours);
            match timeout(FORGETTING, forgetting).await {
                Ok(forgotten) => forgotten?,
                Err(_) => {
                    warn!(%name, %uid, "could not forget in time what a deleted Backup has in repositories: its snapshots have the tag backup-uid");
                }
            }
            let place =
                ArchivePlace { location: &location, layout: &layout, parts: &parts, is_taken_over: true };
            self.clear(place, &ours, None).await;
            layout.remove(&ours, true).await?;
            Ok(())
        };
        let patience = REMOVAL.saturating_add(ENDING).saturating_add(FORGETTING);
        let removed = timeout(patience, removal).await;
        removed.unwrap_or_else(|_| anyhow::bail!("the store did not answer in time"))
    }

    /// Waits until no data mover of berth stores anything for it any more: a snapshot that is saved
    /// after the others were forgotten would stay.
    async fn await_end(&self, name: &str, uid: &str) {
        let ended = async {
            loop {
                match of_backup(&self.client, &self.namespace, uid).await {
                    Ok(found) if !found.iter().any(DataUploadObject::may_store) => return,
                    Ok(_) => {}
                    Err(error) => {
                        warn!(%name, error = format!("{error:#}"), "the movements of a deleted Backup cannot be read");
                    }
                }
                sleep(paced(LOOK)).await;
            }
        };
        if timeout(ENDING, ended).await.is_err() {
            warn!(%name, %uid, "movements of a deleted Backup have not ended in time: what they still store has the tag backup-uid");
        }
    }

    /// Forgets the snapshots of movements and of files of pods, in berth's own repositories. Only
    /// those with the tags of the Backup, because others may be able to write to the store.
    ///
    /// # Errors
    /// When the folder is somebody else's by now, or nobody can tell.
    async fn forget_data(
        &self,
        name: &str,
        uid: &str,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        ours: &FolderClaim,
    ) -> anyhow::Result<()> {
        // No run is counted for it, so of a checkpoint that anybody may have written only the
        // beginning is read, and of one Backup of a location at a time.
        let namespaces = async {
            let turn = self.turns.inspect(&location.name_any()).await;
            match turn.spend(layout.read_checkpoint_start(NOTES)).await? {
                Some((start, _)) => Checkpoint::read_namespaces(start),
                None => Ok(BTreeSet::new()),
            }
        };
        let namespaces = match namespaces.await {
            Ok(namespaces) => namespaces,
            Err(error) => {
                warn!(%name, error = format!("{error:#}"), "could not read in which repositories a deleted Backup has data");
                return Ok(());
            }
        };
        for namespace in namespaces {
            let opened = self.repositories.get(&location.name_any(), &namespace, false).await;
            // Opening may take minutes. A visible backup would be one without its data.
            let found = layout.look().await?;
            ensure!(
                is_forsaken(ours, &found.folder),
                "its folder was taken over or the backup was published meanwhile, so the snapshots with its tag backup-uid stay"
            );
            let forgotten = async {
                let repository = match opened {
                    Ok(repository) => repository,
                    // Others have moved its data, or read its files.
                    Err(error) if error.is::<Missing>() => return Ok(0),
                    Err(error) => return Err(error),
                };
                let unneeded = Unneeded {
                    tag: format!("backup={name}"),
                    ids: Vec::new(),
                    tags: vec![format!("backup-uid={uid}")],
                };
                anyhow::Ok(repository.forget(unneeded, HOST).await?)
            };
            match forgotten.await {
                Ok(0) => {}
                Ok(count) => info!(%name, namespace, count, "forgot the data of a deleted Backup"),
                Err(error) => {
                    let error = format!("{error:#}");
                    warn!(%name, %uid, namespace, error, "could not forget the data of a deleted Backup: its snapshots have the tag backup-uid");
                }
            }
        }
        Ok(())
    }
}
