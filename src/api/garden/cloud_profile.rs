//! CloudProfile: where clusters of one infrastructure may be, and where their backups go.

use std::collections::BTreeMap;

use berth_garden_core::store::AWS;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, LocationKeys, SecretReference, StoreConfig};

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

impl CloudProfileSpec {
    /// Settings of the buckets of this profile. An absent `locationKeys` is `scoped` at provider
    /// `aws`, because somebody who says nothing has not said that clusters trust each other.
    pub fn store_config(&self) -> Option<StoreConfig> {
        let backup = self.backup.as_ref()?;
        let provider = backup.provider.as_deref().filter(|name| !name.is_empty()).unwrap_or(&self.provider);
        if provider != AWS {
            return backup.provider_config.clone();
        }
        let mut config = backup.provider_config.clone().unwrap_or_default();
        config.location_keys.get_or_insert(LocationKeys::Scoped);
        Some(config)
    }
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
    /// One bucket there serves all clusters. Absent or empty: one bucket in each region that has a
    /// cluster, which is possible only at the profile's own provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Credentials for the store. Required; not by the schema, so that it is told with everything
    /// else that is wrong.
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
    /// By region of the store, the highest number that a bucket there ever had: none is given
    /// twice, for nobody knows who has the name of a bucket that is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub last_ordinals: BTreeMap<String, u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_keys_can_be_limited_they_are_unless_the_profile_says_otherwise() {
        let shared = StoreConfig { location_keys: Some(LocationKeys::Shared), ..StoreConfig::default() };
        let keys = |provider: &str, of_backup: &str, config: Option<StoreConfig>| {
            let provider_config = config;
            let backup =
                ProfileBackup { provider: Some(of_backup.to_owned()), provider_config, ..Default::default() };
            let spec = CloudProfileSpec {
                provider: provider.to_owned(),
                backup: Some(backup),
                ..Default::default()
            };
            spec.store_config().and_then(|config| config.location_keys)
        };
        assert_eq!(keys("aws", "", None), Some(LocationKeys::Scoped));
        assert_eq!(keys("packet", "aws", Some(StoreConfig::default())), Some(LocationKeys::Scoped));
        assert_eq!(keys("packet", "aws", Some(shared)), Some(LocationKeys::Shared));
        assert_eq!(keys("aws", "gcp", None), None);
        assert_eq!(CloudProfileSpec::default().store_config(), None);
    }
}
