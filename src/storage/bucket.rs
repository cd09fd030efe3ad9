//! The administration of buckets, which [`object_store`] does not have: create a bucket, configure
//! it, list all versions, empty and delete it. For S3-compatible stores, Azure's containers,
//! Google's buckets, and folders.

mod azure;
mod azure_listing;
mod folder;
mod google;
mod google_json;
mod s3;
mod s3_client;
pub mod sts;
mod transport;
mod xml;

use std::fmt;

use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;

use azure::Azure;
use folder::FolderBucket;
use google::Google;
use s3::S3;
use s3_client::S3Credentials;

use super::Roots;

/// The most that S3 lists, or deletes, in one call.
pub const PAGE: usize = 1000;
/// Most pages of unfinished uploads in one sweep. The next sweep continues.
const SWEPT: usize = 100;
/// Pages of versions of one small object: who can write more of them can remove it, too.
const VERSION_PAGES: usize = 10;

/// Why a store did not do what it was asked to: a message for people, and a fault for decisions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    pub fault: StoreFault,
    /// The store's own error code, such as `NoSuchBucket`. Empty where it has none.
    pub word: String,
    pub message: String,
}

impl StoreError {
    pub fn new(fault: StoreFault, message: impl Into<String>) -> Self {
        Self { fault, word: String::new(), message: message.into() }
    }
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// One version of an object, or a delete marker, which has no bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    pub key: String,
    /// `None` where the store keeps no versions.
    pub id: Option<String>,
    pub bytes: u64,
    /// When the version was written, where the store reports it.
    pub modified: Option<Timestamp>,
}

/// The next page begins after this version, so that removals and additions in between do not shift
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    pub key: String,
    pub version: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionPage {
    /// At most [`PAGE`].
    pub versions: Vec<Version>,
    /// `None` on the last page.
    pub next: Option<Marker>,
}

/// An unfinished upload in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedUpload {
    pub key: String,
    pub id: String,
}

/// One page of unfinished uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    pub uploads: Vec<UnfinishedUpload>,
    /// More pages follow.
    pub is_cut: bool,
}

/// Result of removing one page of versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    pub removed: Vec<Version>,
    /// Versions that the store keeps, because they are locked or the credentials may not remove
    /// them.
    pub kept: Vec<Version>,
    /// The first other failure.
    pub failed: Option<StoreError>,
}

/// Did the bucket exist already?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    New,
    Already,
}

/// Did the bucket exist?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketRemoval {
    Now,
    WasAbsent,
}

/// One bucket. Every call has a time-out; faults that may pass are retried a few times.
pub enum Bucket {
    S3(S3),
    Azure(Azure),
    Google(Google),
    Folder(FolderBucket),
}

impl Bucket {
    /// The providers whose buckets berth can administer.
    pub fn serves(provider: &str) -> bool {
        matches!(provider, "aws" | "azure" | "gcp" | FILESYSTEM_PROVIDER)
    }

    /// Sends no request to the store. `secret`: the Secret that the object names; `roots`: the
    /// folders that may hold stores.
    ///
    /// # Errors
    /// [`StoreFault::Configuration`], with every fault of the settings and the Secret.
    pub fn open(
        provider: &str,
        name: &str,
        region: &str,
        config: &StoreConfig,
        secret: &Secret,
        roots: &Roots,
    ) -> Result<Self> {
        match provider {
            FILESYSTEM_PROVIDER => FolderBucket::open(name, config, roots).map(Self::Folder),
            "aws" => S3::open(name, region, config, S3Credentials::read(secret)?).map(Self::S3),
            "azure" => Azure::open(name, config, secret).map(Self::Azure),
            "gcp" => Google::open(name, region, config, secret).map(Self::Google),
            other => Err(StoreError::new(
                StoreFault::Configuration,
                format!(
                    "spec.type: {other:?} is not supported: use aws, azure, gcp, or {FILESYSTEM_PROVIDER}"
                ),
            )),
        }
    }

