//! The reason and position that admission reports for a new Backup, without a plan of the whole
//! queue.

use std::collections::HashMap;
use std::sync::Arc;

use super::plan::starts;
use super::reason::QueueReason;
use super::view::{QueueEntry, QueueView};
use crate::glob::Effort;
use crate::namespace::NamespaceSet;

/// The reason why a new Backup would wait. It names the running backup that blocks the new one, or
/// else the blocking one furthest ahead in the queue. Linear in the number of backups; a plan is
/// made only if a slot is free.
pub fn explain_newcomer(view: &QueueView, newcomer: &QueueEntry) -> QueueReason {
    if let Some(reason) = view.hold_reason(newcomer) {
        return reason;
    }
    let mut compared = Compared::with(&newcomer.namespaces);
    if let Some(entry) = first_blocking(view, newcomer, &mut compared) {
        let meeting = entry.namespaces.meets(&newcomer.namespaces, &compared.effort);
        return QueueReason::Overlap {
            with: entry.name.clone(),
            running: entry.phase.is_running(),
            namespaces: meeting.map(|m| m.namespaces).unwrap_or_default(),
        };
    }
    if let Some(why) = &view.stopped {
        return QueueReason::NoExecutor { why: why.clone() };
    }
    let slots = view.slots.max(1);
    let running = view.running();
    let free = running < slots && running + starts(view).start.len() < slots;
    if free { QueueReason::Next } else { QueueReason::NoSlot { slots } }
}

/// Does the answer for a new Backup depend on more entries than
/// [`Index::facing`](super::QueueIndex::facing) returns? It does if the order is not by arrival,
/// because then its place depends on all. It also does if a slot is free and no backup blocks the
/// new one, because then it matters which others are about to start.
pub fn depends_on_all(view: &QueueView, newcomer: &QueueEntry) -> bool {
    let takes_a_slot = || {
        let could_start = view.stopped.is_none() && view.hold_reason(newcomer).is_none();
        could_start && view.running() < view.slots.max(1)
    };
    let mut compared = Compared::with(&newcomer.namespaces);
    !view.order.is_by_arrival() || (takes_a_slot() && first_blocking(view, newcomer, &mut compared).is_none())
}

/// The running backup that blocks the new one, or else the blocking one furthest ahead in the
/// queue.
fn first_blocking<'a>(
    view: &'a QueueView,
    newcomer: &'a QueueEntry,
    compared: &mut Compared<'a>,
) -> Option<&'a Arc<QueueEntry>> {
    let (by_arrival, key) = (view.order.is_by_arrival(), view.queue_key(newcomer));
    // In the order of arrival, every known backup is ahead.
    let is_ahead = |b: &QueueEntry| b.phase.is_running() || by_arrival || view.queue_key(b) < key;
    let precedes = |a: &Arc<QueueEntry>, b: &Arc<QueueEntry>| {
        let running_first = b.phase.is_running().cmp(&a.phase.is_running());
        running_first.then_with(|| view.precedence(a, b)).is_lt()
    };
    let mut first: Option<&Arc<QueueEntry>> = None;
    for b in view.backups.iter().filter(|b| view.blocks(b) && is_ahead(b)) {
        if first.is_none_or(|known| precedes(b, known)) && compared.overlaps(&b.namespaces) {
            first = Some(b);
        }
    }
    first
}

/// The namespaces that were compared, because the backups of one schedule have equal ones.
struct Compared<'a> {
    set: &'a NamespaceSet,
    effort: Effort,
    patterns: HashMap<&'a NamespaceSet, bool>,
}

impl<'a> Compared<'a> {
    fn with(set: &'a NamespaceSet) -> Self {
        Self { set, effort: Effort::of_decision(), patterns: HashMap::new() }
    }

    fn overlaps(&mut self, other: &'a NamespaceSet) -> bool {
        if other.is_literal() {
            return self.set.overlaps(other, &self.effort);
        }
        *self.patterns.entry(other).or_insert_with(|| self.set.overlaps(other, &self.effort))
    }
}
