//! The protocol: who writes what, in steps between which every other process may act.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_core::mover::MoverKind;
use berth_core::mover::grant::{
    GrantPlan, GrantView, LedgerWrite, Limits, Mover, MoverPhase, NodeAgentState, PhaseWrite, Recover, judge,
    plan,
};
use jiff::Timestamp;

use crate::state::{Action, Leader, Ledger, Object, Objects, Patch, State, Switch, Write, bit};

/// The model. `N` data movers are created in order.
pub struct Movers<const N: usize> {
    /// The kind of each. Bound kinds are bound to node a.
    pub kinds: [MoverKind; N],
    /// One after the other; the first one applies at the start.
    pub limits: &'static [Option<u8>],
    pub users: u8,
    pub mishaps: u8,
    pub switches: Vec<Switch>,
    /// Plans by their input, and verdicts by the state they judge, because both are needed often.
    pub plans: Mutex<HashMap<Sight<N>, Vec<Write>>>,
    pub verdicts: Mutex<HashMap<State<N>, bool>>,
}

/// The input of a plan.
pub type Sight<const N: usize> = (Objects<N>, Option<u8>, Option<u8>, bool);

pub const NO_LIMIT: u8 = u8::MAX;

fn second(second: usize) -> Timestamp {
    Timestamp::from_second(second.try_into().unwrap()).unwrap()
}

fn uid(object: usize) -> String {
    object.to_string()
}

impl<const N: usize> Movers<N> {
    pub fn has(&self, switch: Switch) -> bool {
        self.switches.contains(&switch)
    }

    pub fn start(&self) -> State<N> {
        let limit = self.limits[0];
        State {
            api: [None; N],
            created: 0,
            ledger: Ledger { uids: limit.map(|_| 0), version: 0 },
            limit: 0,
            in_force: limit.unwrap_or(NO_LIMIT),
            cap: limit.unwrap_or(NO_LIMIT),
            out: false,
            leaders: Vec::new(),
            late: None,
            users: self.users,
            mishaps: self.mishaps,
        }
    }

    fn limit(&self, state: &State<N>) -> Option<u8> {
        self.limits[state.limit]
    }

    fn view(&self, (cache, ledger, limit, out): &Sight<N>) -> GrantView {
        let mover = |o: usize, seen: Object| {
            let kind = self.kinds[o];
            let accepted_by = if seen.by_a { "a" } else { "b" };
            let phase = match seen.phase {
                MoverPhase::Prepared if self.has(Switch::CountsAccepted) => MoverPhase::InProgress,
                phase => phase,
            };
            Arc::new(Mover {
                phase,
                granted: seen.granted,
                bound_node: kind.is_bound().then(|| "a".to_owned()),
                accepted_by: seen.phase.holds_place().then(|| accepted_by.to_owned()),
                accepted_at: Some(second(o + 1)),
                running_on: (seen.phase == MoverPhase::Prepared).then(|| accepted_by.to_owned()),
                ..Mover::new(kind, uid(o), uid(o), second(o + 1))
            })
        };
        let agent =
            |ready| NodeAgentState { ready, started_at: Some(second(0)), not_ready_since: Some(second(0)) };
        let listed = |uids: u8| (0..N).filter(|o| uids & bit(*o) != 0).map(uid).collect();
        let ledger = if self.has(Switch::ForgetsLedger) { ledger.map(|_| 0) } else { *ledger };
        GrantView {
            movers: (0..N).filter_map(|o| Some(mover(o, cache[o]?))).collect(),
            agents: [("a".to_owned(), agent(!out)), ("b".to_owned(), agent(true))].into(),
            limits: Limits { limit: limit.map(usize::from), global: 1, per_node: Vec::new() },
            ledger: ledger.map(listed),
            ..GrantView::default()
        }
    }

    /// The plan of a leader, in the order in which it is written.
    fn writes(&self, state: &State<N>, leader: &Leader<N>) -> Vec<Write> {
        let Some((cache, ledger)) = leader.cache.zip(leader.ledger).filter(|_| leader.fenced) else {
            return Vec::new();
        };
        let unversioned = cache.map(|seen| seen.map(|object| Object { version: 0, asleep: false, ..object }));
        let sight = (unversioned, ledger.uids, self.limits[leader.limit], state.out);
        let mut plans = self.plans.lock().unwrap();
        let found = plans.entry(sight).or_insert_with(|| self.decide(&sight));
        let versioned = |write: &Write| match *write {
            Write::Object { object, patch, .. } => {
                Write::Object { object, patch, version: cache[object].map_or(0, |seen| seen.version) }
            }
            Write::Ledger { uids, .. } => Write::Ledger { uids, limit: leader.limit },
        };
        found.iter().map(versioned).collect()
    }

