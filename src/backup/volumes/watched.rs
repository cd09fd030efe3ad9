//! Watches of the objects that a backup made, for tasks that wait for one of them. All tasks of a
//! run share these watches, so no task polls the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::keys::BACKUP_UID;
use berth_api::snapshot::{SnapshotFault, VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::mover::PodVolumeBackup;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::objects::{group_of, short};
use crate::guarded::Guarded;
use crate::watch::{ObjectKey, WatchEvent, reflect_everywhere};

/// Objects of one kind, as a watch shows them.
pub type WatchedObjects<V> = BTreeMap<ObjectKey, V>;

/// What is kept of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedContent {
    pub uid: String,
    /// UID of its VolumeSnapshot.
    pub of: String,
    pub driver: String,
    pub deletion_policy: String,
    pub handle: Option<String>,
    pub group_handle: Option<String>,
    pub size: Option<u64>,
    pub is_ready: bool,
    pub fault: Option<String>,
}

impl WatchedContent {
    pub fn read(content: VolumeSnapshotContent) -> Self {
        let (spec, status) = (content.spec, content.status.unwrap_or_default());
        Self {
            uid: content.metadata.uid.unwrap_or_default(),
            of: spec.volume_snapshot_ref.uid.unwrap_or_default(),
            driver: spec.driver.unwrap_or_default(),
            deletion_policy: spec.deletion_policy.unwrap_or_default(),
            handle: status.snapshot_handle.filter(|handle| !handle.is_empty()),
            group_handle: status.volume_group_snapshot_handle.filter(|handle| !handle.is_empty()),
            size: status.restore_size.and_then(|size| u64::try_from(size).ok()),
            is_ready: status.ready_to_use == Some(true),
            fault: fault_of(status.error),
        }
    }
}

/// What is kept of a VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedSnapshot {
    pub uid: String,
    pub claim: Option<String>,
    /// UID of the VolumeGroupSnapshot that it belongs to.
    pub group: Option<String>,
    pub content: Option<String>,
    pub cut_at: Option<String>,
    pub is_ready: bool,
    pub fault: Option<String>,
}

impl WatchedSnapshot {
    pub fn read(snapshot: VolumeSnapshot) -> Self {
        let group = group_of(snapshot.owner_references()).map(str::to_owned);
        let status = snapshot.status.unwrap_or_default();
        Self {
            uid: snapshot.metadata.uid.unwrap_or_default(),
            claim: snapshot.spec.source.persistent_volume_claim_name,
            group,
            content: status.bound_volume_snapshot_content_name.filter(|name| !name.is_empty()),
            cut_at: status.creation_time.map(|time| time.0.to_string()),
            is_ready: status.ready_to_use == Some(true),
            fault: fault_of(status.error),
        }
    }
}

/// What is kept of a driver's message, because the contents of the whole cluster are watched.
fn fault_of(error: Option<SnapshotFault>) -> Option<String> {
    Some(short(&error?.message?))
}

/// What is kept of a PodVolumeBackup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedPodVolumeBackup {
    pub phase: String,
    pub message: String,
}

impl WatchedPodVolumeBackup {
    pub fn read(files: PodVolumeBackup) -> Self {
        let status = files.status.unwrap_or_default();
        let message = short(status.message.as_deref().unwrap_or_default());
        Self { phase: status.phase.unwrap_or_default(), message }
    }

    /// Has it ended?
    pub fn has_ended(&self) -> bool {
        has_ended(&self.phase)
    }

    /// Has it ended, and not as Completed?
    pub fn has_failed(&self) -> bool {
        self.has_ended() && self.phase != "Completed"
    }
}

/// Is this a final phase of a PodVolumeBackup?
pub fn has_ended(phase: &str) -> bool {
    matches!(phase, "Completed" | "Failed" | "Canceled")
}

/// The watched objects of `T`, and a channel that signals each change of them.
pub struct Watched<T> {
    shown: Arc<Mutex<T>>,
    bell: watch::Sender<()>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl<T> Watched<T> {
    /// Reads the objects as they are now.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.shown.lock())
    }

    /// Waits until `look` returns a value.
    pub async fn find<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> R {
        let mut bell = self.bell.subscribe();
        loop {
            if let Some(found) = look(&self.shown.lock()) {
                return found;
            }
            // The channel stays open as long as this value lives.
            let _ = bell.changed().await;
        }
    }
}

/// Snapshots and their contents.
#[derive(Default)]
pub struct Snapshots {
    pub snapshots: WatchedObjects<WatchedSnapshot>,
    pub contents: WatchedObjects<WatchedContent>,
}

