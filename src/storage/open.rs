//! Opens a BackupStorageLocation as an object store.

#[cfg(test)]
mod hanging;
mod links;
mod uploads;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::BackupStorageLocation;
use kube::Client;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::azure::MicrosoftAzure;
use object_store::client::{Certificate, ClientOptions, ReqwestConnector};
use object_store::gcp::GoogleCloudStorage;
use object_store::list::PaginatedListStore;
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::{BackoffConfig, DynObjectStore, RetryConfig};

use super::http_clients::{HttpClients, TlsSettings, connector};
use super::open_error::OpenError;
use super::parts::Opened;
use super::renewed::Renewed;
use super::rotation::Rotating;
use super::secrets::LocationSecrets;
use super::{Roots, clouds};

pub use links::{Link, LinkError};

/// Time-out of one request, which may carry a large part. It covers the whole request, because a
/// read time-out would start at the first byte of the request as well.
const REQUEST: Duration = Duration::from_secs(120);
/// Time-out of a request with all its retries, where a caller waits for the answer.
const ANSWER: Duration = Duration::from_secs(60);
/// The same where a failure would lose a run of an hour: several attempts of a large part, each on
/// a connection that was cut silently. Less than the 15 minutes for which a signature is valid.
const PATIENT: Duration = Duration::from_secs(600);
const CONNECT: Duration = Duration::from_secs(5);
/// How long a connection may be idle and be used again. Something on the way may drop an idle one
/// without a word, and the next request on it would wait for its time-out.
const IDLE: Duration = Duration::from_secs(20);
/// Settings of Velero's AWS plugin that berth does not support, and what to use instead. They are
/// refused, because they would otherwise be ignored silently.
const NOT_SERVED: [(&str, &str); 4] = [
    ("customerKeyEncryptionFile", ENCRYPTION),
    ("customerKeyEncryptionSecret", ENCRYPTION),
    ("tagging", "give the bucket tags or a lifecycle rule by prefix, and leave it out here"),
    ("credentialsFile", "name the Secret and its key in spec.credential"),
];
const ENCRYPTION: &str = "encrypt by serverSideEncryption, by kmsKeyId, or by the bucket's own setting";

/// Opens locations, with the Secrets that they name.
#[derive(Clone)]
pub struct Opener {
    secrets: LocationSecrets,
    roots: Roots,
    retry: RetryConfig,
    clients: HttpClients,
}

impl Opener {
    /// `roots`: the folders that may hold stores.
    pub fn new(client: Client, namespace: &str, roots: Roots) -> Self {
        let retry = RetryConfig { backoff: BackoffConfig::default(), max_retries: 5, retry_timeout: ANSWER };
        let secrets = LocationSecrets::new(client, namespace);
        Self { secrets, roots, retry, clients: HttpClients::default() }
    }

    /// An opener that retries for minutes, for callers that would otherwise have to start a run
    /// again.
    #[must_use]
    pub fn patient(&self) -> Self {
        // Only time limits the retries, because a store that refuses at once would use up a count
        // too early.
        let retry = RetryConfig { max_retries: 1000, retry_timeout: PATIENT, ..self.retry.clone() };
        Self { retry, ..self.clone() }
    }

    /// # Errors
    /// When the location's settings or Secrets are not usable. No request goes to the store.
    pub async fn open(&self, location: &BackupStorageLocation) -> Result<Arc<DynObjectStore>, OpenError> {
        Ok(self.open_with_parts(location).await?.store)
    }

