//! Unfinished uploads that no process will complete. [`object_store`] does not list them, so this
//! module uses the administration of buckets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::BackupStorageLocation;
use berth_garden_api::StoreConfig;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use object_store::aws::AmazonS3Builder;
use tokio::time::timeout;

use super::{Opener, bucket_of, config_of};
use crate::storage::Roots;
use crate::storage::bucket::{Bucket, UnfinishedUpload};
use crate::storage::credentials::{self, AwsProfileKeys};

/// Time-out of one list, and of all aborts.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most uploads of one key. The next call handles the rest.
const MOST: usize = 1000;

/// The unfinished uploads of one key.
pub enum UnfinishedUploads {
    Uploads(Box<Bucket>, Vec<UnfinishedUpload>),
    Files(Vec<PathBuf>),
}

impl UnfinishedUploads {
    /// Keeps only files that nobody has written to for `least`. Uploads of buckets all stay.
    #[must_use]
    pub fn at_rest(self, least: Duration) -> Self {
        let rests = |file: &PathBuf| {
            let modified = std::fs::metadata(file).and_then(|found| found.modified());
            modified.is_ok_and(|at| at.elapsed().is_ok_and(|since| since >= least))
        };
        match self {
            Self::Files(files) => Self::Files(files.into_iter().filter(rests).collect()),
            uploads @ Self::Uploads(..) => uploads,
        }
    }

    /// Aborts the listed uploads, and none that began later.
    ///
    /// # Errors
    /// When the store fails to abort them.
    pub async fn abort(self) -> anyhow::Result<()> {
        match self {
            Self::Uploads(bucket, uploads) => {
                let all = async {
                    for upload in &uploads {
                        bucket.abort(upload).await?;
                    }
                    anyhow::Ok(())
                };
                timeout(PATIENCE, all).await.context("the store took too long")?
            }
            Self::Files(files) => {
                for file in files {
                    match std::fs::remove_file(file) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(error.into());
                        }
                        _ => {}
                    }
                }
                Ok(())
            }
        }
    }
}

impl Opener {
    /// Lists the unfinished uploads of `key`, and of no other key.
    ///
    /// # Errors
    /// When the store does not list them.
    pub async fn unfinished(
        &self,
        location: &BackupStorageLocation,
        key: &object_store::path::Path,
    ) -> anyhow::Result<UnfinishedUploads> {
        let bucket = bucket_of(location)?;
        let config = config_of(location);
        let get = |key: &str| config.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let (kind, secret) = match location.spec.provider.trim_start_matches("velero.io/") {
            "aws" => ("aws", self.amazon_keys(location, bucket, get("region"), get("profile")).await?),
            "gcp" => match self.secrets.cloud_file(location).await? {
                Some(file) => ("gcp", secret([("serviceaccount.json", file.text)])),
                None => return Ok(UnfinishedUploads::Files(Vec::new())),
            },
            FILESYSTEM_PROVIDER => {
                let file = self.folder_path(location, bucket)?.join(key.as_ref());
                return staged(&file).map(UnfinishedUploads::Files);
            }
            // Azure removes uncommitted blocks itself within a week.
            _ => return Ok(UnfinishedUploads::Files(Vec::new())),
        };
        let authority = self.authority(location).await?;
        let ca_cert = authority.map(String::from_utf8).transpose().context("the authority is not text")?;
        let store = StoreConfig { ca_cert, ..store_config(config) };
        let region = get("region").unwrap_or("us-east-1");
        let bucket = Bucket::open(kind, bucket, region, &store, &secret, &Roots::default())?;
        let key: &str = key.as_ref();
        let page = timeout(PATIENCE, bucket.uploads(key)).await.context("the store took too long")??;
        // The prefix may match further keys.
        let of_key = page.uploads.into_iter().filter(|upload| upload.key == key).take(MOST).collect();
        Ok(UnfinishedUploads::Uploads(Box::new(bucket), of_key))
    }

