//! Cleans up after a Backup that was deleted while it ran, or while it waited for its operations:
//! cancels the operations, and removes what the backup has stored. If that does not succeed at
//! once, a DeleteBackupRequest records it, and the leader that finds the request continues.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::{FolderClaim, FolderContents, is_forsaken, is_of_another};
use berth_pod_volumes::Unneeded;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::uploads::{cancel_all, of_backup};
use crate::backup::checkpoint::{Checkpoint, NOTES};
use crate::backup::engine::Engine;
use crate::backup::folder::OpenedFolder;
use crate::backup::publication::PublicationState;
use crate::backup::removals::Removals;
use crate::backup::status::run_id;
use crate::backup::uploads::ArchivePlace;
use crate::backup::volumes::cancel::end_files;
use crate::node_agent::repositories::MissingRepository;
use crate::pace::paced;
use crate::storage::BackupLayout;

/// How long the engine tries to remove what a deleted Backup has stored.
const REMOVAL: Duration = Duration::from_secs(120);
/// How long it may take, in addition to that, to forget what is in berth's own repositories.
const FORGETTING: Duration = Duration::from_secs(240);
/// How long its movements, which are canceled, and the reads of its files may take to end before
/// that. A Backup that is created with the same name waits for it.
const ENDING: Duration = Duration::from_secs(120);
/// Time between two looks at the movements.
const LOOK: Duration = Duration::from_secs(2);
/// Time-out of one look at the PodVolumeBackups of a Backup.
const STORING: Duration = Duration::from_secs(60);
/// Whom restic shows as the holder of a lock.
const HOST: &str = "berth-controller";

impl Engine {
    /// Does what is left of a Backup that was deleted while it ran or waited: cancels its
    /// operations, and removes what it has stored. What fails is left to a DeleteBackupRequest, if
    /// this process carries out such requests. `false`: it is to be tried again, and nothing but
    /// this process knows that.
    pub async fn forget(&self, name: &str, uid: &str, location: &str) -> bool {
        let _begun = self.removals.begin(uid);
        let noted = self.data_of_deleted.lock().get(uid).cloned().unwrap_or_default();
        // Before anything is looked at, because this process may end at any time.
        let mut request = self.ask_for_removal(name, uid, location, &noted).await;
        cancel_all(&self.client, &self.namespace, (name, uid), false).await;
        self.own.lock().remove(uid);
        let removed = self.try_forget(name, uid, location, noted.clone()).await;
        if removed.is_err() && request.is_none() {
            request = self.ask_for_removal(name, uid, location, &noted).await;
        }
        let is_settled = removed.is_ok() || request.is_some();
        if is_settled {
            self.data_of_deleted.lock().remove(uid);
        }
        match (removed, request) {
            (Ok(()), Some(request)) => self.withdraw(&request).await,
            (Ok(()), None) => {}
            (Err(error), request) => {
                let (error, request) = (format!("{error:#}"), request.map(|request| request.name_any()));
                warn!(%name, %uid, request, error, "could not remove what a deleted Backup has stored: its snapshots in repositories have the tag backup-uid");
            }
        }
        is_settled
    }

    /// `noted`: namespaces in whose repositories its run has noted data.
    async fn try_forget(
        &self,
        name: &str,
        uid: &str,
        location: &str,
        noted: BTreeSet<String>,
    ) -> anyhow::Result<()> {
        let removal = async {
            let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
            let Some(location) = api.get_opt(location).await? else { return Ok(()) };
            let OpenedFolder { layout, parts, found, ours } =
                self.open_folder(&location, name, uid, &run_id()).await?;
            if is_of_another(&ours, &found.folder) {
                return self.forget_noted(&location, &layout, &ours, noted).await;
            }
            let is_its = found.folder.claim.as_ref().is_some_and(|claim| claim.is_of_backup_of(&ours));
            if !is_its || found.folder.published {
                return Ok(());
            }
            // A former leader that got the permission to publish before the deletion looks for its
            // own claim before it does.
            layout.claim(&ours, found.version).await?;
            self.await_end(name, uid).await;
            // Before the checkpoint goes, which alone tells of which namespaces the data is.
            let forgetting = self.forget_data(&location, &layout, &ours, noted);
            let forgotten = timeout(FORGETTING, forgetting).await;
            forgotten.context("its data in repositories could not be forgotten in time")??;
            let place =
                ArchivePlace { location: &location, layout: &layout, parts: &parts, is_taken_over: true };
            self.clear(place, &ours, None).await;
            ensure!(
                layout.remove(&ours, true).await?,
                "its folder was claimed by another run, or the backup was published meanwhile, so its files stay"
            );
            Ok(())
        };
        let patience = REMOVAL.saturating_add(ENDING).saturating_add(FORGETTING);
        let removed = timeout(patience, removal).await;
        removed.unwrap_or_else(|_| anyhow::bail!("the store did not answer in time"))
    }

