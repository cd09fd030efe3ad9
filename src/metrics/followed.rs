//! Gauges that follow a list.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Gauges with the labels of a list that changes. A scrape never sees a part of them missing,
/// because only labels that have left the list are removed.
#[derive(Clone)]
pub struct Followed<L> {
    pub family: Family<L, Gauge>,
    shown: Arc<Mutex<HashSet<L>>>,
}

impl<L: Clone + Eq + Hash> Default for Followed<L> {
    fn default() -> Self {
        Self { family: Family::default(), shown: Arc::default() }
    }
}

impl<L: Clone + Eq + Hash> Followed<L> {
    /// Shows these, and no others.
    pub fn show(&self, all: impl IntoIterator<Item = (L, i64)>) {
        let mut shown = self.shown.lock();
        let mut now = HashSet::new();
        for (label, value) in all {
            self.family.get_or_create(&label).set(value);
            now.insert(label);
        }
        for label in shown.difference(&now) {
            self.family.remove(label);
        }
        *shown = now;
    }
}
