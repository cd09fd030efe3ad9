//! The protocol: who does what to Backups, in steps between which every other process may act.
//!
//! The model simplifies the following: a leader makes its writes one after the other, including
//! those of positions; the executor's writes read the object again, so each is one step; a webhook
//! replica that is behind knows what it knew at its last answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use berth_core::glob::Glob;
use berth_core::guard::{BackupChange, Roles, judge};
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{
    EndCause, EndWithoutRun, Plan, QueueEntry, QueuePhase, QueueView, may_run, plan, position_of_newcomer,
};
use jiff::Timestamp;

use crate::state::{Action, Breach, Cache, Leader, Object, Patch, State, Stored, Switch, Write, bit, queued};

/// The model. `N` backups are created in order.
pub struct Queue<const N: usize> {
    /// Namespaces of each backup, one bit for each name; [`ALL`] for all.
    pub takes: [u8; N],
    pub slots: usize,
    pub users: u8,
    pub mishaps: u8,
    pub switches: Vec<Switch>,
    /// Plans by their input, and verdicts by the state they judge, because both are needed often.
    pub plans: Mutex<HashMap<(Cache<N>, u8), Vec<Write>>>,
    pub verdicts: Mutex<HashMap<State<N>, bool>>,
}

pub const ALL: u8 = u8::MAX;

fn second(second: i8) -> Timestamp {
    Timestamp::from_second(i64::from(second)).unwrap()
}

impl<const N: usize> Queue<N> {
    pub fn has(&self, switch: Switch) -> bool {
        self.switches.contains(&switch)
    }

    /// Computed without the planner's code.
    pub fn meet(&self, a: usize, b: usize) -> bool {
        self.takes[a] & self.takes[b] != 0
    }

    fn namespaces(&self, object: usize) -> NamespaceSet {
        let names = ["a", "b", "c"].iter().enumerate().filter(|(i, _)| self.takes[object] & bit(*i) != 0);
        match self.takes[object] {
            ALL => NamespaceSet::new(Vec::new(), Vec::new()),
            _ => NamespaceSet::literal(names.map(|(_, name)| Glob::parse(name).unwrap())),
        }
    }

    fn entry(&self, object: usize, seen: Object) -> QueueEntry {
        QueueEntry {
            name: format!("backup{object}"),
            uid: uid(object),
            phase: seen.phase,
            position: seen.position.into(),
            held: seen.held,
            canceled: seen.canceled,
            enqueued_at: seen.mark.map(second),
            waits_since: seen.since.map(second),
            schedule: self.is_scheduled(object).then(|| "schedule".to_owned()),
            supersedes: true,
            created_at: second(created_at(object)),
            namespaces: self.namespaces(object),
            ..QueueEntry::default()
        }
    }

    /// Does the API server refuse what leaders write to this backup?
    pub fn refuses(&self, object: usize) -> bool {
        self.has(Switch::Refuses) && object == 0
    }

    fn is_scheduled(&self, object: usize) -> bool {
        self.has(Switch::Supersedes) && object % 2 == 1
    }

    fn view(&self, backups: impl IntoIterator<Item = QueueEntry>) -> QueueView {
        QueueView {
            slots: self.slots,
            backups: backups.into_iter().map(Arc::new).collect(),
            ..QueueView::default()
        }
    }

    /// By the planner's own order.
    fn is_ahead(&self, a: (usize, Object), b: (usize, Object)) -> bool {
        QueueView::default().precedence(&self.entry(a.0, a.1), &self.entry(b.0, b.1)).is_lt()
    }

    /// The plan of a leader, in the order in which it is written.
    fn writes(&self, leader: &Leader<N>) -> Vec<Write> {
        let sight = leader.cache.map(|seen| seen.map(|object| Object { version: 0, ..object }));
        let mut plans = self.plans.lock().unwrap();
        let found = plans.entry((sight, leader.memory)).or_insert_with(|| self.decide(&sight, leader.memory));
        let version = |object: usize| leader.cache[object].map_or(0, |seen| seen.version);
        found.iter().map(|write| Write { version: version(write.object), ..*write }).collect()
    }