    fn decide(&self, sight: &Sight<N>) -> Vec<Write> {
        let mut view = self.view(sight);
        let now = second(10_000);
        let mut decided = plan(&view, now);
        if self.has(Switch::LetsSleep) && sight.2.is_none() {
            decided = GrantPlan::default();
        }
        if self.has(Switch::FreesAtOnce) {
            decided = self.free_at_once(&mut view, decided, now);
        }
        let known = |i: &usize| view.movers[*i].name.parse().unwrap();
        let write = |i: &usize, patch| Write::Object { object: known(i), version: 0, patch };
        let revoke = decided.revoke.iter().map(|i| write(i, Patch::Revoke));
        let grant = decided.grant.iter().map(|i| write(i, Patch::Grant));
        let recover = decided.recover.iter();
        let recover = recover.map(|Recover { mover, keeps_place, .. }| {
            write(mover, Patch::Recover { keeps_place: *keeps_place })
        });
        let mut writes: Vec<Write> = revoke.chain(recover).chain(grant).collect();
        let listed = decided.ledger.uids.iter().map(|uid| bit(uid.parse().unwrap())).sum();
        let uids = (!decided.retire_ledger).then_some(listed);
        let is_due = match decided.ledger.write {
            LedgerWrite::No => decided.retire_ledger,
            LedgerWrite::First if self.has(Switch::SkipsUnchanged) => uids != sight.1,
            LedgerWrite::Tidy | LedgerWrite::First => true,
        };
        if is_due {
            let at = if self.has(Switch::AnnotatesFirst) { writes.len() } else { 0 };
            writes.insert(at, Write::Ledger { uids, limit: 0 });
        }
        writes
    }

    /// Plans a second time as if the places that it frees were free already.
    fn free_at_once(&self, view: &mut GrantView, first: GrantPlan, now: Timestamp) -> GrantPlan {
        let freed = first.recover.iter().filter(|recover| !recover.keeps_place).map(|recover| recover.mover);
        for i in first.revoke.iter().copied().chain(freed) {
            Arc::make_mut(&mut view.movers[i]).phase = MoverPhase::Failed;
        }
        let second = plan(view, now);
        GrantPlan { revoke: first.revoke, recover: first.recover, ..second }
    }

    /// Does the gate admit this write of a node-agent? The gate sees the stored object.
    fn passes(&self, state: &State<N>, o: usize, object: Object, to: MoverPhase) -> bool {
        let step = PhaseWrite {
            kind: self.kinds[o],
            from: Some(object.phase),
            to,
            granted: object.granted,
            third_party: false,
        };
        self.limit(state).is_none() || judge(&step).is_ok()
    }

    pub fn enabled(&self, state: &State<N>, actions: &mut Vec<Action>) {
        let two = self.has(Switch::TwoLeaders) && state.leaders.len() == 1 && state.mishaps > 0;
        if state.leaders.is_empty() || two {
            actions.push(Action::Elect);
        }
        if state.late.is_some() {
            actions.push(Action::Land);
        }
        for (l, leader) in state.leaders.iter().enumerate() {
            self.leader_enabled(state, l, leader, actions);
        }
        if state.out {
            actions.push(Action::Up);
        } else if self.has(Switch::Outages) && state.mishaps > 0 {
            actions.push(Action::Down);
        }
        if state.created < N {
            actions.push(Action::Create);
        }
        if state.limit + 1 < self.limits.len() {
            actions.push(Action::Limit);
        }
        for (o, object) in state.objects() {
            if object.phase == MoverPhase::Prepared {
                actions.push(Action::Run(o));
            }
            // Some agents write Prepared without checking the phase.
            let stray = object.phase == MoverPhase::New && object.granted;
            if (object.phase == MoverPhase::Accepted || stray)
                && self.passes(state, o, object, MoverPhase::Prepared)
            {
                actions.push(Action::Prepare(o));
            }
            let tries = object.phase == MoverPhase::New && !object.asleep;
            if tries && self.passes(state, o, object, MoverPhase::Accepted) {
                // The accepting agent matters only if agents can go away.
                let by_a = self.kinds[o].is_bound() || self.has(Switch::Outages);
                let by_b = !self.kinds[o].is_bound();
                actions.extend(
                    [(by_a, true), (by_b, false)].iter().filter(|by| by.0).map(|by| Action::Accept(o, by.1)),
                );
            } else if tries && self.has(Switch::Sleep) {
                actions.push(Action::Refuse(o));
            }
            if state.users > 0 {
                actions.push(Action::Delete(o));
            }
        }
    }

