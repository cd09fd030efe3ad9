//! Creates a Backup from a folder of the store.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::sync::{
    BackupCapacity, Size, SyncSkipReason, Tag, is_written_by_copy, is_written_elsewhere, room,
};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::NamespaceResourceScope;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::object::{SyncedBackup, backup};
use super::volumes::StoredPodVolumeBackups;
use super::{Past, Sync, reference};
use crate::client::{is_forbidden, is_not_found, is_too_large, is_unprocessable};
use crate::events::EventReason;
use crate::patch::{json_size, merge_into};
use crate::storage::{FolderFiles, MetadataFile, StoredBackups};
use crate::text::chain;
use crate::write::{WriteResult, create};

pub(super) const CALL: Duration = Duration::from_secs(30);
/// How many other clusters are reported for one location.
const MOST_OTHERS: usize = 10;
/// Characters that are kept of the API server's reason for refusing a Backup.
const REASON: usize = 300;

/// What the reads of one round share.
pub(super) struct SyncRoundContext<'r> {
    pub(super) sync: &'r Sync<'r>,
    pub(super) location: &'r BackupStorageLocation,
    pub(super) stored: &'r StoredBackups,
    /// Names of Backups that are being deleted.
    pub(super) deleted: &'r BTreeSet<String>,
    pub(super) allowance: Allowance,
}

/// How many more Backups the round may create.
pub(super) struct Allowance {
    /// What the location had in the cluster before the round.
    standing: Size,
    /// What the round has created since. `true`: the limit is reached.
    brought: Mutex<(Size, bool)>,
}

impl Allowance {
    pub(super) fn new(standing: Size) -> Self {
        Self { standing, brought: Mutex::default() }
    }

    /// Checks for room before anything is read.
    fn look(&self) -> BackupCapacity {
        let (brought, is_spent) = *self.brought.lock();
        if is_spent { BackupCapacity::Later } else { room(self.standing, brought, 0) }
    }

    /// Reserves room for a Backup, if there is enough.
    fn take(&self, bytes: usize) -> BackupCapacity {
        let (brought, is_spent) = &mut *self.brought.lock();
        let found = room(self.standing, *brought, bytes);
        match found {
            BackupCapacity::Enough => *brought = brought.with(bytes),
            BackupCapacity::Later => *is_spent = true,
            BackupCapacity::None => {}
        }
        found
    }
}

/// The result of a folder.
pub(super) enum FolderResult {
    Created {
        /// When the backup ended.
        ended: Option<Timestamp>,
        /// Bytes of its PodVolumeBackups.
        volumes: usize,
    },
    Skipped {
        why: SyncSkipReason,
        tag: Tag,
        more: String,
    },
    Exists,
    /// The round has created enough; a later round reads the folder.
    Later,
    /// The next round tries again.
    Failed(String),
}

