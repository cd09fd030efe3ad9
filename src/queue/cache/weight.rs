//! A limit on the memory that the namespaces of all Backups take together.

use std::cell::Cell;
use std::sync::Arc;

use berth_core::namespace::NamespaceSet;
use berth_core::queue::{QueueIndex, QueuePhase};

use crate::cache::{Indexer, Observed};
use crate::queue::seen::QueueItem;

/// What is known of all items together.
#[derive(Default)]
pub(super) struct QueueTotals {
    pub(super) index: QueueIndex,
    /// Weights of the large sets of namespaces among them.
    pub(super) weight: usize,
}

/// Most that the large sets of namespaces may weigh together: some 280 bytes for each name. The
/// creators of Backups decide how many there are.
pub(super) const MAX_WEIGHT: usize = 400_000;
/// A set that weighs more is large.
const SMALL: usize = 20;

impl Indexer<QueueItem> for QueueTotals {
    fn insert(&mut self, item: &QueueItem) {
        self.index.insert(&item.entry);
        self.weight += large(item);
    }

    fn remove(&mut self, item: &QueueItem) {
        self.index.remove(&item.entry);
        self.weight = self.weight.saturating_sub(large(item));
    }
}

pub(super) fn large(item: &QueueItem) -> usize {
    Some(item.entry.namespaces.weight()).filter(|weight| *weight > SMALL).unwrap_or(0)
}

/// A large set for which there is no room counts as all namespaces. That is the safe side: such a
/// Backup meets every other one, so it runs alone, in its turn. The run itself takes what its spec
/// says. A Backup that is held while it waits gets no room, because it meets nobody: otherwise
/// Backups that never start would take the room of those that do. It is seen anew when it is let
/// go.
pub(super) fn bound(observed: &mut Observed<QueueItem>, weight: usize) {
    if let Observed::Kept(item) = observed
        && large(item) > 0
        && (is_parked(item) || weight + large(item) > MAX_WEIGHT)
    {
        Arc::make_mut(&mut item.entry).namespaces = NamespaceSet::all();
    }
}

fn is_parked(item: &QueueItem) -> bool {
    item.entry.held && matches!(item.entry.phase, QueuePhase::New | QueuePhase::Queued)
}

/// Bounds the sets of one list as its objects come, because a list reaches the cache only when it
/// is whole.
#[derive(Default)]
pub(super) struct ListWeight(Cell<Option<usize>>);

impl ListWeight {
    pub(super) fn begin(&self) {
        self.0.set(Some(0));
    }

    /// Objects that come from here on are bound by what the cache holds.
    pub(super) fn end(&self) {
        self.0.set(None);
    }

    pub(super) fn bound(&self, observed: &mut Observed<QueueItem>) {
        let Some(weight) = self.0.get() else { return };
        bound(observed, weight);
        if let Observed::Kept(item) = observed {
            self.0.set(Some(weight + large(item)));
        }
    }
}
