//! `velero.io/v1`, one kind per file. No kind has a status subresource: status is written with the object.

pub mod backup;
pub mod backup_storage_location;

pub use backup::{Backup, BackupPhase, BackupSpec, BackupStatus};
pub use backup_storage_location::{
    BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec, BackupStorageLocationStatus,
};
