//! The hub's objects at one moment, reduced to what the plan needs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::record::Left;
use crate::assignment::SeedHealth;
use crate::operation::{OperationState, OperationType};
use crate::placement::BucketHealth;
use crate::quota::Quota;
use crate::retention::{Grace, Purpose};
use crate::{Profile, Store};

/// Settings of the whole hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub quota: Quota,
    pub grace: Grace,
    /// How long a bucket stays that is neither wanted nor used.
    pub idle_delay: SignedDuration,
    /// The only namespace whose Secrets are read.
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub profiles: Vec<ProfileState>,
    pub seeds: Vec<SeedState>,
    pub buckets: Vec<Bucket>,
    pub entries: Vec<Entry>,
    /// Of [`Settings::namespace`], by name.
    pub secrets: BTreeMap<String, Credentials>,
    /// By Seed, also for Seeds that are gone.
    pub access: BTreeMap<String, Access>,
    /// Seeds that entries name, and that have been missing for so long that they were deleted. In a hub
    /// that is being restored, and where a Seed is created again, they appear in a moment.
    pub unregistered: BTreeSet<String>,
    /// UIDs that have a place somewhere, and that certainly no entry has.
    pub gone: BTreeSet<String>,
    /// By name of entries that have ended: data that was left in stores.
    pub left: BTreeMap<String, Vec<Left>>,
}

impl View {
    /// Seeds that may write somewhere according to entries, and that are missing.
    pub fn missing_seeds(&self) -> BTreeSet<&str> {
        let named = self.entries.iter().flat_map(|entry| [&entry.status.seed, &entry.writer]);
        let mut missing: BTreeSet<&str> = named.filter_map(Option::as_deref).collect();
        for cluster in &self.seeds {
            missing.remove(cluster.member.seed.name.as_str());
        }
        missing
    }

    /// Data of another namespace that may be in the directory of this entry's name. An entry without a
    /// bucket may get a place in any bucket.
    pub fn left_by_another(&self, entry: &Entry) -> Option<&Left> {
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
    pub conditions: Conditions,
}

/// A Seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeedState {
    pub member: SeedHealth,
    /// Its controllers' last report, by its own clock: see [`crate::heartbeat`].
    pub beat: Option<Timestamp>,
    pub conditions: Conditions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// It has the hub's finalizer.
    pub is_guarded: bool,
    pub is_deleted: bool,
}

/// What a Seed may read, according to its Role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// By name.
    pub secrets: BTreeSet<String>,
    /// The Role is bound to the Seed alone.
    pub is_bound: bool,
}

/// A BackupBucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    pub created_at: Timestamp,
    pub is_deleted: bool,
    /// It has the hub's finalizer, and the owner that it should have.
    pub is_claimed: bool,
    /// Name of the profile that it was created for. `None`: a person created it.
    pub profile: Option<String>,
    pub store: Store,
    pub status: BucketStatus,
    /// What is wrong with it, for people.
    pub error: Option<String>,
    /// The account has reached the store's quota of buckets.
    pub is_exhausted: bool,
}

impl Bucket {
    pub fn standing(&self) -> BucketHealth {
        use OperationState::{Aborted, Error, Failed, Pending, Processing, Succeeded};
        use OperationType::{Create, Delete, LiveMigrate, Migrate, Reconcile, Restore};
        let Some(Operation { kind, state, .. }) = &self.status.operation else { return BucketHealth::Making };
        match (kind, state) {
            (Create | Reconcile | Restore | Migrate | LiveMigrate, Succeeded) => BucketHealth::Ready,
            (Reconcile | Restore | Migrate | LiveMigrate, Pending | Processing) => BucketHealth::Ready,
            (Reconcile | Restore | Migrate | LiveMigrate, Error | Failed | Aborted) => BucketHealth::Ailing,
            (Create, Pending | Processing) => BucketHealth::Making,
            (Create, Error | Aborted) => BucketHealth::Stuck,
            (Create, Failed) => BucketHealth::Refused,
            // The status is from before a restore of the hub: a seed will report again.
            (Delete, _) => BucketHealth::Making,
        }
    }
}

/// What the hub writes there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketStatus {
    pub seed: Option<String>,
    /// UIDs.
    pub allocated: Vec<String>,
    /// As the status says.
    pub entries: Option<u32>,
    pub limit: Option<u32>,
    pub ordinal: Option<u32>,
    pub released_at: Option<Timestamp>,
    pub operation: Option<Operation>,
    pub conditions: Conditions,
}

/// A BackupEntry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    /// It has the hub's finalizer: it was given a place.
    pub is_claimed: bool,
    /// The cluster whose backups should go there.
    pub seed: String,
    pub bucket: Option<String>,
    /// Where it was given a place, according to its annotation.
    pub placed_in: Option<String>,
    /// Seed that may write there, according to its annotation.
    pub writer: Option<String>,
    /// Why a person wants the move not to wait for the seed that may write there.
    pub take_over: Option<String>,
    pub purpose: Option<Purpose>,
    pub is_forced: bool,
    pub is_forgotten: bool,
    pub generation: Option<i64>,
    /// The last generation that a seed has reported as done. `None`: its directory was never created.
    pub observed_generation: Option<i64>,
    pub status: EntryStatus,
}

/// What the hub writes there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryStatus {
    /// Seed that acts; while the entry is not deleted, also the one that may write there.
    pub seed: Option<String>,
    pub earliest_deletion: Option<Timestamp>,
    pub released_at: Option<Timestamp>,
    pub operation: Option<Operation>,
}

/// `status.lastOperation`, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub kind: OperationType,
    pub state: OperationState,
    /// For people.
    pub description: String,
}

impl Operation {
    pub fn is(&self, kind: OperationType, state: OperationState) -> bool {
        self.kind == kind && self.state == state
    }
}

/// Type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// Of a profile or a seed: its backups have a bucket.
    BackupBucketsReady,
    /// Of a bucket: a seed can act on it.
    ExecutorAvailable,
    /// Of a bucket: its Secret is there.
    CredentialsAvailable,
    /// Of a bucket: more entries are in it than its limit.
    OverLimit,
    /// Of a bucket: it is neither wanted nor used.
    Idle,
}

impl ConditionType {
    pub const ALL: [Self; 5] = [
        Self::BackupBucketsReady,
        Self::ExecutorAvailable,
        Self::CredentialsAvailable,
        Self::OverLimit,
        Self::Idle,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::BackupBucketsReady => "BackupBucketsReady",
            Self::ExecutorAvailable => "ExecutorAvailable",
            Self::CredentialsAvailable => "CredentialsAvailable",
            Self::OverLimit => "OverLimit",
            Self::Idle => "Idle",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|about| about.as_str() == text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub holds: bool,
    /// In whole seconds.
    pub since: Timestamp,
    pub reason: String,
    pub message: String,
}

pub type Conditions = BTreeMap<ConditionType, Condition>;