    fn leader_enabled(&self, state: &State<N>, l: usize, leader: &Leader<N>, actions: &mut Vec<Action>) {
        if leader.ledger.is_none() {
            actions.push(Action::Read(l));
        } else if !leader.fenced {
            actions.push(Action::Fence(l));
        } else if leader.cache.is_none() {
            actions.push(Action::List(l));
        }
        if leader.limit != state.limit && leader.todo.is_empty() {
            actions.push(Action::Adopt(l));
        }
        match leader.todo.first() {
            None if !self.writes(state, leader).is_empty() => actions.push(Action::Plan(l)),
            None => {}
            Some(_) => {
                let can_late = self.has(Switch::LateWrites) && state.late.is_none() && state.mishaps > 0;
                for w in 0..self.next_writes(leader) {
                    actions.push(Action::Write(l, w));
                    if can_late {
                        actions.push(Action::Timeout(l, w));
                    }
                }
            }
        }
        for (o, seen) in leader.cache.iter().flatten().enumerate() {
            if !is_same(*seen, state.api[o]) {
                actions.push(Action::Watch(l, o));
            }
        }
        if state.mishaps > 0 {
            actions.push(Action::Crash(l));
        }
    }

    /// How many of the pending writes may be next.
    fn next_writes(&self, leader: &Leader<N>) -> usize {
        match leader.todo.first() {
            Some(Write::Ledger { .. }) => 1,
            _ => leader.todo.iter().take_while(|write| matches!(write, Write::Object { .. })).count(),
        }
    }

    pub fn after(&self, state: &State<N>, action: Action) -> State<N> {
        let mut next = state.clone();
        let s = &mut next;
        match action {
            Action::Elect => {
                if !s.leaders.is_empty() {
                    s.mishaps -= 1;
                }
                let cache = self.has(Switch::ListsFirst).then_some(s.api);
                let limit = s.limit;
                s.leaders.push(Leader { ledger: None, fenced: false, limit, cache, todo: Vec::new() });
            }
            Action::Read(l) => {
                let leader = &mut s.leaders[l];
                // A limit that was read before may be older than the one under which the ledger was
                // written.
                (leader.ledger, leader.limit) = (Some(s.ledger), s.limit);
            }
            Action::Fence(l) => self.fence(s, l),
            Action::List(l) => s.leaders[l].cache = Some(s.api),
            Action::Land => {
                if let Some((write, version)) = s.late.take() {
                    self.land(s, write, version);
                }
            }
            Action::Adopt(l) => {
                let leader = &mut s.leaders[l];
                leader.limit = s.limit;
                if !self.has(Switch::KeepsCache) {
                    // There may have been no limit for a while: what was accepted then is in no
                    // ledger.
                    *leader = Leader { ledger: None, fenced: false, cache: None, ..leader.clone() };
                }
            }
            Action::Watch(l, o) => {
                if let Some(cache) = &mut s.leaders[l].cache {
                    cache[o] = s.api[o];
                }
            }
            Action::Write(l, w) => self.write(s, l, w),
            Action::Plan(l) => s.leaders[l].todo = self.writes(state, &state.leaders[l]),
            Action::Up => s.out = false,
            Action::Run(o) | Action::Delete(o) => s.api[o] = None,
            Action::Prepare(o) => put(s, o, |object| object.phase = MoverPhase::Prepared),
            Action::Accept(o, by_a) => put(s, o, |object| {
                object.phase = MoverPhase::Accepted;
                object.by_a = by_a && self.has(Switch::Outages);
            }),
            Action::Create => {
                let new =
                    Object { phase: MoverPhase::New, granted: false, by_a: false, asleep: false, version: 0 };
                s.api[s.created] = Some(new);
                s.created += 1;
            }
            Action::Refuse(o) => {
                // Not a write, so no watch reports it.
                if let Some(object) = &mut s.api[o] {
                    object.asleep = true;
                }
            }
            Action::Limit => {
                s.limit += 1;
                s.cap = s.cap.max(self.limit(s).unwrap_or(NO_LIMIT));
                if self.limit(s).is_none() {
                    s.in_force = NO_LIMIT;
                }
            }
            Action::Down => s.out = true,
            Action::Timeout(l, w) => self.time_out(s, l, w),
            Action::Crash(l) => drop(s.leaders.remove(l)),
        }
        match action {
            Action::Delete(_) => s.users -= 1,
            Action::Down | Action::Timeout(..) | Action::Crash(_) => s.mishaps -= 1,
            _ => {}
        }
        let holders = u8::try_from(s.hold_places()).unwrap();
        if holders <= s.cap {
            s.cap = s.in_force.max(holders);
        }
        s.normalize();
        next
    }

