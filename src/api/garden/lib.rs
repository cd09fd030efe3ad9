//! Shared backup buckets. The hub's kinds are `garden.berth.dev/v1alpha1`, one per file; those of a
//! member cluster are Gardener's own, in [`extensions`]. Statuses of both have the same shapes
//! ([`operation`]).

pub mod backup_bucket;
pub mod backup_entry;
pub mod cloud_profile;
pub mod crd;
pub mod extensions;
pub mod hub;
pub mod hub_state;
pub mod location;
pub mod member_objects;
pub mod operation;
pub mod report;
pub mod seed;
pub mod status;
pub mod store;
pub mod value;

pub use backup_bucket::{BackupBucket, BackupBucketSpec, BackupBucketStatus};
pub use backup_entry::{BackupEntry, BackupEntrySpec, BackupEntryStatus, Removed};
pub use cloud_profile::{CloudProfile, CloudProfileSpec, CloudProfileStatus, ProfileBackup};
pub use operation::{Condition, LastError, LastOperation};
pub use seed::{Seed, SeedSpec, SeedStatus};
pub use store::{LocationKeys, ObjectLock, ObjectLockMode, SecretReference, StoreConfig};

/// Namespace of the hub with the stores' credentials, unless told otherwise.
pub const GARDEN_NAMESPACE: &str = "garden";
