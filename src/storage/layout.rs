//! Velero's layout: the keys of a backup's files (`backups/<name>/…` below the prefix).

use std::sync::Arc;

use http::Extensions;
use object_store::path::Path;
use object_store::{DynObjectStore, Error, ObjectStoreExt, PutMode, PutPayload};

use super::conditional::put_if;

pub(super) const METADATA: &str = "velero-backup.json";
/// berth's own file beside the claim: the checkpoint of a run.
pub(super) const CHECKPOINT: &str = berth_core::download::CHECKPOINT_FILE;
/// Many times the size of any object that the API server stores.
const LARGEST_METADATA: u64 = 16 << 20;

/// A small file beside the archive. All are gzip; the JSON files end with a line feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupArtifact {
    Logs,
    Results,
    ResourceList,
    VolumeInfo,
    PodVolumeBackups,
    VolumeSnapshots,
    ItemOperations,
    /// Where in the archive which objects are. Velero knows none, and no small archive has one.
    Index,
}

impl BackupArtifact {
    /// What every backup has.
    const ALL: [Self; 7] = [
        Self::Logs,
        Self::Results,
        Self::ResourceList,
        Self::VolumeInfo,
        Self::PodVolumeBackups,
        Self::VolumeSnapshots,
        Self::ItemOperations,
    ];

    fn suffix(self) -> &'static str {
        match self {
            Self::Logs => "-logs.gz",
            Self::Results => "-results.gz",
            Self::ResourceList => "-resource-list.json.gz",
            Self::VolumeInfo => "-volumeinfo.json.gz",
            Self::PodVolumeBackups => "-podvolumebackups.json.gz",
            Self::VolumeSnapshots => "-volumesnapshots.json.gz",
            Self::ItemOperations => "-itemoperations.json.gz",
            Self::Index => "-index.json.gz",
        }
    }
}

/// The folder of one backup in a location.
#[derive(Clone)]
pub struct BackupLayout {
    store: Arc<DynObjectStore>,
    prefix: Option<String>,
    backup: String,
}

impl BackupLayout {
    /// `prefix`: `spec.objectStorage.prefix`.
    pub fn new(store: Arc<DynObjectStore>, prefix: Option<&str>, backup: &str) -> Self {
        let prefix = prefix.map(|p| p.trim_matches('/').to_owned()).filter(|p| !p.is_empty());
        Self { store, prefix, backup: backup.to_owned() }
    }

    pub fn store(&self) -> &Arc<DynObjectStore> {
        &self.store
    }

    pub fn backup(&self) -> &str {
        &self.backup
    }

    pub fn folder(&self) -> Path {
        self.below_prefix(&format!("backups/{}", self.backup))
    }

    /// The folder that has those of all backups.
    pub(super) fn backups(&self) -> Path {
        self.below_prefix("backups")
    }

    /// The folder that has berth's own repositories.
    pub(super) fn repositories_folder(&self) -> Path {
        self.below_prefix("restic")
    }

    /// The folder of a Restore.
    pub fn restore_folder(&self, restore: &str) -> Path {
        self.below_prefix(&format!("restores/{restore}"))
    }

    fn below_prefix(&self, key: &str) -> Path {
        Self::path(self.prefix.as_deref(), key)
    }

    /// The path of a key that is given without the location's prefix.
    pub fn path(prefix: Option<&str>, key: &str) -> Path {
        let parts = prefix.iter().flat_map(|p| p.split('/')).chain(key.split('/'));
        let text = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
        place(&text)
    }

    pub(super) fn archive_name(&self) -> String {
        format!("{}.tar.gz", self.backup)
    }

    pub(super) fn artifact_name(&self, artifact: BackupArtifact) -> String {
        format!("{}{}", self.backup, artifact.suffix())
    }

    /// Names of the files that every run stores before it publishes the backup.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        std::iter::once(self.archive_name())
            .chain(BackupArtifact::ALL.map(|artifact| self.artifact_name(artifact)))
    }

    pub fn archive(&self) -> Path {
        self.folder().join(self.archive_name())
    }

    pub async fn archive_size(&self) -> object_store::Result<u64> {
        Ok(self.store.head(&self.archive()).await?.size)
    }

    /// The file that makes a backup visible to every reader; written last.
    pub fn metadata(&self) -> Path {
        self.folder().join(METADATA)
    }

    pub async fn read_metadata(&self) -> object_store::Result<Option<Vec<u8>>> {
        Ok(self.read_metadata_told().await?.map(|(json, _)| json))
    }

    /// As [`Self::read_metadata`], with what else the store's answer said.
    pub(super) async fn read_metadata_told(&self) -> object_store::Result<Option<(Vec<u8>, Extensions)>> {
        let mut found = match self.store.get(&self.metadata()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.meta.size > LARGEST_METADATA {
            let source = format!("{METADATA} has {} bytes: too large for a Backup", found.meta.size).into();
            return Err(Error::Generic { store: "layout", source });
        }
        let told = std::mem::take(&mut found.extensions);
        Ok(Some((found.bytes().await?.to_vec(), told)))
    }

    pub async fn put_artifact(&self, artifact: BackupArtifact, gzip: Vec<u8>) -> object_store::Result<()> {
        let path = self.folder().join(self.artifact_name(artifact));
        self.store.put(&path, PutPayload::from(gzip)).await.map(|_| ())
    }

    /// Creates the metadata. `false`: it exists already, possibly by this same write if its first
    /// answer was lost.
    pub async fn put_metadata(&self, json: &[u8]) -> object_store::Result<bool> {
        let payload = PutPayload::from(json.to_vec());
        match put_if(&*self.store, &self.metadata(), payload, PutMode::Create).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The path of a key, with the same characters as Velero's: `a~b` stays `a~b` and is not
/// percent-encoded. Only a part that is no valid path (`..`) is encoded.
pub(super) fn place(text: &str) -> Path {
    Path::parse(text).unwrap_or_else(|_| Path::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_where_velero_looks_for_them() {
        let store: Arc<DynObjectStore> = Arc::new(object_store::local::LocalFileSystem::new());
        let plain = BackupLayout::new(store.clone(), None, "b1");
        assert_eq!(plain.archive().as_ref(), "backups/b1/b1.tar.gz");
        let deep = BackupLayout::new(store.clone(), Some("/team/a/"), "b1");
        assert_eq!(deep.metadata().as_ref(), "team/a/backups/b1/velero-backup.json");
        for (prefix, folder) in [("a~b #[%]{ü}", "a~b #[%]{ü}"), ("a//b", "a/b"), ("../a", "%2E%2E/a")] {
            let layout = BackupLayout::new(store.clone(), Some(prefix), "b1");
            assert_eq!(layout.metadata().as_ref(), format!("{folder}/backups/b1/velero-backup.json"));
        }
    }
}
