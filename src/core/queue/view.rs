//! The frozen state on which one cycle decides.

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::order::Order;
use super::reason::Reason;
use crate::location::Closed;
use crate::namespace::NamespaceSet;

/// Where a backup stands, as far as the queue cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
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
#[derive(Clone, Debug, Default)]
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
    /// Priority class that it names (`berth.dev/priority-class`).
    pub class: Option<String>,
    /// Whose share it uses; `None` while there are no shares, and for backups without the label.
    pub tenant: Option<String>,
    /// The schedule that made it.
    pub schedule: Option<String>,
    /// It takes the place of older ones of its schedule that still wait (`berth.dev/supersede`).
    pub supersedes: bool,
    /// Name of its storage location; empty for the default one.
    pub location: String,
    /// Annotation `berth.dev/enqueued-at`; see [`is_likely`](super::is_likely).
    pub enqueued_at: Option<Timestamp>,
    /// Annotation `berth.dev/waits-since`: arrival of the first of those whose place it took.
    pub waits_since: Option<Timestamp>,
    /// `status.startTimestamp`.
    pub started_at: Option<Timestamp>,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created_at: Timestamp,
    /// `spec.includedNamespaces` as they stand, sorted; all of them is `*`.
    pub includes: Vec<String>,
    /// What it would take, or, once it runs, what its patterns resolved to.
    pub namespaces: NamespaceSet,
    /// Why what it would take cannot be told: it takes nothing then, and ends without having run.
    pub refused: Vec<String>,
}

/// Everything one decision may look at.
#[derive(Clone, Debug)]
pub struct View {
    /// `--concurrent-backups`, at least 1.
    pub slots: usize,
    /// In any order. Shared, so that freezing a view copies no entry.
    pub backups: Vec<Arc<Entry>>,
    /// How many more there are, on which what is asked does not depend.
    pub others: usize,
    pub order: Order,
    /// How far back each tenant stands.
    pub handicaps: HashMap<String, SignedDuration>,
    /// Storage locations whose backups are to wait; the empty name for the default one.
    pub closed_locations: HashMap<String, Closed>,
    /// Why nothing can start at all: whoever runs backups is not there.
    pub stopped: Option<String>,
    /// UIDs of backups whose every write is refused: they are in nobody's way, and take no slot.
    pub unwritable: HashSet<String>,
    /// UIDs of backups whose last write failed, for whatever reason, each with the number of that failure: the larger, the later.
    pub failures: HashMap<String, u64>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            slots: 1,
            backups: Vec::new(),
            others: 0,
            order: Order::default(),
            handicaps: HashMap::new(),
            closed_locations: HashMap::new(),
            stopped: None,
            unwritable: HashSet::new(),
            failures: HashMap::new(),
        }
    }
}

impl Entry {
    /// By what it stands in line: when it arrived, or the first of those whose place it took.
    pub fn since(&self) -> Timestamp {
        let arrived = self.arrived();
        self.waits_since.map_or(arrived, |since| since.min(arrived))
    }

    /// When it arrived itself. A mark on what the queue has not seen is not ours, and without one all that is known is the
    /// second in which it was created: it passes nobody who came in that.
    pub fn arrived(&self) -> Timestamp {
        let created = || self.created_at.saturating_add(SignedDuration::from_secs(1));
        self.mark().unwrap_or_else(|| created().unwrap_or(self.created_at))
    }

    pub(super) fn mark(&self) -> Option<Timestamp> {
        self.enqueued_at.filter(|_| self.phase != Phase::New)
    }
}

/// Where a backup stands; smaller goes first. Total: no two are equal.
///
/// 1. those moved to the front, the last one first, 2. by arrival: enqueued earlier, shifted by class and share where there
///    are any, 3. lower position, 4. created earlier, 5. UID, so that every run agrees.
///
/// What the queue has not seen yet stands where it will stand then: whoever says that he has a place already gains nothing.
///
/// Positions decide only where nobody marked the time: they are rewritten one by one as the queue moves, and an order
/// that followed them would be wrong while that goes on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing<'a> {
    first: Reverse<Option<Timestamp>>,
    shifted: Timestamp,
    enqueued_at: Timestamp,
    position: u32,
    created_at: Timestamp,
    uid: &'a str,
}

