//! The description of a Backup as a structure, with Velero's keys. Lists are lists, and what
//! Velero's structure lacks is there: the place in the queue, scoped filters, selectors of which
//! one must match, and operations.

use berth_api::velero::{Backup, BackupPhase, DeleteBackupRequest};
use serde_json::{Map, Value, json};

use super::spec::{duration, is_old_style, three};
use super::volumes::{files_and_rate, untold};
use super::{Described, Fetched, global_policy};
use crate::args::value::selector_text;
use crate::cli::table::phase;

fn list(list: Option<&Vec<String>>, none: &[&str]) -> Value {
    match list.filter(|list| !list.is_empty()) {
        Some(list) => json!(list),
        None => json!(none),
    }
}

/// The structure.
pub fn json(backup: &Backup, described: &Described<'_>) -> Value {
    let status = backup.status.clone().unwrap_or_default();
    let metadata = &backup.metadata;
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put(
        "metadata",
        json!({
            "name": metadata.name, "namespace": metadata.namespace,
            "labels": metadata.labels, "annotations": metadata.annotations,
        }),
    );
    put("phase", json!(phase(backup)));
    if let Some(why) = &status.failure_reason {
        put("failureReason", json!(why));
    }
    if let Some(standing) = &described.standing {
        let told = status.queue_position.filter(|_| backup.phase() == BackupPhase::Queued);
        put(
            "queue",
            json!({
                "position": standing.position.map(i64::from).or(told),
                "priorityClass": standing.priority_class,
                "waitsFor": standing.waits_for,
                "expectedStart": standing.expected_start,
                "expectedEnd": standing.expected_end,
                "blockedBy": standing.blockers,
            }),
        );
    }
    if let Some(policy) = &backup.spec.resource_policy {
        put("resourcePolicies", json!({"type": policy.kind, "name": policy.name}));
    }
    if let Some(name) = global_policy(backup) {
        put("globalVolumePolicies", json!({"type": "configmap", "name": name}));
    }
    if let Some(faults) = status.validation_errors.as_ref().filter(|faults| !faults.is_empty()) {
        put("validationErrors", json!(faults));
    }
    for (key, count) in [("warnings", status.warnings), ("errors", status.errors)] {
        let count = count.unwrap_or(0);
        if count == 0 {
            continue;
        }
        let mut told = json!({"count": count});
        match &described.results {
            Fetched::Got(results) => {
                if let (Some(told), Some(Value::Object(of))) = (told.as_object_mut(), results.get(key)) {
                    told.extend(of.clone());
                }
            }
            Fetched::Failed(why) => {
                if let Some(told) = told.as_object_mut() {
                    told.insert("unavailable".to_owned(), json!(why));
                }
            }
            Fetched::Missing | Fetched::NotAsked => {}
        }
        put(key, told);
    }
    put("spec", spec(&backup.spec));
    put("status", progress(backup, described));
    if !described.deletions.is_empty() {
        let one = |request: &DeleteBackupRequest| {
            let status = request.status.clone().unwrap_or_default();
            json!({
                "created": request.metadata.creation_timestamp, "phase": status.phase,
                "errors": status.errors.unwrap_or_default(),
            })
        };
        put("deletionAttempts", json!(described.deletions.iter().map(one).collect::<Vec<_>>()));
    }
    Value::Object(out)
}

pub(super) fn spec(spec: &berth_api::velero::BackupSpec) -> Value {
    let resources = if is_old_style(spec) {
        json!({
            "included": list(spec.included_resources.as_ref(), &["*"]),
            "excluded": list(spec.excluded_resources.as_ref(), &[]),
            "clusterScoped": three(spec.include_cluster_resources, "excluded", "included", "auto"),
        })
    } else {
        json!({
            "includedClusterScoped": list(spec.included_cluster_scoped_resources.as_ref(), &[]),
            "excludedClusterScoped": list(spec.excluded_cluster_scoped_resources.as_ref(), &[]),
            "includedNamespaceScoped": list(spec.included_namespace_scoped_resources.as_ref(), &["*"]),
            "excludedNamespaceScoped": list(spec.excluded_namespace_scoped_resources.as_ref(), &[]),
        })
    };
    let either: Vec<String> =
        spec.or_label_selectors.iter().flatten().map(|one| selector_text(Some(one))).collect();
    let mut told = json!({
        "namespaces": {
            "included": list(spec.included_namespaces.as_ref(), &["*"]),
            "excluded": list(spec.excluded_namespaces.as_ref(), &[]),
        },
        "resources": resources,
        "labelSelector": selector_text(spec.label_selector.as_ref()),
        "storageLocation": spec.storage_location,
        "veleroNativeSnapshotPVs": three(spec.snapshot_volumes, "false", "true", "auto"),
        "veleroSnapshotMoveData": three(spec.snapshot_move_data, "false", "true", "auto"),
        "dataMover": spec.datamover.as_deref().filter(|mover| !mover.is_empty()).unwrap_or("velero"),
        "TTL": duration(spec.ttl.as_ref()),
        "CSISnapshotTimeout": duration(spec.csi_snapshot_timeout.as_ref()),
        "itemOperationTimeout": duration(spec.item_operation_timeout.as_ref()),
        "hooks": spec.hooks.as_ref().and_then(|hooks| hooks.resources.as_ref()),
        "orderedResources": spec.ordered_resources,
    });
    if let Some(told) = told.as_object_mut() {
        if !either.is_empty() {
            told.insert("orLabelSelectors".to_owned(), json!(either));
        }
        if let Some(value) = spec.default_volumes_to_fs_backup {
            told.insert("fileSystemBackupDefault".to_owned(), json!(value));
        }
        let files = spec.uploader_config.as_ref().and_then(|config| config.parallel_files_upload);
        if let Some(files) = files.filter(|files| *files > 0) {
            told.insert("parallelFilesUpload".to_owned(), json!(files));
        }
    }
    told
}

