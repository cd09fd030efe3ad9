//! The plan of one cycle: which backups start or end, why the others wait, and which positions must
//! be written.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::claimed::{ClaimedNamespaces, PlanCost, are_plain};
use super::reason::QueueReason;
use super::view::{QueueEntry, QueuePhase, QueueView};
use crate::glob::Effort;

/// The actions of one cycle, as indices into the view's `backups`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Backups that become ReadyToStart, in this order.
    pub start: Vec<usize>,
    /// Waiting backups that end without a run.
    pub end: Vec<EndWithoutRun>,
    /// Backups that stay in the queue, in its order: the place of `waiting[i]` is `i + 1`.
    pub waiting: Vec<WaitingBackup>,
}

/// A backup that ends without a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndWithoutRun {
    pub backup: usize,
    pub cause: EndCause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The Backup has the annotation `berth.dev/cancel`.
    Canceled,
    /// A later backup of its schedule replaces it.
    Superseded { by: usize },
    /// The spec of the Backup cannot be read, or exceeds a limit.
    Refused { why: Vec<String> },
}

/// A backup that stays in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingBackup {
    pub backup: usize,
    /// Its exact place, from 1.
    pub place: u32,
    pub reason: QueueReason,
    /// Arrival of the backup that this one replaces. It must be written to this one before the
    /// other one ends.
    pub inherits: Option<Timestamp>,
}

impl Plan {
    /// The backups whose status or mark must be written, in queue order: all that are not Queued
    /// yet, because they have no position; all that replace another one, because those wait for it;
    /// and at most `budget` wrong positions.
    pub fn renumber<'a>(
        &'a self,
        view: &'a QueueView,
        budget: usize,
    ) -> impl Iterator<Item = &'a WaitingBackup> {
        let mut left = budget;
        self.waiting.iter().filter(move |waiting| match view.backups.get(waiting.backup) {
            Some(entry) if view.unwritable.contains(&entry.uid) => false,
            Some(entry) if entry.phase == QueuePhase::New || entry.position == 0 => true,
            Some(_) if waiting.inherits.is_some() => true,
            Some(entry) if entry.position != waiting.place && left > 0 => {
                left -= 1;
                true
            }
            _ => false,
        })
    }
}

/// Walks the queue once, in order. A backup starts if a slot is free and it overlaps neither with a
/// running backup nor with any ahead of it, whether that one is started in this plan or stays. A
/// backup that stays keeps its claim on its namespaces, so small backups cannot overtake a backup
/// of many namespaces for ever.
pub fn plan(view: &QueueView) -> Plan {
    walk(view, WalkExtent::Whole).0
}

/// The beginning of a [`plan`]: the walk ends as soon as no slot is left. Contains every start, and
/// every end that must be written before: those ahead in the queue, and those that a started backup
/// replaces. Contains nothing else.
pub fn starts(view: &QueueView) -> Plan {
    walk(view, WalkExtent::WhileSlotsLast).0
}

/// For tests and benchmarks: reveals a plan that looks up each name once more for each backup
/// ahead, on a machine of any speed.
pub fn work(view: &QueueView) -> PlanCost {
    walk(view, WalkExtent::Whole).1
}

/// May a backup that is ReadyToStart begin to run? The executor checks this a second time, because
/// a write of a former leader may arrive after its successor has decided. `is_run_here` says
/// whether the executor already runs a backup, whatever the view shows.
pub fn may_run(view: &QueueView, entry: &QueueEntry, is_run_here: impl Fn(&QueueEntry) -> bool) -> bool {
    let effort = Effort::of_decision();
    let meets = |b: &QueueEntry| {
        let of_its_own = are_plain(&b.namespaces, &entry.namespaces).then(Effort::of_decision);
        b.namespaces.overlaps(&entry.namespaces, of_its_own.as_ref().unwrap_or(&effort))
    };
    let running = || {
        let others = view.backups.iter().filter(|b| b.uid != entry.uid);
        others.filter(|b| b.phase == QueuePhase::InProgress || is_run_here(b))
    };
    running().count() < view.slots.max(1) && !running().any(|b| meets(b))
}

/// How far to walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkExtent {
    Whole,
    /// Until no slot is left, because the reasons of the others are not needed.
    WhileSlotsLast,
}

