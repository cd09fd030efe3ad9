//! The removal of a backup from the store: of the whole folder, also of files that no run of berth
//! writes. The file that makes the backup visible goes first, so that no reader takes a half for a
//! whole, and the claim last, because it proves whose the rest is.

use std::collections::BTreeMap;

use berth_core::claim::FolderClaim;
use berth_core::deletion::{RestoreTimes, StoredFolder, StoredMetadata};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, UpdateVersion};
use serde::Deserialize;

use super::claim::ClaimError;
use super::layout::BackupLayout;
use super::locked::told_lock;
use super::stored::EMPTY;

/// Files of one request to the store.
const PAGE: usize = 1000;
/// Most requests of one attempt. The next one continues.
const PAGES: usize = 100;
/// What a folder holds.
#[derive(Debug)]
pub struct Survey {
    pub stored: StoredFolder,
    /// Is the file there that makes a backup visible, whatever it says?
    pub is_published: bool,
    /// Version of the claim.
    pub version: Option<UpdateVersion>,
    /// Until when the store keeps the claim or the file that makes the backup visible, if it says
    /// so.
    pub locked_until: Option<Timestamp>,
    /// The files by their paths; `None`: the folder has more than one page of a list.
    files: Option<BTreeMap<Path, ObjectMeta>>,
}

impl Survey {
    /// The versions of these files; `None`: the survey does not tell all of them.
    pub fn versions(&self, paths: &[Path]) -> Option<Vec<Option<ObjectMeta>>> {
        let files = self.files.as_ref()?;
        Some(paths.iter().map(|path| files.get(path).cloned()).collect())
    }

    /// Can the folder have this file, a list in gzip, with anything in it?
    pub fn may_list(&self, path: &Path) -> bool {
        let Some(files) = &self.files else { return true };
        files.get(path).is_some_and(|file| file.size > EMPTY)
    }
}

