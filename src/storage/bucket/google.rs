//! Buckets of Google Cloud Storage, by its JSON API and as a service account.

use std::fmt;
use std::sync::Arc;

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use berth_garden_core::lock::{DefaultLockMode, Lock, LockChange, change};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Method, header};
use k8s_openapi::api::core::v1::Secret;
use object_store::CredentialProvider;
use object_store::client::HttpRequestBody;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::transport::{
    self, ENCODED, StoreHttpClient, StoreRequest, StoreResponse, add_query, lacks, wrong,
};
use super::{
    Created, Hold, Marker, Removal, Result, StoreError, UnfinishedUpload, UploadPage, Version, VersionPage,
    google_json, xml,
};

/// Key of Gardener's Secrets (source: `gardener-extension-provider-gcp`).
const KEY: &str = "serviceaccount.json";
const SERVICE: &str = "https://storage.googleapis.com";
/// Unfinished uploads are aborted after this many days, because they cost money and no list of
/// objects shows them.
const UNFINISHED_DAYS: u32 = 7;
/// Removals at the same time. A batch of this API is single requests in one body.
const REMOVED_AT_ONCE: usize = 16;
const DAY: u64 = 24 * 60 * 60;

pub struct Google {
    line: StoreHttpClient,
    tokens: Arc<dyn CredentialProvider<Credential = GcpCredential>>,
    project: String,
    bucket: String,
    region: String,
    /// URL of the service, without a slash at the end.
    service: String,
    lock: Option<Lock>,
}

/// The fields of a service account's file that are read here.
#[derive(Deserialize)]
struct ServiceAccount {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    project_id: String,
}

#[derive(Clone, Copy, Default)]
struct GoogleRequest<'a> {
    /// Path after the URL of the service, encoded.
    path: &'a str,
    query: &'a [(&'a str, &'a str)],
    body: Option<&'a Value>,
    /// Name of the call in messages.
    key: Option<&'a str>,
}

impl Google {
    pub fn open(bucket: &str, region: &str, config: &StoreConfig, secret: &Secret) -> Result<Self> {
        let Some(file) = transport::text(secret, KEY) else { return Err(lacks(secret, &[(KEY, false)])) };
        // The errors of the parsers are dropped, because they quote the Secret.
        let of_secret = |what: &str| wrong(format!("{}, {KEY}: {what}", transport::name(secret)));
        let account: ServiceAccount =
            serde_json::from_str(file).map_err(|_| of_secret("is not the JSON file of a service account"))?;
        if !matches!(account.kind.as_str(), "" | "service_account") {
            return Err(of_secret(
                "only keys of service accounts are served, not other types of credentials",
            ));
        }
        if account.project_id.is_empty() {
            return Err(of_secret("lacks project_id"));
        }
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        if matches!(bucket, "" | "." | "..") || !bucket.chars().all(is_name) {
            return Err(wrong(format!("metadata.name: {bucket:?} is not the name of a bucket")));
        }
        let service = match &config.endpoint {
            None => SERVICE.to_owned(),
            Some(url) => transport::address(url).filter(|url| url.matches('/').count() == 2).ok_or_else(|| {
                wrong(format!(
                    "spec.providerConfig.endpoint: {url:?} is not a URL of a store: http:// or https://, a host, no path"
                ))
            })?,
        };
        let store = GoogleCloudStorageBuilder::new()
            .with_bucket_name(bucket)
            .with_base_url(&service)
            .with_service_account_key(file)
            .with_client_options(transport::options(&service, config)?)
            .build()
            .map_err(|_| of_secret("lacks client_email, private_key_id, or a private_key in PEM"))?;
        Ok(Self {
            line: StoreHttpClient::new(&service, config)?,
            tokens: store.credentials().clone(),
            project: account.project_id,
            bucket: bucket.to_owned(),
            region: region.to_owned(),
            service,
            lock: config.object_lock.as_ref().map(Lock::from),
        })
    }

    pub async fn create(&self) -> Result<Created> {
        let body = json!({
            "name": self.bucket, "location": self.region,
            "iamConfiguration": wanted_access(), "lifecycle": wanted_lifecycle(),
        });
        let query = [("project", self.project.as_str())];
        let call = GoogleRequest { path: "/storage/v1/b", query: &query, body: Some(&body), key: None };
        match self.send(Method::POST, call).await {
            Ok(_) => Ok(Created::New),
            Err(error) if error.word == "conflict" => self.whose(&error).await,
            Err(error) => Err(error),
        }
    }

