//! Starts a run for each ReadyToStart Backup, and cancels the runs of those that are deleted. Runs only while
//! this process leads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_core::queue::Phase;
use tokio::task::JoinSet;
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
}

impl Executor {
    /// Until `stop`, and then until every run has ended. Dropping the future ends all runs at once.
    pub async fn run(self) {
        let mut changed = self.store.changed();
        let mut runs = JoinSet::new();
        let mut running: HashMap<String, (String, Signals)> = HashMap::new();
        // What runs while nobody runs it was left behind by a leader that is gone. It keeps its slot and its
        // namespaces until that is settled; the others need not wait for it.
        for item in self.store.in_phase(Phase::InProgress) {
            let (name, uid) = (item.entry.name.clone(), item.entry.uid.clone());
            running.insert(uid.clone(), (name.clone(), Signals::default()));
            let engine = self.engine.clone();
            runs.spawn(async move {
                engine.settle(&name, &uid).await;
                uid
            });
        }
        loop {
            changed.mark_unchanged();
            if !self.stop.is_cancelled() {
                for item in self.store.in_phase(Phase::ReadyToStart) {
                    let (name, uid) = (item.entry.name.clone(), item.entry.uid.clone());
                    if running.contains_key(&uid) {
                        continue;
                    }
                    let signals = Signals { stop: self.stop.clone(), ..Signals::default() };
                    running.insert(uid.clone(), (name.clone(), signals.clone()));
                    let engine = self.engine.clone();
                    runs.spawn(async move {
                        engine.run(&name, &uid, signals).await;
                        uid
                    });
                }
            }
            for (uid, (name, signals)) in &running {
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
                () = tokio::time::sleep(PERIOD) => {}
                () = self.stop.cancelled(), if !self.stop.is_cancelled() => info!(running = running.len(), "ending the running backups"),
                Some(ended) = runs.join_next() => {
                    // A run that panicked is forgotten by its task's end; its Backup is settled by the next leader.
                    match ended {
                        Ok(uid) => { running.remove(&uid); }
                        Err(error) => tracing::error!(%error, "a run ended abnormally"),
                    }
                }
            }
        }
    }
}
