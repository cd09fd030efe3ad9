//! The S3 calls for buckets and whole prefixes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use berth_garden_core::lock::{DefaultLockMode, Lock, LockChange, change};
use bytes::Bytes;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::s3_client::{Endpoint, S3Credentials, S3Request, partition};
use super::{
    Created, Hold, Marker, Removal, Result, StoreError, UnfinishedUpload, UploadPage, Version, VersionPage,
    xml,
};

/// Unfinished uploads are aborted after this many days, because they cost money and no list of
/// objects shows them.
const UNFINISHED_DAYS: u32 = 7;
/// The region of requests without a location constraint (S3 refuses its name in one).
const UNNAMED_REGION: &str = "us-east-1";

pub struct S3 {
    endpoint: Endpoint,
    lock: Option<Lock>,
    /// The store does not support ListObjectVersions.
    is_unversioned: AtomicBool,
}

impl S3 {
    pub fn open(name: &str, region: &str, config: &StoreConfig, keys: S3Credentials) -> Result<Self> {
        let lock = config.object_lock.as_ref().map(Lock::from);
        let endpoint = Endpoint::new(name, region, config, keys)?;
        Ok(Self { endpoint, lock, is_unversioned: AtomicBool::new(false) })
    }

    pub async fn create(&self) -> Result<Created> {
        let region = self.endpoint.region.as_str();
        let body = if region == UNNAMED_REGION { String::new() } else { xml::location(region) };
        // Object lock is set on create, because not every store can turn it on later.
        let headers: &[_] =
            if self.lock.is_some() { &[("x-amz-bucket-object-lock-enabled", "true")] } else { &[] };
        // In us-east-1 S3 reports success for a bucket that the account already owns.
        let is_there = region == UNNAMED_REGION && self.is_there().await?;
        let made = self
            .endpoint
            .send(S3Request { method: Method::PUT, headers, body, ..S3Request::default() })
            .await;
        match made {
            Ok(_) if is_there => Ok(Created::Already),
            Ok(_) => Ok(Created::New),
            Err(error) if error.word == "BucketAlreadyOwnedByYou" => Ok(Created::Already),
            Err(error) if error.fault == StoreFault::NameTaken => Err(StoreError::new(
                StoreFault::NameTaken,
                format!(
                    "a bucket {} exists and belongs to somebody else: names are the store's, not the account's; use another one ({error})",
                    self.endpoint.bucket
                ),
            )),
            Err(error) => Err(error),
        }
    }

