//! From the claim on a folder in the store to the file that makes the backup visible, or to
//! nothing.
//!
//! 1. The claim. A run stores everything under its own claim, and neither overwrites nor removes
//!    what it did not write.
//! 2. All files but the last one.
//! 3. The permission to publish: one write to the Backup. A leader that is gone does not get it,
//!    because the leader that took over its run has taken over the Backup before. From here on the
//!    backup is complete: nothing ends it, and the leader that finds it publishes it.
//! 4. `velero-backup.json`, if there is none.

use std::time::Duration;

use anyhow::anyhow;
use berth_api::keys;
use berth_api::velero::backup::{BackupCounts, BackupProgress, HookStatus};
use berth_api::velero::{Backup, BackupPhase, BackupStatus, BackupStorageLocation};
use berth_core::claim::{FolderClaim, FolderDecision, judge};
use berth_core::operation::OperationCounts;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::Api;
use object_store::UpdateVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::begun::RunSite;
use super::engine::{CLOSING, Engine, OPENING, RunFailure, Signals};
use super::index::ArchiveIndex;
use super::list::ListError;
use super::log::{BackupLog, ResultsHeading, gzip_json};
use super::names::{PackedNames, ResourceList};
use super::predecessor::EarlierDeletion;
use super::status::{BackupWriter, WriteError};
use super::uploads::ArchivePlace;
use super::volumes::outcomes::StoredVolumeData;
use crate::patch::merge_into;
use crate::storage::{BackupArtifact, BackupLayout, ClaimError, ClaimedFolder, MultipartTarget};
use crate::text::chain;

/// The namespace by whose UID a cluster is known, as is common practice.
const OF_CLUSTER: &str = "kube-system";
const PAUSE: Duration = Duration::from_secs(5);
/// How long the removal of a failed backup's files is tried, because the store may be what failed.
const REMOVAL: Duration = Duration::from_secs(60);
/// How often a folder is read again whose claim has changed meanwhile, because each run of the
/// Backup sends one claim.
const LOOKS: usize = 5;

/// What the archive holds, and its size.
#[derive(Default)]
pub(super) struct StoredArchive {
    pub list: ResourceList,
    pub bytes: u64,
    /// `status.hookStatus`.
    pub hooks: Option<HookStatus>,
    /// The file of item operations.
    pub operations: Vec<Value>,
    /// How many operations there were, and what has become of them.
    pub counts: OperationCounts,
    pub volumes: StoredVolumeData,
    /// Where in the archive the objects are.
    pub index: ArchiveIndex,
}

impl Engine {
    /// The cluster's UID. Read once, and before a backup begins, because one that has begun could
    /// only fail for it.
    pub(super) async fn cluster_uid(&self) -> Result<&str, ListError> {
        let read = || async {
            let (api, lister): (Api<Namespace>, _) = (Api::all(self.client.clone()), self.lister());
            let found = lister.patiently("namespace kube-system", || api.get_metadata(OF_CLUSTER)).await?;
            let lacks = || {
                serde::de::Error::custom("namespace kube-system, by whose UID a cluster is known, has none")
            };
            found.metadata.uid.ok_or_else(|| ListError::Object(lacks()))
        };
        self.cluster.get_or_try_init(read).await.map(String::as_str)
    }