    /// The first write of a new leader changes nothing in the ledger but its version.
    fn fence(&self, state: &mut State<N>, l: usize) {
        let leader = &mut state.leaders[l];
        match leader.ledger {
            Some(read) if read.version == state.ledger.version || self.has(Switch::BlindLedger) => {
                state.ledger = Ledger { uids: read.uids, version: state.ledger.version + 1 };
                leader.ledger = Some(state.ledger);
                leader.fenced = true;
            }
            _ => drop(state.leaders.remove(l)),
        }
    }

    fn write(&self, state: &mut State<N>, l: usize, w: usize) {
        let leader = &mut state.leaders[l];
        let write = leader.todo.remove(w);
        let version = leader.ledger.map_or(0, |ledger| ledger.version);
        let landed = self.land(state, write, version);
        match write {
            Write::Ledger { .. } if landed => state.leaders[l].ledger = Some(state.ledger),
            Write::Ledger { .. } => drop(state.leaders.remove(l)),
            // The watch shows whether it was accepted.
            Write::Object { .. } => {}
        }
    }

    fn time_out(&self, state: &mut State<N>, l: usize, w: usize) {
        let leader = &mut state.leaders[l];
        let write = leader.todo.remove(w);
        match write {
            Write::Ledger { .. } => {
                state.late = Some((write, leader.ledger.map_or(0, |ledger| ledger.version)));
                // The leader does not know whether it still leads.
                state.leaders.remove(l);
            }
            Write::Object { .. } => state.late = Some((write, 0)),
        }
    }

    /// The API server accepts a write, or refuses it.
    fn land(&self, state: &mut State<N>, write: Write, ledger_version: u8) -> bool {
        match write {
            Write::Ledger { uids, limit } => {
                let fits = state.ledger.version == ledger_version || self.has(Switch::BlindLedger);
                if fits {
                    let holders = u8::try_from(state.hold_places()).unwrap();
                    // A write that changes nothing makes no new version.
                    state.ledger.version += u8::from(state.ledger.uids != uids);
                    state.ledger.uids = uids;
                    if self.limits[limit..=state.limit].iter().all(Option::is_some) {
                        state.in_force = self.limits[limit].unwrap_or(NO_LIMIT);
                        state.cap = state.in_force.max(holders.min(state.cap));
                    }
                }
                fits
            }
            Write::Object { object, version, patch } => {
                let Some(old) = state.api[object] else { return false };
                if old.version != version && !(patch == Patch::Grant && self.has(Switch::BlindGrants)) {
                    return false;
                }
                put(state, object, |new| match patch {
                    Patch::Grant => new.granted = true,
                    Patch::Revoke => new.granted = false,
                    Patch::Recover { keeps_place } => {
                        new.phase = MoverPhase::New;
                        new.granted = keeps_place;
                        new.by_a = false;
                    }
                });
                true
            }
        }
    }
}

fn put<const N: usize>(state: &mut State<N>, o: usize, edit: impl FnOnce(&mut Object)) {
    if let Some(object) = &mut state.api[o] {
        edit(object);
        object.asleep = false;
        object.version += 1;
    }
}

/// As a watch sees it.
fn is_same(a: Option<Object>, b: Option<Object>) -> bool {
    a.map(|object| object.version) == b.map(|object| object.version)
}
