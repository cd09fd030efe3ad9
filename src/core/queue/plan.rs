//! One decision: who starts, why the others wait, which positions are to be written.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::reason::Reason;
use super::view::{Entry, Phase, View};
use crate::namespace::{Meeting, NamespaceSet};

/// What to do, as indices into the view's `backups`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// To ReadyToStart, in this order.
    pub start: Vec<usize>,
    /// Waiting ones that are to end without having run.
    pub end: Vec<End>,
    /// Those that stay, in queue order: the place of `waiting[i]` is `i + 1`.
    pub waiting: Vec<Waiting>,
}

/// A backup that ends without having run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub backup: usize,
    pub cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody asked for it.
    Canceled,
    /// A later one of its schedule takes its place.
    Superseded { by: usize },
}

/// A backup that stays in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub backup: usize,
    /// Its exact place, from 1.
    pub place: u32,
    pub reason: Reason,
}

impl Plan {
    /// Positions that are wrong, from the head of the queue, and backups that are not Queued yet (all of
    /// those: they have no position at all). At most `budget` corrections.
    pub fn renumber<'a>(&'a self, view: &'a View, budget: usize) -> impl Iterator<Item = &'a Waiting> {
        let mut left = budget;
        self.waiting.iter().filter(move |waiting| match view.backups.get(waiting.backup) {
            Some(entry) if entry.phase == Phase::New || entry.position == 0 => true,
            Some(entry) if entry.position != waiting.place && left > 0 => {
                left -= 1;
                true
            }
            _ => false,
        })
    }
}

/// Walks the queue once, in order. A backup starts when a slot is free and it meets neither a running backup
/// nor any that is ahead of it, started just now or passed over: one that is passed over keeps its
/// namespaces, so that a backup of many namespaces is never overtaken for ever by small ones.
pub fn plan(view: &View) -> Plan {
    walk(view, Extent::Whole)
}

/// The beginning of a [`plan`]: done as soon as no slot is left. Holds all that are to start, and those ahead of them
/// that are to end first; nothing of the rest.
pub fn starts(view: &View) -> Plan {
    walk(view, Extent::WhileSlotsLast)
}

/// May a backup that is ReadyToStart begin to run? A second look, by whoever runs it: a write of a leader that was
/// given up, or is gone, may land after another one has decided. `is_open`: it runs it already, whatever the view says.
pub fn may_open(view: &View, entry: &Entry, is_open: impl Fn(&Entry) -> bool) -> bool {
    let running = || {
        let others = view.backups.iter().filter(|b| b.uid != entry.uid);
        others.filter(|b| b.phase == Phase::InProgress || is_open(b))
    };
    running().count() < view.slots.max(1) && !running().any(|b| b.namespaces.overlaps(&entry.namespaces))
}

/// How far to walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Whole,
    /// Until no slot is left: the reasons of the rest are not asked for.
    WhileSlotsLast,
}

fn walk(view: &View, extent: Extent) -> Plan {
    let mut held = Held::default();
    let mut running = 0;
    for (i, entry) in view.backups.iter().enumerate().filter(|(_, entry)| entry.phase.is_running()) {
        held.hold(i, &entry.namespaces);
        running += 1;
    }
    let mut free = view.slots.max(1).saturating_sub(running);
    if view.stopped.is_some() {
        free = 0;
    }
    if extent == Extent::WhileSlotsLast && free == 0 {
        return Plan::default();
    }
    let line = view.line();
    let superseding = superseding(view);
    let mut plan = Plan::default();
    for index in line {
        if extent == Extent::WhileSlotsLast && free == 0 {
            break;
        }
        let Some(entry) = view.backups.get(index) else { continue };
        let later = entry.schedule.as_deref().and_then(|schedule| superseding.get(schedule)).copied();
        let cause = match later {
            _ if entry.canceled => Some(Cause::Canceled),
            Some(by) if by != index && !view.holds(entry) => Some(Cause::Superseded { by }),
            _ => None,
        };
        if let Some(cause) = cause {
            plan.end.push(End { backup: index, cause });
            continue;
        }
        let conflict = held.meets(view, &entry.namespaces);
        if view.is_in_the_way(entry) {
            held.hold(index, &entry.namespaces);
        }
        let reason = match view.hold_reason(entry).or(conflict) {
            Some(reason) => reason,
            None if free > 0 && entry.phase == Phase::Queued => {
                free -= 1;
                held.started(index);
                plan.start.push(index);
                continue;
            }
            // Not Queued yet: it gets its place first, and is looked at again with that in hand.
            None if free > 0 => {
                free -= 1;
                Reason::Next
            }
            None => match &view.stopped {
                Some(why) => Reason::NoExecutor { why: why.clone() },
                None => Reason::NoSlot { slots: view.slots.max(1) },
            },
        };
        let place = u32::try_from(plan.waiting.len() + 1).unwrap_or(u32::MAX);
        plan.waiting.push(Waiting { backup: index, place, reason });
    }
    plan
}

