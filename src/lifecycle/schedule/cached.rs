//! What is kept of a Schedule: in the watch cache, and between a decision and its write.

use std::sync::Arc;

use berth_api::velero::Schedule;
use berth_core::schedule as core;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;

use crate::cache::Versioned;
use crate::patch::json_size;
use crate::write::Write;

/// Bytes of the JSON of a Schedule from which on it is large.
pub(super) const LARGE: usize = 64 << 10;

/// What is kept of a Schedule. Its template may be large, so it is read when it is needed.
#[derive(Clone)]
pub(super) struct CachedSchedule {
    pub(super) schedule: Arc<core::Schedule>,
    version: String,
    /// [`core::Schedule::first`], and the time from there to the next one. No pass searches for
    /// them again, because all Schedules together could keep the leader busy for a minute.
    pub(super) first: Option<Timestamp>,
    pub(super) interval: Option<SignedDuration>,
    /// Bytes of its JSON.
    pub(super) bytes: usize,
}

impl CachedSchedule {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let decided = schedule.decided();
        let first = decided.first();
        Self {
            version: schedule.resource_version().unwrap_or_default(),
            first,
            interval: first.and_then(|first| decided.interval(first)),
            bytes: json_size(schedule),
            schedule: Arc::new(decided),
        }
    }

    pub(super) fn is_large(&self) -> bool {
        self.bytes > LARGE
    }
}

/// A Schedule that was decided on, as a write names it. It is not kept whole, because many may be
/// due at one time.
pub(super) struct DecidedOn {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    version: Option<String>,
}

impl DecidedOn {
    pub(super) fn of(found: &Schedule) -> Self {
        Self { name: found.name_any(), uid: found.uid(), version: found.resource_version() }
    }

    pub(super) fn write(&self) -> Write<'_> {
        Write::to(&self.name).uid(self.uid.as_deref()).version(self.version.as_deref())
    }
}

impl Versioned for CachedSchedule {
    fn uid(&self) -> &str {
        &self.schedule.uid
    }

    fn resource_version(&self) -> &str {
        &self.version
    }
}
