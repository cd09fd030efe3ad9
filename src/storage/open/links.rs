//! Links by which a file of a location can be downloaded, and the files of folders.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_api::velero::BackupStorageLocation;
use http::Method;
use object_store::path::Path;
use object_store::signer::Signer;

use super::{Opener, bucket_of, clouds};
use crate::storage::OpenError;

/// How a file can be downloaded.
#[derive(Debug, PartialEq, Eq)]
pub enum Link {
    /// From the store itself, by this URL.
    Signed(String),
    /// Nobody serves folders but berth.
    Folder,
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("the store's client could not sign a link")]
    Sign(#[source] object_store::Error),
}

impl Opener {
    /// A link to a file, which is valid for so long. Whether the file exists is not asked.
    ///
    /// # Errors
    /// When the location's settings or Secrets are not usable, or give no right to sign.
    pub async fn link(
        &self,
        location: &BackupStorageLocation,
        path: &Path,
        valid: Duration,
    ) -> Result<Link, LinkError> {
        let none = BTreeMap::new();
        let config = location.spec.config.as_ref().unwrap_or(&none);
        let bucket = bucket_of(location)?;
        let url = match location.spec.provider.trim_start_matches("velero.io/") {
            "aws" => {
                // People may reach the store by another address than berth does.
                let mut config = config.clone();
                if let Some(public) = config.get("publicUrl").filter(|url| !url.is_empty()).cloned() {
                    config.insert("s3Url".to_owned(), public);
                }
                let (store, _) = self.s3(location, &config).await?;
                store.signed_url(Method::GET, path, valid).await
            }
            "azure" => {
                let (file, options) =
                    (self.secrets.cloud_file(location).await?, self.options(location).await?);
                let store = clouds::azure(config, bucket, file, options, self.retry.clone())?;
                store.signed_url(Method::GET, path, valid).await
            }
            "gcp" => {
                let (file, options) =
                    (self.secrets.cloud_file(location).await?, self.options(location).await?);
                let store = clouds::google(config, bucket, file, options, self.retry.clone())?;
                store.signed_url(Method::GET, path, valid).await
            }
            FILESYSTEM_PROVIDER => return Ok(Link::Folder),
            other => return Err(OpenError::Provider(other.to_owned()).into()),
        };
        url.map(|url| Link::Signed(url.to_string())).map_err(LinkError::Sign)
    }

    /// Opens a file of a location that is a folder. `None`: there is no regular file of that path
    /// within the folder. Blocks.
    ///
    /// # Errors
    /// When the location's settings are not usable, or the file cannot be read.
    pub fn file(&self, location: &BackupStorageLocation, path: &Path) -> Result<Option<File>, OpenError> {
        let none = BTreeMap::new();
        let config = location.spec.config.as_ref().unwrap_or(&none);
        if location.spec.provider != FILESYSTEM_PROVIDER {
            return Err(OpenError::Provider(location.spec.provider.clone()));
        }
        let folder = self.folder_path(config, bucket_of(location)?)?;
        let whole = folder.join(path.as_ref());
        open_within(&folder, &whole).map_err(|error| OpenError::Folder(whole.display().to_string(), error))
    }
}

