//! The checkpoint in a backup's folder: how far its run is, beside its claim. It is gone when the backup is stored.

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error, GetResult, ObjectStoreExt, PutMode, PutPayload, Result, UpdateVersion};

use super::conditional::put_if;
use super::layout::Layout;

pub(super) const FILE: &str = "berth-checkpoint";
/// What a backup of many millions of objects takes.
const LARGEST: u64 = 256 << 20;

impl Layout {
    pub fn checkpoint_path(&self) -> Path {
        self.folder().join(FILE)
    }

    /// Replaces the one of version `replaces`, or none: a leader that is gone writes over nobody's.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::Precondition`] when another one stands there, or what the store says.
    pub async fn put_checkpoint(
        &self,
        content: PutPayload,
        replaces: Option<UpdateVersion>,
    ) -> Result<UpdateVersion> {
        let mode = replaces.map_or(PutMode::Create, PutMode::Update);
        put_if(self.store(), &self.checkpoint_path(), content, mode).await
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

    /// All of it, unless it is larger than any that a run writes.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn read_checkpoint(&self) -> Result<Option<(Bytes, UpdateVersion)>> {
        match self.get_checkpoint().await? {
            Some((found, version)) if found.meta.size <= LARGEST => Ok(Some((found.bytes().await?, version))),
            _ => Ok(None),
        }
    }

    /// Its first bytes, `most` of them where it has so many: whoever may write to the store decides how large it is.
    ///
    /// # Errors
    /// When it cannot be read.
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
    /// When the store does not remove it. One that is gone already is no error.
    pub async fn remove_checkpoint(&self) -> Result<()> {
        match self.store().delete(&self.checkpoint_path()).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
