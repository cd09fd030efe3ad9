//! The files of a repository in an object store, with restic's layout.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{DynObjectStore, Error, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};

/// The place of a repository.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) objects: Arc<DynObjectStore>,
    prefix: Path,
}

impl Store {
    pub fn new(objects: Arc<DynObjectStore>, prefix: Path) -> Self {
        Self { objects, prefix }
    }

    pub fn place(&self) -> &str {
        self.prefix.as_ref()
    }

    pub(crate) fn config(&self) -> Path {
        self.prefix.clone().join("config")
    }

    pub(crate) fn folder(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Does the repository exist?
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn has_repository(&self) -> Result<bool, Error> {
        self.has(&self.config()).await
    }

    pub(crate) async fn has(&self, path: &Path) -> Result<bool, Error> {
        match self.objects.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn read(&self, path: &Path) -> Result<Bytes, Error> {
        self.objects.get(path).await?.bytes().await
    }

    pub(crate) async fn write(&self, path: &Path, bytes: Vec<u8>) -> Result<(), Error> {
        self.objects.put(path, bytes.into()).await.map(drop)
    }

    pub(crate) async fn remove(&self, path: &Path) -> Result<(), Error> {
        match self.objects.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Names and sizes of the files in a folder and in those below it.
    pub(crate) async fn list(&self, name: &str) -> Result<Vec<(String, u64)>, Error> {
        let folder = self.folder(name);
        let found = self.objects.list(Some(&folder)).map_ok(|object| {
            let name = object.location.filename().unwrap_or_default().to_owned();
            (name, object.size)
        });
        found.try_collect().await
    }

    /// Writes a file that must not exist yet. A store without conditional writes is asked first
    /// whether it exists.
    pub(crate) async fn create(&self, path: &Path, payload: PutPayload) -> Result<(), Error> {
        let put =
            |mode| self.objects.put_opts(path, payload.clone(), PutOptions { mode, ..PutOptions::default() });
        match put(PutMode::Create).await {
            Err(error) if is_unknown(&error) => match self.objects.head(path).await {
                Ok(_) => Err(Error::AlreadyExists { path: path.to_string(), source: "it is there".into() }),
                Err(Error::NotFound { .. }) => put(PutMode::Overwrite).await.map(drop),
                Err(error) => Err(error),
            },
            done => done.map(drop),
        }
    }
}

/// Does the store lack conditional writes? It answers 501, which object_store passes on only as
/// text.
fn is_unknown(error: &Error) -> bool {
    match error {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => true,
        Error::Generic { source, .. } => source.to_string().contains("501 Not Implemented"),
        _ => false,
    }
}
