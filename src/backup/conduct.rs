//! A run from its claim to its end, or to where another run continues its backup.

use std::collections::BTreeMap;

use berth_api::velero::backup::{BackupCounts, HookStatus};
use berth_api::velero::{BackupPhase, BackupStatus};
use berth_core::operation::OperationCounts;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::{EarlierProgress, RunSite};
use super::engine::{CLOSING, Engine, OPENING, RunFailure, Signals, schedule};
use super::inputs::ClusterInputs;
use super::interruption::{SHORTLY, untaken};
use super::keeper::{CheckpointKeeper, CheckpointSources};
use super::log::BackupLog;
use super::names::resource_list;
use super::prepare::Prepared;
use super::publication::StoredArchive;
use super::status::{BackupWriter, WriteError};
use super::take::RunContents;
use super::upload::{UploadError, put_together};
use crate::storage::BackupLayout;
use crate::text::chain;

impl Engine {
    /// Runs the backup from the claim to its end, or to where a later run continues.
    pub(super) async fn conduct(
        &self,
        record: &mut BackupWriter,
        mut site: RunSite,
        cluster: &ClusterInputs,
        prepared: &Prepared,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<(), WriteError> {
        let taken = match site.begun.take_if(|begun| begun.is_whole || begun.is_collected) {
            Some(begun) => {
                site.staged = Some(begun.staged.clone());
                if begun.is_whole {
                    self.put_together(record, &site, begun, log).await.map(RunContents::Whole)
                } else {
                    self.keep_resting(&site, &begun, log).await
                }
            }
            // On the heap, because it is large.
            None => Box::pin(self.take(record, &mut site, cluster, prepared, log, signals)).await,
        };
        let stored = match taken {
            Ok(RunContents::Whole(stored)) => Ok(stored),
            Ok(RunContents::Resting { hooks }) => match self.rest(record, &site, hooks, log, signals).await {
                Ok(()) => return Ok(()),
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        self.close(record, site, log, stored, signals).await
    }

    /// Publishes what is stored, or does what is left of a run that failed.
    pub(super) async fn close(
        &self,
        record: &mut BackupWriter,
        site: RunSite,
        log: &BackupLog,
        stored: Result<StoredArchive, RunFailure>,
        signals: &Signals,
    ) -> Result<(), WriteError> {
        let stored = match stored {
            Ok(stored) => self.publish(record, &site, log, &stored, signals).await,
            Err(failure) => Err(failure),
        };
        match stored {
            Ok(status) => {
                if site.is_resumable {
                    forget_checkpoint(&site.layout).await;
                }
                if !site.outcomes.snapshots().is_empty() || site.has_data {
                    Box::pin(self.let_go_of_snapshots(site.layout.backup(), record.uid())).await;
                }
                if site.is_taken_over {
                    self.sweep_after(&site).await;
                }
                let (phase, items) = (&status["phase"], &status["progress"]["itemsBackedUp"]);
                info!(name = site.layout.backup(), %phase, %items, "ended");
                record.end(&json!({"status": status}), record.held_in(), CLOSING).await
            }
            Err(failure) => self.conclude(record, &site, log, failure).await,
        }
    }

    /// Removes what dead runs of this backup have begun beside what is stored now.
    async fn sweep_after(&self, site: &RunSite) {
        if let Ok(Err(error)) = timeout(SHORTLY, self.sweep(site.place(), &site.claim)).await {
            let name = site.layout.backup();
            warn!(%name, error = format!("{error:#}"), "could not list the uploads of dead runs: the bucket may keep their parts");
        }
    }

    /// Completes an archive whose parts are all stored, if that is not done already.
    pub(super) async fn put_together(
        &self,
        record: &BackupWriter,
        site: &RunSite,
        begun: EarlierProgress,
        log: &BackupLog,
    ) -> Result<StoredArchive, RunFailure> {
        let known = CheckpointSources::of_site(site, &begun.ledger, log);
        CheckpointKeeper::going_on(&site.layout, known, &site.claim, &begun)
            .try_write()
            .await
            .map_err(untaken)?;
        let (bytes, archive) = (begun.uploaded.size(), site.layout.archive());
        match site.layout.archive_size().await {
            Ok(found) if found == bytes => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {
                site.layout.confirm(&site.claim).await?;
                let (store, parts) = (site.layout.store(), &begun.uploaded.parts);
                let done = put_together(&**store, &archive, &begun.staged, parts, bytes).await;
                done.map_err(|error| RunFailure::Upload(UploadError::Store(error)))?;
            }
            Err(error) => return Err(RunFailure::Store(error)),
        }
        self.metrics.stored(schedule(record), bytes);
        let types = begun.scope.open().map_err(|error| RunFailure::Cluster(error.into()))?.types();
        let list = resource_list(&types, begun.ledger.rest());
        let index = begun.ledger.index();
        let volumes = Box::pin(self.data(record, &site.outcomes, &BTreeMap::new(), log)).await?;
        Ok(StoredArchive {
            list,
            bytes,
            hooks: site.tally.status(),
            volumes,
            index,
            ..StoredArchive::default()
        })
    }

    /// Makes the checkpoint this run's, from which a dead run would have waited for operations.
    async fn keep_resting(
        &self,
        site: &RunSite,
        begun: &EarlierProgress,
        log: &BackupLog,
    ) -> Result<RunContents, RunFailure> {
        let known = CheckpointSources::of_site(site, &begun.ledger, log);
        CheckpointKeeper::going_on(&site.layout, known, &site.claim, begun)
            .try_write()
            .await
            .map_err(untaken)?;
        Ok(RunContents::Resting { hooks: site.tally.status() })
    }

    /// Moves the Backup on to where it waits for its operations. From here on this run has nothing
    /// of it any more.
    async fn rest(
        &self,
        record: &mut BackupWriter,
        site: &RunSite,
        hooks: Option<HookStatus>,
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<(), RunFailure> {
        if let Some(failure) = signals.raised().filter(|failure| !matches!(failure, RunFailure::Stopped)) {
            return Err(failure);
        }
        let counts = log.counts();
        let attempted =
            OperationCounts { attempted: site.operations.len() as u64, ..OperationCounts::default() };
        let status = BackupStatus::counted(&BackupCounts {
            warnings: counts.warnings,
            errors: counts.errors,
            hooks,
            operations: attempted,
            snapshots: site.outcomes.counts(),
        });
        let to = if counts.errors > 0 {
            BackupPhase::WaitingForPluginOperationsPartiallyFailed
        } else {
            BackupPhase::WaitingForPluginOperations
        };
        record.move_on(to, &status, OPENING).await.map_err(RunFailure::Write)?;
        self.own.lock().insert(record.uid().to_owned());
        info!(
            name = site.layout.backup(),
            operations = attempted.attempted,
            "stored all objects, and waits for operations"
        );
        Ok(())
    }
}

/// Removes the checkpoint, which is not needed any more. If that fails, it is removed with the
/// folder.
pub(super) async fn forget_checkpoint(layout: &BackupLayout) {
    let removed = timeout(SHORTLY, layout.remove_checkpoint()).await;
    if let Ok(Err(error)) = removed {
        warn!(
            name = layout.backup(),
            error = chain(&error),
            "could not remove the checkpoint of a stored backup: it is removed with the backup"
        );
    }
}
