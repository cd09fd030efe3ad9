//! BackupBucket of the hub. The bucket in the store has its name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, LastError, LastOperation, SecretReference, StoreConfig};

/// A bucket that clusters share.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "garden.berth.dev",
    version = "v1alpha1",
    kind = "BackupBucket",
    plural = "backupbuckets",
    shortname = "bbc",
    status = "BackupBucketStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Provider","type":"string","jsonPath":".spec.provider"}"#)]
#[kube(printcolumn = r#"{"name":"Region","type":"string","jsonPath":".spec.region"}"#)]
#[kube(printcolumn = r#"{"name":"Entries","type":"integer","jsonPath":".status.entries"}"#)]
#[kube(printcolumn = r#"{"name":"Limit","type":"integer","jsonPath":".status.limit"}"#)]
#[kube(
    printcolumn = r#"{"name":"Seed","type":"string","description":"Who acts on it","jsonPath":".status.seed"}"#
)]
#[kube(printcolumn = r#"{"name":"Operation","type":"string","jsonPath":".status.lastOperation.state"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BackupBucketSpec {
    /// Of the store: `aws` for S3 and its relatives, `azure`, `gcp`, `berth.dev/filesystem` for a
    /// folder.
    pub provider: String,
    pub region: String,
    /// Credentials for the store. Required; see `spec.backup.secretRef` of a CloudProfile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<StoreConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupBucketStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The seed whose controllers act on it, chosen by the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// UIDs of the BackupEntries that have a place here, terminating ones included. Written before
    /// an entry gets the bucket's name, with the resourceVersion it was decided on: no two entries
    /// take one last place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocated: Vec<String>,
    /// How many `allocated` are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entries: Option<u32>,
    /// How many it takes. Absent: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Which one of its profile's buckets in its region it is, from 1. Absent: none of theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u32>,
    /// Of a deleted bucket: since when it may go. Not before, and only while it is being deleted,
    /// do its seed's controllers remove anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// `ExecutorAvailable`, `CredentialsAvailable`, `OverLimit`, `Idle`: each from when it first
    /// was not as it should be.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