impl<'a> Standing<'a> {
    pub fn of(entry: &'a Entry, order: &Order, handicaps: &HashMap<String, SignedDuration>) -> Self {
        let standing = Self::by_arrival(entry);
        if order.is_by_arrival() {
            return standing;
        }
        let ahead = order.head_start(entry.class.as_deref()).unwrap_or_default();
        let behind = entry.tenant.as_ref().and_then(|tenant| handicaps.get(tenant)).copied();
        let shift = behind.unwrap_or_default().checked_sub(ahead).unwrap_or_default();
        let shifted = standing.enqueued_at.saturating_add(shift).unwrap_or(standing.enqueued_at);
        Self { shifted, ..standing }
    }

    /// Where nothing shifts anybody.
    pub fn by_arrival(entry: &'a Entry) -> Self {
        let enqueued_at = entry.since();
        Self {
            first: Reverse(entry.first),
            shifted: enqueued_at,
            enqueued_at,
            position: match entry.position {
                // Somebody lost it.
                0 => u32::MAX,
                _ if entry.mark().is_some() || entry.phase == Phase::New => u32::MAX,
                position => position,
            },
            created_at: entry.created_at,
            uid: &entry.uid,
        }
    }
}

impl View {
    /// How many take a slot.
    pub(super) fn running(&self) -> usize {
        self.backups.iter().filter(|entry| entry.phase.is_running()).count()
    }

    /// Is it to wait, by its own mark or by that of its location, or because it cannot be written?
    pub fn holds(&self, entry: &Entry) -> bool {
        entry.held || self.is_unwritable(entry) || self.closed_location(entry).is_some()
    }

    /// Could it not even be said to run, or that it has ended? Nobody runs it, and it stands in no line.
    pub fn is_stuck(&self, entry: &Entry) -> bool {
        entry.phase.is_running() && self.is_unwritable(entry)
    }

    pub(super) fn is_unwritable(&self, entry: &Entry) -> bool {
        !self.unwritable.is_empty() && self.unwritable.contains(&entry.uid)
    }

    fn closed_location(&self, entry: &Entry) -> Option<&Closed> {
        if self.closed_locations.is_empty() { None } else { self.closed_locations.get(&entry.location) }
    }

    /// What a backup waits for that is to wait.
    pub(super) fn hold_reason(&self, entry: &Entry) -> Option<Reason> {
        if self.is_unwritable(entry) {
            return Some(Reason::Unwritable);
        }
        if entry.held {
            return Some(Reason::Held);
        }
        let location = entry.location.clone();
        Some(match self.closed_location(entry)? {
            Closed::Held => Reason::LocationHeld { location },
            Closed::Unavailable { why } => Reason::LocationUnavailable { location, why: why.clone() },
        })
    }

    /// Does it keep others from its namespaces?
    pub fn is_in_the_way(&self, entry: &Entry) -> bool {
        entry.phase.is_running() || !(entry.canceled || self.holds(entry))
    }

    pub fn standing<'a>(&self, entry: &'a Entry) -> Standing<'a> {
        Standing::of(entry, &self.order, &self.handicaps)
    }

    /// Who goes first.
    pub fn precedence(&self, a: &Entry, b: &Entry) -> Ordering {
        self.standing(a).cmp(&self.standing(b))
    }

    /// Indices of the waiting, in the order in which they are considered.
    pub(super) fn line(&self) -> Vec<usize> {
        let mut line: Vec<(Standing<'_>, usize)> = (self.backups.iter().enumerate())
            .filter(|(_, entry)| !entry.phase.is_running())
            .map(|(i, entry)| (self.standing(entry), i))
            .collect();
        line.sort_unstable();
        line.into_iter().map(|(_, i)| i).collect()
    }
}
