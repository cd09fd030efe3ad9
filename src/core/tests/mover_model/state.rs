//! The state of the API server and the leaders at one moment.

use berth_core::mover::grant::MoverPhase;

/// What may happen, and rules that are broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// A leader that lost the Lease continues.
    TwoLeaders,
    /// A write arrives after its leader has given it up, or is gone.
    LateWrites,
    /// The agent of node a goes away and comes back, or only seems to: it continues to write.
    Outages,
    /// An agent that was refused tries again only when the object changes.
    Sleep,
    /// Broken: the ledger is written without a resourceVersion, so no leader is fenced.
    BlindLedger,
    /// Broken: annotations are written before the ledger.
    AnnotatesFirst,
    /// Broken: Prepared data movers are not counted.
    CountsAccepted,
    /// Broken: UIDs in the ledger are not counted.
    ForgetsLedger,
    /// Broken: a new leader's cache is from before it read the ledger.
    ListsFirst,
    /// Broken: a leader keeps its cache when the limit changes.
    KeepsCache,
    /// Broken: an unchanged ledger is not written before a grant.
    SkipsUnchanged,
    /// Broken: annotations are written without a resourceVersion.
    BlindGrants,
    /// Broken: when the limit is removed, no data mover is nudged.
    LetsSleep,
    /// Broken: places that a plan frees are given away by the same plan.
    FreesAtOnce,
}

/// A data mover in the API server. One that runs or has ended counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    /// New, Accepted or Prepared.
    pub phase: MoverPhase,
    pub granted: bool,
    /// Accepted by the agent of node a.
    pub by_a: bool,
    /// An agent was refused, and waits for a change.
    pub asleep: bool,
    pub version: u8,
}

pub type Objects<const N: usize> = [Option<Object>; N];

/// One bit for each UID. `None`: no limit is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ledger {
    pub uids: Option<u8>,
    pub version: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patch {
    Grant,
    Revoke,
    Recover { keeps_place: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// `limit`: the one for which it was planned; only for judging.
    Ledger {
        uids: Option<u8>,
        limit: usize,
    },
    Object {
        object: usize,
        version: u8,
        patch: Patch,
    },
}

/// A process that believes that it leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader<const N: usize> {
    /// As last read or written.
    pub ledger: Option<Ledger>,
    pub fenced: bool,
    /// Index of the limit that it applies.
    pub limit: usize,
    /// `None`: it has not listed yet.
    pub cache: Option<Objects<N>>,
    /// The writes of the plan that remain.
    pub todo: Vec<Write>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    pub api: Objects<N>,
    pub created: usize,
    pub ledger: Ledger,
    /// Index of the limit that applies.
    pub limit: usize,
    /// The limit of the last plan that could write the ledger, if its leader knew of the last time
    /// without a limit.
    pub in_force: u8,
    /// How many may hold a place: that limit, or as many as held one when it was lowered and have
    /// not left yet.
    pub cap: u8,
    /// The agent of node a is away.
    pub out: bool,
    pub leaders: Vec<Leader<N>>,
    /// With the ledger version that it carries, if it is a write of the ledger.
    pub late: Option<(Write, u8)>,
    /// How many actions users, and mishaps, have left.
    pub users: u8,
    pub mishaps: u8,
}

/// In the order in which a fair scheduler prefers them; it never takes `Create` or later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// A candidate takes the Lease.
    Elect,
    Read(usize),
    Fence(usize),
    List(usize),
    /// A write arrives that no leader waits for any more.
    Land,
    /// A leader learns that another limit applies.
    Adopt(usize),
    Watch(usize, usize),
    /// The ledger first, all others in any order.
    Write(usize, usize),
    /// Builds a view of the cache and plans.
    Plan(usize),
    /// The agent of node a is back.
    Up,
    /// Its pod runs and its phase becomes InProgress, which frees the place.
    Run(usize),
    Prepare(usize),
    /// Accepted by the agent of node a, or of node b.
    Accept(usize, bool),
    Create,
    /// An agent tries to accept a data mover without a place.
    Refuse(usize),
    /// Another limit applies.
    Limit,
    /// The object is deleted, or its time-out passes.
    Delete(usize),
    Down,
    Timeout(usize, usize),
    Crash(usize),
}

pub fn bit(object: usize) -> u8 {
    1 << object
}

impl<const N: usize> State<N> {
    pub fn objects(&self) -> impl Iterator<Item = (usize, Object)> + '_ {
        self.api.iter().enumerate().filter_map(|(o, object)| Some((o, (*object)?)))
    }

    /// How many are Accepted or Prepared.
    pub fn prepare(&self) -> usize {
        self.objects().filter(|(_, object)| object.phase.holds_place()).count()
    }

    /// How many hold a place, or may do so without another grant.
    pub fn hold_places(&self) -> usize {
        let listed = |o| self.ledger.uids.is_some_and(|uids| uids & bit(o) != 0);
        self.objects()
            .filter(|(o, object)| object.phase.holds_place() || object.granted || listed(*o))
            .count()
    }

    /// Makes equivalent states equal: only the order of versions matters.
    pub fn normalize(&mut self) {
        for o in 0..N {
            rank(|each| self.versions(o, each));
        }
        rank(|each| {
            each(&mut self.ledger.version);
            let read = self.leaders.iter_mut().filter_map(|leader| leader.ledger.as_mut());
            read.for_each(|ledger| each(&mut ledger.version));
            if let Some((Write::Ledger { .. }, version)) = &mut self.late {
                each(version);
            }
        });
    }

    /// All copies of the version of an object.
    fn versions(&mut self, o: usize, each: &mut dyn FnMut(&mut u8)) {
        let caches = self.leaders.iter_mut().filter_map(|leader| leader.cache.as_mut());
        let seen = std::iter::once(&mut self.api).chain(caches).filter_map(|objects| objects[o].as_mut());
        seen.for_each(|object| each(&mut object.version));
        let late = self.late.iter_mut().map(|(write, _)| write);
        for write in self.leaders.iter_mut().flat_map(|leader| &mut leader.todo).chain(late) {
            if let Write::Object { object, version, .. } = write
                && *object == o
            {
                each(version);
            }
        }
    }
}

/// Renumbers all values that `visit` shows, from 0.
fn rank(mut visit: impl FnMut(&mut dyn FnMut(&mut u8))) {
    let mut used = 0_u64;
    visit(&mut |version| used |= 1 << *version);
    visit(&mut |version| {
        let below = used & ((1 << *version) - 1);
        *version = below.count_ones().try_into().unwrap();
    });
}
