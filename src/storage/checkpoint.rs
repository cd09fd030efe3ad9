//! The checkpoint in a backup's folder: the progress of its run, beside its claim. It is removed
//! when the backup is stored.

use berth_core::claim::FolderClaim;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error, GetResult, ObjectStoreExt, PutMode, PutPayload, Result, UpdateVersion};

use super::claim::ClaimError;
use super::conditional::put_if;
use super::layout::{BackupLayout, CHECKPOINT};

/// Enough for a backup of many millions of objects.
const LARGEST: u64 = 256 << 20;
/// How many times a checkpoint is read again when it changes during the read.
const TRIES: usize = 3;

impl BackupLayout {
    pub fn checkpoint_path(&self) -> Path {
        self.folder().join(CHECKPOINT)
    }

    /// Writes a checkpoint in place of version `replaces`, or of none, so that a former leader
    /// cannot overwrite the one of its successor.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::Precondition`] when the store has another version, or
    /// none any more; or the store's error.
    pub async fn put_checkpoint(
        &self,
        content: PutPayload,
        replaces: Option<UpdateVersion>,
    ) -> Result<UpdateVersion> {
        if content.content_length() as u64 > LARGEST {
            // Not written, because no reader would accept it and the previous checkpoint is still
            // of use.
            let source = format!("it has more than {LARGEST} bytes").into();
            return Err(Error::Generic { store: "checkpoint", source });
        }
        let mode = replaces.map_or(PutMode::Create, PutMode::Update);
        match put_if(self.store(), &self.checkpoint_path(), content, mode).await {
            // Some stores answer so when the version to replace does not exist.
            Err(Error::NotFound { path, source }) => Err(Error::Precondition { path, source }),
            done => done,
        }
    }

    /// Replaces the checkpoint by an empty one while `claim` holds the folder, so that no run
    /// resumes from it any more. Returns the first bytes of the old one, `most` at most.
    ///
    /// # Errors
    /// When the folder has another claim by now, another process writes the checkpoint, or the
    /// store fails.
    pub async fn void_checkpoint(
        &self,
        claim: &FolderClaim,
        most: usize,
    ) -> std::result::Result<Option<Bytes>, ClaimError> {
        for _ in 0..TRIES {
            let found = self.read_checkpoint_start(most).await.map_err(ClaimError::Store)?;
            self.confirm(claim).await?;
            let Some((start, version)) = found.filter(|(start, _)| !start.is_empty()) else {
                return Ok(None);
            };
            match self.put_checkpoint(PutPayload::default(), Some(version)).await {
                Ok(_) => return Ok(Some(start)),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) => return Err(ClaimError::Store(error)),
            }
        }
        Err(ClaimError::Lost(self.folder()))
    }

    async fn get_checkpoint(&self) -> Result<Option<(GetResult, UpdateVersion)>> {
        let found = match self.store().get(&self.checkpoint_path()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        Ok(Some((found, version)))
    }

    /// The whole checkpoint, unless it is larger than any that a run writes.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    pub async fn read_checkpoint(&self) -> Result<Option<(Bytes, UpdateVersion)>> {
        match self.get_checkpoint().await? {
            Some((found, version)) if found.meta.size <= LARGEST => Ok(Some((found.bytes().await?, version))),
            _ => Ok(None),
        }
    }

    /// The first bytes, `most` at most, because anybody who may write to the store decides how
    /// large the file is.
    ///
    /// # Errors
    /// When the checkpoint cannot be read.
    pub async fn read_checkpoint_start(&self, most: usize) -> Result<Option<(Bytes, UpdateVersion)>> {
        let Some((found, version)) = self.get_checkpoint().await? else { return Ok(None) };
        let (mut read, mut start) = (found.into_stream(), BytesMut::new());
        while start.len() < most
            && let Some(bytes) = read.try_next().await?
        {
            start.extend_from_slice(&bytes);
        }
        start.truncate(most);
        Ok(Some((start.freeze(), version)))
    }

    /// # Errors
    /// When the store does not remove it. A missing checkpoint is no error.
    pub async fn remove_checkpoint(&self) -> Result<()> {
        match self.store().delete(&self.checkpoint_path()).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::DynObjectStore;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    use super::*;

    fn claim(run: &str) -> FolderClaim {
        FolderClaim { cluster: "here".into(), backup: "b".into(), run: run.into(), ..FolderClaim::default() }
    }

    #[tokio::test]
    async fn of_whoever_takes_a_checkpoint_up_and_whoever_makes_it_void_one_alone_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let stores: [Arc<DynObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(local)];
        for store in stores {
            let layout = BackupLayout::new(store, None, "b");
            layout.claim(&claim("old"), None).await.unwrap();
            assert!(layout.void_checkpoint(&claim("old"), 100).await.unwrap().is_none());
            layout.put_checkpoint("of the old".into(), None).await.unwrap();
            let (read, version) = layout.read_checkpoint().await.unwrap().unwrap();
            assert_eq!(layout.void_checkpoint(&claim("old"), 100).await.unwrap(), Some(read));
            assert!(layout.void_checkpoint(&claim("old"), 100).await.unwrap().is_none(), "it is void");
            let late = layout.put_checkpoint("of the new".into(), Some(version)).await.unwrap_err();
            assert!(matches!(late, Error::AlreadyExists { .. } | Error::Precondition { .. }), "{late}");
            // And in the other direction.
            let (_, version) = layout.read_checkpoint().await.unwrap().unwrap();
            let standing = layout.look().await.unwrap().version;
            layout.claim(&claim("new"), standing).await.unwrap();
            layout.put_checkpoint("of the new".into(), Some(version)).await.unwrap();
            assert!(matches!(
                layout.void_checkpoint(&claim("old"), 100).await,
                Err(ClaimError::Taken { .. })
            ));
            let (read, version) = layout.read_checkpoint().await.unwrap().unwrap();
            assert_eq!(&read[..], b"of the new");
            layout.remove_checkpoint().await.unwrap();
            let gone = layout.put_checkpoint("again".into(), Some(version)).await.unwrap_err();
            assert!(matches!(gone, Error::AlreadyExists { .. } | Error::Precondition { .. }), "{gone}");
        }
    }
}
