//! Starts a run for each ReadyToStart Backup, takes up InProgress Backups that no process runs, and
//! cancels the runs of deleted Backups. Runs only while this process leads.

mod task;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::location_turns::{Candidate, choose};
use berth_core::operation::{FINALIZATION, FINALIZATIONS, Glance, is_due};
use berth_core::queue::{QueueEntry, QueuePhase, QueueView, may_run};
use berth_core::stage::Stage;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Engine, Signals};
use super::operations::Attended;
use super::operations::shown::UploadCache;
use super::status::WriteError;
use super::unremoved::UnremovedBackups;
use crate::events::Events;
use crate::queue::BackupCache;
use crate::queue::seen::BackupAfterQueue;
use task::{RunTask, WriteReporter};

/// Checks all Backups at least this often, even if the watch shows no change.
const PERIOD: Duration = Duration::from_secs(5);

pub struct Runner {
    pub engine: Engine,
    pub store: Arc<BackupCache>,
    /// DataUploads, by which Backups are followed that have left the queue.
    pub uploads: Arc<UploadCache>,
    pub events: Events,
    /// Cancelled when the process must end.
    pub stop: CancellationToken,
    /// How long runs may continue after that before they are handed over.
    pub drain: Duration,
}

impl Runner {
    fn reporter(&self) -> WriteReporter {
        WriteReporter { store: Arc::clone(&self.store), events: self.events.clone() }
    }

    /// The queue's view, and the runs of deleted Backups that still go on here, because their hooks
    /// may be running in pods that another backup would take.
    fn view(&self, running: &HashMap<String, ActiveRun>) -> QueueView {
        let mut view = self.store.view(None, Timestamp::now());
        let gone = running.iter().filter(|(uid, run)| !self.store.is_there(&run.name, uid));
        view.backups.extend(gone.filter_map(|(_, run)| run.entry.clone()));
        view
    }

    /// Does what is left of Backups that were deleted while they ran or waited for their
    /// operations, once their runs have ended.
    fn forget_gone(
        &self,
        runs: &mut JoinSet<()>,
        running: &mut HashMap<String, ActiveRun>,
        unremoved: &Arc<Mutex<UnremovedBackups>>,
    ) {
        let mut names = HashSet::new();
        let mut due = self.store.take_gone(|gone| {
            !gone.is_ours || !is_busy(running, &gone.name) && names.insert(gone.name.clone())
        });
        due.extend(unremoved.lock().take_due(Instant::now(), |gone| {
            !is_busy(running, &gone.name) && names.insert(gone.name.clone())
        }));
        for gone in due.into_iter().filter(|gone| gone.is_ours) {
            let (name, uid) = (gone.name.clone(), gone.uid.clone());
            let (engine, unremoved) = (self.engine.clone(), Arc::clone(unremoved));
            let work = async move {
                if engine.forget(&gone.name, &gone.uid, &gone.location).await {
                    unremoved.lock().removed(&gone.uid);
                    return;
                }
                let (name, uid) = (gone.name.clone(), gone.uid.clone());
                if !unremoved.lock().failed(gone, Instant::now()) {
                    engine.data_of_deleted.lock().remove(&uid);
                    warn!(%name, %uid, "gave up removing what a deleted Backup has stored: remove its folder from the storage location, and the snapshots in repositories that have its UID in the tag backup-uid");
                }
            };
            let task = runs.spawn(work).id();
            let signals = Signals::default();
            running.insert(uid, ActiveRun { name, entry: None, signals, completes_in: None, task });
        }
    }

