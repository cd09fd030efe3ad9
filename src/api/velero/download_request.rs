//! DownloadRequest (source: Velero's `pkg/apis/velero/v1/download_request_types.go`, 1.18).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Asks for a link by which a file of a Backup or a Restore can be downloaded.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "DownloadRequest",
    plural = "downloadrequests",
    namespaced
)]
#[kube(status = "DownloadRequestStatus", derive = "PartialEq")]
pub struct DownloadRequestSpec {
    pub target: DownloadTarget,
}

/// The file that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DownloadTarget {
    pub kind: DownloadTargetKind,
    /// Name of the Backup or the Restore.
    pub name: String,
}

/// Which file of a Backup or a Restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DownloadTargetKind {
    BackupLog,
    BackupContents,
    BackupVolumeSnapshots,
    BackupItemOperations,
    BackupResourceList,
    BackupResults,
    RestoreLog,
    RestoreResults,
    RestoreResourceList,
    RestoreItemOperations,
    #[serde(rename = "CSIBackupVolumeSnapshots")]
    CsiBackupVolumeSnapshots,
    #[serde(rename = "CSIBackupVolumeSnapshotContents")]
    CsiBackupVolumeSnapshotContents,
    BackupVolumeInfos,
    RestoreVolumeInfo,
}

/// Absent or `New`: no link yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DownloadRequestPhase {
    New,
    Processed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownloadRequestStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<DownloadRequestPhase>,
    /// The link. Whoever has it can read the file until it expires.
    #[serde(rename = "downloadURL", skip_serializing_if = "Option::is_none")]
    pub download_url: Option<String>,
    /// When the link expires and the request may be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,
}

/// The status as merge patches of it.
impl DownloadRequestStatus {
    /// The file can be downloaded by this link until it expires.
    pub fn processed(url: &str, expiration: Timestamp) -> Value {
        json!({
            "phase": DownloadRequestPhase::Processed, "downloadURL": url, "expiration": Time(expiration),
        })
    }

    /// There is no link yet, and the request is removed when it expires.
    pub fn unanswered(expiration: Timestamp) -> Value {
        json!({"phase": DownloadRequestPhase::New, "expiration": Time(expiration)})
    }
}
