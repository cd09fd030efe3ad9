//! CloudProfile: where clusters of one infrastructure may be, and where their backups go.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, SecretReference, StoreConfig};

/// An infrastructure: its regions, and the store of its clusters' backups.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "garden.berth.dev",
    version = "v1alpha1",
    kind = "CloudProfile",
    plural = "cloudprofiles",
    status = "CloudProfileStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[kube(printcolumn = r#"{"name":"Provider","type":"string","jsonPath":".spec.provider"}"#)]
#[kube(
    printcolumn = r#"{"name":"Backup","type":"string","description":"Provider of the backups' store","jsonPath":".spec.backup.provider"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Region","type":"string","description":"The one region of the backups' store","jsonPath":".spec.backup.region"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase")]
pub struct CloudProfileSpec {
    /// Infrastructure of the clusters: `packet`, `aws`, …
    pub provider: String,
    #[serde(default)]
    pub constraints: Constraints,
    /// Absent: clusters of this profile have no backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<ProfileBackup>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Constraints {
    /// Regions in which clusters may be.
    pub regions: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProfileBackup {
    /// Of the store. Absent or empty: the profile's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// One bucket there serves all clusters. Absent or empty: one bucket in each region that has a cluster, which is
    /// possible only at the profile's own provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Credentials for the store. Required; not by the schema, so that it is told with everything else that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_config: Option<StoreConfig>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudProfileStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// By region of the store, the highest number that a bucket there ever had: none is given twice, for nobody knows
    /// who has the name of a bucket that is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub last_ordinals: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