fn progress(backup: &Backup, described: &Described<'_>) -> Value {
    let status = backup.status.clone().unwrap_or_default();
    let mut told = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            told.insert(key.to_owned(), value);
        }
    };
    put("backupFormatVersion", json!(status.format_version));
    put("started", json!(status.start_timestamp));
    put("completed", json!(status.completion_timestamp));
    put("expiration", json!(status.expiration));
    put("lockedUntil", json!(described.locked_until));
    if let Some(progress) = status.progress {
        let keys = if backup.phase() == BackupPhase::InProgress {
            ["estimatedTotalItemsToBeBackedUp", "itemsBackedUpSoFar"]
        } else {
            ["totalItemsToBeBackedUp", "itemsBackedUp"]
        };
        for (key, items) in keys.into_iter().zip([progress.total_items, progress.items_backed_up]) {
            put(key, json!(items.unwrap_or(0)));
        }
    }
    if let Some(attempted) = status.backup_item_operations_attempted.filter(|attempted| *attempted > 0) {
        put(
            "backupItemOperations",
            json!({
                "attempted": attempted,
                "completed": status.backup_item_operations_completed.unwrap_or(0),
                "failed": status.backup_item_operations_failed.unwrap_or(0),
                "operations": got(&described.operations),
            }),
        );
    }
    if described.details {
        put("resourceList", got(&described.resources));
    }
    let all = got(&described.volumes);
    let of = |method: &str| {
        let all = all.as_array().into_iter().flatten();
        all.filter(|one| one.get("backupMethod").and_then(Value::as_str) == Some(method))
            .cloned()
            .collect::<Vec<_>>()
    };
    let skipped: Vec<Value> = all
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one.get("skipped").and_then(Value::as_bool) == Some(true))
        .cloned()
        .collect();
    let pods: Vec<Value> = described
        .pod_volumes
        .iter()
        .map(|one| {
            json!({
                "name": one.pointer("/metadata/name"), "phase": one.pointer("/status/phase"),
                "pod": one.pointer("/spec/pod/name"), "namespace": one.pointer("/spec/pod/namespace"),
                "volume": one.pointer("/spec/volume"), "uploaderType": one.pointer("/spec/uploaderType"),
                "progress": one.pointer("/status/progress"),
                "filesAndRate": one.pointer(&files_and_rate()),
            })
        })
        .collect();
    let mut volumes = json!({
        "nativeSnapshots": of("NativeSnapshot"), "csiSnapshots": of("CSISnapshot"), "podVolumeBackups": pods,
        "skipped": skipped,
    });
    let [native, csi] = untold(described, &status);
    if let Some(volumes) = volumes.as_object_mut().filter(|_| native > 0 || csi > 0) {
        volumes.insert("unlisted".to_owned(), json!({"nativeSnapshots": native, "csiSnapshots": csi}));
    }
    put("backupVolumes", volumes);
    if let Some(hooks) = status.hook_status {
        put("hooksAttempted", json!(hooks.hooks_attempted.unwrap_or(0)));
        put("hooksFailed", json!(hooks.hooks_failed.unwrap_or(0)));
    }
    Value::Object(told)
}

fn got(fetched: &Fetched) -> Value {
    match fetched {
        Fetched::Got(value) => value.clone(),
        Fetched::Failed(why) => json!({"unavailable": why}),
        Fetched::Missing | Fetched::NotAsked => Value::Null,
    }
}