    /// Checks that an existing bucket belongs to the project. Read access does not prove that,
    /// because another project may have opened a bucket of this name to everybody.
    async fn whose(&self, refused: &StoreError) -> Result<Created> {
        let query = [("project", self.project.as_str()), ("prefix", self.bucket.as_str())];
        let call = GoogleRequest { path: "/storage/v1/b", query: &query, ..GoogleRequest::default() };
        let answer = self.send(Method::GET, call).await.map_err(|error| {
            let message = format!(
                "{self} is there, and whether it is of project {} could not be told: let the service account list its buckets \
                 (storage.buckets.list), or use another name ({error})",
                self.project
            );
            StoreError::new(error.fault, message)
        })?;
        let found = google_json::buckets(&answer.body).map_err(|error| self.unreadable(&error))?;
        if found.contains(&self.bucket) {
            return Ok(Created::Already);
        }
        let message = format!(
            "a bucket {} exists and belongs to somebody else: names are the store's, not the project's; use another one ({refused})",
            self.bucket
        );
        Err(StoreError::new(StoreFault::NameTaken, message))
    }

    /// Configures the bucket. Foreign settings stay: a longer retention, other lifecycle rules.
    pub async fn configure(&self) -> Result<Vec<String>> {
        let found = self.read(&self.of_bucket(Method::GET, None).await?.body)?;
        let (mut patch, mut asked) = (json!({}), Vec::new());
        let is_uniform = found.pointer("/iamConfiguration/uniformBucketLevelAccess/enabled");
        if is_uniform != Some(&json!(true)) || !is_enforced(&found) {
            patch["iamConfiguration"] = wanted_access();
            asked.push("/iamConfiguration/publicAccessPrevention");
        }
        let rules = found.pointer("/lifecycle/rule").and_then(Value::as_array);
        if rules.is_none_or(Vec::is_empty) {
            patch["lifecycle"] = wanted_lifecycle();
            asked.push("/lifecycle/rule");
        }
        let mut warnings = Vec::new();
        let mut lock = None;
        match change(self.lock, google_json::lock(&found)) {
            LockChange::Keep => {}
            LockChange::Set(wanted) => {
                let seconds = u64::from(wanted.days).saturating_mul(DAY);
                patch["retentionPolicy"] = json!({"retentionPeriod": seconds.to_string()});
                asked.push("/retentionPolicy/retentionPeriod");
                lock = Some(wanted.mode);
            }
            LockChange::Stronger(found) => warnings.push(format!(
                "the bucket's retention policy ({} days{}) is stronger than spec.providerConfig.objectLock, and stays",
                found.days,
                if found.mode == DefaultLockMode::Compliance { ", locked" } else { "" }
            )),
        }
        if asked.is_empty() {
            return Ok(warnings);
        }
        let set = self.read(&self.of_bucket(Method::PATCH, Some(&patch)).await?.body)?;
        let is_unknown = |at: &&&str| set.pointer(at) != patch.pointer(at);
        let unknown: Vec<&str> =
            asked.iter().filter(is_unknown).filter_map(|at| at.split('/').nth(1)).collect();
        if lock == Some(DefaultLockMode::Compliance) && !unknown.contains(&"retentionPolicy") {
            self.lock_retention(&set).await?;
        }
        if !unknown.is_empty() {
            warnings.push(format!("the store does not support {}: skipped", unknown.join(", ")));
        }
        Ok(warnings)
    }

    /// Locks the retention policy. After that nobody can shorten it, nor delete the bucket before
    /// its objects may be deleted.
    async fn lock_retention(&self, found: &Value) -> Result<()> {
        let at = found.get("metageneration").and_then(Value::as_str).unwrap_or_default();
        let path = format!("{}/lockRetentionPolicy", self.path());
        let call = GoogleRequest {
            path: &path,
            query: &[("ifMetagenerationMatch", at)],
            ..GoogleRequest::default()
        };
        self.send(Method::POST, call).await.map(|_| ())
    }

