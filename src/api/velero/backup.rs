//! Backup (source: Velero's `pkg/apis/velero/v1/backup_types.go`, 1.18).

mod status_patch;

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::operation::{OperationCounts, TIMEOUT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::GoDuration;

pub use status_patch::BackupCounts;

/// What to back up, where to, and for how long to keep it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "velero.io", version = "v1", kind = "Backup", plural = "backups", namespaced)]
#[kube(status = "BackupStatus", derive = "Default", derive = "PartialEq")]
#[serde(rename_all = "camelCase", default)]
pub struct BackupSpec {
    /// Only meaningful in a Schedule's template: becomes the labels of the Backup that is created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Namespaces to take, by name or pattern. Empty: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub included_namespaces: Option<Vec<String>>,
    /// Namespaces to leave out, by name or pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_namespaces: Option<Vec<String>>,
    /// Resource types to take. Not together with the four scoped lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub included_resources: Option<Vec<String>>,
    /// Resource types to leave out. Not together with the four scoped lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_resources: Option<Vec<String>>,
    /// Cluster-scoped resource types to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub included_cluster_scoped_resources: Option<Vec<String>>,
    /// Cluster-scoped resource types to leave out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_cluster_scoped_resources: Option<Vec<String>>,
    /// Namespaced resource types to take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub included_namespace_scoped_resources: Option<Vec<String>>,
    /// Namespaced resource types to leave out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_namespace_scoped_resources: Option<Vec<String>>,
    /// Takes only objects that match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Takes objects that match one of these. Not together with labelSelector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub or_label_selectors: Option<Vec<LabelSelector>>,
    /// Snapshot persistent volumes. Absent: where possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_volumes: Option<bool>,
    /// How long to keep the backup, counted from its start. Absent or 0: the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<GoDuration>,
    /// Label that groups claims for volume group snapshots.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_label_key: Option<String>,
    /// Take cluster-scoped resources. Not together with the four scoped lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_cluster_resources: Option<bool>,
    /// Commands run in pods before and after they are backed up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<BackupHooks>,
    /// Name of the BackupStorageLocation. Empty: the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_location: Option<String>,
    /// Names of VolumeSnapshotLocations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_locations: Option<Vec<String>>,
    /// Deprecated spelling of defaultVolumesToFsBackup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_restic: Option<bool>,
    /// Back up all pod volumes through the file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_volumes_to_fs_backup: Option<bool>,
    /// Plural resource to comma separated names that go first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordered_resources: Option<BTreeMap<String, String>>,
    /// How long to wait for a CSI snapshot. Absent or 0: ten minutes.
    #[serde(rename = "csiSnapshotTimeout", skip_serializing_if = "Option::is_none")]
    pub csi_snapshot_timeout: Option<GoDuration>,
    /// How long to wait for an asynchronous operation. Absent or 0: four hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_operation_timeout: Option<GoDuration>,
    /// A ConfigMap with resource policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_policy: Option<LocalObject>,
    /// Move snapshot data into the storage location.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_move_data: Option<bool>,
    /// The data mover. Empty or `velero`: the built-in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datamover: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uploader_config: Option<UploaderConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// An object in the Backup's namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalObject {
    /// Absent: the core group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    pub kind: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploaderConfig {
    /// Files uploaded at a time. 0: the uploader's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_files_upload: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BackupHooks {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<BackupResourceHook>>,
}

/// Hooks for the pods that match.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupResourceHook {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub included_namespaces: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_namespaces: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub included_resources: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded_resources: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Run before the pod is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<Vec<ResourceHook>>,
    /// Run after the pod and its volumes are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<Vec<ResourceHook>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceHook {
    pub exec: ExecHook,
}

/// A command in a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecHook {
    /// Empty: the pod's first container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// What a failure means for the backup of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<HookErrorMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<GoDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HookErrorMode {
    Continue,
    Fail,
}

/// Phase of a Backup. Absent or `New`: not processed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BackupPhase {
    New,
    Queued,
    ReadyToStart,
    FailedValidation,
    InProgress,
    WaitingForPluginOperations,
    WaitingForPluginOperationsPartiallyFailed,
    Finalizing,
    FinalizingPartiallyFailed,
    Completed,
    PartiallyFailed,
    Failed,
    Deleting,
}

impl BackupPhase {
    /// The value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Queued => "Queued",
            Self::ReadyToStart => "ReadyToStart",
            Self::FailedValidation => "FailedValidation",
            Self::InProgress => "InProgress",
            Self::WaitingForPluginOperations => "WaitingForPluginOperations",
            Self::WaitingForPluginOperationsPartiallyFailed => "WaitingForPluginOperationsPartiallyFailed",
            Self::Finalizing => "Finalizing",
            Self::FinalizingPartiallyFailed => "FinalizingPartiallyFailed",
            Self::Completed => "Completed",
            Self::PartiallyFailed => "PartiallyFailed",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }

    /// Is this a phase after which nothing more happens by itself?
    pub fn is_final(self) -> bool {
        matches!(self, Self::FailedValidation | Self::Completed | Self::PartiallyFailed | Self::Failed)
    }
}

/// Status of a Backup. Integers that are 0 are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStatus {
    /// Always 1. Deprecated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Layout of the archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format_version: Option<String>,
    /// When the backup may be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expiration: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<BackupPhase>,
    /// Place in the queue, from 1. Only while Queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_position: Option<i64>,
    /// Set with FailedValidation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_errors: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<Time>,
    /// When a final phase was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_timestamp: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshots_attempted: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshots_completed: Option<i64>,
    /// Set with Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Warnings in the backup's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<i64>,
    /// Errors in the backup's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<BackupProgress>,
    #[serde(rename = "csiVolumeSnapshotsAttempted", skip_serializing_if = "Option::is_none")]
    pub csi_volume_snapshots_attempted: Option<i64>,
    #[serde(rename = "csiVolumeSnapshotsCompleted", skip_serializing_if = "Option::is_none")]
    pub csi_volume_snapshots_completed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_item_operations_attempted: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_item_operations_completed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_item_operations_failed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_status: Option<HookStatus>,
}

/// Items taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackupProgress {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_items: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_backed_up: Option<i64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_attempted: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_failed: Option<i64>,
}

impl Backup {
    /// The phase; an absent one is `New`.
    pub fn phase(&self) -> BackupPhase {
        self.status.as_ref().and_then(|status| status.phase).unwrap_or(BackupPhase::New)
    }

    /// The counts of its operations.
    pub fn operations(&self) -> OperationCounts {
        let count = |count: Option<i64>| u64::try_from(count.unwrap_or(0)).unwrap_or(0);
        let Some(status) = &self.status else { return OperationCounts::default() };
        OperationCounts {
            attempted: count(status.backup_item_operations_attempted),
            completed: count(status.backup_item_operations_completed),
            failed: count(status.backup_item_operations_failed),
        }
    }

    /// How long one of its operations may take.
    pub fn operation_timeout(&self) -> Duration {
        let timeout = self.spec.item_operation_timeout.as_ref();
        timeout.and_then(|timeout| timeout.get().ok().flatten()).unwrap_or(TIMEOUT)
    }
}
