//! One decision of the hub.

mod access;
mod buckets;
mod entries;
mod moves;
mod owners;
mod places;

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::reason::Waiting;
use super::view::{
    Bucket, BucketStatus, Conditions, EntryStatus, Operation, OperationKind, OperationState, ProfileStatus,
    Settings, View,
};
use crate::garden::executor::Member;
use crate::garden::fence::{Because, For};
use crate::garden::{Store, wanted};

/// What to do, as indices into the view. First buckets, then entries; each with the resourceVersion that the view shows; a
/// write that fails is left to the next plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub create: Vec<NewBucket>,
    pub buckets: Vec<BucketPlan>,
    pub entries: Vec<EntryPlan>,
    pub profiles: Vec<(usize, ProfileStatus)>,
    pub seeds: Vec<(usize, Conditions)>,
    /// By name: whether they are to have our finalizer.
    pub secrets: Vec<(String, bool)>,
    /// By Seed: the Secrets that it is to be able to read from now on; `None`: it is no more.
    pub access: Vec<(String, Option<BTreeSet<String>>)>,
    /// Entries without a place, and why.
    pub waiting: Vec<(usize, Waiting)>,
    /// Entries that are to move to another cluster, and what that waits for.
    pub moving: Vec<(usize, For)>,
    /// UIDs with a place that no entry of this view has. Those that are looked for in vain belong into [`View::gone`].
    pub unknown: BTreeSet<String>,
    /// Something is to be done then, whatever happens.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBucket {
    pub name: String,
    pub profile: usize,
    pub store: Store,
}

/// What becomes of a bucket; each part is a write of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPlan {
    pub bucket: usize,
    /// It is to get our finalizer, and its owner.
    pub claim: bool,
    /// Its credentials and settings are to become the profile's.
    pub store: Option<Store>,
    pub status: Option<BucketStatus>,
    pub end: Option<BucketEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketEnd {
    /// It is to be deleted: nobody has wanted or used it for long.
    Retire,
    /// It is gone from the store: our finalizer is taken off.
    LetGo,
}

/// What becomes of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPlan {
    pub entry: usize,
    /// It is to be told its bucket, and get our finalizer; once that bucket's status is written, if it is to be.
    pub claim: Option<usize>,
    pub status: Option<EntryStatus>,
    /// By that status another one may write there.
    pub handed: Option<Handed>,
    /// It is to say that this one may write there, as its status says by then.
    pub writer: Option<String>,
    /// Its end is to be put on record, and our finalizer taken off.
    pub end: Option<End>,
}

/// From one cluster to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    pub from: String,
    pub to: String,
    pub because: Because,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its data is gone.
    Removed,
    /// Its data was left alone, as somebody said.
    Forgotten,
    /// Another entry has the directory of its name, which was left alone.
    NotIts,
}

/// One walk. Entries that have a place keep it, whatever limits are now; those without get one, oldest first.
pub fn plan(view: &View, settings: &Settings, now: Timestamp) -> Plan {
    let mut walk = Walk::new(view, settings, now);
    walk.keep_places();
    walk.take_named();
    walk.place_waiting();
    walk.make_buckets();
    walk.look_at_buckets();
    walk.look_at_entries();
    walk.look_at_owners();
    walk.guard_secrets();
    walk.give_access();
    walk.plan
}

/// Where a seed's backups go.
type Home = Result<(usize, Store), Waiting>;

struct Walk<'v> {
    view: &'v View,
    settings: &'v Settings,
    now: Timestamp,
    buckets: HashMap<&'v str, usize>,
    homes: HashMap<&'v str, Home>,
    /// What each profile wants. `None`: it is faulty, and nothing follows from it.
    wanted: Vec<Option<BTreeSet<Store>>>,
    /// UIDs in each bucket, as they are to be.
    places: Vec<Vec<String>>,
    /// By name: the entry whose directory that is.
    holders: HashMap<&'v str, usize>,
    /// By entry, what it is to be in.
    target: Vec<Option<usize>>,
    /// By entry.
    waiting: Vec<Option<Waiting>>,
    plan: Plan,
}

