//! The watch caches of all Backups and storage locations, for the controllers of this module. They
//! keep a few fields of each object.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_api::keys::{self, is_set, label_value};
use berth_api::parse::backup_namespaces;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupPhase, BackupSpec, BackupStorageLocation};
use berth_core::namespace::NamespaceSet;
use berth_core::schedule::{BackupOrigin, is_in_time, is_of_time};
use berth_core::sync::{ClusterBackup, Size, Standings};
use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::watch;

use crate::cache::{Cache, Indexer, SharedCache, Versioned};
use crate::lean;
use crate::patch::digest;
use crate::watch::{WatchEvent, of_namespace, reflect, reflect_by};

/// Limit of the weight of the namespaces of all good backups together: one for each name, which
/// takes some 280 bytes. The creators of Backups decide how many names there are.
const MAX_WEIGHT: usize = 400_000;

/// What is kept of a Backup.
#[derive(Clone, Debug)]
pub struct KnownBackup {
    pub uid: String,
    pub resource_version: String,
    pub phase: BackupPhase,
    /// `spec.storageLocation`.
    pub location: String,
    /// The value of the label with the name of its location.
    label: String,
    /// The Backup is being deleted.
    is_leaving: bool,
    pub schedule: Option<String>,
    /// When it ended, if it is good.
    pub good_at: Option<Timestamp>,
    /// The namespaces that it contains as a whole. Only of a good backup.
    pub namespaces: Option<Arc<NamespaceSet>>,
    /// It has the annotation `berth.dev/keep`.
    is_kept: bool,
    /// Some of its PodVolumeBackups could not be created.
    pub lacks_volumes: bool,
    /// UID of the Schedule for which berth created it (`berth.dev/schedule-uid`).
    schedule_uid: Option<String>,
    generation: Option<i64>,
    created: Option<Timestamp>,
    /// Bytes of the Backup as JSON.
    bytes: usize,
}

impl Versioned for KnownBackup {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

impl KnownBackup {
    pub fn of(backup: &Backup) -> Self {
        let status = backup.status.as_ref();
        let is_good = backup.phase() == BackupPhase::Completed;
        let ended = status.and_then(|s| s.completion_timestamp.as_ref().or(s.start_timestamp.as_ref()));
        let label = |key: &str| backup.labels().get(key).cloned();
        Self {
            uid: backup.uid().unwrap_or_default(),
            resource_version: backup.resource_version().unwrap_or_default(),
            phase: backup.phase(),
            location: lean::name(backup.spec.storage_location.clone().unwrap_or_default()),
            label: label(keys::STORAGE_LOCATION).unwrap_or_default(),
            is_leaving: backup.metadata.deletion_timestamp.is_some(),
            schedule: label(keys::SCHEDULE),
            good_at: ended.map(|time| time.0).filter(|_| is_good),
            namespaces: (is_good && is_of_whole_namespaces(&backup.spec))
                .then(|| backup_namespaces(&backup.spec).ok().map(Arc::new))
                .flatten(),
            is_kept: is_set(backup.annotations(), keys::KEEP),
            lacks_volumes: is_set(backup.annotations(), keys::VOLUMES_MISSING),
            schedule_uid: backup.annotations().get(keys::SCHEDULE_UID).cloned(),
            generation: backup.metadata.generation,
            created: backup.metadata.creation_timestamp.as_ref().map(|time| time.0),
            bytes: crate::patch::json_size(backup),
        }
    }

    fn found(&self) -> BackupOrigin<'_> {
        let (mark, phase) = (self.schedule_uid.as_deref(), self.phase.as_str());
        BackupOrigin { mark, phase, generation: self.generation }
    }

    /// Was it created from a store? Then it may have run in any cluster.
    pub fn came_finished(&self) -> bool {
        self.found().came_finished()
    }

    /// UID of the Schedule for which berth created it. Only berth writes this on a Backup that has
    /// not ended.
    pub fn schedule_uid(&self) -> Option<&str> {
        self.schedule_uid.as_deref()
    }