    /// Claims the folder for this run. `found`: the folder as it was a moment ago.
    pub(super) async fn claim(
        &self,
        record: &BackupWriter,
        location: &BackupStorageLocation,
        layout: &BackupLayout,
        parts: &MultipartTarget,
        run: &str,
        mut found: ClaimedFolder,
    ) -> Result<FolderClaim, RunFailure> {
        let ours = self.claim_of(record.uid(), run).await;
        let ours = ours.map_err(|error| RunFailure::Cluster(error.into()))?;
        let mut is_rest = false;
        if let Some(deletion) = found.folder.claim.clone() {
            let earlier = self.await_deletion(&ours, &deletion).await?;
            if earlier != EarlierDeletion::None {
                found = layout.look().await?;
                is_rest =
                    earlier == EarlierDeletion::Yielded && found.folder.claim.as_ref() == Some(&deletion);
            }
        }
        // What a deletion has left to this run is no backup any more, however much of it is there.
        found.folder.published &= !is_rest;
        let standing = &found.folder.claim;
        let replaces = match (judge(&ours, &found.folder), standing) {
            (FolderDecision::Ours, _) => return Ok(ours),
            (FolderDecision::Free, _) => None,
            (FolderDecision::Published, _) => return Err(ClaimError::Published.into()),
            (FolderDecision::IfGone, Some(claim)) => {
                if !self.is_gone(claim, layout.backup()).await? {
                    return Err(layout.taken(claim).into());
                }
                found.version
            }
            (FolderDecision::Taken, Some(claim)) if claim.is_of_backup_of(&ours) => {
                self.confirm_backup(&ours, layout.backup()).await?;
                found.version
            }
            (FolderDecision::Taken, Some(claim)) => return Err(layout.taken(claim).into()),
            (FolderDecision::Unclaimed | FolderDecision::IfGone | FolderDecision::Taken, _) => {
                return Err(ClaimError::Unclaimed(layout.folder()).into());
            }
        };
        let is_taken_over = standing.is_some();
        let earlier = standing.as_ref().filter(|claim| !claim.is_of_backup_of(&ours));
        if self.claim_over(layout, &ours, replaces).await? || is_taken_over {
            if let Some(earlier) = earlier {
                self.note_earlier(location, layout, earlier).await;
            }
            // Abort the uploads of the dead run, because a completed one would replace this run's
            // archive.
            self.clear(ArchivePlace { location, layout, parts, is_taken_over: true }, &ours, None).await;
            if is_rest {
                layout.empty(&ours).await?;
            } else {
                layout.remove(&ours, false).await?;
            }
        }
        Ok(ours)
    }

    /// Writes this run's claim in place of the one that was read. A claim that an earlier run of
    /// the Backup has sent may land after that: then the folder is read again. Returns whether that
    /// happened.
    pub(super) async fn claim_over(
        &self,
        layout: &BackupLayout,
        ours: &FolderClaim,
        mut replaces: Option<UpdateVersion>,
    ) -> Result<bool, RunFailure> {
        let mut looks = 0;
        loop {
            match layout.claim(ours, replaces).await {
                Err(ClaimError::Taken { .. }) if looks < LOOKS => looks += 1,
                done => {
                    done?;
                    return Ok(looks > 0);
                }
            }
            let found = layout.look().await?;
            if let Some(claim) = found.folder.claim.filter(|claim| !claim.is_of_backup_of(ours)) {
                return Err(layout.taken(&claim).into());
            }
            self.confirm_backup(ours, layout.backup()).await?;
            replaces = found.version;
        }
    }

    /// Checks that the Backup is still this run's, between reading a claim and replacing it. A
    /// later run takes the Backup over before it claims the folder, so a claim that was read before
    /// this check is of no later run.
    async fn confirm_backup(&self, ours: &FolderClaim, name: &str) -> Result<(), RunFailure> {
        let api: Api<Backup> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = self.lister().patiently("the Backup", || api.get_metadata_opt(name)).await;
        let found = found.map_err(|error| RunFailure::Cluster(error.into()))?;
        match found.filter(|found| found.metadata.uid.as_ref() == Some(&ours.backup)) {
            Some(found) if found.annotations().get(keys::RUN) == Some(&ours.run) => Ok(()),
            Some(_) => Err(RunFailure::Write(WriteError::Taken)),
            None => Err(RunFailure::Write(WriteError::Gone)),
        }
    }

    /// Whether the Backup of this claim is gone. Then its run gets no permission to publish; a run
    /// that already has it checks its claim before each attempt.
    async fn is_gone(&self, claim: &FolderClaim, name: &str) -> Result<bool, RunFailure> {
        // The namespace becomes part of a URL, and anybody may have written the claim.
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if claim.namespace.is_empty() || claim.namespace.len() > 63 || !claim.namespace.chars().all(is_name) {
            return Ok(false);
        }
        let api: Api<Backup> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = self.lister().patiently("who claims the folder", || api.get_metadata_opt(name)).await;
        let found = found.map_err(|error| RunFailure::Cluster(error.into()))?;
        Ok(found.is_none_or(|found| found.metadata.uid.as_ref() != Some(&claim.backup)))
    }

