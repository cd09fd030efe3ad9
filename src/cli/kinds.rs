//! Kinds of which commands need only that an object is there.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

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