fn walk(view: &QueueView, extent: WalkExtent) -> (Plan, PlanCost) {
    let mut free = view.slots.max(1).saturating_sub(view.running());
    if view.stopped.is_some() {
        free = 0;
    }
    if extent == WalkExtent::WhileSlotsLast && free == 0 {
        return <(Plan, PlanCost)>::default();
    }
    let superseding = superseding(view);
    let heirs = heirs(view, &superseding);
    let inherited = (!heirs.is_empty()).then(|| with_heirs(view.clone(), &heirs));
    let view = inherited.as_ref().unwrap_or(view);
    let names: usize = match extent {
        WalkExtent::Whole => view.backups.iter().map(|entry| entry.namespaces.names().len()).sum(),
        WalkExtent::WhileSlotsLast => 0,
    };
    let mut claimed = ClaimedNamespaces::new(names);
    for (i, entry) in view.backups.iter().enumerate().filter(|(_, entry)| entry.phase.is_running()) {
        claimed.claim_running(i, &entry.namespaces);
    }
    let line = view.ordered();
    let mut plan = Plan::default();
    for index in line {
        let is_full = extent == WalkExtent::WhileSlotsLast && free == 0;
        if is_full && superseding.is_empty() {
            break;
        }
        let Some(entry) = view.backups.get(index) else { continue };
        let cause = match replacement(view, &superseding, index) {
            // A hold does not prevent cancellation. A Backup that cannot be written cannot be ended
            // either; it is retried like all unwritable ones.
            _ if entry.canceled && !view.is_unwritable(entry) => Some(EndCause::Canceled),
            Some(by) if !view.holds(entry) => Some(EndCause::Superseded { by }),
            _ if !entry.refused.is_empty() && !view.holds(entry) => {
                Some(EndCause::Refused { why: entry.refused.clone() })
            }
            _ => None,
        };
        if let Some(cause) = cause {
            // A backup that another one replaces must not end before its arrival is written to that
            // one, because its place would be lost.
            if matches!(cause, EndCause::Superseded { by } if heirs.contains_key(&by)) {
                continue;
            }
            plan.end.push(EndWithoutRun { backup: index, cause });
            continue;
        }
        if is_full {
            continue;
        }
        let conflict = match claimed.meets(view, &entry.namespaces) {
            None if free > 0 && view.hold_reason(entry).is_none() => claimed.meets_running(view, entry),
            found => found,
        };
        if view.blocks(entry) {
            claimed.claim(index, &entry.namespaces);
        }
        let reason = match view.hold_reason(entry).or(conflict) {
            Some(reason) => reason,
            None if free > 0 && entry.phase == QueuePhase::Queued && !heirs.contains_key(&index) => {
                free -= 1;
                claimed.started(index);
                plan.start.push(index);
                continue;
            }
            // The backup is not Queued yet, or not marked with the arrival it inherits. That is
            // written first, and the next cycle considers it again.
            None if free > 0 => {
                free -= 1;
                QueueReason::Next
            }
            None => match &view.stopped {
                Some(why) => QueueReason::NoExecutor { why: why.clone() },
                None => QueueReason::NoSlot { slots: view.slots.max(1) },
            },
        };
        let place = u32::try_from(plan.waiting.len() + 1).unwrap_or(u32::MAX);
        plan.waiting.push(WaitingBackup {
            backup: index,
            place,
            reason,
            inherits: heirs.get(&index).copied(),
        });
    }
    (plan, claimed.work())
}

/// The order in which backups of one schedule arrived.
fn arrival(entry: &QueueEntry) -> (Timestamp, Timestamp, &str) {
    (entry.arrived(), entry.created_at, entry.uid.as_str())
}

/// The last backup of each schedule, waiting or running, if it replaces older ones. One that
/// replaces none and only has the label of the schedule does not count, because whoever creates
/// Backups could have the schedule pile up by it.
fn superseding(view: &QueueView) -> HashMap<&str, usize> {
    let mut last: HashMap<&str, ((Timestamp, Timestamp, &str), usize)> = HashMap::new();
    for (index, entry) in view.backups.iter().enumerate() {
        let is_run = entry.is_made || entry.supersedes;
        let Some(schedule) = entry.schedule.as_deref().filter(|_| is_run) else { continue };
        let at = arrival(entry);
        let known = last.entry(schedule).or_insert((at, index));
        if at >= known.0 {
            *known = (at, index);
        }
    }
    let lives = |entry: &QueueEntry| !entry.canceled && entry.refused.is_empty() && !view.holds(entry);
    let supersedes =
        |index: usize| view.backups.get(index).is_some_and(|entry| entry.supersedes && lives(entry));
    last.into_iter().filter(|(_, (_, i))| supersedes(*i)).map(|(schedule, (_, i))| (schedule, i)).collect()
}

/// The later backup of its schedule that replaces this one.
fn replacement(view: &QueueView, superseding: &HashMap<&str, usize>, index: usize) -> Option<usize> {
    let entry = view.backups.get(index)?;
    let by = *superseding.get(entry.schedule.as_deref()?)?;
    (arrival(entry) < arrival(view.backups.get(by)?)).then_some(by)
}

/// Waiting backups that replace one ahead of them, with the time since when that one waits. Without
/// this, a schedule that comes round sooner than the queue moves would lose its place each time,
/// for ever.
fn heirs(view: &QueueView, superseding: &HashMap<&str, usize>) -> HashMap<usize, Timestamp> {
    let mut heirs: HashMap<usize, Timestamp> = HashMap::new();
    if superseding.is_empty() {
        return heirs;
    }
    let goes = |entry: &QueueEntry| !entry.phase.is_running() && !entry.canceled && !view.holds(entry);
    for (index, entry) in view.backups.iter().enumerate().filter(|(_, entry)| goes(entry)) {
        let Some(by) = replacement(view, superseding, index) else { continue };
        let Some(heir) = view.backups.get(by) else { continue };
        let since = entry.since();
        if !heir.phase.is_running() && since < heir.since() {
            let earliest = heirs.entry(by).or_insert(since);
            *earliest = since.min(*earliest);
        }
    }
    heirs
}

/// The view as it will be once the inherited arrivals are written.
fn with_heirs(mut view: QueueView, heirs: &HashMap<usize, Timestamp>) -> QueueView {
    for (by, since) in heirs {
        if let Some(heir) = view.backups.get_mut(*by) {
            Arc::make_mut(heir).waits_since = Some(*since);
        }
    }
    view
}

/// The view with all inherited arrivals written, so that an estimate does not wait for these
/// writes.
pub(super) fn settled(view: QueueView) -> QueueView {
    let heirs = heirs(&view, &superseding(&view));
    with_heirs(view, &heirs)
}

#[cfg(test)]
mod tests;