    fn decide(&self, cache: &Cache<N>, memory: u8) -> Vec<Write> {
        let remembered = |object: usize| memory & bit(object) != 0;
        let mut known: Vec<(usize, Object)> = (0..N).filter_map(|o| Some((o, cache[o]?))).collect();
        if self.has(Switch::ForgetsReady) {
            known.retain(|(o, seen)| seen.phase != QueuePhase::ReadyToStart || remembered(*o));
        }
        let mut view = self.view(known.iter().map(|(o, seen)| self.entry(*o, *seen)));
        if self.has(Switch::CountsLate) || self.has(Switch::CountsDeleted) {
            let stale = |o: &usize| remembered(*o) && !cache[*o].is_some_and(|seen| seen.phase.is_running());
            let phantom = || Arc::new(QueueEntry { phase: QueuePhase::InProgress, ..QueueEntry::default() });
            view.backups.extend((0..N).filter(stale).map(|_| phantom()));
        }
        if self.has(Switch::Refuses) {
            view.unwritable = (0..N).filter(|o| remembered(*o)).map(uid).collect();
        }
        let mut decided = plan(&view);
        if self.has(Switch::Unversioned) {
            decided.start = self.start_strictly(&view);
        }
        if self.has(Switch::OwnPlace) {
            self.take_places_at_once(&view, &mut decided);
        }
        let write = |i: usize, patch| Write { object: known[i].0, version: 0, patch };
        let at_once = if self.has(Switch::Refuses) { 1 } else { N };
        let ends = decided.end.iter().take(at_once).map(|end| write(end.backup, Patch::End));
        let starts = decided.start.iter().map(|i| write(*i, Patch::Start));
        // With the smallest budget, because every process sees what is not corrected.
        let places = decided.renumber(&view, 1).map(|w| {
            let since = w.inherits.map(|since| i8::try_from(since.as_second()).unwrap());
            write(w.backup, Patch::Place(w.place.try_into().unwrap(), since))
        });
        ends.chain(starts).chain(places).collect()
    }

    /// Ends the superseded backup although its arrival is not yet written to the one that replaces
    /// it.
    fn take_places_at_once(&self, view: &QueueView, decided: &mut Plan) {
        for waiting in &mut decided.waiting {
            waiting.inherits = None;
        }
        let of_schedule = |i: &usize| view.backups[*i].schedule.is_some();
        let last = (0..view.backups.len()).filter(of_schedule).max();
        let left = (0..view.backups.len()).filter(of_schedule).filter(|i| {
            let entry = &view.backups[*i];
            let ends = decided.end.iter().any(|end| end.backup == *i);
            !entry.phase.is_running() && !entry.held && !entry.canceled && Some(*i) != last && !ends
        });
        let left: Vec<EndWithoutRun> = left
            .map(|i| EndWithoutRun { backup: i, cause: EndCause::Superseded { by: last.unwrap_or(i) } })
            .collect();
        decided.start.retain(|i| !left.iter().any(|end| end.backup == *i));
        decided.end.extend(left);
    }

    /// Considers each backup as if only those at lower positions were ahead of it.
    fn start_strictly(&self, view: &QueueView) -> Vec<usize> {
        let alone = |i: &usize| {
            let me = &view.backups[*i];
            let seen =
                |b: &Arc<QueueEntry>| b.phase.is_running() || b.uid == me.uid || b.position < me.position;
            let sight = QueueView {
                backups: view.backups.iter().filter(|b| seen(b)).cloned().collect(),
                ..view.clone()
            };
            plan(&sight).start.iter().any(|s| sight.backups[*s].uid == me.uid)
        };
        let running = view.backups.iter().filter(|b| b.phase.is_running()).count();
        let free = self.slots.saturating_sub(running);
        (0..view.backups.len()).filter(alone).take(free).collect()
    }