impl SyncRoundContext<'_> {
    /// `files`: of the folder, if they were listed.
    pub(super) async fn take(&self, name: &str, files: Option<&FolderFiles>) -> FolderResult {
        let skipped = |why, tag| FolderResult::Skipped { why, tag, more: String::new() };
        match self.allowance.look() {
            BackupCapacity::Enough => {}
            BackupCapacity::Later => return FolderResult::Later,
            BackupCapacity::None => return skipped(SyncSkipReason::NoRoom, Tag::new()),
        }
        if self.deleted.contains(name) {
            return skipped(SyncSkipReason::BeingDeleted, Tag::new());
        }
        if files.is_some_and(|files| !files.has_metadata()) {
            return skipped(SyncSkipReason::NoMetadata, Tag::new());
        }
        let (json, tag) = match self.stored.metadata(name).await {
            Ok(MetadataFile::Found { json, tag }) => (json, tag),
            Ok(MetadataFile::TooLarge(tag)) => return skipped(SyncSkipReason::TooLarge, tag),
            Ok(MetadataFile::Absent) => return skipped(SyncSkipReason::NoMetadata, Tag::new()),
            Err(error) => return FolderResult::Failed(chain(&error)),
        };
        let namespace = &self.sync.lifecycle.namespace;
        let restored = backup(name, &json, &self.location.name_any(), namespace, Timestamp::now());
        drop(json);
        let restored = match restored {
            Ok(restored) => restored,
            Err(why) => return skipped(why, tag),
        };
        // Velero writes it after the metadata. A backup that failed may have none, and nobody can
        // restore it.
        if restored.object["status"]["phase"] != "Failed" {
            match self.stored.has_archive(name, files).await {
                Ok(true) => {}
                Ok(false) => {
                    return match self.stored.last_written(name).await {
                        Ok(written) => {
                            skipped(SyncSkipReason::without_archive(written, Timestamp::now()), tag)
                        }
                        Err(error) => FolderResult::Failed(chain(&error)),
                    };
                }
                Err(error) => return FolderResult::Failed(chain(&error)),
            }
        }
        match self.stored.deletion(name, files).await {
            Ok(None) => {}
            Ok(Some(claim)) => return skipped(SyncSkipReason::HalfDeleted, claim),
            Err(error) => return FolderResult::Failed(chain(&error)),
        }
        // Read before the Backup is created, because no later round would read the folder of a
        // Backup that exists.
        let volumes = match self.stored.pod_volume_backups(name, files).await {
            Ok(gzip) => StoredPodVolumeBackups::read(name, gzip.as_deref()),
            Err(error) => return FolderResult::Failed(chain(&error)),
        };
        // The room is reserved before the API server is asked, because other folders are read
        // meanwhile.
        let bytes = json_size(&restored.object).saturating_add(volumes.bytes());
        match self.allowance.take(bytes) {
            BackupCapacity::Enough => {}
            BackupCapacity::Later => return FolderResult::Later,
            BackupCapacity::None => return skipped(SyncSkipReason::NoRoom, Tag::new()),
        }
        match self.create(name, restored, volumes, &tag).await {
            Ok(taken) => taken,
            Err(error) => FolderResult::Failed(chain(&*error)),
        }
    }

    async fn create(
        &self,
        name: &str,
        restored: SyncedBackup,
        volumes: StoredPodVolumeBackups,
        tag: &str,
    ) -> anyhow::Result<FolderResult> {
        let lifecycle = self.sync.lifecycle;
        let SyncedBackup { mut object, ended, owners } = restored;
        let owners = self.owners(owners).await?;
        if !owners.is_empty() {
            merge_into(&mut object, json!({"metadata": {"ownerReferences": owners}}));
        }
        if !volumes.is_empty() {
            merge_into(&mut object, json!({"metadata": {"annotations": {keys::VOLUMES_MISSING: "true"}}}));
        }
        let api: Api<DynamicObject> = Api::namespaced_with(
            lifecycle.clients.call.clone(),
            &lifecycle.namespace,
            &ApiResource::erase::<Backup>(&()),
        );
        let object: DynamicObject = serde_json::from_value(object)?;
        let created = match create(&api, &object).await {
            WriteResult::Written(created) => created,
            WriteResult::Conflict(_) => return Ok(FolderResult::Exists),
            WriteResult::Gone(error) => return Err(error).context("there is no such namespace or kind"),
            WriteResult::Refused(error)
                if is_unprocessable(&error) || is_too_large(&error) || is_forbidden(&error) =>
            {
                let more: String = chain(&error).chars().take(REASON).collect();
                return Ok(FolderResult::Skipped { why: SyncSkipReason::Refused, tag: tag.to_owned(), more });
            }
            WriteResult::Refused(error) => return Err(error).context("the API server refuses the Backup"),
            WriteResult::TimedOut => anyhow::bail!("the API server did not answer in time"),
        };
        let created: Backup = read_again(&created).context("the Backup that was created cannot be read")?;
        lifecycle.known.assume(&created);
        if !volumes.is_empty() {
            // The annotation says what is still missing.
            if let Err(error) = self.sync.create_volumes(self.location, &created, &volumes).await {
                debug!(backup = name, error = chain(&*error), "some PodVolumeBackups come in a later round");
            }
        }
        Ok(FolderResult::Created { ended, volumes: volumes.bytes() })
    }

    /// The owners that exist in this cluster, too. The garbage collector would take an owner of
    /// another cluster for deleted, and remove the Backup.
    async fn owners(&self, owners: Vec<Value>) -> anyhow::Result<Vec<Value>> {
        let mut kept = Vec::new();
        for owner in owners {
            let (name, uid) = (owner["name"].as_str(), owner["uid"].as_str());
            let (Some(name), Some(uid)) = (name, uid) else { continue };
            let kind = ApiResource {
                group: "velero.io".to_owned(),
                version: "v1".to_owned(),
                api_version: "velero.io/v1".to_owned(),
                kind: "Schedule".to_owned(),
                plural: "schedules".to_owned(),
            };
            let lifecycle = self.sync.lifecycle;
            let api: Api<DynamicObject> =
                Api::namespaced_with(lifecycle.clients.call.clone(), &lifecycle.namespace, &kind);
            if !berth_core::sync::is_name(name) {
                continue;
            }
            let found = timeout(CALL, api.get_metadata(name)).await;
            match found.context("reading a Schedule took too long")? {
                Ok(found) if found.metadata.uid.as_deref() == Some(uid) => kept.push(owner),
                Ok(_) => {}
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(error).context("failed to read the Schedule of a Backup"),
            }
        }
        Ok(kept)
    }
}

