//! A repository: creating it, opening it, adding to it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustic_core::repofile::{MasterKey, SnapshotFile};
use rustic_core::{
    BackupOptions, Credentials, Id, KeyOptions, OpenStatus, Repository as Rustic, RepositoryBackends,
    RepositoryOptions, SnapshotOptions, StringList,
};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::backend::Backend;
use crate::beneath::Folder;
use crate::device::{self, Device, DeviceSource};
use crate::fault::Fault;
use crate::hung::Hung;
use crate::lock::{Guard, Lock, Sealer};
use crate::packs;
use crate::restore::{self, Restored};
use crate::source::{DEVICE_TAG, TOP, Volume};
use crate::store::Store;
use crate::watched::Watched;
use crate::windows::Windows;

/// A repository whose key is already known, because deriving the key from the password takes a
/// third of a second each time.
#[derive(Clone)]
pub struct Repository {
    store: Store,
    key: MasterKey,
    sealer: Sealer,
    /// Jobs must not write anything, not even a lock.
    is_read_only: bool,
}

/// What a snapshot is taken of, or restored into.
#[derive(Clone, Debug)]
pub enum Data {
    Folder(Folder),
    Device(Device),
}

impl From<Folder> for Data {
    fn from(folder: Folder) -> Self {
        Self::Folder(folder)
    }
}

/// What is backed up.
#[derive(Clone, Debug)]
pub struct Source {
    pub data: Data,
    /// What restic shows as the host of the snapshot.
    pub host: String,
    pub tags: Vec<String>,
    /// The process that reads: written into the lock as its host.
    pub reader: String,
    /// A tag that all snapshots of one volume share. The last snapshot with this tag becomes the
    /// parent of the next one.
    pub same: String,
}

/// A snapshot that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub snapshot: String,
    /// Size of all files.
    pub bytes: u64,
    pub files: u64,
    /// Stored bytes that are new in the repository.
    pub added: u64,
}

impl Repository {
    /// # Errors
    /// When the repository does not exist, or has another password.
    pub async fn open(store: &Store, password: &str) -> Result<Self, Fault> {
        let (store, password) = (store.clone(), password.to_owned());
        blocking(move |handle| open(&store, &password, &handle)).await
    }

    /// Creates the repository. If several processes do so at the same time, all get the same
    /// repository.
    ///
    /// # Errors
    /// When the repository has another password, or the store fails.
    pub async fn make(store: &Store, password: &str) -> Result<Self, Fault> {
        let (store, password) = (store.clone(), password.to_owned());
        blocking(move |handle| make(&store, &password, &handle)).await
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// The same repository, for restores that may not write to its store. They hold no lock.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self { is_read_only: true, ..self }
    }

    /// Checks that nobody holds the exclusive lock. Writes nothing.
    ///
    /// # Errors
    /// When somebody holds it, or the locks cannot be read.
    pub async fn ensure_unlocked(&self) -> Result<(), Fault> {
        Lock::look(&self.store, &self.sealer).await
    }

    /// Adds a snapshot. Progress and cancellation are in `watched`.
    ///
    /// # Errors
    /// [`Fault::Unfinished`]: there is a snapshot, and it lacks what could not be read.
    pub async fn backup(&self, source: Source, watched: &Watched) -> Result<Saved, Fault> {
        let lock = Lock::take(&self.store, &self.sealer, &source.reader, watched).await?;
        let (this, job, guard) = (self.clone(), watched.clone(), lock.guard());
        let work = move |handle: Handle| this.add(source, &job, guard, &handle);
        let done = until_canceled(watched, self.store.place(), blocking(work), TO_END).await;
        free(lock, &done).await;
        self.judged(done, watched)
    }

    /// Restores a snapshot. Files of the folder that the snapshot lacks stay, and so do the bytes
    /// of a device beyond the snapshot's size.
    ///
    /// # Errors
    /// [`Fault::Unfinished`]: everything else is restored.
    pub async fn restore(
        &self,
        snapshot: &str,
        data: impl Into<Data>,
        reader: &str,
        watched: &Watched,
    ) -> Result<Restored, Fault> {
        let lock = if self.is_read_only {
            Lock::look(&self.store, &self.sealer).await?;
            None
        } else {
            Some(Lock::take(&self.store, &self.sealer, reader, watched).await?)
        };
        let (this, job, snapshot, data) = (self.clone(), watched.clone(), snapshot.to_owned(), data.into());
        let work = move |handle: Handle| {
            let repository = this.opened(&job, None, &handle)?;
            match &data {
                Data::Folder(folder) => restore::restore(repository, &snapshot, folder, &job),
                Data::Device(device) => device::restore(repository, &snapshot, device, &job),
            }
        };
        let done = until_canceled(watched, self.store.place(), blocking(work), TO_END).await;
        if let Some(lock) = lock {
            free(lock, &done).await;
        }
        self.judged(done, watched)
    }