    /// Did berth create it for a Schedule? The label alone does not prove that, because everyone
    /// who creates Backups may write it.
    pub fn is_of_schedule(&self) -> bool {
        self.schedule_uid.is_some() && !self.came_finished()
    }

    fn weight(&self) -> usize {
        self.namespaces.as_ref().map_or(0, |set| set.weight())
    }

    fn standing(&self, location: &str, label: &str) -> ClusterBackup {
        let is_stored = matches!(self.phase, BackupPhase::Completed | BackupPhase::PartiallyFailed);
        ClusterBackup {
            uid: self.uid.clone(),
            is_here: self.location == location && self.label == label,
            // A Backup with a hold stays, because its copy from the store would lack the hold.
            is_stored: is_stored && !self.is_leaving && !self.is_kept,
        }
    }
}

/// What the namespaces of all of them weigh together, kept up with each change: to add them up anew
/// would make a change cost as much as there are Backups.
#[derive(Default)]
struct HeldWeight(usize);

impl Indexer<KnownBackup> for HeldWeight {
    fn insert(&mut self, backup: &KnownBackup) {
        self.0 = self.0.saturating_add(backup.weight());
    }

    fn remove(&mut self, backup: &KnownBackup) {
        self.0 = self.0.saturating_sub(backup.weight());
    }
}

/// Does the backup contain its namespaces as a whole? A backup of selected objects does not count
/// for a namespace.
fn is_of_whole_namespaces(spec: &BackupSpec) -> bool {
    let is_some = |list: &Option<Vec<String>>| {
        list.as_ref().is_some_and(|list| !list.is_empty() && list.iter().all(|entry| entry != "*"))
    };
    let selects = spec.label_selector.as_ref().is_some_and(|selector| *selector != Default::default());
    let selects_one = spec.or_label_selectors.as_ref().is_some_and(|list| !list.is_empty());
    !selects
        && !selects_one
        && !is_some(&spec.included_resources)
        && !is_some(&spec.included_namespace_scoped_resources)
}

/// The watch caches of Backups and storage locations.
#[derive(Default)]
pub struct KnownBackups {
    backups: SharedCache<Cache<String, KnownBackup, HeldWeight>>,
    /// `None` until they are listed.
    locations: SharedCache<Option<BTreeMap<String, BackupStorageLocation>>>,
}

