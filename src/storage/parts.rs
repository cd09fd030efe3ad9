//! Uploads in parts that another process can resume. [`object_store`] has them for buckets. This
//! module adds them for folders: the upload is a file beside the final one, with a name
//! (`FILE#NUMBER`) that no reader takes for an object.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use object_store::local::LocalFileSystem;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{DynObjectStore, Error, MultipartId, ObjectStore, PutPayload, Result};
use serde::{Deserialize, Serialize};

use super::regular::{self, RegularFiles, unwaiting};

/// An opened location.
pub struct Opened {
    pub store: Arc<DynObjectStore>,
    pub parts: MultipartTarget,
}

impl Opened {
    pub(super) fn bucket<S: ObjectStore + MultipartStore>(store: Arc<S>) -> Self {
        Self { store: store.clone(), parts: MultipartTarget::Bucket(store) }
    }

    pub(super) fn folder(store: Arc<LocalFileSystem>) -> Self {
        Self { store: Arc::new(RegularFiles::new(store.clone())), parts: MultipartTarget::Folder(store) }
    }
}

/// The target of uploads in parts.
#[derive(Clone)]
pub enum MultipartTarget {
    Bucket(Arc<dyn MultipartStore>),
    Folder(Arc<LocalFileSystem>),
}

/// A stored part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The id that the store gave it.
    pub id: String,
    pub size: u64,
}

/// An upload that is not complete.
#[derive(Clone)]
pub struct Staged {
    parts: MultipartTarget,
    path: Path,
    id: MultipartId,
}

impl MultipartTarget {
    /// # Errors
    /// When the store refuses.
    pub async fn begin(&self, path: &Path) -> Result<Staged> {
        let id = match self {
            Self::Bucket(store) => store.create_multipart(path).await?,
            Self::Folder(folder) => {
                let file = folder.path_to_filesystem(path)?;
                blocking(move || create(&file)).await?
            }
        };
        Ok(Staged { parts: self.clone(), path: path.clone(), id })
    }

    /// The upload with this `id`.
    ///
    /// # Errors
    /// When `id` cannot be the id of an upload.
    pub fn known(&self, path: &Path, id: &str) -> Result<Staged> {
        // Checked, because `id` becomes a part of a file name.
        let is_number = !id.is_empty() && id.len() <= 20 && id.bytes().all(|byte| byte.is_ascii_digit());
        if matches!(self, Self::Folder(_)) && !is_number {
            return Err(failed(format!("{id:?} is not the number of an upload").into()));
        }
        Ok(Staged { parts: self.clone(), path: path.clone(), id: id.to_owned() })
    }
}

impl Staged {
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Takes over an upload of another process, with its first `size` bytes. A bucket detects
    /// replaced parts by their receipts. A folder does not, so the upload gets a new file there,
    /// which the first process does not know.
    ///
    /// # Errors
    /// When the upload does not exist any more.
    pub async fn for_another(self, size: u64) -> Result<Self> {
        let MultipartTarget::Folder(folder) = &self.parts else { return Ok(self) };
        let (file, id) = (folder.path_to_filesystem(&self.path)?, self.id.clone());
        let id = blocking(move || copy(&file, &id, size)).await?;
        Ok(Self { id, ..self })
    }

    /// Stores a part. `index`: its number, from 0. `offset`: the bytes in all parts before it.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn put(&self, index: usize, offset: u64, bytes: PutPayload) -> Result<Receipt> {
        let size = u64::try_from(bytes.content_length()).unwrap_or(u64::MAX);
        let id = match &self.parts {
            MultipartTarget::Bucket(store) => {
                store.put_part(&self.path, &self.id, index, bytes).await?.content_id
            }
            MultipartTarget::Folder(folder) => {
                let staged = staged(&folder.path_to_filesystem(&self.path)?, &self.id);
                blocking(move || write(&staged, offset, &bytes)).await?;
                String::new()
            }
        };
        Ok(Receipt { id, size })
    }

    /// Puts the parts together. Readers see the object from then on.
    ///
    /// # Errors
    /// When a part is missing or was replaced, or the store fails.
    pub async fn complete(&self, receipts: &[Receipt]) -> Result<()> {
        match &self.parts {
            MultipartTarget::Bucket(store) => {
                let id = |receipt: &Receipt| PartId { content_id: receipt.id.clone() };
                let parts = receipts.iter().map(id).collect();
                store.complete_multipart(&self.path, &self.id, parts).await.map(drop)
            }
            MultipartTarget::Folder(folder) => {
                let (file, id) = (folder.path_to_filesystem(&self.path)?, self.id.clone());
                let size = receipts.iter().map(|receipt| receipt.size).sum();
                blocking(move || finish(&file, &id, size)).await
            }
        }
    }

    /// # Errors
    /// When the store refuses.
    pub async fn abort(&self) -> Result<()> {
        match &self.parts {
            MultipartTarget::Bucket(store) => store.abort_multipart(&self.path, &self.id).await,
            MultipartTarget::Folder(folder) => {
                let staged = staged(&folder.path_to_filesystem(&self.path)?, &self.id);
                blocking(move || match fs::remove_file(&staged) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                })
                .await
            }
        }
    }
}

