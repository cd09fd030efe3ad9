//! Which namespaces are spoken for while the queue is walked, found by looking at each name once.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use super::reason::Reason;
use super::view::{Entry, View};
use crate::glob::{Effort, Glob};
use crate::namespace::{Meeting, NamespaceSet};

/// What a plan takes, whatever the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Names that are looked up or noted.
    pub names: usize,
    /// Steps of comparing: see [`Effort`].
    pub steps: u32,
}

/// Namespaces that are spoken for, and by whom. Plain names are looked up; sets with patterns are few, and
/// equal ones (the backups of one schedule) are kept once.
pub(super) struct Held<'a> {
    effort: Effort,
    names: HashMap<&'a Glob, usize, ByMark>,
    patterns: Vec<(&'a NamespaceSet, usize)>,
    known: HashMap<&'a NamespaceSet, usize, ByMark>,
    /// Everything is held by this one: nobody behind it can start.
    all: Option<usize>,
    /// What runs, and what is started now.
    running: Vec<usize>,
    started: HashSet<usize>,
    looks: Cell<usize>,
}

impl<'a> Held<'a> {
    /// With room for so many names.
    pub(super) fn new(names: usize) -> Self {
        Self {
            effort: Effort::of_decision(),
            names: HashMap::with_capacity_and_hasher(names, ByMark),
            patterns: Vec::new(),
            known: HashMap::default(),
            all: None,
            running: Vec::new(),
            started: HashSet::new(),
            looks: Cell::new(0),
        }
    }

    pub(super) fn work(&self) -> Work {
        let steps = Effort::of_decision().left().saturating_sub(self.effort.left());
        Work { names: self.looks.get(), steps }
    }

    pub(super) fn hold(&mut self, holder: usize, set: &'a NamespaceSet) {
        if self.all.is_some() || self.known.contains_key(set) {
            return;
        }
        // Nobody is told apart from a pattern any more, so all behind it wait, whatever else is held.
        if self.effort.left() == 0 && !self.patterns.is_empty() {
            return;
        }
        if set.takes_all() {
            self.all = Some(holder);
        }
        for name in set.names() {
            self.names.entry(name).or_insert(holder);
        }
        self.looks.set(self.looks.get() + set.names().len());
        self.known.insert(set, holder);
        if !set.is_literal() {
            self.patterns.push((set, holder));
        }
    }

    /// By what runs already.
    pub(super) fn hold_running(&mut self, holder: usize, set: &'a NamespaceSet) {
        self.hold(holder, set);
        self.running.push(holder);
    }

    pub(super) fn started(&mut self, holder: usize) {
        self.running.push(holder);
        self.started.insert(holder);
    }

    /// The first meeting found: plain names first, in the order in which the backup lists them.
    pub(super) fn meets(&self, view: &View, set: &NamespaceSet) -> Option<Reason> {
        let by_name = set.names().iter().find_map(|name| self.holder(name));
        let (holder, namespaces) = match by_name {
            Some(holder) => {
                let same = set.names().iter().filter(|name| self.holder(name) == Some(holder));
                (holder, same.take(Meeting::TOLD).map(|name| name.as_str().to_owned()).collect())
            }
            None => self.meets_pattern(set).or_else(|| self.pattern_meets_name(set))?,
        };
        self.told(view, holder, namespaces)
    }

    /// What nothing is in the way of is compared with each that runs once more, as whoever opens it does
    /// ([`may_open`](super::may_open)): what takes that too long counts as a meeting there, and one that was started would keep a
    /// slot that it does not get.
    pub(super) fn meets_running(&self, view: &View, entry: &Entry) -> Option<Reason> {
        self.running.iter().find_map(|holder| {
            let other = &view.backups.get(*holder)?.namespaces;
            let is_apart = are_plain(other, &entry.namespaces);
            let meeting = if is_apart { None } else { other.meets(&entry.namespaces, &self.effort) };
            self.told(view, *holder, meeting?.namespaces)
        })
    }

    fn told(&self, view: &View, holder: usize, namespaces: Vec<String>) -> Option<Reason> {
        let entry = view.backups.get(holder)?;
        Some(Reason::Overlap {
            with: entry.name.clone(),
            running: entry.phase.is_running() || self.started.contains(&holder),
            namespaces,
        })
    }

    fn holder(&self, name: &Glob) -> Option<usize> {
        self.looks.set(self.looks.get() + 1);
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
            .find_map(|(held, holder)| held.meets(set, &self.effort).map(|m| (*holder, m.namespaces)))
    }

    fn pattern_meets_name(&self, set: &NamespaceSet) -> Option<(usize, Vec<String>)> {
        if set.is_literal() {
            return None;
        }
        // In no order, but the first one held is told while all can be looked at.
        let mut first: Option<(usize, &str)> = None;
        for (name, holder) in &self.names {
            // Whoever takes everything contains each without a look.
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

/// For what hashes as one number that is as good as drawn by lot: the mark of a name, or of a set.
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
    /// Not asked for by marks.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

/// Names alone are told apart within one comparison.
pub(super) fn are_plain(a: &NamespaceSet, b: &NamespaceSet) -> bool {
    a.is_literal() && b.is_literal()
}
