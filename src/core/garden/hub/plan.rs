//! One plan of the hub.

mod access;
mod buckets;
mod conditions;
mod entries;
mod moves;
mod places;

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};

use super::reason::PlacementWaitReason;
use super::view::{HubSettings, HubView, ProfileStatus};
use crate::assignment::SeedHealth;
use crate::bucket::{BucketStatus, GardenBucket};
use crate::condition::ConditionMap;
use crate::entry::EntryStatus;
use crate::fence::{HandoverReason, WaitingFor};
use crate::operation::{OperationReport, OperationState, OperationType};
use crate::{Store, wanted};

/// What to do, as indices into the view: buckets first, then entries. Each write carries the
/// resourceVersion that the view shows; a write that fails is left to the next plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubPlan {
    pub create: Vec<NewBucket>,
    pub buckets: Vec<BucketPlan>,
    pub entries: Vec<EntryPlan>,
    pub profiles: Vec<(usize, ProfileStatus)>,
    pub seeds: Vec<(usize, ConditionMap)>,
    /// By name: whether the Secret should have the hub's finalizer.
    pub secrets: Vec<(String, bool)>,
    /// By Seed: the Secrets that it should be able to read from now on; `None`: the Seed is gone.
    pub access: Vec<(String, Option<BTreeSet<String>>)>,
    /// Entries without a place, and why.
    pub waiting: Vec<(usize, PlacementWaitReason)>,
    /// Entries that should move to another cluster, and what they wait for.
    pub moving: Vec<(usize, WaitingFor)>,
    /// UIDs that have a place, and that no entry of this view has. Those that the API server does
    /// not have either belong into [`HubView::gone`].
    pub unknown: BTreeSet<String>,
    /// When the next plan is due, whatever happens before.
    pub next: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBucket {
    pub name: String,
    pub profile: usize,
    pub store: Store,
}

/// Writes to a bucket. Each part is a write of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPlan {
    pub bucket: usize,
    /// Add the hub's finalizer, and its owner.
    pub claim: bool,
    /// Set credentials and settings to the profile's.
    pub store: Option<Store>,
    pub status: Option<BucketStatus>,
    pub end: Option<BucketEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketEnd {
    /// Delete it: it has not been wanted or used for long.
    Retire,
    /// It is gone from the store: remove the hub's finalizer.
    LetGo,
}

/// Writes to an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryPlan {
    pub entry: usize,
    /// Set its bucket and add the hub's finalizer, after the status of that bucket is written.
    pub claim: Option<usize>,
    pub status: Option<EntryStatus>,
    /// With that status another cluster may write there.
    pub handed: Option<HandedOverEntry>,
    /// Set the annotation that names the writer, as the status does by then.
    pub writer: Option<String>,
    /// Record its end, and remove the hub's finalizer.
    pub end: Option<EntryEnd>,
}

/// A move from one cluster to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOverEntry {
    pub from: String,
    pub to: String,
    pub because: HandoverReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEnd {
    /// Its data is gone.
    Removed,
    /// Its data was left alone, because a person said so.
    Forgotten,
    /// The directory of its name is another entry's, and was left alone.
    NotIts,
}

/// The state of one planning walk. Entries that have a place keep it, whatever the limits are now;
/// entries without one get a place, oldest first.
pub fn plan(view: &HubView, settings: &HubSettings, now: Timestamp) -> HubPlan {
    let mut walk = HubPlanner::new(view, settings, now);
    walk.keep_places();
    walk.take_named();
    walk.place_waiting();
    walk.make_buckets();
    walk.plan_buckets();
    walk.plan_entries();
    walk.plan_conditions();
    walk.guard_secrets();
    walk.give_access();
    walk.plan
}

/// Where a seed's backups go.
type Home = Result<(usize, Store), PlacementWaitReason>;

struct HubPlanner<'v> {
    view: &'v HubView,
    settings: &'v HubSettings,
    now: Timestamp,
    buckets: HashMap<&'v str, usize>,
    homes: HashMap<&'v str, Home>,
    /// What each profile wants. `None`: it is faulty, and nothing follows from it.
    wanted: Vec<Option<BTreeSet<Store>>>,
    /// UIDs that each bucket should list.
    places: Vec<Vec<String>>,
    /// By name: the entry that has the directory.
    holders: HashMap<&'v str, usize>,
    /// By entry: the bucket that it should be in.
    target: Vec<Option<usize>>,
    /// By entry.
    waiting: Vec<Option<PlacementWaitReason>>,
    plan: HubPlan,
}

impl<'v> HubPlanner<'v> {
    fn new(view: &'v HubView, settings: &'v HubSettings, now: Timestamp) -> Self {
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
            plan: HubPlan::default(),
        }
    }

    fn limit(&self, bucket: &GardenBucket) -> Option<u32> {
        self.settings.quota.limit(&bucket.store.place.provider)
    }

    fn members(&self) -> impl Iterator<Item = &'v SeedHealth> + Clone {
        self.view.seeds.iter().map(|cluster| &cluster.member)
    }

    /// Plans again at that time.
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

fn home(view: &HubView, seed: usize) -> Option<Home> {
    let seed = &view.seeds.get(seed)?.member.seed;
    let Some(p) = view.profiles.iter().position(|one| one.profile.name == seed.profile) else {
        return Some(Err(PlacementWaitReason::NoProfile {
            seed: seed.name.clone(),
            profile: seed.profile.clone(),
        }));
    };
    let profile = &view.profiles.get(p)?.profile;
    let faults = profile.faults();
    if !faults.is_empty() {
        return Some(Err(PlacementWaitReason::Faulty { profile: profile.name.clone(), faults }));
    }
    let Some(backup) = &profile.backup else {
        return Some(Err(PlacementWaitReason::NoBackups { profile: profile.name.clone() }));
    };
    let store = profile.place(&seed.region).map(|place| Store {
        place,
        secret: backup.secret.clone().unwrap_or_default(),
        config: backup.config.clone(),
    });
    Some(store.map(|store| (p, store)).ok_or_else(|| PlacementWaitReason::Stranded {
        seed: seed.name.clone(),
        region: seed.region.clone(),
        profile: profile.name.clone(),
    }))
}

fn was_removed(operation: &OperationReport) -> bool {
    operation.is(OperationType::Delete, OperationState::Succeeded)
}

fn pending(kind: OperationType, description: String) -> OperationReport {
    OperationReport { kind, state: OperationState::Pending, description }
}

fn released(description: &str) -> OperationReport {
    OperationReport {
        kind: OperationType::Delete,
        state: OperationState::Processing,
        description: description.to_owned(),
    }
}

/// The operation of an object that is not deleted. After a restore of the hub its status may be of
/// a deletion that the hub has lost, and must not outlive it.
fn kept(found: Option<&OperationReport>) -> Option<OperationReport> {
    found.filter(|found| found.kind != OperationType::Delete).cloned()
}