    /// Stores the files beside the archive, then publishes the backup. Returns the final status.
    pub(super) async fn publish(
        &self,
        record: &mut BackupWriter,
        site: &RunSite,
        log: &BackupLog,
        stored: &StoredArchive,
        signals: &Signals,
    ) -> Result<Value, RunFailure> {
        let (layout, claim) = (&site.layout, &site.claim);
        let counts = log.counts();
        let items: usize = stored.list.values().map(PackedNames::len).sum();
        let counts = BackupCounts {
            warnings: counts.warnings,
            errors: counts.errors,
            hooks: stored.hooks,
            operations: stored.counts,
            snapshots: stored.volumes.snapshots,
        };
        let recorded = &record.object().data["status"];
        let mut status = BackupStatus::stored(items, Timestamp::now(), &counts, recorded);
        log.info(&format!("backup ends: {}", outcome(&status).as_str()));
        // If the claim is gone nobody would own these files.
        layout.confirm(claim).await?;
        let (lines, results) = log.files().map_err(RunFailure::File)?;
        let none = gzip_json(&json!([])).map_err(RunFailure::File)?;
        let mut files = vec![
            (BackupArtifact::ResourceList, gzip_json(&stored.list).map_err(RunFailure::File)?),
            (BackupArtifact::Results, results),
            (BackupArtifact::VolumeInfo, gzip_json(&stored.volumes.infos).map_err(RunFailure::File)?),
            (BackupArtifact::PodVolumeBackups, gzip_json(&stored.volumes.files).map_err(RunFailure::File)?),
            (BackupArtifact::VolumeSnapshots, none),
            (BackupArtifact::ItemOperations, gzip_json(&stored.operations).map_err(RunFailure::File)?),
            (BackupArtifact::Logs, lines),
        ];
        let index = stored.index.file(stored.bytes).map_err(RunFailure::File)?;
        match index {
            Some(index) => files.push((BackupArtifact::Index, index)),
            None if site.is_taken_over => remove_index(layout, claim).await?,
            // The folder was empty when this run claimed it, or was emptied then.
            None => {}
        }
        let puts = files.into_iter().map(|(artifact, gzip)| layout.put_artifact(artifact, gzip));
        // Wait for every request, because one under way could store a file after its removal.
        for put in join_all(puts).await {
            put.map_err(RunFailure::Store)?;
        }
        let (confirmed, found) = tokio::join!(layout.confirm(claim), layout.archive_size());
        confirmed?;
        let found = found.map_err(RunFailure::Store)?;
        if found != stored.bytes {
            return Err(RunFailure::Changed { written: stored.bytes, found });
        }
        if let Some(failure) = signals.raised() {
            return Err(failure);
        }
        record.may_publish(&status, OPENING).await.map_err(RunFailure::Write)?;
        // From here on nothing ends the backup.
        let begun = Instant::now();
        loop {
            // The Backup may have been deleted with its folder, and recreated, meanwhile.
            let error = match layout.confirm(claim).await {
                Ok(()) => match self.show(record, layout, &status).await {
                    Ok(true) => {
                        let phase = outcome(&status);
                        merge_into(&mut status, BackupStatus::in_phase(phase));
                        return Ok(status);
                    }
                    Ok(false) => match self.shown(layout, &claim.backup).await {
                        Ok(PublicationState::Ours(shown)) => return Ok(shown),
                        Ok(PublicationState::Strange) => return Err(ClaimError::Published.into()),
                        Ok(PublicationState::Nothing) => unsettled(),
                        Err(error) => error,
                    },
                    Err(error) => error,
                },
                Err(ClaimError::Store(error)) => error,
                Err(error) => return Err(error.into()),
            };
            if begun.elapsed() >= CLOSING {
                return Err(RunFailure::Write(WriteError::Unpublished(error)));
            }
            warn!(
                name = layout.backup(),
                error = chain(&error),
                "could not write the last file of a backup: trying again"
            );
            sleep(PAUSE).await;
        }
    }

    /// Writes the file that makes the backup visible. `false`: the file exists already.
    pub(super) async fn show(
        &self,
        record: &BackupWriter,
        layout: &BackupLayout,
        status: &Value,
    ) -> object_store::Result<bool> {
        let unreadable = |error: serde_json::Error| object_store::Error::Generic {
            store: "metadata",
            source: error.into(),
        };
        let mut stored = serde_json::to_value(record.object()).map_err(unreadable)?;
        stored["status"]["phase"] = json!(outcome(status).as_str());
        if let (Some(stored), Some(status)) = (stored["status"].as_object_mut(), status.as_object()) {
            stored.extend(status.clone());
        }
        let metadata = serde_json::to_vec_pretty(&stored).map_err(unreadable)?;
        layout.put_metadata(&metadata).await
    }