    /// Replaces the result of a job that was canceled by the cancellation, and of one that could
    /// not write something by that error, because what fails afterwards only follows from it.
    pub(crate) fn judged<T>(&self, done: Result<T, Fault>, watched: &Watched) -> Result<T, Fault> {
        match (done, watched.unwritten()) {
            (Err(_), _) if watched.is_lock_lost() => Err(Fault::LockLost),
            (Err(_), Some(why)) => {
                Err(Fault::Repository(format!("the repository takes nothing any more: {why}")))
            }
            (Err(_), None) if watched.is_canceled() => Err(Fault::Canceled),
            (done, _) => done,
        }
    }

    pub(crate) fn opened(
        &self,
        watched: &Watched,
        guard: Option<Guard>,
        handle: &Handle,
    ) -> Result<Rustic<OpenStatus>, Fault> {
        let rustic = rustic(&self.store, watched, handle, None, guard)?;
        Ok(rustic.open(&Credentials::Masterkey(self.key.clone()))?)
    }

    fn add(&self, source: Source, watched: &Watched, guard: Guard, handle: &Handle) -> Result<Saved, Fault> {
        let repository = self.opened(watched, Some(guard), handle)?;
        let is_device = matches!(source.data, Data::Device(_));
        // A device does not record which of its blocks were written, so all of it is read.
        let parent = if is_device { None } else { latest(&repository, &source.same)? };
        let repository = repository.to_indexed_ids()?;
        let command = "berth node-agent".to_owned();
        let mut snapshot = SnapshotOptions::default().host(source.host).command(command).to_snapshot()?;
        snapshot.program_version = format!("berth {}", env!("CARGO_PKG_VERSION"));
        let mut tags = StringList::default();
        let of_device = is_device.then(|| DEVICE_TAG.to_owned());
        for tag in source.tags.into_iter().chain([source.same]).chain(of_device) {
            tags.add(tag);
        }
        snapshot.tags = tags;
        let mut options = BackupOptions::default();
        match parent {
            Some(parent) => options.parent_opts.parents = vec![parent.id.to_hex().as_str().to_owned()],
            None => options.parent_opts.force = true,
        }
        // rustic_core's option has the opposite meaning of its name: with `true` it compares
        // inodes.
        options.parent_opts.ignore_inode = true;
        let (top, watching) = ([PathBuf::from("/").join(TOP)], watched.clone());
        let saved = match source.data {
            Data::Folder(folder) => {
                let volume = Volume { folder, watched: watching };
                repository.archive(&options, &volume, snapshot, &top)?
            }
            Data::Device(device) => {
                let device = DeviceSource { device, watched: watching };
                repository.archive(&options, &device, snapshot, &top)?
            }
        };
        let id = saved.id.to_hex().as_str().to_owned();
        if let Some(failed) = watched.failed() {
            let snapshot = Some(id);
            return Err(Fault::Unfinished(crate::fault::Unfinished { snapshot, ..failed }));
        }
        let summary = saved.summary.unwrap_or_default();
        // rustic_core skips files that fail here, and only logs them.
        let given = watched.files();
        if summary.total_files_processed != given {
            let stored = summary.total_files_processed;
            return Err(Fault::Repository(format!(
                "of {given} files that were found, snapshot {id} has {stored}"
            )));
        }
        Ok(Saved {
            snapshot: id,
            bytes: summary.total_bytes_processed,
            files: summary.total_files_processed,
            added: summary.data_added_packed,
        })
    }
}

/// The latest snapshot with this tag.
fn latest(repository: &Rustic<OpenStatus>, tag: &str) -> Result<Option<SnapshotFile>, Fault> {
    let found = repository.get_matching_snapshots(|snapshot| snapshot.tags.contains(tag))?;
    Ok(found.into_iter().max_by(|one, other| one.time.cmp(&other.time)))
}

/// Time that a canceled job has to end.
pub(crate) const TO_END: Duration = Duration::from_secs(10);

/// Waits for a job, and at most `to_end` longer after it was canceled, because a call of a file
/// system may never return. In that case the job's thread is abandoned; the back end lets it write
/// nothing more to the repository. `of`: the place of the repository, by which such threads are
/// counted.
pub(crate) async fn until_canceled<T: Send + 'static>(
    watched: &Watched,
    of: &str,
    work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    to_end: Duration,
) -> Result<T, Fault> {
    Hung::ensure_few(of)?;
    let mut work = tokio::spawn(work);
    let canceled = async {
        while !watched.is_canceled() {
            sleep(Duration::from_millis(200)).await;
        }
        sleep(to_end).await;
    };
    tokio::select! {
        done = &mut work => done.unwrap_or(Err(Fault::Panic)),
        () = canceled => {
            let hung = Hung::new(of);
            tracing::warn!(repository = of, "the file system does not answer: abandoning a thread that waits for it");
            tokio::spawn(async move {
                let _ = work.await;
                drop(hung);
            });
            Err(Fault::Hung)
        }
    }
}

