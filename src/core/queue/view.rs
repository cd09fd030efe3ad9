//! The frozen state on which one cycle decides.

use std::cmp::Ordering;
use std::sync::Arc;

use jiff::Timestamp;

use crate::namespace::NamespaceSet;

/// Where a backup stands, as far as the queue cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Empty or `New`: the webhook did not see it.
    New,
    Queued,
    ReadyToStart,
    InProgress,
}

impl Phase {
    /// Does it take one of the slots, and hold its namespaces?
    pub fn is_running(self) -> bool {
        matches!(self, Self::ReadyToStart | Self::InProgress)
    }
}

/// A backup that waits or runs. Finished ones are in no view.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub uid: String,
    pub phase: Phase,
    /// `status.queuePosition`; 0 when absent.
    pub position: u32,
    /// Somebody wants it to wait (`berth.dev/hold`): it does not start, and is in nobody's way.
    pub held: bool,
    /// Somebody wants it to end (`berth.dev/cancel`).
    pub canceled: bool,
    /// Somebody moved it to the front (`berth.dev/first`), and when.
    pub first: Option<Timestamp>,
    /// Annotation `berth.dev/enqueued-at`.
    pub enqueued_at: Option<Timestamp>,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created_at: Timestamp,
    /// What it would take, or, once it runs, what its patterns resolved to.
    pub namespaces: NamespaceSet,
}

/// Everything one decision may look at.
#[derive(Clone, Debug)]
pub struct View {
    /// `--concurrent-backups`, at least 1.
    pub slots: usize,
    /// In any order. Shared, so that freezing a view copies no entry.
    pub backups: Vec<Arc<Entry>>,
}

/// Who goes first: 1. those moved to the front, the last one first, 2. those the queue knows before those it
/// does not, 3. lower position, 4. enqueued earlier, 5. created earlier, 6. UID, so that the order is total
/// and every run agrees.
///
/// A position of 0 on a Queued backup was lost by somebody; it is treated like unknown and so goes by time.
pub fn precedence(a: &Entry, b: &Entry) -> Ordering {
    fn known(entry: &Entry) -> (bool, u32) {
        (entry.phase == Phase::New || entry.position == 0, entry.position)
    }
    fn since(entry: &Entry) -> Timestamp {
        entry.enqueued_at.unwrap_or(entry.created_at)
    }
    b.first
        .cmp(&a.first)
        .then_with(|| known(a).cmp(&known(b)))
        .then_with(|| since(a).cmp(&since(b)))
        .then_with(|| a.created_at.cmp(&b.created_at))
        .then_with(|| a.uid.cmp(&b.uid))
}

impl Entry {
    /// Does it keep others from its namespaces?
    pub fn is_in_the_way(&self) -> bool {
        self.phase.is_running() || !(self.held || self.canceled)
    }
}

impl View {
    /// Indices of the waiting, in the order in which they are considered.
    pub(super) fn line(&self) -> Vec<usize> {
        let mut line: Vec<usize> = (0..self.backups.len())
            .filter(|i| self.backups.get(*i).is_some_and(|b| !b.phase.is_running()))
            .collect();
        line.sort_by(|a, b| match (self.backups.get(*a), self.backups.get(*b)) {
            (Some(a), Some(b)) => precedence(a, b),
            _ => Ordering::Equal,
        });
        line
    }
}
