//! The status as merge patches of it, in which `null` removes a field: what the queue and the
//! engine write when a Backup comes to a phase.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{BackupPhase, BackupStatus};

impl BackupStatus {
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
