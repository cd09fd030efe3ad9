//! Folders as stores, of which only regular files are read. Whoever may write to a folder may put a
//! FIFO or a device in place of a file. The open of a FIFO waits until somebody opens its other
//! end, and each try to read it would hold a thread for that long. And they may put a link in place
//! of a folder, behind which nothing is removed, because that may be anything that berth may
//! remove.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Files that are removed at the same time.
const REMOVED_AT_ONCE: usize = 10;

/// Options by which no open waits, whatever has the name of the file by then.
pub(super) fn unwaiting() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlag::O_NONBLOCK.bits());
    options
}

/// Opens a regular file to read it. Blocks no longer than the disk does.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub(super) fn open(path: &FilePath) -> io::Result<File> {
    // Before the open, because some devices do something when they are opened.
    ensure_regular(&fs::metadata(path)?)?;
    let file = unwaiting().read(true).open(path)?;
    // Something else may have taken the place of the file meanwhile.
    ensure_regular(&file.metadata()?)?;
    Ok(file)
}

fn ensure_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_file() {
        return Ok(());
    }
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    let what = if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(io::Error::other(format!("it is {what}, and berth reads regular files only: remove it")))
}

/// A folder as a store.
#[derive(Debug)]
pub(super) struct RegularFiles(Arc<LocalFileSystem>);

impl RegularFiles {
    pub fn new(folder: Arc<LocalFileSystem>) -> Self {
        Self(folder)
    }
}

impl fmt::Display for RegularFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

// The signatures are those that `async_trait` generates, because object_store declares the trait
// with it.
impl ObjectStore for RegularFiles {
    fn put_opts<'s, 'p, 'f>(
        &'s self,
        path: &'p Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> BoxFuture<'f, Result<PutResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        self.0.put_opts(path, payload, options)
    }

    fn put_multipart_opts<'s, 'p, 'f>(
        &'s self,
        path: &'p Path,
        options: PutMultipartOptions,
    ) -> BoxFuture<'f, Result<Box<dyn MultipartUpload>>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        self.0.put_multipart_opts(path, options)
    }

    fn get_opts<'s, 'p, 'f>(&'s self, path: &'p Path, options: GetOptions) -> BoxFuture<'f, Result<GetResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let (file, location) = (self.0.path_to_filesystem(path)?, path.clone());
            let done = tokio::task::spawn_blocking(move || read(file, location, options)).await;
            done.map_err(|error| failed(error.into()))?
        })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = Arc::clone(&self.0);
        let removed = paths.map(move |path| {
            let store = Arc::clone(&store);
            async move {
                let path = path?;
                let done = tokio::task::spawn_blocking(move || remove(&store, &path).map(|()| path)).await;
                done.map_err(|error| failed(error.into()))?
            }
        });
        removed.buffered(REMOVED_AT_ONCE).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_delimiter<'s, 'p, 'f>(
        &'s self,
        prefix: Option<&'p Path>,
    ) -> BoxFuture<'f, Result<ListResult>>
    where
        's: 'f,
        'p: 'f,
        Self: 'f,
    {
        self.0.list_with_delimiter(prefix)
    }

    fn copy_opts<'s, 'p, 'q, 'f>(
        &'s self,
        from: &'p Path,
        to: &'q Path,
        options: CopyOptions,
    ) -> BoxFuture<'f, Result<()>>
    where
        's: 'f,
        'p: 'f,
        'q: 'f,
        Self: 'f,
    {
        self.0.copy_opts(from, to, options)
    }
}

/// What [`LocalFileSystem::get_opts`] does, with an open that waits for nobody.
fn read(file: PathBuf, location: Path, options: GetOptions) -> Result<GetResult> {
    let cannot = |error: io::Error| match error.kind() {
        // A folder is no object.
        ErrorKind::NotFound | ErrorKind::IsADirectory => {
            Error::NotFound { path: file.display().to_string(), source: error.into() }
        }
        _ => failed(format!("{} cannot be read: {error}", file.display()).into()),
    };
    let opened = open(&file).map_err(cannot)?;
    let found = opened.metadata().map_err(cannot)?;
    let meta = ObjectMeta {
        location,
        last_modified: found.modified().map_err(cannot)?.into(),
        size: found.len(),
        e_tag: Some(tag(&found)),
        version: None,
    };
    options.check_preconditions(&meta)?;
    let range = match options.range {
        Some(range) => range.as_range(meta.size).map_err(|error| failed(error.into()))?,
        None => 0..meta.size,
    };
    Ok(GetResult {
        payload: GetResultPayload::File(opened, file),
        meta,
        range,
        attributes: Attributes::default(),
        extensions: http::Extensions::new(),
    })
}

/// Removes a file, and the folders that are empty then, because a bucket has none. Blocks.
fn remove(store: &LocalFileSystem, path: &Path) -> Result<()> {
    let file = store.path_to_filesystem(path)?;
    let cannot = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Error::NotFound { path: file.display().to_string(), source: error.into() },
        _ => failed(format!("{} cannot be removed: {error}", file.display()).into()),
    };
    let whole = file.ancestors().nth(path.parts_count()).zip(file.parent()).zip(file.file_name());
    let Some(((root, parent), name)) = whole else {
        return Err(failed(format!("{} names no file of the folder", file.display()).into()));
    };
    let below = parent.strip_prefix(root).map_err(|error| failed(error.into()))?;
    let folder = beneath(root, below).map_err(cannot)?;
    unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir).map_err(|error| cannot(error.into()))?;
    let mut emptied = below;
    while let (Some(above), Some(name)) = (emptied.parent(), emptied.file_name()) {
        let removed = beneath(root, above).map(|above| unlinkat(&above, name, UnlinkatFlags::RemoveDir));
        if !matches!(removed, Ok(Ok(()))) {
            break;
        }
        emptied = above;
    }
    Ok(())
}

