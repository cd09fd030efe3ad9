//! DataUpload and DataDownload as Velero defines them (source: Velero's definitions of 1.18.3), for
//! a cluster without Velero. These types are there for their schemas; what berth reads of these
//! kinds is in [`super::mover`].

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pod_volume::{Phase, Progress};

/// A movement of the data of one snapshot into the storage location.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "velero.io", version = "v2alpha1", kind = "DataUpload", plural = "datauploads", namespaced)]
#[kube(status = "DataUploadStatus")]
#[kube(printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase"}"#)]
#[kube(printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp"}"#)]
#[kube(
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Incremental Bytes","type":"integer","format":"int64","priority":10,"jsonPath":".status.incrementalBytes"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node"}"#)]
#[serde(rename_all = "camelCase")]
pub struct DataUploadSpec {
    /// `CSI`.
    pub snapshot_type: String,
    /// The snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi_snapshot: Option<MovedSnapshot>,
    /// The claim that the snapshot was taken of.
    #[serde(rename = "sourcePVC")]
    pub source_pvc: String,
    /// Namespace of the claim and of its snapshot.
    pub source_namespace: String,
    /// What moves the data: berth, or Velero's node-agents if it is empty or `velero`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datamover: Option<String>,
    /// The BackupStorageLocation that has the repository.
    pub backup_storage_location: String,
    /// Settings of the data mover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_mover_config: Option<BTreeMap<String, String>>,
    /// It is to be canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// How long the data mover may wait for what it needs.
    pub operation_timeout: String,
}

/// A CSI snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MovedSnapshot {
    /// The VolumeSnapshot.
    pub volume_snapshot: String,
    /// StorageClass of the claim that the snapshot was taken of.
    pub storage_class: String,
    /// The VolumeSnapshotClass by which the snapshot was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_class: Option<String>,
    /// The CSI driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataUploadStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Where the data mover found the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// What the data mover says besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_mover_result: Option<BTreeMap<String, String>>,
    /// Why it failed, or what people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Bytes that the repository did not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incremental_bytes: Option<i64>,
    /// The node on which the data is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    pub node_os: Option<NodeOs>,
    /// The node whose agent prepares it. Velero's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_by_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
}

/// A movement of data from the storage location into a new volume.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v2alpha1",
    kind = "DataDownload",
    plural = "datadownloads",
    namespaced
)]
#[kube(status = "DataDownloadStatus")]
#[kube(printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase"}"#)]
#[kube(printcolumn = r#"{"name":"Started","type":"date","jsonPath":".status.startTimestamp"}"#)]
#[kube(
    printcolumn = r#"{"name":"Bytes Done","type":"integer","format":"int64","jsonPath":".status.progress.bytesDone"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Total Bytes","type":"integer","format":"int64","jsonPath":".status.progress.totalBytes"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Storage Location","type":"string","jsonPath":".spec.backupStorageLocation"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(printcolumn = r#"{"name":"Node","type":"string","jsonPath":".status.node"}"#)]
#[serde(rename_all = "camelCase")]
pub struct DataDownloadSpec {
    /// The claim that gets the volume.
    pub target_volume: RestoredClaim,
    /// The BackupStorageLocation that has the repository.
    pub backup_storage_location: String,
    /// What moves the data: berth, or Velero's node-agents if it is empty or `velero`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datamover: Option<String>,
    /// The snapshot that is brought back.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Namespace of the claim that was backed up: its repository has the snapshot.
    pub source_namespace: String,
    /// Settings of the data mover.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_mover_config: Option<BTreeMap<String, String>>,
    /// It is to be canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
    /// How long the data mover may wait for what it needs.
    pub operation_timeout: String,
    #[serde(rename = "nodeOS", skip_serializing_if = "Option::is_none")]
    pub node_os: Option<NodeOs>,
    /// Bytes of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_size: Option<i64>,
}

/// A claim that has no volume yet.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoredClaim {
    /// Its name.
    pub pvc: String,
    /// The PersistentVolume that Velero restores for it. Empty with berth.
    pub pv: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataDownloadStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it failed, or what people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The node on which the data is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The node whose agent prepares it. Velero's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_by_node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
}

/// The operating system of a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeOs {
    Auto,
    Linux,
    Windows,
}

/// The two definitions, as the types say.
pub(crate) fn definitions() -> [CustomResourceDefinition; 2] {
    [DataDownload::crd(), DataUpload::crd()]
}