/// Opens a regular file, if no link leads out of the folder. Whoever may write to the folder may
/// put a link in place of a file at any moment, so what was opened is compared with what is found
/// at a path within the folder.
fn open_within(folder: &std::path::Path, path: &std::path::Path) -> Result<Option<File>, IoError> {
    let is_missing = |error: &IoError| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if is_missing(&error) => return Ok(None),
        found => found?,
    };
    // What is no file may never end.
    if !found.is_file() {
        return Ok(None);
    }
    let file = match File::open(path) {
        Err(error) if is_missing(&error) => return Ok(None),
        file => file?,
    };
    let (opened, real) = (file.metadata()?, path.canonicalize()?);
    let there = std::fs::symlink_metadata(&real)?;
    let is_within = real.starts_with(folder.canonicalize()?)
        && (there.dev(), there.ino()) == (opened.dev(), opened.ino())
        && opened.is_file();
    Ok(is_within.then_some(file))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use berth_test_scripted::{Scripted, get};
    use serde_json::{Value, json};

    use super::*;
    use crate::storage::Roots;

    fn location(provider: &str, config: &Value) -> BackupStorageLocation {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "l"},
            "spec": {"provider": provider, "objectStorage": {"bucket": "b"}, "config": config},
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_leads_to_where_people_reach_the_store() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud-credentials"},
            "data": {"cloud": "W2RlZmF1bHRdCmF3c19hY2Nlc3Nfa2V5X2lkPWkKYXdzX3NlY3JldF9hY2Nlc3Nfa2V5PXMK"},
        });
        let api = Scripted::new()
            .always(get("/api/v1/namespaces/velero/secrets/cloud-credentials").answers(secret));
        let opener = Opener::new(api.client("velero"), "velero", Roots::default());
        let path = Path::from("backups/x/x.tar.gz");
        for (config, begins) in [
            (json!({"s3Url": "http://inside:9000"}), "http://inside:9000/b/backups/x/x.tar.gz?"),
            (
                json!({"s3Url": "http://inside:9000", "publicUrl": "https://outside.example"}),
                "https://outside.example/b/backups/x/x.tar.gz?",
            ),
        ] {
            let link = opener.link(&location("aws", &config), &path, Duration::from_secs(600)).await;
            let Ok(Link::Signed(url)) = link else { panic!("{link:?}") };
            assert!(url.starts_with(begins) && url.contains("X-Amz-Signature="), "{url}");
            assert!(url.contains("X-Amz-Expires=600"), "{url}");
        }
        let folder = location(FILESYSTEM_PROVIDER, &json!({}));
        assert_eq!(opener.link(&folder, &path, Duration::from_secs(1)).await.unwrap(), Link::Folder);
    }

    /// By the account's key, which berth has, and no API is asked.
    #[tokio::test(start_paused = true)]
    async fn a_link_to_a_container_is_signed_by_the_key_of_its_account() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // MY_KEY=c2VjcmV0
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud-credentials"},
            "data": {"cloud": "TVlfS0VZPWMyVmpjbVYwCg=="},
        });
        let api = Scripted::new()
            .always(get("/api/v1/namespaces/velero/secrets/cloud-credentials").answers(secret));
        let opener = Opener::new(api.client("velero"), "velero", Roots::default());
        let config = json!({"storageAccount": "acc1", "storageAccountKeyEnvVar": "MY_KEY"});
        let path = Path::from("backups/x/x.tar.gz");
        let link = opener.link(&location("azure", &config), &path, Duration::from_secs(600)).await;
        let Ok(Link::Signed(url)) = link else { panic!("{link:?}") };
        assert!(url.starts_with("https://acc1.blob.core.windows.net/b/backups/x/x.tar.gz?"), "{url}");
        // For reading one file, until a time.
        for part in ["sig=", "sp=r", "sr=b", "se="] {
            assert!(url.contains(part), "{part}: {url}");
        }
    }

    #[test]
    fn only_regular_files_within_the_folder_are_opened() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("store/b/backups/x")).unwrap();
        std::fs::create_dir_all(at("outside")).unwrap();
        for file in ["store/b/backups/x/good", "outside/secret", "store/b/backups/x/inner"] {
            std::fs::write(at(file), file).unwrap();
        }
        symlink(at("outside/secret"), at("store/b/backups/x/link")).unwrap();
        symlink(at("outside"), at("store/b/backups/away")).unwrap();
        let folder = at("store/b");
        let open = |path: &str| open_within(&folder, &folder.join(path)).unwrap();
        let mut text = String::new();
        open("backups/x/good").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "store/b/backups/x/good");
        for path in
            ["backups/x/none", "backups/x/link", "backups/away/secret", "backups/x", "backups/x/good/y"]
        {
            assert!(open(path).is_none(), "{path}");
        }
        assert!(open_within(&folder, &folder.join("../../outside/secret")).unwrap().is_none());
    }
}
