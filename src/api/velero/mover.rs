//! DataUpload, DataDownload (`velero.io/v2alpha1`), PodVolumeBackup and PodVolumeRestore
//! (`velero.io/v1`): the fields that berth reads (source: Velero's definitions of 1.18.3).
//!
//! Other fields are not kept, because berth patches these kinds and never writes a whole object. No
//! kind has a status subresource: phase, annotations and labels change in one write, and one
//! admission review shows them all. No field is required here even if the definition requires it,
//! and a `null` field is absent, because a malformed object must be counted rather than overlooked.

mod read;
mod status_patch;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

pub use read::DataMover;

/// A move of snapshot data into the storage location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(group = "velero.io", version = "v2alpha1", kind = "DataUpload", plural = "datauploads", namespaced)]
#[kube(status = "DataMoverStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(rename_all = "camelCase", default)]
pub struct DataUploadSpec {
    #[serde(rename = "csiSnapshot", skip_serializing_if = "Option::is_none")]
    pub csi_snapshot: Option<CsiSnapshot>,
    /// The claim whose data is moved.
    #[serde(rename = "sourcePVC", skip_serializing_if = "Option::is_none")]
    pub source_pvc: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_storage_location: Option<String>,
    /// The data mover. Empty or `velero`: the node-agents. `berth`: berth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datamover: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSnapshot {
    /// The VolumeSnapshot, in the namespace of the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot: Option<String>,
    /// StorageClass of the claim whose data is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

/// A move of data from the storage location into a volume.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataDownload",
    plural = "datadownloads",
    namespaced
)]
#[kube(status = "DataMoverStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(rename_all = "camelCase", default)]
pub struct DataDownloadSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_volume: Option<TargetVolume>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_storage_location: Option<String>,
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The namespace of the claim that was backed up: its repository has the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_namespace: Option<String>,
    /// The data mover. Empty or `velero`: the node-agents. `berth`: berth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datamover: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetVolume {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc: Option<String>,
}

/// Status of a DataUpload or DataDownload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataMoverStatus {
    /// As text, so that an object with a phase unknown to berth can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why it failed, or what people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The node on which the data path runs, or will run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_by_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<MoverProgress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MoverProgress {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<i64>,
}

/// A backup of a pod's volume through the file system of its node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeBackup",
    plural = "podvolumebackups",
    namespaced
)]
#[kube(status = "PodVolumeStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(default)]
pub struct PodVolumeBackupSpec {
    /// The node of the pod: only the node-agent of this node can run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(rename = "backupStorageLocation", skip_serializing_if = "Option::is_none")]
    pub backup_storage_location: Option<String>,
    /// What reads the files. `restic`: berth's node agent.
    #[serde(rename = "uploaderType", skip_serializing_if = "Option::is_none")]
    pub uploader_type: Option<String>,
    /// Tags of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

/// A restore of a pod's volume through the file system of its node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeRestore",
    plural = "podvolumerestores",
    namespaced
)]
#[kube(status = "PodVolumeStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(default)]
pub struct PodVolumeRestoreSpec {
    /// The pod whose volume is restored: only the node-agent of its node can run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    #[serde(rename = "backupStorageLocation", skip_serializing_if = "Option::is_none")]
    pub backup_storage_location: Option<String>,
    /// What writes the files. `restic`: berth's node agent.
    #[serde(rename = "uploaderType", skip_serializing_if = "Option::is_none")]
    pub uploader_type: Option<String>,
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The namespace of the pod that was backed up: its repository has the snapshot.
    #[serde(rename = "sourceNamespace", skip_serializing_if = "Option::is_none")]
    pub source_namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodReference {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// Status of a PodVolumeBackup or PodVolumeRestore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodVolumeStatus {
    /// As text, so that an object with a phase unknown to berth can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why it failed or was canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// For a PodVolumeRestore: the node whose agent accepted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<MoverProgress>,
}
