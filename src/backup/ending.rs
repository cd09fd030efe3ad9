//! How a Backup ends whose run could not store it.

use berth_api::velero::{BackupPhase, BackupStatus, BackupStorageLocation};
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use tracing::warn;

use super::engine::{CLOSING, Engine, OPENING, RunFailure};
use super::status::{BackupWriter, WriteError};
use crate::client::list;
use crate::patch::{kept, merge_into};
use crate::storage::ClaimError;
use crate::text::chain;

impl Engine {
    /// Ends a running Backup as Failed.
    pub(super) async fn fail(
        &self,
        record: &mut BackupWriter,
        failure: &RunFailure,
    ) -> Result<(), WriteError> {
        let mut status = BackupStatus::failed(&told(record, failure), Timestamp::now());
        // A store that failed says nothing of whose the folder is. Without an expiration, each
        // Backup of a schedule that fails by its store would stay for ever.
        let is_of_others = match failure {
            RunFailure::Claim(error) => !matches!(error, ClaimError::Store(_)),
            RunFailure::BeingDeleted(_) => true,
            _ => false,
        };
        if is_of_others {
            status = BackupStatus::expiring_never(status);
        }
        record.end(&json!({"status": status}), record.held_in(), CLOSING).await
    }

    pub(super) async fn fail_unbegun(
        &self,
        record: &mut BackupWriter,
        failure: &RunFailure,
    ) -> Result<(), WriteError> {
        let status = BackupStatus::failed(&told(record, failure), Timestamp::now());
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
            locations = all.items.iter().map(BackupStorageLocation::decided).collect();
        }
        let mut patch = kept(&backup, &locations, self.default_ttl, Timestamp::now());
        merge_into(&mut patch, json!({"status": status}));
        record.end(&patch, BackupPhase::ReadyToStart, OPENING).await
    }
}

/// Logs why the backup failed, and returns that text.
fn told(record: &BackupWriter, failure: &RunFailure) -> String {
    let reason = chain(failure);
    warn!(name = %record.object().name_any(), %reason, "the backup failed");
    reason
}
