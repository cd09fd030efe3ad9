//! The record of a migration, in the shared bucket and outside of the cluster's directory: a head,
//! and items in several files, so that each file can be written often. Where the store has
//! conditional writes, every write replaces the version that was read, so of two migrations of one
//! entry one stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::velero::BackupStorageLocationSpec;
use berth_garden_core::migration::{
    CopyStatus, Items, MigrationItem, MigrationPhase, SourceObject, shard_of, shards,
};
use berth_garden_core::scope::NOTES;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{DynObjectStore, Error, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::storage::put_if;

const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the record {0} of the migration cannot be read")]
    Read(Path, #[source] Error),
    #[error("the record {0} of the migration cannot be written")]
    Write(Path, #[source] Error),
    #[error("somebody else is migrating this entry: {0} was changed meanwhile; let one of the two end")]
    Another(Path),
    #[error("{0} is no record of a migration")]
    Parse(Path, #[source] serde_json::Error),
    #[error("the record {0} is of version {1}: use the berth that wrote it")]
    Version(Path, u32),
}

/// What is moved, from where to where, and its progress.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationHead {
    pub version: u32,
    /// Owner of the directory: see [`crate::garden::migration`].
    #[serde(default)]
    pub entry_uid: String,
    /// Name of the location whose backups are moved. The location keeps its name.
    pub location: String,
    /// Where the location led before.
    pub source: BackupStorageLocationSpec,
    /// Of the entry.
    pub destination: BackupStorageLocationSpec,
    #[serde(with = "WirePhase")]
    pub phase: MigrationPhase,
    pub started_at: Timestamp,
    /// The run that wrote it last. It changes with every run, so that another run's conditional
    /// write fails.
    #[serde(default)]
    pub run: String,
    pub shards: usize,
}

impl MigrationHead {
    pub fn new(
        entry_uid: &str,
        location: &str,
        source: BackupStorageLocationSpec,
        destination: BackupStorageLocationSpec,
        run: &str,
        now: Timestamp,
    ) -> Self {
        Self {
            version: VERSION,
            entry_uid: entry_uid.to_owned(),
            location: location.to_owned(),
            source,
            destination,
            phase: MigrationPhase::Planned,
            started_at: now,
            run: run.to_owned(),
            shards: 0,
        }
    }
}

/// The names of the phases in a record.
#[derive(Serialize, Deserialize)]
#[serde(remote = "MigrationPhase")]
enum WirePhase {
    Planned,
    Copying,
    Quiescing,
    Delta,
    CutOver,
    Retired,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireItem {
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    modified: Timestamp,
    #[serde(with = "WireStatus")]
    status: CopyStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    begun: bool,
    attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CopyStatus")]
enum WireStatus {
    None,
    Copied,
    NotFound,
}

impl From<&MigrationItem> for WireItem {
    fn from(item: &MigrationItem) -> Self {
        Self {
            size: item.listed.size,
            tag: item.listed.tag.clone(),
            modified: item.listed.modified,
            status: item.status,
            checksum: item.checksum.clone(),
            begun: item.begun,
            attempts: item.attempts,
            error: item.error.clone(),
        }
    }
}

impl From<WireItem> for MigrationItem {
    fn from(item: WireItem) -> Self {
        Self {
            listed: SourceObject { size: item.size, tag: item.tag, modified: item.modified },
            status: item.status,
            checksum: item.checksum,
            begun: item.begun,
            attempts: item.attempts,
            error: item.error,
        }
    }
}

/// One file, and the version that was read or written.
struct VersionedFile<T> {
    value: T,
    version: Option<UpdateVersion>,
}

pub struct MigrationRecord {
    store: Arc<DynObjectStore>,
    folder: Path,
    head: VersionedFile<MigrationHead>,
    shards: Vec<VersionedFile<Items>>,
}

impl MigrationRecord {
    /// `None`: there is none.
    pub async fn open(store: Arc<DynObjectStore>, entry: &str) -> Result<Option<Self>, RecordError> {
        let folder = folder(entry);
        let Some(head) = read::<MigrationHead>(&store, &folder.clone().join("migration.json")).await? else {
            return Ok(None);
        };
        if head.value.version != VERSION {
            return Err(RecordError::Version(folder, head.value.version));
        }
        let mut all = Vec::with_capacity(head.value.shards);
        for i in 0..head.value.shards {
            let found = read::<BTreeMap<String, WireItem>>(&store, &shard_path(&folder, i)).await?;
            all.push(match found {
                Some(VersionedFile { value, version }) => VersionedFile {
                    value: value.into_iter().map(|(key, item)| (key, item.into())).collect(),
                    version,
                },
                None => VersionedFile { value: Items::new(), version: None },
            });
        }
        Ok(Some(Self { store, folder, head, shards: all }))
    }

    /// Writes the head last, because without it there is no migration. `earlier`: an outdated
    /// record that is replaced.
    pub async fn create(
        store: Arc<DynObjectStore>,
        entry: &str,
        mut head: MigrationHead,
        items: Items,
        earlier: Option<Self>,
    ) -> Result<Self, RecordError> {
        let folder = folder(entry);
        head.shards = shards(items.len());
        let mut all: Vec<VersionedFile<Items>> =
            (0..head.shards).map(|_| VersionedFile { value: Items::new(), version: None }).collect();
        for (key, item) in items {
            if let Some(shard) = all.get_mut(shard_of(&key, head.shards)) {
                shard.value.insert(key, item);
            }
        }
        let head = VersionedFile { value: head, version: None };
        let mut record = Self { store, folder, head, shards: all };
        for i in 0..record.shards.len() {
            record.save_shard(i).await?;
        }
        let path = record.folder.clone().join("migration.json");
        let mode_of_head = earlier.map_or(PutMode::Create, |earlier| mode(earlier.head.version));
        record.head.version = write(&record.store, &path, &record.head.value, mode_of_head).await?;
        Ok(record)
    }

    /// Is this store's bucket the one that the record is in, even if its address is another one?
    pub async fn is_in(&self, store: &Arc<DynObjectStore>) -> Result<bool, RecordError> {
        let found = read::<MigrationHead>(store, &self.folder.clone().join("migration.json")).await;
        let ours = &self.head.value;
        match found {
            Ok(found) => Ok(found.is_some_and(|found| {
                found.value.run == ours.run && found.value.started_at == ours.started_at
            })),
            // A foreign object.
            Err(RecordError::Parse(..)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn head(&self) -> &MigrationHead {
        &self.head.value
    }

    pub async fn enter(&mut self, phase: MigrationPhase) -> Result<(), RecordError> {
        self.head.value.phase = phase;
        self.confirm().await
    }

    /// From here on a run that read the record before cannot write it.
    pub async fn take_over(&mut self, run: &str) -> Result<(), RecordError> {
        self.head.value.run = run.to_owned();
        self.confirm().await
    }

    /// Writes the head as it is known, which fails if another run wrote it. Done before anything is
    /// removed.
    pub async fn confirm(&mut self) -> Result<(), RecordError> {
        let path = self.folder.clone().join("migration.json");
        let mode = mode(self.head.version.clone());
        self.head.version = write(&self.store, &path, &self.head.value, mode).await?;
        Ok(())
    }

    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    pub fn shard(&mut self, i: usize) -> Option<&mut Items> {
        self.shards.get_mut(i).map(|shard| &mut shard.value)
    }

    pub fn items(&self) -> Items {
        let all = self.shards.iter().flat_map(|shard| &shard.value);
        all.map(|(key, item)| (key.clone(), item.clone())).collect()
    }

    /// Puts items into their files, and writes the files that have changed.
    pub async fn replace(&mut self, items: Items) -> Result<(), RecordError> {
        let count = self.shards.len();
        let mut all: Vec<Items> = (0..count).map(|_| Items::new()).collect();
        for (key, item) in items {
            if let Some(shard) = all.get_mut(shard_of(&key, count)) {
                shard.insert(key, item);
            }
        }
        for (i, items) in all.into_iter().enumerate() {
            let differs = self.shards.get(i).is_some_and(|shard| shard.value != items);
            if let Some(shard) = self.shards.get_mut(i).filter(|_| differs) {
                shard.value = items;
                self.save_shard(i).await?;
            }
        }
        Ok(())
    }

    pub async fn save_shard(&mut self, i: usize) -> Result<(), RecordError> {
        let path = shard_path(&self.folder, i);
        let Some(shard) = self.shards.get_mut(i) else { return Ok(()) };
        let wire: BTreeMap<&String, WireItem> =
            shard.value.iter().map(|(key, item)| (key, WireItem::from(item))).collect();
        shard.version = write(&self.store, &path, &wire, mode(shard.version.clone())).await?;
        Ok(())
    }
}

/// Outside of the entry's directory, where Velero would report it as a foreign object.
fn folder(entry: &str) -> Path {
    Path::from_iter([NOTES, entry, "migration"])
}

fn shard_path(folder: &Path, i: usize) -> Path {
    folder.clone().join(format!("items-{i:05}.json"))
}

fn mode(version: Option<UpdateVersion>) -> PutMode {
    version.map_or(PutMode::Overwrite, PutMode::Update)
}

async fn read<T: DeserializeOwned>(
    store: &Arc<DynObjectStore>,
    path: &Path,
) -> Result<Option<VersionedFile<T>>, RecordError> {
    let found = match store.get(path).await {
        Ok(found) => found,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(RecordError::Read(path.clone(), error)),
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    let bytes = found.bytes().await.map_err(|error| RecordError::Read(path.clone(), error))?;
    let value = serde_json::from_slice(&bytes).map_err(|error| RecordError::Parse(path.clone(), error))?;
    Ok(Some(VersionedFile { value, version: Some(version) }))
}

async fn write(
    store: &Arc<DynObjectStore>,
    path: &Path,
    value: &impl Serialize,
    mode: PutMode,
) -> Result<Option<UpdateVersion>, RecordError> {
    let bytes = serde_json::to_vec(value).map_err(|error| RecordError::Parse(path.clone(), error))?;
    match put_if(store, path, PutPayload::from(bytes), mode).await {
        Ok(version) => Ok(Some(version)),
        Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
            Err(RecordError::Another(path.clone()))
        }
        Err(error) => Err(RecordError::Write(path.clone(), error)),
    }
}
