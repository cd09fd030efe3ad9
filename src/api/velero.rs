//! `velero.io`, one kind per file; the four kinds of data movers share one. No kind has a status
//! subresource: the status is written with the object.

pub mod backup;
pub mod backup_storage_location;
pub mod data_movement;
pub mod delete_backup_request;
pub mod download_request;
pub mod mover;
pub mod pod_volume;
pub mod schedule;
pub mod server_status_request;

pub use backup::{Backup, BackupPhase, BackupSpec, BackupStatus};
pub use backup_storage_location::{
    BackupStorageLocation, BackupStorageLocationPhase, BackupStorageLocationSpec, BackupStorageLocationStatus,
};
pub use delete_backup_request::{DeleteBackupRequest, DeleteBackupRequestPhase};
pub use download_request::{DownloadRequest, DownloadRequestPhase, DownloadTargetKind};
pub use mover::{
    DataDownload, DataMover, DataMoverStatus, DataUpload, PodReference, PodVolumeBackup, PodVolumeRestore,
};
pub use schedule::{Schedule, SchedulePhase, ScheduleSpec, ScheduleStatus};
pub use server_status_request::{
    PluginInfo, ServerStatusRequest, ServerStatusRequestPhase, ServerStatusRequestStatus,
};

#[cfg(test)]
mod tests;
