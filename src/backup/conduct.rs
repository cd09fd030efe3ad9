//! A run from its claim to its end, or to where another one goes on with its backup.

use std::time::Duration;

use berth_api::velero::BackupPhase;
use berth_core::run::{Cause, Ended, Next, after};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::{Begun, Site};
use super::collect::resource_list;
use super::engine::{CLOSING, Engine, Failure, LAST_PART, Signals, schedule};
use super::keeper::{KeepError, Keeper, Known};
use super::log::BackupLog;
use super::prepare::Prepared;
use super::publication::Stored;
use super::status::{Record, WriteError};
use super::survey::Cluster;
use super::upload::{UploadError, put_together};
use crate::storage::{Layout, is_refused};
use crate::text::chain;

/// For what nothing depends on.
const SHORTLY: Duration = Duration::from_secs(10);

impl Engine {
    /// From its claim to its end, or to where whoever runs it next goes on.
    pub(super) async fn conduct(
        &self,
        record: &mut Record,
        mut site: Site,
        cluster: &Cluster,
        prepared: &Prepared,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<(), WriteError> {
        let taken = match site.begun.take_if(|begun| begun.is_whole) {
            Some(begun) => {
                site.staged = Some(begun.staged.clone());
                self.put_together(record, &site, begun, log).await
            }
            None => self.take(record, &mut site, cluster, prepared, log, signals).await,
        };
        let stored = match taken {
            Ok(stored) => self.publish(record, &site.layout, &site.claim, log, &stored, signals).await,
            Err(failure) => Err(failure),
        };
        match stored {
            Ok(status) => {
                if site.is_resumable {
                    forget_checkpoint(&site.layout).await;
                }
                if site.is_taken_over {
                    self.sweep_after(&site).await;
                }
                let (phase, items) = (&status["phase"], &status["progress"]["itemsBackedUp"]);
                info!(name = site.layout.backup(), %phase, %items, "ended");
                record.end(&json!({"status": status}), BackupPhase::InProgress, CLOSING).await
            }
            Err(failure) => self.conclude(record, &site, log, failure).await,
        }
    }

    /// What dead runs of this backup have begun beside what is stored now.
    async fn sweep_after(&self, site: &Site) {
        if let Ok(Err(error)) = timeout(SHORTLY, self.sweep(site.place(), &site.claim)).await {
            let name = site.layout.backup();
            warn!(%name, error = format!("{error:#}"), "what dead runs of the backup have begun could not be looked for: the bucket may keep parts of it");
        }
    }

    /// All of the archive is stored, in parts: makes one of them, if that is not done already.
    async fn put_together(
        &self,
        record: &Record,
        site: &Site,
        begun: Begun,
        log: &BackupLog,
    ) -> Result<Stored, Failure> {
        let known = Known { log, ledger: &begun.ledger, tally: &site.tally, revision: None };
        Keeper::going_on(&site.layout, known, &site.claim, &begun).try_write().await.map_err(untaken)?;
        let (bytes, archive) = (begun.uploaded.size(), site.layout.archive());
        match site.layout.archive_size().await {
            Ok(found) if found == bytes => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {
                site.layout.confirm(&site.claim).await?;
                let (store, parts) = (site.layout.store(), &begun.uploaded.parts);
                let done = put_together(&**store, &archive, &begun.staged, parts, bytes).await;
                done.map_err(|error| Failure::Upload(UploadError::Store(error)))?;
            }
            Err(error) => return Err(Failure::Store(error)),
        }
        self.metrics.stored(schedule(record), bytes);
        let types = begun.scope.open().map_err(|error| Failure::Cluster(error.into()))?.types();
        let list = resource_list(&types, begun.ledger.rest());
        Ok(Stored { list, bytes, hooks: site.tally.status() })
    }

    /// What becomes of a Backup whose run ends by this.
    pub(super) fn after(
        &self,
        failure: &Failure,
        record: &Record,
        is_resumable: bool,
        is_stuck: bool,
    ) -> Next {
        let (cause, setting) = (cause(failure), self.after_interruption);
        let may_go_on = record.runs().may_go_on();
        after(&Ended { cause, may_go_on, is_resumable, is_stuck, setting })
    }

    /// Leaves it to whoever takes it up.
    pub(super) async fn leave(&self, record: &mut Record, failure: &Failure) {
        let name = record.object().name_any();
        if !matches!(failure, Failure::Stopped) {
            warn!(%name, reason = chain(failure), "the run ended before the backup did: it is run again");
            if record.frozen().is_some()
                && let Err(error) = record.thawed(SHORTLY).await
            {
                warn!(%name, error = chain(&error), "hooks that were tried stand on record: they are tried once more");
            }
            return;
        }
        info!(%name, "the run is handed over to whoever leads next");
        if let Err(error) = record.hand_over(SHORTLY).await {
            warn!(%name, error = chain(&error), "that it was handed over could not be written: it counts as a run that died");
        }
    }

    /// An upload did not come to its end: where another run goes on with it, it has a last checkpoint.
    pub(super) async fn part_with(
        &self,
        record: &Record,
        site: &mut Site,
        keeper: Option<Keeper<'_>>,
        failure: &Failure,
    ) {
        let Some(mut keeper) = keeper else { return };
        // The next run would come no further.
        site.is_stuck = site.is_resumable && !keeper.has_stored() && matches!(failure, Failure::Upload(_));
        if matches!(self.after(failure, record, true, site.is_stuck), Next::HandOver | Next::Resume) {
            keeper.finish(LAST_PART).await;
        }
        site.is_resumable = keeper.has_one();
    }

    /// Ends a run that did not end its backup.
    pub(super) async fn conclude(
        &self,
        record: &mut Record,
        site: &Site,
        log: &BackupLog,
        failure: Failure,
    ) -> Result<(), WriteError> {
        let next = self.after(&failure, record, site.is_resumable, site.is_stuck);
        // Whoever has it now goes on with what is begun, or aborts it; and what is published is complete.
        let is_taken = matches!(
            failure,
            Failure::Write(WriteError::Taken | WriteError::Time(_) | WriteError::Unpublished(_))
        );
        match next {
            Next::HandOver | Next::Resume if site.is_resumable => {}
            Next::Restart | Next::End if !is_taken => {
                self.clear(site.place(), &site.claim, site.staged.as_ref()).await;
            }
            // No checkpoint of ours says anything of it.
            _ => {
                if let Some(staged) = &site.staged {
                    self.let_go(&site.layout, staged).await;
                }
            }
        }
        if next != Next::End {
            self.leave(record, &failure).await;
            return Ok(());
        }
        self.give_up(&site.layout, &site.claim, log, &failure).await;
        match failure {
            Failure::Deleted => Err(WriteError::Gone),
            // Somebody else has ended it, or will.
            Failure::Write(error) if !matches!(error, WriteError::Refused(_)) => Err(error),
            failure => self.fail(record, &failure).await,
        }
    }
}

/// What has to be known of a failure to say what comes next.
fn cause(failure: &Failure) -> Cause {
    match failure {
        Failure::Stopped => Cause::Stopped,
        Failure::Stale | Failure::Changed { .. } => Cause::Unusable,
        Failure::Upload(UploadError::Store(error)) if is_refused(error) => Cause::Unusable,
        failure if failure.is_of_the_store() || failure.is_of_the_api_server() => Cause::Passing,
        _ => Cause::Lasting,
    }
}

/// A run does not go on with what it could not make its own: somebody else may go on with it, or have aborted it.
pub(super) fn untaken(error: KeepError) -> Failure {
    match error {
        KeepError::Store(error) => Failure::Store(error),
        KeepError::Over => Failure::Stale,
    }
}

/// Nobody needs it any more. It goes with the folder where that fails.
pub(super) async fn forget_checkpoint(layout: &Layout) {
    let removed = timeout(SHORTLY, layout.remove_checkpoint()).await;
    if let Ok(Err(error)) = removed {
        warn!(name = layout.backup(), error = chain(&error), "a checkpoint could not be removed");
    }
}
