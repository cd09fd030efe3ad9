//! The objects in a member cluster that its controllers reconcile: Gardener's
//! `extensions.gardener.cloud/v1alpha1` BackupBucket and BackupEntry (source: Gardener's
//! `pkg/apis/extensions/v1alpha1`, 2026-08). These definitions have only the fields that both a
//! gardenlet and berth need. If Gardener's own are installed, those stay.

use berth_api::keys;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Condition, LastError, LastOperation, SecretReference};

/// A bucket in a store. It has the object's name there.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "extensions.gardener.cloud",
    version = "v1alpha1",
    kind = "BackupBucket",
    plural = "backupbuckets",
    shortname = "bb",
    status = "BackupBucketStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#)]
#[kube(printcolumn = r#"{"name":"Region","type":"string","jsonPath":".spec.region"}"#)]
#[kube(printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.lastOperation.state"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BackupBucketSpec {
    /// Provider of the store.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ExtensionClass>,
    /// The provider's own settings. For berth's providers a `StoreConfig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub provider_config: Option<Value>,
    pub region: String,
    pub secret_ref: SecretReference,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupBucketStatus {
    #[serde(flatten)]
    pub common: ExtensionStatus,
    /// Credentials made for this bucket, to be used instead of `spec.secretRef`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generated_secret_ref: Option<SecretReference>,
}

/// A directory in a bucket: `<name>/`, without a leading `source-`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "extensions.gardener.cloud",
    version = "v1alpha1",
    kind = "BackupEntry",
    plural = "backupentries",
    shortname = "be",
    status = "BackupEntryStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type"}"#)]
#[kube(printcolumn = r#"{"name":"Region","type":"string","jsonPath":".spec.region"}"#)]
#[kube(printcolumn = r#"{"name":"Bucket","type":"string","jsonPath":".spec.bucketName"}"#)]
#[kube(printcolumn = r#"{"name":"State","type":"string","jsonPath":".status.lastOperation.state"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct BackupEntrySpec {
    /// Provider of the store.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ExtensionClass>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub provider_config: Option<Value>,
    /// `status.providerStatus` of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub backup_bucket_provider_status: Option<Value>,
    pub region: String,
    pub bucket_name: String,
    pub secret_ref: SecretReference,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupEntryStatus {
    #[serde(flatten)]
    pub common: ExtensionStatus,
}

/// The common interface of both kinds.
pub trait Extension {
    /// The finalizer of the controller that reconciles the object.
    const FINALIZER: &'static str;

    fn common(&self) -> Option<&ExtensionStatus>;

    /// Of the store.
    fn provider(&self) -> &str;

    fn region(&self) -> &str;

    /// Where the credentials of the store are.
    fn secret_ref(&self) -> &SecretReference;

    fn provider_config(&self) -> Option<&Value>;

    /// Do the specs differ?
    fn wants_else(&self, other: &Self) -> bool;
}

/// Both kinds have the same fields by the same names.
macro_rules! extension {
    ($kind:ty, $finalizer:expr) => {
        impl Extension for $kind {
            const FINALIZER: &'static str = $finalizer;

            fn common(&self) -> Option<&ExtensionStatus> {
                self.status.as_ref().map(|status| &status.common)
            }

            fn provider(&self) -> &str {
                &self.spec.kind
            }

            fn region(&self) -> &str {
                &self.spec.region
            }

            fn secret_ref(&self) -> &SecretReference {
                &self.spec.secret_ref
            }

            fn provider_config(&self) -> Option<&Value> {
                self.spec.provider_config.as_ref()
            }

            fn wants_else(&self, other: &Self) -> bool {
                self.spec != other.spec
            }
        }
    };
}

extension!(BackupBucket, keys::EXTENSION_BUCKET_FINALIZER);
extension!(BackupEntry, keys::EXTENSION_ENTRY_FINALIZER);

/// Gardener's extension class. Absent: shoot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExtensionClass {
    Garden,
    Seed,
    Shoot,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtensionStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub provider_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub state: Option<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<NamedResource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_operation: Option<LastOperation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// The status as a merge patch of it, in which `null` removes a field.
impl ExtensionStatus {
    /// How far an operation is. `record`: what its executor remembers, with the nulls that remove
    /// what no longer holds.
    pub fn reported(
        generation: Option<i64>,
        operation: &LastOperation,
        error: Option<&LastError>,
        record: &impl Serialize,
    ) -> Value {
        json!({
            "observedGeneration": generation, "lastOperation": operation, "lastError": error,
            "providerStatus": record,
        })
    }
}

/// A further object that the state needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedResource {
    pub name: String,
    #[schemars(schema_with = "any_object")]
    pub resource_ref: Value,
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}
