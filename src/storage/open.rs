//! Opens a BackupStorageLocation as an object store.

mod uploads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::BackupStorageLocation;
use berth_api::velero::backup_storage_location::SecretKey;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Client, ResourceExt};
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::client::{Certificate, ClientOptions};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, DynObjectStore, RetryConfig};

use super::{Roots, clouds, credentials};

/// Where Velero's installer puts the credentials of locations that name none.
const DEFAULT_SECRET: (&str, &str) = ("cloud-credentials", "cloud");
/// One request, a large part included.
const REQUEST: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("spec.provider: {0:?} is not known here: use aws, azure, gcp, or {FILESYSTEM_PROVIDER}")]
    Provider(String),
    #[error("spec.config.{0} is not served: {1}")]
    NotServed(&'static str, &'static str),
    #[error("spec.config.{0} is missing: {1}")]
    Config(&'static str, &'static str),
    #[error("spec.config.path: {0}")]
    NotAdmitted(String),
    #[error("spec.objectStorage.{0}")]
    ObjectStorage(String),
    #[error("Secret {name}, key {key}: {why}")]
    Secret { name: String, key: String, why: String },
    #[error("failed to read Secret {0}")]
    ReadSecret(String, #[source] Box<kube::Error>),
    #[error("folder {0} cannot be used")]
    Folder(String, #[source] std::io::Error),
    #[error("the settings of the location do not make a store")]
    Build(#[source] object_store::Error),
}

/// Name and key of the Secret that holds a location's credentials.
pub(super) fn credentials_of(location: &BackupStorageLocation) -> (&str, &str) {
    location.spec.credential.as_ref().map_or(DEFAULT_SECRET, |named| (&named.name, &named.key))
}

/// Reads the Secrets that locations name.
#[derive(Clone)]
pub struct Opener {
    client: Client,
    namespace: String,
    roots: Roots,
}

impl Opener {
    /// `roots`: where folders may be stores.
    pub fn new(client: Client, namespace: &str, roots: Roots) -> Self {
        Self { client, namespace: namespace.to_owned(), roots }
    }

    /// # Errors
    /// When the location's settings or Secrets are not usable. The store itself is not asked anything.
    pub async fn open(&self, location: &BackupStorageLocation) -> Result<Arc<DynObjectStore>, OpenError> {
        let none = BTreeMap::new();
        let config = location.spec.config.as_ref().unwrap_or(&none);
        let bucket = bucket_of(location)?;
        match location.spec.provider.as_str() {
            "aws" | "velero.io/aws" => self.s3(location, config).await,
            "azure" | "velero.io/azure" => {
                let (file, options) = (self.cloud_file(location).await?, self.options(location).await?);
                clouds::azure(config, bucket, file, options, retry())
            }
            "gcp" | "velero.io/gcp" => {
                let (file, options) = (self.cloud_file(location).await?, self.options(location).await?);
                clouds::google(config, bucket, file, options, retry())
            }
            FILESYSTEM_PROVIDER => folder(&self.folder_path(config, bucket)?),
            other => Err(OpenError::Provider(other.to_owned())),
        }
    }

    /// As [`Self::open`], but a folder has to be there: one that is not mounted must not be taken for an empty one.
    ///
    /// # Errors
    /// As there; and when the folder is missing.
    pub async fn open_existing(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<Arc<DynObjectStore>, OpenError> {
        if location.spec.provider == FILESYSTEM_PROVIDER {
            let none = BTreeMap::new();
            let config = location.spec.config.as_ref().unwrap_or(&none);
            let folder = self.folder_path(config, bucket_of(location)?)?;
            std::fs::read_dir(&folder).map_err(|e| OpenError::Folder(folder.display().to_string(), e))?;
        }
        self.open(location).await
    }

    fn folder_path(&self, config: &BTreeMap<String, String>, bucket: &str) -> Result<PathBuf, OpenError> {
        let path = config
            .get("path")
            .filter(|path| path.starts_with('/'))
            .ok_or(OpenError::Config("path", "the absolute path of the folder that holds the buckets"))?;
        self.roots.admit(&Path::new(path).join(bucket)).map_err(OpenError::NotAdmitted)
    }

    async fn s3(
        &self,
        location: &BackupStorageLocation,
        config: &BTreeMap<String, String>,
    ) -> Result<Arc<DynObjectStore>, OpenError> {
        let get = |key: &str| config.get(key).map(String::as_str).filter(|v| !v.is_empty());
        let is = |key: &str| get(key).is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let mut options = self.options(location).await?;
        options = options.with_allow_invalid_certificates(is("insecureSkipTLSVerify"));
        let mut builder = match self.cloud_file(location).await? {
            Some(file) => {
                let keys = credentials::parse(&file.text, get("profile").unwrap_or("default"))
                    .map_err(|error| file.fault(error.to_string()))?;
                let builder = AmazonS3Builder::new()
                    .with_access_key_id(keys.access_key_id)
                    .with_secret_access_key(keys.secret_access_key);
                keys.session_token.into_iter().fold(builder, AmazonS3Builder::with_token)
            }
            // Web identity, pod identity or instance metadata, as the environment says.
            None => AmazonS3Builder::from_env(),
        };
        let path_style = is("s3ForcePathStyle") || get("s3Url").is_some();
        builder = builder
            .with_bucket_name(&location.spec.object_storage.bucket)
            .with_region(get("region").unwrap_or("us-east-1"))
            .with_virtual_hosted_style_request(!path_style)
            .with_retry(retry());
        if let Some(url) = get("s3Url") {
            builder = builder.with_endpoint(url.trim_end_matches('/'));
            options = options.with_allow_http(url.starts_with("http://"));
        }
        if let Some(key) = get("kmsKeyId") {
            builder = builder.with_sse_kms_encryption(key);
        }
        if get("checksumAlgorithm").is_some_and(|c| c.eq_ignore_ascii_case("sha256")) {
            builder = builder.with_checksum_algorithm(Checksum::SHA256);
        }
        let store = builder.with_client_options(options).build().map_err(OpenError::Build)?;
        Ok(Arc::new(store))
    }

    async fn options(&self, location: &BackupStorageLocation) -> Result<ClientOptions, OpenError> {
        let options = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(CONNECT);
        let Some(pem) = self.authority(location).await? else { return Ok(options) };
        let certificates = Certificate::from_pem_bundle(&pem).map_err(OpenError::Build)?;
        Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
    }

    async fn authority(&self, location: &BackupStorageLocation) -> Result<Option<Vec<u8>>, OpenError> {
        let storage = &location.spec.object_storage;
        match (&storage.ca_cert, &storage.ca_cert_ref) {
            (Some(_), Some(_)) => {
                Err(OpenError::ObjectStorage("caCert and caCertRef are both set: remove one".into()))
            }
            (Some(text), None) => base64::engine::general_purpose::STANDARD
                .decode(text)
                .map(Some)
                .map_err(|_| OpenError::ObjectStorage("caCert is not base64".into())),
            (None, Some(reference)) => self.secret(reference).await.map(Some),
            (None, None) => Ok(None),
        }
    }

    async fn cloud_file(&self, location: &BackupStorageLocation) -> Result<Option<CloudFile>, OpenError> {
        let is_default = location.spec.credential.is_none();
        let (name, key) = credentials_of(location);
        let reference = SecretKey { name: name.into(), key: key.into(), optional: None };
        match self.secret(&reference).await {
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

    async fn secret(&self, reference: &SecretKey) -> Result<Vec<u8>, OpenError> {
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

/// The credentials that a location names.
pub(super) struct CloudFile {
    pub name: String,
    pub key: String,
    pub text: String,
}

impl CloudFile {
    pub fn fault(&self, why: String) -> OpenError {
        OpenError::Secret { name: self.name.clone(), key: self.key.clone(), why }
    }
}

fn retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 5, retry_timeout: Duration::from_secs(60) }
}

fn bucket_of(location: &BackupStorageLocation) -> Result<&str, OpenError> {
    let bucket = location.spec.object_storage.bucket.as_str();
    let is_path = bucket.contains('/') && !bucket.starts_with("arn:aws:s3:");
    if is_path || matches!(bucket, "" | "." | "..") {
        let fault = format!("bucket: {bucket:?} is not a bucket name: no slashes, and not dots alone");
        return Err(OpenError::ObjectStorage(fault));
    }
    Ok(bucket)
}

fn folder(folder: &Path) -> Result<Arc<DynObjectStore>, OpenError> {
    std::fs::create_dir_all(folder).map_err(|e| OpenError::Folder(folder.display().to_string(), e))?;
    let store = LocalFileSystem::new_with_prefix(folder).map_err(OpenError::Build)?;
    Ok(Arc::new(store.with_automatic_cleanup(true)))
}