/// The last one of each schedule, waiting or running, if it takes the place of older ones.
fn superseding(view: &View) -> HashMap<&str, usize> {
    // What the queue has not seen comes after what it has.
    let mut last: HashMap<&str, ((bool, Timestamp), usize)> = HashMap::new();
    for (index, entry) in view.backups.iter().enumerate() {
        let Some(schedule) = entry.schedule.as_deref() else { continue };
        let at = (entry.phase == Phase::New, entry.since());
        let known = last.entry(schedule).or_insert((at, index));
        if at >= known.0 {
            *known = (at, index);
        }
    }
    let supersedes = |index: usize| {
        view.backups.get(index).is_some_and(|entry| entry.supersedes && !entry.canceled && !view.holds(entry))
    };
    last.into_iter().filter(|(_, (_, i))| supersedes(*i)).map(|(schedule, (_, i))| (schedule, i)).collect()
}

/// What a backup that is being created would wait for. Names the running backup in its way, or else the one
/// furthest ahead in the queue. Linear, and without a full plan unless a slot is free.
pub fn explain_newcomer(view: &View, newcomer: &Entry) -> Reason {
    if let Some(reason) = view.hold_reason(newcomer) {
        return reason;
    }
    let (by_arrival, standing) = (view.order.is_by_arrival(), view.standing(newcomer));
    // By arrival everybody known is ahead.
    let is_ahead = |b: &Entry| b.phase.is_running() || by_arrival || view.standing(b) < standing;
    let meets =
        |b: &&Arc<Entry>| view.is_in_the_way(b) && b.namespaces.overlaps(&newcomer.namespaces) && is_ahead(b);
    let first = |a: &&Arc<Entry>, b: &&Arc<Entry>| {
        b.phase.is_running().cmp(&a.phase.is_running()).then_with(|| view.precedence(a, b))
    };
    if let Some(entry) = view.backups.iter().filter(meets).min_by(first) {
        let meeting = entry.namespaces.meets(&newcomer.namespaces);
        return Reason::Overlap {
            with: entry.name.clone(),
            running: entry.phase.is_running(),
            namespaces: meeting.map(|m| m.namespaces).unwrap_or_default(),
        };
    }
    if let Some(why) = &view.stopped {
        return Reason::NoExecutor { why: why.clone() };
    }
    let slots = view.slots.max(1);
    let running = view.backups.iter().filter(|b| b.phase.is_running()).count();
    let free = running < slots && running + starts(view).start.len() < slots;
    if free { Reason::Next } else { Reason::NoSlot { slots } }
}

/// Namespaces that are spoken for, and by whom. Plain names are looked up; sets with patterns are few, and
/// equal ones (the backups of one schedule) are kept once.
#[derive(Default)]
struct Held<'a> {
    names: HashMap<&'a str, usize, NameHasher>,
    patterns: Vec<(&'a NamespaceSet, usize)>,
    known: HashMap<&'a NamespaceSet, usize>,
    /// Everything is held by this one: nobody behind it can start.
    all: Option<usize>,
    started: Vec<usize>,
}

impl<'a> Held<'a> {
    fn hold(&mut self, holder: usize, set: &'a NamespaceSet) {
        if self.all.is_some() {
            return;
        }
        if set.takes_all() {
            self.all = Some(holder);
        }
        for name in set.literals() {
            self.names.entry(name).or_insert(holder);
        }
        if !set.is_literal() && self.known.insert(set, holder).is_none() {
            self.patterns.push((set, holder));
        }
    }

    fn started(&mut self, holder: usize) {
        self.started.push(holder);
    }

    /// The first meeting found: plain names first, in the order in which the backup lists them.
    fn meets(&self, view: &View, set: &NamespaceSet) -> Option<Reason> {
        let by_name = set.literals().find_map(|name| self.names.get(name).copied());
        let (holder, namespaces) = match by_name {
            Some(holder) => {
                let same = set.literals().filter(|name| self.names.get(name) == Some(&holder));
                (holder, same.take(Meeting::TOLD).map(str::to_owned).collect())
            }
            None => self.meets_pattern(set).or_else(|| self.pattern_meets_name(set))?,
        };
        let entry = view.backups.get(holder)?;
        Some(Reason::Overlap {
            with: entry.name.clone(),
            running: entry.phase.is_running() || self.started.contains(&holder),
            namespaces,
        })
    }

    fn meets_pattern(&self, set: &NamespaceSet) -> Option<(usize, Vec<String>)> {
        if let Some(holder) = self.known.get(set)
            && let Some(meeting) = set.meets(set)
        {
            return Some((*holder, meeting.namespaces));
        }
        self.patterns.iter().find_map(|(held, holder)| held.meets(set).map(|m| (*holder, m.namespaces)))
    }

    fn pattern_meets_name(&self, set: &NamespaceSet) -> Option<(usize, Vec<String>)> {
        if set.is_literal() {
            return None;
        }
        self.names
            .iter()
            .filter(|(name, _)| set.contains(name))
            .min_by_key(|(name, holder)| (**holder, **name))
            .map(|(name, holder)| (*holder, vec![(*name).to_owned()]))
    }
}

/// Names are short and there are many; whoever may create namespaces gains nothing by making them collide
/// but a slower queue of his own. FNV-1a is half the work of the default.
#[derive(Clone, Default)]
struct NameHasher;

impl std::hash::BuildHasher for NameHasher {
    type Hasher = Fnv;
    fn build_hasher(&self) -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
