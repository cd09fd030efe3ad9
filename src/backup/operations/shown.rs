//! The watch cache of the DataUploads of Backups. It only says which Backups have to be checked;
//! the decision uses a list of its own.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use berth_api::keys::BACKUP_UID;
use berth_api::velero::{DataMover as _, DataUpload};
use berth_core::operation::{OperationCounts, OperationObject, OperationProgress};
use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;

use crate::cache::SharedCache;
use crate::watch::{WatchEvent, of_namespace, reflect};

/// One DataUpload.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CachedDataUpload {
    name: String,
    backup: String,
    phase: String,
    created: Timestamp,
}

#[derive(Default)]
struct UploadCacheState {
    /// By UID of the Backup, then by name.
    all: HashMap<String, BTreeMap<String, CachedDataUpload>>,
    /// UIDs of the Backups by name of the DataUpload.
    backups: HashMap<String, String>,
    is_listed: bool,
}

impl UploadCacheState {
    /// `true`: something has changed that counts.
    fn put(&mut self, one: CachedDataUpload) -> bool {
        if self.backups.get(&one.name).is_some_and(|backup| *backup != one.backup) {
            self.remove(&one.name);
        }
        self.backups.insert(one.name.clone(), one.backup.clone());
        let of_backup = self.all.entry(one.backup.clone()).or_default();
        of_backup.insert(one.name.clone(), one.clone()).as_ref() != Some(&one)
    }

    fn remove(&mut self, name: &str) {
        let Some(backup) = self.backups.remove(name) else { return };
        if let Some(of_backup) = self.all.get_mut(&backup) {
            of_backup.remove(name);
            if of_backup.is_empty() {
                self.all.remove(&backup);
            }
        }
    }
}

/// Filled by [`UploadCache::follow`]. It needs no [`crate::cache::Cache`], because each decision
/// uses a list of its own.
#[derive(Default)]
pub struct UploadCache(SharedCache<UploadCacheState>);

impl UploadCache {
    pub fn is_synced(&self) -> bool {
        self.0.read().is_listed
    }

    /// Wakes on every change after this call, except changes of progress.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed()
    }

    /// The states of the operations of a Backup, and how many operations the cluster has.
    pub fn counts(
        &self,
        uid: &str,
        attempted: u64,
        limit: Duration,
        now: Timestamp,
    ) -> (OperationCounts, u64) {
        let state = self.0.read();
        let all = state.all.get(uid).into_iter().flat_map(BTreeMap::values);
        let standings = all.map(|one| {
            OperationProgress::of(
                Some(&OperationObject { phase: &one.phase, created: one.created }),
                limit,
                now,
            )
        });
        let there = state.all.get(uid).map_or(0, BTreeMap::len) as u64;
        (OperationCounts::of(standings, attempted), there)
    }

    /// Watches. Never returns.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let config = watcher::Config::default().labels(BACKUP_UID);
        reflect(of_namespace(client, namespace), config, shown, |event| {
            let has_changed = self.0.write_silently(|state| match event {
                WatchEvent::Replaced(all) => {
                    *state = UploadCacheState { is_listed: true, ..UploadCacheState::default() };
                    for one in all {
                        state.put(one);
                    }
                    true
                }
                WatchEvent::Applied(one) => state.put(one),
                WatchEvent::Deleted(name) => {
                    state.remove(&name);
                    true
                }
            });
            if has_changed {
                self.0.wake();
            }
        })
        .await;
    }
}

fn shown(upload: DataUpload) -> CachedDataUpload {
    CachedDataUpload {
        name: upload.name_any(),
        backup: upload.labels().get(BACKUP_UID).cloned().unwrap_or_default(),
        phase: upload.phase_text().to_owned(),
        created: upload.creation_timestamp().map_or_else(Timestamp::now, |time| time.0),
    }
}
