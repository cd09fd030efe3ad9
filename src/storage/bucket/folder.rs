//! Buckets that are folders. Every file in one is an object; symbolic links are not followed.

use std::cmp::Ordering;
use std::fmt;
use std::fs::{self, FileType};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};

use berth_garden_api::StoreConfig;
use berth_garden_core::fault::StoreFault;
use bytes::Bytes;
use serde_json::Value;

use super::{Created, Marker, Removal, Result, Roots, StoreError, Version, VersionPage};
use crate::storage::regular;

/// More is read of no object.
const LARGEST: u64 = 64 * 1024;

#[derive(Clone)]
pub struct FolderBucket {
    path: Arc<Path>,
    is_lock_wanted: bool,
}

impl FolderBucket {
    pub fn open(name: &str, config: &StoreConfig, roots: &Roots) -> Result<Self> {
        let wrong = |what: String| Err(StoreError::new(StoreFault::Configuration, what));
        let Some(root) = config.path.as_deref().filter(|path| path.starts_with('/')) else {
            return wrong(
                "spec.providerConfig.path: required, the absolute path of the folder that holds the buckets"
                    .into(),
            );
        };
        if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
            return wrong(format!("metadata.name: {name:?} is not the name of a folder"));
        }
        match roots.admit(&Path::new(root).join(name)) {
            Ok(path) => Ok(Self { path: path.into(), is_lock_wanted: config.object_lock.is_some() }),
            Err(why) => wrong(format!("spec.providerConfig.path: {why}")),
        }
    }

    pub async fn create(&self) -> Result<Created> {
        let made = self.blocking(|path| match fs::create_dir(path) {
            Ok(()) => Ok(Created::New),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(Created::Already),
            Err(error) => Err(error),
        });
        made.await.map_err(|error| match error.fault {
            // Because a volume that is not mounted must not be taken for an empty one.
            StoreFault::NoSuchBucket => StoreError::new(
                StoreFault::Configuration,
                format!("spec.providerConfig.path: the folder that is to hold {self} is not there"),
            ),
            _ => error,
        })
    }

    pub fn warnings(&self) -> Vec<String> {
        let warning = "a folder knows no object lock: nothing is kept from being removed";
        self.is_lock_wanted.then(|| warning.to_owned()).into_iter().collect()
    }

    pub async fn delete(&self) -> Result<()> {
        self.blocking(|path| fs::remove_dir(path)).await
    }

    pub async fn page(&self, prefix: &str, after: Option<&Marker>, most: usize) -> Result<VersionPage> {
        let (prefix, after) = (prefix.to_owned(), after.map(|marker| marker.key.clone()));
        self.blocking(move |path| {
            // Fails for a missing bucket, because a missing directory inside it is an empty page.
            fs::metadata(path)?;
            // One more than the page, to know whether a next page follows.
            let mut walk = FolderWalk { root: path, after, most: most.saturating_add(1), found: Vec::new() };
            let base = prefix.trim_end_matches('/').to_owned();
            walk.descend(&base)?;
            let mut versions = walk.found;
            let next = (versions.len() > most).then(|| {
                versions.truncate(most);
                versions.last().map(|last| Marker { key: last.key.clone(), version: None })
            });
            Ok(VersionPage { versions, next: next.flatten() })
        })
        .await
    }

    pub async fn remove(&self, versions: Vec<Version>) -> Result<Removal> {
        let whole = self.to_string();
        self.blocking(move |path| {
            let mut removal = Removal::default();
            for version in versions {
                match fs::remove_file(path.join(&version.key)) {
                    Ok(()) => removal.removed.push(version),
                    Err(error) if error.kind() == ErrorKind::NotFound => removal.removed.push(version),
                    Err(error) => {
                        let failed =
                            || told(&error, format!("{whole}: failed to remove {}: {error}", version.key));
                        removal.failed.get_or_insert_with(failed);
                    }
                }
            }
            Ok(removal)
        })
        .await
    }

    pub async fn read_object(&self, key: &str) -> Result<Option<Bytes>> {
        let key = key.to_owned();
        self.blocking(move |path| {
            fs::metadata(path)?;
            let file = path.join(&key);
            match fs::symlink_metadata(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                // What is no file may never end, or is somewhere else.
                found => {
                    if !found?.is_file() {
                        return Err(io::Error::other(format!("{key} is no file")));
                    }
                }
            }
            let mut bytes = Vec::new();
            regular::open(&file)?.take(LARGEST).read_to_end(&mut bytes)?;
            Ok(Some(bytes.into()))
        })
        .await
    }

    /// Written beside and then given its name, which fails where something has it: so it is whole
    /// or not there.
    pub async fn create_object(&self, key: &str, object: &Value) -> Result<()> {
        let (key, text) = (key.to_owned(), object.to_string());
        self.blocking(move |path| {
            fs::metadata(path)?;
            let mut folder = path.to_path_buf();
            let folders = key.rsplit_once('/').map_or("", |(folders, _)| folders);
            for segment in folders.split('/').filter(|segment| !segment.is_empty()) {
                folder.push(segment);
                match fs::create_dir(&folder) {
                    // Not a link to one.
                    Err(error)
                        if error.kind() == ErrorKind::AlreadyExists
                            && fs::symlink_metadata(&folder)?.is_dir() => {}
                    made => made?,
                }
            }
            let draft =
                path.join(format!("{key}.{}-{}", jiff::Timestamp::now().as_nanosecond(), next_draft()));
            let mut file = fs::File::create_new(&draft)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            let linked = place(&draft, &path.join(&key));
            match fs::remove_file(&draft) {
                // It has its name.
                Err(error) if error.kind() == ErrorKind::NotFound => linked,
                removed => linked.and(removed),
            }
        })
        .await
    }

    /// Removes empty folders below `prefix`; the bucket itself stays.
    pub async fn remove_empty(&self, prefix: &str) -> Result<()> {
        let base = prefix.trim_end_matches('/').to_owned();
        self.blocking(move |path| {
            let start = path.join(&base);
            prune(&start, base.is_empty())
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let path = Arc::clone(&self.path);
        let done = tokio::task::spawn_blocking(move || work(&path)).await;
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(told(&error, format!("{self}: {error}"))),
            Err(error) => Err(StoreError::new(StoreFault::Unavailable, format!("{self}: {error}"))),
        }
    }
}

