//! When a backup may start and end, estimated from earlier runs like it. No estimate is given
//! without such runs.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::plan::{settled, starts};
use super::view::{Includes, QueueEntry, QueuePhase, QueueView};

/// A run that completed successfully.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedRun {
    pub schedule: Option<String>,
    pub tenant: Option<String>,
    /// Same as [`QueueEntry::includes`].
    pub includes: Includes,
    pub took: SignedDuration,
    pub ended: Timestamp,
}

/// Durations of earlier runs, by what they have in common.
#[derive(Clone, Debug, Default)]
pub struct RunHistory<'a> {
    by_schedule: HashMap<&'a str, Vec<&'a CompletedRun>>,
    by_includes: HashMap<Includes, Vec<&'a CompletedRun>>,
}

/// Three estimates of one value: from the shortest, the median and the longest of the recent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band<T> {
    pub earliest: T,
    pub likely: T,
    pub latest: T,
}

/// The estimate for one backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    pub backup: usize,
    /// `None` for a running backup.
    pub start: Option<Band<Timestamp>>,
    /// `None` if no run like this one, or like one that it waits for, is known.
    pub end: Option<Band<Timestamp>>,
}

impl<'a> RunHistory<'a> {
    /// How many runs of the same schedule, or else of the same namespaces, count: the last ones.
    const LAST: usize = 5;

    pub fn new(runs: impl IntoIterator<Item = &'a CompletedRun>) -> Self {
        let mut history = Self::default();
        for run in runs {
            match &run.schedule {
                Some(schedule) => history.by_schedule.entry(schedule).or_default().push(run),
                None => history.by_includes.entry(run.includes).or_default().push(run),
            }
        }
        let lists = history.by_schedule.values_mut().chain(history.by_includes.values_mut());
        for runs in lists {
            runs.sort_by_key(|run| Reverse(run.ended));
            runs.truncate(Self::LAST);
        }
        history
    }

    /// Duration of a run like this one: shortest, median and longest.
    pub fn took(&self, entry: &QueueEntry) -> Option<Band<SignedDuration>> {
        let schedule = entry.schedule.as_deref().and_then(|schedule| self.by_schedule.get(schedule));
        let runs = schedule.or_else(|| self.by_includes.get(&entry.includes))?;
        let mut took: Vec<SignedDuration> = runs.iter().map(|run| run.took).collect();
        took.sort_unstable();
        Some(Band { earliest: *took.first()?, likely: *took.get(took.len() / 2)?, latest: *took.last()? })
    }
}

/// Simulates the queue to its end three times. A backup that must wait for one of unknown duration
/// gets no estimate, and a queue of more than `most` backups is not simulated.
pub fn expect(view: &QueueView, history: &RunHistory<'_>, now: Timestamp, most: usize) -> Vec<Expectation> {
    if view.backups.len() + view.others > most || view.stopped.is_some() {
        return Vec::new();
    }
    let took: Vec<Option<Band<SignedDuration>>> = view.backups.iter().map(|b| history.took(b)).collect();
    if took.iter().all(Option::is_none) {
        return Vec::new();
    }
    let simulated = |pick: fn(Band<SignedDuration>) -> SignedDuration| {
        let took: Vec<Option<SignedDuration>> = took.iter().map(|band| band.map(pick)).collect();
        simulate(settled(view.clone()), &took, now)
    };
    let all = [simulated(|band| band.earliest), simulated(|band| band.likely), simulated(|band| band.latest)];
    let at =
        |which: usize, i: usize| all.get(which).and_then(|runs| runs.get(i)).copied().unwrap_or_default();
    let band = |of: fn(SimulatedRun) -> Option<Timestamp>, i: usize| {
        Some(Band { earliest: of(at(0, i))?, likely: of(at(1, i))?, latest: of(at(2, i))? })
    };
    (0..view.backups.len())
        .map(|i| Expectation { backup: i, start: band(|l| l.start, i), end: band(|l| l.end, i) })
        .filter(|expectation| expectation.start.is_some() || expectation.end.is_some())
        .collect()
}