/// The API server's answer, as the type that the caches use.
pub(super) fn read_again<K>(object: &impl Serialize) -> Result<K, serde_json::Error>
where
    K: kube::Resource<Scope = NamespaceResourceScope> + serde::de::DeserializeOwned,
{
    serde_json::to_value(object).and_then(serde_json::from_value)
}

impl Sync<'_> {
    /// Reports once that another cluster writes below this location.
    pub(super) async fn look_for_others(
        &self,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        name: &str,
        ended: Option<Timestamp>,
        last: Option<Timestamp>,
        past: &mut Past,
    ) {
        let is_read_only = location.spec.access_mode == Some(AccessMode::ReadOnly);
        // Without a recent end the claim does not matter, and costs two requests.
        let is_recent = is_written_elsewhere(last, ended, Some("another"), "this");
        if is_read_only || !is_recent || past.others.len() >= MOST_OTHERS {
            return;
        }
        let Ok(cluster) = self.lifecycle.cluster_uid().await else { return };
        let Ok(Ok(found)) = timeout(CALL, stored.layout(name).look()).await else { return };
        let Some(claim) = found.folder.claim else { return };
        if is_written_by_copy(last, ended, &claim, cluster, &self.lifecycle.namespace) {
            if past.others.insert(cluster.to_owned()) {
                let note = format!(
                    "{name:?} was stored here since the last round by a Backup of this cluster that this cluster does not have: \
                     somebody has removed it, or a copy of this cluster writes here, too, and may delete what this cluster has: \
                     give the copy locations of its own"
                );
                warn!(location = location.name_any(), "{note}");
                self.lifecycle.events.tell_about(EventReason::WrittenElsewhere, reference(location), note);
            }
            return;
        }
        let by = Some(claim.cluster);
        let Some(by) = by.filter(|by| is_written_elsewhere(last, ended, Some(by), cluster)) else { return };
        let by: String = by.chars().filter(|c| !c.is_control()).take(63).collect();
        if past.others.insert(by.clone()) {
            let note = format!(
                "the cluster with UID {by} writes backups here, too ({name:?}): give each cluster a prefix of its own, and a \
                 location with accessMode ReadOnly for the other one's"
            );
            warn!(location = location.name_any(), "{note}");
            self.lifecycle.events.tell_about(EventReason::WrittenElsewhere, reference(location), note);
        }
    }
}
