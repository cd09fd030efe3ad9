//! Since when no location of a leaving entry has been writable. Nothing of it outlives the process:
//! the next one sees it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use berth_garden_core::member::Quiesced;
use parking_lot::Mutex;

use crate::pace::passed;

/// By entry: since when, and the marks of the migrations that were running then.
#[derive(Default)]
pub struct QuietEntries(Mutex<BTreeMap<String, (Instant, Vec<String>)>>);

impl QuietEntries {
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Forgets all but `entries`.
    pub fn retain(&self, entries: &BTreeSet<String>) {
        self.0.lock().retain(|name, _| entries.contains(name));
    }

    pub fn begin(&self, entry: &str, migrations: Vec<String>) {
        self.0.lock().insert(entry.to_owned(), (Instant::now(), migrations));
    }

    pub fn forget(&self, entry: &str) {
        self.0.lock().remove(entry);
    }

    pub fn get(&self, entry: &str) -> Option<Quiesced> {
        let all = self.0.lock();
        let (since, migrations) = all.get(entry)?;
        Some(Quiesced { lasted: passed(since.elapsed()), migrations: migrations.clone() })
    }
}
