//! The status as merge patches of it, in which `null` removes a field: what queue, engine and
//! lifecycle write to it.

use berth_core::operation::OperationCounts;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{BackupPhase, BackupStatus, HookStatus};
use crate::keys;

/// The fields that count operations.
const OPERATIONS: [&str; 3] =
    ["backupItemOperationsAttempted", "backupItemOperationsCompleted", "backupItemOperationsFailed"];

/// What a run has counted of its backup.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupCounts {
    pub warnings: u32,
    pub errors: u32,
    /// `None`: no hook was tried.
    pub hooks: Option<HookStatus>,
    pub operations: OperationCounts,
    /// Snapshots of CSI drivers: attempted, and completed.
    pub snapshots: (u64, u64),
}

impl BackupStatus {
    /// The Backup is in this phase, and nothing else of it changes.
    pub fn in_phase(phase: BackupPhase) -> Value {
        json!({"phase": phase.as_str()})
    }

    /// The Backup waits at this position.
    pub fn queued(position: u32) -> Value {
        json!({"phase": BackupPhase::Queued.as_str(), "queuePosition": position})
    }

    /// The turn of the Backup has come.
    pub fn ready() -> Value {
        json!({"phase": BackupPhase::ReadyToStart.as_str(), "queuePosition": null})
    }

    /// The Backup runs.
    pub fn running(since: Timestamp) -> Value {
        json!({
            "phase": BackupPhase::InProgress.as_str(),
            "queuePosition": null,
            "startTimestamp": Time(since),
        })
    }

    /// The Backup failed, whether or not it had begun.
    pub fn failed(reason: &str, at: Timestamp) -> Value {
        json!({
            "phase": BackupPhase::Failed.as_str(),
            "queuePosition": null,
            "failureReason": reason,
            "completionTimestamp": Time(at),
        })
    }

    /// The Backup is not run, because its spec has these faults.
    pub fn invalid(faults: &[String]) -> Value {
        json!({
            "phase": BackupPhase::FailedValidation.as_str(),
            "queuePosition": null,
            "validationErrors": faults,
        })
    }

    /// What the object of a stored backup says of it, which a Backup that has failed needs as well.
    pub fn kept_until(expiration: Option<Timestamp>) -> Value {
        json!({
            "version": 1, "formatVersion": keys::FORMAT_VERSION, "expiration": expiration.map(Time),
        })
    }

    /// `status` for a Backup whose folder belongs to another backup: a Velero that collects expired
    /// backups removes the whole folder, whoever's it is.
    pub fn expiring_never(mut status: Value) -> Value {
        status["expiration"] = Value::Null;
        status
    }

    /// So many objects are known, and so many of them are stored.
    pub fn progressed(total: u64, stored: u64) -> Value {
        json!({"progress": {"totalItems": total, "itemsBackedUp": stored}})
    }

    /// A run continues or restarts the backup: what an earlier one counted at its end is void.
    pub fn run_again() -> Value {
        json!({
            "completionTimestamp": null, "errors": null, "warnings": null, "hookStatus": null,
            "csiVolumeSnapshotsAttempted": null, "csiVolumeSnapshotsCompleted": null,
        })
    }

    /// What was counted; counts that are 0 are absent.
    pub fn counted(counts: &BackupCounts) -> Value {
        let count = |count: u64| i64::try_from(count).ok().filter(|count| *count > 0);
        let OperationCounts { attempted, completed, failed } = counts.operations;
        json!(Self {
            warnings: count(counts.warnings.into()),
            errors: count(counts.errors.into()),
            hook_status: counts.hooks,
            backup_item_operations_attempted: count(attempted),
            backup_item_operations_completed: count(completed),
            backup_item_operations_failed: count(failed),
            csi_volume_snapshots_attempted: count(counts.snapshots.0),
            csi_volume_snapshots_completed: count(counts.snapshots.1),
            ..Self::default()
        })
    }

    /// The backup is stored, with so many objects. `recorded`: the status as it stands, because
    /// what was counted while the backup waited must not stay beside the final counts.
    pub fn stored(items: usize, at: Timestamp, counts: &BackupCounts, recorded: &Value) -> Value {
        let mut status = Self::counted(counts);
        status["completionTimestamp"] = json!(Time(at));
        status["progress"] = json!({"totalItems": items, "itemsBackedUp": items});
        for key in OPERATIONS {
            if status.get(key).is_none() && !recorded[key].is_null() {
                status[key] = Value::Null;
            }
        }
        status
    }

    /// No more than the phase of a Backup that has ended, for an object that has no room for more.
    pub fn shortest(phase: &Value) -> Value {
        json!({"phase": phase, "queuePosition": null, "progress": null})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(patch: Value) -> BackupStatus {
        serde_json::from_value(patch).unwrap()
    }

    #[test]
    fn each_patch_writes_fields_that_a_status_has() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let in_phase = |phase| BackupStatus { phase: Some(phase), ..BackupStatus::default() };
        let queued = in_phase(BackupPhase::Queued);
        assert_eq!(read(BackupStatus::queued(7)), BackupStatus { queue_position: Some(7), ..queued });
        assert_eq!(read(BackupStatus::ready()), in_phase(BackupPhase::ReadyToStart));
        let running = in_phase(BackupPhase::InProgress);
        assert_eq!(
            read(BackupStatus::running(now)),
            BackupStatus { start_timestamp: Some(Time(now)), ..running }
        );
        let failed = BackupStatus {
            failure_reason: Some("why".to_owned()),
            completion_timestamp: Some(Time(now)),
            ..in_phase(BackupPhase::Failed)
        };
        assert_eq!(read(BackupStatus::failed("why", now)), failed);
        let faults = vec!["spec: wrong".to_owned()];
        let invalid = BackupStatus {
            validation_errors: Some(faults.clone()),
            ..in_phase(BackupPhase::FailedValidation)
        };
        assert_eq!(read(BackupStatus::invalid(&faults)), invalid);
    }

    #[test]
    fn counts_of_zero_are_absent_and_earlier_ones_of_operations_go() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let operations = OperationCounts { attempted: 2, completed: 2, failed: 0 };
        let counts = BackupCounts { warnings: 1, operations, snapshots: (1, 1), ..BackupCounts::default() };
        let counted = json!({
            "warnings": 1, "backupItemOperationsAttempted": 2, "backupItemOperationsCompleted": 2,
            "csiVolumeSnapshotsAttempted": 1, "csiVolumeSnapshotsCompleted": 1,
        });
        assert_eq!(BackupStatus::counted(&counts), counted);
        let waited = json!({"backupItemOperationsAttempted": 3, "backupItemOperationsFailed": 1});
        let stored = BackupStatus::stored(7, now, &counts, &waited);
        let mut expected = counted;
        expected["completionTimestamp"] = json!("2026-01-01T00:00:00Z");
        expected["progress"] = json!({"totalItems": 7, "itemsBackedUp": 7});
        expected["backupItemOperationsFailed"] = Value::Null;
        assert_eq!(stored, expected);
        let nothing = BackupStatus::stored(0, now, &BackupCounts::default(), &json!({}));
        assert_eq!(nothing.as_object().unwrap().len(), 2, "{nothing}");
    }

    #[test]
    fn whoever_leaves_the_queue_loses_the_position() {
        let now = Timestamp::UNIX_EPOCH;
        for patch in [
            BackupStatus::ready(),
            BackupStatus::running(now),
            BackupStatus::failed("why", now),
            BackupStatus::invalid(&[]),
        ] {
            assert_eq!(patch.get("queuePosition"), Some(&Value::Null), "{patch}");
        }
    }
}