/// Opens a folder below another one, each name from the open folder that it is in, so that it makes
/// no difference who puts a link in place of one meanwhile.
fn beneath(root: &FilePath, below: &FilePath) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut folder = OwnedFd::from(OpenOptions::new().read(true).custom_flags(flags.bits()).open(root)?);
    for name in below {
        let opened = openat(&folder, name, flags | OFlag::O_NOFOLLOW, Mode::empty());
        folder = opened.map_err(|error| match error {
            Errno::ENOTDIR | Errno::ELOOP => io::Error::other(format!(
                "{} on the way to it is a link or a file, and berth removes nothing behind links: remove that first",
                name.display()
            )),
            error => error.into(),
        })?;
    }
    Ok(folder)
}

/// The tag that object_store gives a file that it writes or lists. Conditional writes compare the
/// two.
fn tag(found: &Metadata) -> String {
    let modified = found.modified().ok().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = modified.unwrap_or_default().as_micros();
    format!("\"{:x}-{modified:x}-{:x}\"", found.ino(), found.len())
}

fn failed(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic { store: "folder", source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use futures::TryStreamExt as _;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;
    use object_store::{GetRange, ObjectStoreExt as _};
    use tokio::time::timeout;

    use super::*;

    fn store(folder: &FilePath) -> RegularFiles {
        RegularFiles::new(Arc::new(LocalFileSystem::new_with_prefix(folder).unwrap()))
    }

    #[tokio::test]
    async fn nobody_waits_for_a_fifo_in_place_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("velero-backup.json");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let (store, path) = (store(folder.path()), Path::from("velero-backup.json"));
        let read = timeout(Duration::from_secs(60), store.get(&path)).await;
        // Whoever waits for it ends now, so that the test can fail.
        let _other_end = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let error = read.unwrap().unwrap_err().to_string();
        assert!(error.contains("it is a FIFO") && error.contains(&fifo.display().to_string()), "{error}");
    }

    #[tokio::test]
    async fn a_device_is_refused_and_a_folder_is_no_object() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/dev/null", folder.path().join("device")).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let store = store(folder.path());
        let error = store.head(&Path::from("device")).await.unwrap_err().to_string();
        assert!(error.contains("it is a device"), "{error}");
        for path in ["folder", "none"] {
            let error = store.get(&Path::from(path)).await.unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{path}: {error}");
        }
    }

    /// A list follows links, and whoever may write to one folder could have the files of another
    /// one removed with a backup.
    #[tokio::test]
    async fn what_a_link_leads_to_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        let theirs = at("other/backups/c/file");
        for file in [&at("bucket/backups/b/more/file"), &at("bucket/backups/b/file"), &theirs] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "content").unwrap();
        }
        symlink(theirs.parent().unwrap(), at("bucket/backups/b/link")).unwrap();
        symlink(&theirs, at("bucket/backups/b/linked")).unwrap();
        let store = store(&at("bucket"));
        let linked = Path::from("backups/b/link/file");
        let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        assert!(listed.iter().any(|one| one.location == linked), "{listed:?}");
        let error = store.delete(&linked).await.unwrap_err().to_string();
        assert!(error.contains("link on the way to it is a link"), "{error}");
        for own in ["backups/b/linked", "backups/b/more/file"] {
            store.delete(&Path::from(own)).await.unwrap();
        }
        assert!(theirs.exists(), "of a link in place of a file, the link goes");
        assert!(!at("bucket/backups/b/more").exists() && at("bucket/backups/b/file").exists());
        fs::remove_file(at("bucket/backups/b/link")).unwrap();
        store.delete(&Path::from("backups/b/file")).await.unwrap();
        assert!(
            !at("bucket/backups").exists() && at("bucket").exists(),
            "empty folders go, but for the store"
        );
        let gone = store.delete(&Path::from("backups/b/file")).await.unwrap_err();
        assert!(matches!(gone, Error::NotFound { .. }), "{gone}");
    }

    /// Claims and checkpoints are replaced on the tag that was read.
    #[tokio::test]
    async fn a_file_is_read_as_object_store_reads_it_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let written = store(folder.path()).put(&Path::from("file"), "content".into()).await.unwrap();
        symlink(folder.path().join("file"), folder.path().join("link")).unwrap();
        let plain = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let store = store(folder.path());
        for name in ["file", "link"] {
            let path = Path::from(name);
            let found = store.get(&path).await.unwrap();
            assert_eq!(found.meta, plain.head(&path).await.unwrap(), "{name}");
            assert_eq!(found.meta.e_tag, written.e_tag, "{name}");
            assert_eq!(found.bytes().await.unwrap(), "content");
            let part = GetOptions { range: Some(GetRange::Bounded(3..100)), ..GetOptions::default() };
            assert_eq!(store.get_opts(&path, part).await.unwrap().bytes().await.unwrap(), "tent");
            let other = GetOptions { if_match: Some("\"0-0-0\"".into()), ..GetOptions::default() };
            let refused = store.get_opts(&path, other).await.unwrap_err();
            assert!(matches!(refused, Error::Precondition { .. }), "{refused}");
        }
        let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        assert!(listed.iter().any(|one| one.e_tag == written.e_tag), "{listed:?}");
    }
}