/// Parts of the file that makes a backup visible.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireBackup {
    metadata: WireBackupMetadata,
    status: Times,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireBackupMetadata {
    uid: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Times {
    start_timestamp: Option<Timestamp>,
    completion_timestamp: Option<Timestamp>,
}

impl BackupLayout {
    /// Lists the folder, and reads whose it is. A claim that comes after the list is in the way of
    /// whoever claims the folder because it had none.
    ///
    /// # Errors
    /// When the store fails, or the claim cannot be read.
    pub async fn survey(&self) -> Result<Survey, ClaimError> {
        let folder = self.folder();
        let listed = self.store().list(Some(&folder)).take(PAGE);
        let listed: Vec<ObjectMeta> = listed.try_collect().await.map_err(ClaimError::Store)?;
        let is_whole = listed.len() < PAGE;
        let listed: BTreeMap<Path, ObjectMeta> =
            listed.into_iter().map(|file| (file.location.clone(), file)).collect();
        let known = [self.claim_path(), self.metadata()];
        let mut has_others = listed.keys().any(|path| !known.contains(path));
        let [has_claim, has_metadata] = known.map(|path| !is_whole || listed.contains_key(&path));
        let mut locked_until = None;
        let claim = if has_claim { self.read_claim_told().await? } else { None };
        let claim = claim.map(|(claim, version, told)| {
            locked_until = told_lock(&told);
            (claim, version)
        });
        let (claim, version) = claim.unzip();
        let metadata = match has_metadata {
            true => self.read_metadata_told().await.map_err(ClaimError::Store)?,
            false => None,
        };
        let metadata = metadata.map(|(json, told)| {
            locked_until = locked_until.max(told_lock(&told));
            json
        });
        let is_published = metadata.is_some();
        let metadata = match metadata {
            None => None,
            Some(bytes) => {
                let read = serde_json::from_slice::<WireBackup>(&bytes).ok();
                let read = read.filter(|read| !read.metadata.uid.is_empty());
                // A file that is no Backup says nothing of whose it is.
                has_others |= read.is_none();
                read.map(|WireBackup { metadata, status }| StoredMetadata {
                    uid: metadata.uid,
                    started: status.start_timestamp,
                    completed: status.completion_timestamp,
                })
            }
        };
        let (files, stored) = (is_whole.then_some(listed), StoredFolder { claim, metadata, has_others });
        Ok(Survey { stored, is_published, version, locked_until, files })
    }

    /// Has the location no file of any backup? One request.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn has_no_backup(&self) -> object_store::Result<bool> {
        let all = self.backups();
        let first = self.store().list(Some(&all)).next().await.transpose()?;
        Ok(first.is_none())
    }

    /// Removes the folder that this claim is of. `false`: there is more than one attempt removes.
    /// `survey`: one of a moment ago, whose files go without another list. The claim is read before
    /// each request, because no store removes conditionally.
    ///
    /// # Errors
    /// When another has claimed the folder by now, or the error of the first file that the store
    /// did not remove.
    pub async fn remove_folder(
        &self,
        claim: &FolderClaim,
        survey: Option<&Survey>,
    ) -> Result<bool, ClaimError> {
        let known = [self.claim_path(), self.metadata()];
        let listed = survey.and_then(|survey| survey.files.as_ref());
        let listed = listed.into_iter().flat_map(BTreeMap::keys).filter(|path| !known.contains(path));
        if !self.empty_of(claim, listed.cloned().collect()).await? {
            return Ok(false);
        }
        self.delete(&self.claim_path()).await.map_err(ClaimError::Store)?;
        Ok(true)
    }

    /// Removes everything but the claim, the file that makes the backup visible first. `false`:
    /// there is more than one attempt removes.
    ///
    /// # Errors
    /// As [`BackupLayout::remove_folder`].
    pub async fn empty(&self, claim: &FolderClaim) -> Result<bool, ClaimError> {
        self.empty_of(claim, Vec::new()).await
    }

    /// `listed`: files besides those two.
    async fn empty_of(&self, claim: &FolderClaim, listed: Vec<Path>) -> Result<bool, ClaimError> {
        self.confirm(claim).await?;
        self.delete(&self.metadata()).await.map_err(ClaimError::Store)?;
        if !listed.is_empty() {
            self.confirm(claim).await?;
            self.delete_all(listed).await.map_err(ClaimError::Store)?;
        }
        let claim_path = self.claim_path();
        for _ in 0..PAGES {
            let is_other = |file: &ObjectMeta| file.location != claim_path;
            let page = self.page(&self.folder(), is_other).await.map_err(ClaimError::Store)?;
            self.confirm(claim).await?;
            if page.is_empty() {
                return Ok(true);
            }
            self.delete_all(page).await.map_err(ClaimError::Store)?;
        }
        Ok(false)
    }

    /// Removes the files of a Restore, by the time at which each was written. How many others its
    /// folder has; `None`: there is more than one attempt removes.
    ///
    /// # Errors
    /// The error of the first file that the store did not remove.
    pub async fn remove_restore(
        &self,
        restore: &str,
        times: RestoreTimes,
    ) -> object_store::Result<Option<usize>> {
        let folder = self.restore_folder(restore);
        let is_its = |file: &ObjectMeta| {
            Timestamp::from_second(file.last_modified.timestamp()).is_ok_and(|written| times.has(written))
        };
        for _ in 0..PAGES {
            let page = self.page(&folder, is_its).await?;
            if page.is_empty() {
                return Ok(Some(self.page(&folder, |_| true).await?.len()));
            }
            self.delete_all(page).await?;
        }
        Ok(None)
    }

    /// Paths of a folder that are wanted.
    async fn page(
        &self,
        folder: &Path,
        is_wanted: impl Fn(&ObjectMeta) -> bool,
    ) -> object_store::Result<Vec<Path>> {
        let files = self.store().list(Some(folder)).take(PAGE * PAGES);
        let wanted = files.try_filter(|file| std::future::ready(is_wanted(file)));
        wanted.map_ok(|file| file.location).take(PAGE).try_collect().await
    }

    /// Removes files, in one request where the store has one for many. All are tried.
    async fn delete_all(&self, paths: Vec<Path>) -> object_store::Result<()> {
        let paths = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut removed = self.store().delete_stream(paths);
        let mut failed = None;
        while let Some(one) = removed.next().await {
            match one {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;
    use object_store::{DynObjectStore, ObjectStoreExt as _};

    use super::*;

    fn claim(run: &str) -> FolderClaim {
        FolderClaim { cluster: "c".into(), backup: "b".into(), run: run.into(), ..FolderClaim::default() }
    }

    async fn put(layout: &BackupLayout, key: &str, text: &str) {
        layout.store().put(&Path::from(key), text.to_owned().into()).await.unwrap();
    }

    async fn keys(layout: &BackupLayout) -> Vec<String> {
        let listed = layout.store().list(None).map_ok(|object| object.location.to_string());
        let mut keys: Vec<String> = listed.try_collect().await.unwrap();
        keys.sort();
        keys
    }

    #[tokio::test]
    async fn a_folder_goes_with_all_that_is_in_it_and_its_neighbours_stay() {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap().with_automatic_cleanup(true);
        let stores: [Arc<DynObjectStore>; 2] = [Arc::new(InMemory::new()), Arc::new(local)];
        for store in stores {
            let layout = BackupLayout::new(store, Some("p"), "one");
            layout.claim(&claim("deletion-1"), None).await.unwrap();
            put(&layout, "p/backups/one/velero-backup.json", "{}").await;
            for i in 0..1500 {
                put(&layout, &format!("p/backups/one/deep/file-{i}"), "x").await;
            }
            for key in ["p/backups/one-more/velero-backup.json", "p/restores/r2/a", "p/restores/r/a"] {
                put(&layout, key, "{}").await;
            }
            let survey = layout.survey().await.unwrap();
            assert!(layout.remove_folder(&claim("another"), Some(&survey)).await.is_err());
            assert!(layout.remove_folder(&claim("deletion-1"), Some(&survey)).await.unwrap());
            // Another cluster's of the same name.
            let earlier =
                RestoreTimes { started: Some(Timestamp::UNIX_EPOCH), ended: Some(Timestamp::UNIX_EPOCH) };
            assert_eq!(layout.remove_restore("r", earlier).await.unwrap(), Some(1));
            let now = RestoreTimes { started: Some(Timestamp::now()), ended: Some(Timestamp::now()) };
            assert_eq!(layout.remove_restore("r", now).await.unwrap(), Some(0));
            assert_eq!(keys(&layout).await, ["p/backups/one-more/velero-backup.json", "p/restores/r2/a"]);
            let empty = layout.survey().await.unwrap();
            assert_eq!(empty.stored, StoredFolder::default());
            assert!(!layout.has_no_backup().await.unwrap(), "its neighbour is there");
            layout.store().delete(&Path::from("p/backups/one-more/velero-backup.json")).await.unwrap();
            assert!(layout.has_no_backup().await.unwrap(), "other folders are no backups");
        }
        assert!(!folder.path().join("p/backups/one").exists(), "no empty folder is left");
    }

    /// Whatever cuts a removal short leaves nothing that looks like a whole backup.
    #[tokio::test]
    async fn nothing_goes_before_the_file_that_makes_the_backup_visible() {
        let folder = tempfile::tempdir().unwrap();
        let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let (layout, ours) = (BackupLayout::new(Arc::new(local), None, "one"), claim("deletion-1"));
        layout.claim(&ours, None).await.unwrap();
        put(&layout, "backups/one/one.tar.gz", "archive").await;
        // A folder in its place is not removed as a file.
        put(&layout, "backups/one/velero-backup.json/x", "x").await;
        let before = keys(&layout).await;
        assert!(matches!(layout.remove_folder(&ours, None).await, Err(ClaimError::Store(_))));
        assert_eq!(keys(&layout).await, before);
        std::fs::remove_dir_all(folder.path().join("backups/one/velero-backup.json")).unwrap();
        assert!(layout.remove_folder(&ours, None).await.unwrap());
        assert_eq!(keys(&layout).await, [""; 0]);
    }

    #[tokio::test]
    async fn what_has_come_or_gone_since_the_survey_is_in_the_way_of_no_removal() {
        let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "one");
        layout.claim(&claim("deletion-1"), None).await.unwrap();
        for name in ["velero-backup.json", "one.tar.gz", "one-logs.gz"] {
            put(&layout, &format!("backups/one/{name}"), "{}").await;
        }
        let survey = layout.survey().await.unwrap();
        layout.store().delete(&layout.folder().join("one-logs.gz")).await.unwrap();
        put(&layout, "backups/one/late", "x").await;
        assert!(layout.remove_folder(&claim("another"), Some(&survey)).await.is_err());
        assert_eq!(keys(&layout).await.len(), 4);
        assert!(layout.remove_folder(&claim("deletion-1"), Some(&survey)).await.unwrap());
        assert_eq!(keys(&layout).await, [""; 0]);
    }

    #[tokio::test]
    async fn a_survey_tells_whose_a_folder_is_whatever_lies_in_it() {
        let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
        let text = r#"{"metadata":{"uid":"u"},"status":{"startTimestamp":"2026-01-01T00:00:00Z"}}"#;
        put(&layout, "backups/b/velero-backup.json", text).await;
        let found = layout.survey().await.unwrap().stored;
        let metadata = found.metadata.unwrap();
        assert_eq!((metadata.uid.as_str(), metadata.started.is_some()), ("u", true));
        assert_eq!((found.claim, found.has_others), (None, false));
        for text in ["{", "[]", "null", r#"{"metadata":{"uid":7}}"#] {
            put(&layout, "backups/b/velero-backup.json", text).await;
            let found = layout.survey().await.unwrap();
            assert!(found.is_published, "somebody may repair it: {text}");
            assert_eq!((found.stored.metadata, found.stored.has_others), (None, true), "{text}");
        }
        layout.store().delete(&layout.metadata()).await.unwrap();
        assert!(!layout.survey().await.unwrap().is_published);
        layout.claim(&claim("r"), None).await.unwrap();
        let found = layout.survey().await.unwrap();
        assert_eq!(found.stored.claim, Some(claim("r")));
        assert!(found.version.is_some());
    }

    #[tokio::test]
    async fn what_a_survey_does_not_list_is_not_asked_for_unless_there_is_more_than_it_lists() {
        let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
        put(&layout, "backups/b/b-volumeinfo.json.gz", &"x".repeat(300)).await;
        put(&layout, "backups/b/b-volumesnapshots.json.gz", "an empty list").await;
        let path = |name: &str| layout.folder().join(format!("b-{name}.json.gz"));
        let names = ["volumeinfo", "volumesnapshots", "podvolumebackups"];
        let found = layout.survey().await.unwrap();
        assert_eq!(names.map(|name| found.may_list(&path(name))), [true, false, false]);
        assert_eq!((found.stored.claim, found.stored.has_others), (None, true));
        for i in 0..PAGE {
            put(&layout, &format!("backups/b/a-{i}"), "x").await;
        }
        layout.claim(&claim("r"), None).await.unwrap();
        put(&layout, "backups/b/velero-backup.json", r#"{"metadata":{"uid":"u"}}"#).await;
        let found = layout.survey().await.unwrap();
        assert_eq!(names.map(|name| found.may_list(&path(name))), [true; 3]);
        assert_eq!(found.stored.claim, Some(claim("r")), "the list has ended before it");
        assert!(found.is_published && found.stored.metadata.is_some());
    }
}
