//! The state of the API server, webhooks and leaders at one moment.

use berth_core::queue::QueuePhase;

/// What may happen, and rules that are broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// The answer to a write arrives some time after the write.
    SlowAnswers,
    /// The watch breaks, and the new list is processed some time after it was made.
    Relists,
    /// A write arrives after its leader has given it up or is gone.
    LateWrites,
    /// A leader that lost the Lease continues.
    TwoLeaders,
    /// A run begins only if it overlaps no other run and a slot is free: the executor's second
    /// check.
    Gate,
    /// Judge each write of positions: does it let a waiting backup pass another?
    Swaps,
    /// Every second backup is of one schedule, and the latest of them replaces the others.
    Supersedes,
    /// The API server refuses what leaders write to the first backup, and a leader ends one backup
    /// per cycle.
    Refuses,
    /// Broken: a backup that replaces another one keeps the place of its own arrival.
    OwnPlace,
    /// Broken: an answer brings back an object that the watch has shown to be gone.
    AnswerRevives,
    /// Broken: a list replaces newer entries of the cache.
    ListReplaces,
    /// Broken, Q1: a leader neither runs nor counts a ReadyToStart backup that it finds.
    ForgetsReady,
    /// Broken, Q2: running backups are counted in memory, after the write.
    CountsLate,
    /// Broken, Q3: running backups are counted in memory, and a deleted one is never removed.
    CountsDeleted,
    /// Broken, Q5: writes carry no resourceVersion, and concurrent creations do not see each other.
    Unversioned,
}

/// A Backup in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    pub phase: QueuePhase,
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

    pub fn is_in(self, phase: QueuePhase) -> bool {
        self.object().is_some_and(|object| object.phase == phase)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patch {
    End,
    Start,
    /// The position, and the arrival that it inherits from a backup it replaces. A backup without a
    /// mark gets one.
    Place(u8, Option<i8>),
}

/// Carries the version on which it was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    pub object: usize,
    pub version: u8,
    pub patch: Patch,
}

pub type Cache<const N: usize> = [Option<Object>; N];

/// A process that believes that it leads. Other processes have no state. There is at most one of
/// these, because a leader stops before its Lease can be taken, so the Lease itself is not
/// modelled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader<const N: usize> {
    pub cache: Cache<N>,
    /// The writes of the plan that remain.
    pub todo: Vec<Write>,
    /// Objects that changed since the plan, apart from the leader's own writes. Only for judging.
    pub moved: u8,
    /// A write that the API server has made; the leader does not know yet.
    pub answer: Option<(usize, Patch, Stored)>,
    pub listing: Option<Cache<N>>,
    /// Objects that this process runs.
    pub runs: u8,
    /// Objects in the cache of which the watch will never report anything again.
    pub revived: u8,
    /// What broken rules remember, and which writes failed.
    pub memory: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Breach {
    /// A backup was started before another one that was ahead of it, as its leader knew.
    Order,
    /// A phase went back or was skipped, or the guard would have refused the write.
    Transition,
    /// A write of positions let a backup pass another one.
    Swap,
    /// A backup ended for the one that replaces it, and that one is now behind a backup that was
    /// behind the ended one.
    Lost,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    pub api: [Stored; N],
    pub created: usize,
    /// The positions that each replica knows, including those that it assigned itself.
    pub webhooks: [Vec<u8>; 2],
    pub leaders: Vec<Leader<N>>,
    pub late: Option<Write>,
    /// How many actions users, and mishaps, have left.
    pub users: u8,
    pub mishaps: u8,
    pub breach: Option<Breach>,
}

/// In the order in which a fair scheduler prefers them; it never takes `Create` or later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A candidate takes the Lease and lists everything.
    Elect,
    /// A write arrives that no leader waits for any more.
    Land,
    Answer(usize),
    Write(usize),
    ListEnd(usize),
    /// The watch shows a leader the current state of one object. Objects are independent here,
    /// which is more than a real watch may do.
    Watch(usize, usize),
    /// Builds a view of the cache and plans.
    Plan(usize),
    /// Ends a Backup that is InProgress while no process runs it.
    Settle(usize, usize),
    Open(usize, usize),
    Close(usize, usize),
    /// Created through a webhook replica, which knows the current state or that of its last answer,
    /// or without a webhook.
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
    let waiting =
        api.iter().filter_map(|slot| slot.object()).filter(|object| object.phase == QueuePhase::Queued);
    let mut positions: Vec<u8> = waiting.map(|object| object.position).collect();
    positions.sort_unstable();
    positions
}

impl<const N: usize> State<N> {
    /// Makes equivalent states equal: only the order of versions matters.
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

    /// All copies of the version of an object.
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