    /// The API server accepts a write of `leader`, or of a former one.
    fn land(&self, state: &mut State<N>, write: Write, leader: Option<usize>) -> Result<Stored, Stored> {
        let found = state.api[write.object];
        let Some(old) = found.object() else { return Err(found) };
        if old.version != write.version && !self.has(Switch::Unversioned) {
            return Err(found);
        }
        let new = match write.patch {
            Patch::End => Stored::Ended,
            Patch::Start => Stored::Here(Object { phase: QueuePhase::ReadyToStart, position: 0, ..old }),
            Patch::Place(position, since) => {
                // A backup without a mark counts from the end of the second of its creation.
                let mark = old.mark.or(Some(created_at(write.object) + 1));
                Stored::Here(Object {
                    phase: QueuePhase::Queued,
                    position,
                    mark,
                    since: since.or(old.since),
                    ..old
                })
            }
        };
        let queue = Roles { queue: true, ..Roles::default() };
        if let Some(leader) = leader {
            state.breach = self.breach(state, write, state.leaders[leader].moved, old, new).or(state.breach);
        }
        self.put(state, write.object, new, Some(queue), leader);
        Ok(state.api[write.object])
    }

    /// Does the write harm a backup that is still as the plan saw it? The plan could not know about
    /// the others.
    fn breach(&self, state: &State<N>, write: Write, moved: u8, old: Object, new: Stored) -> Option<Breach> {
        let me = write.object;
        // A backup that cannot be written blocks no other one.
        let others = (0..N).filter(|o| *o != me && moved & bit(*o) == 0 && !self.refuses(*o));
        others.filter_map(|o| Some((o, state.api[o].object()?))).find_map(|(o, other)| {
            let is_ahead = |me_then| self.is_ahead((o, other), (me, me_then));
            match (write.patch, new) {
                (Patch::Start, _) => {
                    let waits = other.phase == QueuePhase::Queued && !other.held && !other.canceled;
                    (waits && self.meet(o, me) && is_ahead(old)).then_some(Breach::Order)
                }
                (Patch::Place(..), Stored::Here(new))
                    if self.has(Switch::Swaps) && !other.phase.is_running() =>
                {
                    (is_ahead(old) != is_ahead(new)).then_some(Breach::Swap)
                }
                // A backup that replaces another one is ahead of all that the other one was ahead
                // of.
                (Patch::End, _) if self.is_scheduled(me) && !self.is_scheduled(o) && !old.canceled => {
                    let waits = !other.phase.is_running() && !is_ahead(old);
                    let heirs = (0..N).filter(|h| *h != me && self.is_scheduled(*h));
                    let known = heirs.clone().all(|h| moved & bit(h) == 0);
                    let mut heirs = heirs.filter_map(|h| Some((h, state.api[h].object()?))).peekable();
                    let behind = known
                        && heirs.peek().is_some()
                        && heirs.all(|(h, heir)| {
                            let waits = heir.phase == QueuePhase::Queued && !heir.held && !heir.canceled;
                            waits && self.is_ahead((o, other), (h, heir))
                        });
                    (waits && behind).then_some(Breach::Lost)
                }
                _ => None,
            }
        })
    }

    /// All changes of an object happen here. `roles` are those of the process that writes its
    /// status.
    fn put(
        &self,
        state: &mut State<N>,
        object: usize,
        mut new: Stored,
        roles: Option<Roles>,
        by: Option<usize>,
    ) {
        let old = std::mem::replace(&mut state.api[object], Stored::Gone);
        let legal = roles.is_none_or(|roles| {
            let (from, to) = (name(old), name(new));
            let change = BackupChange {
                from: Some(from.1),
                to: to.1,
                status_changed: true,
                marks_changed: true,
                ..BackupChange::default()
            };
            let in_order = to.0 == LAST || to.0 == from.0 || to.0 == from.0 + 1;
            in_order && judge(roles, &change).is_ok()
        });
        if !legal {
            state.breach = Some(Breach::Transition);
        }
        if let (Stored::Here(old), Stored::Here(new)) = (old, &mut new) {
            new.version = old.version + 1;
        }
        state.api[object] = new;
        for (i, leader) in state.leaders.iter_mut().enumerate() {
            if by != Some(i) {
                leader.moved |= bit(object);
            }
        }
    }

