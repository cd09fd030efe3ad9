//! Starts a run for each ReadyToStart Backup, takes up InProgress Backups that no process runs, and
//! cancels the runs of deleted Backups. Runs only while this process leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::queue::{Entry, Phase, View, may_run};
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Engine, Signals};
use super::status::WriteError;
use crate::events::{Events, What};
use crate::queue::BackupCache;
use crate::queue::refusals::is_refusal;
use crate::queue::writer::tell_unwritable;
use crate::text::chain;

/// Checks all Backups at least this often, even if the watch shows no change.
const PERIOD: Duration = Duration::from_secs(5);

pub struct Runner {
    pub engine: Engine,
    pub store: Arc<BackupCache>,
    pub events: Events,
    /// Cancelled when the process must end.
    pub stop: CancellationToken,
    /// How long runs may continue after that before they are handed over.
    pub drain: Duration,
}

impl Runner {
    fn failures(&self) -> FailureReporter {
        FailureReporter { store: Arc::clone(&self.store), events: self.events.clone() }
    }

    /// The queue's view, and the runs of deleted Backups that still go on here, because their hooks may
    /// be running in pods that another backup would take.
    fn view(&self, running: &HashMap<String, Run>) -> View {
        let mut view = self.store.view(None, Timestamp::now());
        let gone = running.iter().filter(|(uid, run)| !self.is_there(uid, run));
        view.backups.extend(gone.map(|(_, run)| Arc::clone(&run.entry)));
        view
    }

    fn is_there(&self, uid: &str, run: &Run) -> bool {
        self.store.get(&run.name).is_some_and(|item| item.entry.uid == uid)
    }

    /// Runs until `stop`, and then until every run has ended. Dropping the future ends all runs at
    /// once.
    pub async fn run(self) {
        let mut changed = self.store.changed();
        let mut runs: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<String, Run> = HashMap::new();
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
                for item in self.store.in_phase(Phase::InProgress) {
                    if is_busy(&running, &item.entry.name) {
                        continue;
                    }
                    let (engine, name, uid) =
                        (self.engine.clone(), item.entry.name.clone(), item.entry.uid.clone());
                    let signals = Signals { stop: hurry.clone(), ..Signals::default() };
                    let (store, failures) = (Arc::clone(&self.store), self.failures());
                    running.entry(uid.clone()).or_insert_with(|| Run {
                        name: name.clone(),
                        entry: Arc::clone(&item.entry),
                        signals: signals.clone(),
                        task: runs
                            .spawn(async move {
                                let tell =
                                    |note: &str| failures.events.tell(What::Resumed, &name, &uid, note);
                                match engine.recover(&name, &uid, signals, tell).await {
                                    Ok(Some(backup)) => {
                                        store.refusals.written(&uid);
                                        store.observe_write(&backup);
                                    }
                                    Ok(None) => {}
                                    Err(error) => failures.failed(&name, &uid, &error),
                                }
                            })
                            .id(),
                    });
                }
            }
            if !self.stop.is_cancelled() {
                for item in self.store.in_phase(Phase::ReadyToStart) {
                    if is_busy(&running, &item.entry.name) {
                        continue;
                    }
                    let view = self.view(&running);
                    if !may_run(&view, &item.entry, |other| running.contains_key(&other.uid)) {
                        continue;
                    }
                    let (engine, name, uid) =
                        (self.engine.clone(), item.entry.name.clone(), item.entry.uid.clone());
                    let signals = Signals { stop: hurry.clone(), ..Signals::default() };
                    let (store, failures) = (Arc::clone(&self.store), self.failures());
                    running.entry(uid.clone()).or_insert_with(|| Run {
                        name: name.clone(),
                        entry: Arc::clone(&item.entry),
                        signals: signals.clone(),
                        task: runs
                            .spawn(async move {
                                let (stop, deleted) = (signals.stop.clone(), signals.deleted.clone());
                                match engine.run(&name, &uid, signals).await {
                                    // Do not wait for the watch: another backup may wait for the
                                    // slot.
                                    Ok(Some(backup)) => {
                                        store.refusals.written(&uid);
                                        store.observe_write(&backup);
                                        return;
                                    }
                                    Ok(None) => {}
                                    Err(error) => failures.failed(&name, &uid, &error),
                                }
                                // Wait before the next attempt, whatever the error was, unless
                                // there can be none.
                                tokio::select! {
                                    _ = timeout(PERIOD, stop.cancelled()) => {}
                                    () = deleted.cancelled() => {}
                                }
                            })
                            .id(),
                    });
                }
            }
            for (uid, Run { name, signals, .. }) in &running {
                match self.store.get(name).filter(|item| item.entry.uid == *uid) {
                    None => signals.deleted.cancel(),
                    Some(item) if item.entry.canceled => signals.canceled.cancel(),
                    Some(_) => {}
                }
            }
            if self.stop.is_cancelled() && running.is_empty() {
                return;
            }
            tokio::select! {
                _ = changed.changed() => {}
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
                            tracing::error!(%error, "a run ended abnormally");
                            error.id()
                        }
                    };
                    running.retain(|_, run| run.task != task);
                }
            }
        }
    }
}

/// Reports failed writes, and counts refused ones.
struct FailureReporter {
    store: Arc<BackupCache>,
    events: Events,
}

impl FailureReporter {
    fn failed(&self, name: &str, uid: &str, error: &WriteError) {
        match error {
            WriteError::Gone => info!(%name, "the Backup is gone"),
            WriteError::NotBegun(why) => warn!(%name, %why, "could not begin the backup: trying again"),
            WriteError::Frozen(_) => {
                warn!(%name, %error, "pods of a dead run may still be frozen: trying again")
            }
            error => warn!(%name, error = chain(error), "could not write the Backup"),
        }
        let (WriteError::Refused(error) | WriteError::Time(Some(error))) = error else { return };
        if is_refusal(error) && self.store.refusals.refused(uid) {
            tell_unwritable(&self.events, name, uid, error);
        }
    }
}

/// Whether a run of that name goes on, even of a Backup that was deleted meanwhile, because it
/// still uses the folder.
fn is_busy(running: &HashMap<String, Run>, name: &str) -> bool {
    running.values().any(|run| run.name == name)
}

/// A run, or a recovery.
struct Run {
    name: String,
    /// The entry as it was when the run began.
    entry: Arc<Entry>,
    signals: Signals,
    task: tokio::task::Id,
}
