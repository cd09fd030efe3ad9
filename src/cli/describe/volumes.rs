//! What a Backup holds of volumes.

use std::collections::BTreeMap;

use berth_api::keys::PROGRESS_TEXT;
use berth_api::velero::BackupStatus;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::{Described, Fetched, Text, one_line};
use crate::cli::table::time;

fn text_of(value: &Value, path: &str) -> String {
    match value.pointer(path) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => one_line(text),
        Some(other) => one_line(&other.to_string()),
    }
}

fn is_true(value: &Value, path: &str) -> bool {
    value.pointer(path) == Some(&Value::Bool(true))
}

pub fn describe(text: &mut Text, described: &Described<'_>, status: &BackupStatus) {
    text.line("Backup Volumes:");
    let [native_untold, csi_untold] = untold(described, status);
    let all = match &described.volumes {
        Fetched::Got(Value::Array(all)) => all.as_slice(),
        Fetched::Got(_) => {
            text.line("\t<the list of volumes cannot be read>");
            return;
        }
        Fetched::Failed(why) => {
            text.line(&format!("\t<they cannot be had: {}>", one_line(why)));
            return;
        }
        Fetched::Missing | Fetched::NotAsked => &[],
    };
    let of =
        |method: &str| all.iter().filter(|one| text_of(one, "/backupMethod") == method).collect::<Vec<_>>();
    native(text, &of("NativeSnapshot"), native_untold, described.details);
    text.blank();
    csi(text, &of("CSISnapshot"), csi_untold, described.details);
    text.blank();
    pods(text, described.pod_volumes, described.details);
    let skipped: Vec<&Value> = all.iter().filter(|one| is_true(one, "/skipped")).collect();
    if skipped.is_empty() {
        return;
    }
    text.blank();
    if !described.details {
        text.line(&format!("\tSkipped: {} (specify --details for the reasons)", skipped.len()));
        return;
    }
    text.line("\tSkipped:");
    for one in skipped {
        text.line(&format!("\t\t{}: {}", text_of(one, "/pvName"), text_of(one, "/skippedReason")));
    }
}

/// Snapshots of Velero's plugins and of CSI drivers that no list names, because Velero stored none
/// before 1.13.
pub fn untold(described: &Described<'_>, status: &BackupStatus) -> [i64; 2] {
    let attempted = [status.volume_snapshots_attempted, status.csi_volume_snapshots_attempted];
    let is_missing = matches!(described.volumes, Fetched::Missing);
    attempted.map(|attempted| attempted.filter(|_| is_missing).unwrap_or(0))
}

/// What stands in place of a list that has nothing. `untold`: how many there are all the same.
fn none(untold: i64) -> String {
    if untold > 0 {
        format!("<{untold}, of which the store has no list>")
    } else {
        "<none included>".to_owned()
    }
}

fn native(text: &mut Text, all: &[&Value], untold: i64, details: bool) {
    if all.is_empty() {
        text.line(&format!("\tVelero-Native Snapshots: {}", none(untold)));
        return;
    }
    text.line("\tVelero-Native Snapshots:");
    for one in all {
        let name = text_of(one, "/pvName");
        if !details {
            text.line(&format!("\t\t{name}: specify --details for more information"));
            continue;
        }
        text.line(&format!("\t\t{name}:"));
        for (label, path) in [
            ("Snapshot ID", "/nativeSnapshotInfo/snapshotHandle"),
            ("Type", "/nativeSnapshotInfo/volumeType"),
            ("Availability Zone", "/nativeSnapshotInfo/volumeAZ"),
            ("IOPS", "/nativeSnapshotInfo/iops"),
            ("Result", "/result"),
        ] {
            text.row(&format!("\t\t\t{label}"), &text_of(one, path));
        }
    }
}

fn csi(text: &mut Text, all: &[&Value], untold: i64, details: bool) {
    if all.is_empty() {
        text.line(&format!("\tCSI Snapshots: {}", none(untold)));
        return;
    }
    text.line("\tCSI Snapshots:");
    for one in all {
        text.line(&format!("\t\t{}/{}:", text_of(one, "/pvcNamespace"), text_of(one, "/pvcName")));
        let is_moved = is_true(one, "/snapshotDataMoved");
        // What is 0 or Velero's own is absent.
        let mut part = |name: &str, rows: &[(&str, &str, &str)]| {
            if !details {
                text.line(&format!("\t\t\t{name}: included, specify --details for more information"));
                return;
            }
            text.line(&format!("\t\t\t{name}:"));
            for (label, path, absent) in rows {
                let value = text_of(one, path);
                let value = if value.is_empty() { *absent } else { value.as_str() };
                if !value.is_empty() {
                    text.line(&format!("\t\t\t\t{label}: {value}"));
                }
            }
        };
        if is_true(one, "/preserveLocalSnapshot") {
            let rows = [
                ("Operation ID", if is_moved { "/none" } else { "/csiSnapshotInfo/operationID" }, ""),
                ("Snapshot Content Name", "/csiSnapshotInfo/vscName", ""),
                ("Storage Snapshot ID", "/csiSnapshotInfo/snapshotHandle", ""),
                ("Snapshot Size (bytes)", "/csiSnapshotInfo/size", "0"),
                ("CSI Driver", "/csiSnapshotInfo/driver", ""),
                ("Result", "/result", ""),
            ];
            part("Snapshot", &rows);
        }
        if is_moved {
            let rows = [
                ("Operation ID", "/snapshotDataMovementInfo/operationID", ""),
                ("Data Mover", "/snapshotDataMovementInfo/dataMover", "velero"),
                ("Uploader Type", "/snapshotDataMovementInfo/uploaderType", ""),
                ("Moved data Size (bytes)", "/snapshotDataMovementInfo/size", "0"),
                ("Incremental data Size (bytes)", "/snapshotDataMovementInfo/incrementalSize", ""),
                ("Result", "/result", ""),
            ];
            part("Data Movement", &rows);
        }
    }
}