    async fn amazon_keys(
        &self,
        location: &BackupStorageLocation,
        bucket: &str,
        region: Option<&str>,
        profile: Option<&str>,
    ) -> anyhow::Result<Secret> {
        let keys = match self.secrets.cloud_file(location).await? {
            Some(file) => credentials::parse(&file.text, profile.unwrap_or("default"))?,
            None => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let store = builder.with_region(region.unwrap_or("us-east-1")).build()?;
                let found = store.credentials().get_credential().await?;
                AwsProfileKeys {
                    access_key_id: found.key_id.clone(),
                    secret_access_key: found.secret_key.clone(),
                    session_token: found.token.clone(),
                }
            }
        };
        let pairs = [("accessKeyID", keys.access_key_id), ("secretAccessKey", keys.secret_access_key)];
        let token = keys.session_token.map(|token| ("sessionToken", token));
        Ok(secret(pairs.into_iter().chain(token)))
    }
}

/// Where the bucket is, in the form that the administration of buckets reads.
fn store_config(config: &BTreeMap<String, String>) -> StoreConfig {
    let get = |key: &str| config.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let is = |key: &str| get(key).map(|value| value.eq_ignore_ascii_case("true"));
    StoreConfig {
        endpoint: get("s3Url").or_else(|| get("storeEndpoint")).map(str::to_owned),
        // What it is without the setting, `Bucket` decides as the opened store does.
        force_path_style: is("s3ForcePathStyle"),
        insecure_skip_tls_verify: Some(is("insecureSkipTLSVerify") == Some(true)),
        ..StoreConfig::default()
    }
}

/// Credentials in the form that the administration of buckets reads.
fn secret(pairs: impl IntoIterator<Item = (&'static str, String)>) -> Secret {
    let data = pairs.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    Secret { data: Some(data.collect()), ..Secret::default() }
}

/// The unfinished uploads beside a file, named `FILE#NUMBER`.
fn staged(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let mut staged = Vec::new();
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(staged),
        entries => entries?,
    };
    for entry in entries.take(MOST) {
        let entry = entry?;
        let found = entry.file_name();
        let number = found.to_str().and_then(|found| found.strip_prefix(name)?.strip_prefix('#'));
        if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())) {
            staged.push(entry.path());
        }
    }
    Ok(staged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_listed_at_the_address_at_which_it_is_written() {
        let path_style = |settings: &[(&str, &str)]| {
            let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            store_config(&settings.collect()).force_path_style
        };
        let (url, force) = (("s3Url", "https://s3.example"), "s3ForcePathStyle");
        assert_eq!(path_style(&[url, (force, "false")]), Some(false));
        assert_eq!(path_style(&[(force, "True")]), Some(true));
        // As with the store itself: in the path where there is a URL, in the host where there is
        // none.
        assert_eq!(path_style(&[url, (force, "")]), None);
    }

    #[tokio::test]
    async fn only_what_was_begun_of_that_very_file_before_it_was_listed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            ["one.tar.gz", "one.tar.gz#1", "one.tar.gz#23", "one.tar.gz#", "one.tar.gz#a", "two.tar.gz#1"];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let found = staged(&folder.path().join("one.tar.gz")).unwrap();
        std::fs::write(folder.path().join("one.tar.gz#4"), "of the next run").unwrap();
        std::fs::remove_file(folder.path().join("one.tar.gz#23")).unwrap();
        UnfinishedUploads::Files(found).abort().await.unwrap();
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [true, false, false, true, true, true]);
        assert!(folder.path().join("one.tar.gz#4").exists());
        assert!(staged(&folder.path().join("nowhere/one.tar.gz")).unwrap().is_empty());
    }

    /// It may be the next run's claim, which no other object names.
    #[tokio::test]
    async fn what_was_written_a_moment_ago_is_left_to_whoever_writes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = |number: u32| folder.path().join(format!("berth-run.json#{number}"));
        for number in [1, 2] {
            std::fs::write(file(number), "").unwrap();
        }
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(700);
        std::fs::File::options().write(true).open(file(2)).unwrap().set_modified(long_ago).unwrap();
        let found = UnfinishedUploads::Files(staged(&folder.path().join("berth-run.json")).unwrap());
        found.at_rest(Duration::from_secs(600)).abort().await.unwrap();
        assert!(file(1).exists() && !file(2).exists());
    }
}
