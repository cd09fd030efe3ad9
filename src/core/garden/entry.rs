//! A BackupEntry of the hub.

use jiff::Timestamp;

use super::operation::OperationReport;
use super::retention::Purpose;

/// A BackupEntry: a cluster's directory in a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GardenEntry {
    pub namespace: String,
    pub name: String,
    /// Empty before it is created.
    pub uid: String,
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    /// It has the hub's finalizer: it was given a place.
    pub is_claimed: bool,
    /// The cluster whose backups should go there.
    pub seed: String,
    pub shoot_uid: Option<String>,
    /// `None`: not placed yet.
    pub bucket: Option<String>,
    /// The bucket in which the hub once gave it its place, according to its annotation, which
    /// outlives a restore.
    pub placed_in: Option<String>,
    /// Seed that may write there, according to its annotation.
    pub writer: Option<String>,
    /// Why a person wants the move not to wait for the seed that may write there.
    pub take_over: Option<String>,
    pub purpose: Option<Purpose>,
    /// Why a person wants its data to be removed without grace.
    pub force_deletion: Option<String>,
    /// Why a person wants its data to stay in the store.
    pub forget_data: Option<String>,
    pub generation: Option<i64>,
    /// The last generation that a seed has reported as done. `None`: its directory was never
    /// created.
    pub observed_generation: Option<i64>,
    pub status: EntryStatus,
}

impl GardenEntry {
    pub fn is_deleted(&self) -> bool {
        self.deleted_at.is_some()
    }

    /// Is the other one the same to admission? Its status, and what only the hub marks, may change
    /// freely, and so may finalizers, which count on a deletion only.
    pub fn is_judged_as(&self, other: &Self) -> bool {
        fn judged(one: &GardenEntry) -> impl PartialEq + '_ {
            let identity = (&one.namespace, &one.name, &one.uid, one.is_deleted());
            let spec = (&one.seed, &one.shoot_uid, &one.bucket);
            (identity, spec, &one.placed_in, &one.force_deletion, &one.forget_data, &one.take_over)
        }
        judged(self) == judged(other)
    }
}

/// What the hub writes there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryStatus {
    /// Seed that acts; while the entry is not deleted, also the one that may write there.
    pub seed: Option<String>,
    pub earliest_deletion: Option<Timestamp>,
    pub released_at: Option<Timestamp>,
    pub operation: Option<OperationReport>,
}
