//! The objects that the sync creates from the files of a store. The files are written by others, so
//! fields that only apply to the other cluster are left out, and unknown ones are not taken over.

use std::io::Read as _;

use berth_api::keys::{self, label_value};
use berth_api::velero::{Backup, BackupPhase, BackupStatus};
use berth_core::sync::{StoredBackupFile, SyncSkipReason, Take, is_name, judge};
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::patch::{digest, merge_into};
use crate::storage::StoredBackups;

/// Limit of the values in the JSON of a Backup.
const VALUES: usize = 50_000;
/// Limit of the bytes of all PodVolumeBackups of a backup, unpacked.
const LARGEST: u64 = 8 << 20;
/// Limit of the values in their JSON.
const VALUES_OF_VOLUMES: usize = 200_000;
/// Limit of the PodVolumeBackups of a backup.
const MOST: usize = 20_000;
/// Final phases of a PodVolumeBackup. A node-agent would run one in any other phase.
const OVER: [&str; 3] = ["Completed", "Failed", "Canceled"];

/// A Backup to be created, and what still has to be looked up for it.
#[derive(Debug)]
pub struct SyncedBackup {
    pub object: Value,
    /// When the backup ended.
    pub ended: Option<Timestamp>,
    /// The Schedules that own it in the other cluster.
    pub owners: Vec<Value>,
}

/// Reads `velero-backup.json` of the folder `name`.
///
/// # Errors
/// Why the folder gets no Backup.
pub fn backup(
    name: &str,
    json: &[u8],
    location: &str,
    namespace: &str,
    now: Timestamp,
) -> Result<SyncedBackup, SyncSkipReason> {
    if !StoredBackups::is_light(json, VALUES) {
        return Err(SyncSkipReason::TooLarge);
    }
    let stored: Value = serde_json::from_slice(json).map_err(|_| SyncSkipReason::Unreadable)?;
    let text = |pointer: &str| stored.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let time = |pointer: &str| text(pointer).parse::<Timestamp>().ok();
    let found = StoredBackupFile {
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        name: text("/metadata/name"),
        phase: text("/status/phase"),
        format_version: text("/status/formatVersion"),
        expiration: time("/status/expiration"),
    };
    let take = judge(name, &found, now)?;
    let ended = time("/status/completionTimestamp");
    let owners = stored.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let is_schedule = |owner: &&Value| {
        owner["kind"] == "Schedule"
            && owner["apiVersion"].as_str().is_some_and(|v| v.starts_with("velero.io/"))
    };
    let owners = owners.into_iter().flatten().filter(is_schedule).take(1).cloned().collect();
    let mut object = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Backup",
        "metadata": metadata(&stored, namespace),
        "spec": part(&stored, "spec"),
        "status": part(&stored, "status"),
    });
    let label = label_value(location, digest);
    let of_location = json!({
        "metadata": {"labels": {keys::STORAGE_LOCATION: label}},
        "spec": {"storageLocation": location},
    });
    merge_into(&mut object, of_location);
    if take == Take::AsPartiallyFailed {
        merge_into(&mut object, json!({"status": BackupStatus::in_phase(BackupPhase::PartiallyFailed)}));
    }
    // A Backup that berth's types cannot parse would be skipped everywhere once it is created.
    serde_json::from_value::<Backup>(object.clone()).map_err(|_| SyncSkipReason::Unreadable)?;
    Ok(SyncedBackup { object, ended, owners })
}

/// Annotations that a user who can write to the store could forge to have berth remove other
/// backups: two records of a deletion, and the mark of a Schedule's own Backups, by which newer
/// ones replace older ones. And the mark of what a data mover has left in the other cluster.
const NOT_BELIEVED: [&str; 4] = [keys::VOLUMES_MISSING, keys::FILES_GO, keys::SCHEDULE_UID, keys::MADE];

/// Name, labels and annotations. UID, resourceVersion, owners, finalizers and managed fields belong
/// to the other cluster.
fn metadata(stored: &Value, namespace: &str) -> Value {
    let mut metadata = json!({"name": stored["metadata"]["name"], "namespace": namespace});
    for key in ["labels", "annotations"] {
        if let Some(Value::Object(all)) = stored["metadata"].get(key) {
            let is_kept = |key: &str, value: &Value| value.is_string() && !NOT_BELIEVED.contains(&key);
            let all: Map<String, Value> =
                all.clone().into_iter().filter(|(key, value)| is_kept(key, value)).collect();
            metadata[key] = Value::Object(all);
        }
    }
    metadata
}

