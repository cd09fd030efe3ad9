//! When a Schedule is tried again that could not be read, written, or run.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// The first pause; each is twice as long as the one before.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);

/// Failures in a row, by UID.
#[derive(Default)]
pub struct ScheduleRetries(HashMap<String, (u32, Instant)>);

impl ScheduleRetries {
    /// Forgets all others.
    pub fn retain<'u>(&mut self, uids: impl Iterator<Item = &'u str>) {
        if !self.0.is_empty() {
            let uids: HashSet<&str> = uids.collect();
            self.0.retain(|uid, _| uids.contains(uid.as_str()));
        }
    }

    /// How long it still has to wait.
    pub fn pause(&self, uid: &str) -> Option<Duration> {
        let (_, until) = self.0.get(uid)?;
        Some(until.duration_since(Instant::now())).filter(|pause| !pause.is_zero())
    }

    pub fn count(&self, uid: &str) -> u32 {
        self.0.get(uid).map_or(0, |(count, _)| *count)
    }

    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    pub fn failed(&mut self, uid: &str) {
        let count = self.count(uid);
        let pause = FIRST.saturating_mul(1 << count.min(10)).min(LONGEST);
        self.0.insert(uid.to_owned(), (count.saturating_add(1), Instant::now() + pause));
    }
}
