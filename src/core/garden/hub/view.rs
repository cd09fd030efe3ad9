//! The hub's objects at one moment, reduced to what the plan needs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::record::LeftoverData;
use crate::Profile;
use crate::assignment::SeedHealth;
use crate::bucket::GardenBucket;
use crate::condition::ConditionMap;
use crate::entry::GardenEntry;
use crate::quota::Quota;
use crate::retention::Grace;

/// Settings of the whole hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubSettings {
    pub quota: Quota,
    pub grace: Grace,
    /// How long a bucket stays that is neither wanted nor used.
    pub idle_delay: SignedDuration,
    /// The only namespace whose Secrets are read.
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubView {
    pub profiles: Vec<ProfileState>,
    pub seeds: Vec<SeedState>,
    pub buckets: Vec<GardenBucket>,
    pub entries: Vec<GardenEntry>,
    /// Of [`HubSettings::namespace`], by name.
    pub secrets: BTreeMap<String, SecretState>,
    /// By Seed, also for Seeds that are gone.
    pub access: BTreeMap<String, SeedAccess>,
    /// Seeds that entries name, and that have been missing for so long that they were deleted. In a
    /// hub that is being restored, and where a Seed is created again, they appear in a moment.
    pub unregistered: BTreeSet<String>,
    /// UIDs that have a place somewhere, and that certainly no entry has.
    pub gone: BTreeSet<String>,
    /// By name of entries that have ended: data that was left in stores.
    pub left: BTreeMap<String, Vec<LeftoverData>>,
}

impl HubView {
    /// Seeds that may write somewhere according to entries, and that are missing.
    pub fn missing_seeds(&self) -> BTreeSet<&str> {
        let named = self.entries.iter().flat_map(|entry| [&entry.status.seed, &entry.writer]);
        let mut missing: BTreeSet<&str> = named.filter_map(Option::as_deref).collect();
        for cluster in &self.seeds {
            missing.remove(cluster.member.seed.name.as_str());
        }
        missing
    }

    /// Data of another namespace that may be in the directory of this entry's name. An entry
    /// without a bucket may get a place in any bucket.
    pub fn left_by_another(&self, entry: &GardenEntry) -> Option<&LeftoverData> {
        self.left.get(&entry.name)?.iter().find(|left| {
            let is_there = entry.bucket.as_ref().is_none_or(|bucket| *bucket == left.bucket);
            left.namespace != entry.namespace && (is_there || left.bucket.is_empty())
        })
    }
}

/// A CloudProfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileState {
    pub profile: Profile,
    pub uid: String,
    pub status: ProfileStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileStatus {
    /// By region.
    pub last_ordinals: BTreeMap<String, u32>,
    pub conditions: ConditionMap,
}

/// A Seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedState {
    pub member: SeedHealth,
    /// Its controllers' last report, by its own clock: see [`crate::heartbeat`].
    pub beat: Option<Timestamp>,
    pub conditions: ConditionMap,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecretState {
    /// It has the hub's finalizer.
    pub is_guarded: bool,
    pub is_deleted: bool,
}

/// What a Seed may read, according to its Role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedAccess {
    /// By name.
    pub secrets: BTreeSet<String>,
    /// The Role is bound to the Seed alone.
    pub is_bound: bool,
}