fn part(stored: &Value, key: &str) -> Value {
    stored.get(key).filter(|part| part.is_object()).cloned().unwrap_or_else(|| json!({}))
}

/// The PodVolumeBackups in a file, with the Backup of that name and UID.
///
/// # Errors
/// What is wrong with the file.
pub fn pod_volume_backups(gzip: &[u8]) -> Result<Vec<Value>, String> {
    let mut text = Vec::new();
    let read = MultiGzDecoder::new(gzip).take(LARGEST + 1).read_to_end(&mut text);
    read.map_err(|error| format!("it is no gzip: {error}"))?;
    if text.len() as u64 > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes"));
    }
    if !StoredBackups::is_light(&text, VALUES_OF_VOLUMES) {
        return Err(format!("it has more than {VALUES_OF_VOLUMES} values"));
    }
    let all: Option<Vec<Value>> =
        serde_json::from_slice(&text).map_err(|error| format!("it is no list in JSON: {error}"))?;
    let all = all.unwrap_or_default();
    if all.len() > MOST {
        return Err(format!("it has {} PodVolumeBackups, and {MOST} are taken at most", all.len()));
    }
    let is_over = |one: &Value| {
        let phase = one.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
        let name = one.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        OVER.contains(&phase) && is_name(name)
    };
    Ok(all.into_iter().filter(is_over).collect())
}

