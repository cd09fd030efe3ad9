//! When failed operations are tried again.

use std::collections::HashMap;

use berth_garden_core::operation::pause;
use jiff::Timestamp;
use parking_lot::Mutex;

/// By UID of objects whose last operation failed or waits: how often, and when it is tried again.
/// The next process tries all of them at once.
#[derive(Default)]
pub struct OperationRetries(Mutex<HashMap<String, Retry>>);

struct Retry {
    failures: u32,
    not_before: Timestamp,
}

impl OperationRetries {
    pub fn not_before(&self, uid: &str) -> Option<Timestamp> {
        self.0.lock().get(uid).map(|retry| retry.not_before)
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    pub fn failed(&self, uid: &str, now: Timestamp) -> Timestamp {
        let mut all = self.0.lock();
        let retry = all.entry(uid.to_owned()).or_insert(Retry { failures: 0, not_before: now });
        retry.not_before = now.saturating_add(pause(retry.failures)).unwrap_or(Timestamp::MAX);
        retry.failures = retry.failures.saturating_add(1);
        retry.not_before
    }

    pub fn waits(&self, uid: &str, until: Timestamp) {
        self.0.lock().insert(uid.to_owned(), Retry { failures: 0, not_before: until });
    }
}
