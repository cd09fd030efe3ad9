//! The immutable state on which one cycle of the queue decides.

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::order::QueueOrder;
use super::reason::QueueReason;
use crate::glob;
use crate::location::Closed;
use crate::namespace::NamespaceSet;

/// The phase of a Backup, as far as the queue distinguishes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePhase {
    #[default]
    /// Empty or `New`: the webhook has not seen this Backup.
    New,
    Queued,
    ReadyToStart,
    InProgress,
}

impl QueuePhase {
    /// Does the backup take a slot and block its namespaces?
    pub fn is_running(self) -> bool {
        matches!(self, Self::ReadyToStart | Self::InProgress)
    }
}

/// A Backup that waits or runs. A view has no finished Backups.
#[derive(Clone, Debug, Default)]
pub struct QueueEntry {
    pub name: String,
    pub uid: String,
    pub phase: QueuePhase,
    /// `status.queuePosition`; 0 when absent.
    pub position: u32,
    /// The Backup must wait (`berth.dev/hold`): it does not start, and blocks no other one.
    pub held: bool,
    /// The Backup must end (`berth.dev/cancel`).
    pub canceled: bool,
    /// When the Backup was moved to the front (`berth.dev/first`).
    pub first: Option<Timestamp>,
    /// The priority class of the Backup (`berth.dev/priority-class`).
    pub class: Option<String>,
    /// The tenant whose share the Backup uses. `None` without fair sharing, and for Backups without
    /// the label.
    pub tenant: Option<String>,
    /// Name of the Schedule that created the Backup.
    pub schedule: Option<String>,
    /// berth has made the Backup for a Schedule (`berth.dev/schedule-uid`), which nobody else can
    /// say of one. The label with the name of a Schedule anybody may write who creates Backups.
    pub is_made: bool,
    /// The Backup replaces older ones of its schedule that still wait (`berth.dev/supersede`).
    pub supersedes: bool,
    /// Name of the storage location; empty for the default one.
    pub location: String,
    /// Annotation `berth.dev/enqueued-at`; see [`is_likely`](super::is_likely).
    pub enqueued_at: Option<Timestamp>,
    /// Annotation `berth.dev/waits-since`: arrival of the first of the Backups that it replaces.
    pub waits_since: Option<Timestamp>,
    /// `status.startTimestamp`.
    pub started_at: Option<Timestamp>,
    /// `metadata.creationTimestamp`, in whole seconds.
    pub created_at: Timestamp,
    /// `spec.includedNamespaces` as written.
    pub includes: Includes,
    /// The namespaces that the Backup takes; once it runs, those that its patterns resolved to.
    pub namespaces: NamespaceSet,
    /// Why the namespaces of the Backup cannot be read. Such a Backup blocks nothing and ends
    /// without a run.
    pub refused: Vec<String>,
}

impl QueueEntry {
    /// Whether the Backup counts as all namespaces although its spec names some. A Backup that is
    /// held does not count, because its namespaces decide nothing.
    pub fn lacks_room(&self) -> bool {
        self.namespaces.takes_all() && self.includes != Includes::of([]) && !self.held
    }

    /// Whether a decision about `other`, an older state of this Backup, would be the same now. The
    /// position is not compared, because no decision depends on the one that is written down.
    pub fn decides_as(&self, other: &Self) -> bool {
        (self.phase, self.held, self.canceled) == (other.phase, other.held, other.canceled)
            && (self.first, self.supersedes) == (other.first, other.supersedes)
            && self.is_made == other.is_made
            && (self.enqueued_at, self.waits_since) == (other.enqueued_at, other.waits_since)
            && (self.started_at, self.includes) == (other.started_at, other.includes)
            && (&self.uid, &self.location) == (&other.uid, &other.location)
            && (&self.class, &self.tenant) == (&other.class, &other.tenant)
            && (&self.schedule, &self.refused) == (&other.schedule, &other.refused)
    }
}

/// Stands for the included namespaces of a Backup: equal lists, in any order, have equal stand-ins.
/// Only its hash is kept, because one is kept of every Backup that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Includes(u64);

impl Includes {
    /// No names stand for all namespaces, as `*` does.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        Self(glob::mark(if names.is_empty() { vec!["*"] } else { names }))
    }
}

/// All state on which one plan depends.
#[derive(Clone, Debug)]
pub struct QueueView {
    /// `--concurrent-backups`, at least 1.
    pub slots: usize,
    /// In any order. Behind `Arc`, so that building a view copies no entry.
    pub backups: Vec<Arc<QueueEntry>>,
    /// Number of further backups on which the answer does not depend.
    pub others: usize,
    pub order: QueueOrder,
    /// How far each tenant is moved back.
    pub handicaps: HashMap<String, SignedDuration>,
    /// Storage locations whose backups must wait. The empty name stands for the default location.
    pub closed_locations: HashMap<String, Closed>,
    /// Why no backup can start at all: no executor is running.
    pub stopped: Option<String>,
    /// UIDs of backups whose every write is refused. They block no other backup and take no slot.
    pub unwritable: HashSet<String>,
    /// UIDs of backups whose last write failed for any reason, each with the number of that
    /// failure: a larger number is a later failure.
    pub failures: HashMap<String, u64>,
}

impl Default for QueueView {
    fn default() -> Self {
        Self {
            slots: 1,
            backups: Vec::new(),
            others: 0,
            order: QueueOrder::default(),
            handicaps: HashMap::new(),
            closed_locations: HashMap::new(),
            stopped: None,
            unwritable: HashSet::new(),
            failures: HashMap::new(),
        }
    }
}

