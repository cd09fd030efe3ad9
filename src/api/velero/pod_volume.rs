//! PodVolumeBackup, PodVolumeRestore and BackupRepository as Velero defines them (source: Velero's
//! definitions of 1.18.3), for a cluster without Velero. These types are there for their schemas;
//! what berth reads of the first two kinds is in [`super::mover`].

use std::collections::BTreeMap;

use berth_core::pod_volume::maintenance::MaintenanceRun;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A backup of the files of one volume of a pod, which the node agent of the pod's node carries
/// out.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeBackup",
    plural = "podvolumebackups",
    namespaced
)]
#[kube(status = "PodVolumeBackupStatus")]
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
#[kube(printcolumn = r#"{"name":"Uploader","type":"string","jsonPath":".spec.uploaderType"}"#)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeBackupSpec {
    /// The node of the pod.
    pub node: String,
    /// The pod that has the volume.
    pub pod: VolumePod,
    /// Name of the volume in the pod.
    pub volume: String,
    /// The BackupStorageLocation that has the repository.
    pub backup_storage_location: String,
    /// The repository, for uploaders that go by it. Empty with berth.
    pub repo_identifier: String,
    /// What reads the files: kopia (Velero's node-agents) or restic (berth's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_type: Option<Uploader>,
    /// Tags of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<BTreeMap<String, String>>,
    /// Settings of the uploader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_settings: Option<BTreeMap<String, String>>,
    /// It is to be canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeBackupStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Where the node agent found the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The snapshot in the repository.
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Why it failed, or what people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Bytes that the repository did not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incremental_bytes: Option<i64>,
}

/// A restore of the files of one volume of a pod, which the node agent of the pod's node carries
/// out.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "PodVolumeRestore",
    plural = "podvolumerestores",
    namespaced
)]
#[kube(status = "PodVolumeRestoreStatus")]
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
#[kube(printcolumn = r#"{"name":"Uploader","type":"string","jsonPath":".spec.uploaderType"}"#)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeRestoreSpec {
    /// The pod that has the volume.
    pub pod: VolumePod,
    /// Name of the volume in the pod.
    pub volume: String,
    /// The BackupStorageLocation that has the repository.
    pub backup_storage_location: String,
    /// The repository, for uploaders that go by it. Empty with berth.
    pub repo_identifier: String,
    /// The snapshot that is brought back.
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    /// Bytes of all files of the snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_size: Option<i64>,
    /// Namespace of the pod that was backed up: its repository has the snapshot.
    pub source_namespace: String,
    /// What writes the files: kopia (Velero's node-agents) or restic (berth's).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_type: Option<Uploader>,
    /// Settings of the uploader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_settings: Option<BTreeMap<String, String>>,
    /// It is to be canceled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodVolumeRestoreStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why it failed, or what people should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The node whose agent carries it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// A repository with the files of volumes of one namespace, in one location.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupRepository",
    plural = "backuprepositories",
    namespaced
)]
#[kube(status = "BackupRepositoryStatus")]
#[kube(printcolumn = r#"{"name":"Status","type":"string","jsonPath":".status.phase"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(printcolumn = r#"{"name":"Repository Type","type":"string","jsonPath":".spec.repositoryType"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BackupRepositorySpec {
    /// Namespace of the pods.
    pub volume_namespace: String,
    /// The BackupStorageLocation that has the repository.
    pub backup_storage_location: String,
    /// kopia or restic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository_type: Option<Uploader>,
    /// The repository as the program restic names it. Velero's alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restic_identifier: Option<String>,
    /// How often it is maintained.
    pub maintenance_frequency: String,
    /// Settings of the repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository_config: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupRepositoryStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<RepositoryPhase>,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When its last maintenance succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_maintenance_time: Option<Time>,
    /// The last maintenances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recent_maintenance: Option<Vec<Maintenance>>,
}

/// The status as merge patches of it.
impl BackupRepositoryStatus {
    /// Whether the repository can be used. `fault`: why not.
    pub fn checked(fault: Option<&str>) -> Value {
        let phase = if fault.is_some() { RepositoryPhase::NotReady } else { RepositoryPhase::Ready };
        json!({"phase": phase, "message": fault.unwrap_or_default()})
    }

    /// The repository was made at this time, and can be used.
    pub fn created(at: Timestamp) -> Value {
        json!({"phase": RepositoryPhase::Ready, "lastMaintenanceTime": at})
    }

    /// The last maintenances. `succeeded`: when the last of them did.
    pub fn maintained(runs: &[MaintenanceRun], succeeded: Option<Timestamp>) -> Value {
        let entry = |run: &MaintenanceRun| {
            let mut entry = json!({"startTimestamp": run.began});
            if let Some(ended) = &run.ended {
                let has_failed = ended.fault.is_some();
                let result =
                    if has_failed { MaintenanceResult::Failed } else { MaintenanceResult::Succeeded };
                entry["completeTimestamp"] = json!(ended.at);
                entry["result"] = json!(result);
                entry["message"] = json!(ended.fault.as_deref().unwrap_or_default());
            }
            entry
        };
        let mut status = json!({"recentMaintenance": runs.iter().map(entry).collect::<Vec<_>>()});
        if let Some(at) = succeeded {
            status["lastMaintenanceTime"] = json!(at);
        }
        status
    }
}

/// A maintenance of a repository.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Maintenance {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<MaintenanceResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete_timestamp: Option<Time>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A reference to the pod that has the volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumePod {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// How far a data mover is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_done: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<i64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Uploader {
    #[serde(rename = "kopia")]
    Kopia,
    #[serde(rename = "restic")]
    Restic,
    #[serde(rename = "")]
    Unsaid,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    New,
    Accepted,
    Prepared,
    InProgress,
    Canceling,
    Canceled,
    Completed,
    Failed,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RepositoryPhase {
    New,
    Ready,
    NotReady,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum MaintenanceResult {
    Succeeded,
    Failed,
}

/// The three definitions, as the types say.
pub(crate) fn definitions() -> [CustomResourceDefinition; 3] {
    [BackupRepository::crd(), PodVolumeBackup::crd(), PodVolumeRestore::crd()]
}
