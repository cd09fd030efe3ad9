//! A BackupBucket of the hub.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::condition::ConditionMap;
use super::entry::GardenEntry;
use super::operation::{OperationReport, OperationState, OperationType};
use super::placement::BucketHealth;
use super::store::{SecretRef, Store};

/// A BackupBucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GardenBucket {
    pub name: String,
    pub created_at: Timestamp,
    pub is_deleted: bool,
    /// It has the hub's finalizer, and the owner that it should have.
    pub is_claimed: bool,
    /// The CloudProfile that it was created for. `None`: a person created it.
    pub profile: Option<String>,
    pub store: Store,
    /// Its spec names a Secret: [`GardenBucket::secret`].
    pub names_secret: bool,
    /// It was once in the store.
    pub is_made: bool,
    /// Why a person wants its content to stay in the store.
    pub forget_data: Option<String>,
    pub status: BucketStatus,
    /// What is wrong with it, for people.
    pub error: Option<String>,
    /// The account has reached the store's quota of buckets.
    pub is_exhausted: bool,
}

impl GardenBucket {
    pub fn secret(&self) -> Option<&SecretRef> {
        self.names_secret.then_some(&self.store.secret)
    }

    /// Will it never be created?
    pub fn has_failed(&self) -> bool {
        self.status.operation.as_ref().is_some_and(|last| last.state == OperationState::Failed)
    }

    /// Has it a place for this entry, or has the entry one already?
    pub fn has_room_for(&self, entry: &GardenEntry) -> bool {
        let limit =
            self.status.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        self.status.allocated.contains(&entry.uid)
            || entry.placed_in.as_ref() == Some(&self.name)
            || self.status.allocated.len() < limit
    }

    /// Is the other one the same to admission? The rest of the status, and what only the hub marks,
    /// may change freely.
    pub fn is_judged_as(&self, other: &Self) -> bool {
        fn judged(one: &GardenBucket) -> impl PartialEq + '_ {
            let place = (&one.name, &one.store, one.names_secret, &one.profile);
            let allocated: BTreeSet<&String> = one.status.allocated.iter().collect();
            let state = (one.is_made, one.is_deleted, one.has_failed(), &one.forget_data);
            (place, allocated, one.status.limit, state)
        }
        judged(self) == judged(other)
    }

    pub fn health(&self) -> BucketHealth {
        use OperationState::{Aborted, Error, Failed, Pending, Processing, Succeeded};
        use OperationType::{Create, Delete, LiveMigrate, Migrate, Reconcile, Restore};
        let Some(OperationReport { kind, state, .. }) = &self.status.operation else {
            return BucketHealth::Making;
        };
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
    pub operation: Option<OperationReport>,
    pub conditions: ConditionMap,
}
