//! Movements of snapshot data: what is to be moved, and what a backup remembers of what it has
//! begun ([`super::operations`]).

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::related::key;

/// Most movements of one backup. Each takes some hundred bytes of the checkpoint.
pub const MOST_MOVEMENTS: usize = 10_000;

/// A claim whose snapshot is ready and whose data is to be moved into the storage location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub namespace: String,
    pub claim: String,
    pub claim_uid: String,
    /// The PersistentVolume.
    pub volume: String,
    /// The VolumeSnapshot, in the namespace of the claim.
    pub snapshot: String,
    /// Its VolumeSnapshotContent.
    pub content: String,
    /// StorageClass of the claim.
    pub storage_class: String,
    pub snapshot_class: String,
    /// The CSI driver.
    pub driver: String,
}

/// Moves the data of snapshots.
pub trait MoveData: Send + Sync {
    /// Begins to move the data. From then on the snapshot belongs to the movement, whose UID is
    /// returned.
    ///
    /// # Errors
    /// Why the data is not moved, for a message.
    fn move_data(&self, moved: Moved) -> impl Future<Output = Result<String, String>> + Send;

    /// The value of the annotation `velero.io/data-upload-name` of a claim in the archive, by which
    /// a restore finds its data. `None`: its data is not moved.
    fn upload_of(&self, claim_uid: &str) -> Option<String>;
}

/// A movement that was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Movement {
    /// Name of the DataUpload.
    pub upload: String,
    pub namespace: String,
    pub claim: String,
    pub claim_uid: String,
    /// The PersistentVolume; empty if it is not known.
    pub volume: String,
    /// VolumeSnapshot in the namespace of the claim.
    pub snapshot: String,
    pub driver: String,
    /// When the DataUpload was created, RFC 3339.
    pub created: String,
}

/// The movements of a backup, over all of its runs.
#[derive(Default)]
pub struct Movements(Mutex<BTreeMap<String, Movement>>);

impl Movements {
    pub fn of(all: Vec<Movement>) -> Self {
        Self(Mutex::new(all.into_iter().map(|one| (one.upload.clone(), one)).collect()))
    }

    /// A copy for a checkpoint, in the order of names.
    pub fn all(&self) -> Vec<Movement> {
        self.0.lock().values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    pub fn note(&self, movement: Movement) {
        self.0.lock().insert(movement.upload.clone(), movement);
    }

    /// Adds one that an earlier run has begun, unless it is known, or there are too many.
    pub fn add(&self, movement: Movement) {
        let all = &mut *self.0.lock();
        if all.len() < MOST_MOVEMENTS {
            all.entry(movement.upload.clone()).or_insert(movement);
        }
    }

    /// Keys of the snapshots that belong to them.
    pub fn snapshots(&self) -> Vec<String> {
        self.0.lock().values().map(|one| key(Some(&one.namespace), &one.snapshot)).collect()
    }

    /// The DataUpload of a claim (UID).
    pub fn of_claim(&self, uid: &str) -> Option<String> {
        let all = self.0.lock();
        all.values().find(|one| one.claim_uid == uid).map(|one| one.upload.clone())
    }
}