impl KnownBackups {
    /// Watches both kinds. Never returns.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let weight = Cell::new(0);
        let keep = |backup: Backup| {
            let mut known = KnownBackup::of(&backup);
            weight.set(weight.get() + known.weight());
            if weight.get() > MAX_WEIGHT {
                weight.set(weight.get() - known.weight());
                known.namespaces = None;
            }
            (backup.name_any(), known)
        };
        let backups = reflect_by(
            of_namespace(client, namespace),
            watcher::Config::default(),
            ResourceExt::name_any,
            || weight.set(0),
            keep,
            |event: WatchEvent<(String, KnownBackup), String>| {
                weight.set(self.backups.write(|cache| {
                    cache.observe(event);
                    cache.index().0
                }));
            },
        );
        let locations = reflect(
            of_namespace(client, namespace),
            watcher::Config::default(),
            |location: BackupStorageLocation| (location.name_any(), location),
            |event: WatchEvent<(String, BackupStorageLocation)>| {
                self.locations.write(|known| event.apply_to(known.get_or_insert_default()));
            },
        );
        tokio::join!(backups, locations);
    }

    /// Have both kinds been listed?
    pub fn is_synced(&self) -> bool {
        self.backups.read().is_synced() && self.locations.read().is_some()
    }

    /// Have Backups been listed?
    pub fn has_backups(&self) -> bool {
        self.backups.read().is_synced()
    }

    /// Is the Backup of a time there that berth created for the Schedule with this UID? `first`:
    /// its first name.
    pub fn is_made(&self, schedule_uid: &str, first: &str, tick: Timestamp) -> bool {
        let backups = self.backups.read();
        let mut named = backups.range(first.to_owned()..).take_while(|(name, _)| name.starts_with(first));
        named.any(|(name, backup)| {
            let is_own = is_of_time(name, first) && backup.found().is_of(schedule_uid);
            is_own && is_in_time(backup.created, tick)
        })
    }

    #[cfg(test)]
    pub fn list(&self, backups: &[Backup]) {
        let all = backups.iter().map(|backup| (backup.name_any(), KnownBackup::of(backup))).collect();
        self.backups.write(|cache| cache.observe(WatchEvent::Replaced(all)));
    }

    /// Wakes on every change of a Backup after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.backups.changed()
    }

    /// Takes over the answer to a write of this process.
    pub fn assume(&self, backup: &Backup) {
        let known = KnownBackup::of(backup);
        self.backups.write(|cache| cache.assume(backup.name_any(), known));
    }

    /// Removes a Backup that the API server says is gone.
    pub fn forget(&self, name: &str, uid: &str) {
        self.backups.write(|cache| cache.forget(name, uid));
    }

    pub fn get(&self, name: &str) -> Option<KnownBackup> {
        self.backups.read().get(name).cloned()
    }

    /// Visits all Backups, by name.
    pub fn each(&self, mut look: impl FnMut(&str, &KnownBackup)) {
        for (name, backup) in self.backups.read().range(..) {
            look(name, backup);
        }
    }

    /// All Backups, as the sync of this location needs them.
    pub fn standings(&self, location: &str) -> Standings {
        let label = label_value(location, digest);
        let mut all = Standings::new();
        self.each(|name, backup| drop(all.insert(name.to_owned(), backup.standing(location, &label))));
        all
    }

    /// How many Backups this location has, and their size together.
    pub fn size(&self, location: &str) -> Size {
        let mut size = Size::default();
        self.each(|_, backup| {
            if backup.location == location {
                size = size.with(backup.bytes);
            }
        });
        size
    }

    /// All locations, by name.
    pub fn locations(&self) -> Vec<BackupStorageLocation> {
        self.locations.read().iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Names of the ReadOnly locations, in which other clusters write.
    pub fn read_only_locations(&self) -> BTreeSet<String> {
        let locations = self.locations.read();
        let all = locations.iter().flatten();
        let read_only = all.filter(|(_, one)| one.spec.access_mode == Some(AccessMode::ReadOnly));
        read_only.map(|(name, _)| name.clone()).collect()
    }

    #[cfg(test)]
    pub fn observe_location(&self, location: BackupStorageLocation) {
        let event = WatchEvent::Applied((location.name_any(), location));
        self.locations.write(|known| event.apply_to(known.get_or_insert_default()));
    }

    pub fn location(&self, name: &str) -> Option<BackupStorageLocation> {
        self.locations.read().as_ref()?.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_namespaces_weigh_is_known_after_each_change() {
        let backup = |name: &str, version: u32, namespaces: usize| -> Backup {
            let names: Vec<String> = (0..namespaces).map(|i| format!("n-{i}")).collect();
            serde_json::from_value(json!({
                "apiVersion": "velero.io/v1", "kind": "Backup",
                "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()},
                "spec": {"includedNamespaces": names}, "status": {"phase": "Completed"},
            }))
            .unwrap()
        };
        let known = KnownBackups::default();
        let held = || known.backups.read().index().0;
        known.list(&[backup("a", 1, 3), backup("b", 1, 5)]);
        assert_eq!(held(), 8);
        known.assume(&backup("a", 2, 7));
        assert_eq!(held(), 12, "the version before counts no more");
        known.assume(&backup("c", 3, 1));
        known.forget("b", "b");
        assert_eq!(held(), 8);
        known.backups.write(|cache| cache.observe(WatchEvent::Deleted("a".to_owned())));
        assert_eq!(held(), 1);
        known.list(&[backup("b", 9, 2)]);
        assert_eq!(held(), 2);
    }
}