#[derive(Clone, Copy, Default)]
struct SimulatedRun {
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

fn simulate(mut view: QueueView, took: &[Option<SignedDuration>], now: Timestamp) -> Vec<SimulatedRun> {
    let mut runs = vec![SimulatedRun::default(); view.backups.len()];
    let mut ends: BinaryHeap<Reverse<(Timestamp, usize)>> = BinaryHeap::new();
    let end_of = |i: usize, start: Timestamp| {
        let took = took.get(i).copied().flatten()?;
        start.saturating_add(took).ok()
    };
    for (i, (entry, run)) in view.backups.iter_mut().zip(&mut runs).enumerate() {
        if entry.phase == QueuePhase::New {
            Arc::make_mut(entry).phase = QueuePhase::Queued;
        } else if entry.phase.is_running() {
            run.end = end_of(i, entry.started_at.unwrap_or(now)).map(|end| end.max(now));
            ends.extend(run.end.map(|end| Reverse((end, i))));
        }
    }
    let mut at = now;
    loop {
        for i in starts(&view).start {
            let (Some(entry), Some(run)) = (view.backups.get_mut(i), runs.get_mut(i)) else { continue };
            Arc::make_mut(entry).phase = QueuePhase::ReadyToStart;
            *run = SimulatedRun { start: Some(at), end: end_of(i, at) };
            ends.extend(run.end.map(|end| Reverse((end, i))));
        }
        let Some(Reverse((end, i))) = ends.pop() else { return runs };
        at = end;
        if let Some(entry) = view.backups.get_mut(i) {
            // A backup that has ended blocks no other one.
            let entry = Arc::make_mut(entry);
            (entry.phase, entry.canceled) = (QueuePhase::Queued, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Glob;
    use crate::namespace::NamespaceSet;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn entry(name: &str, phase: QueuePhase, position: u32, namespace: &str) -> Arc<QueueEntry> {
        Arc::new(QueueEntry {
            name: name.to_owned(),
            uid: name.to_owned(),
            phase,
            position,
            started_at: Some(at(0)),
            includes: Includes::of([namespace]),
            namespaces: NamespaceSet::literal(Glob::parse(namespace)),
            ..QueueEntry::default()
        })
    }

    fn run(namespace: &str, took: i64, ended: i64) -> CompletedRun {
        CompletedRun {
            schedule: None,
            tenant: None,
            includes: Includes::of([namespace]),
            took: SignedDuration::from_secs(took),
            ended: at(ended),
        }
    }

    #[test]
    fn a_backup_starts_when_those_ahead_of_it_have_ended() {
        let view = QueueView {
            backups: vec![
                entry("runs", QueuePhase::InProgress, 0, "a"),
                entry("next", QueuePhase::Queued, 1, "b"),
                entry("unknown", QueuePhase::Queued, 2, "c"),
                entry("behind", QueuePhase::Queued, 3, "a"),
            ],
            ..QueueView::default()
        };
        let runs = [run("a", 8, -100), run("a", 10, -90), run("a", 30, -80), run("b", 5, -70)];
        let found = expect(&view, &RunHistory::new(&runs), at(4), 10);
        let band = |earliest, likely, latest| {
            Some(Band { earliest: at(earliest), likely: at(likely), latest: at(latest) })
        };
        let expected = [
            Expectation { backup: 0, start: None, end: band(8, 10, 30) },
            Expectation { backup: 1, start: band(8, 10, 30), end: band(13, 15, 35) },
            Expectation { backup: 2, start: band(13, 15, 35), end: None },
        ];
        assert_eq!(found, expected, "nothing is said of what waits for one of unknown length");
    }

    #[test]
    fn one_that_takes_longer_than_ever_is_expected_to_end_now() {
        let view = QueueView {
            backups: vec![entry("runs", QueuePhase::InProgress, 0, "a")],
            ..QueueView::default()
        };
        let found = expect(&view, &RunHistory::new(&[run("a", 8, -100)]), at(60), 10);
        assert_eq!(found.first().and_then(|e| e.end).map(|end| end.likely), Some(at(60)));
        assert!(expect(&view, &RunHistory::new(&[]), at(60), 10).is_empty());
    }

    #[test]
    fn only_the_last_five_runs_count_and_a_schedule_counts_before_its_namespaces() {
        let mut runs: Vec<CompletedRun> = (0..9).map(|i| run("a", 100 - i, i)).collect();
        let history = RunHistory::new(&runs);
        let waits = entry("waits", QueuePhase::Queued, 1, "a");
        assert_eq!(history.took(&waits).map(|took| took.latest.as_secs()), Some(96));
        for run in &mut runs {
            run.schedule = Some("nightly".to_owned());
        }
        let history = RunHistory::new(&runs);
        assert_eq!(history.took(&waits), None);
        let of_schedule = QueueEntry { schedule: Some("nightly".to_owned()), ..QueueEntry::default() };
        assert_eq!(history.took(&of_schedule).map(|took| took.likely.as_secs()), Some(94));
    }
}
