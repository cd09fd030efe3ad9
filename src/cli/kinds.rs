//! The kinds that commands read and write besides Backups and locations, with the fields that they
//! use.

use berth_api::velero::BackupSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Creates a Backup whenever it is due.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "velero.io", version = "v1", kind = "Schedule", plural = "schedules", namespaced)]
#[kube(status = "ScheduleStatus", derive = "Default", derive = "PartialEq", schema = "disabled")]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleSpec {
    pub template: BackupSpec,
    pub schedule: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_owner_references_in_backup: Option<bool>,
    #[serde(skip_serializing_if = "is_false")]
    pub paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_immediately: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_errors: Option<Vec<String>>,
}

/// Asks for the deletion of a Backup with all that is stored of it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "velero.io", version = "v1", kind = "DeleteBackupRequest", plural = "deletebackuprequests")]
#[kube(
    namespaced,
    status = "DeleteBackupRequestStatus",
    derive = "Default",
    derive = "PartialEq",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteBackupRequestSpec {
    pub backup_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteBackupRequestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<String>>,
}

/// Asks for a URL by which an artifact of a backup can be read.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DownloadRequest",
    plural = "downloadrequests",
    namespaced
)]
#[kube(status = "DownloadRequestStatus", derive = "Default", derive = "PartialEq", schema = "disabled")]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadRequestSpec {
    pub target: DownloadTarget,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DownloadTarget {
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadRequestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(rename = "downloadURL", skip_serializing_if = "Option::is_none")]
    pub download_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Only its existence matters.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "VolumeSnapshotLocation",
    plural = "volumesnapshotlocations",
    namespaced,
    schema = "disabled"
)]
#[serde(default)]
pub struct VolumeSnapshotLocationSpec {
    pub provider: String,
}

fn is_false(value: &bool) -> bool {
    !*value
}