impl fmt::Display for FolderBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "folder {}", self.path.display())
    }
}

fn told(error: &io::Error, message: String) -> StoreError {
    let fault = match error.kind() {
        // The bucket is missing, because missing files inside it are no errors here.
        ErrorKind::NotFound => StoreFault::NoSuchBucket,
        ErrorKind::DirectoryNotEmpty => StoreFault::NotEmpty,
        ErrorKind::AlreadyExists => StoreFault::NameTaken,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreFault::Unauthorized,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreFault::QuotaExceeded,
        _ => StoreFault::Unavailable,
    };
    StoreError::new(fault, message)
}

/// Walks a folder in the order of path segments, beginning after one path. Folders before that path
/// are not read.
struct FolderWalk<'a> {
    root: &'a Path,
    after: Option<String>,
    most: usize,
    found: Vec<Version>,
}

impl FolderWalk<'_> {
    fn descend(&mut self, folder: &str) -> io::Result<()> {
        let mut entries: Vec<(String, FileType)> = Vec::new();
        let Some(listed) = list(&self.root.join(folder))? else { return Ok(()) };
        for entry in listed {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                let path = entry.path();
                return Err(io::Error::other(format!("the name of {} is no UTF-8", path.display())));
            };
            entries.push((name, entry.file_type()?));
        }
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in entries {
            if self.found.len() >= self.most {
                return Ok(());
            }
            let key = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let place = self.place(&key);
            if kind.is_dir() {
                if place != Ordering::Less {
                    self.descend(&key)?;
                }
            } else if place == Ordering::Greater {
                match fs::symlink_metadata(self.root.join(&key)) {
                    Ok(found) => self.found.push(Version { key, bytes: found.len(), ..Version::default() }),
                    // The file was removed after it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Is a key before the path to begin after (less), a parent of it (equal), or behind it
    /// (greater)?
    fn place(&self, key: &str) -> Ordering {
        let Some(after) = &self.after else { return Ordering::Greater };
        let mut there = after.split('/');
        for segment in key.split('/') {
            match there.next().map(|other| segment.cmp(other)) {
                None => return Ordering::Greater,
                Some(Ordering::Equal) => {}
                Some(other) => return other,
            }
        }
        Ordering::Equal
    }
}

/// Gives a draft its name, where nothing has it. Some file systems know no second names; there it
/// is looked, and then renamed.
fn place(draft: &Path, name: &Path) -> io::Result<()> {
    match fs::hard_link(draft, name) {
        // Each says it its way: "not supported", "not permitted", "too many links".
        Err(error) if error.kind() != ErrorKind::AlreadyExists => rename(draft, name),
        linked => linked,
    }
}

fn rename(draft: &Path, name: &Path) -> io::Result<()> {
    match fs::symlink_metadata(name) {
        Ok(_) => Err(ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() == ErrorKind::NotFound => fs::rename(draft, name),
        Err(error) => Err(error),
    }
}

/// Of two drafts of one moment, each has a number of its own.
fn next_draft() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, AtomicOrdering::Relaxed)
}

/// Lists a folder. `None`: it is no folder, or a symbolic link.
fn list(folder: &Path) -> io::Result<Option<fs::ReadDir>> {
    let found = fs::symlink_metadata(folder)
        .and_then(|found| found.is_dir().then(|| fs::read_dir(folder)).transpose());
    match found {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        found => found,
    }
}

/// Removes empty folders, innermost first. `keep`: the given folder stays.
fn prune(folder: &Path, keep: bool) -> io::Result<()> {
    let Some(listed) = list(folder)? else { return Ok(()) };
    for entry in listed {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            prune(&entry.path(), false)?;
        }
    }
    if keep {
        return Ok(());
    }
    match fs::remove_dir(folder) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