    pub async fn delete(&self) -> Result<()> {
        match self.of_bucket(Method::DELETE, None).await {
            Ok(_) => Ok(()),
            // Google answers with the first, compatible stores with the second.
            Err(error) if matches!(error.word.as_str(), "conflict" | "conditionNotMet") => {
                Err(StoreError { fault: StoreFault::NotEmpty, ..error })
            }
            Err(error) => Err(error),
        }
    }

    pub async fn page(&self, prefix: &str, after: Option<&Marker>, most: usize) -> Result<VersionPage> {
        let most = most.to_string();
        let mut query = vec![
            ("versions", "true"),
            ("maxResults", &most),
            ("prefix", prefix),
            ("fields", "kind,nextPageToken,items(name,generation,size,updated)"),
        ];
        query.extend(after.map(|after| ("pageToken", after.key.as_str())));
        let path = format!("{}/o", self.path());
        let answer = self
            .send(Method::GET, GoogleRequest { path: &path, query: &query, ..GoogleRequest::default() })
            .await?;
        let page = google_json::page(&answer.body).map_err(|error| self.unreadable(&error))?;
        match page.versions.iter().find(|version| !version.key.starts_with(prefix)) {
            Some(strange) => Err(self.unreadable(&format!("{} was not asked for", strange.key))),
            None => Ok(page),
        }
    }

    pub async fn remove(&self, versions: Vec<Version>) -> Result<Removal> {
        let each = versions
            .into_iter()
            .map(|version| async move { (self.of_version(Method::DELETE, &version).await, version) });
        let mut ended = stream::iter(each).buffer_unordered(REMOVED_AT_ONCE);
        let mut removal = Removal::default();
        while let Some((removed, version)) = ended.next().await {
            match removed {
                Ok(_) => removal.removed.push(version),
                Err(error) => match error.word.as_str() {
                    "notFound" => removal.removed.push(version),
                    "retentionPolicyNotMet" | "objectUnderActiveHold" => removal.kept.push(version),
                    _ => {
                        removal.failed.get_or_insert(error);
                    }
                },
            }
        }
        Ok(removal)
    }

    /// Lists unfinished uploads, which only programs that use the S3-compatible API leave.
    pub async fn uploads(&self, prefix: &str) -> Result<UploadPage> {
        let path = format!("/{}", self.bucket);
        let query = [("uploads", ""), ("prefix", prefix)];
        let call = GoogleRequest { path: &path, query: &query, ..GoogleRequest::default() };
        let body = match self.send(Method::GET, call).await {
            Ok(answer) => answer.body,
            Err(error) if matches!(error.fault, StoreFault::NotImplemented | StoreFault::NoSuchBucket) => {
                return Ok(UploadPage::default());
            }
            Err(error) => return Err(error),
        };
        let found: xml::UploadListing = xml::read(&body).map_err(|error| self.unreadable(&error))?;
        Ok(found.below(prefix))
    }

    pub async fn abort(&self, upload: &UnfinishedUpload) -> Result<()> {
        let path = format!("/{}/{}", self.bucket, utf8_percent_encode(&upload.key, &ENCODED));
        let query = [("uploadId", upload.id.as_str())];
        let call = GoogleRequest { path: &path, query: &query, key: Some(&upload.key), body: None };
        match self.send(Method::DELETE, call).await {
            Err(error) if error.word != "NoSuchUpload" => Err(error),
            _ => Ok(()),
        }
    }

    /// What it is comes first: where contents are asked for, that an object is not there is said in
    /// no words of Google's.
    pub async fn read_object(&self, key: &str) -> Result<Option<Bytes>> {
        let live = Version { key: key.to_owned(), ..Version::default() };
        match self.of_version(Method::GET, &live).await {
            Err(error) if error.word == "notFound" => return Ok(None),
            found => found?,
        };
        let path = format!("{}/o/{}", self.path(), utf8_percent_encode(key, &ENCODED));
        let call = GoogleRequest { path: &path, query: &[("alt", "media")], key: Some(key), body: None };
        Ok(Some(self.send(Method::GET, call).await?.body))
    }

