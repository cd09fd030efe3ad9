//! How a Backup ends whose run could not store it.

use berth_api::velero::{BackupPhase, BackupStorageLocation};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::{Value, json};
use tracing::warn;

use super::engine::{CLOSING, Engine, OPENING, RunFailure};
use super::status::{BackupWriter, WriteError};
use crate::client::list;
use crate::patch::{kept, known_location, merge_into};
use crate::text::chain;

impl Engine {
    /// Ends a running Backup as Failed.
    pub(super) async fn fail(
        &self,
        record: &mut BackupWriter,
        failure: &RunFailure,
    ) -> Result<(), WriteError> {
        let mut status = failed(&told(record, failure), Timestamp::now());
        if matches!(failure, RunFailure::Claim(_) | RunFailure::BeingDeleted(_)) {
            // Garbage collection of expired backups removes the whole folder, and that folder
            // belongs to another backup.
            status["expiration"] = Value::Null;
        }
        record.end(&json!({"status": status}), record.held_in(), CLOSING).await
    }

    pub(super) async fn fail_unbegun(
        &self,
        record: &mut BackupWriter,
        failure: &RunFailure,
    ) -> Result<(), WriteError> {
        let status = failed(&told(record, failure), Timestamp::now());
        self.end_unbegun(record, status).await
    }

    /// Ends a Backup that has not begun, with everything that its beginning would have set.
    pub(super) async fn end_unbegun(
        &self,
        record: &mut BackupWriter,
        status: Value,
    ) -> Result<(), WriteError> {
        // A Backup that cannot be parsed must end, too.
        let backup = record.backup().unwrap_or_default();
        let mut locations = Vec::new();
        if backup.spec.storage_location.as_deref().unwrap_or_default().is_empty()
            && let Ok(all) = list::<BackupStorageLocation>(&self.client, &self.namespace).await
        {
            locations = all.items.iter().map(known_location).collect();
        }
        let mut patch = kept(&backup, &locations, self.default_ttl, Timestamp::now());
        merge_into(&mut patch, json!({"status": status}));
        record.end(&patch, BackupPhase::ReadyToStart, OPENING).await
    }
}

/// The status of a backup that failed.
pub(super) fn failed(reason: &str, now: Timestamp) -> Value {
    json!({
        "phase": BackupPhase::Failed.as_str(),
        "queuePosition": null,
        "failureReason": reason,
        "completionTimestamp": Time(now),
    })
}

/// Logs why the backup failed, and returns that text.
fn told(record: &BackupWriter, failure: &RunFailure) -> String {
    let reason = chain(failure);
    warn!(name = %record.object().name_any(), %reason, "the backup failed");
    reason
}
