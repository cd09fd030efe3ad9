//! An index of all waiting backups. It finds those on which the answer for a new Backup depends
//! without a walk over the whole queue.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::collections::btree_map::{self, BTreeMap};
use std::sync::Arc;

use jiff::Timestamp;

use super::position::latest_sane;
use super::view::{QueueEntry, QueueKey, QueuePhase, QueueView};

/// Updated with every change of the queue. The cost of an update depends only on the namespaces of
/// the changed backup.
#[derive(Debug, Default)]
pub struct QueueIndex {
    running: Groups<()>,
    /// Waiting backups whose namespaces are plain names, by each of these names.
    names: Groups<String>,
    /// Waiting backups with patterns among their namespaces.
    patterns: Groups<Alike>,
    /// Waiting backups by the name of their schedule.
    schedules: Groups<String>,
    marks: Groups<Timestamp>,
    positions: Groups<u32>,
}

type Groups<K> = BTreeMap<K, BTreeSet<Arrived>>;

/// An entry that is ordered by its arrival.
#[derive(Clone, Debug)]
struct Arrived(Arc<QueueEntry>);

impl Arrived {
    /// The name decides between entries with the same UID.
    fn rank(&self) -> (QueueKey<'_>, &str) {
        (QueueKey::by_arrival(&self.0), &self.0.name)
    }
}

impl Ord for Arrived {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Arrived {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Arrived {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Arrived {}

/// Groups the backups that take the same namespaces, as those of one schedule do. It keeps the
/// entry instead of a copy of its patterns, because patterns can be large.
#[derive(Clone, Debug)]
struct Alike(Arc<QueueEntry>);

impl Ord for Alike {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.namespaces.cmp(&other.0.namespaces)
    }
}

impl PartialOrd for Alike {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Alike {}

fn put<K: Ord>(groups: &mut Groups<K>, key: K, one: &Arrived, is_there: bool) {
    match groups.entry(key) {
        btree_map::Entry::Vacant(group) if is_there => {
            group.insert(BTreeSet::from([one.clone()]));
        }
        btree_map::Entry::Vacant(_) => {}
        btree_map::Entry::Occupied(mut group) if is_there => {
            group.get_mut().insert(one.clone());
        }
        btree_map::Entry::Occupied(mut group) => {
            group.get_mut().remove(one);
            if group.get().is_empty() {
                group.remove();
            }
        }
    }
}

/// The first backup of the group that blocks others. The ones behind it do not change the answer
/// for a new Backup.
fn first_blocking<'g>(view: &QueueView, group: &'g BTreeSet<Arrived>) -> Option<&'g Arrived> {
    group.iter().find(|one| view.blocks(&one.0))
}

impl QueueIndex {
    pub fn insert(&mut self, entry: &Arc<QueueEntry>) {
        self.put(entry, true);
    }

    /// `entry` must be what was inserted, unchanged.
    pub fn remove(&mut self, entry: &Arc<QueueEntry>) {
        self.put(entry, false);
    }

    fn put(&mut self, entry: &Arc<QueueEntry>, is_there: bool) {
        let one = Arrived(Arc::clone(entry));
        if entry.phase.is_running() {
            put(&mut self.running, (), &one, is_there);
        } else {
            if entry.namespaces.is_literal() {
                for name in entry.namespaces.literals() {
                    put(&mut self.names, name.to_owned(), &one, is_there);
                }
            } else {
                put(&mut self.patterns, Alike(Arc::clone(entry)), &one, is_there);
            }
            if let Some(schedule) = &entry.schedule {
                put(&mut self.schedules, schedule.clone(), &one, is_there);
            }
        }
        if let Some(mark) = entry.mark() {
            put(&mut self.marks, mark, &one, is_there);
        }
        if entry.phase == QueuePhase::Queued {
            put(&mut self.positions, entry.position, &one, is_there);
        }
    }

