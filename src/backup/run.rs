//! One backup, from ReadyToStart to its end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, BackupSpec};
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::archive::{self, ArchiveError};
use super::asked::Asked;
use super::collect::{Collector, Counters, ResourceList};
use super::discovery::Discovery;
use super::list::{ListError, Lister};
use super::log::{About, BackupLog, gzip_json};
use super::metrics::BackupMetrics;
use super::prepare::Prepared;
use super::status::{Record, WriteError};
use super::survey::Cluster;
use super::upload::{Part, UploadError, upload};
use crate::queue::cycle::CANCELED;
use crate::storage::{Layout, OpenError, Opener, Side};
use crate::telemetry::chain;

/// How long the closing write is tried: the archive is stored already.
const CLOSING: Duration = Duration::from_secs(600);
/// How long what a failed backup left is being removed, from a store that may be what failed.
const REMOVAL: Duration = Duration::from_secs(60);
pub(super) const OPENING: Duration = Duration::from_secs(30);
const PROGRESS: Duration = Duration::from_secs(1);
/// Gzip members between the workers and the store.
const PARTS: usize = 4;

/// What every run needs.
#[derive(Clone)]
pub struct Engine {
    pub client: Client,
    pub namespace: String,
    pub discovery: Arc<Discovery>,
    pub opener: Opener,
    pub workers: usize,
    pub page_size: u32,
    pub list_retry: Duration,
    /// Requests of this process that read what is backed up, of all runs.
    pub requests: Arc<Semaphore>,
    pub default_ttl: Duration,
    pub metrics: BackupMetrics,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("failed to read what the backup needs to know of the cluster")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the API server refused to let the backup begin")]
    Refused(#[source] kube::Error),
    #[error("failed to list what is to be backed up")]
    List(#[source] ListError),
    #[error("the storage location cannot be used")]
    Open(#[source] OpenError),
    #[error("the storage location failed")]
    Store(#[source] object_store::Error),
    #[error("a backup of this name is in the storage location already")]
    Exists,
    #[error("failed to make the archive")]
    Archive(#[source] ArchiveError),
    #[error("failed to store the archive")]
    Upload(#[source] UploadError),
    #[error("a worker ended")]
    Worker(#[source] tokio::task::JoinError),
    #[error("failed to write a file")]
    File(#[source] std::io::Error),
    #[error("the controller was stopped while the backup ran")]
    Stopped,
    #[error("the Backup was deleted while it ran")]
    Deleted,
    #[error("{CANCELED}")]
    Canceled,
}

impl Failure {
    /// Is the API server gone as a whole? Nothing speaks against another attempt when it is back, then.
    fn is_of_the_api_server(&self) -> bool {
        let Self::Cluster(error) = self else { return false };
        error.downcast_ref().is_some_and(ListError::is_gone)
    }
}

/// Ways to end a run from outside.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The object is gone.
    pub deleted: CancellationToken,
    /// People want it to end.
    pub canceled: CancellationToken,
    /// The process is to end.
    pub stop: CancellationToken,
}

impl Engine {
    /// Runs the backup if it is ReadyToStart. As it stands then.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn run(&self, name: &str, uid: &str, signals: Signals) -> Result<Option<Backup>, WriteError> {
        let mut record = Record::read(self.client.clone(), &self.namespace, name, uid).await?;
        let is_ours = record.phase() == BackupPhase::ReadyToStart.as_str();
        self.try_run(name, &mut record, &signals).await?;
        let backup = record.backup().ok();
        if let Some(ended) = backup.as_ref().filter(|_| is_ours) {
            self.metrics.ended(ended, Timestamp::now());
        }
        Ok(backup)
    }

    async fn try_run(&self, name: &str, record: &mut Record, signals: &Signals) -> Result<(), WriteError> {
        if record.phase() != BackupPhase::ReadyToStart.as_str() {
            return Ok(());
        }
        let log = BackupLog::new(format!("{}/{name}", self.namespace));
        log.info("backup begins");
        let ready = BackupPhase::ReadyToStart;
        let surveyed = tokio::select! {
            surveyed = self.survey(record, &log) => surveyed,
            () = signals.deleted.cancelled() => return Err(WriteError::Gone),
            () = signals.canceled.cancelled() => Err(Failure::Canceled),
            // It has not begun: whoever leads next runs it.
            () = signals.stop.cancelled() => return Ok(()),
        };
        let (cluster, prepared) = match surveyed {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(violations)) => {
                let errors = violations.lines();
                info!(%name, ?errors, "the backup is not valid");
                let status = json!({"phase": BackupPhase::FailedValidation.as_str(), "queuePosition": null, "validationErrors": errors});
                return record.end(&status, ready, OPENING).await;
            }
            Err(failure) if failure.is_of_the_api_server() => {
                return Err(WriteError::NotBegun(chain(&failure)));
            }
            Err(failure) => return self.fail(record, ready, &failure).await,
        };
        match record.merge(&prepared.patch, ready, OPENING).await {
            Ok(()) => {}
            // Whoever refuses that lets it end, maybe: it would be tried for ever otherwise, in its slot.
            Err(WriteError::Refused(error)) => {
                return self.fail(record, ready, &Failure::Refused(error)).await;
            }
            Err(error) => return Err(error),
        }
        let running = BackupPhase::InProgress;
        self.metrics.begun(schedule(record));
        info!(%name, location = %prepared.location.name_any(), namespaces = prepared.resolved.len(), "running");
        let store = match self.open(&prepared.location).await {
            Ok(store) => store,
            Err(error) => return self.fail(record, running, &Failure::Open(error)).await,
        };
        let layout = Layout::new(store, prepared.location.spec.object_storage.prefix.as_deref(), name);
        match layout.read_metadata().await {
            Ok(None) => {}
            Ok(Some(_)) => return self.fail(record, running, &Failure::Exists).await,
            Err(error) => return self.fail(record, running, &Failure::Store(error)).await,
        }
        let work = async {
            let list = self.take(record, &layout, &cluster, &prepared, &log).await?;
            self.publish(record, &layout, &log, &list).await
        };
        let result = tokio::select! {
            result = work => result,
            () = signals.deleted.cancelled() => Err(Failure::Deleted),
            () = signals.canceled.cancelled() => Err(Failure::Canceled),
            () = signals.stop.cancelled() => Err(Failure::Stopped),
        };
        match result {
            Ok(status) => {
                info!(%name, phase = %status["phase"], items = %status["progress"]["itemsBackedUp"], "ended");
                record.end(&status, running, CLOSING).await
            }
            Err(failure) => {
                match tokio::time::timeout(REMOVAL, layout.remove()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        warn!(%name, error = chain(&error), "what the failed backup left in its location could not be removed");
                    }
                    Err(_) => {
                        warn!(%name, "what the failed backup left in its location could not be removed in time");
                    }
                }
                if matches!(failure, Failure::Deleted) {
                    return Err(WriteError::Gone);
                }
                self.fail(record, running, &failure).await
            }
        }
    }

    async fn fail(
        &self,
        record: &mut Record,
        from: BackupPhase,
        failure: &Failure,
    ) -> Result<(), WriteError> {
        let reason = chain(failure);
        warn!(name = %record.object().name_any(), %reason, "the backup failed");
        record.end(&failed(&reason, Timestamp::now()), from, CLOSING).await
    }

    pub(super) fn lister(&self) -> Lister {
        Lister::new(self.client.clone(), self.page_size, self.list_retry, Arc::clone(&self.requests))
    }

    /// Lists, packs and stores everything; returns what was taken.
    async fn take(
        &self,
        record: &mut Record,
        layout: &Layout,
        cluster: &Cluster,
        prepared: &Prepared,
        log: &BackupLog,
    ) -> Result<ResourceList, Failure> {
        let spec = &record.backup().map_err(|e| Failure::Cluster(e.into()))?.spec;
        for name in &prepared.missing {
            log.error(&About::Namespace(name), "namespaces", &format!("namespace {name} does not exist"));
        }
        let counters = Counters { total: AtomicU64::new(0), done: Arc::default(), asked: Asked::default() };
        let mtime = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let (parts, taken_parts) = mpsc::channel(PARTS);
        let uploading = tokio::spawn(upload(Arc::clone(layout.store()), layout.archive(), taken_parts));
        let (batches, waiting) = mpsc::channel(2 * self.workers);
        let waiting = Arc::new(Mutex::new(waiting));
        let pack = async {
            let opening = archive::opening(mtime).map_err(Failure::Archive)?;
            let _ = parts.send(Part::Bytes(opening.into())).await;
            let workers: Vec<_> = (0..self.workers)
                .map(|_| {
                    let (waiting, parts, done) =
                        (Arc::clone(&waiting), parts.clone(), Arc::clone(&counters.done));
                    tokio::task::spawn_blocking(move || archive::work(&waiting, &parts, mtime, &done))
                })
                .collect();
            // Only the workers hold it from here on: if they end, so does the collecting.
            drop(waiting);
            let collector = Collector {
                lister: self.lister(),
                wanted: &prepared.wanted,
                selection: &prepared.selection,
                types: &cluster.types,
                namespaces: &cluster.namespaces,
                resolved: &prepared.resolved,
                log,
                counters: &counters,
                batches,
            };
            let collected = collector.run().await;
            for worker in try_join_all(workers).await.map_err(Failure::Worker)? {
                worker.map_err(Failure::Archive)?;
            }
            let list = collected.map_err(Failure::List)?;
            let closing = archive::closing().map_err(Failure::Archive)?;
            let _ = parts.send(Part::Bytes(closing.into())).await;
            let _ = parts.send(Part::End).await;
            drop(parts);
            Ok(list)
        };
        let packed = tokio::select! {
            packed = pack => packed,
            never = tell_progress(record, &counters) => match never {},
        };
        let uploaded = uploading.await.map_err(Failure::Worker)?;
        match (packed, uploaded) {
            (Ok(list), Ok(bytes)) => {
                let items = counters.done.load(Ordering::Relaxed);
                log.info(&format!("stored {items} items in {bytes} bytes"));
                self.metrics.stored(schedule(record), bytes);
                counters.asked.tell(spec, log);
                tell_claims_without_data(spec, &list, log);
                Ok(list)
            }
            // The upload knows why, unless it ended because the packing did.
            (_, Err(error)) if !matches!(error, UploadError::GivenUp) => Err(Failure::Upload(error)),
            (Err(failure), _) => Err(failure),
            (Ok(_), Err(error)) => Err(Failure::Upload(error)),
        }
    }

    /// Writes the side files, and at last the one that makes the backup visible. Returns its status.
    async fn publish(
        &self,
        record: &Record,
        layout: &Layout,
        log: &BackupLog,
        list: &ResourceList,
    ) -> Result<Value, Failure> {
        let counts = log.counts();
        let phase = if counts.errors > 0 { BackupPhase::PartiallyFailed } else { BackupPhase::Completed };
        let items: usize = list.values().map(BTreeSet::len).sum();
        let mut status = json!({
            "phase": phase.as_str(),
            "completionTimestamp": Time(Timestamp::now()),
            "progress": {"totalItems": items, "itemsBackedUp": items},
        });
        for (key, count) in [("warnings", counts.warnings), ("errors", counts.errors)] {
            if count > 0 {
                status[key] = json!(count);
            }
        }
        log.info(&format!("backup ends: {}", phase.as_str()));
        let (lines, results) = log.files().map_err(Failure::File)?;
        let none = gzip_json(&json!([])).map_err(Failure::File)?;
        let files = [
            (Side::ResourceList, gzip_json(list).map_err(Failure::File)?),
            (Side::Results, results),
            (Side::VolumeInfo, none.clone()),
            (Side::PodVolumeBackups, none.clone()),
            (Side::VolumeSnapshots, none.clone()),
            (Side::ItemOperations, none),
            (Side::Logs, lines),
        ];
        try_join_all(files.map(|(side, gzip)| layout.put_side(side, gzip))).await.map_err(Failure::Store)?;
        let mut stored = serde_json::to_value(record.object()).map_err(|e| Failure::File(e.into()))?;
        if let (Some(stored), Some(status)) = (stored["status"].as_object_mut(), status.as_object()) {
            stored.extend(status.clone());
        }
        let metadata = serde_json::to_vec_pretty(&stored).map_err(|e| Failure::File(e.into()))?;
        layout.put_metadata(metadata).await.map_err(Failure::Store)?;
        Ok(status)
    }
}

fn schedule(record: &Record) -> Option<&str> {
    record.object().labels().get(keys::SCHEDULE).map(String::as_str)
}

/// The status of a backup that failed.
pub(super) fn failed(reason: &str, now: Timestamp) -> Value {
    json!({
        "phase": BackupPhase::Failed.as_str(),
        "queuePosition": null,
        "failureReason": reason,
        "completionTimestamp": Time(now),
    })
}

/// At most one write a second, and none when nothing has changed.
async fn tell_progress(record: &mut Record, counters: &Counters) -> std::convert::Infallible {
    let mut told = (0, 0);
    loop {
        tokio::time::sleep(PROGRESS).await;
        let done = counters.done.load(Ordering::Relaxed);
        let now = (counters.total.load(Ordering::Relaxed).max(done), done);
        if now != told {
            let progress = json!({"status": {"progress": {"totalItems": now.0, "itemsBackedUp": now.1}}});
            match record.merge(&progress, BackupPhase::InProgress, PROGRESS).await {
                Ok(()) => told = now,
                Err(error) => warn!(error = chain(&error), "failed to write the progress"),
            }
        }
    }
}

/// A claim without its data is a hole, unless the backup says that this is meant. Where it asks for the data, that is an error already.
fn tell_claims_without_data(spec: &BackupSpec, list: &ResourceList, log: &BackupLog) {
    let claims = list.get("v1/PersistentVolumeClaim").map_or(0, BTreeSet::len);
    if claims > 0 && spec.snapshot_volumes.is_none() {
        let message = format!(
            "{claims} claims are stored without the data of their volumes (snapshotVolumes: false says that this is meant)"
        );
        log.warning(&About::Velero, "persistentvolumeclaims", &message);
    }
}

#[cfg(test)]
mod tests;
