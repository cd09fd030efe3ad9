//! Starts a run for each ReadyToStart Backup, and cancels the runs of those that are deleted. Runs only while
//! this process leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::queue::{Phase, may_open};
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::run::{Engine, Signals};
use crate::queue::Store;

/// Looks again at least this often, whatever the watch shows.
const PERIOD: Duration = Duration::from_secs(5);

pub struct Executor {
    pub engine: Engine,
    pub store: Arc<Store>,
    /// The process is to end.
    pub stop: CancellationToken,
    /// How long runs may go on after that.
    pub drain: Duration,
}

impl Executor {
    /// Until `stop`, and then until every run has ended. Dropping the future ends all runs at once.
    pub async fn run(self) {
        let mut changed = self.store.changed();
        let mut runs: JoinSet<()> = JoinSet::new();
        let mut running: HashMap<String, Run> = HashMap::new();
        let mut look_for_orphans = true;
        // What ends the runs: some time after `stop`.
        let hurry = CancellationToken::new();
        let mut draining = std::pin::pin!(async {
            self.stop.cancelled().await;
            tokio::time::sleep(self.drain).await;
        });
        let mut ticks = tokio::time::interval(PERIOD);
        loop {
            changed.mark_unchanged();
            if std::mem::take(&mut look_for_orphans) {
                // What runs while nobody runs it was left behind: by a leader that is gone, or by a run that
                // ended abnormally. It keeps its slot and its namespaces until that is settled.
                for item in self.store.in_phase(Phase::InProgress) {
                    let (engine, name, uid) =
                        (self.engine.clone(), item.entry.name.clone(), item.entry.uid.clone());
                    running.entry(uid.clone()).or_insert_with(|| Run {
                        name: name.clone(),
                        signals: Signals::default(),
                        task: runs.spawn(async move { engine.settle(&name, &uid).await }).id(),
                    });
                }
            }
            if !self.stop.is_cancelled() {
                for item in self.store.in_phase(Phase::ReadyToStart) {
                    if running.contains_key(&item.entry.uid) {
                        continue;
                    }
                    let view = self.store.view(None, Timestamp::now());
                    if !may_open(&view, &item.entry, |other| running.contains_key(&other.uid)) {
                        continue;
                    }
                    let (engine, name, uid) =
                        (self.engine.clone(), item.entry.name.clone(), item.entry.uid.clone());
                    let signals = Signals { stop: hurry.clone(), ..Signals::default() };
                    let store = Arc::clone(&self.store);
                    running.entry(uid.clone()).or_insert_with(|| Run {
                        name: name.clone(),
                        signals: signals.clone(),
                        task: runs
                            .spawn(async move {
                                let stop = signals.stop.clone();
                                match engine.run(&name, &uid, signals).await {
                                    // Sooner than by the watch: somebody waits for the slot.
                                    Some(backup) => store.observe_write(&backup),
                                    // Not at once again, whatever it was.
                                    None => {
                                        let _ = timeout(PERIOD, stop.cancelled()).await;
                                    }
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
                    info!(running = running.len(), for_seconds = self.drain.as_secs(), "waiting for the running backups");
                }
                () = &mut draining, if !hurry.is_cancelled() => {
                    info!(running = running.len(), "ending the running backups");
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

/// A run, or the settling of one.
struct Run {
    name: String,
    signals: Signals,
    task: tokio::task::Id,
}