    /// The entries on which the answer for a new Backup depends, in no order. With these alone,
    /// `view` gives the new Backup the same [`mark`](super::mark) at `now` as with all entries.
    /// Unless [`depends_on_all`](super::depends_on_all), the
    /// [position](super::position_of_newcomer), the [reason](super::explain_newcomer) and the
    /// number of waiting backups of its schedule are the same, too. The entries that `view` already
    /// has do not matter.
    pub fn facing(&self, view: &QueueView, newcomer: &QueueEntry, now: Timestamp) -> Vec<Arc<QueueEntry>> {
        let mut found: Vec<&Arrived> = Vec::new();
        found.extend(self.running.values().flatten().filter(|one| !view.is_stuck(&one.0)));
        let mut marked = self.marks.range(..=latest_sane(now)).rev().flat_map(|(_, group)| group);
        found.extend(marked.find(|one| !view.is_stuck(&one.0)));
        found.extend(self.positions.values().next_back().and_then(BTreeSet::first));
        found.extend(self.patterns.values().filter_map(|group| first_blocking(view, group)));
        if newcomer.namespaces.is_literal() {
            let named = newcomer.namespaces.literals().filter_map(|name| self.names.get(name));
            found.extend(named.filter_map(|group| first_blocking(view, group)));
        } else {
            // Only the cheap half of the comparison is done here, because the caller may hold a
            // lock.
            let met = self.names.iter().filter(|(name, _)| newcomer.namespaces.could_contain(name));
            found.extend(met.filter_map(|(_, group)| first_blocking(view, group)));
        }
        if !newcomer.supersedes
            && let Some(schedule) = &newcomer.schedule
        {
            found.extend(self.schedules.get(schedule).into_iter().flatten());
        }
        found.sort_unstable_by_key(|one| Arc::as_ptr(&one.0));
        found.dedup_by(|a, b| Arc::ptr_eq(&a.0, &b.0));
        found.into_iter().map(|one| Arc::clone(&one.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use jiff::SignedDuration;
    use proptest::prelude::*;

    use super::*;
    use crate::glob::Glob;
    use crate::location::Closed;
    use crate::namespace::NamespaceSet;
    use crate::queue::{CLOCKS_DIFFER, depends_on_all, explain_newcomer, mark, position_of_newcomer};

    const NAMES: usize = 8;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn globs(texts: &[&str]) -> Vec<Glob> {
        texts.iter().filter_map(|text| Glob::parse(text).ok()).collect()
    }

    fn any_set() -> impl Strategy<Value = NamespaceSet> {
        let name = || prop::sample::select(vec!["a", "b", "c", "d", "e", "a*", "?b", "c*"]);
        let literal = || prop::sample::select(vec!["a", "b", "c", "d", "e", "f"]);
        prop_oneof![
            4 => prop::collection::vec(literal(), 1..4).prop_map(|n| NamespaceSet::literal(globs(&n))),
            2 => (prop::collection::vec(name(), 0..3), prop::collection::vec(name(), 0..2))
                .prop_map(|(takes, leaves)| NamespaceSet::new(globs(&takes), globs(&leaves))),
        ]
    }

    prop_compose! {
        fn any_entry()(
            namespaces in any_set(),
            phase in prop::sample::select(vec![
                QueuePhase::New, QueuePhase::Queued, QueuePhase::Queued, QueuePhase::Queued, QueuePhase::ReadyToStart, QueuePhase::InProgress,
            ]),
            position in 0_u32..5,
            (mark, waits_since, first) in (
                prop::option::of(0_i64..200), prop::option::weighted(0.1, 0_i64..200), prop::option::weighted(0.1, 0_i64..9),
            ),
            created in 0_i64..200,
            (held, canceled) in (prop::bool::weighted(0.2), prop::bool::weighted(0.1)),
            (schedule, supersedes) in (prop::option::weighted(0.4, "[st]"), prop::bool::weighted(0.1)),
            is_elsewhere in prop::bool::weighted(0.2),
        ) -> QueueEntry {
            QueueEntry {
                phase,
                position,
                enqueued_at: mark.map(at),
                waits_since: waits_since.map(at),
                first: first.map(at),
                created_at: at(created),
                held,
                canceled,
                schedule,
                supersedes,
                location: if is_elsewhere { "elsewhere".to_owned() } else { String::new() },
                namespaces,
                ..QueueEntry::default()
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Holds for every history of the queue, and for every further entry in the view.
        #[test]
        fn the_index_answers_for_a_newcomer_as_the_whole_queue_does(
            changes in prop::collection::vec((0..NAMES, prop::option::weighted(0.8, any_entry())), 0..32),
            besides in prop::collection::vec(any_entry(), 0..2),
            newcomer in any_entry(),
            now in 0_i64..200,
            slots in 1_usize..4,
            (closed, unwritable) in (any::<bool>(), prop::option::of(0..NAMES)),
        ) {
            let mut index = QueueIndex::default();
            let mut all: BTreeMap<String, Arc<QueueEntry>> = BTreeMap::new();
            for (i, entry) in changes {
                let name = format!("b{i}");
                if let Some(known) = all.remove(&name) {
                    index.remove(&known);
                }
                if let Some(entry) = entry {
                    let entry = Arc::new(QueueEntry { uid: format!("uid-{i}"), name: name.clone(), ..entry });
                    index.insert(&entry);
                    all.insert(name, entry);
                }
            }
            let unwritable: HashSet<String> = unwritable.into_iter().map(|i| format!("uid-{i}")).collect();
            let mut frame = QueueView { slots, unwritable, ..QueueView::default() };
            if closed {
                frame.closed_locations.insert("elsewhere".to_owned(), Closed::Held);
            }
            let newcomer = QueueEntry { uid: "new".to_owned(), phase: QueuePhase::Queued, ..newcomer };
            let found = index.facing(&frame, &newcomer, at(now));
            let stands = |entry: &&Arc<QueueEntry>| !frame.is_stuck(entry);
            let standing: Vec<Arc<QueueEntry>> = all.values().filter(stands).cloned().collect();
            let distinct: HashSet<&str> = found.iter().map(|entry| entry.name.as_str()).collect();
            prop_assert_eq!(distinct.len(), found.len(), "each once");
            prop_assert!(found.iter().all(|entry| standing.iter().any(|other| Arc::ptr_eq(entry, other))));

            let mut few = QueueView { backups: found, ..frame.clone() };
            let mut whole = QueueView { backups: standing, ..frame };
            let depends = depends_on_all(&few, &newcomer);
            // Entries that the watch has not shown yet.
            for (i, entry) in besides.into_iter().enumerate() {
                let entry = QueueEntry { uid: format!("besides-{i}"), phase: QueuePhase::Queued, ..entry };
                few.backups.push(Arc::new(entry.clone()));
                whole.backups.push(Arc::new(entry));
            }
            prop_assert_eq!(mark(&few, at(now)), mark(&whole, at(now)));
            prop_assert_eq!(position_of_newcomer(&few, &newcomer), position_of_newcomer(&whole, &newcomer));
            if !depends {
                prop_assert_eq!(explain_newcomer(&few, &newcomer), explain_newcomer(&whole, &newcomer));
            }
            let of_schedule = |view: &QueueView| {
                let same = |b: &&Arc<QueueEntry>| !b.phase.is_running() && b.schedule == newcomer.schedule;
                view.backups.iter().filter(same).count()
            };
            if newcomer.schedule.is_some() && !newcomer.supersedes {
                prop_assert_eq!(of_schedule(&few), of_schedule(&whole));
            }
        }
    }

    fn waiting(i: u32, includes: &[&str]) -> Arc<QueueEntry> {
        Arc::new(QueueEntry {
            name: format!("b{i}"),
            uid: format!("uid-{i}"),
            phase: QueuePhase::Queued,
            position: i,
            enqueued_at: Some(at(i.into())),
            namespaces: NamespaceSet::new(globs(includes), Vec::new()),
            ..QueueEntry::default()
        })
    }

    #[test]
    fn no_more_is_found_than_what_is_met() {
        let mut index = QueueIndex::default();
        let runs =
            Arc::new(QueueEntry { phase: QueuePhase::InProgress, ..QueueEntry::clone(&waiting(0, &["x"])) });
        index.insert(&runs);
        for i in 1..1000 {
            index.insert(&waiting(i, &["a", "b"]));
            index.insert(&waiting(1000 + i, &["team-*"]));
        }
        let view = QueueView::default();
        let names = |includes: &[&str], now| {
            let found = index.facing(&view, &waiting(9999, includes), now);
            found.iter().map(|entry| entry.name.clone()).collect::<HashSet<String>>()
        };
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<HashSet<String>>();
        let now = at(5000);
        assert_eq!(names(&["b", "c"], now), set(&["b0", "b1", "b1001", "b1999"]));
        assert_eq!(names(&["z"], now), set(&["b0", "b1001", "b1999"]));
        assert_eq!(names(&["*"], now), set(&["b0", "b1", "b1001", "b1999"]));
        let early = at(7) - CLOCKS_DIFFER;
        assert!(names(&["z"], early).contains("b7"), "the latest mark that is no mistake");
        index.remove(&runs);
        assert!(index.running.is_empty());
    }

    /// Otherwise each pattern would be compared with every waiting backup.
    #[test]
    fn patterns_are_faced_with_those_alone_of_whose_names_they_could_match_one() {
        let mut index = QueueIndex::default();
        for i in 0..500 {
            let name = format!("ns-{i}");
            index.insert(&waiting(i, &[&name, "shared"]));
        }
        let found = |includes: &[&str], excludes: &[&str]| {
            let namespaces = NamespaceSet::new(globs(includes), globs(excludes));
            let newcomer = QueueEntry { namespaces, ..QueueEntry::clone(&waiting(9999, &[])) };
            let found = index.facing(&QueueView::default(), &newcomer, at(5000));
            found.iter().map(|entry| entry.name.clone()).collect::<BTreeSet<String>>()
        };
        // The last entry has the latest mark and the last position.
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<String>>();
        assert_eq!(found(&["team-*", "*q*", "ns-7"], &[]), set(&["b499", "b7"]));
        assert_eq!(found(&["*d", "team-*"], &["*x*"]), set(&["b0", "b499"]));
        // 78, 87, and those that end in 78 or 87 in each of four hundreds.
        assert_eq!(found(&["n[s]-*8*7"], &[]).len(), 10 + 1);
        assert_eq!(found(&[], &["a*"]).len(), 500);
    }
}
