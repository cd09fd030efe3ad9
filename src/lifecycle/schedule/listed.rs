//! The Schedules that are due at one time, where they are many: one list of all Schedules costs the
//! API server less than a read of each of them.

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

/// Fewer that are due are read one by one.
pub(super) const MANY: usize = 16;
/// And so are those that are less than one in so many of all Schedules.
const PART: usize = 8;
/// Bytes that all Schedules may have as JSON, because a list has them in memory together.
const MOST: usize = 8 << 20;
/// What was listed is decided on for so long. Afterwards a Schedule is read again.
const FRESH: Duration = Duration::from_secs(5);

/// Schedules as a list has shown them.
pub(super) struct ListedSchedules {
    /// When the list began.
    at: Instant,
    by_name: HashMap<String, Schedule>,
}

impl ListedSchedules {
    /// Nothing is listed, so each Schedule is read.
    pub(super) fn none() -> Self {
        Self { at: Instant::now(), by_name: HashMap::new() }
    }

    /// Those of `all` that are due, or none where reads cost less or the list fails.
    pub(super) async fn of(lifecycle: &Lifecycle, all: &[CachedSchedule], due: &[&CachedSchedule]) -> Self {
        let mut listed = Self::none();
        let bytes: usize = all.iter().map(|item| item.bytes).sum();
        if due.len() < MANY.max(all.len() / PART) || bytes > MOST {
            return listed;
        }
        let names: HashSet<&str> = due.iter().map(|item| item.schedule.name.as_str()).collect();
        let keep = |mut schedule: Schedule| {
            let name = schedule.name_any();
            schedule.metadata.managed_fields = None;
            names.contains(name.as_str()).then_some((name, schedule))
        };
        let list = list_as(&lifecycle.clients.call, &lifecycle.namespace, keep);
        match timeout(limits::WRITE, list).await {
            Ok(Ok(found)) => listed.by_name.extend(found.items),
            Ok(Err(error)) => debug!(error = chain(&error), "failed to list the Schedules: reading each"),
            Err(_) => debug!("the list of Schedules takes too long: reading each"),
        }
        listed
    }

    /// `None`: this Schedule is to be read.
    pub(super) fn take(&mut self, name: &str) -> Option<Schedule> {
        self.by_name.remove(name).filter(|_| self.at.elapsed() < FRESH)
    }
}
