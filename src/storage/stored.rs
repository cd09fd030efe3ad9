//! The backups of a location, as somebody sees them who did not write them. Everything in a store
//! is foreign data, so each read has a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use berth_core::deletion::DELETION;
use berth_core::sync::{FolderListing, MOST_NAMES, Tag};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{DynObjectStore, Error, ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::time::timeout;

use super::claim::{ClaimError, FILE as CLAIM};
use super::layout::{BackupArtifact, BackupLayout, METADATA, place};

/// In bytes. A Backup has a few thousand.
const LARGEST_METADATA: u64 = 512 << 10;
/// In bytes, as stored. The same of all PodVolumeBackups of a backup.
const LARGEST_ARTIFACT: u64 = 8 << 20;
/// In bytes. A gzip of `null` or `[]` is smaller, and one of an object is larger.
pub(super) const EMPTY: u64 = 64;
/// Time-out of one list with all its pages and, where somebody takes what is listed meanwhile, of
/// the next file in it.
const LIST: Duration = Duration::from_secs(300);
/// Time-out of the list of all repositories, for which those of other locations wait.
const REPOSITORIES: Duration = Duration::from_secs(60);
/// Time-out of one file, because a disk may hang.
const READ: Duration = Duration::from_secs(60);
/// Files that a backup has at most on average. A list of more is given up.
const FILES_EACH: usize = 30;
/// Files of one folder that are listed. A backup has a dozen.
const FILES_OF_ONE: usize = 1000;

/// The folder `backups` of a location.
#[derive(Clone)]
pub struct StoredBackups {
    store: Arc<DynObjectStore>,
    prefix: Option<String>,
}

/// What was found in place of `velero-backup.json`.
#[derive(Debug)]
pub enum MetadataFile {
    Absent,
    TooLarge(Tag),
    Found { json: Vec<u8>, tag: Tag },
}

/// The files of one folder, so that what is known by them need not be asked for.
#[derive(Debug, Default)]
pub struct FolderFiles {
    /// Sizes by the path below the folder.
    sizes: BTreeMap<String, u64>,
}

impl FolderFiles {
    /// Has the folder the file that makes it a backup?
    pub fn has_metadata(&self) -> bool {
        self.has(METADATA)
    }

    fn has(&self, file: &str) -> bool {
        self.sizes.contains_key(file)
    }
}

/// The name of a folder, and its files; `None`: they were not listed, or are more than a backup
/// has.
pub type ListedFolder = (String, Option<FolderFiles>);

/// A list of all files, of which each folder is taken as soon as it is whole: every store lists the
/// files of one folder one after another.
struct FolderByFolder {
    /// `None`: the list has ended.
    files: Option<BoxStream<'static, object_store::Result<ObjectMeta>>>,
    /// What the names of all files begin with.
    base: Path,
    /// Wanted folders that were not taken yet, and those that were.
    left: BTreeSet<String>,
    taken: BTreeSet<String>,
    /// The wanted folder of which files are being listed.
    current: Option<ListedFolder>,
    /// How many files there were so far, and how many there may be.
    count: usize,
    most: usize,
    /// Does the list have every file?
    is_whole: bool,
}

impl FolderByFolder {
    async fn next(&mut self) -> Option<object_store::Result<ListedFolder>> {
        while let Some(files) = &mut self.files {
            let file = match timeout(LIST, files.next()).await {
                Ok(Some(Ok(file))) => file,
                Ok(Some(Err(error))) => return Some(Err(self.failed(error))),
                Err(_) => return Some(Err(self.failed(late("the list of all files", LIST)))),
                Ok(None) => {
                    self.files = None;
                    break;
                }
            };
            if let Some(whole) = self.note(&file) {
                return Some(Ok(whole));
            }
        }
        if let Some((folder, files)) = self.current.take() {
            return Some(Ok(self.take(folder, files)));
        }
        let folder = self.left.pop_first()?;
        Some(Ok((folder, self.is_whole.then(FolderFiles::default))))
    }

    /// Takes in a file. Gives the wanted folder before it, which is whole.
    fn note(&mut self, file: &ObjectMeta) -> Option<ListedFolder> {
        self.count += 1;
        let (path, base): (&str, &str) = (file.location.as_ref(), self.base.as_ref());
        let path = path.strip_prefix(base).unwrap_or(path).trim_start_matches('/');
        // What lies beside the folders is of no backup.
        let (folder, name) = path.split_once('/')?;
        // More than backups have, or files of a folder that seemed to be whole.
        if self.count > self.most || self.taken.contains(folder) {
            (self.files, self.current, self.is_whole) = (None, None, false);
            return None;
        }
        if let Some((current, files)) = &mut self.current
            && *current == folder
        {
            // Whoever may write to the store may have any number of them in one folder.
            if files.as_ref().is_some_and(|known| known.sizes.len() >= FILES_OF_ONE) {
                *files = None;
            } else if let Some(known) = files {
                known.sizes.insert(name.to_owned(), file.size);
            }
            return None;
        }
        let next = self.left.contains(folder).then(|| {
            let sizes = BTreeMap::from([(name.to_owned(), file.size)]);
            (folder.to_owned(), Some(FolderFiles { sizes }))
        });
        let (before, files) = std::mem::replace(&mut self.current, next)?;
        Some(self.take(before, files))
    }

    fn take(&mut self, folder: String, files: Option<FolderFiles>) -> ListedFolder {
        self.left.remove(&folder);
        self.taken.insert(folder.clone());
        (folder, files)
    }

    fn failed(&mut self, error: Error) -> Error {
        (self.files, self.current) = (None, None);
        self.left.clear();
        error
    }
}

impl BackupLayout {
    /// Those of these namespaces that have a repository in the location, by the names of their
    /// folders: one request for each thousand that the location has. The list is in memory as a
    /// whole.
    ///
    /// # Errors
    /// When the store fails, or does not answer in time.
    pub async fn with_repository(
        &self,
        mut namespaces: BTreeSet<String>,
    ) -> object_store::Result<BTreeSet<String>> {
        let folder = self.repositories_folder();
        let listed = timeout(REPOSITORIES, self.store().list_with_delimiter(Some(&folder))).await;
        let listed = listed.map_err(|_| late("the list of the repositories", REPOSITORIES))??;
        let there = listed.common_prefixes.iter().filter_map(|path| path.filename());
        Ok(there.filter_map(|name| namespaces.take(name)).collect())
    }
}

impl StoredBackups {
    /// `prefix`: `spec.objectStorage.prefix`.
    pub fn new(store: Arc<DynObjectStore>, prefix: Option<&str>) -> Self {
        Self { store, prefix: prefix.map(str::to_owned) }
    }

    /// Whether a JSON text has about this many values at most, told without parsing it: each of
    /// these bytes begins two of them at most. In memory, a value can be a hundred times as large
    /// as its text.
    pub fn is_light(json: &[u8], most: usize) -> bool {
        let begins = json.iter().filter(|byte| matches!(byte, b'{' | b'[' | b',' | b':'));
        begins.take(most.saturating_add(1)).count() <= most
    }

    pub fn layout(&self, backup: &str) -> BackupLayout {
        BackupLayout::new(Arc::clone(&self.store), self.prefix.as_deref(), backup)
    }

    fn folder(&self) -> Path {
        let parts = self.prefix.iter().flat_map(|prefix| prefix.split('/')).chain(["backups"]);
        place(&parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"))
    }

    /// The names of all folders: one request for each thousand.
    ///
    /// # Errors
    /// When the store fails, or does not answer in time.
    pub async fn names(&self) -> object_store::Result<FolderListing> {
        let listed = timeout(LIST, self.store.list_with_delimiter(Some(&self.folder()))).await;
        let listed = listed.map_err(|_| late("the list of the backups", LIST))??;
        let names: BTreeSet<String> =
            listed.common_prefixes.iter().filter_map(|path| path.filename()).map(str::to_owned).collect();
        let is_whole = names.len() <= MOST_NAMES;
        Ok(FolderListing { names: names.into_iter().take(MOST_NAMES).collect(), is_whole })
    }

    /// The wanted folders, each with its files as soon as a list of all files has shown them;
    /// without them where these are too many to be those of so many backups. An error ends the
    /// list.
    pub fn files(
        &self,
        wanted: BTreeSet<String>,
        backups: usize,
    ) -> BoxStream<'static, object_store::Result<ListedFolder>> {
        let base = self.folder();
        let listing = FolderByFolder {
            files: Some(self.store.list(Some(&base))),
            base,
            left: wanted,
            taken: BTreeSet::new(),
            current: None,
            count: 0,
            most: backups.saturating_add(30).saturating_mul(FILES_EACH),
            is_whole: true,
        };
        futures::stream::unfold(listing, |mut listing| async move {
            let next = listing.next().await?;
            Some((next, listing))
        })
        .boxed()
    }

    /// # Errors
    /// When the store fails.
    pub async fn metadata(&self, backup: &str) -> object_store::Result<MetadataFile> {
        in_time("velero-backup.json", self.read_metadata(backup)).await
    }

    async fn read_metadata(&self, backup: &str) -> object_store::Result<MetadataFile> {
        let found = match self.store.get(&self.layout(backup).metadata()).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(MetadataFile::Absent),
            Err(error) => return Err(error),
        };
        let tag = tag(&found.meta);
        if found.meta.size > LARGEST_METADATA {
            return Ok(MetadataFile::TooLarge(tag));
        }
        Ok(MetadataFile::Found { json: found.bytes().await?.to_vec(), tag })
    }

    /// Is the archive there, without which a backup cannot be restored? Where `files` shows it, the
    /// store is not asked.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn has_archive(&self, backup: &str, files: Option<&FolderFiles>) -> object_store::Result<bool> {
        let layout = self.layout(backup);
        if let Some(files) = files {
            return Ok(files.has(&layout.archive_name()));
        }
        match in_time("the size of an archive", self.store.head(&layout.archive())).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// When a file of the folder, its claim among them, was written last. `None`: it has none, or
    /// more than any backup.
    ///
    /// # Errors
    /// As [`Self::names`].
    pub async fn last_written(&self, backup: &str) -> object_store::Result<Option<Timestamp>> {
        let folder = self.layout(backup).folder();
        let listing = async {
            let (mut last, mut files): (Option<Timestamp>, usize) = (None, 0);
            let mut stream = self.store.list(Some(&folder));
            while let Some(file) = stream.next().await {
                last = last.max(Timestamp::from_second(file?.last_modified.timestamp()).ok());
                files += 1;
                if files > FILES_OF_ONE {
                    return Ok(None);
                }
            }
            Ok(last)
        };
        timeout(LIST, listing).await.unwrap_or_else(|_| Err(late("the list of a folder", LIST)))
    }

    /// The claim of a deletion that has begun, if the folder has one. A deletion claims the folder
    /// before it removes anything, so a backup whose metadata was read before this found none was
    /// whole then.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn deletion(
        &self,
        backup: &str,
        files: Option<&FolderFiles>,
    ) -> object_store::Result<Option<Tag>> {
        if files.is_some_and(|files| !files.has(CLAIM)) {
            return Ok(None);
        }
        let layout = self.layout(backup);
        let Ok(claim) = timeout(READ, layout.read_claim()).await else {
            return Err(late("a claim", READ));
        };
        match claim {
            Ok(Some((claim, _))) if claim.run.starts_with(DELETION) => {
                Ok(Some(claim.run.chars().take(200).collect()))
            }
            // A claim that nobody can read is no deletion's.
            Ok(_) | Err(ClaimError::Unreadable(_)) => Ok(None),
            Err(ClaimError::Store(error)) => Err(error),
            Err(error) => Err(Error::Generic { store: "sync", source: error.into() }),
        }
    }

    /// Is the file there that makes a folder a backup?
    ///
    /// # Errors
    /// When the store fails.
    pub async fn is_there(&self, backup: &str) -> object_store::Result<bool> {
        let path = self.layout(backup).metadata();
        match in_time("the size of velero-backup.json", self.store.head(&path)).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The file of the PodVolumeBackups, in gzip; `None`: there is none, or, as `files` shows, none
    /// with anything in it. One that is too large is as if it were cut. One that `files` lacks is
    /// asked for all the same: every backup has one, so the list may be older than the file.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn pod_volume_backups(
        &self,
        backup: &str,
        files: Option<&FolderFiles>,
    ) -> object_store::Result<Option<Vec<u8>>> {
        let layout = self.layout(backup);
        let name = layout.artifact_name(BackupArtifact::PodVolumeBackups);
        let is_known_empty =
            files.is_some_and(|files| files.sizes.get(&name).is_some_and(|size| *size <= EMPTY));
        if is_known_empty {
            return Ok(None);
        }
        let path = layout.folder().join(name);
        let read = async {
            match self.store.get(&path).await {
                // Not to be read, as one that is cut.
                Ok(found) if found.meta.size > LARGEST_ARTIFACT => Ok(Some(Vec::new())),
                Ok(found) => Ok(Some(found.bytes().await?.to_vec())),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        in_time("the file of the PodVolumeBackups", read).await
    }
}

fn tag(meta: &ObjectMeta) -> Tag {
    let tag = meta.e_tag.clone().unwrap_or_else(|| format!("{} {}", meta.last_modified, meta.size));
    tag.chars().take(200).collect()
}

/// Reads one file.
async fn in_time<T>(
    what: &str,
    read: impl Future<Output = object_store::Result<T>>,
) -> object_store::Result<T> {
    timeout(READ, read).await.unwrap_or_else(|_| Err(late(what, READ)))
}

fn late(what: &str, within: Duration) -> Error {
    let source = format!("the store did not give {what} within {} s", within.as_secs()).into();
    Error::Generic { store: "sync", source }
}

#[cfg(test)]
mod tests {
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;

    use super::*;

    async fn store(files: &[(&str, usize)]) -> StoredBackups {
        let store = Arc::new(InMemory::new());
        for (path, size) in files {
            store.put(&Path::from(*path), vec![b'x'; *size].into()).await.unwrap();
        }
        StoredBackups::new(store, Some("/team/a/"))
    }

    async fn listed(stored: &StoredBackups, wanted: &[&str], backups: usize) -> Vec<ListedFolder> {
        let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut listed: Vec<ListedFolder> =
            stored.files(wanted, backups).map(|folder| folder.unwrap()).collect().await;
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        listed
    }

    #[tokio::test]
    async fn folders_are_listed_and_files_beside_them_are_not() {
        let stored = store(&[
            ("team/a/backups/one/velero-backup.json", 1),
            ("team/a/backups/two/deep/er/file", 1),
            ("team/a/backups/a-file", 1),
            ("team/b/backups/other/velero-backup.json", 1),
        ])
        .await;
        let listing = stored.names().await.unwrap();
        assert!(listing.is_whole);
        assert_eq!(listing.names.into_iter().collect::<Vec<_>>(), ["one", "two"]);
        let found = listed(&stored, &["one", "three", "two"], 2).await;
        let found: Vec<(&str, bool)> = found
            .iter()
            .map(|(name, files)| (name.as_str(), files.as_ref().unwrap().has_metadata()))
            .collect();
        assert_eq!(found, [("one", true), ("three", false), ("two", false)], "one of them has no file");
    }

    /// Their names sort otherwise than the keys of their files.
    #[tokio::test]
    async fn a_folder_is_whole_when_its_files_are_taken_in_whatever_order_folders_are_listed() {
        let root = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(root.path()).unwrap();
        let stores: [Arc<DynObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(local)];
        for store in stores {
            let names = ["a", "a-b", "a.c", "b", "known"];
            for name in names {
                for file in ["velero-backup.json", "deep/er", &format!("{name}.tar.gz")] {
                    let path = Path::from(format!("backups/{name}/{file}"));
                    store.put(&path, "x".into()).await.unwrap();
                }
            }
            let stored = StoredBackups::new(store, None);
            let found = listed(&stored, &names[..4], 5).await;
            let counts =
                found.iter().map(|(name, files)| (name.as_str(), files.as_ref().unwrap().sizes.len()));
            assert_eq!(
                counts.collect::<Vec<_>>(),
                names[..4].iter().map(|name| (*name, 3)).collect::<Vec<_>>()
            );
        }
    }

    /// A list of these files, with an error behind them if one is given.
    fn listing(files: &[&str], error: Option<Error>, wanted: &[&str]) -> FolderByFolder {
        let at = |path: &&str| {
            let last_modified = std::time::SystemTime::UNIX_EPOCH.into();
            Ok(ObjectMeta { location: Path::from(*path), last_modified, size: 1, e_tag: None, version: None })
        };
        let files: Vec<_> = files.iter().map(at).chain(error.map(Err)).collect();
        FolderByFolder {
            files: Some(futures::stream::iter(files).boxed()),
            base: Path::from("b"),
            left: wanted.iter().map(|name| (*name).to_owned()).collect(),
            taken: BTreeSet::new(),
            current: None,
            count: 0,
            most: 10_000,
            is_whole: true,
        }
    }

    #[tokio::test]
    async fn a_folder_with_more_files_than_a_backup_has_takes_no_memory_for_them() {
        let many: Vec<String> = (0..2 * FILES_OF_ONE).map(|i| format!("b/one/{i}")).collect();
        let files: Vec<&str> = many.iter().map(String::as_str).chain(["b/two/x"]).collect();
        let mut listing = listing(&files, None, &["one", "two"]);
        let (name, files) = listing.next().await.unwrap().unwrap();
        assert!(name == "one" && files.is_none(), "the store is asked for the few that matter");
        let (name, files) = listing.next().await.unwrap().unwrap();
        assert_eq!((name.as_str(), files.unwrap().sizes.len()), ("two", 1), "others are known as before");
        assert!(listing.next().await.is_none());
    }

    #[tokio::test]
    async fn a_folder_of_which_files_come_again_is_the_last_that_is_believed() {
        let files = ["b/one/x", "b/two/x", "b/one/y", "b/three/x"];
        let mut listing = listing(&files, None, &["one", "three", "two"]);
        let mut found = Vec::new();
        while let Some(folder) = listing.next().await {
            let (name, files) = folder.unwrap();
            found.push((name, files.is_some()));
        }
        let found: Vec<(&str, bool)> =
            found.iter().map(|(name, is_listed)| (name.as_str(), *is_listed)).collect();
        assert_eq!(found, [("one", true), ("three", false), ("two", false)]);
    }

    #[tokio::test]
    async fn a_list_that_fails_ends_with_its_error() {
        let broken = Error::Generic { store: "test", source: "broken".into() };
        let mut listing = listing(&[], Some(broken), &["one"]);
        assert!(listing.next().await.unwrap().is_err());
        assert!(listing.next().await.is_none());
    }

    #[tokio::test]
    async fn what_is_too_large_is_not_read_and_what_is_known_to_be_empty_is_not_asked_for() {
        let large = usize::try_from(LARGEST_METADATA).unwrap() + 1;
        let stored = store(&[
            ("team/a/backups/one/velero-backup.json", large),
            ("team/a/backups/one/one-podvolumebackups.json.gz", 29),
            ("team/a/backups/two/two-podvolumebackups.json.gz", 300),
        ])
        .await;
        assert!(matches!(stored.metadata("one").await.unwrap(), MetadataFile::TooLarge(_)));
        assert!(matches!(stored.metadata("two").await.unwrap(), MetadataFile::Absent));
        assert!(stored.is_there("one").await.unwrap() && !stored.is_there("two").await.unwrap());
        let found = listed(&stored, &["one", "two"], 2).await;
        let (one, two) = (found[0].1.as_ref(), found[1].1.as_ref());
        // A list may be older than the file.
        let before = FolderFiles::default();
        for (name, files, is_some) in [
            ("one", one, false),
            ("one", None, true),
            ("two", two, true),
            ("two", Some(&before), true),
            ("three", Some(&before), false),
        ] {
            let found = stored.pod_volume_backups(name, files).await.unwrap();
            assert_eq!(found.is_some(), is_some, "{name}");
        }
    }

    /// As on a disk that hangs.
    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_never_read_to_its_end_is_given_up() {
        let began = tokio::time::Instant::now();
        let error = in_time("a file", std::future::pending::<object_store::Result<()>>()).await.unwrap_err();
        assert!(error.to_string().contains("within 60 s"), "{error}");
        assert_eq!(began.elapsed().as_secs(), READ.as_secs());
    }

    #[test]
    fn a_text_is_as_light_as_it_has_values() {
        for (text, values) in [("", 0), ("null", 0), ("[]", 1), (r#"[{"a": 1}, {"b": [2]}]"#, 7)] {
            assert!(StoredBackups::is_light(text.as_bytes(), values), "{text}");
            assert!(values == 0 || !StoredBackups::is_light(text.as_bytes(), values - 1), "{text}");
        }
        assert!(StoredBackups::is_light(b"[]", usize::MAX));
    }

    #[tokio::test]
    async fn a_folder_of_something_else_is_not_listed_to_its_end() {
        let files: Vec<String> = (0..1000).map(|i| format!("team/a/backups/x/{i}")).collect();
        let stored = store(&files.iter().map(|path| (path.as_str(), 1)).collect::<Vec<_>>()).await;
        let [(name, files)] = listed(&stored, &["x"], 1).await.try_into().unwrap();
        assert!(name == "x" && files.is_none());
    }
}