    /// As [`Self::open`], for uploads in parts.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with_parts(&self, location: &BackupStorageLocation) -> Result<Opened, OpenError> {
        let bucket = bucket_of(location)?;
        match location.spec.provider.as_str() {
            "aws" | "velero.io/aws" => {
                let (store, keys) = self.s3(location, config_of(location)).await?;
                Ok(opened(store, keys))
            }
            "azure" | "velero.io/azure" => Ok(opened(self.azure(location, bucket).await?, None)),
            "gcp" | "velero.io/gcp" => Ok(opened(self.google(location, bucket).await?, None)),
            FILESYSTEM_PROVIDER => {
                folder(&self.folder_path(location, bucket)?, is_new(location)).map(Opened::folder)
            }
            other => Err(OpenError::Provider(other.to_owned())),
        }
    }

    /// As [`Self::open`], but a folder must exist, because a volume that is not mounted must not be
    /// taken for an empty store.
    ///
    /// # Errors
    /// As [`Self::open`]; and when the folder does not exist.
    pub async fn open_existing(
        &self,
        location: &BackupStorageLocation,
    ) -> Result<Arc<DynObjectStore>, OpenError> {
        if location.spec.provider == FILESYSTEM_PROVIDER {
            let folder = self.folder_path(location, bucket_of(location)?)?;
            std::fs::read_dir(&folder).map_err(|e| OpenError::Folder(folder.display().to_string(), e))?;
        }
        self.open(location).await
    }

    fn folder_path(&self, location: &BackupStorageLocation, bucket: &str) -> Result<PathBuf, OpenError> {
        let path = config_of(location)
            .get("path")
            .filter(|path| path.starts_with('/'))
            .ok_or(OpenError::Config("path", "the absolute path of the folder that holds the buckets"))?;
        self.roots.admit(&Path::new(path).join(bucket)).map_err(OpenError::NotAdmitted)
    }

    async fn azure(
        &self,
        location: &BackupStorageLocation,
        container: &str,
    ) -> Result<Arc<MicrosoftAzure>, OpenError> {
        let (file, options) = (self.secrets.cloud_file(location).await?, self.options(location).await?);
        clouds::azure(config_of(location), container, file, options, self.retry.clone())
    }

    async fn google(
        &self,
        location: &BackupStorageLocation,
        bucket: &str,
    ) -> Result<Arc<GoogleCloudStorage>, OpenError> {
        let (file, options) = (self.secrets.cloud_file(location).await?, self.options(location).await?);
        clouds::google(config_of(location), bucket, file, options, self.retry.clone())
    }

    /// Also returns the keys of the location's Secret, if it has one.
    async fn s3(
        &self,
        location: &BackupStorageLocation,
        config: &BTreeMap<String, String>,
    ) -> Result<(Arc<AmazonS3>, Option<Arc<Rotating>>), OpenError> {
        let get = |key: &str| config.get(key).map(String::as_str).filter(|v| !v.is_empty());
        let is = |key: &str| get(key).map(|v| v.eq_ignore_ascii_case("true"));
        if let Some((key, way_out)) = NOT_SERVED.into_iter().find(|one| get(one.0).is_some()) {
            return Err(OpenError::NotServed(key, way_out));
        }
        let tls = TlsSettings {
            authority: self.authority(location).await?,
            is_unverified: is("insecureSkipTLSVerify") == Some(true),
            allows_http: get("s3Url").is_some_and(|url| url.starts_with("http://")),
        };
        let options = client_options(tls.authority.as_deref())?
            .with_allow_invalid_certificates(tls.is_unverified)
            .with_allow_http(tls.allows_http);
        let keys = self.secrets.s3_keys(location).await?;
        let keys = keys.map(|keys| Arc::new(Rotating::new(self.secrets.clone(), location.clone(), keys)));
        let mut builder = match &keys {
            Some(keys) => AmazonS3Builder::new()
                .with_credentials(Arc::<Rotating>::clone(keys))
                .with_http_connector(connector(self.clients.connector(tls))),
            // Web identity, pod identity or instance metadata, from the environment. The builder
            // makes a client for these as well, with other options.
            None => AmazonS3Builder::from_env().with_http_connector(connector(ReqwestConnector::default())),
        };
        let bucket = &location.spec.object_storage.bucket;
        // Few S3-compatible stores support the bucket as a part of the host name.
        let path_style = is("s3ForcePathStyle").unwrap_or(get("s3Url").is_some());
        builder = builder
            .with_bucket_name(bucket)
            .with_region(get("region").unwrap_or("us-east-1"))
            .with_virtual_hosted_style_request(!path_style)
            .with_retry(self.retry.clone());
        if let Some(url) = get("s3Url") {
            builder = builder.with_endpoint(endpoint(url, bucket, path_style));
        }
        // As with Velero, a KMS key has precedence.
        builder = match (get("kmsKeyId"), get("serverSideEncryption")) {
            (Some(key), _) => builder.with_sse_kms_encryption(key),
            (None, Some(how)) => {
                let setting: AmazonS3ConfigKey =
                    "aws_server_side_encryption".parse().map_err(OpenError::Build)?;
                builder.with_config(setting, how)
            }
            (None, None) => builder,
        };
        if get("checksumAlgorithm").is_some_and(|c| c.eq_ignore_ascii_case("sha256")) {
            builder = builder.with_checksum_algorithm(Checksum::SHA256);
        }
        let store = builder.with_client_options(options).build().map_err(OpenError::Build)?;
        Ok((Arc::new(store), keys))
    }

    async fn options(&self, location: &BackupStorageLocation) -> Result<ClientOptions, OpenError> {
        client_options(self.authority(location).await?.as_deref())
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
            (None, Some(reference)) => self.secrets.get(reference).await.map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// `authority`: PEM of the location's own authority.
fn client_options(authority: Option<&[u8]>) -> Result<ClientOptions, OpenError> {
    let options = ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(CONNECT);
    let options = options.with_pool_idle_timeout(IDLE);
    let Some(pem) = authority else { return Ok(options) };
    let certificates = Certificate::from_pem_bundle(pem).map_err(OpenError::Build)?;
    Ok(certificates.into_iter().fold(options, ClientOptions::with_root_certificate))
}

/// The endpoint, with the bucket in its host name unless `path_style` is set.
fn endpoint(url: &str, bucket: &str, path_style: bool) -> String {
    let url = url.trim_end_matches('/');
    match url.split_once("://") {
        Some((scheme, host)) if !path_style => format!("{scheme}://{bucket}.{host}"),
        _ => url.to_owned(),
    }
}

/// `keys`: those that may change while the bucket is in use.
fn opened<S>(store: Arc<S>, keys: Option<Arc<Rotating>>) -> Opened
where
    S: object_store::ObjectStore + PaginatedListStore + MultipartStore,
{
    Opened::bucket(Arc::new(Renewed::new(store, keys)))
}

/// Has the location never been validated?
fn is_new(location: &BackupStorageLocation) -> bool {
    location.status.as_ref().is_none_or(|status| status.last_validation_time.is_none())
}

/// The provider's settings.
fn config_of(location: &BackupStorageLocation) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    location.spec.config.as_ref().unwrap_or(&NONE)
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

/// Opens a folder. It is created only for a location that was never validated (`is_new`): later, a
/// missing folder means that its volume is not mounted.
fn folder(folder: &Path, is_new: bool) -> Result<Arc<LocalFileSystem>, OpenError> {
    let cannot = |error| OpenError::Folder(folder.display().to_string(), error);
    if is_new {
        std::fs::create_dir_all(folder).map_err(cannot)?;
    } else if !folder.try_exists().map_err(cannot)? {
        return Err(OpenError::Missing(folder.display().to_string()));
    }
    let store = LocalFileSystem::new_with_prefix(folder).map_err(OpenError::Build)?;
    // fsync, because a Completed backup must survive a loss of power.
    Ok(Arc::new(store.with_automatic_cleanup(true).with_fsync(true)))
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};
    use serde_json::{Value, json};

    use super::*;

    fn location(config: &Value, status: &Value) -> BackupStorageLocation {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "l"},
            "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "config": config}, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_setting_that_is_not_served_is_refused_with_the_way_out() {
        let opener = Opener::new(Scripted::new().client("velero"), "velero", Roots::default());
        for (key, way_out) in NOT_SERVED {
            let error = opener.open(&location(&json!({key: "x"}), &json!({}))).await.unwrap_err().to_string();
            assert_eq!(error, format!("spec.config.{key} is not served: {way_out}"));
        }
    }

    #[test]
    fn a_bucket_stands_in_the_host_where_somebody_says_so() {
        assert_eq!(endpoint("https://s3.example/", "b", true), "https://s3.example");
        assert_eq!(endpoint("https://s3.example/", "b", false), "https://b.s3.example");
    }

    /// What of it is in no answer of a store is looked up in the client.
    #[tokio::test]
    async fn the_way_to_name_a_bucket_and_the_encryption_of_a_location_are_used() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // [default], aws_access_key_id=id, aws_secret_access_key=s
        let keys = "W2RlZmF1bHRdCmF3c19hY2Nlc3Nfa2V5X2lkPWlkCmF3c19zZWNyZXRfYWNjZXNzX2tleT1zCg==";
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud-credentials"}, "data": {"cloud": keys},
        });
        let at = "/api/v1/namespaces/velero/secrets/cloud-credentials";
        let api = Scripted::new().always(get(at).answers(secret));
        let opener = Opener::new(api.client("velero"), "velero", Roots::default());
        let (url, style) = ("https://s3.example", "s3ForcePathStyle");
        for (config, endpoint) in [
            (json!({"s3Url": url}), "https://s3.example/b"),
            (json!({"s3Url": url, style: "true"}), "https://s3.example/b"),
            (json!({"s3Url": url, style: "false"}), "https://b.s3.example"),
            (json!({}), "https://b.s3.us-east-1.amazonaws.com"),
            (json!({style: "true"}), "https://s3.us-east-1.amazonaws.com/b"),
        ] {
            let location = location(&config, &json!({}));
            let (store, _) = opener.s3(&location, location.spec.config.as_ref().unwrap()).await.unwrap();
            let text = format!("{store:?}");
            assert!(text.contains(&format!("bucket_endpoint: {endpoint:?}")), "{config}: {text}");
            assert!(!text.contains("x-amz-server-side-encryption"), "{text}");
        }
        for (config, header) in [
            (json!({"serverSideEncryption": "AES256"}), r#""x-amz-server-side-encryption": "AES256""#),
            (
                json!({"serverSideEncryption": "AES256", "kmsKeyId": "k"}),
                r#""x-amz-server-side-encryption": "aws:kms""#,
            ),
        ] {
            let location = location(&config, &json!({}));
            let (store, _) = opener.s3(&location, location.spec.config.as_ref().unwrap()).await.unwrap();
            assert!(format!("{store:?}").contains(header), "{config}: {store:?}");
        }
    }

    #[test]
    fn a_folder_is_made_for_a_new_location_and_missed_for_one_that_was_there() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path().join("stores/b");
        let missing = folder(&at, false).unwrap_err().to_string();
        assert!(missing.ends_with("mount its volume, or create it") && !at.exists(), "{missing}");
        for is_new in [true, false] {
            assert!(folder(&at, is_new).is_ok() && at.exists());
        }
        let status = |status: Value| is_new(&location(&json!({}), &status));
        assert!(status(json!({})) && status(json!({"phase": "Unavailable"})));
        assert!(!status(json!({"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"})));
    }

    /// A loss of power cannot be tested, so this looks at the setting on which it depends.
    #[test]
    fn what_is_written_into_a_folder_survives_a_loss_of_power() {
        let root = tempfile::tempdir().unwrap();
        let store = format!("{:?}", folder(root.path(), true).unwrap());
        assert!(store.contains("fsync: true"), "{store}");
    }
}