    fn annotate(&self, state: &mut State<N>, object: usize, edit: impl FnOnce(&mut Object)) {
        if let Stored::Here(mut seen) = state.api[object] {
            edit(&mut seen);
            self.put(state, object, Stored::Here(seen), None, None);
        }
    }

    fn create(&self, state: &mut State<N>, by: Option<(usize, bool)>, refused: bool) {
        let me = state.created;
        let mut object = Object {
            phase: QueuePhase::New,
            position: 0,
            mark: None,
            since: None,
            held: false,
            canceled: false,
            version: 1,
        };
        if let Some((replica, fresh)) = by {
            if fresh {
                state.webhooks[replica] = queued(&state.api);
            }
            let known = &mut state.webhooks[replica];
            let waiting = known.iter().map(|position| QueueEntry {
                phase: QueuePhase::Queued,
                position: (*position).into(),
                ..QueueEntry::default()
            });
            let position = position_of_newcomer(&self.view(waiting), &self.entry(me, object));
            object.phase = QueuePhase::Queued;
            object.position = position.try_into().unwrap();
            // The clock of the second replica is behind by more than the time between two
            // creations.
            object.mark = Some(created_at(me) - 3 * i8::try_from(replica).unwrap());
            known.push(object.position);
            known.sort_unstable();
        }
        state.created += 1;
        if !refused {
            self.put(state, me, Stored::Here(object), None, None);
        }
    }

    /// Makes the first pending write.
    fn write(&self, state: &mut State<N>, l: usize) {
        let write = state.leaders[l].todo[0];
        let is_there = state.api[write.object].object().is_some();
        if self.refuses(write.object) && is_there && self.can_send(&state.leaders[l]) {
            let leader = &mut state.leaders[l];
            leader.memory |= bit(write.object);
            give_up(leader);
            return;
        }
        let outcome = self.can_send(&state.leaders[l]).then(|| self.land(state, write, Some(l)));
        let leader = &mut state.leaders[l];
        match outcome {
            Some(Ok(written)) => {
                leader.todo.remove(0);
                let remembers = self.has(Switch::ForgetsReady) || self.has(Switch::CountsDeleted);
                if write.patch == Patch::Start && remembers {
                    leader.memory |= bit(write.object);
                }
                if self.has(Switch::SlowAnswers) {
                    leader.answer = Some((write.object, write.patch, written));
                } else {
                    self.observe(leader, write.object, write.patch, written);
                }
            }
            Some(Err(found)) => {
                if found == Stored::Gone {
                    leader.cache[write.object] = None;
                }
                give_up(leader);
            }
            None => give_up(leader),
        }
    }

    /// A write is made on the version on which it was decided, or not at all.
    fn can_send(&self, leader: &Leader<N>) -> bool {
        leader.todo.first().is_some_and(|write| {
            let seen = leader.cache[write.object];
            seen.is_some_and(|seen| seen.version == write.version) || self.has(Switch::Unversioned)
        })
    }

    /// Processes the answer to a write, which the watch shows too, earlier or later.
    fn observe(&self, leader: &mut Leader<N>, o: usize, patch: Patch, written: Stored) {
        if patch == Patch::Start && self.has(Switch::CountsLate) {
            leader.memory |= bit(o);
        }
        leader.cache[o] = match (leader.cache[o], written.object()) {
            (Some(known), Some(new)) if new.version < known.version => Some(known),
            (None, Some(new)) if self.has(Switch::AnswerRevives) => {
                leader.revived |= bit(o);
                Some(new)
            }
            (None, Some(_)) => None,
            (_, new) => new,
        };
    }

    fn watch(&self, state: &mut State<N>, l: usize, o: usize) {
        let leader = &mut state.leaders[l];
        leader.cache[o] = state.api[o].object();
        // Velero's tracker: it removes what has ended and, unless that is broken, what is deleted.
        let is_over = state.api[o] == Stored::Ended
            || (state.api[o] == Stored::Gone && !self.has(Switch::CountsDeleted));
        if is_over {
            leader.memory &= !bit(o);
        }
    }

