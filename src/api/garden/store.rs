//! How a store is reached: credentials, and what an S3-protocol server needs besides.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Secret. Its keys are Gardener's: `accessKeyID`, `secretAccessKey`, and, where needed,
/// `sessionToken`; at Azure `storageAccount`, `storageKey`, and, where needed, `domain`; at Google
/// `serviceaccount.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecretReference {
    pub name: String,
    pub namespace: String,
}

/// Settings of a store. In Gardener's kinds these are `spec.providerConfig`, with `apiVersion`
/// `garden.berth.dev/v1alpha1` and `kind` `StoreConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// URL of an S3-protocol server, or of one like Google's, without a path; at Azure, of the
    /// blobs of the account. Absent: the provider's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The bucket stands in the path of a URL, not in its host name. Provider `aws` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force_path_style: Option<bool>,
    /// PEM of the authority that signed the endpoint's certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_cert: Option<String>,
    #[serde(rename = "insecureSkipTLSVerify", skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    /// Absolute path of the folder that holds the buckets. Provider `berth.dev/filesystem` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// New objects cannot be removed for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_lock: Option<ObjectLock>,
    /// How the locations of entries come by their keys. `scoped`: each gets some that open its own
    /// directory alone, and are made anew in time; provider `aws` only. `shared`: each gets those
    /// of the store, so that every cluster can read and remove what the others keep there. Absent:
    /// `scoped` at provider `aws`; at others, berth refuses the CloudProfile, unless it does not
    /// serve that provider, or the profile is from before this was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location_keys: Option<LocationKeys>,
    /// ARN of the role whose rights `scoped` keys have in their directories. Absent: those of the
    /// user whose keys the Secret has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role_arn: Option<String>,
    /// URL, without a path, of the service that makes `scoped` keys, as Amazon's STS does. Absent:
    /// Amazon's of the region.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sts_endpoint: Option<String>,
    /// For how long `scoped` keys are good, at half of which they are made anew. Absent: 60 with a
    /// role, 720 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_minutes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LocationKeys {
    Scoped,
    Shared,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectLock {
    pub mode: ObjectLockMode,
    /// Whole days.
    pub retention_days: u32,
}

/// `Compliance`: nobody may shorten it. `Governance`: those with a right of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectLockMode {
    Governance,
    Compliance,
}
