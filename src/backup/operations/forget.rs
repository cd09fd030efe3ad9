//! Cleans up after a Backup that was deleted while it ran, or while it waited for its operations:
//! cancels the operations, and removes what the backup has stored. If that does not succeed at
//! once, a DeleteBackupRequest records it, and the leader that finds the request continues.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::keys;
use berth_api::velero::delete_backup_request::{DeleteBackupRequestSpec, DeleteBackupRequestStatus};
use berth_api::velero::{BackupStorageLocation, DeleteBackupRequest, DeleteBackupRequestPhase as Phase};
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
use crate::node_agent::repositories::MissingRepository;
use crate::pace::paced;
use crate::patch::digest;
use crate::storage::BackupLayout;
use crate::text::chain;
use crate::write::{Write, WriteResult, create, delete};

/// How long the engine tries to remove what a deleted Backup has stored.
const REMOVAL: Duration = Duration::from_secs(120);
/// The part of that time for berth's own repositories.
const FORGETTING: Duration = Duration::from_secs(240);
/// How long the canceled movements may take to end before that. A new Backup of the same name waits
/// for it.
const ENDING: Duration = Duration::from_secs(120);
/// Time between two looks at the movements.
const LOOK: Duration = Duration::from_secs(2);
/// The holder of the locks, as restic shows it.
const HOST: &str = "berth-controller";

