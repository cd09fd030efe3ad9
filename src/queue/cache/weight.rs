//! A limit on the memory that the namespaces of all Backups take together.

use std::sync::Arc;

use berth_core::namespace::NamespaceSet;
use berth_core::queue::Index;

use crate::cache::{Indexer, Observed};
use crate::queue::seen::Item;

/// What is known of all items together.
#[derive(Default)]
pub(super) struct Known {
    pub(super) index: Index,
    /// Weights of the large sets of namespaces among them.
    pub(super) weight: usize,
}

/// Most that the large sets of namespaces may weigh together: some 280 bytes for each name. The
/// creators of Backups decide how many there are.
pub(super) const MAX_WEIGHT: usize = 400_000;
/// A set that weighs more is large.
const SMALL: usize = 20;

impl Indexer<Item> for Known {
    fn insert(&mut self, item: &Item) {
        self.index.insert(&item.entry);
        self.weight += large(item);
    }

    fn remove(&mut self, item: &Item) {
        self.index.remove(&item.entry);
        self.weight = self.weight.saturating_sub(large(item));
    }
}

pub(super) fn large(item: &Item) -> usize {
    Some(item.entry.namespaces.weight()).filter(|weight| *weight > SMALL).unwrap_or(0)
}

/// A large set for which there is no room counts as all namespaces. That is the safe side: such a
/// Backup meets every other one, so it runs alone, in its turn. The run itself takes what its spec says.
pub(super) fn bound(observed: &mut Observed<Item>, weight: usize) {
    if let Observed::Kept(item) = observed
        && weight + large(item) > MAX_WEIGHT
        && large(item) > 0
    {
        Arc::make_mut(&mut item.entry).namespaces = NamespaceSet::all();
    }
}