impl Watched<Snapshots> {
    /// Watches the snapshots that were made for the Backup with this UID, and all contents.
    pub fn snapshots(client: &Client, uid: &str) -> Self {
        let (shown, bell) = (Arc::new(Mutex::new(Snapshots::default())), watch::Sender::new(()));
        let of_backup = watcher::Config::default().labels(&format!("{BACKUP_UID}={uid}"));
        let tasks = vec![
            follow::<VolumeSnapshot, _, _>(
                Api::all(client.clone()),
                of_backup,
                WatchedSnapshot::read,
                (&shown, &bell),
                |shown| &mut shown.snapshots,
            ),
            follow::<VolumeSnapshotContent, _, _>(
                Api::all(client.clone()),
                watcher::Config::default(),
                WatchedContent::read,
                (&shown, &bell),
                |shown| &mut shown.contents,
            ),
        ];
        Self { shown, bell, _tasks: tasks }
    }
}

impl Watched<WatchedObjects<WatchedSnapshot>> {
    /// Watches all snapshots of a namespace.
    pub fn snapshots_in(client: &Client, namespace: &str) -> Self {
        let (shown, bell) = (Arc::new(Mutex::new(WatchedObjects::default())), watch::Sender::new(()));
        let tasks = vec![follow::<VolumeSnapshot, _, _>(
            Api::namespaced(client.clone(), namespace),
            watcher::Config::default(),
            WatchedSnapshot::read,
            (&shown, &bell),
            |shown| shown,
        )];
        Self { shown, bell, _tasks: tasks }
    }
}

impl Watched<WatchedObjects<WatchedPodVolumeBackup>> {
    /// Watches the PodVolumeBackups of the Backup with this UID.
    pub fn files(client: &Client, namespace: &str, uid: &str) -> Self {
        let (shown, bell) = (Arc::new(Mutex::new(WatchedObjects::default())), watch::Sender::new(()));
        let of_backup = watcher::Config::default().labels(&format!("{BACKUP_UID}={uid}"));
        let api = Api::namespaced(client.clone(), namespace);
        let tasks = vec![follow::<PodVolumeBackup, _, _>(
            api,
            of_backup,
            WatchedPodVolumeBackup::read,
            (&shown, &bell),
            |shown| shown,
        )];
        Self { shown, bell, _tasks: tasks }
    }
}

fn follow<K, V, T>(
    api: Api<Guarded<K>>,
    config: watcher::Config,
    keep: fn(K) -> V,
    (shown, bell): (&Arc<Mutex<T>>, &watch::Sender<()>),
    of: fn(&mut T) -> &mut WatchedObjects<V>,
) -> AbortOnDropHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    V: Send + 'static,
    T: Send + 'static,
{
    let (shown, bell) = (Arc::clone(shown), bell.clone());
    let watching = async move {
        let keep = |object: K| {
            let key = (object.namespace().unwrap_or_default(), object.name_any());
            (key, keep(object))
        };
        reflect_everywhere(api, config, keep, |event: WatchEvent<(ObjectKey, V), ObjectKey>| {
            event.apply_to(of(&mut shown.lock()));
            bell.send_replace(());
        })
        .await;
    };
    AbortOnDropHandle::new(tokio::spawn(watching))
}

#[cfg(test)]
mod tests {
    use berth_api::snapshot::{VolumeSnapshotContentSpec, VolumeSnapshotSpec};
    use berth_api::velero::mover::PodVolumeBackupSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_message_in_a_status_the_beginning_is_kept_in_one_line() {
        let message = format!("no such\n\u{1b}[2Jhandle {}", "x".repeat(1 << 20));
        let kept = format!("no such[2Jhandle {}", "x".repeat(183));
        let status = json!({"error": {"message": message}});
        let mut content = VolumeSnapshotContent::new("c", VolumeSnapshotContentSpec::default());
        content.status = serde_json::from_value(status.clone()).unwrap();
        assert_eq!(WatchedContent::read(content).fault.as_ref(), Some(&kept));
        let mut snapshot = VolumeSnapshot::new("s", VolumeSnapshotSpec::default());
        snapshot.status = serde_json::from_value(status).unwrap();
        assert_eq!(WatchedSnapshot::read(snapshot).fault.as_ref(), Some(&kept));
        let mut files = PodVolumeBackup::new("f", PodVolumeBackupSpec::default());
        files.status = serde_json::from_value(json!({"message": message})).unwrap();
        assert_eq!(WatchedPodVolumeBackup::read(files).message, kept);
    }
}
