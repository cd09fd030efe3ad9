//! A model of leaders that grant places, node-agents that accept, and the API server, which uses
//! the real planner and the real gate. It tries every order of steps for a few data movers, and
//! many orders for more of them.
//!
//! Nothing here depends on time, or on a leader that stops when it should: two processes that
//! believe that they lead may both write at any moment, and any write may arrive late. Safety
//! depends on the rules of `berth_core::mover::grant`; the tests show what happens if one of them
//! does not hold.

// The helpers of tests may panic as tests may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod protocol;
mod state;

use std::collections::BTreeSet;

use berth_core::mover::MoverKind::{self, *};
use protocol::Movers;
use state::Switch::{self, *};
use state::{Action, State};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property, UniformChooser};

const EXCEEDS: &str = "no more are Accepted or Prepared than are allowed";
const OVERBOOKED: &str = "no more hold a place, or may take one, than are allowed";
const WEDGE: &str = "once the trouble is over every one of them goes";
const FULL: &str = "all places are taken while others wait";

impl<const N: usize> Model for Movers<N> {
    type State = State<N>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<N>> {
        vec![self.start()]
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
    }

    fn next_state(&self, state: &State<N>, action: Action) -> Option<State<N>> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCEEDS, |_, s: &State<N>| s.prepare() <= s.cap.into()),
            Property::always(OVERBOOKED, |_, s: &State<N>| s.hold_places() <= s.cap.into()),
            Property::always(WEDGE, |m: &Self, s| m.ends_well(s)),
            Property::sometimes(FULL, |_, s: &State<N>| {
                s.prepare() == usize::from(s.in_force) && s.objects().count() > s.prepare()
            }),
        ]
    }
}

impl<const N: usize> Movers<N> {
    /// Each state with no write on its way is checked by running a fair scheduler from it.
    fn ends_well(&self, state: &State<N>) -> bool {
        if state.late.is_some() || state.leaders.len() > 1 {
            return true;
        }
        let limit = self.limits.len() - 1;
        let calm = State { users: 0, mishaps: 0, out: false, limit, cap: 0, in_force: 0, ..state.clone() };
        self.verdict(&calm, || {
            let mut state = calm.clone();
            while state.created < N {
                state = self.after(&state, Action::Create);
            }
            // Once the cache equals the API server, many states are the same.
            while let Some(action) = self.fair(&state).filter(|action| *action < Action::Plan(0)) {
                state = self.after(&state, action);
            }
            (state.cap, state.in_force) = (0, 0);
            self.verdict(&state, || self.drains(state.clone()))
        })
    }

    /// What was found of such a state before, or is found now. Caps decide nothing, so states in
    /// which they are 0 stand for all others.
    fn verdict(&self, state: &State<N>, find: impl FnOnce() -> bool) -> bool {
        let known = self.verdicts.lock().unwrap().get(state).copied();
        known.unwrap_or_else(|| {
            let found = find();
            self.verdicts.lock().unwrap().insert(state.clone(), found);
            found
        })
    }

    fn drains(&self, mut state: State<N>) -> bool {
        for _ in 0..50 * N {
            if state.objects().next().is_none() {
                return true;
            }
            match self.fair(&state) {
                Some(action) if action < Action::Create => state = self.after(&state, action),
                _ => return false,
            }
        }
        false
    }

    fn fair(&self, state: &State<N>) -> Option<Action> {
        let mut actions = Vec::new();
        self.enabled(state, &mut actions);
        actions.into_iter().min()
    }
}

fn movers<const N: usize>(
    kinds: [MoverKind; N],
    limits: &'static [Option<u8>],
    users: u8,
    mishaps: u8,
    switches: &[Switch],
) -> Movers<N> {
    let switches = switches.to_vec();
    Movers {
        kinds,
        limits,
        users,
        mishaps,
        switches,
        plans: Default::default(),
        verdicts: Default::default(),
    }
}

/// No state violates a property, and the interesting ones are reached.
fn holds<const N: usize>(movers: Movers<N>) {
    let checker = movers.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    eprintln!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// With this rule broken, more data movers are Accepted or Prepared than allowed; without it, no
/// property is violated.
fn breaks<const N: usize>(
    kinds: [MoverKind; N],
    limits: &'static [Option<u8>],
    mishaps: u8,
    world: &[Switch],
    with: Switch,
) {
    let checker = |switches: &[Switch], until| {
        let movers = movers(kinds, limits, 0, mishaps, switches);
        let checker = movers.checker().finish_when(until).spawn_bfs().join();
        eprintln!("{} states", checker.unique_state_count());
        checker
    };
    let whole = checker(world, HasDiscoveries::AnyFailures);
    assert_eq!(failures(&whole), BTreeSet::new());
    let broken = checker(&[world, &[with]].concat(), HasDiscoveries::AnyOf([EXCEEDS].into()));
    assert!(failures(&broken).contains(EXCEEDS), "{with:?} is not found");
}

fn failures<const N: usize>(checker: &impl Checker<Movers<N>>) -> BTreeSet<&'static str> {
    let is_failure = |name: &&'static str| checker.model().property(name).expectation == Expectation::Always;
    checker.discoveries().into_keys().filter(is_failure).collect()
}

