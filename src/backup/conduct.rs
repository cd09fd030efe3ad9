//! A run from its claim to its end, or to where another run continues its backup.

use std::collections::BTreeMap;

use berth_api::velero::BackupPhase;
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::begun::{Begun, Site};
use super::collect::resource_list;
use super::engine::{CLOSING, Engine, Failure, Signals, schedule};
use super::inputs::Cluster;
use super::interruption::{SHORTLY, untaken};
use super::keeper::{Keeper, Known};
use super::log::BackupLog;
use super::prepare::Prepared;
use super::publication::Stored;
use super::status::{BackupWriter, WriteError};
use super::upload::{UploadError, put_together};
use crate::storage::Layout;
use crate::text::chain;

impl Engine {
    /// Runs the backup from the claim to its end, or to where a later run continues.
    pub(super) async fn conduct(
        &self,
        record: &mut BackupWriter,
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
            // On the heap, because it is large.
            None => Box::pin(self.take(record, &mut site, cluster, prepared, log, signals)).await,
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
                if !site.outcomes.snapshots().is_empty() || site.has_data {
                    Box::pin(self.let_go_of_snapshots(site.layout.backup(), record.uid())).await;
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

    /// Removes what dead runs of this backup have begun beside what is stored now.
    async fn sweep_after(&self, site: &Site) {
        if let Ok(Err(error)) = timeout(SHORTLY, self.sweep(site.place(), &site.claim)).await {
            let name = site.layout.backup();
            warn!(%name, error = format!("{error:#}"), "could not list the uploads of dead runs: the bucket may keep their parts");
        }
    }

    /// Completes an archive whose parts are all stored, if that is not done already.
    async fn put_together(
        &self,
        record: &BackupWriter,
        site: &Site,
        begun: Begun,
        log: &BackupLog,
    ) -> Result<Stored, Failure> {
        let known = Known {
            log,
            ledger: &begun.ledger,
            tally: &site.tally,
            outcomes: &site.outcomes,
            revision: None,
        };
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
        let volumes = Box::pin(self.data(record, &site.outcomes, &BTreeMap::new())).await?;
        Ok(Stored { list, bytes, hooks: site.tally.status(), volumes })
    }
}

/// Removes the checkpoint, which is not needed any more. If that fails, it is removed with the
/// folder.
pub(super) async fn forget_checkpoint(layout: &Layout) {
    let removed = timeout(SHORTLY, layout.remove_checkpoint()).await;
    if let Ok(Err(error)) = removed {
        warn!(name = layout.backup(), error = chain(&error), "could not remove a checkpoint");
    }
}
