//! A deletion that is carried out, as all of its steps share it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use anyhow::Context as _;
use berth_api::velero::backup_storage_location::BackupStorageLocationSpec;
use berth_api::velero::{Backup, BackupStorageLocation, DeleteBackupRequest};
use kube::api::{Api, ApiResource, DynamicObject};
use object_store::{DynObjectStore, ObjectMeta};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::DeletionRequests;
use super::calls::{CALL, told};
use crate::lifecycle::Lifecycle;
use crate::storage::{BackupLayout, Survey};

/// A deletion, and what this process knows of it. Whatever decides is read again before each step
/// that removes something, but for lists that are the same files as before.
pub(super) struct Carrying<'a> {
    pub(super) lifecycle: &'a Lifecycle,
    pub(super) requests: &'a DeletionRequests,
    pub(super) request: Arc<DeleteBackupRequest>,
    /// The store, as it was opened for a location with this spec.
    pub(super) opened: Option<(BackupStorageLocationSpec, Arc<DynObjectStore>)>,
    /// UIDs of requests that this deletion has removed, which the watch may still show.
    pub(super) removed: HashSet<String>,
    /// The Backup has gone before its deletion has ended.
    pub(super) is_backup_gone: bool,
    /// The last look at the data of volumes.
    pub(super) seen_volumes: Option<SeenVolumes>,
    /// The snapshots were removed, though the files that name them are still there.
    pub(super) are_snapshots_gone: bool,
    /// For the metrics, after the Backup is gone.
    pub(super) schedule: Option<String>,
    pub(super) is_counted: bool,
}

/// What one look has found besides what the next step is decided on.
pub(super) struct DeletionFindings {
    pub(super) request: DeleteBackupRequest,
    pub(super) backup: Option<DynamicObject>,
    pub(super) location: Option<BackupStorageLocation>,
    pub(super) layout: Option<BackupLayout>,
    pub(super) survey: Option<Survey>,
    pub(super) volumes: VolumeData,
    pub(super) restores: Vec<DynamicObject>,
}

/// A CSI snapshot in its storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoredSnapshot {
    pub driver: String,
    pub handle: String,
    /// The VolumeSnapshotContent that it had.
    pub content: String,
    /// Namespace of the claim of which it was taken, and so of its VolumeSnapshot.
    pub namespace: String,
}

impl StoredSnapshot {
    /// What no two snapshots have in common.
    pub(super) fn key(&self) -> (&str, &str) {
        (self.driver.as_str(), self.handle.as_str())
    }
}

/// What a PodVolumeBackup or DataUpload may have left in one of berth's repositories.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Files {
    /// Of the pod or claim whose volume it has, and so of the repository.
    pub namespace: String,
    pub snapshot: Option<String>,
    /// The Backup's, as a tag of all snapshots that were made for it. One that failed tells no
    /// other sign of its snapshot.
    pub backup_uid: Option<String>,
}

/// What a look at the data of volumes has found.
#[derive(Clone, Default)]
pub(super) struct VolumeData {
    pub out_of_reach: Vec<String>,
    pub snapshots: BTreeSet<StoredSnapshot>,
    pub files: BTreeSet<Files>,
}

/// The same, and what it was found for and in.
pub(super) struct SeenVolumes {
    /// Of the Backup.
    pub uid: String,
    /// Versions of the files that list volumes.
    pub lists: Vec<Option<ObjectMeta>>,
    pub found: VolumeData,
}

impl<'a> Carrying<'a> {
    pub(super) fn new(
        lifecycle: &'a Lifecycle,
        requests: &'a DeletionRequests,
        request: Arc<DeleteBackupRequest>,
    ) -> Self {
        Self {
            lifecycle,
            requests,
            request,
            opened: None,
            removed: HashSet::new(),
            is_backup_gone: false,
            seen_volumes: None,
            are_snapshots_gone: false,
            schedule: None,
            is_counted: false,
        }
    }

    pub(super) fn backup_name(&self) -> &str {
        &self.request.spec.backup_name
    }

    pub(super) fn api(&self) -> Api<DeleteBackupRequest> {
        Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace)
    }

    pub(super) fn backups(&self) -> Api<DynamicObject> {
        self.dynamic(&ApiResource::erase::<Backup>(&()))
    }

    pub(super) fn dynamic(&self, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace, kind)
    }

    pub(super) async fn get<K>(&self, api: &Api<K>, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        let found = timeout(CALL, api.get_opt(name)).await;
        found.context("the API server did not answer in time")?.map_err(told)
    }
}