const ONE: &[Option<u8>] = &[Some(1)];
const TWO: &[Option<u8>] = &[Some(2)];
const LOWERED: &[Option<u8>] = &[Some(2), Some(1)];
const ON: &[Option<u8>] = &[None, Some(1)];
const OFF: &[Option<u8>] = &[Some(1), None];
const OFF_AND_ON: &[Option<u8>] = &[Some(1), None, Some(1)];

#[test]
fn three_movers_one_place() {
    holds(movers([DataUpload, PodVolumeBackup, DataDownload], ONE, 0, 1, &[TwoLeaders]));
}

#[test]
fn three_movers_two_places_and_an_agent_that_goes_away() {
    holds(movers([DataUpload, PodVolumeBackup, DataUpload], TWO, 0, 1, &[Outages]));
}

#[test]
fn two_movers_and_much_trouble() {
    holds(movers([PodVolumeBackup, DataUpload], ONE, 0, 2, &[TwoLeaders, LateWrites, Outages]));
}

#[test]
fn a_limit_that_is_lowered_lets_nobody_else_in() {
    holds(movers([DataUpload, PodVolumeRestore, DataUpload], LOWERED, 0, 1, &[LateWrites]));
}

#[test]
fn a_limit_that_comes_or_goes_holds_nobody_back_for_ever() {
    let two = |limits, mishaps, switches: &[Switch]| {
        holds(movers([DataUpload, DataDownload], limits, 0, mishaps, switches));
    };
    two(ON, 1, &[TwoLeaders]);
    two(ON, 1, &[LateWrites]);
    two(OFF, 1, &[LateWrites, Sleep]);
    two(OFF_AND_ON, 0, &[Sleep]);
}

/// Many long random walks with six movers. The seeds are fixed, so each run takes the same walks.
#[test]
fn walks_through_longer_lines() {
    let kinds = [DataUpload, PodVolumeBackup, DataDownload, PodVolumeRestore, DataUpload, PodVolumeBackup];
    let walk = |limits, seed, switches: &[Switch]| {
        let movers = movers(kinds, limits, 2, 6, switches);
        let checker = movers.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(150_000);
        checker.spawn_simulation(seed, UniformChooser).join()
    };
    for (limits, seed) in [(TWO, 1), (&[Some(3), Some(2), None, Some(1)], 2)] {
        let checker = walk(limits, seed, &[TwoLeaders, LateWrites, Outages, Sleep]);
        eprintln!("{} states, {} steps at most", checker.state_count(), checker.max_depth());
        assert_eq!(failures(&checker), BTreeSet::new());
    }
    // The walks would find a violation.
    assert!(!failures(&walk(TWO, 1, &[TwoLeaders, ForgetsLedger])).is_empty());
}

const UPLOADS: [MoverKind; 2] = [DataUpload; 2];

#[test]
fn a_leader_that_is_not_fenced_exceeds() {
    breaks(UPLOADS, ONE, 1, &[TwoLeaders], BlindLedger);
}

#[test]
fn an_annotation_before_the_ledger_exceeds() {
    breaks(UPLOADS, ONE, 1, &[TwoLeaders], AnnotatesFirst);
}

#[test]
fn counting_only_what_is_accepted_exceeds() {
    breaks(UPLOADS, ONE, 0, &[], CountsAccepted);
}

#[test]
fn a_ledger_that_is_forgotten_exceeds() {
    breaks(UPLOADS, ONE, 1, &[TwoLeaders], ForgetsLedger);
    breaks(UPLOADS, ONE, 2, &[LateWrites], ForgetsLedger);
}

/// A mover that the old leader granted a place, and saw take it, is neither in the ledger nor, in
/// such a cache, past New.
#[test]
fn a_cache_from_before_the_ledger_was_read_exceeds() {
    breaks(UPLOADS, ONE, 1, &[TwoLeaders], ListsFirst);
}

/// A grant is given, seen, and removed by another leader; the old leader's ledger still lists it as
/// promised.
#[test]
fn a_promise_that_is_kept_without_proof_of_the_lead_exceeds() {
    breaks([PodVolumeBackup, DataUpload], ONE, 2, &[TwoLeaders, Outages], SkipsUnchanged);
}

#[test]
fn an_annotation_that_looks_at_no_version_exceeds() {
    breaks([PodVolumeBackup, DataUpload], ONE, 2, &[LateWrites, Outages], BlindGrants);
}

/// A mover that was admitted while there was no limit is not in the ledger either.
#[test]
fn a_cache_from_before_the_limit_exceeds() {
    breaks(UPLOADS, ON, 0, &[], KeepsCache);
}

#[test]
fn without_a_limit_who_was_refused_sleeps_unless_woken() {
    holds(movers(UPLOADS, OFF, 0, 1, &[Sleep]));
    let broken = movers(UPLOADS, OFF, 0, 1, &[Sleep, LetsSleep]);
    let checker = broken.checker().finish_when(HasDiscoveries::AnyOf([WEDGE].into())).spawn_bfs().join();
    assert!(failures(&checker).contains(WEDGE));
}

#[test]
fn a_place_that_is_given_away_before_it_is_free_exceeds() {
    breaks([PodVolumeBackup, DataUpload], ONE, 1, &[Outages], FreesAtOnce);
}
