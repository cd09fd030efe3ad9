//! Reads the Schedules that are due at one time. If they are many, one list of all Schedules costs
//! the API server less than a read of each, and it is asked for a moment before that time.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_api::velero::Schedule;
use berth_core::limits;
use kube::ResourceExt as _;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::cached::CachedSchedule;
use crate::client::list_as;
use crate::lifecycle::Lifecycle;
use crate::text::chain;

/// If fewer Schedules are due, each is read by itself.
pub(super) const MANY: usize = 16;
/// Each is also read by itself if the due ones are less than this part (one in eight) of all
/// Schedules.
const PART: usize = 8;
/// Limit of the bytes of all Schedules as JSON, because a list holds them in memory together.
const MOST: usize = 8 << 20;
/// A listed Schedule is used for this long. After that it is read again.
const FRESH: Duration = Duration::from_secs(5);

/// Schedules from a list.
pub(super) struct ListedSchedules {
    /// When the list was requested.
    at: Instant,
    /// For which it was requested, whether it came or failed.
    wanted: HashSet<String>,
    by_name: HashMap<String, Schedule>,
}

impl ListedSchedules {
    /// An empty list, so that each Schedule is read by itself.
    pub(super) fn none() -> Self {
        Self { at: Instant::now(), wanted: HashSet::new(), by_name: HashMap::new() }
    }

    /// Lists all Schedules and keeps those that are due. Empty if single reads cost less, or if the
    /// list fails.
    pub(super) async fn of(lifecycle: &Lifecycle, all: &[CachedSchedule], due: &[&CachedSchedule]) -> Self {
        let mut listed = Self::none();
        let bytes: usize = all.iter().map(|item| item.bytes).sum();
        if due.len() < MANY.max(all.len() / PART) || bytes > MOST {
            return listed;
        }
        listed.wanted = due.iter().map(|item| item.schedule.name.clone()).collect();
        let wanted = &listed.wanted;
        let keep = |mut schedule: Schedule| {
            let name = schedule.name_any();
            schedule.metadata.managed_fields = None;
            wanted.contains(&name).then_some((name, schedule))
        };
        let list = list_as(&lifecycle.clients.call, &lifecycle.namespace, keep);
        match timeout(limits::WRITE, list).await {
            Ok(Ok(found)) => listed.by_name.extend(found.items),
            Ok(Err(error)) => debug!(error = chain(&error), "failed to list the Schedules: reading each"),
            Err(_) => debug!("the list of Schedules takes too long: reading each"),
        }
        listed
    }

    /// Was it requested a moment ago for these Schedules, or for nearly all of them?
    pub(super) fn is_for(&self, due: &[&CachedSchedule]) -> bool {
        let missing = due.iter().filter(|item| !self.wanted.contains(&item.schedule.name)).count();
        missing < MANY && self.at.elapsed() < FRESH
    }

    /// `None`: read this Schedule by itself.
    pub(super) fn take(&mut self, name: &str) -> Option<Schedule> {
        self.by_name.remove(name).filter(|_| self.at.elapsed() < FRESH)
    }
}
