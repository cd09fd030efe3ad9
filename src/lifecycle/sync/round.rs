//! One round of the sync of one location.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use berth_api::keys;
use berth_api::velero::{
    Backup, BackupStorageLocation, BackupStorageLocationPhase as Phase, BackupStorageLocationStatus,
};
use berth_api::velero::{DeleteBackupRequest, DeleteBackupRequestPhase};
use berth_core::sync::{Doubtful, SyncPlan, SyncSkipReason, Tag};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::take::{Allowance, FolderResult, SyncRoundContext};
use super::volumes::next_ones;
use super::{Past, READS_AT_ONCE, Sync, reference};
use crate::events::EventReason;
use crate::lean;
use crate::lifecycle::deletion::calls::list;
use crate::storage::{ListedFolder, StoredBackups};
use crate::text::{chain, few};
use crate::write::{Write, WriteResult, delete, patch};

/// After so many failures of the store the round ends.
const MOST_FAILURES: usize = 10;
/// If more than one folder in so many is new, all files are listed at once, and not asked for one
/// by one.
const LISTED_FROM: usize = 50;
/// How many names of one round are logged one by one.
const MOST_TOLD: usize = 20;

/// How many folders without metadata one round looks at for what a Backup has left. Whoever may
/// write to the store may make any number of them.
const MOST_BARE: usize = 10;
/// No removal is asked for while a location has so many that have not ended.
const MOST_REMOVALS: usize = 20;

/// The DeleteBackupRequests that have not ended.
struct OpenDeletions {
    /// The names of their Backups.
    names: BTreeSet<String>,
    /// How many of them remove what a Backup has left in the location.
    removals: usize,
}

/// What a round could not create.
#[derive(Default)]
struct RoundFailures {
    /// The store or the API server failed.
    failed: bool,
    /// The round has reached its limit.
    later: bool,
}

