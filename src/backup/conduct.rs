//! A run from its claim to its end, or to where another one goes on with its backup.

use std::time::Duration;

use berth_api::velero::BackupPhase;
use berth_core::run::{AfterInterruption, MOST_RUNS};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::{Begun, Site};
use super::collect::resource_list;
use super::keeper::{Keeper, Known};
use super::log::BackupLog;
use super::prepare::Prepared;
use super::publication::Stored;
use super::run::{CLOSING, Engine, Failure, LAST_PART, Signals, schedule};
use super::status::{Record, WriteError};
use super::survey::Cluster;
use super::upload::{UploadError, abort};
use crate::storage::{Layout, Staged};
use crate::telemetry::chain;

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
            Some(begun) => self.put_together(record, &site, begun, log).await,
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
                let (phase, items) = (&status["phase"], &status["progress"]["itemsBackedUp"]);
                info!(name = site.layout.backup(), %phase, %items, "ended");
                record.end(&json!({"status": status}), BackupPhase::InProgress, CLOSING).await
            }
            Err(failure) => self.conclude(record, &site, log, failure).await,
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
        Keeper::going_on(&site.layout, known, &site.claim.run, &begun).write().await;
        let bytes = begun.uploaded.size();
        match site.layout.archive_size().await {
            Ok(found) if found == bytes => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {
                if let Err(error) = begun.staged.complete(&begun.uploaded.parts).await {
                    // A part is missing, or another one: nobody can go on from there. Where the store is away, it stays.
                    forget_checkpoint(&site.layout).await;
                    return Err(Failure::Upload(UploadError::Store(error)));
                }
            }
            Err(error) => return Err(Failure::Store(error)),
        }
        self.metrics.stored(schedule(record), bytes);
        let types = begun.scope.open().map_err(|error| Failure::Cluster(error.into()))?.types();
        let list = resource_list(&types, begun.ledger.rest());
        Ok(Stored { list, bytes, hooks: site.tally.status() })
    }

    /// Does a run that ends by this leave its Backup InProgress, for another run?
    pub(super) fn is_left(&self, failure: &Failure, record: &Record, is_resumable: bool) -> bool {
        let may_help = failure.is_of_the_store() || failure.is_of_the_api_server();
        let is_worth_it = is_resumable && may_help && record.runs() < MOST_RUNS;
        self.after_interruption != AfterInterruption::Fail
            && (matches!(failure, Failure::Stopped) || is_worth_it)
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

    /// An upload that did not come to its end is left to another run, with a last checkpoint, or given up.
    pub(super) async fn part_with(
        &self,
        record: &Record,
        site: &mut Site,
        keeper: Option<Keeper<'_>>,
        begun: Option<Staged>,
        failure: &Failure,
    ) {
        let was_resumable = site.is_resumable;
        let mut is_kept = false;
        if let Some(mut keeper) = keeper {
            if self.is_left(failure, record, true) {
                keeper.finish(LAST_PART).await;
            }
            is_kept = keeper.has_one();
            site.is_resumable |= is_kept;
            // What it was to go on with is there no more: the next run would come no further.
            if was_resumable && !keeper.has_stored() && matches!(failure, Failure::Upload(_)) {
                forget_checkpoint(&site.layout).await;
            }
        }
        // Whoever has taken it over goes on with it.
        let is_taken = matches!(failure, Failure::Write(WriteError::Taken));
        let is_left = is_taken || (is_kept && self.is_left(failure, record, site.is_resumable));
        if let Some(begun) = begun.filter(|_| !is_left) {
            abort(&begun).await;
        }
    }

    /// Ends a run that did not end its backup.
    pub(super) async fn conclude(
        &self,
        record: &mut Record,
        site: &Site,
        log: &BackupLog,
        failure: Failure,
    ) -> Result<(), WriteError> {
        if self.is_left(&failure, record, site.is_resumable) {
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

/// Nobody needs it any more. It goes with the folder where that fails.
pub(super) async fn forget_checkpoint(layout: &Layout) {
    let removed = timeout(SHORTLY, layout.remove_checkpoint()).await;
    if let Ok(Err(error)) = removed {
        warn!(name = layout.backup(), error = chain(&error), "a checkpoint could not be removed");
    }
}
