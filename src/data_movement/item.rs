//! A movement that berth carries out, as the leader sees it, and the watch caches that show it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use berth_api::keys;
use berth_api::velero::mover::PodVolumeStatus;
use berth_api::velero::{
    DataDownload, DataMover, DataMoverStatus, DataUpload, PodVolumeBackup, PodVolumeRestore,
};
use berth_core::mover::grant::Mover;
use berth_core::mover::own::{OwnMover, PodStage};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::seen::SeenPod;

/// The object of a movement that berth carries out.
#[derive(Clone, Debug)]
pub(super) enum Carried {
    Upload(Arc<DataUpload>),
    Download(Arc<DataDownload>),
    Backup(Arc<PodVolumeBackup>),
    Restore(Arc<PodVolumeRestore>),
}

impl Carried {
    pub fn mover(&self) -> Mover {
        match self {
            Self::Upload(object) => object.mover(),
            Self::Download(object) => object.mover(),
            Self::Backup(object) => object.mover(),
            Self::Restore(object) => object.mover(),
        }
    }

    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Upload(object) => &object.metadata,
            Self::Download(object) => &object.metadata,
            Self::Backup(object) => &object.metadata,
            Self::Restore(object) => &object.metadata,
        }
    }

    pub fn status(&self) -> Option<DataMoverStatus> {
        match self {
            Self::Upload(object) => object.status.clone(),
            Self::Download(object) => object.status.clone(),
            Self::Backup(object) => object.status.as_ref().map(of_files),
            Self::Restore(object) => object.status.as_ref().map(of_files),
        }
    }

    /// Its data is the files of a pod's volume, so nothing but a pod is created for it.
    pub fn is_of_files(&self) -> bool {
        matches!(self, Self::Backup(_) | Self::Restore(_))
    }
}

/// What the two kinds of status both say.
fn of_files(status: &PodVolumeStatus) -> DataMoverStatus {
    DataMoverStatus {
        message: status.message.clone(),
        start_timestamp: status.start_timestamp.clone(),
        completion_timestamp: status.completion_timestamp.clone(),
        progress: status.progress,
        ..DataMoverStatus::default()
    }
}

/// One movement, and its pod.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub object: Carried,
    pub mover: Mover,
    pub pod: Option<SeenPod>,
    /// When this leader first saw that the movement is canceled.
    pub canceled_at: Option<Timestamp>,
    /// When this leader first saw that all of its data is in the volume.
    pub restored_at: Option<Timestamp>,
}

/// What this leader has seen of movements, by UID, and when it first saw that.
#[derive(Default)]
pub(super) struct SeenSince {
    canceled: HashMap<String, Timestamp>,
    restored: HashMap<String, Timestamp>,
}

impl Item {
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
    }

    pub fn seen(&self) -> OwnMover<'_> {
        let Mover { kind, name, created_at, phase, canceled, granted, accepted_at, bound_node, .. } =
            &self.mover;
        OwnMover {
            kind: *kind,
            name,
            created_at: *created_at,
            phase: *phase,
            canceled: *canceled,
            canceled_at: self.canceled_at,
            granted: *granted,
            accepted_at: *accepted_at,
            restored_at: self.restored_at,
            has_objects: has_objects(self.object.metadata()),
            pod: self.pod.as_ref().map_or(PodStage::Absent, |pod| pod.stage),
            pod_since: self.pod.as_ref().and_then(|pod| pod.since),
            node: self.pod.as_ref().and_then(|pod| pod.node.as_deref()),
            bound_node: bound_node.as_deref(),
            lost_pods: self
                .lost_pods()
                .filter(|lost| self.pod.as_ref().is_none_or(|pod| pod.uid != *lost))
                .count(),
        }
    }

    /// Its finalizers, with berth's own only if `is_held`: while objects may exist that were
    /// created for it. Without the finalizer a deletion would leave objects that have no owner,
    /// such as the snapshot and a retained volume. A pod goes with the movement that owns it.
    pub fn finalizers(&self, is_held: bool) -> Vec<&str> {
        let is_held = is_held && !self.object.is_of_files();
        let all = self.object.metadata().finalizers.iter().flatten().map(String::as_str);
        all.filter(|one| *one != keys::MOVER_FINALIZER)
            .chain(is_held.then_some(keys::MOVER_FINALIZER))
            .collect()
    }

    /// UIDs of its pods that are recorded as lost.
    pub fn lost_pods(&self) -> impl Iterator<Item = &str> {
        self.annotation(keys::LOST_PODS).unwrap_or_default().split_whitespace()
    }
}

/// The watch caches. `None`: not listed yet. Maps are enough, because each write carries the
/// version that it was decided on.
#[derive(Default)]
pub(super) struct MovementObjects {
    pub uploads: Option<BTreeMap<String, Option<Arc<DataUpload>>>>,
    pub downloads: Option<BTreeMap<String, Option<Arc<DataDownload>>>>,
    pub backups: Option<BTreeMap<String, Option<Arc<PodVolumeBackup>>>>,
    pub restores: Option<BTreeMap<String, Option<Arc<PodVolumeRestore>>>>,
    pub pods: Option<BTreeMap<String, Option<SeenPod>>>,
}

impl MovementObjects {
    /// All movements that still need something. `None`: not everything is listed yet.
    pub fn frozen(&self) -> Option<Vec<Item>> {
        let (uploads, downloads) = (self.uploads.as_ref()?, self.downloads.as_ref()?);
        let (backups, restores) = (self.backups.as_ref()?, self.restores.as_ref()?);
        let pods = self.pods.as_ref()?;
        let uploads = uploads.values().flatten().map(|object| Carried::Upload(Arc::clone(object)));
        let downloads = downloads.values().flatten().map(|object| Carried::Download(Arc::clone(object)));
        let backups = backups.values().flatten().map(|object| Carried::Backup(Arc::clone(object)));
        let restores = restores.values().flatten().map(|object| Carried::Restore(Arc::clone(object)));
        let item = |object: Carried| {
            let mover = object.mover();
            let pod = pods.get(&mover.name).and_then(Option::as_ref);
            let pod = pod.filter(|pod| pod.of == mover.uid).cloned();
            Item { object, mover, pod, canceled_at: None, restored_at: None }
        };
        Some(uploads.chain(downloads).chain(backups).chain(restores).map(item).collect())
    }
}

/// Is there anything left to do?
pub(super) fn is_wanted<K: DataMover>(object: &K) -> bool {
    object.is_own() && (has_objects(object.meta()) || !object.phase().is_final())
}

/// May objects exist that were created for it, including the snapshot?
fn has_objects(metadata: &ObjectMeta) -> bool {
    let is_made = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(keys::MADE));
    is_made || metadata.finalizers.iter().flatten().any(|one| one == keys::MOVER_FINALIZER)
}

/// Records when this leader first saw that each movement is canceled, which no object says, and
/// that all of its data is restored. An annotation has the latter by the clock of a node, but by
/// that clock, or after a time without a leader, the time to bind the volume might already be over.
/// So a new leader counts from the start.
pub(super) fn note_since(items: &mut [Item], known: &mut SeenSince, now: Timestamp) {
    let before = std::mem::take(known);
    for item in items {
        let uid = &item.mover.uid;
        if item.mover.canceled {
            let since = before.canceled.get(uid).copied().unwrap_or(now);
            known.canceled.insert(uid.clone(), since);
            item.canceled_at = Some(since);
        }
        if item.annotation(keys::RESTORED).is_some() {
            let since = before.restored.get(uid).copied().unwrap_or(now);
            known.restored.insert(uid.clone(), since);
            item.restored_at = Some(since);
        }
    }
}