impl Engine {
    /// Cleans up after a Backup that was deleted while it ran or waited: cancels its operations,
    /// and removes what it has stored. What fails is left to a DeleteBackupRequest, if this process
    /// carries out such requests.
    pub async fn forget(&self, name: &str, uid: &str, location: &str) {
        let _begun = self.removals.begin(uid);
        cancel_all(&self.client, &self.namespace, uid, false).await;
        self.own.lock().remove(uid);
        let noted = self.data_of_deleted.lock().remove(uid).unwrap_or_default();
        let mut request: Option<DeleteBackupRequest> = None;
        match self.try_forget(name, uid, location, noted, &mut request).await {
            Ok(()) => {
                if let Some(request) = request {
                    self.withdraw(&request).await;
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if request.is_none() {
                    request = self.ask_for_removal(name, uid, location).await;
                }
                let request = request.map(|request| request.name_any());
                warn!(%name, %uid, request, error, "could not remove what a deleted Backup has stored: its snapshots in repositories have the tag backup-uid");
            }
        }
    }

    /// Creates the request by which the leader tries again. Its phase is InProgress, because the
    /// Backup is already gone. `None`: this process carries out no requests, or the request cannot
    /// be created.
    async fn ask_for_removal(&self, name: &str, uid: &str, location: &str) -> Option<DeleteBackupRequest> {
        if !self.removals.are_carried_out() {
            return None;
        }
        let of = DeleteBackupRequestSpec { backup_name: name.to_owned() };
        let mut request = DeleteBackupRequest::new(&format!("removal-{uid}"), of);
        let labels =
            [(keys::BACKUP_NAME, keys::label_value(name, digest)), (keys::BACKUP_UID, uid.to_owned())];
        request.labels_mut().extend(labels.map(|(key, value)| (key.to_owned(), value)));
        request.annotations_mut().insert(keys::DELETES_IN.to_owned(), location.to_owned());
        request.status = Some(DeleteBackupRequestStatus { phase: Some(Phase::InProgress), errors: None });
        let api: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), &self.namespace);
        match create(&api, &request).await {
            WriteResult::Written(request) => return Some(request),
            // An earlier leader has created it, unless somebody else has taken the name.
            WriteResult::Conflict(_) => {
                let found = api.get_opt(&request.name_any()).await.ok().flatten();
                if let Some(found) = found.filter(|found| asks_the_same(found, &request)) {
                    return Some(found);
                }
                request.metadata.name = Some(format!("{}-{}", request.name_any(), run_id()));
                if let WriteResult::Written(request) = create(&api, &request).await {
                    return Some(request);
                }
                warn!(%name, %uid, "another DeleteBackupRequest has the name of the one for what a deleted Backup has stored");
            }
            WriteResult::Gone(error) | WriteResult::Refused(error) => {
                warn!(%name, %uid, error = chain(&error), "could not ask for the removal of what a deleted Backup has stored");
            }
            WriteResult::TimedOut => {
                warn!(%name, %uid, "asking for the removal of what a deleted Backup has stored took too long");
            }
        }
        None
    }

    /// Removes the request, because everything is removed.
    async fn withdraw(&self, request: &DeleteBackupRequest) {
        let api: Api<DeleteBackupRequest> = Api::namespaced(self.client.clone(), &self.namespace);
        match delete(&api, Write::to(&request.name_any()).uid(request.metadata.uid.as_deref())).await {
            WriteResult::Written(()) | WriteResult::Gone(_) => {}
            // The request that stays finds nothing to remove, and ends.
            _ => warn!(request = request.name_any(), "could not remove a DeleteBackupRequest that is done"),
        }
    }

    /// `noted`: namespaces in whose repositories the run has recorded data. `request`: is set to
    /// the request that was created.
    async fn try_forget(
        &self,
        name: &str,
        uid: &str,
        location: &str,
        noted: BTreeSet<String>,
        request: &mut Option<DeleteBackupRequest>,
    ) -> anyhow::Result<()> {
        let at = location;
        let removal = async {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            let Some(location) = api.get_opt(location).await? else { return Ok(()) };
            let OpenedFolder { layout, parts, found, ours } =
                self.open_folder(&location, name, uid, &run_id()).await?;
            let is_its = found.folder.claim.as_ref().is_some_and(|claim| claim.is_of_backup_of(&ours));
            if !is_its || found.folder.published {
                return Ok(());
            }
            *request = self.ask_for_removal(name, uid, at).await;
            // This replaces the run's claim, because a former leader that got the permission to
            // publish before the deletion checks its claim before it publishes.
            layout.claim(&ours, found.version).await?;
            self.await_end(name, uid).await;
            // The data is forgotten before the checkpoint is removed, because only the checkpoint
            // says in which namespaces it is.
            let forgetting = self.forget_data(name, uid, &location, &layout, &ours, noted);
            let forgotten = timeout(FORGETTING, forgetting).await;
            forgotten.context("its data in repositories could not be forgotten in time")??;
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

    /// Waits until none of berth's data movers stores anything for the Backup any more, because a
    /// snapshot that is saved after the others were forgotten would stay.
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

    /// Forgets the snapshots of movements and of pods' files in berth's own repositories. Only
    /// those with the tags of the Backup are removed, because others may be able to write the
    /// checkpoint.
    ///
    /// # Errors
    /// When the folder belongs to somebody else by now, when that cannot be read, and when some
    /// snapshots stay. The folder must stay then, because its checkpoint says where they are.
    async fn forget_data(
        &self,
        name: &str,
        uid: &str,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        ours: &FolderClaim,
        noted: BTreeSet<String>,
    ) -> anyhow::Result<()> {
        // Checkpoints of one location are read one after another.
        let turn = self.turns.inspect(&location.name_any()).await;
        let read = turn.spend(data_namespaces(layout)).await;
        // The recorded namespaces are cleaned even if the checkpoint cannot be read.
        let (mut namespaces, mut first) = match read {
            Ok(namespaces) => (namespaces, None),
            Err(error) => (
                BTreeSet::new(),
                Some(error.context("it could not be read in which repositories it has data")),
            ),
        };
        namespaces.extend(noted);
        for namespace in namespaces {
            let opened = self.repositories.get(&location.name_any(), &namespace, false).await;
            // Checked again after opening, which may take minutes, because a backup that is
            // published meanwhile would lack its data.
            let found = layout.look().await?;
            ensure!(
                is_forsaken(ours, &found.folder),
                "its folder was taken over or the backup was published meanwhile, so the snapshots with its tag backup-uid stay"
            );
            let forgotten = async {
                let repository = match opened {
                    Ok(repository) => repository,
                    // There is no such repository: node-agents of others moved the data, or read
                    // the files.
                    Err(error) if error.is::<MissingRepository>() => return Ok(0),
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
                // Those of other repositories are removed nonetheless.
                Err(error) => {
                    self.repositories.forget(&location.name_any(), &namespace);
                    let error = error.context(format!("the repository of namespace {namespace}"));
                    warn!(%name, %uid, error = format!("{error:#}"), "could not forget the data of a deleted Backup");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Does an existing request ask for the same as `wanted`?
fn asks_the_same(found: &DeleteBackupRequest, wanted: &DeleteBackupRequest) -> bool {
    let phase = |request: &DeleteBackupRequest| request.status.as_ref().and_then(|status| status.phase);
    let uid = |request: &DeleteBackupRequest| request.labels().get(keys::BACKUP_UID).cloned();
    let place = |request: &DeleteBackupRequest| request.annotations().get(keys::DELETES_IN).cloned();
    found.spec.backup_name == wanted.spec.backup_name
        && uid(found) == uid(wanted)
        && place(found) == place(wanted)
        && phase(found) == phase(wanted)
}

/// The namespaces in whose repositories a backup has data, according to its checkpoint. None if the
/// checkpoint is certainly absent, or void, because everything that it named is forgotten then. No
/// run is counted for this read, so only the beginning is read of a checkpoint that anybody may
/// have written.
///
/// # Errors
/// When the checkpoint cannot be read.
pub async fn data_namespaces(layout: &BackupLayout) -> anyhow::Result<BTreeSet<String>> {
    match layout.read_checkpoint_start(NOTES).await? {
        Some((start, _)) if !start.is_empty() => Checkpoint::read_namespaces(start),
        _ => Ok(BTreeSet::new()),
    }
}