/// Removes the lock of a job. If the job's thread may still be writing, the lock stays until it is
/// stale.
pub(crate) async fn free<T>(lock: Lock, done: &Result<T, Fault>) {
    if !matches!(done, Err(Fault::Hung)) {
        lock.release().await;
    }
}

/// Runs this on a thread that may block, because rustic_core waits for the store.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce(Handle) -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let handle = Handle::current();
    spawn_blocking(move || work(handle)).await.unwrap_or(Err(Fault::Panic))
}

fn rustic(
    store: &Store,
    watched: &Watched,
    handle: &Handle,
    only_key: Option<Id>,
    guard: Option<Guard>,
) -> Result<Rustic<()>, Fault> {
    let backend = Backend {
        store: store.clone(),
        handle: handle.clone(),
        watched: watched.clone(),
        only_key,
        guard,
        windows: Windows::default(),
    };
    let backends = RepositoryBackends::new(Arc::new(backend), None);
    let options = RepositoryOptions::default().no_cache(true);
    Ok(Rustic::new_with_progress(&options, &backends, watched.clone())?)
}

fn ready(store: &Store, repository: &Rustic<OpenStatus>) -> Result<Repository, Fault> {
    let key = repository.key();
    let sealer = Sealer::new(&key).ok_or_else(|| Fault::Repository("its key is not restic's".to_owned()))?;
    Ok(Repository { store: store.clone(), key, sealer, is_read_only: false })
}

fn open(store: &Store, password: &str, handle: &Handle) -> Result<Repository, Fault> {
    if !handle.block_on(store.has_repository())? {
        return Err(Fault::Missing(store.place().to_owned()));
    }
    // A process that died while it created the repository, or that was not the first to do so, may
    // have left a key that the password opens but that encrypts nothing. So each key is tried by
    // itself.
    let mut keys: Vec<Id> = Vec::new();
    for (name, _) in handle.block_on(store.list("keys"))? {
        keys.extend(name.parse::<Id>().ok());
    }
    let mut told = None;
    for key in keys {
        let rustic = rustic(store, &Watched::default(), handle, Some(key), None)?;
        match rustic.open(&Credentials::password(password)) {
            Ok(repository) => return ready(store, &repository),
            Err(error) if error.is_incorrect_password() || error.is_code("C001") => {}
            Err(error) => told = Some(error.into()),
        }
    }
    Err(told.unwrap_or_else(|| Fault::Password(store.place().to_owned())))
}

fn make(store: &Store, password: &str, handle: &Handle) -> Result<Repository, Fault> {
    let before: Vec<String> =
        handle.block_on(store.list("keys"))?.into_iter().map(|(name, _)| name).collect();
    let rustic = rustic(store, &Watched::default(), handle, None, None)?;
    let credentials = Credentials::password(password);
    let key =
        KeyOptions::default().hostname("berth".to_owned()).username("berth".to_owned()).with_created(true);
    match rustic.init(&credentials, &key, &packs::config()) {
        Ok(repository) => ready(store, &repository),
        // Another process may have been first; then this process' key opens nothing.
        Err(error) => {
            if !handle.block_on(store.has_repository())? {
                return Err(error.into());
            }
            let opened = open(store, password, handle)?;
            let is_own = |name: &str| !before.iter().any(|old| old == name);
            for (name, _) in handle.block_on(store.list("keys"))?.into_iter().filter(|(name, _)| is_own(name))
            {
                remove_key_of_nothing(store, &name, password, handle, &opened);
            }
            Ok(opened)
        }
    }
}

/// Removes a key that the password opens and that is not the repository's.
fn remove_key_of_nothing(store: &Store, name: &str, password: &str, handle: &Handle, opened: &Repository) {
    let Ok(id) = name.parse::<Id>() else { return };
    let Ok(rustic) = rustic(store, &Watched::default(), handle, Some(id), None) else { return };
    let is_of_nothing = match rustic.open(&Credentials::password(password)) {
        Ok(repository) => repository.key().encrypt != opened.key.encrypt,
        Err(error) => error.is_code("C001"),
    };
    if is_of_nothing && let Err(error) = handle.block_on(store.remove(&store.folder("keys").join(name))) {
        tracing::debug!(%error, "a key that opens nothing stays");
    }
}

#[cfg(test)]
mod tests;
