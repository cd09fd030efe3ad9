//! BackupEntry of the hub: one cluster's directory in a shared bucket. The directory has its name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, LastError, LastOperation};

/// One cluster's directory in a shared bucket.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "garden.berth.dev",
    version = "v1alpha1",
    kind = "BackupEntry",
    plural = "backupentries",
    shortname = "bec",
    namespaced,
    status = "BackupEntryStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Bucket","type":"string","jsonPath":".spec.bucketName"}"#)]
#[kube(printcolumn = r#"{"name":"Seed","type":"string","jsonPath":".spec.seedName"}"#)]
#[kube(printcolumn = r#"{"name":"Operation","type":"string","jsonPath":".status.lastOperation.state"}"#)]
#[kube(
    printcolumn = r#"{"name":"Deleted At","type":"string","description":"Earliest time at which its data goes","jsonPath":".status.earliestDeletionTime"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BackupEntrySpec {
    /// The cluster whose backups these are: its Seed.
    pub seed_name: String,
    /// UID of the cluster, where the entry is a hosted cluster's and not the seed's own. For
    /// people.
    #[serde(rename = "shootUID", default, skip_serializing_if = "Option::is_none")]
    pub shoot_uid: Option<String>,
    /// Chosen by the hub where it is absent; then it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupEntryStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The seed whose controllers act on it, chosen by the hub: its own, or, to delete, any that
    /// reaches the store. Its cluster alone writes there; while the entry moves that is the one
    /// before, until that has said that it writes no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Of a deleted entry: its data stays until then, at least. The end of its grace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earliest_deletion_time: Option<Time>,
    /// Of a deleted entry: the store keeps what is left of its data at least until then, as its
    /// seed's controllers found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked_until: Option<Time>,
    /// Of a deleted entry: since when it may go. Not before, and only while it is being deleted, do
    /// its seed's controllers remove anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// What was removed from the store so far, once it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<Removed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// `LocationAvailable`: its BackupStorageLocation can be used. `LegacyLocation`: its cluster
    /// goes on with a default location of its own; absent where it does not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Objects that are no more, versions and delete markers counted one by one. In
/// `status.providerStatus` of a member cluster's BackupEntry it is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Removed {
    pub objects: u64,
    pub bytes: u64,
}