impl QueueEntry {
    /// The time that decides the place of the backup: its own arrival, or that of the first Backup
    /// that it replaces, if that is earlier.
    pub fn since(&self) -> Timestamp {
        let arrived = self.arrived();
        self.waits_since.map_or(arrived, |since| since.min(arrived))
    }

    /// When the backup itself arrived. The time mark of a Backup in phase New is ignored, because
    /// the queue did not write it. Without a mark only the second of creation is known, so the end
    /// of that second counts: the backup then passes none that was created in the same second.
    pub fn arrived(&self) -> Timestamp {
        let created = || self.created_at.saturating_add(SignedDuration::from_secs(1));
        self.mark().unwrap_or_else(|| created().unwrap_or(self.created_at))
    }

    pub(super) fn mark(&self) -> Option<Timestamp> {
        self.enqueued_at.filter(|_| self.phase != QueuePhase::New)
    }
}

/// The sort key of a backup in the queue; the smaller key goes first. The order is total: no two
/// keys are equal.
///
/// 1. Backups that were moved to the front, the last moved one first.
/// 2. Earlier arrival, shifted by priority class and fair share if these are configured.
/// 3. Lower position.
/// 4. Earlier creation.
/// 5. UID, so that every run of the plan agrees.
///
/// A Backup in phase New gets the key that it will have once it is queued, so a Backup that was
/// created with a position gains nothing by it.
///
/// Positions decide only between backups without a time mark. They are rewritten one by one while
/// the queue moves, so an order that followed positions would be wrong in the meantime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueKey<'a> {
    first: Reverse<Option<Timestamp>>,
    shifted: Timestamp,
    enqueued_at: Timestamp,
    position: u32,
    created_at: Timestamp,
    uid: &'a str,
}

impl<'a> QueueKey<'a> {
    pub fn of(
        entry: &'a QueueEntry,
        order: &QueueOrder,
        handicaps: &HashMap<String, SignedDuration>,
    ) -> Self {
        let key = Self::by_arrival(entry);
        if order.is_by_arrival() {
            return key;
        }
        let ahead = order.head_start(entry.class.as_deref()).unwrap_or_default();
        let behind = entry.tenant.as_ref().and_then(|tenant| handicaps.get(tenant)).copied();
        let shift = behind.unwrap_or_default().checked_sub(ahead).unwrap_or_default();
        let shifted = key.enqueued_at.saturating_add(shift).unwrap_or(key.enqueued_at);
        Self { shifted, ..key }
    }

    /// The key without any shift.
    pub fn by_arrival(entry: &'a QueueEntry) -> Self {
        let enqueued_at = entry.since();
        Self {
            first: Reverse(entry.first),
            shifted: enqueued_at,
            enqueued_at,
            position: match entry.position {
                // The position was removed by another writer.
                0 => u32::MAX,
                _ if entry.mark().is_some() || entry.phase == QueuePhase::New => u32::MAX,
                position => position,
            },
            created_at: entry.created_at,
            uid: &entry.uid,
        }
    }
}

impl QueueView {
    /// Number of backups that take a slot.
    pub(super) fn running(&self) -> usize {
        self.backups.iter().filter(|entry| entry.phase.is_running()).count()
    }

    /// Must the backup wait because of its own annotation, because of its location, or because it
    /// cannot be written?
    pub fn holds(&self, entry: &QueueEntry) -> bool {
        entry.held || self.is_unwritable(entry) || self.closed_location(entry).is_some()
    }

    /// Is this a running backup to which not even its end can be written? It takes no slot and has
    /// no place in the queue.
    pub fn is_stuck(&self, entry: &QueueEntry) -> bool {
        entry.phase.is_running() && self.is_unwritable(entry)
    }

    pub(super) fn is_unwritable(&self, entry: &QueueEntry) -> bool {
        !self.unwritable.is_empty() && self.unwritable.contains(&entry.uid)
    }

    fn closed_location(&self, entry: &QueueEntry) -> Option<&Closed> {
        if self.closed_locations.is_empty() { None } else { self.closed_locations.get(&entry.location) }
    }

    /// The reason why a backup that must wait does so.
    pub(super) fn hold_reason(&self, entry: &QueueEntry) -> Option<QueueReason> {
        if self.is_unwritable(entry) {
            return Some(QueueReason::Unwritable);
        }
        if entry.held {
            return Some(QueueReason::Held);
        }
        let location = entry.location.clone();
        Some(match self.closed_location(entry)? {
            Closed::Held => QueueReason::LocationHeld { location },
            Closed::Unavailable { why } => QueueReason::LocationUnavailable { location, why: why.clone() },
        })
    }

    /// Does the backup keep others from its namespaces?
    pub fn blocks(&self, entry: &QueueEntry) -> bool {
        entry.phase.is_running() || !(entry.canceled || self.holds(entry))
    }

    pub fn queue_key<'a>(&self, entry: &'a QueueEntry) -> QueueKey<'a> {
        QueueKey::of(entry, &self.order, &self.handicaps)
    }

    /// Compares two backups: the lesser one goes first.
    pub fn precedence(&self, a: &QueueEntry, b: &QueueEntry) -> Ordering {
        self.queue_key(a).cmp(&self.queue_key(b))
    }

    /// Indices of the waiting backups, in the order in which the plan considers them.
    pub(super) fn ordered(&self) -> Vec<usize> {
        let mut line: Vec<(QueueKey<'_>, usize)> = (self.backups.iter().enumerate())
            .filter(|(_, entry)| !entry.phase.is_running())
            .map(|(i, entry)| (self.queue_key(entry), i))
            .collect();
        line.sort_unstable();
        line.into_iter().map(|(_, i)| i).collect()
    }
}
