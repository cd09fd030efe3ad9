//! What a backup stores, from the first list to a stored archive.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use berth_api::unserved::unserved;
use berth_api::velero::backup::HookStatus;
use futures::future::{maybe_done, try_join_all};
use jiff::Timestamp;
use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::archive;
use super::begun::RunSite;
use super::blocks::Blocks;
use super::collect::Collector;
use super::engine::{Engine, LAST_PART, RunFailure, Signals, schedule};
use super::frozen::FrozenPods;
use super::hold::PodHolder;
use super::hooks::HookRunner;
use super::inputs::ClusterInputs;
use super::interruption::untaken;
use super::keeper::{CheckpointKeeper, CheckpointSources};
use super::ledger::ObjectLedger;
use super::list::ListError;
use super::log::{BackupLog, ResultsHeading};
use super::messages::ArchivePart;
use super::movement::Movements;
use super::operations::{DataUploadCreator, moves_data};
use super::prepare::Prepared;
use super::progress::{Counters, keep_record};
use super::publication::StoredArchive;
use super::revision::Revision;
use super::status::{BackupWriter, WriteError};
use super::upload::{ArchiveUpload, UploadError};
use super::volumes::claims;
use super::volumes::outcomes::Outcomes;

/// Gzip members between the packers and the store.
const PARTS: usize = 4;
/// Messages of the upload that may wait for the keeper: some 500 MiB of parts, if a checkpoint
/// takes that long.
const TOLD: usize = 64;

/// What a run has stored.
pub(super) enum RunContents {
    /// Everything.
    Whole(StoredArchive),
    /// All objects, and what follows from operations is missing. Everything is in the checkpoint.
    Resting {
        /// `status.hookStatus`.
        hooks: Option<HookStatus>,
    },
}

