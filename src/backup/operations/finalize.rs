//! Completes a backup whose operations have ended: adds the results of the operations to the
//! archive, of which an earlier run has stored all but the end, and publishes the backup.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_core::operation::{OperationCounts, OperationFault, OperationProgress};
use berth_core::selection::ResourceType;
use jiff::Timestamp;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::stored_results::EndedMovement;
use super::uploads::{DataUploadObject, of_backup};
use crate::backup::archive::{self, ArchiveItem, Batch};
use crate::backup::begun::{EarlierProgress, RunSite};
use crate::backup::engine::{Engine, LAST_PART, RunFailure, Signals, schedule};
use crate::backup::interruption::untaken;
use crate::backup::keeper::{CheckpointKeeper, CheckpointSources};
use crate::backup::ledger::ObjectLedger;
use crate::backup::log::{BackupLog, ResultsHeading};
use crate::backup::messages::ArchivePart;
use crate::backup::movement::Movement;
use crate::backup::names::resource_list;
use crate::backup::publication::StoredArchive;
use crate::backup::related::key;
use crate::backup::scene::Scene;
use crate::backup::status::{BackupWriter, WriteError};
use crate::backup::upload::{ArchiveUpload, UploadError};
use crate::storage::Opened;
use crate::write::Pauses;

/// How long the list of the DataUploads of a Backup is tried.
const PATIENCE: Duration = Duration::from_secs(60);
/// Capacity of the channel between the tasks.
const PARTS: usize = 4;
const TOLD: usize = 64;

impl Engine {
    /// The DataUploads of a Backup.
    pub(in crate::backup) async fn uploads_of(&self, uid: &str) -> Result<Vec<DataUploadObject>, RunFailure> {
        let (begun, mut pauses) = (Instant::now(), Pauses::default());
        loop {
            match of_backup(&self.client, &self.namespace, uid).await {
                Ok(found) => return Ok(found),
                Err(error) if begun.elapsed() >= PATIENCE.min(self.list_retry) => {
                    return Err(RunFailure::Operations(error.into()));
                }
                Err(_) => pauses.wait().await,
            }
        }
    }

    /// Completes the backup from its checkpoint. If that fails and may succeed later, the Backup
    /// stays in its phase.
    pub(in crate::backup) async fn finalize(
        &self,
        record: &mut BackupWriter,
        scene: Scene,
        opened: Opened,
        heard: &BackupLog,
        signals: &Signals,
    ) -> Result<(), WriteError> {
        let mut site = RunSite { is_resumable: true, ..scene.site(opened) };
        let at = scene.location.name_any();
        let turn = tokio::select! {
            biased;
            turn = self.turns.read(&at) => turn,
            ended = signals.raise() => return self.conclude(record, &site, heard, ended).await,
        };
        let entered = self.count_and_enter(turn, record, &scene, &mut site, (heard, ""), signals);
        let log = match entered.await {
            Ok(log) => log,
            Err(Err(error)) => return Err(error),
            Err(Ok(failure)) => return self.conclude(record, &site, heard, failure).await,
        };
        let (Some(log), Some(begun)) = (log, site.begun.take()) else {
            return self.conclude(record, &site, heard, RunFailure::Stale).await;
        };
        site.staged = Some(begun.staged.clone());
        let stored = self.complete(record, &mut site, begun, &log, signals).await;
        let is_stored = stored.is_ok();
        let done = self.close(record, site, &log, stored, signals).await;
        if is_stored && done.is_ok() {
            self.own.lock().remove(record.uid());
        }
        done
    }

