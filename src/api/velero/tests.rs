//! What berth writes into a status, held against the definition of its kind: the API server drops a
//! field that the definition does not have, and tells nobody who could mend it.

use berth_core::mover::grant::MoverPhase;
use berth_core::operation::OperationCounts;
use berth_core::pod_volume::maintenance::{Ended, MaintenanceRun};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::backup::{BackupCounts, HookStatus};
use super::delete_backup_request::DeleteBackupRequestStatus;
use super::download_request::DownloadRequestStatus;
use super::pod_volume::BackupRepositoryStatus;
use super::*;
use crate::crd;

/// Fields of a patch that the definition does not take: other names, types or values.
fn misfits(value: &Value, schema: &Value, at: &str) -> Vec<String> {
    let found = match value {
        _ if schema.is_null() => return vec![format!("{at}: there is no such field")],
        // It removes the field.
        Value::Null => return Vec::new(),
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_listed = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    if schema["type"] != found || !is_listed {
        return vec![format!("{at}: {value} is not as {schema} says")];
    }
    let items = value.as_array().into_iter().flatten();
    let items = items.flat_map(|item| misfits(item, &schema["items"], at));
    let fields = value.as_object().into_iter().flatten();
    let fields =
        fields.flat_map(|(name, value)| misfits(value, &schema["properties"][name], &format!("{at}.{name}")));
    items.chain(fields).collect()
}

/// The definition of a kind's status.
fn status_of(kind: &str) -> Value {
    let all = crd::velero().into_iter().chain(crd::pod_volumes()).map(|crd| json!(crd));
    let found = all.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    let found = found.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/status");
    found.unwrap_or_else(|| panic!("the definition of {kind} has no status")).clone()
}

#[test]
fn a_patch_of_another_name_type_or_value_is_found() {
    let schema = status_of("Backup");
    let takes = |patch: Value| misfits(&patch, &schema, "status").is_empty();
    assert!(takes(json!({"phase": "Queued", "queuePosition": null, "progress": {"totalItems": 1}})));
    for patch in [
        json!({"fase": "Queued"}),
        json!({"queuePositions": null}),
        json!({"queuePosition": "1"}),
        json!({"phase": "Waiting"}),
        json!({"progress": {"total": 1}}),
        json!({"validationErrors": [1]}),
    ] {
        assert!(!takes(patch.clone()), "{patch}");
    }
}

#[test]
fn every_status_that_is_written_fits_the_definition_of_its_kind() {
    let now = Timestamp::UNIX_EPOCH;
    let hooks = HookStatus { hooks_attempted: Some(2), hooks_failed: Some(1) };
    let counts = BackupCounts {
        warnings: 1,
        errors: 1,
        hooks: Some(hooks),
        operations: OperationCounts { attempted: 2, completed: 1, failed: 1 },
        snapshots: (2, 1),
    };
    let waited = json!({"backupItemOperationsAttempted": 1});
    let runs = [
        MaintenanceRun { began: now, ended: Some(Ended { at: now, fault: Some("why".to_owned()) }) },
        MaintenanceRun { began: now, ended: Some(Ended { at: now, fault: None }) },
        MaintenanceRun { began: now, ended: None },
    ];
    let plugins = [PluginInfo { name: "n".to_owned(), kind: "k".to_owned() }];
    let faults = ["why".to_owned()];
    let of_backups = [
        BackupStatus::in_phase(BackupPhase::Deleting),
        BackupStatus::queued(1),
        BackupStatus::ready(),
        BackupStatus::running(now),
        BackupStatus::failed("why", now),
        BackupStatus::invalid(&faults),
        BackupStatus::kept_until(Some(now)),
        BackupStatus::expiring_never(json!({})),
        BackupStatus::progressed(2, 1),
        BackupStatus::run_again(),
        BackupStatus::counted(&counts),
        BackupStatus::stored(2, now, &counts, &json!({})),
        BackupStatus::stored(2, now, &BackupCounts::default(), &waited),
        BackupStatus::shortest(&json!("Failed")),
    ];
    let of_locations = [
        BackupStorageLocationStatus::checked(BackupStorageLocationPhase::Unavailable, Some("why"), now),
        BackupStorageLocationStatus::unchecked(),
        BackupStorageLocationStatus::synced(now),
    ];
    let of_schedules = [
        ScheduleStatus::validated(SchedulePhase::FailedValidation, &faults),
        ScheduleStatus::backed_up(now),
        ScheduleStatus::skipped(now),
        ScheduleStatus::mended(Some(now), None),
    ];
    let of_deletions =
        [DeleteBackupRequestStatus::in_progress(), DeleteBackupRequestStatus::processed(&faults)];
    let of_downloads =
        [DownloadRequestStatus::processed("https://x", now), DownloadRequestStatus::unanswered(now)];
    let of_requests = [ServerStatusRequestStatus::processed(now, "v1", &plugins)];
    let of_repositories = [
        BackupRepositoryStatus::checked(Some("why")),
        BackupRepositoryStatus::checked(None),
        BackupRepositoryStatus::maintained(&runs, Some(now)),
    ];
    let of_all_movers = [
        DataMoverStatus::accepted(now),
        DataMoverStatus::prepared(),
        DataMoverStatus::carried(Some(now), None),
        DataMoverStatus::explained("why"),
        DataMoverStatus::progressed(1, 2),
        DataMoverStatus::completed(now),
        DataMoverStatus::ended(MoverPhase::Canceled, "why", now),
    ];
    let of_uploads = [
        DataMoverStatus::reset(),
        DataMoverStatus::begun(now, Some("linux")),
        DataMoverStatus::carried(None, Some("n")),
    ];
    let of_stored = [DataMoverStatus::read_at("/v"), DataMoverStatus::stored("s", "/v", 2, 1)];
    let of_downloaded = [DataMoverStatus::restored(2), DataMoverStatus::carried(None, Some("n"))];
    let kinds: [(&str, &[Value]); 16] = [
        ("Backup", &of_backups),
        ("BackupStorageLocation", &of_locations),
        ("Schedule", &of_schedules),
        ("DeleteBackupRequest", &of_deletions),
        ("DownloadRequest", &of_downloads),
        ("ServerStatusRequest", &of_requests),
        ("BackupRepository", &of_repositories),
        ("DataUpload", &of_all_movers),
        ("DataDownload", &of_all_movers),
        ("PodVolumeBackup", &of_all_movers),
        ("PodVolumeRestore", &of_all_movers),
        ("DataUpload", &of_uploads),
        ("DataUpload", &of_stored),
        ("PodVolumeBackup", &of_stored),
        ("DataDownload", &of_downloaded),
        ("PodVolumeRestore", &of_downloaded),
    ];
    for (kind, patches) in kinds {
        let schema = status_of(kind);
        for patch in patches {
            assert_eq!(misfits(patch, &schema, kind), [""; 0], "{patch}");
        }
    }
}