impl Engine {
    /// Lists, packs and stores everything that is not stored yet. When this returns nothing is on
    /// its way to the store any more.
    pub(super) async fn take(
        &self,
        record: &mut BackupWriter,
        site: &mut RunSite,
        cluster: &ClusterInputs,
        prepared: &Prepared,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<RunContents, RunFailure> {
        let backup = record.backup().map_err(|e| RunFailure::Cluster(e.into()))?;
        let spec = &backup.spec;
        let layout = site.layout.clone();
        for name in &prepared.missing {
            log.error(
                &ResultsHeading::Namespace(name),
                "namespaces",
                &format!("namespace {name} does not exist"),
            );
        }
        let mut begun = site.begun.take();
        let goes_on = begun.is_some();
        let ledger = match &mut begun {
            Some(begun) => std::mem::take(&mut begun.ledger),
            None => ObjectLedger::new(&cluster.types),
        };
        let stored = ledger.count();
        let counters = Counters { total: AtomicU64::new(stored), done: Arc::new(AtomicU64::new(stored)) };
        // The write that began the backup, or took it up, is a revision that the API server keeps.
        let version = record.object().resource_version();
        let revision = Revision::new(version, cluster.aggregated.clone());
        let revision = revision.map(|revision| Arc::new(revision.taken_up(goes_on)));
        let tally = std::mem::take(&mut site.tally);
        let uid = record.uid().to_owned();
        let movements = std::mem::take(&mut site.operations);
        // Kept in the site, because what becomes of snapshots depends on how the run ends.
        let outcomes = std::mem::take(&mut site.outcomes);
        outcomes.retain(|claim| ledger.has_stored(&claims(), claim));
        let known = CheckpointSources {
            log,
            ledger: &ledger,
            tally: &tally,
            outcomes: &outcomes,
            operations: &movements,
            revision: revision.as_deref(),
        };
        let mut keeper = match &begun {
            Some(begun) => Some(CheckpointKeeper::going_on(&layout, known, &site.claim, begun)),
            None => site.scope.take().map(|scope| CheckpointKeeper::new(&layout, known, &site.claim, scope)),
        };
        if let (Some(begun), Some(keeper)) = (&mut begun, &mut keeper) {
            site.staged = Some(begun.staged.clone());
            keeper.try_write().await.map_err(untaken)?;
            begun.forget_before().await;
        }
        if site.is_taken_over {
            // What the dead run has begun and not stored is taken anew, unless it is noted.
            let mut kept = outcomes.objects();
            kept.extend(outcomes.noted_snapshots(|_| true));
            if moves_data(spec) {
                movements.adopt(&self.uploads_of(&uid).await?);
                kept.extend(movements.snapshots());
            }
            Box::pin(self.remove_snapshots_but(layout.backup(), record, &kept)).await;
        }
        let (volumes, jobs) = self.volumes(
            record,
            spec,
            (cluster, prepared),
            (layout.backup(), &site.claim.run),
            log,
            &outcomes,
        );
        let mover = DataUploadCreator::new(&self.client, &self.namespace, &backup, &movements, log);
        let volumes = volumes.moved_by(&mover);
        let mtime = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        let (parts, taken_parts) = mpsc::channel(PARTS);
        let (telling, told) = mpsc::channel(TOLD);
        let staged = Arc::new(OnceLock::new());
        let upload = ArchiveUpload {
            store: Arc::clone(layout.store()),
            parts: site.parts.clone(),
            path: layout.archive(),
            part_size: self.part_size,
            begun: begun.map(|begun| (begun.staged, begun.uploaded, begun.tail)),
            progress: Some(telling),
            staged: Arc::clone(&staged),
            claimed: Some((layout.clone(), site.claim.clone())),
        };
        // A process that leads no more must store nothing either, so the task is aborted on drop.
        let uploading = AbortOnDropHandle::new(tokio::spawn(upload.run(taken_parts)));
        let (batches, waiting) = mpsc::channel(2 * self.packers);
        let waiting = Arc::new(Mutex::new(waiting));
        let (frozen, ending) = (FrozenPods::default(), CancellationToken::new());
        let lost = CancellationToken::new();
        let (holder, held) = PodHolder::new(&prepared.wanted.hooks, log, &tally);
        let blocks = Blocks {
            runner: HookRunner { exec: self.exec.as_ref(), log, tally: &tally },
            lister: self.pod_lister(),
            frozen: &frozen,
            counters: &counters,
            volumes: &volumes,
            batches: batches.clone(),
            ending: &ending,
            lost: &lost,
            stop: &signals.stop,
            workers: self.workers,
        };
        let mut blocks = pin!(maybe_done(blocks.run(held)));
        let pack = async {
            if !goes_on {
                let opening = archive::opening(mtime).map_err(RunFailure::Archive)?;
                let _ = parts.send(ArchivePart::Member(opening.into(), Vec::new())).await;
            }
            let packers: Vec<_> = (0..self.packers)
                .map(|_| {
                    let (waiting, parts, done) =
                        (Arc::clone(&waiting), parts.clone(), Arc::clone(&counters.done));
                    tokio::task::spawn_blocking(move || archive::pack(&waiting, &parts, mtime, &done))
                })
                .collect();
            // Only the packers hold it from here on, so if they end, collecting ends too.
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
                volumes: &volumes,
                ledger: &ledger,
                batches: batches.clone(),
                holder,
            };
            let collected = tokio::select! {
                collected = Box::pin(collector.run()) => collected,
                () = Box::pin(volumes.run(jobs, batches)) => Err(ListError::NobodyTakes),
            };
            if collected.is_err() {
                ending.cancel();
            }
            for packer in try_join_all(packers).await.map_err(RunFailure::Task)? {
                packer.map_err(RunFailure::Archive)?;
            }
            let mut list = collected.map_err(RunFailure::List)?;
            tally.correct(&mut list);
            // Before the archive is complete, because from then on nothing reads the objects again.
            Revision::tell(revision.as_deref(), log);
            for one in unserved(spec).iter() {
                log.error(&ResultsHeading::Velero, "", &one.to_string());
            }
            volumes.tell();
            if moves_data(spec) {
                movements.adopt(&self.uploads_of(&uid).await?);
            }
            let last = if movements.is_empty() {
                ArchivePart::End(archive::closing().map_err(RunFailure::Archive)?.into())
            } else {
                log.info(&format!(
                    "all objects are stored; the data of {} claims is still moved",
                    movements.len()
                ));
                ArchivePart::Rest
            };
            let _ = parts.send(last).await;
            drop(parts);
            Ok(list)
        };
        let storing = async {
            let packed = tokio::select! {
                (packed, ()) = async { tokio::join!(pack, blocks.as_mut()) } => packed,
                lost = keep_record(record, &counters, &ledger, &frozen) => Err(lost),
                ended = signals.raise() => Err(ended),
            };
            if matches!(packed, Err(RunFailure::Write(WriteError::Taken))) {
                lost.cancel();
            }
            // Whatever became of the backup, undo what was begun in pods.
            ending.cancel();
            blocks.as_mut().await;
            // All senders have ended by now, so the upload ends too, complete or given up.
            let uploaded = match &packed {
                // The upload may be in the middle of a part, and would wait long for its store.
                Err(failure) if failure.is_from_outside() => {
                    let given_up = Ok(Err(UploadError::GivenUp));
                    tokio::time::timeout(LAST_PART, uploading).await.unwrap_or(given_up)
                }
                _ => uploading.await,
            };
            (packed, uploaded)
        };
        let keeping = async {
            // Drop the receiver when this ends, so that the upload does not wait for it.
            let mut told = told;
            let Some(keeper) = &mut keeper else {
                while let Some(progress) = told.recv().await {
                    ledger.located(progress.contents());
                }
                return;
            };
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
        site.has_data |= volumes.has_begun();
        site.leaves_frozen = frozen.has_any();
        if packed.is_ok() {
            let unmet = volumes.unmet();
            if !unmet.is_empty() {
                Box::pin(self.remove_unmet(layout.backup(), record, &unmet)).await;
            }
        }
        let traits = volumes.traits();
        let failure = match (packed, uploaded.map_err(RunFailure::Task)?) {
            (Ok(_), Ok(_)) if !movements.is_empty() => {
                site.is_resumable |= keeper.as_ref().is_some_and(CheckpointKeeper::has_one);
                match &keeper {
                    Some(keeper) if keeper.is_up_to_date() => {
                        site.outcomes = Outcomes::of(outcomes.all());
                        site.operations = Movements::of(movements.all());
                        return Ok(RunContents::Resting { hooks: tally.status() });
                    }
                    Some(_) => RunFailure::Store(object_store::Error::Generic {
                        store: "checkpoint",
                        source: "the checkpoint of a backup that waits could not be written".into(),
                    }),
                    None => RunFailure::Unkept,
                }
            }
            (Ok(list), Ok(bytes)) => {
                let items = counters.done.load(Ordering::Relaxed);
                log.info(&format!("stored {items} items in {bytes} bytes"));
                self.metrics.stored(schedule(record), bytes);
                site.is_resumable |= keeper.as_ref().is_some_and(CheckpointKeeper::has_one);
                let data = Box::pin(self.data(record, &outcomes, &traits, log)).await;
                let hooks = tally.status();
                site.outcomes = Outcomes::of(outcomes.all());
                let (volumes, index) = (data?, ledger.index());
                return Ok(RunContents::Whole(StoredArchive {
                    list,
                    bytes,
                    hooks,
                    volumes,
                    index,
                    ..StoredArchive::default()
                }));
            }
            (Err(failure), _) if failure.is_from_outside() => failure,
            (_, Err(UploadError::Claim(error))) => RunFailure::Claim(error),
            // The upload's error is the cause, unless it ended because the packing did.
            (_, Err(error)) if !matches!(error, UploadError::GivenUp) => RunFailure::Upload(error),
            (Err(failure), _) => failure,
            (Ok(_), Err(error)) => RunFailure::Upload(error),
        };
        // What becomes of the data in repositories depends on how the run ends.
        site.operations = Movements::of(movements.all());
        site.outcomes = Outcomes::of(outcomes.all());
        self.part_with(record, site, keeper, &failure).await;
        Err(failure)
    }
}
