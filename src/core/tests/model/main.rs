//! A model of webhooks, leaders, the executor, users and the API server that uses the real planner.
//! It tries every order of steps for a few backups, and many orders for more of them.
//!
//! Safety depends on the following, and the tests show what happens if one of them does not hold:
//!
//! - Every write carries the resourceVersion on which it was decided.
//! - A leader stops before its Lease can be taken, and a new one lists everything after it took the
//!   Lease.
//! - No write of a leader arrives after that leader gave it up; or else the executor checks what
//!   runs before it begins a run.
//! - The cache of a leader never goes back: neither an answer nor a list replaces newer knowledge.

// The helpers of tests may panic as tests may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checks;
mod protocol;
mod state;

use std::collections::BTreeSet;

use checks::{LOST, ORDER, OVERLAP, RUN_OVERLAP, RUN_SLOTS, SLOTS, TRANSITION, WEDGE};
use protocol::{ALL, Queue};
use state::Switch::{self, *};
use stateright::{Checker, Expectation, HasDiscoveries, Model, UniformChooser};

const A: u8 = 0b001;
const B: u8 = 0b010;
const C: u8 = 0b100;

/// `users` and `mishaps`: how many actions of each kind may happen.
fn queue<const N: usize>(
    takes: [u8; N],
    slots: usize,
    users: u8,
    mishaps: u8,
    switches: &[Switch],
) -> Queue<N> {
    let switches = switches.to_vec();
    Queue { takes, slots, users, mishaps, switches, plans: Default::default(), verdicts: Default::default() }
}

/// No state violates a property, and the interesting ones are reached.
fn holds<const N: usize>(queue: Queue<N>) {
    let checker = queue.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The properties that some state violates.
fn violated<const N: usize>(queue: Queue<N>) -> BTreeSet<&'static str> {
    let checker = queue.checker().spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    failures(&checker)
}

fn failures<const N: usize>(checker: &impl Checker<Queue<N>>) -> BTreeSet<&'static str> {
    let is_failure = |name: &&'static str| checker.model().property(name).expectation == Expectation::Always;
    checker.discoveries().into_keys().filter(is_failure).collect()
}