    /// Waits until nothing of berth's own stores anything for it any more: a snapshot that is saved
    /// after the others were forgotten would stay.
    async fn await_end(&self, name: &str, uid: &str) {
        let ended = async {
            loop {
                match may_store(&self.client, &self.namespace, name, uid).await {
                    Ok(false) => return,
                    Ok(true) => {}
                    Err(error) => {
                        warn!(%name, error = format!("{error:#}"), "it cannot be read what still stores data for a deleted Backup");
                    }
                }
                sleep(paced(LOOK)).await;
            }
        };
        if timeout(ENDING, ended).await.is_err() {
            warn!(%name, %uid, "movements or PodVolumeBackups of a deleted Backup have not ended in time: what they still store has the tag backup-uid");
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
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        ours: &FolderClaim,
        noted: BTreeSet<String>,
    ) -> anyhow::Result<()> {
        // Checkpoints of one location are read one after another.
        let turn = self.turns.inspect(&location.name_any()).await;
        let read = turn.spend(data_namespaces(layout, &self.removals)).await;
        // What is noted is forgotten even if it cannot be read what else there is.
        let (mut namespaces, unread) = match read {
            Ok(namespaces) => (namespaces, None),
            Err(error) => (
                BTreeSet::new(),
                Some(error.context("it could not be read in which repositories it has data")),
            ),
        };
        namespaces.extend(noted);
        self.forget_in(location, layout, ours, namespaces, is_forsaken).await?;
        unread.map_or(Ok(()), Err)
    }

    /// Forgets the data that its run has noted where another Backup has the folder by now, with a
    /// checkpoint that tells nothing of this one. Its own runs publish nothing any more, because
    /// they look for their claim first.
    async fn forget_noted(
        &self,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        ours: &FolderClaim,
        noted: BTreeSet<String>,
    ) -> anyhow::Result<()> {
        if noted.is_empty() || matches!(self.shown(layout, &ours.backup).await?, PublicationState::Ours(_)) {
            return Ok(());
        }
        self.await_end(layout.backup(), &ours.backup).await;
        let forgetting = self.forget_in(location, layout, ours, noted, is_of_another);
        timeout(FORGETTING, forgetting)
            .await
            .context("its data in repositories could not be forgotten in time")?
    }

    /// Forgets its snapshots in the repositories of these namespaces, as long as the folder is as
    /// it has to be.
    async fn forget_in(
        &self,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        ours: &FolderClaim,
        namespaces: BTreeSet<String>,
        may_go: fn(&FolderClaim, &FolderContents) -> bool,
    ) -> anyhow::Result<()> {
        let (name, uid, location) = (layout.backup(), ours.backup.as_str(), location.name_any());
        let mut first = None;
        for namespace in namespaces {
            let opened = self.repositories.get(&location, &namespace, false).await;
            // Opening may take minutes. A visible backup would be one without its data.
            let found = layout.look().await?;
            ensure!(
                may_go(ours, &found.folder),
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
                    self.repositories.forget(&location, &namespace);
                    let error = error.context(format!("the repository of namespace {namespace}"));
                    warn!(%name, %uid, error = format!("{error:#}"), "could not forget the data of a deleted Backup");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(()), Err)
    }
}

/// Whether anything of berth's own may still store data for a Backup that is gone: one of its data
/// movers, or an agent that reads files, which is told to end. What it is must name the Backup as
/// well as its UID, which may be from a forged claim.
///
/// # Errors
/// When that cannot be read.
pub async fn may_store(client: &Client, namespace: &str, name: &str, uid: &str) -> anyhow::Result<bool> {
    let uploads = of_backup(client, namespace, uid).await?;
    let moves = uploads.iter().any(|upload| upload.is_of_backup(name) && upload.may_store());
    let reads = timeout(STORING, end_files(client, namespace, name, uid)).await;
    let reads = reads.context("the API server did not answer in time")?.map_err(anyhow::Error::msg)?;
    Ok(moves || reads)
}

/// In which namespaces a backup has data in berth's own repositories, as its checkpoint says. None
/// where it is positively absent, or void: then nothing that it named is left to forget. No run is
/// counted for it, so of a checkpoint that anybody may have written only the beginning is read, and
/// of what that names only those count that have a repository: to look for each of many thousands
/// would take an hour. `removals`: all that this process carries out.
///
/// # Errors
/// When it cannot be read, or the store does not say which repositories there are.
pub async fn data_namespaces(layout: &BackupLayout, removals: &Removals) -> anyhow::Result<BTreeSet<String>> {
    let named = named_namespaces(layout).await?;
    if named.is_empty() {
        return Ok(named);
    }
    let _room = removals.room_for_list().await;
    Ok(layout.with_repository(named).await?)
}

/// The namespaces that a checkpoint names, also those that have no repository: one may be made a
/// moment later.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn named_namespaces(layout: &BackupLayout) -> anyhow::Result<BTreeSet<String>> {
    match layout.read_checkpoint_start(NOTES).await? {
        Some((start, _)) if !start.is_empty() => Checkpoint::read_namespaces(start),
        _ => Ok(BTreeSet::new()),
    }
}