fn failed(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "folder", source }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| failed(error.into())),
        Err(error) => Err(failed(error.into())),
    }
}

fn staged(file: &FilePath, id: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("#");
    name.push(id);
    name.into()
}

/// Creates the file, and returns its number.
fn create(file: &FilePath) -> io::Result<String> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let id = RandomState::new().build_hasher().finish().to_string();
    OpenOptions::new().write(true).create_new(true).open(staged(file, &id))?;
    Ok(id)
}

fn copy(file: &FilePath, id: &str, size: u64) -> io::Result<String> {
    let from = staged(file, id);
    // Refused, because anybody who may write to the folder could make a link to another file.
    if !fs::symlink_metadata(&from)?.is_file() {
        return Err(io::Error::other("the unfinished upload of the archive is not a regular file"));
    }
    let mut read = regular::open(&from)?.take(size);
    let id = create(file)?;
    let to = staged(file, &id);
    let copied = OpenOptions::new().write(true).open(&to).and_then(|mut write| {
        let copied = io::copy(&mut read, &mut write)?;
        write.sync_all()?;
        Ok(copied)
    });
    match copied {
        Ok(copied) if copied == size => Ok(id),
        copied => {
            let _ = fs::remove_file(&to);
            Err(copied.err().unwrap_or_else(|| ErrorKind::UnexpectedEof.into()))
        }
    }
}

fn write(staged: &FilePath, offset: u64, bytes: &PutPayload) -> io::Result<()> {
    let mut file = unwaiting().write(true).open(staged)?;
    file.seek(SeekFrom::Start(offset))?;
    for chunk in bytes {
        file.write_all(chunk)?;
    }
    // fsync, because a stored part must survive a loss of power.
    file.sync_data()
}