impl<'v> Walk<'v> {
    fn new(view: &'v View, settings: &'v Settings, now: Timestamp) -> Self {
        let names = |i: usize| view.seeds.get(i).map(|cluster| cluster.member.seed.name.as_str());
        let homes = (0..view.seeds.len()).filter_map(|i| Some((names(i)?, home(view, i)?)));
        let seeds = || view.seeds.iter().map(|cluster| &cluster.member.seed);
        Self {
            view,
            settings,
            now,
            buckets: view.buckets.iter().enumerate().map(|(i, bucket)| (bucket.name.as_str(), i)).collect(),
            homes: homes.collect(),
            wanted: view
                .profiles
                .iter()
                .map(|one| Some(wanted(&one.profile, seeds()).ok()?.stores))
                .collect(),
            places: vec![Vec::new(); view.buckets.len()],
            holders: HashMap::new(),
            target: vec![None; view.entries.len()],
            waiting: vec![None; view.entries.len()],
            plan: Plan::default(),
        }
    }

    fn limit(&self, bucket: &Bucket) -> Option<u32> {
        self.settings.quota.limit(&bucket.store.place.provider)
    }

    fn members(&self) -> impl Iterator<Item = &'v Member> + Clone {
        self.view.seeds.iter().map(|cluster| &cluster.member)
    }

    /// Something is to be looked at then.
    fn wake(&mut self, at: Timestamp) {
        // What is due at a time is due strictly after it.
        let at = at.saturating_add(SignedDuration::from_millis(1)).unwrap_or(at);
        self.plan.next = Some(self.plan.next.map_or(at, |next| next.min(at)));
    }

    fn used(&self, bucket: usize) -> usize {
        self.places.get(bucket).map_or(0, Vec::len)
    }

    /// The present time, as the wire has it.
    fn second(&self) -> Timestamp {
        Timestamp::from_second(self.now.as_second()).unwrap_or(self.now)
    }
}

fn home(view: &View, seed: usize) -> Option<Home> {
    let seed = &view.seeds.get(seed)?.member.seed;
    let Some(p) = view.profiles.iter().position(|one| one.profile.name == seed.profile) else {
        return Some(Err(Waiting::NoProfile { seed: seed.name.clone(), profile: seed.profile.clone() }));
    };
    let profile = &view.profiles.get(p)?.profile;
    let faults = profile.faults();
    if !faults.is_empty() {
        return Some(Err(Waiting::Faulty { profile: profile.name.clone(), faults }));
    }
    let Some(backup) = &profile.backup else {
        return Some(Err(Waiting::NoBackups { profile: profile.name.clone() }));
    };
    let store = profile.place(&seed.region).map(|place| Store {
        place,
        secret: backup.secret.clone().unwrap_or_default(),
        config: backup.config.clone(),
    });
    Some(store.map(|store| (p, store)).ok_or_else(|| Waiting::Stranded {
        seed: seed.name.clone(),
        region: seed.region.clone(),
        profile: profile.name.clone(),
    }))
}

fn was_removed(operation: &Operation) -> bool {
    operation.is(OperationKind::Delete, OperationState::Succeeded)
}

fn pending(kind: OperationKind, description: String) -> Operation {
    Operation { kind, state: OperationState::Pending, description }
}

fn released(description: &str) -> Operation {
    Operation {
        kind: OperationKind::Delete,
        state: OperationState::Processing,
        description: description.to_owned(),
    }
}

/// Of something that is not deleted. A hub that came back from its own backup may have a status from when it was, and a
/// status must not outlive a deletion that nobody remembers.
fn kept(found: Option<&Operation>) -> Option<Operation> {
    found.filter(|found| found.kind != OperationKind::Delete).cloned()
}
