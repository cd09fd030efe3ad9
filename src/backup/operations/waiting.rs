//! Checks a Backup that waits for its operations, and writes what has changed.

use std::time::Duration;

use berth_api::velero::backup::BackupCounts;
use berth_api::velero::{Backup, BackupPhase, BackupStatus};
use berth_core::operation::{
    BackupOperations, OperationCounts, OperationFault, OperationProgress, OperationStep, step,
};
use berth_core::stage::Stage;
use jiff::Timestamp;
use tracing::info;

use super::uploads::{DataUploadObject, cancel, of_backup};
use crate::backup::engine::{Engine, Signals};
use crate::backup::status::{BackupWriter, WriteError};

/// Time-out of one write.
const WRITE: Duration = Duration::from_secs(30);

/// The result of a check.
#[derive(Debug)]
pub enum Attended {
    /// Nothing has to be done now.
    Nothing,
    /// It failed for now, and is tried again.
    Later,
    Written(Box<Backup>),
}

impl Engine {
    /// Checks a Backup whose objects are stored: writes the counts of its operations and, when all
    /// have ended, completes the backup.
    ///
    /// # Errors
    /// When the Backup could not be written, or its operations could not be read.
    pub async fn attend(&self, name: &str, uid: &str, signals: Signals) -> Result<Attended, WriteError> {
        let mut record = BackupWriter::read(self.client.clone(), &self.namespace, name, uid).await?;
        let Some(stage) = Stage::of(record.phase()).filter(|_| record.is_begun()) else {
            return Ok(Attended::Nothing);
        };
        if stage == Stage::Finalizing {
            return self.take_up(name, uid, signals).await;
        }
        let backup = record.backup().map_err(|error| WriteError::Waits(error.to_string()))?;
        let found = of_backup(&self.client, &self.namespace, uid).await;
        let found = found.map_err(|error| WriteError::Waits(format!("{error:#}")))?;
        let (limit, now) = (backup.operation_timeout(), Timestamp::now());
        let late: Vec<DataUploadObject> = found
            .iter()
            .filter(|upload| {
                upload.standing(limit, now) == OperationProgress::Failed(OperationFault::TimedOut)
            })
            .cloned()
            .collect();
        cancel(&self.client, &self.namespace, &late, false).await;
        let recorded = backup.operations();
        let counts =
            OperationCounts::of(found.iter().map(|one| one.standing(limit, now)), recorded.attempted);
        let next = step(&BackupOperations {
            phase: record.phase(),
            recorded,
            found: counts,
            is_canceled: record.is_canceled() || signals.canceled.is_cancelled(),
            is_own: self.own.lock().contains(uid),
            setting: self.after_interruption,
        });
        let to = match next {
            OperationStep::Nothing => return Ok(Attended::Nothing),
            OperationStep::End => {
                cancel(&self.client, &self.namespace, &found, false).await;
                return self.take_up(name, uid, signals).await;
            }
            OperationStep::Record(to) | OperationStep::Finalize(to) => phase(to),
        };
        let status = BackupStatus::counted(&BackupCounts { operations: counts, ..BackupCounts::default() });
        record.move_on(to, &status, WRITE).await?;
        let OperationCounts { attempted, completed, failed } = counts;
        info!(%name, phase = to.as_str(), attempted, completed, failed, "recorded the operations of a backup");
        let written = record.backup().map_err(|error| WriteError::Waits(error.to_string()))?;
        Ok(Attended::Written(Box::new(written)))
    }

    async fn take_up(&self, name: &str, uid: &str, signals: Signals) -> Result<Attended, WriteError> {
        let taken_up = self.recover(name, uid, signals, |_| {}).await?;
        Ok(match taken_up {
            Some(backup) if Stage::of(backup.phase().as_str()).is_none() => {
                Attended::Written(Box::new(backup))
            }
            _ => Attended::Later,
        })
    }
}

fn phase(text: &str) -> BackupPhase {
    [
        BackupPhase::WaitingForPluginOperations,
        BackupPhase::WaitingForPluginOperationsPartiallyFailed,
        BackupPhase::Finalizing,
    ]
    .into_iter()
    .find(|phase| phase.as_str() == text)
    .unwrap_or(BackupPhase::FinalizingPartiallyFailed)
}
