//! The Secrets that locations name.

use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::SecretKey;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};

use super::credentials::{self, AwsProfileKeys, CloudFile};
use super::open_error::OpenError;

/// Name and key of the Secret in which Velero's installer stores the credentials of locations that
/// name none.
const DEFAULT_SECRET: (&str, &str) = ("cloud-credentials", "cloud");

/// Name and key of the Secret that holds a location's credentials.
pub(super) fn credentials_of(location: &BackupStorageLocation) -> (&str, &str) {
    location.spec.credential.as_ref().map_or(DEFAULT_SECRET, |named| (&named.name, &named.key))
}

/// Reads the Secrets that locations name.
#[derive(Clone)]
pub(super) struct LocationSecrets {
    client: Client,
    namespace: String,
}

impl LocationSecrets {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// The keys that a location's Secret holds for S3. `None`: as of [`Self::cloud_file`].
    pub async fn s3_keys(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<Option<AwsProfileKeys>, OpenError> {
        let Some(file) = self.cloud_file(location).await? else { return Ok(None) };
        let profile = location.spec.config.as_ref().and_then(|config| config.get("profile"));
        let profile = profile.map(String::as_str).filter(|name| !name.is_empty()).unwrap_or("default");
        let keys = credentials::parse(&file.text, profile);
        keys.map(Some).map_err(|error| file.fault(error.to_string()))
    }

    /// The file with the credentials of a location. `None`: there is none, and they come from the
    /// environment.
    pub(super) async fn cloud_file(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<Option<CloudFile>, OpenError> {
        let is_default = location.spec.credential.is_none();
        let (name, key) = credentials_of(location);
        let reference = SecretKey { name: name.into(), key: key.into(), optional: None };
        match self.get(&reference).await {
            Ok(bytes) => {
                let text = String::from_utf8(bytes).map_err(|_| OpenError::Secret {
                    name: reference.name.clone(),
                    key: reference.key.clone(),
                    why: "is not text".into(),
                })?;
                Ok(Some(CloudFile { name: reference.name, key: reference.key, text }))
            }
            Err(OpenError::Secret { .. }) if is_default => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The contents of one key of a Secret.
    pub async fn get(&self, reference: &SecretKey) -> Result<Vec<u8>, OpenError> {
        let SecretKey { name, key, .. } = reference;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let lacks = |why: String| OpenError::Secret { name: name.clone(), key: key.clone(), why };
        let found = api.get_opt(name).await.map_err(|e| OpenError::ReadSecret(name.clone(), Box::new(e)))?;
        let found =
            found.ok_or_else(|| lacks(format!("there is no such Secret in namespace {}", self.namespace)))?;
        let bytes = found.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone());
        bytes.ok_or_else(|| lacks(format!("{} has no such key", found.name_any())))
    }
}
