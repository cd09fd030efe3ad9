//! `velero.io`, one kind per file; the four kinds of data movers share one. No kind has a status
//! subresource: the status is written with the object.

pub mod backup;
pub mod backup_storage_location;
pub mod mover;
pub mod server_status_request;

pub use backup::{Backup, BackupPhase, BackupSpec, BackupStatus};
pub use backup_storage_location::{
    BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec, BackupStorageLocationStatus,
};
pub use mover::{DataDownload, DataMover, DataUpload, PodReference, PodVolumeBackup, PodVolumeRestore};
pub use server_status_request::{
    PluginInfo, ServerStatusRequest, ServerStatusRequestPhase, ServerStatusRequestStatus,
};