/// Two overlapping backups violate nothing in this `world`, and with the additional switch they
/// violate exactly `what`.
fn breaks(slots: usize, users: u8, mishaps: u8, world: &[Switch], with: Switch, what: &[&'static str]) {
    let two = |switches: &[Switch]| violated(queue([A, ALL], slots, users, mishaps, switches));
    assert_eq!(two(world), BTreeSet::new());
    assert_eq!(two(&[world, &[with]].concat()), what.iter().copied().collect());
}

#[test]
fn three_backups_one_slot() {
    holds(queue([A, ALL, B], 1, 1, 1, &[]));
}

#[test]
fn three_backups_two_slots() {
    holds(queue([A, ALL, B], 2, 1, 1, &[]));
}

#[test]
fn four_backups_without_trouble() {
    holds(queue([A, ALL, A, B], 2, 0, 0, &[]));
}

#[test]
fn three_backups_while_answers_and_lists_are_slow() {
    holds(queue([ALL, A, B], 2, 0, 1, &[SlowAnswers, Relists]));
}

#[test]
fn two_backups_and_much_trouble() {
    holds(queue([A, ALL], 1, 2, 2, &[SlowAnswers, Relists]));
}

/// Many long random walks with six backups. The seeds are fixed, so each run takes the same walks.
#[test]
fn walks_through_longer_queues() {
    let walk = |slots, seed, switches: &[Switch]| {
        let queue = queue([A, B, C, ALL, A | B, C], slots, 4, 3, switches);
        let checker = queue.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(200_000);
        checker.spawn_simulation(seed, UniformChooser).join()
    };
    for (slots, seed) in [(2, 1), (3, 2)] {
        let checker = walk(slots, seed, &[SlowAnswers, Relists]);
        eprintln!("{} states, {} steps at most", checker.state_count(), checker.max_depth());
        checker.assert_properties();
    }
    // The walks would find a violation.
    assert!(!failures(&walk(2, 1, &[Unversioned])).is_empty());
}

/// It is the first of those that must end: if it were tried in every cycle, no other would end.
#[test]
fn one_that_cannot_be_written_keeps_nobody_from_ending() {
    holds(queue([A, ALL], 1, 2, 1, &[Refuses]));
}

/// Fencing by resourceVersion protects one object, not the whole queue. This is why there is a
/// Lease.
#[test]
fn a_leader_that_goes_on_after_it_lost_the_lease_overlaps() {
    breaks(1, 0, 1, &[], TwoLeaders, &[OVERLAP, SLOTS, RUN_OVERLAP, RUN_SLOTS]);
}

/// The start of A is in flight, and its leader is gone or has given it up. B is created, gets a
/// place ahead of A and is started. Then A's start arrives, because A was not written since. Only
/// the executor can prevent both from running.
#[test]
fn a_start_that_lands_late_overlaps_unless_the_executor_looks_again() {
    breaks(1, 0, 1, &[], LateWrites, &[OVERLAP, SLOTS, RUN_OVERLAP, RUN_SLOTS]);
    let world = [LateWrites, Gate, SlowAnswers, Relists];
    assert_eq!(violated(queue([A, ALL], 1, 1, 1, &world)), BTreeSet::from([OVERLAP, SLOTS]));
    assert_eq!(violated(queue([A, ALL, B], 2, 0, 1, &[LateWrites, Gate])), BTreeSet::from([OVERLAP, SLOTS]));
}

#[test]
fn an_answer_that_brings_back_what_has_ended_takes_its_slot_for_ever() {
    breaks(1, 0, 0, &[SlowAnswers], AnswerRevives, &[WEDGE]);
}

#[test]
fn a_list_that_undoes_a_start_overlaps() {
    breaks(1, 0, 1, &[Relists], ListReplaces, &[OVERLAP, SLOTS, RUN_OVERLAP, RUN_SLOTS]);
}

/// Faults of Velero's queue.
#[test]
fn q1_ready_to_start_that_a_crash_left_is_lost() {
    breaks(1, 0, 1, &[], ForgetsReady, &[OVERLAP, SLOTS, WEDGE]);
}

#[test]
fn q2_a_count_that_comes_after_the_write_loses_a_slot() {
    breaks(1, 0, 0, &[SlowAnswers], CountsLate, &[WEDGE]);
}

#[test]
fn q3_one_that_is_deleted_keeps_its_slot() {
    breaks(1, 1, 0, &[], CountsDeleted, &[WEDGE]);
}

#[test]
fn q5_without_resource_versions_and_with_equal_positions_unseen_they_overlap() {
    breaks(2, 0, 0, &[], Unversioned, &[OVERLAP, RUN_OVERLAP, ORDER]);
    // With two leaders phases even go back: resourceVersions prevent that, see above.
    let two = queue([A, ALL], 1, 0, 1, &[TwoLeaders, Unversioned]);
    let checker = two.checker().finish_when(HasDiscoveries::AnyOf([TRANSITION].into())).spawn_bfs().join();
    assert!(checker.discovery(TRANSITION).is_some());
}

#[test]
fn positions_let_nobody_pass() {
    holds(queue([A; 4], 1, 0, 0, &[Swaps]));
}

/// Otherwise a schedule that comes round sooner than the queue moves would wait for ever.
#[test]
fn whoever_takes_the_place_of_another_stands_there() {
    holds(queue([A; 4], 1, 0, 0, &[Supersedes]));
    let longer = queue([A, A, B, A, ALL, A], 1, 3, 2, &[Supersedes, SlowAnswers]);
    let checker = longer.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(50_000);
    checker.spawn_simulation(3, UniformChooser).join().assert_properties();
    assert_eq!(violated(queue([A; 4], 1, 0, 0, &[Supersedes, OwnPlace])), BTreeSet::from([LOST]));
}
