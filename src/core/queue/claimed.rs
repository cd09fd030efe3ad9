//! The namespaces that backups ahead in the walk have claimed. Each name is looked up once.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use super::reason::QueueReason;
use super::view::{QueueEntry, QueueView};
use crate::glob::{Effort, Glob};
use crate::namespace::{NamespaceOverlap, NamespaceSet};

/// The cost of a plan, in units that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCost {
    /// Number of names that were looked up or recorded.
    pub names: usize,
    /// Steps of pattern comparison: see [`Effort`].
    pub steps: u32,
}

/// Claimed namespaces, and which backup has claimed them. Plain names are looked up in a map. Sets
/// with patterns are few, and equal ones (the backups of one schedule) are kept once.
pub(super) struct ClaimedNamespaces<'a> {
    effort: Effort,
    names: HashMap<&'a Glob, usize, ByMark>,
    patterns: Vec<(&'a NamespaceSet, usize)>,
    known: HashMap<&'a NamespaceSet, usize, ByMark>,
    /// Index of the backup that claims all namespaces: no backup behind it can start.
    all: Option<usize>,
    /// Backups that run already.
    running: Vec<usize>,
    started: HashSet<usize>,
    lookups: Cell<usize>,
}

impl<'a> ClaimedNamespaces<'a> {
    /// Reserves room for `names` plain names.
    pub(super) fn new(names: usize) -> Self {
        Self {
            effort: Effort::of_decision(),
            names: HashMap::with_capacity_and_hasher(names, ByMark),
            patterns: Vec::new(),
            known: HashMap::default(),
            all: None,
            running: Vec::new(),
            started: HashSet::new(),
            lookups: Cell::new(0),
        }
    }

    pub(super) fn work(&self) -> PlanCost {
        let steps = Effort::of_decision().left().saturating_sub(self.effort.left());
        PlanCost { names: self.lookups.get(), steps }
    }

    pub(super) fn claim(&mut self, holder: usize, set: &'a NamespaceSet) {
        if self.all.is_some() || self.known.contains_key(set) {
            return;
        }
        // The effort is spent, so every set counts as overlapping with a pattern: all backups
        // behind this one wait, whatever else is claimed.
        if self.effort.left() == 0 && !self.patterns.is_empty() {
            return;
        }
        if set.takes_all() {
            self.all = Some(holder);
        }
        for name in set.names() {
            self.names.entry(name).or_insert(holder);
        }
        self.lookups.set(self.lookups.get() + set.names().len());
        self.known.insert(set, holder);
        if !set.is_literal() {
            self.patterns.push((set, holder));
        }
    }

    /// Claims the namespaces of a backup that runs already.
    pub(super) fn claim_running(&mut self, holder: usize, set: &'a NamespaceSet) {
        self.claim(holder, set);
        self.running.push(holder);
    }

    pub(super) fn started(&mut self, holder: usize) {
        self.running.push(holder);
        self.started.insert(holder);
    }

    /// The first overlap found. Plain names come first, in the order in which the backup lists
    /// them.
    pub(super) fn meets(&self, view: &QueueView, set: &NamespaceSet) -> Option<QueueReason> {
        let by_name = set.names().iter().find_map(|name| self.holder(name));
        let (holder, namespaces) = match by_name {
            Some(holder) => {
                let same = set.names().iter().filter(|name| self.holder(name) == Some(holder));
                (
                    holder,
                    same.take(NamespaceOverlap::MAX_NAMES).map(|name| name.as_str().to_owned()).collect(),
                )
            }
            None => self.meets_pattern(set).or_else(|| self.pattern_meets_name(set))?,
        };
        self.told(view, holder, namespaces)
    }

    /// Compares a backup that nothing blocks once more with each running one, with the same bounded
    /// effort that [`may_run`](super::may_run) has. A comparison that exceeds that effort counts as
    /// an overlap there, so a backup started without this check would hold a slot in which it may
    /// not run.
    pub(super) fn meets_running(&self, view: &QueueView, entry: &QueueEntry) -> Option<QueueReason> {
        self.running.iter().find_map(|holder| {
            let other = &view.backups.get(*holder)?.namespaces;
            let is_apart = are_plain(other, &entry.namespaces);
            let meeting = if is_apart { None } else { other.meets(&entry.namespaces, &self.effort) };
            self.told(view, *holder, meeting?.namespaces)
        })
    }

    fn told(&self, view: &QueueView, holder: usize, namespaces: Vec<String>) -> Option<QueueReason> {
        let entry = view.backups.get(holder)?;
        Some(QueueReason::Overlap {
            with: entry.name.clone(),
            running: entry.phase.is_running() || self.started.contains(&holder),
            namespaces,
        })
    }

    fn holder(&self, name: &Glob) -> Option<usize> {
        self.lookups.set(self.lookups.get() + 1);
        self.names.get(name).copied()
    }

    fn meets_pattern(&self, set: &NamespaceSet) -> Option<(usize, Vec<String>)> {
        if let Some(holder) = self.known.get(set)
            && let Some(meeting) = set.meets(set, &self.effort)
        {
            return Some((*holder, meeting.namespaces));
        }
        self.patterns
            .iter()
            .find_map(|(claimed, holder)| claimed.meets(set, &self.effort).map(|m| (*holder, m.namespaces)))
    }

    fn pattern_meets_name(&self, set: &NamespaceSet) -> Option<(usize, Vec<String>)> {
        if set.is_literal() {
            return None;
        }
        // The map has no order, so the name that was claimed first is reported, provided that all
        // can be compared.
        let mut first: Option<(usize, &str)> = None;
        for (name, holder) in &self.names {
            // A set of all namespaces contains every name without a comparison.
            self.effort.spend(1);
            if !set.may_contain_name(name, &self.effort) {
                continue;
            }
            let name = name.as_str();
            if first.is_none_or(|known| (*holder, name) < known) {
                first = Some((*holder, name));
            }
            if self.effort.left() == 0 {
                break;
            }
        }
        first.map(|(holder, name)| (holder, vec![name.to_owned()]))
    }
}

/// A hasher for values that write one number which is already uniformly distributed: the mark of a
/// name or of a set.
#[derive(Clone, Default)]
struct ByMark;

impl std::hash::BuildHasher for ByMark {
    type Hasher = Mark;
    fn build_hasher(&self) -> Mark {
        Mark(0)
    }
}

struct Mark(u64);

impl std::hash::Hasher for Mark {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write_u64(&mut self, mark: u64) {
        self.0 = mark;
    }
    /// Never called for marks.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// Plain names alone are always compared exactly within one comparison.
pub(super) fn are_plain(a: &NamespaceSet, b: &NamespaceSet) -> bool {
    a.is_literal() && b.is_literal()
}