impl Sync<'_> {
    pub(super) async fn round(&self, location: &BackupStorageLocation, past: &mut Past) {
        let name = location.name_any();
        let last = location.status.as_ref().and_then(|s| s.last_synced_time.as_ref()).map(|time| time.0);
        let last = last.max(past.begun);
        let spec = serde_json::to_value(&location.spec).unwrap_or_default();
        if past.spec != spec {
            *past = Past { spec, ..Past::default() };
        }
        past.begun = Some(Timestamp::now());
        match self.try_round(location, past, last).await {
            Ok(()) => past.said.clear(),
            Err(error) => {
                past.memory.failed();
                let said = chain(&*error);
                let label = super::metrics::ByLocation { location: name.clone() };
                self.lifecycle.sync_metrics.failed.get_or_create(&label).inc();
                if said != past.said {
                    warn!(location = name, error = said, "failed to sync the storage location");
                    past.said = said;
                }
            }
        }
    }

    async fn try_round(
        &self,
        location: &BackupStorageLocation,
        past: &mut Past,
        last: Option<Timestamp>,
    ) -> anyhow::Result<()> {
        let (lifecycle, name) = (self.lifecycle, location.name_any());
        let store = lifecycle.opener.open(location).await?;
        let stored = StoredBackups::new(store, location.spec.object_storage.prefix.as_deref());
        // Read before the list, because a Backup that ends while the store is listed is not in the
        // list.
        let before = lifecycle.known.standings(&name);
        let listing = stored.names().await.context("failed to list the backups of the store")?;
        let after = lifecycle.known.standings(&name);
        let plan = past.memory.plan(&listing, &before, &after, Timestamp::now());
        self.tell_names(location, &plan, past);
        let RoundFailures { mut failed, later } =
            self.create(location, &stored, &plan, listing.names.len(), past, last).await?;
        failed |= !self.remove(location, &stored, &plan.doubtful, past).await;
        self.repair(location, &stored, past).await;
        self.note(location, !(failed || later) && past.memory.has_all(&listing, &plan)).await;
        let counts = past.memory.skipped();
        let count = |why: SyncSkipReason| counts.get(&why).copied().unwrap_or(0);
        lifecycle.sync_metrics.round(&name, count, Timestamp::now());
        debug!(location = name, names = listing.names.len(), ?plan, "storage location is synced");
        ensure!(!failed, "the store or the API server failed for some backups: a later round creates them");
        Ok(())
    }

    fn tell_names(&self, location: &BackupStorageLocation, plan: &SyncPlan, past: &mut Past) {
        let name = location.name_any();
        for (names, why) in [(&plan.invalid, SyncSkipReason::Name), (&plan.taken, SyncSkipReason::NameTaken)]
        {
            self.tell_skipped(location, why, names, "");
        }
        if plan.spared > 0 && plan.spared != past.spared {
            warn!(
                location = name,
                backups = plan.spared,
                "the store lists none or not all of its backups: the Backups that it lacks stay"
            );
        }
        past.spared = plan.spared;
    }

    /// Logs each of the folders, and sends one Event.
    fn tell_skipped(
        &self,
        location: &BackupStorageLocation,
        why: SyncSkipReason,
        names: &[String],
        more: &str,
    ) {
        if names.is_empty() {
            return;
        }
        let message = format!("{}{}{more}", why.message(), if more.is_empty() { "" } else { ": " });
        for folder in names.iter().take(MOST_TOLD) {
            // Escaped, because somebody else chose the name.
            warn!(location = location.name_any(), ?folder, "a stored backup gets no Backup: {message}");
        }
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        let note = format!("{}: {message}", few(&names));
        self.lifecycle.events.tell_about(EventReason::NotSynced, reference(location), note);
    }

    /// Reads the new folders, and creates their Backups.
    async fn create(
        &self,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        plan: &SyncPlan,
        folders: usize,
        past: &mut Past,
        last: Option<Timestamp>,
    ) -> anyhow::Result<RoundFailures> {
        if plan.read.is_empty() {
            return Ok(RoundFailures::default());
        }
        let name = location.name_any();
        let period = self.period(location).unwrap_or(SignedDuration::ZERO);
        let OpenDeletions { names: deleted, mut removals } = self.being_deleted(&name).await?;
        past.brought.retain(|backup, _| self.lifecycle.known.get(backup).is_some());
        let mut standing = self.lifecycle.known.size(&name);
        standing.bytes = past.brought.values().fold(standing.bytes, |all, bytes| all.saturating_add(*bytes));
        let allowance = Allowance::new(standing);
        let site = SyncRoundContext { sync: self, location, stored, deleted: &deleted, allowance };
        let site = &site;
        let new = plan.read.iter().cloned();
        // Backups are created while the list goes on, because a large store takes seconds to list.
        let found: BoxStream<'_, object_store::Result<ListedFolder>> =
            match plan.read.len().saturating_mul(LISTED_FROM) >= folders {
                true => stored.files(new.collect(), folders),
                false => futures::stream::iter(new.map(|folder| Ok((folder, None)))).boxed(),
            };
        let mut reads = found
            .map(|found| async move {
                let (folder, files) = found?;
                let taken = site.take(&folder, files.as_ref()).await;
                Ok::<_, object_store::Error>((folder, taken))
            })
            .buffer_unordered(READS_AT_ONCE);
        let (mut failures, mut created, mut later) = (0, 0_usize, 0_usize);
        let mut told: Vec<(SyncSkipReason, String, String)> = Vec::new();
        let (mut bare, mut unlisted) = (BTreeSet::new(), None);
        while let Some(read) = reads.next().await {
            let (folder, taken) = match read {
                Ok(read) => read,
                Err(error) => {
                    unlisted = Some(error);
                    break;
                }
            };
            let folder = &folder;
            match taken {
                FolderResult::Created { ended, volumes } => {
                    created += 1;
                    if volumes > 0 {
                        past.brought.insert(folder.clone(), volumes);
                    }
                    past.memory.forget(folder);
                    let label = super::metrics::ByLocation { location: name.clone() };
                    self.lifecycle.sync_metrics.created.get_or_create(&label).inc();
                    info!(location = name, backup = folder, "created a Backup that the store has");
                    self.look_for_others(location, stored, folder, ended, last, past).await;
                }
                FolderResult::Skipped { why, tag, more } => {
                    let is_new = past.memory.skip(folder, why, tag, period, Timestamp::now());
                    if is_new && !why.passes() {
                        told.push((why, more, folder.clone()));
                    }
                    if !is_new && why == SyncSkipReason::NoMetadata {
                        bare.insert(folder.clone());
                    }
                }
                // Another client has created it; the watch will show it.
                FolderResult::Exists => {
                    past.memory.skip(
                        folder,
                        SyncSkipReason::Unfinished,
                        Tag::new(),
                        period,
                        Timestamp::now(),
                    );
                }
                FolderResult::Later => later += 1,
                FolderResult::Failed(why) => {
                    failures += 1;
                    if failures == 1 {
                        warn!(
                            location = name,
                            backup = folder,
                            error = why,
                            "failed to create the Backup of a stored backup"
                        );
                    }
                    if failures >= MOST_FAILURES {
                        break;
                    }
                }
            }
        }
        for folder in next_ones(&bare, &past.looked, MOST_BARE) {
            if removals >= MOST_REMOVALS {
                break;
            }
            removals += usize::from(self.look_for_orphan(location, stored, &folder, past).await);
            past.looked = folder;
        }
        if later > 0 {
            info!(
                location = name,
                folders = later,
                "the round has reached its limit: later rounds create the rest"
            );
        }
        told.sort_unstable();
        for same in told.chunk_by(|a, b| (a.0, &a.1) == (b.0, &b.1)) {
            let names: Vec<String> = same.iter().map(|one| one.2.clone()).collect();
            if let Some((why, more, _)) = same.first() {
                self.tell_skipped(location, *why, &names, more);
            }
        }
        if created > 0 {
            info!(location = name, created, "created Backups that the store has");
        }
        if let Some(error) = unlisted {
            return Err(error).context("failed to list the files of the store");
        }
        Ok(RoundFailures { failed: failures > 0, later: later > 0 })
    }

    /// Backups for which a DeleteBackupRequest exists are not created again while their files are
    /// removed.
    async fn being_deleted(&self, location: &str) -> anyhow::Result<OpenDeletions> {
        let api: Api<DynamicObject> = Api::namespaced_with(
            self.lifecycle.clients.call.clone(),
            &self.lifecycle.namespace,
            &ApiResource::erase::<DeleteBackupRequest>(&()),
        );
        let mut open = OpenDeletions { names: BTreeSet::new(), removals: 0 };
        // Read as untyped objects, because with Velero's definitions a request may lack its spec.
        // Such a request is for no Backup, and must not stop all rounds.
        let listed = list(&api, None, |request| {
            let text = |pointer: &str| request.data.pointer(pointer).and_then(Value::as_str);
            let is_open = text("/status/phase") != Some(DeleteBackupRequestPhase::Processed.as_str());
            if is_open {
                open.names.extend(text("/spec/backupName").map(|name| lean::name(name.to_owned())));
                let is_here =
                    request.annotations().get(keys::DELETES_IN).is_some_and(|here| here == location);
                open.removals += usize::from(is_here && request.name_any().starts_with("removal-"));
            }
            false
        });
        listed.await.context("failed to list the DeleteBackupRequests")?;
        Ok(open)
    }

    /// Removes Backups that the store has lacked for two rounds. `false`: the store failed.
    async fn remove(
        &self,
        location: &BackupStorageLocation,
        stored: &StoredBackups,
        doubtful: &[Doubtful],
        past: &mut Past,
    ) -> bool {
        let name = location.name_any();
        let looks = futures::stream::iter(doubtful)
            .map(|one| async move { (one, stored.is_there(&one.name).await) })
            .buffer_unordered(READS_AT_ONCE);
        let looked: Vec<_> = looks.collect().await;
        let mut is_well = true;
        for (one, found) in looked {
            if let Err(error) = &found {
                is_well = false;
                debug!(
                    location = name,
                    backup = one.name,
                    error = chain(error),
                    "failed to look for a backup"
                );
            }
            if past.memory.looked(one, found.ok()) {
                self.remove_one(&name, one).await;
            }
        }
        is_well
    }

    async fn remove_one(&self, location: &str, one: &Doubtful) {
        let known = &self.lifecycle.known;
        let still = known.location(location).and_then(|location| location.status?.phase);
        let Some(backup) = known.get(&one.name) else { return };
        if still != Some(Phase::Available) || backup.uid != one.uid {
            return;
        }
        let api: Api<Backup> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        // On the version that was decided on, because somebody may use the Backup by now.
        let write = Write::to(&one.name).uid(Some(&one.uid)).version(Some(&backup.resource_version));
        match delete(&api, write).await {
            WriteResult::Written(()) | WriteResult::Gone(_) => {
                known.forget(&one.name, &one.uid);
                let label = super::metrics::ByLocation { location: location.to_owned() };
                self.lifecycle.sync_metrics.removed.get_or_create(&label).inc();
                info!(location, backup = one.name, "removed a Backup that the store has no longer");
            }
            WriteResult::Conflict(_) => {}
            WriteResult::Refused(error) => {
                warn!(location, backup = one.name, error = chain(&error), "failed to remove a Backup");
            }
            WriteResult::TimedOut => warn!(location, backup = one.name, "removing a Backup took too long"),
        }
    }

    /// Writes `lastSyncedTime`, and whether the cluster has every backup of the store.
    async fn note(&self, location: &BackupStorageLocation, has_all: bool) {
        let api: Api<BackupStorageLocation> =
            Api::namespaced(self.lifecycle.clients.call.clone(), &self.lifecycle.namespace);
        let now = Timestamp::now();
        let change = json!({
            "metadata": {"annotations": {keys::ALL_BROUGHT: has_all.then(|| now.to_string())}},
            "status": BackupStorageLocationStatus::synced(now),
        });
        let uid = location.metadata.uid.as_deref();
        match patch(&api, Write::to(&location.name_any()).uid(uid), change).await {
            WriteResult::Written(_) | WriteResult::Conflict(_) | WriteResult::Gone(_) => {}
            WriteResult::Refused(error) => {
                let error = chain(&error);
                warn!(location = location.name_any(), error, "failed to write when the location was synced");
            }
            WriteResult::TimedOut => {
                warn!(location = location.name_any(), "writing when the location was synced took too long");
            }
        }
    }
}
