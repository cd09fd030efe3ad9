//! PodVolumeBackups of a Backup that was brought from its store: a restore looks for the objects,
//! not for the file. Those that could not be created come in a later round; until then an
//! annotation of the Backup says that some are missing.

use std::collections::BTreeSet;
use std::ops::Bound;

use anyhow::{Context as _, anyhow};
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation, PodVolumeBackup};
use futures::StreamExt as _;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::object::{pod_volume_backup, pod_volume_backups};
use super::{Past, READS_AT_ONCE, Sync};
use crate::patch::json_size;
use crate::storage::StoredBackups;
use crate::text::chain;
use crate::write::{Write, WriteResult, create, patch};

/// Backups that one round repairs.
const MOST_REPAIRED: usize = 50;

/// The PodVolumeBackups that a store has of a backup.
pub(super) struct StoredPodVolumeBackups(Vec<Value>);

impl StoredPodVolumeBackups {
    /// Of the file in gzip. One that cannot be read has none, because nobody could read it later.
    pub(super) fn read(backup: &str, gzip: Option<&[u8]>) -> Self {
        match gzip.map_or(Ok(Vec::new()), pod_volume_backups) {
            Ok(all) => Self(all),
            Err(why) => {
                warn!(backup, why, "the stored PodVolumeBackups cannot be read: restores miss these volumes");
                Self(Vec::new())
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of their JSON.
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(json_size).fold(0, usize::saturating_add)
    }
}

impl Sync<'_> {
    /// Creates the PodVolumeBackups of a Backup, and removes the annotation once all are there.
    ///
    /// # Errors
    /// When one of them is not there.
    pub(super) async fn create_volumes(
        &self,
        location: &BackupStorageLocation,
        backup: &Backup,
        volumes: &StoredPodVolumeBackups,
    ) -> anyhow::Result<()> {
        let (client, namespace) = (self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        let (name, uid) = (backup.name_any(), backup.uid().unwrap_or_default());
        let kind = ApiResource::erase::<PodVolumeBackup>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let objects = volumes
            .0
            .iter()
            .map(|stored| pod_volume_backup(stored, (&name, &uid), &location.name_any(), namespace));
        let creations = futures::stream::iter(objects)
            .map(|object| create_one(&api, object, &uid))
            .buffer_unordered(READS_AT_ONCE);
        let failed: Vec<anyhow::Error> =
            creations.filter_map(|created| async { created.err() }).collect().await;
        if let Some(error) = failed.into_iter().next() {
            return Err(error);
        }
        let backups: Api<Backup> = Api::namespaced(client, namespace);
        let change = json!({"metadata": {"annotations": {keys::VOLUMES_MISSING: null}}});
        match patch(&backups, Write::to(&name).uid(Some(&uid)), change).await {
            WriteResult::Written(written) => self.lifecycle.known.assume(&written),
            WriteResult::Gone(_) | WriteResult::Conflict(_) => {}
            WriteResult::Refused(error) => return Err(error.into()),
            WriteResult::TimedOut => return Err(anyhow!("the API server did not answer in time")),
        }
        Ok(())
    }

    /// Creates what earlier rounds could not create.
    pub(super) async fn repair(
        &self,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        past: &mut Past,
    ) {
        let name = location.name_any();
        let mut lacking = BTreeSet::new();
        self.lifecycle.known.each(|backup, known| {
            if known.lacks_volumes && known.location == name {
                lacking.insert(backup.to_owned());
            }
        });
        past.volumes.retain(|backup| lacking.contains(backup));
        let lacking = next_ones(&lacking, &past.repaired, MOST_REPAIRED);
        past.repaired = lacking.last().cloned().unwrap_or_default();
        let api: Api<Backup> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        for backup in lacking {
            match self.repair_one(&api, location, stored, &backup).await {
                Ok(()) => info!(location = name, backup, "created its missing PodVolumeBackups"),
                Err(error) => {
                    let error = chain(&*error);
                    if past.volumes.insert(backup.clone()) {
                        warn!(
                            location = name,
                            backup, error, "some PodVolumeBackups of a Backup are missing"
                        );
                    } else {
                        debug!(location = name, backup, error, "some PodVolumeBackups are still missing");
                    }
                }
            }
        }
    }

    async fn repair_one(
        &self,
        api: &Api<Backup>,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        name: &str,
    ) -> anyhow::Result<()> {
        let Some(backup) = api.get_opt(name).await? else { return Ok(()) };
        let gzip = stored.pod_volume_backups(name, None).await?;
        let gzip = gzip.context("their file is not in the store now")?;
        self.create_volumes(location, &backup, &StoredPodVolumeBackups::read(name, Some(&gzip))).await
    }
}

/// So many of all, from the one after the last of the round before on, so that those that cannot be
/// repaired keep no others from it.
pub(super) fn next_ones(all: &BTreeSet<String>, last: &str, most: usize) -> Vec<String> {
    let after = all.range::<str, _>((Bound::Excluded(last), Bound::Unbounded));
    let before = all.range::<str, _>((Bound::Unbounded, Bound::Included(last)));
    after.chain(before).take(most).cloned().collect()
}

/// One that exists counts if it is of this Backup. Of an earlier Backup of this name, the garbage
/// collector removes it soon.
async fn create_one(api: &Api<DynamicObject>, object: Value, uid: &str) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    match create(api, &object).await {
        WriteResult::Written(_) => Ok(()),
        WriteResult::Conflict(error) => {
            let found = api.get_metadata(&object.name_any()).await?;
            let is_ours = found.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid);
            if is_ours {
                Ok(())
            } else {
                Err(error).context("another Backup has a PodVolumeBackup of this name")
            }
        }
        WriteResult::Gone(error) => Err(error).context("the cluster has no PodVolumeBackups"),
        WriteResult::Refused(error) => Err(error).context("the API server refuses a PodVolumeBackup"),
        WriteResult::TimedOut => Err(anyhow!("the API server did not answer in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_one_that_lacks_something_has_its_turn() {
        let all: BTreeSet<String> = ["a", "b", "c", "d", "e"].map(str::to_owned).into();
        assert_eq!(next_ones(&all, "", 2), ["a", "b"]);
        assert_eq!(next_ones(&all, "b", 2), ["c", "d"]);
        assert_eq!(next_ones(&all, "d", 2), ["e", "a"]);
        assert_eq!(next_ones(&all, "bb", 9), ["c", "d", "e", "a", "b"], "one that is gone");
        assert!(next_ones(&BTreeSet::new(), "a", 2).is_empty());
    }
}
