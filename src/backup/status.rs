//! Writes to a Backup that runs. Each write is based on the version last seen and is repeated until
//! it succeeds or the Backup is not this run's any more. An annotation names the run that has the
//! Backup: a leader that takes over a dead leader's backup replaces it, and if the dead leader
//! wakes up it writes nothing more.
//!
//! Whoever may patch a Backup can change its version faster than it can be read and written. So
//! after a few conflicts a write does not name the version any more, but the fields that the
//! decision was based on: the UID, the phase, and the run.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use berth_api::keys::{self, is_set};
use berth_api::velero::{Backup, BackupPhase, BackupStatus};
use berth_core::retention::behind;
use berth_core::run::Runs;
use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::client::{is_too_large, is_unprocessable};
use crate::patch::merge_into;
use crate::queue::refusals::is_lasting;
use crate::text::chain;
use crate::write::{Pauses, Write, WriteResult, patch_to_fit, patch_where};

const CALL: Duration = Duration::from_secs(10);
/// After so many conflicts of one write the version is not a condition of it any more.
const CONFLICTS: u32 = 3;
/// How often the Backup is read before what it has made is cleaned up.
const READS: u32 = 3;
/// How often an object may refuse the conditions of a write although they hold when it is read.
const UNPROCESSABLE: u32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Deleted, or another object of the same name stands there.
    #[error("the Backup is gone")]
    Gone,
    #[error("the Backup is in phase {0}, in which its run may not write it")]
    Phase(String),
    #[error("another controller has taken the Backup over")]
    Taken,
    #[error("the backup is stored, and the last of its files could not be written: that is tried again")]
    Unpublished(#[source] object_store::Error),
    #[error("the Backup could not be written in time")]
    Time(#[source] Option<kube::Error>),
    #[error("the Backup stays in its phase: {0}")]
    Waits(String),
    #[error("the Backup stays ReadyToStart: {0}")]
    NotBegun(String),
    #[error("{0} pods may be frozen still, because the hooks after them could not be run yet")]
    Frozen(usize),
    #[error("the API server refused the write")]
    Refused(#[source] kube::Error),
}

/// The Backup as it stands on the API server, fields unknown to us included.
pub struct BackupWriter {
    api: Api<DynamicObject>,
    object: DynamicObject,
    uid: String,
    /// Once it is begun or taken over: by whom.
    run: Option<String>,
    /// The phase in which the run has it.
    held_in: BackupPhase,
}

/// A new ID of a run, which no other run has.
pub(super) fn run_id() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{:x}-{random:016x}", Timestamp::now().as_microsecond())
}

impl BackupWriter {
    /// # Errors
    /// When the Backup is gone, or another object has its name.
    pub async fn read(client: Client, namespace: &str, name: &str, uid: &str) -> Result<Self, WriteError> {
        let api = Api::namespaced_with(client, namespace, &ApiResource::erase::<Backup>(&()));
        let object = match timeout(CALL, api.get_opt(name)).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => return Err(WriteError::Gone),
            Ok(Err(error)) => return Err(WriteError::Refused(error)),
            Err(_) => return Err(WriteError::Time(None)),
        };
        let mut record =
            Self { api, object, uid: uid.to_owned(), run: None, held_in: BackupPhase::InProgress };
        let after = [
            BackupPhase::WaitingForPluginOperations,
            BackupPhase::WaitingForPluginOperationsPartiallyFailed,
            BackupPhase::Finalizing,
            BackupPhase::FinalizingPartiallyFailed,
        ];
        if let Some(phase) = after.into_iter().find(|phase| phase.as_str() == record.phase()) {
            record.held_in = phase;
        }
        if record.object.uid().as_deref() == Some(uid) { Ok(record) } else { Err(WriteError::Gone) }
    }

    pub fn object(&self) -> &DynamicObject {
        &self.object
    }

    /// # Errors
    /// When a field is not of the type that Velero gives it.
    pub fn backup(&self) -> Result<Backup, serde_json::Error> {
        serde_json::from_value(serde_json::to_value(&self.object)?)
    }

    pub fn phase(&self) -> &str {
        self.object.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The phase in which a run has the Backup: InProgress, or one of those after it.
    pub fn held_in(&self) -> BackupPhase {
        self.held_in
    }

    /// Whether the Backup may have movements of data.
    pub fn moves_data(&self) -> bool {
        self.object.data.pointer("/spec/snapshotMoveData") == Some(&Value::Bool(true))
    }

    /// Whether all objects are stored and the Backup has left the queue.
    pub fn is_after(&self) -> bool {
        self.held_in != BackupPhase::InProgress
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.object.annotations().get(key).map(String::as_str)
    }

    /// Whether an annotation asks for the backup to be canceled, or the Backup was deleted, and a
    /// finalizer keeps it.
    pub fn is_canceled(&self) -> bool {
        is_set(self.object.annotations(), keys::CANCEL) || self.object.metadata.deletion_timestamp.is_some()
    }

    /// Whether a run had the permission to publish. On an API server without policies, anybody who
    /// may patch Backups can write the annotation; but `status.completionTimestamp`, which comes
    /// with it, only berth may write.
    pub fn is_publishing(&self) -> bool {
        self.annotation(keys::PUBLISHING).is_some()
            && self.object.data.pointer("/status/completionTimestamp").is_some_and(|time| !time.is_null())
    }

    /// Whether the time for which the backup is kept is over, as the controller `gc` has it.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let time = |key: &str| self.object.data["status"][key].as_str()?.parse::<Timestamp>().ok();
        let created = self.object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let late = behind(created, time("startTimestamp"));
        time("expiration").is_some_and(|at| at.checked_add(late).is_ok_and(|at| at <= now))
    }

    /// The pods in which a run has begun hooks, as recorded on the Backup.
    pub fn frozen(&self) -> Option<&str> {
        self.annotation(keys::FROZEN)
    }

    /// Digest of the scope, as the run that began the backup recorded it.
    pub fn scope(&self) -> Option<&str> {
        self.annotation(keys::SCOPE)
    }

    /// Whether a run of this engine has begun the backup.
    pub fn is_begun(&self) -> bool {
        self.annotation(keys::RUN).is_some()
    }

    /// How often the backup was run so far. This count ends a backup that kills each controller
    /// that runs it, so only berth may write the annotation.
    pub fn runs(&self) -> Runs {
        self.annotation(keys::RUNS).and_then(|runs| runs.parse().ok()).unwrap_or_default()
    }

    /// The recorded progress: objects in total, and objects stored.
    pub fn progress(&self) -> (u64, u64) {
        let progress = |key: &str| self.object.data["status"]["progress"][key].as_u64().unwrap_or(0);
        (progress("totalItems"), progress("itemsBackedUp"))
    }

    /// Begins the backup with a patch that sets phase InProgress and makes `run` its owner. `scope`
    /// is the digest of the scope, if the run writes checkpoints.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn begin(
        &mut self,
        patch: &Value,
        run: &str,
        scope: Option<&str>,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let mut patch = patch.clone();
        // The creator of the Backup may have set these annotations before any policy was installed.
        let marks = json!({
            keys::RUN: run, keys::RUNS: "1", keys::SCOPE: scope, keys::PUBLISHING: null, keys::FROZEN: null,
        });
        let mark = json!({"metadata": {"annotations": marks}});
        merge_into(&mut patch, mark);
        self.run = Some(run.to_owned());
        self.merge(&patch, BackupPhase::ReadyToStart, patience).await
    }

    /// Takes the backup over: from here on the run that had it can neither publish nor end it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn take_over(&mut self, run: &str, patience: Duration) -> Result<(), WriteError> {
        self.run = None;
        let patch = json!({"metadata": {"annotations": {keys::RUN: run}}});
        self.merge(&patch, self.held_in, patience).await?;
        self.run = Some(run.to_owned());
        Ok(())
    }

    /// Counts the run that is about to continue or restart the backup. The patch changes little
    /// else, because a leader that has taken the backup over meanwhile would find its claim
    /// replaced. It clears what an earlier run recorded of its end, and its frozen pods, which have
    /// been thawed.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn run_again(&mut self, patience: Duration) -> Result<(), WriteError> {
        let runs = self.runs().next().to_string();
        let patch = json!({
            "metadata": {"annotations": {keys::RUNS: runs, keys::PUBLISHING: null, keys::FROZEN: null}},
            "status": BackupStatus::run_again(),
        });
        self.merge(&patch, self.held_in, patience).await
    }

    /// Records the scope of a run that restarts the backup: from here on its checkpoints are
    /// believed, and those of earlier runs are not.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn freeze(&mut self, scope: &str, patience: Duration) -> Result<(), WriteError> {
        let patch = json!({"metadata": {"annotations": {keys::SCOPE: scope}}});
        self.merge(&patch, self.held_in, patience).await
    }

    /// Hands the backup over to the next leader. A run that ends like this does not count. Unless
    /// the run `leaves_frozen` pods, the hooks of all recorded pods were tried.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn hand_over(&mut self, patience: Duration, leaves_frozen: bool) -> Result<(), WriteError> {
        let runs = self.runs().without_latest().to_string();
        let mut patch = json!({"metadata": {"annotations": {keys::RUNS: runs}}});
        if !leaves_frozen {
            patch["metadata"]["annotations"][keys::FROZEN] = Value::Null;
        }
        self.merge(&patch, self.held_in, patience).await
    }

    /// Clears the recorded pods, because their hooks were tried.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn thawed(&mut self, patience: Duration) -> Result<(), WriteError> {
        let patch = json!({"metadata": {"annotations": {keys::FROZEN: null}}});
        self.merge(&patch, self.held_in, patience).await
    }

    /// Moves the Backup on to a phase after InProgress, with this status.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn move_on(
        &mut self,
        to: BackupPhase,
        status: &Value,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let mut patch = json!({"status": status});
        merge_into(&mut patch, json!({"status": BackupStatus::in_phase(to)}));
        if self.held_in == BackupPhase::InProgress {
            // The run hands the backup over, so it does not count.
            let runs = self.runs().without_latest().to_string();
            let marks = json!({keys::RUNS: runs, keys::PUBLISHING: null, keys::FROZEN: null});
            merge_into(&mut patch, json!({"metadata": {"annotations": marks}}));
        }
        self.merge(&patch, self.held_in, patience).await?;
        self.held_in = to;
        Ok(())
    }

    /// Asks for the permission to publish, with the final status except its phase. Once this write
    /// stands, the backup is complete, and whichever leader finds it publishes it.
    ///
    /// # Errors
    /// See [`WriteError`]. After [`WriteError::Time`], and only then, the write may stand
    /// nonetheless.
    pub async fn may_publish(&mut self, status: &Value, patience: Duration) -> Result<(), WriteError> {
        let marks = json!({keys::PUBLISHING: self.run, keys::FROZEN: null});
        let patch = json!({"metadata": {"annotations": marks}, "status": status});
        match self.merge(&patch, self.held_in, patience).await {
            // The write may have succeeded although its answer was lost.
            Err(_) if self.is_ours() && self.annotation(keys::PUBLISHING) == self.run.as_deref() => Ok(()),
            done => done,
        }
    }

    /// Merges `patch` into the object while its phase is `from`; retries for at most `patience`.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn merge(
        &mut self,
        patch: &Value,
        from: BackupPhase,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let begun = Instant::now();
        let mut pauses = Pauses::default();
        let (mut conflicts, mut unprocessable) = (0, 0);
        loop {
            // The answer to an earlier attempt may have been lost.
            if self.stands(patch, from) {
                return Ok(());
            }
            if self.phase() != from.as_str() {
                return Err(WriteError::Phase(self.phase().to_owned()));
            }
            if from == self.held_in && self.run.is_some() && !self.is_ours() {
                return Err(WriteError::Taken);
            }
            let is_on_version = conflicts < CONFLICTS;
            let answer = if is_on_version {
                let that_one = Write::on(&self.object).uid(Some(&self.uid));
                patch_to_fit(&self.api, that_one, patch.clone()).await
            } else {
                self.write_where_ours(patch).await
            };
            let mut is_outdated = false;
            let error = match answer {
                WriteResult::Written(object) => {
                    self.object = object;
                    return Ok(());
                }
                WriteResult::Gone(_) => return Err(WriteError::Gone),
                WriteResult::Refused(error)
                    if !is_on_version && is_unprocessable(&error) && unprocessable < UNPROCESSABLE =>
                {
                    unprocessable += 1;
                    is_outdated = true;
                    None
                }
                WriteResult::Refused(error) if is_lasting(&error) => return Err(WriteError::Refused(error)),
                WriteResult::Conflict(_) => {
                    conflicts += 1;
                    is_outdated = true;
                    None
                }
                WriteResult::Refused(error) => Some(error),
                WriteResult::TimedOut => None,
            };
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.read_again().await?;
                return if self.stands(patch, from) { Ok(()) } else { Err(WriteError::Time(error)) };
            }
            if let Some(error) = error {
                warn!(name = %self.object.name_any(), error = chain(&error), "writing the Backup failed: trying again");
            }
            tokio::time::sleep(pauses.pause().min(left)).await;
            if is_outdated {
                // Behind the pause, because during a pause the version may change again.
                self.read_again().await?;
            }
        }
    }

    /// Writes whatever version the Backup has, if it still is this object, in this phase, and this
    /// run's.
    async fn write_where_ours(&self, patch: &Value) -> WriteResult<DynamicObject> {
        let read = match serde_json::to_value(&self.object) {
            Ok(read) => read,
            Err(error) => return WriteResult::Refused(kube::Error::SerdeError(error)),
        };
        let mut fields =
            vec![PointerBuf::from_tokens(["metadata", "uid"]), PointerBuf::from_tokens(["status", "phase"])];
        if self.annotation(keys::RUN).is_some() {
            fields.push(PointerBuf::from_tokens(["metadata", "annotations", keys::RUN]));
        }
        patch_where(&self.api, Write::on(&self.object), &fields, &read, patch).await
    }

    fn is_ours(&self) -> bool {
        self.run.is_some() && self.annotation(keys::RUN) == self.run.as_deref()
    }

    /// Whether the object is in the phase that `patch` sets, and this run set it.
    fn stands(&self, patch: &Value, from: BackupPhase) -> bool {
        self.is_ours() && self.phase() != from.as_str() && patch["status"]["phase"] == self.phase()
    }

    /// Ends the Backup with a patch of its final status; the hooks of all recorded pods were tried.
    /// If the API server refuses that patch because it is too large, or refuses a failure, only the
    /// phase is written, by a patch that makes the object smaller, because a Backup that cannot end
    /// keeps its slot. Any other refusal of a stored backup is left to the leader that takes it up,
    /// which tries again with everything that is known.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn end(
        &mut self,
        patch: &Value,
        from: BackupPhase,
        patience: Duration,
    ) -> Result<(), WriteError> {
        let status = &patch["status"];
        let mut whole = patch.clone();
        merge_into(&mut whole, json!({"metadata": {"annotations": {keys::FROZEN: null, keys::SCOPE: null}}}));
        let whole = self.merge(&whole, from, patience).await;
        let stored = [BackupPhase::Completed, BackupPhase::PartiallyFailed];
        let is_stored = stored.iter().any(|phase| status["phase"] == phase.as_str());
        match &whole {
            Err(WriteError::Refused(error)) if !is_stored || is_too_large(error) => {}
            _ => return whole,
        }
        let patch = json!({
            "metadata": {
                "managedFields": [{}],
                "annotations": {keys::RESOLVED_NAMESPACES: null, keys::FROZEN: null, keys::SCOPE: null},
            },
            "status": BackupStatus::shortest(&status["phase"]),
        });
        self.merge(&patch, from, patience).await
    }

    /// Whether what the backup has made in the cluster still is this run's to clean up, as the API
    /// server has the Backup now. One that is gone has nobody else; one that cannot be read may be
    /// another run's.
    pub async fn is_still_ours(&self) -> bool {
        let name = self.object.name_any();
        let mut pauses = Pauses::default();
        for _ in 0..READS {
            match timeout(CALL, self.api.get_opt(&name)).await {
                Ok(Ok(Some(found))) if found.meta().uid.as_ref() == Some(&self.uid) => {
                    let run = found.annotations().get(keys::RUN).map(String::as_str);
                    // A run whose Backup has no room for its ID knows that of the run before it.
                    let ours = self.run.as_deref().or_else(|| self.annotation(keys::RUN));
                    let phase = found.data.pointer("/status/phase").and_then(Value::as_str);
                    return run == ours && phase == Some(self.held_in.as_str());
                }
                Ok(Ok(_)) => return true,
                Ok(Err(_)) | Err(_) => pauses.wait().await,
            }
        }
        warn!(%name, "the Backup cannot be read: what it has made in the cluster is left to whoever takes it up");
        false
    }

    async fn read_again(&mut self) -> Result<(), WriteError> {
        match timeout(CALL, self.api.get_opt(&self.object.name_any())).await {
            Ok(Ok(Some(object))) if object.meta().uid.as_ref() == Some(&self.uid) => self.object = object,
            Ok(Ok(_)) => return Err(WriteError::Gone),
            // The next attempt finds out.
            Ok(Err(_)) | Err(_) => tokio::time::sleep(Pauses::FIRST).await,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
