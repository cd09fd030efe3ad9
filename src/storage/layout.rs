//! Velero's layout: which file of a backup has which key (contract: `backups/<name>/…` below the prefix).

use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{DynObjectStore, ObjectStoreExt, PutPayload};
use std::sync::Arc;

/// A small file beside the archive. All are gzip; the JSON ones end in a line feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Logs,
    Results,
    ResourceList,
    VolumeInfo,
    PodVolumeBackups,
    VolumeSnapshots,
    ItemOperations,
}

impl Side {
    fn suffix(self) -> &'static str {
        match self {
            Self::Logs => "-logs.gz",
            Self::Results => "-results.gz",
            Self::ResourceList => "-resource-list.json.gz",
            Self::VolumeInfo => "-volumeinfo.json.gz",
            Self::PodVolumeBackups => "-podvolumebackups.json.gz",
            Self::VolumeSnapshots => "-volumesnapshots.json.gz",
            Self::ItemOperations => "-itemoperations.json.gz",
        }
    }
}

/// One backup's folder in a location.
#[derive(Clone)]
pub struct Layout {
    store: Arc<DynObjectStore>,
    prefix: Option<String>,
    backup: String,
}

impl Layout {
    /// `prefix`: `spec.objectStorage.prefix`.
    pub fn new(store: Arc<DynObjectStore>, prefix: Option<&str>, backup: &str) -> Self {
        let prefix = prefix.map(|p| p.trim_matches('/').to_owned()).filter(|p| !p.is_empty());
        Self { store, prefix, backup: backup.to_owned() }
    }

    pub fn store(&self) -> &Arc<DynObjectStore> {
        &self.store
    }

    fn folder(&self) -> Path {
        let parts = self.prefix.iter().flat_map(|p| p.split('/')).chain(["backups", &self.backup]);
        let text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        place(&text)
    }

    pub fn archive(&self) -> Path {
        self.folder().join(format!("{}.tar.gz", self.backup))
    }

    /// The file that makes a backup visible to every reader; written last.
    pub fn metadata(&self) -> Path {
        self.folder().join("velero-backup.json")
    }

    pub async fn read_metadata(&self) -> object_store::Result<Option<Vec<u8>>> {
        match self.store.get(&self.metadata()).await {
            Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn put_side(&self, side: Side, gzip: Vec<u8>) -> object_store::Result<()> {
        let path = self.folder().join(format!("{}{}", self.backup, side.suffix()));
        self.store.put(&path, PutPayload::from(gzip)).await.map(|_| ())
    }

    pub async fn put_metadata(&self, json: Vec<u8>) -> object_store::Result<()> {
        self.store.put(&self.metadata(), PutPayload::from(json)).await.map(|_| ())
    }

    /// Removes every file of this backup. What is gone already is no error.
    pub async fn remove(&self) -> object_store::Result<()> {
        let found: Vec<_> = self.store.list(Some(&self.folder())).try_collect().await?;
        for object in found {
            match self.store.delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Keys are what Velero makes of the same prefix: `a~b` is `a~b`, and not what one would write into a URL. What is no path at all
/// (`..`) is.
pub(super) fn place(text: &str) -> Path {
    Path::parse(text).unwrap_or_else(|_| Path::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_velero_looks_for_them() {
        let store: Arc<DynObjectStore> = Arc::new(object_store::local::LocalFileSystem::new());
        let plain = Layout::new(store.clone(), None, "b1");
        assert_eq!(plain.archive().as_ref(), "backups/b1/b1.tar.gz");
        let deep = Layout::new(store.clone(), Some("/team/a/"), "b1");
        assert_eq!(deep.metadata().as_ref(), "team/a/backups/b1/velero-backup.json");
        for (prefix, folder) in [("a~b #[%]{ü}", "a~b #[%]{ü}"), ("a//b", "a/b"), ("../a", "%2E%2E/a")] {
            let layout = Layout::new(store.clone(), Some(prefix), "b1");
            assert_eq!(layout.metadata().as_ref(), format!("{folder}/backups/b1/velero-backup.json"));
        }
    }
}