    /// Takes up the Backups that have left the queue and must be looked at now.
    fn attend(
        &self,
        runs: &mut JoinSet<()>,
        running: &mut HashMap<String, ActiveRun>,
        looks: &Looks,
        hurry: &CancellationToken,
    ) {
        if !self.uploads.is_synced() {
            return;
        }
        let all = self.store.after();
        looks.retain(|uid| all.iter().any(|after| after.uid == uid));
        let mut to_complete: Vec<(BackupAfterQueue, Option<Duration>)> = Vec::new();
        for after in all.into_iter().filter(|after| after.is_ours) {
            let BackupAfterQueue { name, uid, phase, operations, limit, .. } = &after;
            let Some(stage) = Stage::of(phase.as_str()) else { continue };
            let (shown, there) = self.uploads.counts(uid, operations.attempted, *limit, Timestamp::now());
            let (since, failures) = looks.of(uid);
            let glance = Glance {
                stage,
                recorded: *operations,
                shown,
                there,
                is_canceled: after.is_canceled,
                runs: after.runs,
                led: self.engine.since.elapsed(),
                since,
                failures,
            };
            if is_busy(running, name) || !is_due(&glance) {
                continue;
            }
            let is_finalization = stage == Stage::Finalizing;
            if is_finalization && !glance.is_canceled {
                to_complete.push((after, since));
            } else {
                self.look_at(runs, running, looks, hurry, after, is_finalization);
            }
        }
        // The others are looked at again when one of them has ended.
        let candidates: Vec<Candidate<'_>> = to_complete
            .iter()
            .map(|(after, unseen)| Candidate { location: &after.location, unseen: *unseen })
            .collect();
        let taken: Vec<&str> = running.values().filter_map(|run| run.completes_in.as_deref()).collect();
        let chosen = choose(&candidates, &taken, FINALIZATIONS);
        for (after, _) in chosen.into_iter().filter_map(|index| to_complete.get(index)) {
            self.look_at(runs, running, looks, hurry, after.clone(), true);
        }
    }

    /// Looks at one of them.
    fn look_at(
        &self,
        runs: &mut JoinSet<()>,
        running: &mut HashMap<String, ActiveRun>,
        looks: &Looks,
        hurry: &CancellationToken,
        after: BackupAfterQueue,
        is_finalization: bool,
    ) {
        let BackupAfterQueue { name, uid, location, .. } = after;
        let signals = Signals { stop: hurry.clone(), ..Signals::default() };
        let (engine, reporter, looks) = (self.engine.clone(), self.reporter(), looks.clone());
        let work = {
            let (name, uid, signals) = (name.clone(), uid.clone(), signals.clone());
            async move {
                let attended = timeout(FINALIZATION, engine.attend(&name, &uid, signals)).await;
                let too_long = |_| Err(WriteError::Waits("it took too long".to_owned()));
                let has_failed = match attended.unwrap_or_else(too_long) {
                    Ok(Attended::Written(backup)) => {
                        looks.forget(&uid);
                        reporter.written(&uid, &backup);
                        return;
                    }
                    Ok(Attended::Nothing) => false,
                    Ok(Attended::Later) => true,
                    Err(error) => {
                        reporter.failed(&name, &uid, &error);
                        true
                    }
                };
                looks.note(&uid, has_failed);
            }
        };
        let task = runs.spawn(work).id();
        let completes_in = is_finalization.then_some(location);
        running.insert(uid, ActiveRun { name, entry: None, signals, completes_in, task });
    }

    /// Begins the task of a Backup that has its slot, unless it has one.
    fn start<W>(
        &self,
        runs: &mut JoinSet<()>,
        running: &mut HashMap<String, ActiveRun>,
        entry: &Arc<QueueEntry>,
        hurry: &CancellationToken,
        work: impl FnOnce(RunTask) -> W,
    ) where
        W: Future<Output = ()> + Send + 'static,
    {
        let (name, uid) = (entry.name.clone(), entry.uid.clone());
        let signals = Signals { stop: hurry.clone(), ..Signals::default() };
        running.entry(uid.clone()).or_insert_with(|| {
            let (engine, reporter) = (self.engine.clone(), self.reporter());
            let task = RunTask { engine, reporter, name: name.clone(), uid, signals: signals.clone() };
            let task = runs.spawn(work(task)).id();
            ActiveRun { name, entry: Some(Arc::clone(entry)), signals, completes_in: None, task }
        });
    }

