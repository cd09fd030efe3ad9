//! BackupStorageLocation (source: Velero's `pkg/apis/velero/v1/backup_storage_location.go`, 1.18).

use std::collections::BTreeMap;

use berth_core::location::Location;
use berth_core::violation::tellable;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{GoDuration, keys};

/// A location in an object store or a file system that holds backups.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "velero.io",
    version = "v1",
    kind = "BackupStorageLocation",
    plural = "backupstoragelocations"
)]
#[kube(
    namespaced,
    shortname = "bsl",
    status = "BackupStorageLocationStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(
    printcolumn = r#"{"name":"Phase","type":"string","description":"Available or not","jsonPath":".status.phase"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Last Validated","type":"date","description":"When the store was last reached","jsonPath":".status.lastValidationTime"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(
    printcolumn = r#"{"name":"Default","type":"boolean","description":"Used by backups that name none","jsonPath":".spec.default"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct BackupStorageLocationSpec {
    /// `aws` for S3 and its relatives, `azure`, `gcp`, `berth.dev/filesystem` for a folder.
    pub provider: String,
    /// Settings of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<BTreeMap<String, String>>,
    /// Key of a Secret in the same namespace. Absent: the server's own credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<SecretKey>,
    pub object_storage: ObjectStorageLocation,
    /// Used by backups that name no location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<bool>,
    /// Empty: ReadWrite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
    /// How often to sync backups of other clusters from the store. 0: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup_sync_period: Option<GoDuration>,
    /// How often the store is checked. 0: once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_frequency: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectStorageLocation {
    pub bucket: String,
    /// Folder in the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// PEM of the certificate authority, base64. Deprecated: caCertRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "byte"))]
    pub ca_cert: Option<String>,
    /// Secret key with the PEM of the certificate authority. Not together with caCert.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_cert_ref: Option<SecretKey>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretKey {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AccessMode {
    ReadOnly,
    ReadWrite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackupStorageLocationPhase {
    Available,
    Unavailable,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupStorageLocationStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<BackupStorageLocationPhase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_synced_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_validation_time: Option<Time>,
    /// Why it is Unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Deprecated, unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_synced_revision: Option<String>,
    /// Deprecated, unused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<AccessMode>,
}

/// The status as merge patches of it, in which `null` removes a field.
impl BackupStorageLocationStatus {
    /// The store was checked. `message`: why it cannot be used.
    pub fn checked(phase: BackupStorageLocationPhase, message: Option<&str>, at: Timestamp) -> Value {
        json!({"phase": phase, "lastValidationTime": Time(at), "message": message})
    }

    /// The store is to be checked now, whenever it was checked before.
    pub fn unchecked() -> Value {
        json!({"lastValidationTime": null})
    }

    /// The cluster has looked for backups of other clusters in the store.
    pub fn synced(at: Timestamp) -> Value {
        json!({"lastSyncedTime": Time(at)})
    }
}

impl BackupStorageLocation {
    /// The part that is decided on, at admission and in the queue.
    pub fn decided(&self) -> Location {
        let status = self.status.as_ref();
        let message = status.and_then(|s| s.message.clone()).unwrap_or_default();
        Location {
            name: self.name_any(),
            is_default: self.spec.default == Some(true),
            read_only: self.spec.access_mode == Some(AccessMode::ReadOnly),
            held: keys::is_set(self.annotations(), keys::HOLD),
            // Whoever checks the location may have quoted the whole answer of its store, and this
            // is kept for each Backup that waits for it.
            unavailable: (status.and_then(|s| s.phase) == Some(BackupStorageLocationPhase::Unavailable))
                .then(|| tellable(&message).into_owned()),
            reopened_at: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn why_a_location_is_unavailable_is_short_whatever_its_status_says() {
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "metadata": {"name": "l"}, "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}},
            "status": {"phase": "Unavailable", "message": format!("no route\n{}", "x".repeat(1 << 20))},
        }))
        .unwrap();
        let why = location.decided().unavailable.unwrap();
        assert!(why.starts_with("no route\\nxxx") && why.chars().count() < 400, "{}", why.len());
    }
}