    /// # Errors
    /// [`StoreFault::NameTaken`] when another account has the name, or the store's error.
    pub async fn create(&self) -> Result<Created> {
        match self {
            Self::S3(bucket) => bucket.create().await,
            Self::Azure(container) => container.create().await,
            Self::Google(bucket) => bucket.create().await,
            Self::Folder(folder) => folder.create().await,
        }
    }

    /// Sets the settings that nobody has set yet. Returns warnings for settings that could not be
    /// set, or differ and stay.
    ///
    /// # Errors
    /// The store's error, except that it does not support a setting.
    pub async fn configure(&self) -> Result<Vec<String>> {
        match self {
            Self::S3(bucket) => bucket.configure().await,
            Self::Azure(container) => container.configure().await,
            Self::Google(bucket) => bucket.configure().await,
            Self::Folder(folder) => Ok(folder.warnings()),
        }
    }

    /// # Errors
    /// The store's error, except that the bucket does not exist.
    pub async fn exists(&self) -> Result<bool> {
        match self.page("", None, 1).await {
            Ok(_) => Ok(true),
            Err(error) if error.fault == StoreFault::NoSuchBucket => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes the bucket, if it is empty.
    ///
    /// # Errors
    /// [`StoreFault::NotEmpty`], or the store's error.
    pub async fn delete(&self) -> Result<BucketRemoval> {
        let deleted = match self {
            Self::S3(bucket) => bucket.delete().await,
            Self::Azure(container) => container.delete().await,
            Self::Google(bucket) => bucket.delete().await,
            Self::Folder(folder) => folder.delete().await,
        };
        match deleted {
            Ok(()) => Ok(BucketRemoval::Now),
            Err(error) if error.fault == StoreFault::NoSuchBucket => Ok(BucketRemoval::WasAbsent),
            Err(error) => Err(error),
        }
    }

    /// Lists versions and delete markers of keys that begin with `prefix`, in the order of the
    /// keys. `most`: size of the page.
    ///
    /// # Errors
    /// [`StoreFault::NoSuchBucket`] only when the store reports it, or the store's other error.
    pub async fn page(&self, prefix: &str, after: Option<&Marker>, most: usize) -> Result<VersionPage> {
        match self {
            Self::S3(bucket) => bucket.page(prefix, after, most).await,
            Self::Azure(container) => container.page(prefix, after, most).await,
            Self::Google(bucket) => bucket.page(prefix, after, most).await,
            Self::Folder(folder) => folder.page(prefix, after, most).await,
        }
    }

    /// Does any key begin with `prefix`? A page may be empty with others after it.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub async fn holds(&self, prefix: &str) -> Result<bool> {
        let mut after = None;
        loop {
            let page = self.page(prefix, after.as_ref(), 1).await?;
            if !page.versions.is_empty() || page.next.is_none() {
                return Ok(!page.versions.is_empty());
            }
            after = page.next;
        }
    }

    /// All versions and delete markers of one small object, of which there are few.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub async fn versions_of(&self, key: &str) -> Result<Vec<Version>> {
        // A folder lists what is in folders.
        if let Self::Folder(folder) = self {
            let found = folder.read_object(key).await?;
            let version = |object: Bytes| Version {
                key: key.to_owned(),
                bytes: object.len() as u64,
                ..Version::default()
            };
            return Ok(found.map(version).into_iter().collect());
        }
        let (mut found, mut after) = (Vec::new(), None);
        for _ in 0..VERSION_PAGES {
            let page = self.page(key, after.as_ref(), PAGE).await?;
            found.extend(page.versions.into_iter().filter(|version| version.key == key));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Removes at most [`PAGE`] versions. A version that does not exist counts as removed.
    ///
    /// # Errors
    /// When the store refuses the whole call.
    pub async fn remove(&self, versions: Vec<Version>) -> Result<Removal> {
        match self {
            Self::S3(bucket) => bucket.remove(versions).await,
            Self::Azure(container) => container.remove(versions).await,
            Self::Google(bucket) => bucket.remove(versions).await,
            Self::Folder(folder) => folder.remove(versions).await,
        }
    }

    /// Removes what remains below `prefix` besides objects: unfinished uploads, empty folders.
    ///
    /// # Errors
    /// The store's error, except that it does not support such uploads.
    pub async fn sweep(&self, prefix: &str) -> Result<()> {
        if let Self::Folder(folder) = self {
            return folder.remove_empty(prefix).await;
        }
        for _ in 0..SWEPT {
            let UploadPage { uploads, is_cut } = self.uploads(prefix).await?;
            for upload in &uploads {
                self.abort(upload).await?;
            }
            if !is_cut || uploads.is_empty() {
                return Ok(());
            }
        }
        let message = format!("{self:?}: more unfinished uploads are left than one attempt aborts");
        Err(StoreError::new(StoreFault::Unavailable, message))
    }

    /// Lists the first page of unfinished uploads of keys that begin with `prefix`.
    ///
    /// # Errors
    /// The store's error, except that it does not support such uploads.
    pub async fn uploads(&self, prefix: &str) -> Result<UploadPage> {
        match self {
            Self::S3(bucket) => bucket.uploads(prefix).await,
            Self::Google(bucket) => bucket.uploads(prefix).await,
            // Azure removes uncommitted blocks itself within a week.
            Self::Azure(_) | Self::Folder(_) => Ok(UploadPage::default()),
        }
    }

    /// Aborts an upload. A missing one counts as aborted.
    ///
    /// # Errors
    /// The store's error.
    pub async fn abort(&self, upload: &UnfinishedUpload) -> Result<()> {
        match self {
            Self::S3(bucket) => bucket.abort(upload).await,
            Self::Google(bucket) => bucket.abort(upload).await,
            Self::Azure(_) | Self::Folder(_) => Ok(()),
        }
    }

    /// A small object. `None`: there is none of that key, or earlier versions of it alone.
    ///
    /// # Errors
    /// What the store says, of a missing bucket, too.
    pub async fn read_object(&self, key: &str) -> Result<Option<Bytes>> {
        match self {
            Self::S3(bucket) => bucket.read_object(key).await,
            Self::Azure(container) => container.read_object(key).await,
            Self::Google(bucket) => bucket.read_object(key).await,
            Self::Folder(folder) => folder.read_object(key).await,
        }
    }

    /// Writes a small object on the condition that there is none of that key. Where a store knows
    /// no conditions, whoever has looked before overwrites at most what came in that moment.
    ///
    /// # Errors
    /// What the store says, each in other words where there is one: look again.
    pub async fn create_object(&self, key: &str, object: &Value) -> Result<()> {
        match self {
            Self::S3(bucket) => bucket.create_object(key, object).await,
            Self::Azure(container) => container.create_object(key, object).await,
            Self::Google(bucket) => bucket.create_object(key, object).await,
            Self::Folder(folder) => folder.create_object(key, object).await,
        }
    }

    /// The locks that keep a version.
    ///
    /// # Errors
    /// The store's error.
    pub async fn hold(&self, version: &Version) -> Result<Hold> {
        match self {
            Self::S3(bucket) => bucket.hold(version).await,
            Self::Azure(container) => container.hold(version).await,
            Self::Google(bucket) => bucket.hold(version).await,
            Self::Folder(_) => Ok(Hold::None),
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3(bucket) => write!(f, "{bucket}"),
            Self::Azure(container) => write!(f, "{container}"),
            Self::Google(bucket) => write!(f, "{bucket}"),
            Self::Folder(folder) => write!(f, "{folder}"),
        }
    }
}

/// A lock on a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    None,
    Until(Timestamp),
    /// A legal hold, which lasts until it is lifted.
    Indefinite,
}
