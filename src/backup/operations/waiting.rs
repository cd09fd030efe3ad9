//! A Backup that waits for its operations: what a look at it finds, and what is written then.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase, BackupStorageLocation};
use berth_core::claim::FolderClaim;
use berth_core::operation::{
    BackupOperations, OperationCounts, OperationFault, OperationProgress, OperationStep, step,
};
use berth_core::stage::Stage;
use berth_pod_volumes::Unneeded;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::Api;
use tokio::time::timeout;
use tracing::{info, warn};

use super::uploads::{DataUploadObject, cancel, of_backup};
use crate::backup::checkpoint::{Checkpoint, NOTES};
use crate::backup::engine::{Engine, Signals};
use crate::backup::publication::counted;
use crate::backup::status::{BackupWriter, WriteError};
use crate::backup::uploads::ArchivePlace;
use crate::node_agent::repositories::Missing;
use crate::storage::{BackupLayout, Opened};

/// How long one write is tried.
const WRITE: Duration = Duration::from_secs(30);
/// How long the removal of what a deleted Backup has stored is tried.
const REMOVAL: Duration = Duration::from_secs(120);
/// The same of what its movements have stored in berth's own repositories.
const FORGETTING: Duration = Duration::from_secs(240);
/// Whom restic shows as the holder of a lock.
const HOST: &str = "berth-controller";

/// What a look has led to.
#[derive(Debug)]
pub enum Attended {
    /// There is nothing to do now.
    Nothing,
    /// It could not be done now, and is tried again.
    Later,
    Written(Box<Backup>),
}

impl Engine {
    /// Looks at a Backup whose objects are stored: writes what has become of its operations and,
    /// when all of them have ended, completes it.
    ///
    /// # Errors
    /// When the Backup could not be written, or its operations could not be read.
    pub async fn attend(&self, name: &str, uid: &str, signals: Signals) -> Result<Attended, WriteError> {
        let mut record = BackupWriter::read(self.client.clone(), &self.namespace, name, uid).await?;
        let Some(stage) = Stage::of(record.phase()).filter(|_| record.is_begun()) else {
            return Ok(Attended::Nothing);
        };
        if stage == Stage::Finalizing {
            return self.take_up(name, uid, signals).await;
        }
        let backup = record.backup().map_err(|error| WriteError::Waits(error.to_string()))?;
        let found = of_backup(&self.client, &self.namespace, uid).await;
        let found = found.map_err(|error| WriteError::Waits(format!("{error:#}")))?;
        let (limit, now) = (backup.operation_timeout(), Timestamp::now());
        let late: Vec<DataUploadObject> = found
            .iter()
            .filter(|upload| {
                upload.standing(limit, now) == OperationProgress::Failed(OperationFault::TimedOut)
            })
            .cloned()
            .collect();
        cancel(&self.client, &self.namespace, &late, false).await;
        let recorded = backup.operations();
        let counts =
            OperationCounts::of(found.iter().map(|one| one.standing(limit, now)), recorded.attempted);
        let next = step(&BackupOperations {
            phase: record.phase(),
            recorded,
            found: counts,
            is_canceled: record.is_canceled() || signals.canceled.is_cancelled(),
            is_own: self.own.lock().contains(uid),
            setting: self.after_interruption,
        });
        let to = match next {
            OperationStep::Nothing => return Ok(Attended::Nothing),
            OperationStep::End => {
                cancel(&self.client, &self.namespace, &found, false).await;
                return self.take_up(name, uid, signals).await;
            }
            OperationStep::Record(to) | OperationStep::Finalize(to) => phase(to),
        };
        record.move_on(to, &counted(&counts), WRITE).await?;
        let OperationCounts { attempted, completed, failed } = counts;
        info!(%name, phase = to.as_str(), attempted, completed, failed, "operations of a backup");
        let written = record.backup().map_err(|error| WriteError::Waits(error.to_string()))?;
        Ok(Attended::Written(Box::new(written)))
    }

    async fn take_up(&self, name: &str, uid: &str, signals: Signals) -> Result<Attended, WriteError> {
        let taken_up = self.recover(name, uid, signals, |_| {}).await?;
        Ok(match taken_up {
            Some(backup) if Stage::of(backup.phase().as_str()).is_none() => {
                Attended::Written(Box::new(backup))
            }
            _ => Attended::Later,
        })
    }

    pub(super) async fn try_forget(&self, name: &str, uid: &str, location: &str) -> anyhow::Result<()> {
        let removal = async {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            let Some(location) = api.get_opt(location).await? else { return Ok(()) };
            let Opened { store, parts } = self.opener.open_with_parts(&location).await?;
            let layout = BackupLayout::new(store, location.spec.object_storage.prefix.as_deref(), name);
            let found = layout.look().await?;
            let ours = FolderClaim {
                cluster: self.cluster_uid().await?.to_owned(),
                namespace: self.namespace.clone(),
                backup: uid.to_owned(),
                ..FolderClaim::default()
            };
            let claim = found.folder.claim.filter(|claim| claim.is_of_backup_of(&ours));
            let Some(claim) = claim.filter(|_| !found.folder.published) else { return Ok(()) };
            // Before the checkpoint goes, which alone tells of which namespaces the data is.
            if timeout(FORGETTING, self.forget_data(name, uid, &location, &layout)).await.is_err() {
                warn!(%name, %uid, "could not forget in time what the movements of a deleted Backup have stored: its snapshots have the tag backup-uid");
            }
            let place =
                ArchivePlace { location: &location, layout: &layout, parts: &parts, is_taken_over: true };
            self.clear(place, &claim, None).await;
            layout.remove(&claim, true).await?;
            Ok(())
        };
        let removed = timeout(REMOVAL.saturating_add(FORGETTING), removal).await;
        removed.unwrap_or_else(|_| anyhow::bail!("the store did not answer in time"))
    }

    /// Forgets the snapshots of movements that have ended, in berth's own repositories. Only those
    /// with the tags of the Backup, because others may be able to write to the store.
    async fn forget_data(
        &self,
        name: &str,
        uid: &str,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
    ) {
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
                warn!(%name, error = format!("{error:#}"), "could not read which movements a deleted Backup had");
                return;
            }
        };
        for namespace in namespaces {
            let forgotten = async {
                let repository = match self.repositories.get(&location.name_any(), &namespace, false).await {
                    Ok(repository) => repository,
                    // Another data mover has moved its data.
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
    }
}

fn phase(text: &str) -> BackupPhase {
    [
        BackupPhase::WaitingForPluginOperations,
        BackupPhase::WaitingForPluginOperationsPartiallyFailed,
        BackupPhase::Finalizing,
    ]
    .into_iter()
    .find(|phase| phase.as_str() == text)
    .unwrap_or(BackupPhase::FinalizingPartiallyFailed)
}
