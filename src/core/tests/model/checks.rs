//! Invariants of the model, in terms of the objects in the API server.

use berth_core::queue::QueuePhase;
use stateright::{Model, Property};

use crate::protocol::Queue;
use crate::state::{Action, Breach, Leader, State, Stored, Switch, queued};

pub const OVERLAP: &str = "no two that meet are ReadyToStart or InProgress";
pub const SLOTS: &str = "no more than the slots are ReadyToStart or InProgress";
pub const RUN_OVERLAP: &str = "no two that meet are InProgress";
pub const RUN_SLOTS: &str = "no more than the slots are InProgress";
pub const ORDER: &str = "none starts before one that meets it and that its leader knew to be ahead";
pub const TRANSITION: &str = "phases go one step forward or end, written by those who may";
const SWAP: &str = "no write of positions lets one pass another";
pub const LOST: &str = "whoever takes the place of another stands where that one stood";
pub const WEDGE: &str = "once the trouble is over every backup ends, and positions are exact until then";
const SAME_PLACE: &str = "two wait at the same position";
const FULL: &str = "all slots are taken while others wait";

impl<const N: usize> Model for Queue<N> {
    type State = State<N>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<N>> {
        vec![State {
            api: [Stored::Gone; N],
            created: 0,
            webhooks: Default::default(),
            leaders: Vec::new(),
            late: None,
            users: self.users,
            mishaps: self.mishaps,
            breach: None,
        }]
    }

    fn actions(&self, state: &State<N>, actions: &mut Vec<Action>) {
        self.enabled(state, actions);
    }

    fn next_state(&self, state: &State<N>, action: Action) -> Option<State<N>> {
        Some(self.after(state, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(OVERLAP, |m, s| !m.some_meet(s, QueuePhase::is_running)),
            Property::always(SLOTS, |m, s: &State<N>| s.count(QueuePhase::is_running) <= m.slots),
            Property::always(RUN_OVERLAP, |m, s| !m.some_meet(s, runs)),
            Property::always(RUN_SLOTS, |m, s: &State<N>| s.count(runs) <= m.slots),
            Property::always(ORDER, |_, s: &State<N>| s.breach != Some(Breach::Order)),
            Property::always(TRANSITION, |_, s: &State<N>| s.breach != Some(Breach::Transition)),
            Property::always(SWAP, |_, s: &State<N>| s.breach != Some(Breach::Swap)),
            Property::always(LOST, |_, s: &State<N>| s.breach != Some(Breach::Lost)),
            Property::always(WEDGE, |m, s| m.ends_well(s)),
            Property::sometimes(SAME_PLACE, |_, s: &State<N>| {
                queued(&s.api).windows(2).any(|w| w[0] == w[1])
            }),
            Property::sometimes(FULL, |m, s: &State<N>| {
                s.count(runs) == m.slots && !queued(&s.api).is_empty()
            }),
        ]
    }
}

fn runs(phase: QueuePhase) -> bool {
    phase == QueuePhase::InProgress
}

impl<const N: usize> State<N> {
    fn count(&self, is: impl Fn(QueuePhase) -> bool) -> usize {
        self.api.iter().filter_map(|slot| slot.object()).filter(|object| is(object.phase)).count()
    }

    /// No write is on its way, and no action is half done.
    fn is_calm(&self) -> bool {
        let is_idle = |l: &Leader<N>| l.answer.is_none() && l.todo.is_empty() && l.listing.is_none();
        self.late.is_none() && self.breach.is_none() && self.leaders.iter().all(is_idle)
    }

    /// Has every waiting backup its exact place, counted from 1?
    fn is_exact(&self) -> bool {
        queued(&self.api).iter().zip(1..).all(|(position, place)| *position == place)
            && self.count(|phase| phase == QueuePhase::New) == 0
    }

    /// One of these backups that exists, preferably one that is not held.
    fn left(&self, those: impl Fn(usize) -> bool) -> Option<(bool, usize)> {
        (0..N).filter(|o| those(*o)).filter_map(|o| Some((self.api[o].object()?.held, o))).min()
    }
}

impl<const N: usize> Queue<N> {
    fn some_meet(&self, state: &State<N>, is: impl Fn(QueuePhase) -> bool) -> bool {
        let there = |o: &usize| state.api[*o].object().is_some_and(|object| is(object.phase));
        (0..N).filter(there).any(|a| (0..a).filter(there).any(|b| self.meet(a, b)))
    }

    /// `eventually` of stateright does not detect cycles, so each state is checked by running a
    /// fair scheduler from it. States with a write on its way are skipped, because the write
    /// arrives in another state.
    fn ends_well(&self, state: &State<N>) -> bool {
        if !state.is_calm() || state.leaders.len() > 1 {
            return true;
        }
        let webhooks = Default::default();
        let calm = State { users: 0, mishaps: 0, created: N, webhooks, ..state.clone() };
        self.verdict(&calm, || {
            let mut state = calm.clone();
            // Once caches equal the API server, many states are the same.
            while let Some(action) = self.fair(&state).filter(|action| *action < Action::Plan(0)) {
                state = self.after(&state, action);
            }
            self.verdict(&state, || self.drains(state.clone()))
        })
    }

    /// What was found of such a state before, or is found now.
    fn verdict(&self, state: &State<N>, find: impl FnOnce() -> bool) -> bool {
        let known = self.verdicts.lock().unwrap().get(state).copied();
        known.unwrap_or_else(|| {
            let found = find();
            self.verdicts.lock().unwrap().insert(state.clone(), found);
            found
        })
    }

    /// Held backups are released when no other ones are left.
    fn drains(&self, mut state: State<N>) -> bool {
        for _ in 0..100 * N {
            // Reported by a property of its own.
            if state.breach.is_some() {
                return true;
            }
            let next = self.fair(&state);
            // A backup that cannot be written keeps its place as it is.
            let places = !self.has(Switch::Refuses);
            if places && next.is_none_or(|action| action >= Action::Close(0, 0)) && !state.is_exact() {
                return false;
            }
            state = match (next, state.left(|o| !self.refuses(o))) {
                (Some(action), _) => self.after(&state, action),
                // A held backup blocks no other one.
                (None, Some((held, _))) if !held => return false,
                (None, Some((_, held))) => self.after(&State { users: 1, ..state }, Action::Hold(held)),
                (None, None) => return true,
            };
        }
        false
    }

    fn fair(&self, state: &State<N>) -> Option<Action> {
        let mut actions = Vec::new();
        self.enabled(state, &mut actions);
        actions.into_iter().min()
    }
}