    async fn is_there(&self) -> Result<bool> {
        match self.page("", None, 1).await {
            Ok(_) => Ok(true),
            // Another account owns it; a create reports that.
            Err(error) if matches!(error.fault, StoreFault::NoSuchBucket | StoreFault::Unauthorized) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Configures the bucket. Foreign settings stay: an admin's encryption key, further rules, a
    /// policy.
    pub async fn configure(&self) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        let settings = [
            Some(("encryption", "ServerSideEncryptionConfigurationNotFoundError", xml::encryption())),
            Some(("publicAccessBlock", "NoSuchPublicAccessBlockConfiguration", xml::public_access_block())),
            Some(("lifecycle", "NoSuchLifecycleConfiguration", xml::lifecycle(UNFINISHED_DAYS))),
            // Over plain HTTP a policy that requires TLS would lock out every client.
            self.endpoint.is_encrypted().then(|| ("policy", "NoSuchBucketPolicy", self.policy())),
        ];
        let mut unknown = Vec::new();
        for (name, unset, body) in settings.into_iter().flatten() {
            let set = match self.setting(Method::GET, name, String::new()).await {
                Err(error) if error.word == unset => self.setting(Method::PUT, name, body).await,
                found => found,
            };
            match set {
                Ok(_) => {}
                Err(error) if error.fault == StoreFault::NotImplemented => unknown.push(name),
                Err(error) => return Err(error),
            }
        }
        if let Some(wanted) = self.lock {
            match self.set_lock(wanted).await {
                Ok(warning) => warnings.extend(warning),
                Err(error) if error.fault == StoreFault::NotImplemented => unknown.push("object-lock"),
                Err(error) => return Err(error),
            }
        }
        if !unknown.is_empty() {
            warnings.push(format!("the store does not support {}: skipped", unknown.join(", ")));
        }
        Ok(warnings)
    }

    async fn set_lock(&self, wanted: Lock) -> Result<Option<String>> {
        match change(Some(wanted), self.default_lock().await?) {
            LockChange::Keep => Ok(None),
            LockChange::Set(lock) => {
                let body = xml::object_lock(word(lock.mode), lock.days);
                match self.setting(Method::PUT, "object-lock", body.clone()).await {
                    // The bucket was created without object lock. Some stores also answer so for
                    // buckets that cannot have one.
                    Err(error)
                        if error.word == "InvalidBucketState" && error.message.contains("ersioning") =>
                    {
                        self.setting(Method::PUT, "versioning", xml::versioning()).await?;
                        self.setting(Method::PUT, "object-lock", body).await?;
                    }
                    set => drop(set?),
                }
                Ok(None)
            }
            LockChange::Stronger(found) => Ok(Some(format!(
                "the bucket's object lock ({}, {} days) is stronger than the one in spec.providerConfig.objectLock, and stays",
                word(found.mode).to_lowercase(),
                found.days
            ))),
        }
    }

    async fn setting(&self, method: Method, name: &str, body: String) -> Result<Bytes> {
        self.endpoint.send(S3Request { method, query: &[(name, "")], body, ..S3Request::default() }).await
    }

    fn policy(&self) -> String {
        let bucket = format!("arn:{}:s3:::{}", partition(&self.endpoint.region), self.endpoint.bucket);
        json!({
            "Version": "2012-10-17",
            "Statement": [{
                "Sid": "BerthOnlyWithTLS",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [bucket, format!("{bucket}/*")],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }],
        })
        .to_string()
    }

    pub async fn delete(&self) -> Result<()> {
        self.endpoint.send(S3Request { method: Method::DELETE, ..S3Request::default() }).await.map(|_| ())
    }

    pub async fn page(&self, prefix: &str, after: Option<&Marker>, most: usize) -> Result<VersionPage> {
        let most = most.to_string();
        if !self.is_unversioned.load(Ordering::Relaxed) {
            let mut query =
                vec![("versions", ""), ("encoding-type", "url"), ("max-keys", &most), ("prefix", prefix)];
            if let Some(after) = after {
                query.push(("key-marker", &after.key));
                query.extend(after.version.as_deref().map(|version| ("version-id-marker", version)));
            }
            match self.endpoint.send(S3Request { query: &query, ..S3Request::default() }).await {
                Ok(body) => return self.read_page(&body, prefix, after),
                Err(error) if error.fault == StoreFault::NotImplemented => {
                    self.is_unversioned.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        let mut query =
            vec![("list-type", "2"), ("encoding-type", "url"), ("max-keys", &most), ("prefix", prefix)];
        query.extend(after.map(|after| ("start-after", after.key.as_str())));
        let body = self.endpoint.send(S3Request { query: &query, ..S3Request::default() }).await?;
        self.read_page(&body, prefix, after)
    }

    fn read_page(&self, body: &[u8], prefix: &str, after: Option<&Marker>) -> Result<VersionPage> {
        let mut page = xml::page(body).map_err(|error| self.unreadable(&error))?;
        // Some stores repeat the last version of the previous page; without this check it would
        // count twice.
        if let Some(after) = after {
            page.versions.retain(|version| {
                let is_same = after.version.as_ref().is_none_or(|id| version.id.as_ref() == Some(id));
                version.key != after.key || !is_same
            });
        }
        match page.versions.iter().find(|version| !version.key.starts_with(prefix)) {
            Some(strange) => Err(self.unreadable(&format!("{} was not asked for", strange.key))),
            None => Ok(page),
        }
    }

    pub async fn remove(&self, versions: Vec<Version>) -> Result<Removal> {
        if versions.is_empty() {
            return Ok(Removal::default());
        }
        let body = xml::delete(&versions);
        let call = S3Request { method: Method::POST, query: &[("delete", "")], body, ..S3Request::default() };
        let answer = self.endpoint.send(call).await?;
        let mut errors = self.read::<xml::Deleted>(&answer)?.errors;
        let mut removal = Removal::default();
        for version in versions {
            let its = |error: &xml::NotDeleted| {
                let id = error.version_id.as_deref().filter(|id| !id.is_empty());
                error.key == version.key && (id.is_none() || id == version.id.as_deref())
            };
            let Some(error) = errors.iter().position(its).map(|index| errors.swap_remove(index)) else {
                removal.removed.push(version);
                continue;
            };
            match error.code.as_str() {
                "NoSuchKey" | "NoSuchVersion" => removal.removed.push(version),
                // S3 has no other code for a locked version.
                "AccessDenied" | "ObjectLocked" => removal.kept.push(version),
                code => {
                    let fault = match StoreFault::of(0, code) {
                        StoreFault::RateLimited => StoreFault::RateLimited,
                        _ => StoreFault::Unavailable,
                    };
                    let message = format!("{} was not removed: {code} {}", version.key, error.message);
                    removal.failed.get_or_insert_with(|| StoreError::new(fault, message));
                }
            }
        }
        if let Some(error) = errors.first() {
            // The store reports a key that was not in the request, so the whole answer is not
            // trusted.
            return Err(self.unreadable(&format!("{} was not to be removed: {}", error.key, error.code)));
        }
        Ok(removal)
    }

    pub async fn uploads(&self, prefix: &str) -> Result<UploadPage> {
        let query = [("uploads", ""), ("prefix", prefix)];
        let body = match self.endpoint.send(S3Request { query: &query, ..S3Request::default() }).await {
            Ok(body) => body,
            Err(error) if matches!(error.fault, StoreFault::NotImplemented | StoreFault::NoSuchBucket) => {
                return Ok(UploadPage::default());
            }
            Err(error) => return Err(error),
        };
        self.read::<xml::UploadListing>(&body).map(|found| found.below(prefix))
    }

    pub async fn abort(&self, upload: &UnfinishedUpload) -> Result<()> {
        let query = [("uploadId", upload.id.as_str())];
        let call = S3Request {
            method: Method::DELETE,
            key: Some(&upload.key),
            query: &query,
            ..S3Request::default()
        };
        match self.endpoint.send(call).await {
            Err(error) if error.word != "NoSuchUpload" => Err(error),
            _ => Ok(()),
        }
    }

    pub async fn read_object(&self, key: &str) -> Result<Option<Bytes>> {
        match self.endpoint.send(S3Request { key: Some(key), ..S3Request::default() }).await {
            Ok(body) => Ok(Some(body)),
            Err(error) if error.word == "NoSuchKey" => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn create_object(&self, key: &str, object: &Value) -> Result<()> {
        let put = |headers: &'static [(&'static str, &'static str)]| S3Request {
            method: Method::PUT,
            key: Some(key),
            headers,
            body: object.to_string(),
            ..S3Request::default()
        };
        match self.endpoint.send(put(&[("if-none-match", "*")])).await {
            // Some stores know no conditions. Whoever calls this has looked.
            Err(error) if error.fault == StoreFault::NotImplemented => self.endpoint.send(put(&[])).await?,
            answer => answer?,
        };
        Ok(())
    }

    pub async fn hold(&self, version: &Version) -> Result<Hold> {
        let retention: Option<xml::Retention> = self.of_version(version, "retention").await?;
        if let Some(date) = retention.and_then(|retention| retention.retain_until_date) {
            let until: Timestamp =
                date.parse().map_err(|error| self.unreadable(&format!("{date:?} is no time: {error}")))?;
            return Ok(Hold::Until(until));
        }
        let hold: Option<xml::LegalHold> = self.of_version(version, "legal-hold").await?;
        if hold.is_some_and(|hold| hold.status == "ON") {
            return Ok(Hold::Indefinite);
        }
        // Some stores keep no date per version, and apply the bucket's default.
        let Ok(Some(default)) = self.default_lock().await else { return Ok(Hold::None) };
        let days = SignedDuration::from_hours(i64::from(default.days).saturating_mul(24));
        let until = version.modified.and_then(|modified| modified.checked_add(days).ok());
        Ok(until.map_or(Hold::None, Hold::Until))
    }

    async fn default_lock(&self) -> Result<Option<Lock>> {
        match self.setting(Method::GET, "object-lock", String::new()).await {
            Ok(body) => {
                let found: xml::ObjectLockConfiguration = self.read(&body)?;
                Ok(found.rule.and_then(|rule| lock_of(&rule.default_retention)))
            }
            Err(error) if error.word == "ObjectLockConfigurationNotFoundError" => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Empty where the bucket has none.
    async fn of_version<T: serde::de::DeserializeOwned>(
        &self,
        version: &Version,
        what: &str,
    ) -> Result<Option<T>> {
        let mut query = vec![(what, "")];
        query.extend(version.id.as_deref().map(|id| ("versionId", id)));
        match self
            .endpoint
            .send(S3Request { key: Some(&version.key), query: &query, ..S3Request::default() })
            .await
        {
            Ok(body) => self.read(&body).map(Some),
            Err(error) if error.fault.passes() && !error.word.starts_with("NoSuch") => Err(error),
            // Buckets without locks, delete markers, stores without locks, and keys without the
            // right to read them answer differently.
            Err(_) => Ok(None),
        }
    }

    fn read<T: serde::de::DeserializeOwned>(&self, body: &[u8]) -> Result<T> {
        xml::read(body).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &str) -> StoreError {
        StoreError::new(
            StoreFault::Unavailable,
            format!("bucket {}: the store's answer is not S3's: {error}", self.endpoint.bucket),
        )
    }
}

impl fmt::Display for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bucket {}", self.endpoint.bucket)
    }
}

fn word(mode: DefaultLockMode) -> &'static str {
    match mode {
        DefaultLockMode::Governance => "GOVERNANCE",
        DefaultLockMode::Compliance => "COMPLIANCE",
    }
}

fn lock_of(found: &xml::DefaultRetention) -> Option<Lock> {
    let mode = match found.mode.as_str() {
        "GOVERNANCE" => DefaultLockMode::Governance,
        "COMPLIANCE" => DefaultLockMode::Compliance,
        _ => return None,
    };
    // One of the two is set; some stores report the other one as 0.
    let days = found.days.filter(|days| *days > 0);
    let days = days.or_else(|| found.years.map(|years| years.saturating_mul(365)))?;
    Some(Lock { mode, days })
}
