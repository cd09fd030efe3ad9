//! One backup, from ReadyToStart to its end.

use std::future::{Ready, ready};
use std::pin::{Pin, pin};
use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase, BackupStatus, BackupStorageLocation};
use berth_core::run::{AfterInterruption, RunFollowUp};
use futures::future::{Either, select};
use jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::Instant;
use tracing::info;

use super::begun::RunSite;
use super::checkpoint::Packed;
use super::engine::{Engine, OPENING, RunFailure, Signals, schedule};
use super::inputs::ServedCluster;
use super::list::Lister;
use super::log::BackupLog;
use super::status::{BackupWriter, WriteError, run_id};
use crate::storage::{BackupLayout, ClaimedFolder, MultipartTarget, Opened};
use crate::text::chain;

/// How long before it is claimed the folder may have been read.
const SEEN_LASTS: Duration = Duration::from_secs(1);

impl Engine {
    /// Runs the backup if it is ReadyToStart. Returns the Backup as it is then.
    ///
    /// # Errors
    /// When the Backup could not be written.
    pub async fn run(&self, name: &str, uid: &str, signals: Signals) -> Result<Option<Backup>, WriteError> {
        let log = BackupLog::new(format!("{}/{name}", self.namespace));
        log.info("backup begins");
        let lister = self.lister();
        let read = BackupWriter::read(self.client.clone(), &self.namespace, name, uid);
        // What the cluster serves does not depend on the Backup.
        let (record, served) = beside(read, self.served(&lister, &log)).await;
        let mut record = record?;
        let is_ours = record.phase() == BackupPhase::ReadyToStart.as_str();
        self.try_run(name, &mut record, (&lister, served), &log, &signals).await?;
        let backup = record.backup().ok();
        if let Some(ended) = backup.as_ref().filter(|_| is_ours) {
            self.metrics.ended(ended, Timestamp::now());
        }
        Ok(backup)
    }

    async fn try_run(
        &self,
        name: &str,
        record: &mut BackupWriter,
        (lister, served): (&Lister, impl Future<Output = ServedCluster>),
        log: &BackupLog,
        signals: &Signals,
    ) -> Result<(), WriteError> {
        if record.phase() != BackupPhase::ReadyToStart.as_str() {
            return Ok(());
        }
        let gathered = tokio::select! {
            gathered = self.gather_inputs(record, lister, served, log) => gathered,
            () = signals.deleted.cancelled() => return Err(WriteError::Gone),
            () = signals.canceled.cancelled() => Err(RunFailure::Canceled),
            // The backup has not begun, so the next leader runs it.
            () = signals.stop.cancelled() => return Ok(()),
        };
        let (cluster, prepared) = match gathered {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(violations)) => {
                let errors = violations.lines();
                info!(%name, ?errors, "the backup is not valid");
                return self.end_unbegun(record, BackupStatus::invalid(&errors)).await;
            }
            Err(failure) if failure.is_of_the_api_server() => {
                return Err(WriteError::NotBegun(chain(&failure)));
            }
            Err(failure) => return self.fail_unbegun(record, &failure).await,
        };
        let (run, scope) = (run_id(), self.scope_of(&cluster, &prepared));
        let digest = scope.as_ref().map(Packed::digest);
        let begin = record.begin(&prepared.patch, &run, digest.as_deref(), OPENING);
        let (begun, seen) = beside(begin, self.look_ahead(&prepared.location, name)).await;
        match begun {
            Ok(()) => {}
            // End the backup, because it would be tried for ever otherwise, and keep its slot.
            Err(WriteError::Refused(error)) => {
                return self.fail_unbegun(record, &RunFailure::Refused(error)).await;
            }
            Err(error) => return Err(error),
        }
        self.metrics.begun(schedule(record));
        info!(%name, location = %prepared.location.name_any(), namespaces = prepared.resolved.len(), "running");
        let claim = async {
            let SeenFolder { layout, parts, mut found, at } = seen.await?;
            // The write may have taken long, and only a claim keeps others out meanwhile.
            if at.elapsed() >= SEEN_LASTS {
                found = layout.look().await?;
            }
            let location = prepared.location.clone();
            let claim = self.claim(record, &location, &layout, &parts, &run, found).await?;
            Ok(RunSite { scope, ..RunSite::new(location, layout, parts, claim) })
        };
        let site = match signals.bound(claim).await {
            Ok(site) => site,
            Err(RunFailure::Deleted) => return Err(WriteError::Gone),
            Err(failure) if self.is_left_unclaimed(&failure, record) => {
                self.leave(record, &failure, false).await;
                return Ok(());
            }
            // The files in the folder are not of this run: neither remove them nor add to them.
            Err(failure) => return self.fail(record, &failure).await,
        };
        Box::pin(self.conduct(record, site, &cluster, &prepared, log, signals)).await
    }

    /// Whether a Backup that has begun, and whose folder this run could not claim, is left to the
    /// run that takes it up. While the API server is gone it is left without a checkpoint, too,
    /// because this run has stored nothing. That has a limit: the next run reads the location and
    /// its Secret before it is counted, and for so long only.
    fn is_left_unclaimed(&self, failure: &RunFailure, record: &BackupWriter) -> bool {
        let is_api_server_gone = failure.is_of_the_api_server();
        (is_api_server_gone && self.after_interruption != AfterInterruption::Fail)
            || self.after(failure, record, false, false) != RunFollowUp::End
    }

    /// Opens the location and reads what is in the Backup's folder. Writes nothing there, so it
    /// needs no claim.
    async fn look_ahead(
        &self,
        location: &BackupStorageLocation,
        name: &str,
    ) -> Result<SeenFolder, RunFailure> {
        let Opened { store, parts } = self.open(location).await.map_err(RunFailure::Open)?;
        let layout = BackupLayout::new(store, location.spec.object_storage.prefix.as_deref(), name);
        let at = Instant::now();
        let found = layout.look().await?;
        Ok(SeenFolder { layout, parts, found, at })
    }
}

/// A folder as it was when the Backup was about to begin.
struct SeenFolder {
    layout: BackupLayout,
    parts: MultipartTarget,
    found: ClaimedFolder,
    at: Instant,
}

/// Runs both until the first one is done. Returns what came of it, and the second one, which may
/// have to go on.
async fn beside<A: Future, B: Future>(
    first: A,
    second: B,
) -> (A::Output, Either<Pin<Box<B>>, Ready<B::Output>>) {
    let first = pin!(first);
    match select(first, Box::pin(second)).await {
        Either::Left((done, second)) => (done, Either::Left(second)),
        Either::Right((done, first)) => (first.await, Either::Right(ready(done))),
    }
}

#[cfg(test)]
mod tests;
