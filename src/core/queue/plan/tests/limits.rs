//! The cost of a plan for Backups at the limits, in names and steps, which are the same on every
//! machine.

use super::*;
use crate::limits;
use crate::queue::{PlanCost, work};

fn waiting(count: usize, texts: impl Fn(usize) -> Vec<String>) -> QueueView {
    let one = |i: usize| {
        let texts = texts(i);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        entry(&format!("b{i}"), QueuePhase::Queued, 0, &texts)
    };
    QueueView { slots: 1, backups: (0..count).map(one).collect(), ..QueueView::default() }
}

#[test]
fn each_name_is_looked_at_twice_however_many_backups_are_ahead() {
    for backups in [10, 40] {
        let own =
            |i: usize| (0..limits::NAMES).map(|name| format!("team-{i}-{name}")).collect::<Vec<String>>();
        let view = waiting(backups, own);
        let most = PlanCost { names: 2 * backups * limits::NAMES, steps: 0 };
        assert_eq!(work(&view), most);
        assert_eq!(plan(&view).waiting.len(), backups - 1);
    }
}

#[test]
fn the_backups_of_one_schedule_are_looked_at_once() {
    let view = waiting(100, |_| (0..limits::NAMES).map(|name| format!("team-{name}")).collect());
    let found = work(&view);
    assert!(found.names <= 2 * limits::NAMES + 100 * 10, "{found:?}");
    assert!(
        plan(&view)
            .waiting
            .iter()
            .all(|w| matches!(&w.reason, QueueReason::Overlap { with, .. } if with == "b0"))
    );
}

fn letter(at: usize) -> char {
    char::from(b'a' + u8::try_from(at % 26).unwrap())
}

/// Patterns that take long to be found disjoint.
fn patterns(i: usize) -> impl Iterator<Item = String> {
    let pattern = move |p: usize| {
        (0..31).map(|at| format!("*{}", letter(i + p * 7 + at * (p % 5 + 1)))).collect::<String>()
    };
    (0..limits::PATTERNS).map(pattern)
}

#[test]
fn patterns_take_no_more_than_the_effort_of_a_decision_and_names_no_more_for_it() {
    let long = |i: usize| {
        let names = (0..limits::NAMES - limits::PATTERNS).map(|name| format!("team-{i}-{name}"));
        names.chain(patterns(i)).collect::<Vec<String>>()
    };
    let view = waiting(40, long);
    let found = work(&view);
    assert!(found.names <= 2 * 40 * limits::NAMES, "{found:?}");
    assert!(found.steps <= Effort::of_decision().left(), "{found:?}");
    assert_eq!(plan(&view).start, [0]);
}

/// Names that each of [`never`] reads to the end, and that none of them matches.
fn plain(first: usize, count: usize) -> impl Iterator<Item = String> {
    (first..first + count).map(|i| format!("{}{i:04}", "ab".repeat(29)))
}

fn never(count: usize) -> impl Iterator<Item = String> {
    let twice = |i: usize| if i.is_multiple_of(2) { "aa" } else { "bb" };
    (0..count).map(move |i| format!("*{}{}*", twice(i), "?".repeat(i / 2)))
}

/// Backups with so many names and so many patterns each, and no name in common.
fn beside_each_other(running: &[(usize, usize)], waiting: &[(usize, usize)]) -> QueueView {
    let mut first = 0;
    let mut backups = Vec::new();
    for (i, (names, patterns)) in running.iter().chain(waiting).enumerate() {
        let texts: Vec<String> = plain(first, *names).chain(never(*patterns)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        first += names;
        let phase = if i < running.len() { QueuePhase::InProgress } else { QueuePhase::Queued };
        backups.push(entry(&format!("b{i}"), phase, 0, &texts));
    }
    QueueView { slots: 100, backups, ..QueueView::default() }
}

#[test]
fn what_takes_longer_than_a_comparison_waits_and_is_not_started_in_vain() {
    for (names, patterns, starts) in [(10, 10, true), (150, 50, false)] {
        let view = beside_each_other(&[(names, 0)], &[(1, patterns)]);
        let plan = plan(&view);
        assert_eq!(plan.start.len() == 1, starts, "{names} names, {patterns} patterns");
        assert_eq!(may_run(&view, &view.backups[1], |_| false), starts);
        if !starts {
            assert!(
                matches!(waits_for(&view, &plan, "b1"), QueueReason::Overlap { with, .. } if with == "b0")
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whoever_is_started_may_be_opened(
        running in prop::collection::vec((1_usize..150, 0_usize..1), 1..4),
        waiting in prop::collection::vec((1_usize..150, 0_usize..52), 1..4),
    ) {
        let mut view = beside_each_other(&running, &waiting);
        for started in plan(&view).start {
            prop_assert!(may_run(&view, &view.backups[started], |_| false));
            Arc::make_mut(&mut view.backups[started]).phase = QueuePhase::InProgress;
        }
    }
}

/// Holds although the backups ahead of it are no longer recorded.
#[test]
fn whoever_comes_when_no_effort_is_left_waits_and_others_do_not() {
    let glob = |text: &str| Glob::parse(text).unwrap();
    for (hostile, starts) in [(3, 3), (60, 1)] {
        let mut view = waiting(2, |i| vec![format!("alone-{i}")]);
        for (i, alone) in view.backups.iter_mut().enumerate() {
            Arc::make_mut(alone).uid = format!("uid-last-{i}");
        }
        for i in 0..hostile {
            let includes = patterns(i).map(|text| glob(&text)).collect();
            let namespaces = NamespaceSet::new(includes, vec![glob("?*")]);
            let made = entry(&format!("b{i}"), QueuePhase::Queued, 0, &[]);
            view.backups.push(Arc::new(QueueEntry { namespaces, ..QueueEntry::clone(&made) }));
        }
        view.slots = 100;
        assert_eq!(work(&view).steps == Effort::of_decision().left(), hostile == 60);
        assert_eq!(plan(&view).start.len(), starts, "beside {hostile}");
    }
}
