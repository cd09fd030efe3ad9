//! Uploads that somebody has begun and nobody will end. [`object_store`] does not list them; the administration of buckets does.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::garden::StoreConfig;
use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::BackupStorageLocation;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use object_store::aws::AmazonS3Builder;
use tokio::time::timeout;

use super::{Opener, bucket_of};
use crate::storage::Roots;
use crate::storage::bucket::Bucket;
use crate::storage::credentials::{self, Keys};

/// For all of them.
const PATIENCE: Duration = Duration::from_secs(60);

impl Opener {
    /// Aborts what was begun for `key` and never ended.
    ///
    /// # Errors
    /// When the store does not let us look, or does not do it.
    pub async fn abort_uploads(
        &self,
        location: &BackupStorageLocation,
        key: &object_store::path::Path,
    ) -> anyhow::Result<()> {
        let bucket = bucket_of(location)?;
        let none = BTreeMap::new();
        let config = location.spec.config.as_ref().unwrap_or(&none);
        let get = |key: &str| config.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let is = |key: &str| get(key).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let (kind, secret) = match location.spec.provider.trim_start_matches("velero.io/") {
            "aws" => ("aws", self.amazon_keys(location, bucket, get("region"), get("profile")).await?),
            "gcp" => match self.cloud_file(location).await? {
                Some(file) => ("gcp", secret([("serviceaccount.json", file.text)])),
                None => return Ok(()),
            },
            FILESYSTEM_PROVIDER => {
                return remove_staged(&self.folder_path(config, bucket)?.join(key.as_ref()));
            }
            // Blocks of no blob go by themselves within a week.
            _ => return Ok(()),
        };
        let authority = self.authority(location).await?;
        let store = StoreConfig {
            endpoint: get("s3Url").or_else(|| get("storeEndpoint")).map(str::to_owned),
            force_path_style: Some(is("s3ForcePathStyle") || get("s3Url").is_some()),
            ca_cert: authority.map(String::from_utf8).transpose().context("the authority is not text")?,
            insecure_skip_tls_verify: Some(is("insecureSkipTLSVerify")),
            ..StoreConfig::default()
        };
        let region = get("region").unwrap_or("us-east-1");
        let bucket = Bucket::open(kind, bucket, region, &store, &secret, &Roots::default())?;
        timeout(PATIENCE, bucket.sweep(key.as_ref())).await.context("the store took too long")??;
        Ok(())
    }

    async fn amazon_keys(
        &self,
        location: &BackupStorageLocation,
        bucket: &str,
        region: Option<&str>,
        profile: Option<&str>,
    ) -> anyhow::Result<Secret> {
        let keys = match self.cloud_file(location).await? {
            Some(file) => credentials::parse(&file.text, profile.unwrap_or("default"))?,
            None => {
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                let store = builder.with_region(region.unwrap_or("us-east-1")).build()?;
                let found = store.credentials().get_credential().await?;
                Keys {
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

/// As the administration of buckets has them.
fn secret(pairs: impl IntoIterator<Item = (&'static str, String)>) -> Secret {
    let data = pairs.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())));
    Secret { data: Some(data.collect()), ..Secret::default() }
}

/// What is not whole yet lies beside its file, as `FILE#NUMBER`.
pub(in crate::storage) fn remove_staged(file: &Path) -> anyhow::Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return Ok(());
    };
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.file_name();
        let number = found.to_str().and_then(|found| found.strip_prefix(name)?.strip_prefix('#'));
        if number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_begun_of_that_very_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let names =
            ["one.tar.gz", "one.tar.gz#1", "one.tar.gz#23", "one.tar.gz#", "one.tar.gz#a", "two.tar.gz#1"];
        for name in names {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_staged(&folder.path().join("one.tar.gz")).unwrap();
        let left = names.map(|name| folder.path().join(name).exists());
        assert_eq!(left, [true, false, false, true, true, true]);
    }
}