    /// Runs until `stop`, and then until every run has ended. Dropping the future ends all runs at
    /// once.
    pub async fn run(self) {
        let mut changed = self.store.changed();
        let (mut moved, looks) = (self.uploads.changed(), Looks::default());
        let unremoved = Arc::new(Mutex::new(UnremovedBackups::default()));
        let mut runs: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<String, ActiveRun> = HashMap::new();
        let mut look_for_orphans = true;
        // Ends the runs, `drain` after `stop`.
        let hurry = CancellationToken::new();
        let mut draining = std::pin::pin!(async {
            self.stop.cancelled().await;
            tokio::time::sleep(self.drain).await;
        });
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            changed.mark_unchanged();
            // A process that must end has handed over its runs; it takes up none.
            if std::mem::take(&mut look_for_orphans) && !self.stop.is_cancelled() {
                // A Backup that is InProgress and has no run here was left by a leader that is
                // gone, by a run whose store failed, or by a run that panicked. It keeps its slot
                // and its namespaces, and is run again or ended.
                for item in self.store.in_phase(QueuePhase::InProgress) {
                    if is_busy(&running, &item.entry.name) {
                        continue;
                    }
                    self.start(&mut runs, &mut running, &item.entry, &hurry, RunTask::recover);
                }
            }
            if !self.stop.is_cancelled() {
                // Before one of the same name begins: once that one has taken the folder, nobody
                // can tell any more of which namespaces the data is.
                self.forget_gone(&mut runs, &mut running, &unremoved);
                for item in self.store.in_phase(QueuePhase::ReadyToStart) {
                    if is_busy(&running, &item.entry.name) {
                        continue;
                    }
                    let view = self.view(&running);
                    if !may_run(&view, &item.entry, |other| running.contains_key(&other.uid)) {
                        continue;
                    }
                    self.start(&mut runs, &mut running, &item.entry, &hurry, RunTask::run);
                }
            }
            if !self.stop.is_cancelled() {
                self.attend(&mut runs, &mut running, &looks, &hurry);
            }
            for (uid, ActiveRun { name, signals, .. }) in &running {
                if !self.store.is_there(name, uid) {
                    signals.deleted.cancel();
                } else if self.store.is_canceled(name, uid) {
                    signals.canceled.cancel();
                }
            }
            if self.stop.is_cancelled() && running.is_empty() {
                return;
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = moved.changed() => {}
                _ = ticks.tick() => look_for_orphans = true,
                () = self.stop.cancelled(), if !self.stop.is_cancelled() => {
                    info!(running = running.len(), for_seconds = self.drain.as_secs(), "running backups may continue for that long");
                }
                () = &mut draining, if !hurry.is_cancelled() => {
                    info!(running = running.len(), "handing over the running backups");
                    hurry.cancel();
                }
                Some(ended) = runs.join_next_with_id() => {
                    let task = match ended {
                        Ok((task, ())) => task,
                        Err(error) => {
                            tracing::error!(%error, "a run ended abnormally, which is a fault of berth: its backup is taken up again");
                            error.id()
                        }
                    };
                    running.retain(|_, run| run.task != task);
                }
            }
        }
    }
}

/// When this process has last looked at Backups that have left the queue, by UID, and how often in
/// a row that came to nothing.
#[derive(Clone, Default)]
struct Looks(Arc<Mutex<HashMap<String, (Instant, u32)>>>);

impl Looks {
    fn of(&self, uid: &str) -> (Option<Duration>, u32) {
        self.0.lock().get(uid).map_or((None, 0), |(at, failures)| (Some(at.elapsed()), *failures))
    }

    fn note(&self, uid: &str, has_failed: bool) {
        let all = &mut *self.0.lock();
        let before = all.get(uid).map_or(0, |(_, failures)| *failures);
        let failures = if has_failed { before.saturating_add(1) } else { 0 };
        all.insert(uid.to_owned(), (Instant::now(), failures));
    }

    fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| is_known(uid));
    }
}

/// Whether a run of that name goes on, even of a Backup that was deleted meanwhile, because it
/// still uses the folder.
fn is_busy(running: &HashMap<String, ActiveRun>, name: &str) -> bool {
    running.values().any(|run| run.name == name)
}

/// A run, or a recovery.
struct ActiveRun {
    name: String,
    /// The entry as it was when the run began. None of a Backup that has left the queue.
    entry: Option<Arc<QueueEntry>>,
    signals: Signals,
    /// Where it completes a Backup whose operations have ended.
    completes_in: Option<String>,
    task: tokio::task::Id,
}
