//! The hub's objects at one moment, as far as deciding goes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::record::Left;
use crate::garden::executor::Member;
use crate::garden::life::{Grace, Purpose};
use crate::garden::placement::Standing;
use crate::garden::quota::Quota;
use crate::garden::{Profile, Store};

/// What people set for the whole hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub quota: Quota,
    pub grace: Grace,
    /// How long a bucket stays that nobody wants or uses.
    pub idle_delay: SignedDuration,
    /// The one namespace whose Secrets are known.
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub profiles: Vec<Infrastructure>,
    pub seeds: Vec<Cluster>,
    pub buckets: Vec<Bucket>,
    pub entries: Vec<Entry>,
    /// Of [`Settings::namespace`], by name.
    pub secrets: BTreeMap<String, Credentials>,
    /// By Seed, those included that are no more.
    pub access: BTreeMap<String, Access>,
    /// Seeds that entries name, and that were not there for so long that somebody has deleted them: in a hub that is being
    /// restored, and where one is made anew, they come in a moment.
    pub unregistered: BTreeSet<String>,
    /// UIDs that have a place somewhere, and that no entry has for certain.
    pub gone: BTreeSet<String>,
    /// By name of entries that are no more: what was left of their data in stores.
    pub left: BTreeMap<String, Vec<Left>>,
}

impl View {
    /// Seeds that may write somewhere by what entries say, and that are not there.
    pub fn missing_seeds(&self) -> BTreeSet<&str> {
        let named = self.entries.iter().flat_map(|entry| [&entry.status.seed, &entry.writer]);
        let mut missing: BTreeSet<&str> = named.filter_map(Option::as_deref).collect();
        for cluster in &self.seeds {
            missing.remove(cluster.member.seed.name.as_str());
        }
        missing
    }

    /// Data of another namespace that may lie in the directory of this entry's name. An entry without a bucket may come into
    /// any.
    pub fn left_by_another(&self, entry: &Entry) -> Option<&Left> {
        self.left.get(&entry.name)?.iter().find(|left| {
            let is_there = entry.bucket.as_ref().is_none_or(|bucket| *bucket == left.bucket);
            left.namespace != entry.namespace && (is_there || left.bucket.is_empty())
        })
    }
}

/// A CloudProfile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infrastructure {
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
pub struct Cluster {
    pub member: Member,
    /// Its controllers' last report, by its own clock: see [`crate::garden::heartbeat`].
    pub beat: Option<Timestamp>,
    pub conditions: Conditions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// It has our finalizer.
    pub is_guarded: bool,
    pub is_deleted: bool,
}

/// What a Seed may read, as its Role says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// By name.
    pub secrets: BTreeSet<String>,
    /// Somebody has that Role: the Seed alone.
    pub is_bound: bool,
}

/// A BackupBucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub name: String,
    pub created_at: Timestamp,
    pub is_deleted: bool,
    /// It has our finalizer, and the owner that it should have.
    pub is_claimed: bool,
    /// Name of the profile that it was made for. `None`: people made it.
    pub profile: Option<String>,
    pub store: Store,
    pub status: BucketStatus,
    /// What is wrong with it, for people.
    pub error: Option<String>,
    /// The store has no more buckets to give.
    pub is_exhausted: bool,
}

impl Bucket {
    pub fn standing(&self) -> Standing {
        use OperationKind::{Create, Delete, LiveMigrate, Migrate, Reconcile, Restore};
        use OperationState::{Aborted, Error, Failed, Pending, Processing, Succeeded};
        let Some(Operation { kind, state, .. }) = &self.status.operation else { return Standing::Making };
        match (kind, state) {
            (Create | Reconcile | Restore | Migrate | LiveMigrate, Succeeded) => Standing::Ready,
            (Reconcile | Restore | Migrate | LiveMigrate, Pending | Processing) => Standing::Ready,
            (Reconcile | Restore | Migrate | LiveMigrate, Error | Failed | Aborted) => Standing::Ailing,
            (Create, Pending | Processing) => Standing::Making,
            (Create, Error | Aborted) => Standing::Stuck,
            (Create, Failed) => Standing::Refused,
            // Of a hub that came back from its own backup: somebody will look again.
            (Delete, _) => Standing::Making,
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
    /// It has our finalizer: it was given a place.
    pub is_claimed: bool,
    /// The cluster whose backups are to go there.
    pub seed: String,
    pub bucket: Option<String>,
    /// Where it was given a place, as it says itself.
    pub placed_in: Option<String>,
    /// Who may write there, as it says itself.
    pub writer: Option<String>,
    /// Why whoever may write there is not to be waited for, in somebody's words.
    pub take_over: Option<String>,
    pub purpose: Option<Purpose>,
    pub is_forced: bool,
    pub is_forgotten: bool,
    pub generation: Option<i64>,
    /// The last one that a seed said it is done with. `None`: nothing was ever made of it.
    pub observed_generation: Option<i64>,
    pub status: EntryStatus,
}

/// What the hub writes there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryStatus {
    /// Who acts; and, where it is not deleted, who may write there.
    pub seed: Option<String>,
    pub earliest_deletion: Option<Timestamp>,
    pub released_at: Option<Timestamp>,
    pub operation: Option<Operation>,
}

/// `status.lastOperation`, without its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub kind: OperationKind,
    pub state: OperationState,
    /// For people.
    pub description: String,
}

impl Operation {
    pub fn is(&self, kind: OperationKind, state: OperationState) -> bool {
        self.kind == kind && self.state == state
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Create,
    Reconcile,
    Delete,
    Migrate,
    Restore,
    LiveMigrate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationState {
    Processing,
    Succeeded,
    Error,
    Failed,
    Pending,
    Aborted,
}

/// What can hold of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum About {
    /// A profile, a seed: backups have a bucket to go to.
    BackupBucketsReady,
    /// A bucket: some seed can act on it.
    ExecutorAvailable,
    /// A bucket: its Secret is there.
    CredentialsAvailable,
    /// A bucket: more entries are in it than it is to take.
    OverLimit,
    /// A bucket: nobody wants or uses it.
    Idle,
}

impl About {
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

pub type Conditions = BTreeMap<About, Condition>;