    fn list_end(&self, leader: &mut Leader<N>) {
        let listed = leader.listing.take().unwrap();
        for o in 0..N {
            let is_newer = match (leader.cache[o], listed[o]) {
                (Some(known), Some(listed)) => known.version > listed.version,
                _ => false,
            };
            if !is_newer || self.has(Switch::ListReplaces) {
                leader.cache[o] = listed[o];
            }
        }
        leader.revived = 0;
    }

    fn can_open(&self, state: &State<N>, l: usize, o: usize) -> bool {
        let leader = &state.leaders[l];
        let is_ready = |slot: Option<Object>| slot.is_some_and(|seen| seen.phase == QueuePhase::ReadyToStart);
        let may_run = |seen: Object| {
            let known = (0..N).filter_map(|b| Some(self.entry(b, leader.cache[b]?)));
            let runs = |other: &QueueEntry| (0..N).any(|b| leader.runs & bit(b) != 0 && other.uid == uid(b));
            may_run(&self.view(known), &self.entry(o, seen), runs)
        };
        is_ready(leader.cache[o])
            && is_ready(state.api[o].object())
            && (!self.has(Switch::Gate) || leader.cache[o].is_some_and(may_run))
            && (leader.memory & bit(o) != 0 || !self.has(Switch::ForgetsReady))
    }

    /// The executor changes the phase of a backup that it runs.
    fn run_to(&self, state: &mut State<N>, object: usize, new: Stored) {
        self.put(state, object, new, Some(Roles { executor: true, ..Roles::default() }), None);
    }

    pub fn enabled(&self, state: &State<N>, actions: &mut Vec<Action>) {
        if state.breach.is_some() {
            return;
        }
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
        if state.created < N {
            let mut by = vec![None];
            for replica in 0..2 {
                by.push(Some((replica, true)));
                if state.webhooks[replica] != queued(&state.api) {
                    by.push(Some((replica, false)));
                }
            }
            for by in by {
                actions.push(Action::Create { by, refused: false });
                if state.users > 0 && by.is_some() {
                    actions.push(Action::Create { by, refused: true });
                }
            }
        }
        for o in (0..N).filter(|_| state.users > 0) {
            let Some(object) = state.api[o].object() else { continue };
            if !object.phase.is_running() {
                actions.push(Action::Hold(o));
            }
            if !object.canceled {
                actions.push(Action::Cancel(o));
            }
            actions.push(Action::Delete(o));
        }
    }

    fn leader_enabled(&self, state: &State<N>, l: usize, leader: &Leader<N>, actions: &mut Vec<Action>) {
        if leader.answer.is_some() {
            actions.push(Action::Answer(l));
        } else if !leader.todo.is_empty() {
            actions.push(Action::Write(l));
        } else if !self.writes(leader).is_empty() {
            actions.push(Action::Plan(l));
        }
        if leader.listing.is_some() {
            actions.push(Action::ListEnd(l));
        }
        for o in 0..N {
            let seen = leader.cache[o];
            let runs = leader.runs & bit(o) != 0;
            if leader.listing.is_none() && seen != state.api[o].object() && leader.revived & bit(o) == 0 {
                actions.push(Action::Watch(l, o));
            }
            let left_behind = seen.is_some_and(|seen| seen.phase == QueuePhase::InProgress) && !runs;
            if left_behind && state.api[o].is_in(QueuePhase::InProgress) {
                actions.push(Action::Settle(l, o));
            }
            if !runs && self.can_open(state, l, o) {
                actions.push(Action::Open(l, o));
            }
            if runs {
                actions.push(Action::Close(l, o));
            }
        }
        if state.mishaps > 0 {
            actions.push(Action::Crash { leader: l, late: false });
            if self.has(Switch::LateWrites)
                && state.late.is_none()
                && leader.answer.is_none()
                && self.can_send(leader)
            {
                actions.push(Action::Crash { leader: l, late: true });
                actions.push(Action::Timeout(l));
            }
            if self.has(Switch::Relists) && leader.listing.is_none() {
                actions.push(Action::ListBegin(l));
            }
        }
    }

