//! What the API server, webhooks and leaders have at one moment.

use berth_core::queue::Phase;

/// What the world may do, and rules that are broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The answer to a write comes some time after the write.
    SlowAnswers,
    /// The watch breaks, and what is listed anew is taken in some time after the list was made.
    Relists,
    /// A write lands after its leader has given it up or is gone.
    LateWrites,
    /// A leader that lost the Lease goes on.
    TwoLeaders,
    /// A run begins only where it meets no other run and a slot is free: a second look, by the executor.
    Gate,
    /// Judge each write of positions: does it let one that waits pass another?
    Swaps,
    /// Every second backup is of one schedule, and the last one of it that has come takes the place of the others.
    Supersedes,
    /// The API server refuses what leaders write to the first backup, and a leader ends one in a cycle.
    Refuses,
    /// Broken: whoever takes the place of another stands where it came.
    OwnPlace,
    /// Broken: an answer brings back an object of which the watch has shown the end.
    AnswerRevives,
    /// Broken: a list replaces what is newer in the cache.
    ListReplaces,
    /// Broken, Q1: ReadyToStart that a leader finds is neither run nor counted.
    ForgetsReady,
    /// Broken, Q2: what runs is counted in memory, after the write.
    CountsLate,
    /// Broken, Q3: what runs is counted in memory, and one that is deleted stays there.
    CountsDeleted,
    /// Broken, Q5: writes carry no resourceVersion, and those at the same place do not see each other.
    Unversioned,
}

/// A Backup as the API server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub phase: Phase,
    pub position: u8,
    /// `berth.dev/enqueued-at`.
    pub mark: Option<i8>,
    /// `berth.dev/waits-since`.
    pub since: Option<i8>,
    pub held: bool,
    pub canceled: bool,
    pub version: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    /// Not created yet, or deleted.
    Gone,
    /// In a final phase.
    Ended,
    Here(Object),
}

impl Stored {
    pub fn object(self) -> Option<Object> {
        if let Self::Here(object) = self { Some(object) } else { None }
    }

    pub fn is_in(self, phase: Phase) -> bool {
        self.object().is_some_and(|object| object.phase == phase)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patch {
    End,
    Start,
    /// The position, and since when the one waited whose place it takes. One that has no mark gets that.
    Place(u8, Option<i8>),
}

/// Carries the version that was decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    pub object: usize,
    pub version: u8,
    pub patch: Patch,
}

pub type Cache<const N: usize> = [Option<Object>; N];

/// A process that believes that it leads. One that does not knows nothing, so it is not in the state: there is
/// one of these at most, because a leader gives up before its Lease can be taken. The Lease itself needs no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader<const N: usize> {
    pub cache: Cache<N>,
    /// What is left to write of the plan.
    pub todo: Vec<Write>,
    /// Objects that are not as the plan saw them, unless the leader itself wrote them. Only for judging.
    pub moved: u8,
    /// The API server has written it; we do not know yet.
    pub answer: Option<(usize, Patch, Stored)>,
    pub listing: Option<Cache<N>>,
    /// Objects that this process runs.
    pub runs: u8,
    /// Objects of which the watch has nothing more to tell, though the cache has them.
    pub revived: u8,
    /// What broken rules remember, and whom no write came through to.
    pub memory: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// One started before another that was ahead of it, as its leader knew.
    Order,
    /// A phase went back or was left out, or the guard would have refused the write.
    Transition,
    /// A write of positions let one pass another.
    Swap,
    /// One that ended for another to take its place left that one behind somebody who was behind it.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    pub api: [Stored; N],
    pub created: usize,
    /// The positions that each replica knows, those that it answered itself included.
    pub webhooks: [Vec<u8>; 2],
    pub leaders: Vec<Leader<N>>,
    pub late: Option<Write>,
    /// What users, and what mishaps, may still do.
    pub users: u8,
    pub mishaps: u8,
    pub breach: Option<Breach>,
}

/// In the order in which a fair scheduler prefers them; from `Create` on, it does none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A candidate takes the Lease and lists everything.
    Elect,
    /// A write lands that nobody waits for any more.
    Land,
    Answer(usize),
    Write(usize),
    ListEnd(usize),
    /// The watch shows a leader one object as it is now. Per object: more than a real watch may do.
    Watch(usize, usize),
    /// Freezes the cache and decides.
    Plan(usize),
    /// Ends what is InProgress and nobody runs.
    Settle(usize, usize),
    Open(usize, usize),
    Close(usize, usize),
    /// By a webhook replica, which knows what is there now or what it knew at its last answer; or by none.
    Create {
        by: Option<(usize, bool)>,
        refused: bool,
    },
    Hold(usize),
    Cancel(usize),
    Delete(usize),
    ListBegin(usize),
    Timeout(usize),
    Crash {
        leader: usize,
        late: bool,
    },
}

pub fn bit(object: usize) -> u8 {
    1 << object
}

/// Positions in the queue, sorted.
pub fn queued(api: &[Stored]) -> Vec<u8> {
    let waiting = api.iter().filter_map(|slot| slot.object()).filter(|object| object.phase == Phase::Queued);
    let mut positions: Vec<u8> = waiting.map(|object| object.position).collect();
    positions.sort_unstable();
    positions
}

impl<const N: usize> State<N> {
    /// Makes states equal from which the same can follow: of versions only their order counts.
    pub fn normalize(&mut self) {
        if self.created == N {
            self.webhooks = Default::default();
        }
        for leader in self.leaders.iter_mut().filter(|leader| leader.todo.is_empty()) {
            leader.moved = 0;
        }
        for o in 0..N {
            let mut used = 0_u64;
            self.versions(o, |version| used |= 1 << *version);
            self.versions(o, |version| {
                let below = used & ((1 << *version) - 1);
                *version = below.count_ones().try_into().unwrap();
            });
        }
    }

    /// Every copy of the version of an object.
    fn versions(&mut self, o: usize, mut each: impl FnMut(&mut u8)) {
        let mut here = |slot: &mut Stored| {
            if let Stored::Here(object) = slot {
                each(&mut object.version);
            }
        };
        here(&mut self.api[o]);
        for leader in &mut self.leaders {
            leader.answer.iter_mut().filter(|(object, ..)| *object == o).for_each(|(.., slot)| here(slot));
        }
        for leader in &mut self.leaders {
            let caches = std::iter::once(&mut leader.cache).chain(&mut leader.listing);
            caches.filter_map(|cache| cache[o].as_mut()).for_each(|seen| each(&mut seen.version));
        }
        let writes = self.leaders.iter_mut().flat_map(|leader| &mut leader.todo).chain(&mut self.late);
        writes.filter(|write| write.object == o).for_each(|write| each(&mut write.version));
    }
}