/// Phases of PodVolumeBackups, in the order in which they are shown.
const PHASES: [&str; 8] =
    ["Completed", "Failed", "Canceled", "InProgress", "Canceling", "Prepared", "Accepted", "New"];

fn pods(text: &mut Text, all: &[Value], details: bool) {
    let Some(first) = all.first() else {
        text.line("\tPod Volume Backups: <none included>");
        return;
    };
    let uploader = text_of(first, "/spec/uploaderType");
    let hint = if details { "" } else { " (specify --details for more information)" };
    text.line(&format!("\tPod Volume Backups - {uploader}{hint}:"));
    let phase = |one: &Value| {
        let phase = text_of(one, "/status/phase");
        if phase.is_empty() { "New".to_owned() } else { phase }
    };
    for shown in PHASES {
        let group: Vec<&Value> = all.iter().filter(|one| phase(one) == shown).collect();
        if group.is_empty() {
            continue;
        }
        let name = if shown == "InProgress" { "In Progress" } else { shown };
        if !details {
            text.row(&format!("\t\t{name}"), &group.len().to_string());
            continue;
        }
        text.line(&format!("\t\t{name}:"));
        let mut by_pod: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in group {
            let pod = format!("{}/{}", text_of(one, "/spec/pod/namespace"), text_of(one, "/spec/pod/name"));
            by_pod.entry(pod).or_default().push(volume(one, shown));
        }
        for (pod, mut volumes) in by_pod {
            volumes.sort();
            text.line(&format!("\t\t\t{pod}: {}", volumes.join(", ")));
        }
    }
}

/// Where a PodVolumeBackup has what its definition has no fields for.
pub(super) fn files_and_rate() -> String {
    format!("/metadata/annotations/{}", PROGRESS_TEXT.replace('/', "~1"))
}

fn volume(one: &Value, phase: &str) -> String {
    let name = text_of(one, "/spec/volume");
    let number = |path: &str| one.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let (total, done) = (number("/status/progress/totalBytes"), number("/status/progress/bytesDone"));
    let incremental = number("/status/incrementalBytes");
    match phase {
        "InProgress" => {
            let hundredths = (u128::from(done) * 10_000).checked_div(u128::from(total));
            let percent = hundredths.map(|all| format!("{}.{:02}%", all / 100, all % 100));
            let files = Some(text_of(one, &files_and_rate())).filter(|files| !files.is_empty());
            let progress: Vec<String> = percent.into_iter().chain(files).collect();
            if progress.is_empty() { name } else { format!("{name} ({})", progress.join(", ")) }
        }
        "Completed" if incremental > 0 => format!("{name} (size: {total}, incremental size: {incremental})"),
        "Completed" if total > 0 => format!("{name} (size: {total})"),
        _ => name,
    }
}

/// One asynchronous operation of an item action.
pub fn operation(text: &mut Text, operation: &Value) {
    let named = |item: &Value| {
        let group = text_of(item, "/Group");
        let kind = text_of(item, "/Resource");
        let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
        format!("{kind} {}/{}", text_of(item, "/Namespace"), text_of(item, "/Name"))
    };
    let item = operation.pointer("/spec/resourceIdentifier").unwrap_or(&Value::Null);
    text.line(&format!("\tOperation for {}:", named(item)));
    text.row("\t\tBackup Item Action Plugin", &text_of(operation, "/spec/backupItemAction"));
    text.row("\t\tOperation ID", &text_of(operation, "/spec/operationID"));
    let updated = operation.pointer("/spec/postOperationItems").and_then(Value::as_array);
    if let Some(updated) = updated.filter(|updated| !updated.is_empty()) {
        text.line("\t\tItems to Update:");
        updated.iter().for_each(|item| text.line(&format!("\t\t\t{}", named(item))));
    }
    text.row("\t\tPhase", &text_of(operation, "/status/phase"));
    let number = |path: &str| operation.pointer(path).and_then(Value::as_i64).unwrap_or(0);
    let (completed, total) = (number("/status/nCompleted"), number("/status/nTotal"));
    if completed > 0 || total > 0 {
        let units = text_of(operation, "/status/operationUnits");
        text.row("\t\tProgress", &format!("{completed} of {total} complete ({units})"));
    }
    for (label, path) in [
        ("Operation Error", "/status/error"),
        ("Progress description", "/status/description"),
        ("Created", "/status/created"),
        ("Started", "/status/started"),
        ("Updated", "/status/updated"),
    ] {
        let value = text_of(operation, path);
        // Times are told as everywhere else.
        let value = value.parse::<Timestamp>().map_or(value, |at| time(&Time(at)));
        if !value.is_empty() {
            text.row(&format!("\t\t{label}"), &value);
        }
    }
}
