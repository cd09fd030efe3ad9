//! One backup, from ReadyToStart to its end.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase, BackupSpec, BackupStorageLocation};
use berth_core::run::{AfterInterruption, Next};
use futures::future::{maybe_done, try_join_all};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::archive;
use super::asked::Asked;
use super::begun::Site;
use super::blocks::Blocks;
use super::checkpoint::{Packed, Scope};
use super::collect::{Collector, Counters};
use super::conduct::untaken;
use super::engine::{CLOSING, Engine, Failure, LAST_PART, OPENING, Signals, schedule};
use super::frozen::Frozen;
use super::hold::Holder;
use super::hooks::{Runner, Tally};
use super::keeper::{Keeper, Known};
use super::ledger::Ledger;
use super::log::{About, BackupLog};
use super::messages::Part;
use super::names::{Names, ResourceList};
use super::prepare::Prepared;
use super::publication::Stored;
use super::revision::Revision;
use super::status::{Record, WriteError, run_id};
use super::survey::Cluster;
use super::upload::{Upload, UploadError};
use crate::client::list;
use crate::patch::{kept, known_location, merge_into};
use crate::storage::{Layout, Opened};
use crate::text::chain;

const PROGRESS: Duration = Duration::from_secs(1);
/// How long one write is tried for which hooks wait.
const RECORD: Duration = Duration::from_secs(5);
/// Gzip members between the workers and the store.
const PARTS: usize = 4;
/// What the upload has told and nobody has heard: some 500 MiB of it, if a checkpoint takes that long.
const TOLD: usize = 64;

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
                return self.end_unbegun(record, status).await;
            }
            Err(failure) if failure.is_of_the_api_server() => {
                return Err(WriteError::NotBegun(chain(&failure)));
            }
            Err(failure) => return self.fail_unbegun(record, &failure).await,
        };
        let (run, scope) = (run_id(), self.scope_of(&cluster, &prepared));
        let digest = scope.as_ref().map(Packed::digest);
        match record.begin(&prepared.patch, &run, digest.as_deref(), OPENING).await {
            Ok(()) => {}
            // Whoever refuses that lets it end, maybe: it would be tried for ever otherwise, in its slot.
            Err(WriteError::Refused(error)) => {
                return self.fail_unbegun(record, &Failure::Refused(error)).await;
            }
            Err(error) => return Err(error),
        }
        self.metrics.begun(schedule(record));
        info!(%name, location = %prepared.location.name_any(), namespaces = prepared.resolved.len(), "running");
        let claim = async {
            let Opened { store, parts } = self.open(&prepared.location).await.map_err(Failure::Open)?;
            let location = prepared.location.clone();
            let layout = Layout::new(store, location.spec.object_storage.prefix.as_deref(), name);
            let claim = self.claim(record, &location, &layout, &parts, &run).await?;
            Ok(Site {
                location,
                layout,
                parts,
                claim,
                begun: None,
                scope,
                is_resumable: false,
                is_stuck: false,
                is_taken_over: false,
                staged: None,
                tally: Tally::default(),
            })
        };
        let site = match signals.bound(claim).await {
            Ok(site) => site,
            Err(Failure::Deleted) => return Err(WriteError::Gone),
            Err(failure) if self.after(&failure, record, false, false) != Next::End => {
                self.leave(record, &failure).await;
                return Ok(());
            }
            // What lies there is not of this run: it is neither removed nor added to.
            Err(failure) => return self.fail(record, &failure).await,
        };
        self.conduct(record, site, &cluster, &prepared, &log, signals).await
    }

    /// Ends one that runs.
    pub(super) async fn fail(&self, record: &mut Record, failure: &Failure) -> Result<(), WriteError> {
        let mut status = failed(&told(record, failure), Timestamp::now());
        if matches!(failure, Failure::Claim(_)) {
            // Whoever removes what has expired removes the whole folder, and that is another one's.
            status["expiration"] = Value::Null;
        }
        record.end(&json!({"status": status}), BackupPhase::InProgress, CLOSING).await
    }

    async fn fail_unbegun(&self, record: &mut Record, failure: &Failure) -> Result<(), WriteError> {
        let status = failed(&told(record, failure), Timestamp::now());
        self.end_unbegun(record, status).await
    }

    /// Ends one that has not begun, with all that it would have been given at its beginning.
    async fn end_unbegun(&self, record: &mut Record, status: Value) -> Result<(), WriteError> {
        // One that cannot be read ends, too.
        let backup = record.backup().unwrap_or_default();
        let mut locations = Vec::new();
        if backup.spec.storage_location.as_deref().unwrap_or_default().is_empty()
            && let Ok(all) = list::<BackupStorageLocation>(&self.client, &self.namespace).await
        {
            locations = all.items.iter().map(known_location).collect();
        }
        let mut patch = kept(&backup, &locations, self.default_ttl, Timestamp::now());
        merge_into(&mut patch, json!({"status": status}));
        record.end(&patch, BackupPhase::ReadyToStart, OPENING).await
    }

    /// What a backup takes, for its checkpoints, if there will be any.
    pub(super) fn scope_of(&self, cluster: &Cluster, prepared: &Prepared) -> Option<Packed> {
        if self.after_interruption != AfterInterruption::Resume {
            return None;
        }
        let scope = Scope::of(&cluster.types, &prepared.selection, &prepared.resolved, &prepared.policy);
        // Memory does not refuse writes.
        Packed::new(&scope).ok()
    }

    /// Lists, packs and stores everything that is not stored yet. When this returns nothing of it is on its way to the store any more.
    pub(super) async fn take(
        &self,
        record: &mut Record,
        site: &mut Site,
        cluster: &Cluster,
        prepared: &Prepared,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<Stored, Failure> {
        let spec = record.backup().map_err(|e| Failure::Cluster(e.into()))?.spec;
        let layout = site.layout.clone();
        for name in &prepared.missing {
            log.error(&About::Namespace(name), "namespaces", &format!("namespace {name} does not exist"));
        }
        let mut begun = site.begun.take();
        let goes_on = begun.is_some();
        let ledger = match &mut begun {
            Some(begun) => std::mem::take(&mut begun.ledger),
            None => Ledger::new(&cluster.types),
        };
        let stored = ledger.count();
        let counters = Counters {
            total: AtomicU64::new(stored),
            done: Arc::new(AtomicU64::new(stored)),
            asked: Asked::by(prepared.policies.volumes.clone()),
        };
        // The write by which it began, or was taken up, is a moment that the API server's store knows.
        let version = record.object().resource_version();
        let revision = Revision::new(version, cluster.aggregated.clone());
        let revision = revision.map(|revision| Arc::new(revision.taken_up(goes_on)));
        let tally = std::mem::take(&mut site.tally);
        let known = Known { log, ledger: &ledger, tally: &tally, revision: revision.as_deref() };
        let mut keeper = match &begun {
            Some(begun) => Some(Keeper::going_on(&layout, known, &site.claim, begun)),
            None => site.scope.take().map(|scope| Keeper::new(&layout, known, &site.claim, scope)),
        };
        if let (Some(begun), Some(keeper)) = (&mut begun, &mut keeper) {
            site.staged = Some(begun.staged.clone());
            keeper.try_write().await.map_err(untaken)?;
            begun.forget_before().await;
        }
        let mtime = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let (parts, taken_parts) = mpsc::channel(PARTS);
        let (telling, told) = mpsc::channel(TOLD);
        let staged = Arc::new(OnceLock::new());
        let upload = Upload {
            store: Arc::clone(layout.store()),
            parts: site.parts.clone(),
            path: layout.archive(),
            part_size: self.part_size,
            begun: begun.map(|begun| (begun.staged, begun.uploaded, begun.tail)),
            progress: keeper.is_some().then_some(telling),
            staged: Arc::clone(&staged),
            claimed: Some((layout.clone(), site.claim.clone())),
        };
        // Whoever does not lead any more stores nothing either.
        let uploading = AbortOnDropHandle::new(tokio::spawn(upload.run(taken_parts)));
        let (batches, waiting) = mpsc::channel(2 * self.packers);
        let waiting = Arc::new(Mutex::new(waiting));
        let (frozen, ending) = (Frozen::default(), CancellationToken::new());
        let (holder, held) = Holder::new(&prepared.wanted.hooks, log, &tally);
        let blocks = Blocks {
            runner: Runner { exec: self.exec.as_ref(), log, tally: &tally },
            lister: self.looker(),
            frozen: &frozen,
            counters: &counters,
            batches: batches.clone(),
            ending: &ending,
            workers: self.workers,
        };
        let mut blocks = pin!(maybe_done(blocks.run(held)));
        let pack = async {
            if !goes_on {
                let opening = archive::opening(mtime).map_err(Failure::Archive)?;
                let _ = parts.send(Part::Member(opening.into(), Vec::new())).await;
            }
            let workers: Vec<_> = (0..self.packers)
                .map(|_| {
                    let (waiting, parts, done) =
                        (Arc::clone(&waiting), parts.clone(), Arc::clone(&counters.done));
                    tokio::task::spawn_blocking(move || archive::work(&waiting, &parts, mtime, &done))
                })
                .collect();
            // Only the workers hold it from here on: if they end, so does the collecting.
            drop(waiting);
            let collector = Collector {
                lister: self.lister().as_of(revision.clone()),
                wanted: &prepared.wanted,
                selection: &prepared.selection,
                filters: &prepared.filters,
                backup: layout.backup(),
                types: &cluster.types,
                namespaces: &cluster.namespaces,
                resolved: &prepared.resolved,
                log,
                counters: &counters,
                ledger: &ledger,
                batches,
                holder,
            };
            let collected = collector.run().await;
            if collected.is_err() {
                ending.cancel();
            }
            for worker in try_join_all(workers).await.map_err(Failure::Worker)? {
                worker.map_err(Failure::Archive)?;
            }
            let mut list = collected.map_err(Failure::List)?;
            tally.correct(&mut list);
            // Before the archive is whole: from then on nobody looks at the objects again.
            Revision::tell(revision.as_deref(), log);
            let decided = counters.asked.tell(&spec, log);
            tell_claims_without_data(&spec, &list, decided, log);
            let closing = archive::closing().map_err(Failure::Archive)?;
            let _ = parts.send(Part::End(closing.into())).await;
            drop(parts);
            Ok(list)
        };
        let storing = async {
            let packed = tokio::select! {
                (packed, ()) = async { tokio::join!(pack, blocks.as_mut()) } => packed,
                lost = keep_record(record, &counters, &ledger, &frozen) => Err(lost),
                ended = signals.raise() => Err(ended),
            };
            // Whatever became of the backup: what was begun in a pod is undone in it.
            ending.cancel();
            blocks.as_mut().await;
            // Whoever sent it anything has ended by now: so does the upload, whole or given up.
            let uploaded = match &packed {
                // It may be in the middle of a part, and as patient with its store as ever.
                Err(failure) if failure.is_from_outside() => {
                    let given_up = Ok(Err(UploadError::GivenUp));
                    tokio::time::timeout(LAST_PART, uploading).await.unwrap_or(given_up)
                }
                _ => uploading.await,
            };
            (packed, uploaded)
        };
        let keeping = async {
            // Whoever waits to be heard learns that nobody listens any more.
            let mut told = told;
            let Some(keeper) = &mut keeper else { return };
            let hurry = async {
                signals.raise().await;
                tokio::time::sleep(LAST_PART).await;
            };
            tokio::select! {
                () = keeper.run(&mut told) => {}
                () = hurry => {}
            }
        };
        let ((packed, uploaded), ()) = tokio::join!(storing, keeping);
        if let Some(staged) = staged.get() {
            site.staged = Some(staged.clone());
        }
        let failure = match (packed, uploaded.map_err(Failure::Worker)?) {
            (Ok(list), Ok(bytes)) => {
                let items = counters.done.load(Ordering::Relaxed);
                log.info(&format!("stored {items} items in {bytes} bytes"));
                self.metrics.stored(schedule(record), bytes);
                site.is_resumable |= keeper.as_ref().is_some_and(Keeper::has_one);
                return Ok(Stored { list, bytes, hooks: tally.status() });
            }
            (Err(failure), _) if failure.is_from_outside() => failure,
            (_, Err(UploadError::Claim(error))) => Failure::Claim(error),
            // The upload knows why, unless it ended because the packing did.
            (_, Err(error)) if !matches!(error, UploadError::GivenUp) => Failure::Upload(error),
            (Err(failure), _) => failure,
            (Ok(_), Err(error)) => Failure::Upload(error),
        };
        self.part_with(record, site, keeper, &failure).await;
        Err(failure)
    }
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

/// Says why it failed, to whoever reads the controller's log.
fn told(record: &Record, failure: &Failure) -> String {
    let reason = chain(failure);
    warn!(name = %record.object().name_any(), %reason, "the backup failed");
    reason
}

/// Writes the progress, how far its checkpoint is, and the pods in which something may be frozen: once a second, and whenever a hook waits for it, but never when
/// nothing has changed. Ends when the Backup is not this run's any more.
async fn keep_record(record: &mut Record, counters: &Counters, ledger: &Ledger, frozen: &Frozen) -> Failure {
    // It does not go back, be it that an earlier run had come further.
    let before = record.progress();
    let mut told = before;
    loop {
        tokio::select! {
            () = tokio::time::sleep(PROGRESS) => {}
            () = frozen.wanted() => {}
        }
        let done = counters.done.load(Ordering::Relaxed).max(before.1);
        let now = (counters.total.load(Ordering::Relaxed).max(done).max(before.0), done);
        let asked = frozen.asked();
        let runs = record.runs();
        let kept = runs.kept(ledger.kept());
        if now != told || asked.is_some() || kept != runs {
            let mut patch = json!({});
            if now != told {
                patch["status"]["progress"] = json!({"totalItems": now.0, "itemsBackedUp": now.1});
            }
            if let Some(asked) = &asked {
                patch["metadata"]["annotations"][keys::FROZEN] = json!(asked.pods);
            }
            if kept != runs {
                patch["metadata"]["annotations"][keys::RUNS] = json!(kept.to_string());
            }
            let patience = if asked.is_some() { RECORD } else { PROGRESS };
            match record.merge(&patch, BackupPhase::InProgress, patience).await {
                Ok(()) => {
                    told = now;
                    if let Some(asked) = &asked {
                        frozen.stands(asked);
                    }
                }
                Err(error @ (WriteError::Gone | WriteError::Phase(_) | WriteError::Taken)) => {
                    return Failure::Write(error);
                }
                Err(error) => {
                    if let (WriteError::Refused(_), Some(asked)) = (&error, &asked) {
                        frozen.refuse(asked);
                    }
                    warn!(error = chain(&error), "failed to write how far the backup is");
                }
            }
        }
    }
}

/// A claim without its data is a hole, unless the backup says that this is meant. Where it asks for the data, that is an error already.
/// `decided`: of how many a policy has said what is meant.
fn tell_claims_without_data(spec: &BackupSpec, list: &ResourceList, decided: usize, log: &BackupLog) {
    let claims = list.get("v1/PersistentVolumeClaim").map_or(0, Names::len).saturating_sub(decided);
    if claims > 0 && spec.snapshot_volumes.is_none() {
        let message = format!(
            "{claims} claims are stored without the data of their volumes (snapshotVolumes: false says that this is meant)"
        );
        log.warning(&About::Velero, "persistentvolumeclaims", &message);
    }
}

#[cfg(test)]
mod tests;