fn finish(file: &FilePath, id: &str, size: u64) -> io::Result<()> {
    let staged = staged(file, id);
    let whole = unwaiting().write(true).open(&staged)?;
    if whole.metadata()?.len() < size {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    whole.set_len(size)?;
    whole.sync_all()?;
    fs::rename(&staged, file)?;
    if let Some(folder) = file.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Error codes of stores for an upload that is gone, or that has a missing or replaced part. They
/// are searched in the text, because object_store does not pass on the status.
const REFUSALS: [&str; 5] =
    ["NoSuchUpload", "InvalidPart", "InvalidBlockList", "InvalidBlobOrBlock", "EntityTooSmall"];

/// Does this error mean that the upload can never be completed? Other errors may pass.
pub fn is_refused(error: &Error) -> bool {
    match error {
        Error::NotFound { .. } => true,
        Error::Generic { source, .. } => match source.downcast_ref::<io::Error>() {
            Some(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof),
            None => {
                let told = source.to_string();
                REFUSALS.iter().any(|word| told.contains(word))
            }
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt as _;

    use super::*;

    fn folder() -> (tempfile::TempDir, MultipartTarget, Path) {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        (folder, MultipartTarget::Folder(Arc::new(store)), Path::from("backups/b/b.tar.gz"))
    }

    #[tokio::test]
    async fn another_process_goes_on_with_what_is_stored_and_not_with_what_a_dead_one_still_writes() {
        let (folder, parts, path) = folder();
        let first = parts.begin(&path).await.unwrap();
        let begun = first.put(0, 0, "first ".into()).await.unwrap();
        // Under way when its process counts as dead.
        first.put(1, 6, "of the dead one".into()).await.unwrap();
        let known = parts.known(&path, first.id()).unwrap();
        let next = known.for_another(begun.size).await.unwrap();
        let rest = next.put(1, 6, "second".into()).await.unwrap();
        first.put(0, 0, "too late, too late".into()).await.unwrap();
        next.complete(&[begun, rest]).await.unwrap();
        let place = folder.path().join("backups/b");
        let whole = || fs::read_to_string(place.join("b.tar.gz")).unwrap();
        assert_eq!(whole(), "first second");
        first.abort().await.unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1, "nothing is left of what was begun");
        assert!(first.put(1, 6, "later still".into()).await.is_err());
        assert!(first.complete(&[]).await.is_err());
        assert_eq!(whole(), "first second");
    }

    #[tokio::test]
    async fn an_upload_that_is_gone_or_has_holes_is_told_from_a_store_that_fails() {
        let (_folder, parts, path) = folder();
        let begun = parts.begin(&path).await.unwrap();
        let receipt = begun.put(0, 0, "short".into()).await.unwrap();
        let hole = begun.complete(&[receipt.clone(), receipt.clone()]).await.unwrap_err();
        begun.abort().await.unwrap();
        let gone = begun.complete(&[receipt]).await.unwrap_err();
        let late = begun.put(1, 5, "late".into()).await.unwrap_err();
        let of_bucket = |text: &str| Error::Generic { store: "S3", source: text.to_owned().into() };
        let part =
            of_bucket("Server returned non-2xx status code: 400 Bad Request: <Code>InvalidPart</Code>");
        for error in [hole, gone, late, part] {
            assert!(is_refused(&error), "{error}");
        }
        let full = io::Error::from(ErrorKind::StorageFull);
        for error in [of_bucket("503 Service Unavailable: <Code>SlowDown</Code>"), failed(full.into())] {
            assert!(!is_refused(&error), "{error}");
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_fifo_in_place_of_a_file_or_of_an_upload() {
        let (folder, _, path) = folder();
        let opened = Opened::folder(Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap()));
        let place = folder.path().join("backups/b");
        fs::create_dir_all(&place).unwrap();
        let fifos = ["b.tar.gz", "b.tar.gz#7"].map(|name| place.join(name));
        for fifo in &fifos {
            nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let known = opened.parts.known(&path, "7").unwrap();
        let failed = async {
            (
                opened.store.get(&path).await.is_err(),
                known.put(0, 0, "part".into()).await.is_err(),
                known.complete(&[]).await.is_err(),
                known.clone().for_another(1).await.is_err(),
            )
        };
        let failed = tokio::time::timeout(std::time::Duration::from_secs(60), failed).await;
        // Whoever waits for them ends now, so that the test can fail.
        let _other_ends = fifos.map(|fifo| OpenOptions::new().read(true).write(true).open(fifo).unwrap());
        assert_eq!(failed.unwrap(), (true, true, true, true));
    }

    /// Linux takes these writes and cannot sync these files, so only what syncs fails.
    #[tokio::test]
    async fn a_part_is_not_stored_and_an_upload_not_complete_before_it_survives_a_loss_of_power() {
        let (folder, parts, path) = folder();
        let place = folder.path().join("backups/b");
        fs::create_dir_all(&place).unwrap();
        for (id, file) in [("7", "/dev/null"), ("8", "/proc/self/comm")] {
            std::os::unix::fs::symlink(file, place.join(format!("b.tar.gz#{id}"))).unwrap();
        }
        let stored = parts.known(&path, "7").unwrap().put(0, 0, "part".into()).await.map(drop);
        let complete = parts.known(&path, "8").unwrap().complete(&[]).await;
        for done in [stored, complete] {
            let Err(Error::Generic { source, .. }) = &done else { unreachable!("{done:?}") };
            let why = source.downcast_ref::<io::Error>().map(io::Error::kind);
            assert_eq!(why, Some(ErrorKind::InvalidInput), "{done:?}");
        }
        assert!(fs::symlink_metadata(place.join("b.tar.gz")).is_err(), "readers see it");
    }

    #[tokio::test]
    async fn what_is_not_there_or_leads_elsewhere_is_not_gone_on_with() {
        let (folder, parts, path) = folder();
        let begun = parts.begin(&path).await.unwrap();
        let receipt = begun.put(0, 0, "short".into()).await.unwrap();
        assert!(begun.clone().for_another(receipt.size + 1).await.is_err());
        assert!(begun.complete(&[receipt.clone(), receipt]).await.is_err(), "it would have a hole");
        for id in ["", "../../elsewhere", "1a", "123456789012345678901"] {
            assert!(parts.known(&path, id).is_err(), "{id}");
        }
        std::os::unix::fs::symlink("/proc/self/status", folder.path().join("backups/b/b.tar.gz#7")).unwrap();
        for id in ["7", "8"] {
            assert!(parts.known(&path, id).unwrap().for_another(1).await.is_err(), "{id}");
        }
    }
}
