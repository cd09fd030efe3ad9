//! What became of a backup that nobody runs any more.

use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase, BackupStorageLocation};
use berth_core::claim::{Rest, settle};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::log::BackupLog;
use super::publication::{Shown, unsettled};
use super::run::{Engine, OPENING, failed};
use super::status::{Record, WriteError, run_id};
use crate::storage::Layout;

/// How long a location that cannot be read just now is asked again: what is stored there may be whole.
const LOCATION: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(5);
const ENDED: &str = "the controller that ran it ended before the backup did";

impl Engine {
    /// Ends a backup that somebody else was running: nobody runs it now. It is taken over first, so that a leader that is not as
    /// dead as it seems can neither publish nor end it. Then those of its hooks are run that are still to come in pods. If its run had
    /// leave to publish, it ended well, and what is missing is written; if not, what is stored under its claim is removed, but for
    /// a word in its log. Given up, and left to the next leader, when `stop` says so while its location cannot be read.
    ///
    /// # Errors
    /// When it could not be written, or hooks are still to come in pods that could not be reached: it is to be settled again.
    pub async fn settle(&self, name: &str, uid: &str, stop: &CancellationToken) -> Result<(), WriteError> {
        let mut record = Record::read(self.client.clone(), &self.namespace, name, uid).await?;
        if record.phase() != BackupPhase::InProgress.as_str() {
            return Ok(());
        }
        let is_ours = match record.take_over(&run_id(), OPENING).await {
            Ok(()) => true,
            // There is no room for that. Its end needs less, and keeps everybody else from writing it as well; but until then its
            // files may be in use.
            Err(WriteError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        let log = BackupLog::new(format!("{}/{name}", self.namespace));
        // Before anything else: people wait for what is frozen.
        self.thaw(&mut record, &log, stop).await?;
        let begun = Instant::now();
        loop {
            let status = match self.stored_status(&record, name, is_ours, &log).await {
                Ok(Some(status)) => status,
                Ok(None) => failed(ENDED, Timestamp::now()),
                Err(error) if begun.elapsed() < LOCATION => {
                    warn!(%name, error = format!("{error:#}"), "found running while nobody runs it; its location cannot be read: trying again");
                    if timeout(PAUSE, stop.cancelled()).await.is_ok() {
                        return Ok(());
                    }
                    continue;
                }
                // It is stored, and is to be published, however long its location is away; people may cancel or delete it.
                Err(error) if record.is_publishing() && !record.is_canceled() => {
                    warn!(%name, error = format!("{error:#}"), "a backup is stored, and its last file cannot be written: it is tried again until its location is back, or the Backup is canceled or deleted");
                    return Ok(());
                }
                Err(error) => {
                    let reason = format!("{ENDED}, and its location cannot be read: {error:#}");
                    failed(&reason, Timestamp::now())
                }
            };
            warn!(%name, phase = %status["phase"], "found running while nobody runs it");
            record.end(&json!({"status": status}), BackupPhase::InProgress, OPENING).await?;
            if let Ok(backup) = record.backup() {
                self.metrics.ended(&backup, Timestamp::now());
            }
            return Ok(());
        }
    }

    /// `None`: what is stored there is another one's.
    async fn ended_as(&self, layout: &Layout, record: &Record) -> anyhow::Result<Option<Value>> {
        match self.shown(layout, record.uid()).await? {
            Shown::Ours(status) => Ok(Some(status)),
            Shown::Strange => Ok(None),
            Shown::Nothing => Err(unsettled().into()),
        }
    }

    /// Its last status, if it is stored, or can be said to be.
    async fn stored_status(
        &self,
        record: &Record,
        name: &str,
        is_ours: bool,
        log: &BackupLog,
    ) -> anyhow::Result<Option<Value>> {
        let backup: Backup = record.backup()?;
        let location = backup.spec.storage_location.clone().unwrap_or_default();
        let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
        let location = api.get(&location).await?;
        let store = self.opener.open(&location).await?;
        let layout = Layout::new(store, location.spec.object_storage.prefix.as_deref(), name);
        let found = layout.look().await?;
        let whole = record.is_publishing() && found.is_whole(&layout);
        let cluster = self.cluster_uid().await?;
        match (settle(cluster, record.uid(), &found.folder, whole), &found.folder.claim) {
            (Rest::Published, _) => self.ended_as(&layout, record).await,
            (Rest::Whole, _) if is_ours => {
                let mut status = json!({"completionTimestamp": Time(Timestamp::now())});
                if let (Some(status), Some(known)) =
                    (status.as_object_mut(), record.object().data["status"].as_object())
                {
                    status.extend(
                        known.iter().filter(|(key, _)| *key != "phase").map(|(k, v)| (k.clone(), v.clone())),
                    );
                }
                if let Some(claim) = &found.folder.claim {
                    layout.confirm(claim).await?;
                }
                self.show(record, &layout, &status).await?;
                self.ended_as(&layout, record).await
            }
            (Rest::Ours, Some(claim)) if is_ours => {
                self.abort_uploads(&location, &layout).await;
                if layout.remove(claim, false).await? {
                    self.keep_log(&layout, log, ENDED).await?;
                }
                Ok(None)
            }
            (Rest::Whole | Rest::Ours | Rest::Strange, _) => Ok(None),
        }
    }
}
