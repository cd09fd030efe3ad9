//! The files of a repository, as rustic_core reads and writes them. The back end writes nothing for
//! a job that is canceled, and no snapshot for a job whose lock is no longer held.

use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, GetOptions, GetRange, ObjectStoreExt as _, PutPayload};
use rustic_core::{BytesList, ErrorKind, FileType, Id, ReadBackend, RusticError, RusticResult, WriteBackend};
use tokio::runtime::Handle;

use crate::lock::Guard;
use crate::store::Store;
use crate::watched::Watched;
use crate::windows::Windows;

/// How long writing a snapshot may take after the check that the lock is held. This is much less
/// than the time between the age up to which a lock is [`TRUSTED`](crate::lock) and the age at
/// which it is stale.
const SNAPSHOT: Duration = Duration::from_secs(2 * 60);

/// [`Store`] with the interface that rustic_core calls, from threads that may block, for one job.
#[derive(Debug)]
pub(crate) struct Backend {
    pub store: Store,
    pub handle: Handle,
    pub watched: Watched,
    /// If set, the back end shows only this key, because rustic_core uses the first key that the
    /// password opens.
    pub only_key: Option<Id>,
    /// The job's lock. A job that writes snapshots or removes anything must have one.
    pub guard: Option<Guard>,
    pub windows: Windows,
}

impl Backend {
    fn path(&self, kind: FileType, id: &Id) -> Path {
        let hex = id.to_hex();
        let folder = self.store.folder(kind.dirname());
        match kind {
            FileType::Config => folder,
            FileType::Pack => {
                let first: String = hex.as_str().chars().take(2).collect();
                folder.join(first).join(hex.as_str())
            }
            FileType::Key | FileType::Index | FileType::Snapshot => folder.join(hex.as_str()),
        }
    }

    fn ensure_wanted(&self) -> RusticResult<()> {
        if self.watched.is_canceled() {
            return Err(RusticError::new(ErrorKind::Backend, "canceled"));
        }
        Ok(())
    }
}

fn late(why: &'static str) -> Error {
    Error::Generic { store: "repository", source: why.into() }
}

fn failed(path: &Path, error: Error) -> Box<RusticError> {
    RusticError::new(ErrorKind::Backend, format!("{path}: {}", chain(&error)))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl ReadBackend for Backend {
    fn location(&self) -> String {
        self.store.place().to_owned()
    }

    fn list_with_size(&self, kind: FileType) -> RusticResult<Vec<(Id, u32)>> {
        self.ensure_wanted()?;
        let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        if kind == FileType::Config {
            let path = self.store.config();
            return match self.handle.block_on(self.store.objects.head(&path)) {
                Ok(found) => Ok(vec![(Id::default(), size(found.size))]),
                Err(Error::NotFound { .. }) => Ok(Vec::new()),
                Err(error) => Err(failed(&path, error)),
            };
        }
        let folder = kind.dirname();
        let found = self.handle.block_on(self.store.list(folder));
        let found = found.map_err(|error| failed(&self.store.folder(folder), error))?;
        let ids = found.into_iter().filter_map(|(name, bytes)| {
            // Other files in the folder are skipped, as restic skips them.
            let id = name.parse::<Id>().ok().filter(|_| name.len() == 64)?;
            Some((id, size(bytes)))
        });
        let is_shown =
            |id: &Id| kind != FileType::Key || self.only_key.as_ref().is_none_or(|only| only == id);
        Ok(ids.filter(|(id, _)| is_shown(id)).collect())
    }

    fn read_full(&self, kind: FileType, id: &Id) -> RusticResult<Bytes> {
        self.ensure_wanted()?;
        let path = self.path(kind, id);
        self.handle.block_on(self.store.read(&path)).map_err(|error| failed(&path, error))
    }

    fn read_partial(
        &self,
        kind: FileType,
        id: &Id,
        _: bool,
        offset: u32,
        length: u32,
    ) -> RusticResult<Bytes> {
        self.ensure_wanted()?;
        let path = self.path(kind, id);
        let start = u64::from(offset);
        let read = |range| {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let read = async { self.store.objects.get_opts(&path, options).await?.bytes().await };
            self.handle.block_on(read).map_err(|error| failed(&path, error))
        };
        let range = start..start + u64::from(length);
        if kind == FileType::Pack { self.windows.piece(id, range, read) } else { read(range) }
    }

    fn warmup_path(&self, kind: FileType, id: &Id) -> String {
        self.path(kind, id).to_string()
    }
}

impl WriteBackend for Backend {
    fn write_bytes(&self, kind: FileType, id: &Id, _: bool, content: BytesList) -> RusticResult<()> {
        // This matters most for snapshots: one that is written now would contain only what was read
        // before the cancellation.
        self.ensure_wanted()?;
        let path = self.path(kind, id);
        let payload: PutPayload = content.into_vec().into_iter().collect();
        let write = async {
            if kind == FileType::Config {
                return self.store.create(&path, payload).await;
            }
            if kind == FileType::Snapshot
                && let Some(guard) = &self.guard
            {
                if !guard.is_held().await {
                    self.watched.lose_lock();
                    return Err(late("the lock of the repository is not there any more"));
                }
                let put = tokio::time::timeout(SNAPSHOT, self.store.objects.put(&path, payload)).await;
                return put.map_err(|_| late("the store did not take it in time"))?.map(drop);
            }
            self.store.objects.put(&path, payload).await.map(drop)
        };
        self.handle.block_on(write).map_err(|error| {
            // Otherwise rustic_core would read the rest of the volume, and then only report that
            // one of its threads has ended.
            self.watched.give_up(|| format!("{}, when {path} was to be written", chain(&error)));
            failed(&path, error)
        })
    }

    fn remove(&self, kind: FileType, id: &Id, _: bool) -> RusticResult<()> {
        self.ensure_wanted()?;
        let path = self.path(kind, id);
        let remove = async {
            // Another process may have taken the lock since, and may need this file.
            if let Some(guard) = &self.guard
                && !guard.is_held().await
            {
                self.watched.lose_lock();
                return Err(late("the lock of the repository is not there any more"));
            }
            self.store.remove(&path).await
        };
        self.handle.block_on(remove).map_err(|error| failed(&path, error))
    }
}