    /// Reads the file that makes a backup visible.
    pub(super) async fn shown(
        &self,
        layout: &BackupLayout,
        uid: &str,
    ) -> object_store::Result<PublicationState> {
        let Some(metadata) = layout.read_metadata().await? else { return Ok(PublicationState::Nothing) };
        let unreadable = |error: serde_json::Error| object_store::Error::Generic {
            store: "metadata",
            source: error.into(),
        };
        // Anybody who may write to the store may have written this file, so it decides no more than
        // how a stored backup ends, and nothing else of it is kept.
        let PublishedBackup { metadata, status } = match serde_json::from_slice(&metadata) {
            Ok(stored) => stored,
            Err(error) if error.is_data() => return Ok(PublicationState::Strange),
            Err(error) => return Err(unreadable(error)),
        };
        let is_end = [BackupPhase::Completed, BackupPhase::PartiallyFailed]
            .iter()
            .any(|phase| status.phase == phase.as_str());
        if metadata.uid != uid || !is_end {
            return Ok(PublicationState::Strange);
        }
        Ok(PublicationState::Ours(serde_json::to_value(status).map_err(unreadable)?))
    }

    /// Removes what the run has stored; a failed run's log and claim stay.
    pub(super) async fn give_up(
        &self,
        layout: &BackupLayout,
        claim: &FolderClaim,
        log: &BackupLog,
        failure: &RunFailure,
    ) {
        let is_unwanted = match failure {
            // Another run has the backup, or the permission to publish may have been written
            // without an answer.
            RunFailure::Write(WriteError::Taken | WriteError::Time(_) | WriteError::Unpublished(_)) => return,
            RunFailure::Canceled | RunFailure::Deleted | RunFailure::Write(WriteError::Gone) => true,
            // The deletion of the Backup removes the folder, and may have listed its files already.
            RunFailure::Write(WriteError::Phase(phase)) if phase == BackupPhase::Deleting.as_str() => true,
            _ => false,
        };
        let told = async {
            let is_ours = layout.remove(claim, is_unwanted).await?;
            if is_ours && !is_unwanted {
                self.keep_log(layout, log, &chain(failure)).await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let told =
            timeout(REMOVAL, told).await.unwrap_or_else(|_| Err(anyhow!("the store did not answer in time")));
        if let Err(error) = told {
            let name = layout.backup();
            warn!(%name, error = format!("{error:#}"), "could not remove the failed backup's files from its location, or could not store its log");
        }
    }

    /// Stores what `velero backup logs` and `velero backup describe` show of a failed backup.
    pub(super) async fn keep_log(
        &self,
        layout: &BackupLayout,
        log: &BackupLog,
        reason: &str,
    ) -> anyhow::Result<()> {
        log.error(&ResultsHeading::Velero, "", reason);
        let (lines, results) = log.files()?;
        layout.put_artifact(BackupArtifact::Logs, lines).await?;
        layout.put_artifact(BackupArtifact::Results, results).await?;
        Ok(())
    }
}

/// Removes the index that an earlier run has stored, where this one has none. It is only a hint,
/// which is not believed of another archive, so a store that keeps it does not end the backup.
async fn remove_index(layout: &BackupLayout, claim: &FolderClaim) -> Result<(), ClaimError> {
    match layout.remove_index(claim).await {
        Err(ClaimError::Store(error)) => {
            let name = layout.backup();
            warn!(%name, error = chain(&error), "could not remove the index of an earlier run, which no reader takes for that of this archive");
            Ok(())
        }
        removed => removed,
    }
}

/// Parts of the file that makes a backup visible.
#[derive(Deserialize)]
struct PublishedBackup {
    #[serde(default)]
    metadata: PublishedMetadata,
    #[serde(default)]
    status: PublishedStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PublishedMetadata {
    uid: String,
}

/// What the status of a stored backup says of its end.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct PublishedStatus {
    phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<BackupProgress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warnings: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hook_status: Option<HookStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    csi_volume_snapshots_attempted: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    csi_volume_snapshots_completed: Option<i64>,
}

/// What the file that makes a backup visible says.
pub(super) enum PublicationState {
    /// There is no such file.
    Nothing,
    /// How this Backup ended.
    Ours(Value),
    /// It is of another Backup, or does not say how a backup ended.
    Strange,
}

/// The store says that the file exists while it is still being written, by an abandoned request of
/// our own.
pub(super) fn unsettled() -> object_store::Error {
    object_store::Error::Generic {
        store: "metadata",
        source: "another request writes velero-backup.json just now".into(),
    }
}

/// The phase of a stored backup.
pub(super) fn outcome(status: &Value) -> BackupPhase {
    let has_errors = status["errors"].as_u64().is_some_and(|errors| errors > 0);
    if has_errors { BackupPhase::PartiallyFailed } else { BackupPhase::Completed }
}