/// One of them, for the Backup of this name and UID.
pub fn pod_volume_backup(stored: &Value, backup: (&str, &str), location: &str, namespace: &str) -> Value {
    let (name, uid) = backup;
    let mut object = json!({
        "apiVersion": "velero.io/v1",
        "kind": "PodVolumeBackup",
        "metadata": metadata(stored, namespace),
        "spec": part(stored, "spec"),
        "status": part(stored, "status"),
    });
    let of_backup = json!({
        "metadata": {
            "labels": {keys::BACKUP_NAME: label_value(name, digest), keys::BACKUP_UID: uid},
            "ownerReferences": [{
                "apiVersion": "velero.io/v1", "kind": "Backup", "name": name, "uid": uid, "controller": true,
            }],
        },
        "spec": {"backupStorageLocation": location},
    });
    merge_into(&mut object, of_backup);
    object
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn stored() -> Value {
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {
                "name": "b", "namespace": "elsewhere", "uid": "foreign", "resourceVersion": "7", "generation": 3,
                "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["stay"], "managedFields": [{}],
                "labels": {"team": "a", "velero.io/storage-location": "there", "odd": 1},
                "annotations": {"note": "x", "berth.dev/files-go": "true", "berth.dev/made": "t"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"},
                    {"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "daily", "uid": "s", "controller": true},
                ],
            },
            "spec": {"storageLocation": "there", "ttl": "24h0m0s", "newer": {"field": true}},
            "status": {
                "phase": "Completed", "formatVersion": "1.1.0", "completionTimestamp": "2026-01-01T00:01:00Z", "errors": 0,
            },
        })
    }

    fn read(value: &Value) -> Result<SyncedBackup, SyncSkipReason> {
        backup("b", value.to_string().as_bytes(), "here", "velero", "2026-02-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_backup_keeps_what_it_is_and_nothing_of_the_cluster_that_it_comes_from() {
        let restored = read(&stored()).unwrap();
        let expected = json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {
                "name": "b", "namespace": "velero",
                "labels": {"team": "a", "velero.io/storage-location": "here"},
                "annotations": {"note": "x"},
            },
            "spec": {"storageLocation": "here", "ttl": "24h0m0s", "newer": {"field": true}},
            "status": {
                "phase": "Completed", "formatVersion": "1.1.0", "completionTimestamp": "2026-01-01T00:01:00Z", "errors": 0,
            },
        });
        assert_eq!(restored.object, expected);
        assert_eq!(restored.ended, "2026-01-01T00:01:00Z".parse().ok());
        assert_eq!(restored.owners.len(), 1);
        assert_eq!(restored.owners[0]["uid"], "s");
    }

    #[test]
    fn one_that_waits_for_operations_for_ever_is_partially_failed_once_it_has_expired() {
        let mut waits = stored();
        waits["status"]["phase"] = json!("WaitingForPluginOperations");
        assert_eq!(read(&waits).unwrap_err(), SyncSkipReason::Unfinished);
        waits["status"]["expiration"] = json!("2026-01-31T00:00:00Z");
        assert_eq!(read(&waits).unwrap().object["status"]["phase"], "PartiallyFailed");
    }

    #[test]
    fn what_is_no_backup_is_skipped() {
        let with = |pointer: &str, value: Value| {
            let mut changed = stored();
            *changed.pointer_mut(pointer).unwrap() = value;
            read(&changed).unwrap_err()
        };
        assert_eq!(with("/kind", json!("Restore")), SyncSkipReason::Unreadable);
        assert_eq!(with("/metadata/name", json!("c")), SyncSkipReason::OtherName);
        assert_eq!(with("/status/formatVersion", json!("2.0.0")), SyncSkipReason::NewerFormat);
        assert_eq!(with("/spec/ttl", json!({"is": "no text"})), SyncSkipReason::Unreadable);
        let now = Timestamp::UNIX_EPOCH;
        for text in ["", "null", "[]", "{", "{\"kind\": \"Backup\"}", &"[".repeat(VALUES)] {
            assert_eq!(
                backup("b", text.as_bytes(), "here", "velero", now).unwrap_err(),
                SyncSkipReason::Unreadable
            );
        }
        let whole = stored().to_string();
        let cut = &whole.as_bytes()[..whole.len() / 2];
        assert_eq!(backup("b", cut, "here", "velero", now).unwrap_err(), SyncSkipReason::Unreadable);
    }

    #[test]
    fn what_is_small_in_the_store_and_large_in_memory_is_not_parsed() {
        let bomb = |entries: usize| format!("[{}]", vec![r#"{"":0}"#; entries].join(","));
        let now = Timestamp::UNIX_EPOCH;
        let read = |text: String| backup("b", text.as_bytes(), "here", "velero", now).unwrap_err();
        assert_eq!(read(bomb(VALUES)), SyncSkipReason::TooLarge);
        assert_eq!(read(bomb(VALUES / 4)), SyncSkipReason::Unreadable);
        let mut large = stored();
        large["newer"] = json!(vec![0; VALUES]);
        assert_eq!(read(large.to_string()), SyncSkipReason::TooLarge);
        let refused = pod_volume_backups(&gzip(&bomb(VALUES_OF_VOLUMES))).unwrap_err();
        assert!(refused.contains("200000 values"), "{refused}");
        assert!(pod_volume_backups(&gzip(&bomb(1000))).unwrap().is_empty());
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn only_pod_volume_backups_that_have_ended_are_created() {
        let one = |name: &str, phase: &str| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {"name": name, "namespace": "elsewhere", "uid": "foreign", "labels": {"a": "b"}},
                "spec": {"node": "n", "backupStorageLocation": "there"}, "status": {"phase": phase, "snapshotID": "x"},
            })
        };
        let all = json!([
            one("b-1", "Completed"),
            one("b-2", "New"),
            one("B 3", "Completed"),
            one("b-4", "Failed")
        ]);
        let found = pod_volume_backups(&gzip(&all.to_string())).unwrap();
        assert_eq!(found.len(), 2, "a node-agent would begin one in phase New");
        let created = pod_volume_backup(&found[0], ("b", "u"), "here", "velero");
        assert_eq!(
            created["metadata"],
            json!({
                "name": "b-1", "namespace": "velero",
                "labels": {"a": "b", "velero.io/backup-name": "b", "velero.io/backup-uid": "u"},
                "ownerReferences": [
                    {"apiVersion": "velero.io/v1", "kind": "Backup", "name": "b", "uid": "u", "controller": true},
                ],
            })
        );
        assert_eq!(created["spec"], json!({"node": "n", "backupStorageLocation": "here"}));
        assert_eq!(created["status"]["snapshotID"], "x");
        assert!(pod_volume_backups(&gzip("null\n")).unwrap().is_empty());
        for bad in [gzip("{}"), gzip("[1"), b"no gzip".to_vec(), gzip(&" ".repeat(1 << 25)), Vec::new()] {
            assert!(pod_volume_backups(&bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_file_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}\",:a-z0-9]{0,60}") {
            for json in [bytes.as_slice(), text.as_bytes()] {
                let _ = backup("b", json, "here", "velero", Timestamp::UNIX_EPOCH);
                let _ = pod_volume_backups(json);
            }
            let _ = pod_volume_backups(&gzip(&text));
        }
    }
}
