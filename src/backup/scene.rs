//! What a dead run has left in its location.

use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;
use berth_core::run::{self, AfterInterruption, Interrupted, Recovery, recover};
use kube::api::Api;
use object_store::UpdateVersion;
use tracing::warn;

use super::begun::RunSite;
use super::checkpoint::{Checkpoint, CheckpointHead, CheckpointNotes, HEAD, NOTES};
use super::engine::{Engine, Signals};
use super::folder::OpenedFolder;
use super::log::BackupLog;
use super::status::BackupWriter;
use super::uploads::ArchivePlace;
use crate::storage::{BackupLayout, ClaimedFolder, MultipartTarget, Opened};

/// What was found there.
pub(super) struct Scene {
    pub(super) location: BackupStorageLocation,
    pub(super) layout: BackupLayout,
    pub(super) parts: MultipartTarget,
    pub(super) found: ClaimedFolder,
    /// The first line of its checkpoint. The rest is read once the run is counted, because reading
    /// it may kill the process.
    pub(super) checkpoint: Option<CheckpointHead>,
    /// The claim of the run that has taken the backup over.
    pub(super) ours: FolderClaim,
    pub(super) recovery: Recovery,
}

impl Scene {
    /// The claim of the dead run.
    pub(super) fn earlier(&self) -> Option<&FolderClaim> {
        self.found.folder.claim.as_ref().filter(|claim| claim.is_of_backup_of(&self.ours))
    }

    /// Where the next run stores, which takes the folder over.
    pub(super) fn site(&self, Opened { store, parts }: Opened) -> RunSite {
        let prefix = self.location.spec.object_storage.prefix.as_deref();
        let layout = BackupLayout::new(store, prefix, self.layout.backup());
        let claim = self.earlier().unwrap_or(&self.ours).clone();
        RunSite {
            is_resumable: self.recovery == Recovery::Resume,
            is_taken_over: true,
            has_data: true,
            ..RunSite::new(self.location.clone(), layout, parts, claim)
        }
    }

    /// Whether the folder holds files that are not provably those of this Backup.
    pub(super) fn is_of_others(&self) -> bool {
        let folder = &self.found.folder;
        self.earlier().is_none() && (folder.published || folder.others || folder.claim.is_some())
    }

    /// The log so far, behind the messages in the earlier run's checkpoint, if these are short.
    pub(super) async fn log(&self, thawed: &BackupLog) -> object_store::Result<BackupLog> {
        let start = match &self.checkpoint {
            Some(_) => self.layout.read_checkpoint_start(NOTES).await?,
            None => None,
        };
        let notes = start.and_then(|(start, _)| Checkpoint::read_notes(start).ok());
        let (CheckpointNotes { told, untold }, lines) = notes.unwrap_or_default();
        let log = thawed.behind(told, lines.to_vec());
        log.count_untold(untold);
        Ok(log)
    }

    /// Reads the checkpoint that was decided on, in a counted run. `None`: it is not there any
    /// more, or it is not believed.
    pub(super) async fn believed(
        &self,
        record: &BackupWriter,
    ) -> object_store::Result<Option<(Checkpoint, UpdateVersion)>> {
        let Some((content, version)) = self.layout.read_checkpoint().await? else { return Ok(None) };
        let checkpoint = match Checkpoint::read(content) {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                let name = self.layout.backup();
                warn!(%name, error = format!("{error:#}"), "the checkpoint of a dead run cannot be read: the backup does not continue from it");
                return Ok(None);
            }
        };
        // It may be another checkpoint by now.
        let digest = checkpoint.scope.digest();
        let says = run::CheckpointIdentity { run: &checkpoint.run, scope: &digest };
        let is_believed = self.earlier().is_some_and(|claim| says.is_believed(claim, record.scope()));
        Ok(Some((checkpoint, version)).filter(|_| is_believed))
    }

    pub(super) fn place(&self) -> ArchivePlace<'_> {
        let Self { location, layout, parts, .. } = self;
        ArchivePlace { location, layout, parts, is_taken_over: true }
    }
}

impl Engine {
    /// Opens the location, reads what is there, and decides.
    pub(super) async fn scene(
        &self,
        record: &BackupWriter,
        name: &str,
        run: &str,
        is_held: bool,
        is_begun: bool,
        signals: &Signals,
    ) -> anyhow::Result<Scene> {
        let location = record.backup()?.spec.storage_location.unwrap_or_default();
        let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
        let location = api.get(&location).await?;
        let OpenedFolder { layout, parts, found, ours } =
            self.open_folder(&location, name, record.uid(), run).await?;
        let start = match self.after_interruption {
            setting
                if found.has_checkpoint() && (setting == AfterInterruption::Resume || record.is_after()) =>
            {
                layout.read_checkpoint_start(HEAD).await?
            }
            _ => None,
        };
        // An empty checkpoint is void: no run may continue from it.
        let start = start.filter(|(start, _)| !start.is_empty());
        let checkpoint = start.and_then(|(start, _)| match CheckpointHead::read(start) {
            Ok((head, _)) => Some(head),
            Err(error) => {
                warn!(%name, error = format!("{error:#}"), "the checkpoint of a dead run cannot be read: the backup does not continue from it");
                None
            }
        });
        let is_own = record.is_after() && self.own.lock().contains(record.uid());
        let setting = if is_own { AfterInterruption::Resume } else { self.after_interruption };
        let recovery = recover(&Interrupted {
            phase: record.phase(),
            // The cancel may have come after the Backup was read.
            is_canceled: record.is_canceled() || signals.canceled.is_cancelled(),
            is_begun,
            is_held,
            is_whole: record.is_publishing() && found.is_whole(&layout),
            has_archive: found.has_archive(&layout),
            runs: record.runs(),
            ours: &ours,
            folder: &found.folder,
            scope: record.scope(),
            checkpoint: checkpoint.as_ref().map(CheckpointHead::says),
            setting,
        });
        Ok(Scene { location, layout, parts, found, checkpoint, ours, recovery })
    }
}
