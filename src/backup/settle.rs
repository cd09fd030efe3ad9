//! What became of a backup that nobody runs any more.

use std::time::Duration;

use berth_api::velero::{Backup, BackupPhase, BackupStorageLocation};
use jiff::Timestamp;
use kube::api::Api;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::run::{Engine, OPENING, failed};
use super::status::{Record, WriteError};
use crate::storage::Layout;

/// How long a location that cannot be read just now is asked again: what is stored there may be whole.
const LOCATION: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_secs(5);

impl Engine {
    /// Ends a backup that somebody else was running: nobody runs it now. If all of it is in the store, it
    /// ended well and only the last write is missing; if not, what is there is removed. Given up, and left to the next leader,
    /// when `stop` says so while its location cannot be read.
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn settle(&self, name: &str, uid: &str, stop: &CancellationToken) -> Result<(), WriteError> {
        let begun = Instant::now();
        loop {
            let mut record = Record::read(self.client.clone(), &self.namespace, name, uid).await?;
            if record.phase() != BackupPhase::InProgress.as_str() {
                return Ok(());
            }
            let status = match self.stored_status(&record, name, uid).await {
                Ok(Some(status)) => status,
                Ok(None) => {
                    failed("the controller that ran it ended before the backup did", Timestamp::now())
                }
                Err(error) if begun.elapsed() < LOCATION => {
                    warn!(%name, error = format!("{error:#}"), "found running while nobody runs it; its location cannot be read: trying again");
                    if timeout(PAUSE, stop.cancelled()).await.is_ok() {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => {
                    let reason = format!(
                        "the controller that ran it ended before the backup did, and its location cannot be read: {error:#}"
                    );
                    failed(&reason, Timestamp::now())
                }
            };
            warn!(%name, phase = %status["phase"], "found running while nobody runs it");
            record.end(&status, BackupPhase::InProgress, OPENING).await?;
            if let Ok(backup) = record.backup() {
                self.metrics.ended(&backup, Timestamp::now());
            }
            return Ok(());
        }
    }

    async fn stored_status(&self, record: &Record, name: &str, uid: &str) -> anyhow::Result<Option<Value>> {
        let backup: Backup = record.backup()?;
        let location = backup.spec.storage_location.unwrap_or_default();
        let api: Api<BackupStorageLocation> = Api::namespaced(self.client.clone(), &self.namespace);
        let location = api.get(&location).await?;
        let store = self.opener.open(&location).await?;
        let layout = Layout::new(store, location.spec.object_storage.prefix.as_deref(), name);
        let Some(metadata) = layout.read_metadata().await? else {
            layout.remove().await?;
            return Ok(None);
        };
        let stored: Value = serde_json::from_slice(&metadata)?;
        let ours = stored["metadata"]["uid"] == uid;
        Ok(ours.then(|| stored["status"].clone()))
    }
}
