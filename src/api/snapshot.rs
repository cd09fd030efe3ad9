//! VolumeSnapshot, VolumeSnapshotContent and VolumeSnapshotClass (`snapshot.storage.k8s.io/v1`):
//! the fields that berth reads or sets. Every other field of these objects stays as it is, because
//! berth creates VolumeSnapshots, patches the others, and never replaces any.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::core::ClusterResourceScope;
use kube::{CustomResource, Resource};
use serde::{Deserialize, Serialize};

/// A request for a snapshot of a claim.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    namespaced
)]
#[kube(status = "VolumeSnapshotStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    pub source: VolumeSnapshotSource,
}

/// What a snapshot is taken of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotSource {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_volume_snapshot_content_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotFault>,
}

/// Why the driver could not do something; it tries again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotFault {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A snapshot in the storage.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshotContent",
    plural = "volumesnapshotcontents"
)]
#[kube(status = "VolumeSnapshotContentStatus", schema = "disabled", derive = "Default", derive = "PartialEq")]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
    /// `Filesystem` or `Block`, where the snapshot controller says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_volume_mode: Option<String>,
    pub volume_snapshot_ref: SnapshotReference,
}

/// The VolumeSnapshot of a content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotReference {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotContentStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_to_use: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore_size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group_snapshot_handle: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SnapshotFault>,
}

/// By which driver, and with which settings, snapshots are taken. Its fields stand at the top, not
/// in a spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    pub metadata: ObjectMeta,
    pub driver: String,
}

impl Resource for VolumeSnapshotClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "snapshot.storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
