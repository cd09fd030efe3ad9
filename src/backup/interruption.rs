//! What becomes of a run that ends before its backup does.

use std::time::Duration;

use berth_core::run::{AfterInterruption, EndedRun, RunEndCause, RunFollowUp, after};
use kube::ResourceExt;
use tracing::{info, warn};

use super::begun::RunSite;
use super::engine::{Engine, LAST_PART, RunFailure};
use super::keeper::{CheckpointKeeper, KeepError};
use super::log::BackupLog;
use super::operations::uploads::cancel_all;
use super::status::{BackupWriter, WriteError};
use super::upload::UploadError;
use crate::storage::is_refused;
use crate::text::chain;

/// Time-out of calls that nothing depends on.
pub(super) const SHORTLY: Duration = Duration::from_secs(10);

impl Engine {
    /// Decides what becomes of a Backup whose run ends with this failure.
    pub(super) fn after(
        &self,
        failure: &RunFailure,
        record: &BackupWriter,
        is_resumable: bool,
        is_stuck: bool,
    ) -> RunFollowUp {
        let (cause, setting) = (cause(failure), self.after_interruption);
        let may_go_on = record.runs().may_go_on();
        let is_after = record.is_after();
        // Nothing has interrupted a backup that this process completes.
        let setting = if is_after { AfterInterruption::Resume } else { setting };
        after(&EndedRun { cause, may_go_on, is_resumable, is_stuck, is_after, setting })
    }

    /// Leaves the Backup to the run that takes it up.
    pub(super) async fn leave(&self, record: &mut BackupWriter, failure: &RunFailure, leaves_frozen: bool) {
        let name = record.object().name_any();
        // A backup that only has to be completed takes no slot, so it is tried as long as it takes.
        if !(matches!(failure, RunFailure::Stopped) || record.is_after() || leaves_frozen) {
            warn!(%name, reason = chain(failure), "the run ended before its backup: the backup is run again");
            if record.frozen().is_some()
                && let Err(error) = record.thawed(SHORTLY).await
            {
                warn!(%name, error = chain(&error), "could not clear the recorded pods: their hooks are run once more");
            }
            return;
        }
        if matches!(failure, RunFailure::Stopped) {
            info!(%name, "handed the run over to the next leader");
        } else if leaves_frozen {
            warn!(%name, reason = chain(failure), "the run ended, and the hooks after some pods could not be run before this process ends: handed it over to the next leader, which runs them");
        } else {
            warn!(%name, reason = chain(failure), "could not complete a backup whose data is moved: trying again");
        }
        if let Err(error) = record.hand_over(SHORTLY, leaves_frozen).await {
            warn!(%name, error = chain(&error), "could not record the handover: the run counts as one that died");
        }
    }

    /// Writes a last checkpoint for an upload that did not complete, if another run will continue
    /// it, or if it tells where data of a deleted Backup is.
    pub(super) async fn part_with(
        &self,
        record: &BackupWriter,
        site: &mut RunSite,
        keeper: Option<CheckpointKeeper<'_>>,
        failure: &RunFailure,
    ) {
        let Some(mut keeper) = keeper else { return };
        // Another run would come no further.
        site.is_stuck = site.is_resumable && !keeper.has_stored() && matches!(failure, RunFailure::Upload(_));
        // The next leader forgets what the backup has in repositories if this process cannot.
        let is_forgotten = failure.is_deletion() && !site.data_namespaces().is_empty();
        if is_forgotten
            || matches!(
                self.after(failure, record, true, site.is_stuck),
                RunFollowUp::HandOver | RunFollowUp::Resume
            )
        {
            keeper.finish(LAST_PART).await;
        }
        site.is_resumable = keeper.has_one();
    }

    /// Ends a run that did not end its backup.
    pub(super) async fn conclude(
        &self,
        record: &mut BackupWriter,
        site: &RunSite,
        log: &BackupLog,
        failure: RunFailure,
    ) -> Result<(), WriteError> {
        let mut next = self.after(&failure, record, site.is_resumable, site.is_stuck);
        // The end of a Backup takes its frozen pods off the record, by which the next leader finds
        // them.
        if site.leaves_frozen && !matches!(failure, RunFailure::Deleted | RunFailure::Write(_)) {
            next = RunFollowUp::HandOver;
        }
        // The run that has the backup now continues or aborts what is begun; a published backup is
        // complete.
        let is_taken = matches!(
            failure,
            RunFailure::Write(WriteError::Taken | WriteError::Time(_) | WriteError::Unpublished(_))
        );
        // The folder and its checkpoint stay until that is forgotten ([`Engine::forget`]).
        let noted = site.data_namespaces();
        let is_forgotten = failure.is_deletion() && (!noted.is_empty() || site.may_have_earlier_data());
        // Until this returns nobody else begins with that, however long it takes.
        let _held = if is_forgotten {
            let at = site.location.name_any();
            self.note_deleted(site.layout.backup(), record.uid(), &at, noted).await
        } else {
            None
        };
        match next {
            _ if is_forgotten => {}
            RunFollowUp::HandOver | RunFollowUp::Resume if site.is_resumable => {}
            RunFollowUp::Restart | RunFollowUp::End if !is_taken => {
                self.clear(site.place(), &site.claim, site.staged.as_ref()).await;
            }
            // No checkpoint of this run names the upload.
            _ => {
                if let Some(staged) = &site.staged {
                    self.let_go(&site.layout, staged).await;
                }
            }
        }
        if next != RunFollowUp::End {
            self.leave(record, &failure, site.leaves_frozen).await;
            return Ok(());
        }
        // Other failures, too, may mean that another run has the backup by now.
        let may_move = record.is_after() || !site.operations.is_empty() || record.moves_data();
        if !is_taken && may_move && record.is_still_ours().await {
            cancel_all(&self.client, &self.namespace, (site.layout.backup(), record.uid()), false).await;
        }
        if site.has_data && !is_taken {
            Box::pin(self.remove_snapshots(site.layout.backup(), record)).await;
        }
        if !is_forgotten {
            self.give_up(&site.layout, &site.claim, log, &failure).await;
        }
        match failure {
            RunFailure::Deleted => Err(WriteError::Gone),
            // Another controller has ended the Backup, or will.
            RunFailure::Write(error) if !matches!(error, WriteError::Refused(_)) => Err(error),
            failure => self.fail(record, &failure).await,
        }
    }
}

/// The cause of a failure, as far as it decides what comes next.
fn cause(failure: &RunFailure) -> RunEndCause {
    match failure {
        RunFailure::Stopped => RunEndCause::Stopped,
        RunFailure::Stale | RunFailure::Changed { .. } => RunEndCause::Unusable,
        RunFailure::Upload(UploadError::Store(error)) if is_refused(error) => RunEndCause::Unusable,
        failure if failure.is_of_the_store() || failure.is_of_the_api_server() => RunEndCause::Passing,
        _ => RunEndCause::Lasting,
    }
}

/// The failure of a run that could not make a checkpoint its own: another run may continue from it,
/// or may have aborted its upload.
pub(super) fn untaken(error: KeepError) -> RunFailure {
    match error {
        KeepError::Store(error) => RunFailure::Store(error),
        KeepError::Over => RunFailure::Stale,
    }
}