    /// Stores the missing part of the archive, and gathers the results of the operations.
    async fn complete(
        &self,
        record: &BackupWriter,
        site: &mut RunSite,
        begun: EarlierProgress,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<StoredArchive, RunFailure> {
        let backup = record.backup().map_err(|error| RunFailure::Cluster(error.into()))?;
        let found = tokio::select! {
            found = self.uploads_of(record.uid()) => found?,
            ended = signals.raise() => return Err(ended),
        };
        site.operations.adopt(&found);
        let (limit, now) = (backup.operation_timeout(), Timestamp::now());
        let known = site.outcomes.all().claims;
        let mut movements = site.operations.all();
        // A movement that was taken over does not name its volume.
        for movement in movements.iter_mut().filter(|movement| movement.volume.is_empty()) {
            if let Some(one) = known.get(&key(Some(&movement.namespace), &movement.claim)) {
                movement.volume.clone_from(&one.volume);
            }
        }
        let ended: Vec<EndedMovement> = movements
            .into_iter()
            .map(|movement| {
                let upload = found.iter().find(|upload| upload.name == movement.upload).cloned();
                let standing = match upload.as_ref().map(|upload| upload.standing(limit, now)) {
                    // The operation has exceeded its time, and is not canceled yet.
                    Some(OperationProgress::New | OperationProgress::InProgress) => {
                        OperationProgress::Failed(OperationFault::TimedOut)
                    }
                    Some(standing) => standing,
                    None => OperationProgress::Failed(OperationFault::Gone),
                };
                EndedMovement { movement, upload, standing }
            })
            .collect();
        for one in &ended {
            if let Some(fault) = one.fault() {
                let about = ResultsHeading::Namespace(&one.movement.namespace);
                let message = format!(
                    "the data of claim {} was not moved (DataUpload {}): {fault}",
                    one.movement.claim, one.movement.upload
                );
                log.error(&about, "persistentvolumeclaims", &message);
            }
        }
        let counts = OperationCounts::of(ended.iter().map(|one| one.standing), 0);
        let mut stored = if begun.is_whole {
            self.put_together(record, site, begun, log).await?
        } else {
            log.info(&format!("operations ended: {} completed, {} failed", counts.completed, counts.failed));
            self.append(record, site, begun, &found, log, signals).await?
        };
        let datamover = backup.spec.datamover.clone().unwrap_or_default();
        let (namespace, name, uid) = (&self.namespace, site.layout.backup(), record.uid());
        stored.operations = ended.iter().map(|one| one.operation(namespace, name, uid)).collect();
        stored.volumes.infos.extend(ended.iter().filter_map(|one| {
            let mut info = one.volume_info(uid, &datamover)?;
            let claim = key(Some(&one.movement.namespace), &one.movement.claim);
            if let Some(traits) = known.get(&claim).and_then(|one| one.traits.as_ref()) {
                info["pvInfo"] = json!(traits);
            }
            Some(info)
        }));
        stored.counts = counts;
        info!(%name, completed = counts.completed, failed = counts.failed, "operations ended");
        Ok(stored)
    }

    /// Appends the DataUploads as they are now to the archive, and the end of the archive.
    async fn append(
        &self,
        record: &BackupWriter,
        site: &RunSite,
        mut begun: EarlierProgress,
        found: &[DataUploadObject],
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<StoredArchive, RunFailure> {
        let layout = &site.layout;
        let types = begun.scope.open().map_err(|error| RunFailure::Cluster(error.into()))?.types();
        let ledger = std::mem::take(&mut begun.ledger);
        let known = CheckpointSources::of_site(site, &ledger, log);
        let mut keeper = CheckpointKeeper::going_on(layout, known, &site.claim, &begun);
        keeper.try_write().await.map_err(untaken)?;
        begun.forget_before().await;
        let stored = ledger.rest();
        let ours = kind();
        let place = types.iter().position(|kind| kind.qualified() == ours.qualified());
        // A DataUpload that the backup's lists contained is in the archive twice; readers use the
        // later one.
        let is_listed =
            |name: &str| place.and_then(|place| stored.get(&place)).is_some_and(|names| names.contains(name));
        let kind = Arc::new(place.and_then(|place| types.get(place)).cloned().unwrap_or(ours));
        let (mut fresh, mut again, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for upload in archived(&site.operations.all(), found) {
            let json =
                serde_json::to_vec(&upload.object).map_err(|error| RunFailure::Operations(error.into()))?;
            let item = ArchiveItem {
                namespace: Some(self.namespace.clone()),
                name: upload.name.clone(),
                json: json.into(),
                lacks_type: upload.object.types.is_none(),
            };
            let name = key(Some(&self.namespace), &upload.name);
            if is_listed(&name) {
                again.push(item);
            } else {
                fresh.push(item);
                names.push(name);
            }
        }
        let (batches, waiting) = mpsc::channel(2);
        for (page, items) in [(ledger.beside(&kind), fresh), (ObjectLedger::nowhere(), again)] {
            // The channel has room for both.
            let _ = batches.try_send(Batch { kind: Arc::clone(&kind), page, items, packed: None });
        }
        drop(batches);
        let (parts, taken_parts) = mpsc::channel(PARTS);
        let (telling, mut told) = mpsc::channel(TOLD);
        let uploading = ArchiveUpload {
            store: Arc::clone(layout.store()),
            parts: site.parts.clone(),
            path: layout.archive(),
            part_size: self.part_size,
            begun: Some((begun.staged, begun.uploaded, begun.tail)),
            progress: Some(telling),
            staged: Arc::new(OnceLock::new()),
            claimed: Some((layout.clone(), site.claim.clone())),
        };
        let uploading = AbortOnDropHandle::new(tokio::spawn(uploading.run(taken_parts)));
        let mtime = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let pack = async {
            let (waiting, sender) = (Mutex::new(waiting), parts.clone());
            let packer = tokio::task::spawn_blocking(move || {
                archive::pack(&waiting, &sender, mtime, &AtomicU64::new(0))
            });
            packer.await.map_err(RunFailure::Task)?.map_err(RunFailure::Archive)?;
            let closing = archive::closing().map_err(RunFailure::Archive)?;
            let _ = parts.send(ArchivePart::End(closing.into())).await;
            drop(parts);
            Ok(())
        };
        let storing = async {
            let packed = tokio::select! {
                packed = pack => packed,
                ended = signals.raise() => Err(ended),
            };
            let uploaded = match &packed {
                Err(_) => timeout(LAST_PART, uploading).await.unwrap_or(Ok(Err(UploadError::GivenUp))),
                Ok(()) => uploading.await,
            };
            (packed, uploaded)
        };
        let ((packed, uploaded), ()) = tokio::join!(storing, keeper.run(&mut told));
        let bytes = match (packed, uploaded.map_err(RunFailure::Task)?) {
            (Err(failure), _) if failure.is_from_outside() => return Err(failure),
            (_, Err(UploadError::Claim(error))) => return Err(RunFailure::Claim(error)),
            (_, Err(error)) if !matches!(error, UploadError::GivenUp) => {
                return Err(RunFailure::Upload(error));
            }
            (Err(failure), _) => return Err(failure),
            (Ok(()), Err(error)) => return Err(RunFailure::Upload(error)),
            (Ok(()), Ok(bytes)) => bytes,
        };
        self.metrics.stored(schedule(record), bytes);
        let mut list = resource_list(&types, stored);
        if !names.is_empty() {
            let listed = list.entry(format!("{}/{}", kind.api_version(), kind.kind)).or_default();
            for name in names {
                listed.insert(name);
            }
        }
        let volumes = Box::pin(self.data(record, &site.outcomes, &BTreeMap::new(), log)).await?;
        let (hooks, index) = (site.tally.status(), ledger.index());
        Ok(StoredArchive { list, bytes, hooks, volumes, index, ..StoredArchive::default() })
    }
}

/// The DataUploads that the archive gets, in the order of names: one for each claim whose data the
/// backup moves, because a restore refuses a claim that has two.
fn archived<'a>(movements: &[Movement], found: &'a [DataUploadObject]) -> Vec<&'a DataUploadObject> {
    let rank =
        |upload: &DataUploadObject| (upload.phase == "Completed", !upload.is_given_up(), upload.created);
    let movements: BTreeMap<&str, &Movement> =
        movements.iter().map(|movement| (movement.upload.as_str(), movement)).collect();
    let mut by_claim: BTreeMap<String, &'a DataUploadObject> = BTreeMap::new();
    for upload in found.iter().filter(|upload| upload.object.metadata.deletion_timestamp.is_none()) {
        let Some(movement) = movements.get(upload.name.as_str()) else { continue };
        let claim = if movement.claim.is_empty() {
            upload.name.clone()
        } else {
            key(Some(&movement.namespace), &movement.claim)
        };
        match by_claim.get(&claim) {
            Some(&other) if rank(other) >= rank(upload) => {}
            _ => {
                by_claim.insert(claim, upload);
            }
        }
    }
    let mut archived: Vec<&'a DataUploadObject> = by_claim.into_values().collect();
    archived.sort_by(|one, other| one.name.cmp(&other.name));
    archived
}

/// The type of DataUploads, as the cluster serves it.
fn kind() -> ResourceType {
    ResourceType::regular("velero.io", "v2alpha1", "DataUpload", true)
}