    pub fn after(&self, state: &State<N>, action: Action) -> State<N> {
        let mut next = state.clone();
        let s = &mut next;
        let listed = s.api.map(Stored::object);
        match action {
            Action::Elect => {
                if !s.leaders.is_empty() {
                    s.mishaps -= 1;
                }
                s.leaders.push(Leader {
                    cache: listed,
                    todo: Vec::new(),
                    moved: 0,
                    answer: None,
                    listing: None,
                    runs: 0,
                    revived: 0,
                    memory: 0,
                });
            }
            Action::Land => {
                let write = s.late.take().unwrap();
                let _ = self.land(s, write, None);
            }
            Action::Answer(l) => {
                let (object, patch, written) = s.leaders[l].answer.take().unwrap();
                self.observe(&mut s.leaders[l], object, patch, written);
            }
            Action::Write(l) => self.write(s, l),
            Action::ListEnd(l) => self.list_end(&mut s.leaders[l]),
            Action::Watch(l, o) => self.watch(s, l, o),
            Action::Plan(l) => {
                let leader = &mut s.leaders[l];
                leader.todo = self.writes(leader);
                leader.moved = (0..N).filter(|o| leader.cache[*o] != listed[*o]).map(bit).sum();
            }
            Action::Settle(_, o) => self.run_to(s, o, Stored::Ended),
            Action::Open(l, o) => {
                s.leaders[l].runs |= bit(o);
                let object = s.api[o].object().unwrap();
                self.run_to(s, o, Stored::Here(Object { phase: QueuePhase::InProgress, ..object }));
            }
            Action::Close(l, o) => {
                s.leaders[l].runs &= !bit(o);
                if s.api[o].is_in(QueuePhase::InProgress) {
                    self.run_to(s, o, Stored::Ended);
                }
            }
            Action::Create { by, refused } => {
                s.users -= u8::from(refused);
                self.create(s, by, refused);
            }
            Action::Hold(o) => self.annotate(s, o, |object| object.held ^= true),
            Action::Cancel(o) => self.annotate(s, o, |object| object.canceled = true),
            Action::Delete(o) => self.put(s, o, Stored::Gone, None, None),
            Action::ListBegin(l) => s.leaders[l].listing = Some(listed),
            Action::Timeout(l) => {
                s.late = s.leaders[l].todo.first().copied();
                give_up(&mut s.leaders[l]);
            }
            Action::Crash { leader, late } => {
                let gone = s.leaders.remove(leader);
                if late {
                    s.late = gone.todo.first().copied();
                }
            }
        }
        match action {
            Action::Hold(_) | Action::Cancel(_) | Action::Delete(_) => s.users -= 1,
            Action::ListBegin(_) | Action::Timeout(_) | Action::Crash { .. } => s.mishaps -= 1,
            _ => {}
        }
        s.normalize();
        next
    }
}

/// The plan continues after a failed write, because backups that start together do not overlap.
fn give_up<const N: usize>(leader: &mut Leader<N>) {
    leader.todo.remove(0);
}

fn uid(object: usize) -> String {
    format!("uid{object}")
}

fn created_at(object: usize) -> i8 {
    2 * i8::try_from(object).unwrap() + 2
}

const LAST: u8 = 4;

/// Its place in the order of phases, and its name.
fn name(slot: Stored) -> (u8, &'static str) {
    match slot {
        Stored::Gone | Stored::Ended => (LAST, "Failed"),
        Stored::Here(object) => match object.phase {
            QueuePhase::New => (0, "New"),
            QueuePhase::Queued => (1, "Queued"),
            QueuePhase::ReadyToStart => (2, "ReadyToStart"),
            QueuePhase::InProgress => (3, "InProgress"),
        },
    }
}
