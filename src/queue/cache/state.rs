//! What the watch cache of Backups holds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use berth_core::queue::{CompletedRun, QueueEntry, QueuePhase, QueueView, Use};
use jiff::{SignedDuration, Timestamp};

use super::weight::{QueueTotals, bound, large};
use crate::cache::{Cache, Observed, Versioned as _};
use crate::queue::seen::{BackupAfterQueue, CachedBackup, GoneBackup, QueueItem};

/// What the watch shows, and what outlives a Backup in it.
#[derive(Default)]
pub(super) struct QueueState {
    /// Those that wait or run, by name.
    pub backups: Cache<String, QueueItem, QueueTotals>,
    /// Runs that ended well, by the name of the Backup.
    pub ended: HashMap<String, CompletedRun>,
    /// Those that wait for operations, or have to be completed, by name.
    pub after: Cache<String, BackupAfterQueue>,
    /// Those of them, and of those that run, that were deleted, until somebody asks.
    pub gone: VecDeque<GoneBackup>,
    /// Names of all Backups that the watch shows, those that have ended included.
    pub names: HashSet<String>,
    pub marks: Marks,
}

/// Deleted Backups that are kept until somebody asks for them. Where no run is begun nobody does.
const MOST_GONE: usize = 10_000;

/// Time marks of the Backups seen last, ended ones included.
#[derive(Default)]
pub(super) struct Marks {
    pub known: HashSet<Timestamp>,
    order: VecDeque<Timestamp>,
}

impl Marks {
    /// Many more than a webhook answers before its watch shows the first of them.
    const MOST: usize = 50_000;

    fn note(&mut self, mark: Timestamp) {
        if self.known.insert(mark) {
            self.order.push_back(mark);
            if self.order.len() > Self::MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }
}

impl QueueState {
    pub fn standing(&self, view: &QueueView) -> Vec<Arc<QueueEntry>> {
        let entries = self.backups.values().map(|item| &item.entry);
        entries.filter(|entry| !view.is_stuck(entry)).cloned().collect()
    }

    /// What each tenant used, runs that go on included.
    pub fn uses(&self, workers: u16, now: Timestamp) -> impl Iterator<Item = Use> {
        let used = move |tenant: &String, took: SignedDuration, until| Use {
            tenant: tenant.clone(),
            worker_seconds: took.as_secs_f64() * f64::from(workers.max(1)),
            until,
        };
        let ended =
            self.ended.values().filter_map(move |run| Some(used(run.tenant.as_ref()?, run.took, run.ended)));
        let in_progress = self.backups.values().filter(|item| item.entry.phase == QueuePhase::InProgress);
        let running = in_progress.filter_map(move |item| {
            let took = now.duration_since(item.entry.started_at?);
            Some(used(item.entry.tenant.as_ref()?, took, now))
        });
        ended.chain(running)
    }

    pub fn relist(&mut self, all: Vec<CachedBackup>) {
        self.ended.clear();
        self.names = all.iter().map(|seen| seen.name.clone()).collect();
        let mut ends = Vec::with_capacity(all.len());
        let mut weight = 0;
        let here: HashSet<&str> = all.iter().map(|seen| seen.after.uid()).collect();
        let runs = self.backups.values().filter_map(GoneBackup::of_run);
        let gone = runs.chain(self.after.values().map(GoneBackup::of_operations));
        let gone: Vec<GoneBackup> = gone.filter(|gone| !here.contains(gone.uid.as_str())).collect();
        self.note_gone(gone);
        let mut after = Vec::new();
        self.backups.relist(all.into_iter().map(|mut seen| {
            after.push((seen.name.clone(), seen.after));
            bound(&mut seen.observed, weight);
            if let Observed::Kept(item) = &seen.observed {
                weight += large(item);
            }
            ends.push((seen.name.clone(), seen.mark, seen.run));
            (seen.name, seen.observed)
        }));
        self.after.relist(after);
        for (name, mark, run) in ends {
            self.note(name, mark, run);
        }
    }

    pub fn note_gone(&mut self, gone: impl IntoIterator<Item = GoneBackup>) {
        self.gone.extend(gone);
        let excess = self.gone.len().saturating_sub(MOST_GONE);
        self.gone.drain(..excess);
    }

    pub fn apply(&mut self, seen: CachedBackup) {
        let CachedBackup { name, mut observed, after, mark, run } = seen;
        bound(&mut observed, self.weight_without(&name));
        if !self.names.contains(&name) {
            self.names.insert(name.clone());
        }
        self.backups.apply(name.clone(), observed);
        self.after.apply(name.clone(), after);
        self.note(name, mark, run);
    }

    /// `false`: that Backup is not known any more.
    pub fn assume(&mut self, seen: CachedBackup) -> bool {
        let CachedBackup { name, mut observed, after, mark, run } = seen;
        bound(&mut observed, self.weight_without(&name));
        let is_after = self.after.get(&name).is_some_and(|known| known.uid == after.uid());
        let is_known = self.backups.assume_known(name.clone(), observed) || is_after;
        if is_known {
            self.after.assume(name.clone(), after);
            self.note(name, mark, run);
        }
        is_known
    }

    fn weight_without(&self, name: &str) -> usize {
        let weight = self.backups.index().weight;
        weight.saturating_sub(self.backups.get(name).map_or(0, large))
    }

    /// Keeps what outlives a Backup in the cache. A run is kept only once its Backup has left the
    /// cache.
    fn note(&mut self, name: String, mark: Option<Timestamp>, run: Option<CompletedRun>) {
        if let Some(mark) = mark {
            self.marks.note(mark);
        }
        if let Some(run) = run
            && self.backups.get(&name).is_none()
        {
            self.ended.insert(name, run);
        }
    }
}