    pub async fn create_object(&self, key: &str, object: &Value) -> Result<()> {
        let path = format!("/upload{}/o", self.path());
        // No generation of it: there is none.
        let query = [("uploadType", "media"), ("name", key), ("ifGenerationMatch", "0")];
        let call = GoogleRequest { path: &path, query: &query, key: Some(key), body: Some(object) };
        self.send(Method::POST, call).await.map(|_| ())
    }

    pub async fn hold(&self, version: &Version) -> Result<Hold> {
        match self.of_version(Method::GET, version).await {
            Ok(answer) => Ok(google_json::hold(&self.read(&answer.body)?)),
            Err(error) if error.word == "notFound" => Ok(Hold::None),
            Err(error) => Err(error),
        }
    }

    async fn of_bucket(&self, method: Method, body: Option<&Value>) -> Result<StoreResponse> {
        self.send(method, GoogleRequest { path: &self.path(), body, ..GoogleRequest::default() }).await
    }

    async fn of_version(&self, method: Method, version: &Version) -> Result<StoreResponse> {
        let path = format!("{}/o/{}", self.path(), utf8_percent_encode(&version.key, &ENCODED));
        let query: Vec<_> = version.id.as_deref().map(|id| ("generation", id)).into_iter().collect();
        self.send(method, GoogleRequest { path: &path, query: &query, key: Some(&version.key), body: None })
            .await
    }

    fn path(&self) -> String {
        format!("/storage/v1/b/{}", self.bucket)
    }

    async fn send(&self, method: Method, call: GoogleRequest<'_>) -> Result<StoreResponse> {
        let what = match call.key {
            Some(key) => format!("{method} {}/{key}", self.bucket),
            None => format!("{method} {self}"),
        };
        let token = self.tokens.get_credential().await;
        let token =
            token.map_err(|error| wrong(format!("{what}: no token for the service account: {error}")))?;
        let make =
            || self.request(&method, call, &token.bearer).map_err(|error| wrong(format!("{what}: {error}")));
        self.line.ask(&what, make, |answer| refusal(&what, call.key.is_none(), answer)).await
    }

    fn request(&self, method: &Method, call: GoogleRequest<'_>, token: &str) -> Result<StoreRequest> {
        let mut url = format!("{}{}", self.service, call.path);
        add_query(&mut url, call.query);
        let mut builder = http::Request::builder().method(method.clone()).uri(url);
        if !token.is_empty() {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(wrong)?;
            value.set_sensitive(true);
            builder = builder.header(header::AUTHORIZATION, value);
        }
        let body = match call.body {
            Some(body) => {
                builder = builder.header(header::CONTENT_TYPE, "application/json");
                HttpRequestBody::from(Bytes::from(body.to_string()))
            }
            None => HttpRequestBody::empty(),
        };
        builder.body(body).map_err(wrong)
    }

    fn read(&self, body: &[u8]) -> Result<Value> {
        serde_json::from_slice(body).map_err(|error| self.unreadable(&error.to_string()))
    }

    fn unreadable(&self, error: &str) -> StoreError {
        StoreError::new(
            StoreFault::Unavailable,
            format!("{self}: the store's answer is not Google's: {error}"),
        )
    }
}

impl fmt::Display for Google {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket {}", self.bucket)
    }
}

fn is_enforced(bucket: &Value) -> bool {
    bucket.pointer("/iamConfiguration/publicAccessPrevention") == Some(&json!("enforced"))
}

/// Access only by rights on the whole bucket, and never for the public.
fn wanted_access() -> Value {
    json!({"uniformBucketLevelAccess": {"enabled": true}, "publicAccessPrevention": "enforced"})
}

fn wanted_lifecycle() -> Value {
    json!({"rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": UNFINISHED_DAYS}}]})
}

fn refusal(what: &str, is_of_bucket: bool, answer: &StoreResponse) -> StoreError {
    let (status, told) = (answer.status.as_u16(), google_json::refusal(&answer.body));
    // For a bucket's URL, Google's plain "not found" means the bucket itself.
    let word =
        if is_of_bucket && status == 404 && told.word == "notFound" { "NoSuchBucket" } else { &told.word };
    let mut message = format!("{what}: {status}");
    for word in [&told.word, &told.message] {
        if !word.is_empty() {
            message = format!("{message} {word}");
        }
    }
    StoreError { fault: StoreFault::of(status, word), word: word.to_owned(), message }
}

#[cfg(test)]
mod tests;
