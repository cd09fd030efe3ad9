//! What is kept of each listed object: the few labels and fields that decide whether it is left.

use std::collections::BTreeMap;

use berth_api::keys::{ALL_BROUGHT, BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID};
use berth_core::leftover::LocationSync;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::core::ObjectMeta;
use serde_json::Value;

use super::{BACKUP, GROUP, UPLOAD};
use crate::patch::digest;

/// Characters of a value that is kept; of longer ones the digest is.
const KEPT: usize = 256;

pub(super) const OF_CONTENT: &str = "/spec/source/volumeSnapshotContentName";
pub(super) const OF_VOLUME: &str = "/spec/source/volumeHandle";
pub(super) const OF_HANDLE: &str = "/spec/source/snapshotHandle";
const DRIVER: &str = "/spec/driver";
pub(super) const POLICY: &str = "/spec/deletionPolicy";
pub(super) const SNAPSHOT_UID: &str = "/spec/volumeSnapshotRef/uid";
pub(super) const HANDLE: &str = "/status/snapshotHandle";
pub(super) const OF_VOLUMES: &str = "/spec/source/volumeHandles/0";
pub(super) const OF_GROUP_HANDLE: &str = "/spec/source/groupSnapshotHandles/volumeGroupSnapshotHandle";
pub(super) const GROUP_UID: &str = "/spec/volumeGroupSnapshotRef/uid";
const GROUP_HANDLE: &str = "/status/volumeGroupSnapshotHandle";
const PHASE: &str = "/status/phase";
/// All that is kept of an object beside its metadata, by its place.
const FIELDS: [&str; 12] = [
    OF_CONTENT,
    OF_VOLUME,
    OF_HANDLE,
    DRIVER,
    POLICY,
    SNAPSHOT_UID,
    HANDLE,
    OF_VOLUMES,
    OF_GROUP_HANDLE,
    GROUP_UID,
    GROUP_HANDLE,
    PHASE,
];
const LABELS: [&str; 4] = [BACKUP_NAME, BACKUP_UID, RESTORE_NAME, RESTORE_UID];

/// What is kept of an object.
pub(super) fn kept(object: DynamicObject) -> DynamicObject {
    let DynamicObject { types, metadata, data } = object;
    let short = |text: &str| if text.len() > KEPT { digest(text) } else { text.to_owned() };
    let fields = FIELDS
        .iter()
        .filter_map(|at| Some(((*at).to_owned(), Value::from(short(data.pointer(at)?.as_str()?)))));
    let some = |all: Option<BTreeMap<String, String>>, keys: &[&str]| {
        all.map(|all| {
            all.into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect::<BTreeMap<_, _>>()
        })
    };
    let owners = metadata.owner_references.map(|mut owners| {
        owners.retain(|owner| {
            let group = owner.api_version.split('/').next().unwrap_or_default();
            [("velero.io", UPLOAD), ("velero.io", BACKUP), ("groupsnapshot.storage.k8s.io", GROUP)]
                .contains(&(group, owner.kind.as_str()))
        });
        owners
    });
    let metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        labels: some(metadata.labels, &LABELS),
        annotations: some(metadata.annotations, &[ALL_BROUGHT]),
        owner_references: owners,
        ..ObjectMeta::default()
    };
    DynamicObject { types, metadata, data: Value::Object(fields.collect()) }
}

pub(super) fn label(object: &DynamicObject, key: &str) -> String {
    object.labels().get(key).cloned().unwrap_or_default()
}

pub(super) fn text<'o>(object: &'o DynamicObject, field: &str) -> &'o str {
    object.data.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Driver and handle of the snapshot of a content.
pub(super) fn handle(content: &DynamicObject) -> Option<(&str, &str)> {
    first_handle(content, [HANDLE, OF_HANDLE])
}

/// Driver and handle of the group of snapshots of a VolumeGroupSnapshotContent.
pub(super) fn group_handle(content: &DynamicObject) -> Option<(&str, &str)> {
    first_handle(content, [GROUP_HANDLE, OF_GROUP_HANDLE])
}

fn first_handle<'o>(content: &'o DynamicObject, places: [&str; 2]) -> Option<(&'o str, &'o str)> {
    let handle = places.into_iter().map(|at| text(content, at)).find(|handle| !handle.is_empty());
    Some((text(content, DRIVER), handle?))
}

/// The UID of the owner of that kind.
pub(super) fn owner<'o>(object: &'o DynamicObject, kind: &str) -> Option<&'o String> {
    object.owner_references().iter().find(|owner| owner.kind == kind).map(|owner| &owner.uid)
}

pub(super) fn synced(location: &DynamicObject) -> LocationSync {
    LocationSync {
        is_available: text(location, PHASE) == "Available",
        at: location.annotations().get(ALL_BROUGHT).and_then(|at| at.parse().ok()),
    }
}

pub(super) fn path(object: &DynamicObject) -> String {
    let ObjectMeta { namespace, name, .. } = &object.metadata;
    format!("{}/{}", namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// An object as it is kept.
    pub fn object(metadata: Value, spec: Value) -> DynamicObject {
        let mut whole = json!({"apiVersion": "v1", "kind": "X", "metadata": metadata, "spec": spec});
        whole["metadata"]["creationTimestamp"] = json!("2026-09-21T10:00:00Z");
        kept(serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn nothing_of_an_object_is_kept_that_is_not_used() {
        let metadata = json!({
            "name": "s", "uid": "u", "annotations": {"big": "x"}, "managedFields": [],
            "labels": {"velero.io/backup-name": "b", "app": "shop"},
        });
        let long = "h".repeat(KEPT + 1);
        let found = object(metadata, json!({"source": {"snapshotHandle": long}, "more": {"a": 1}}));
        assert_eq!(found.labels().len(), 1);
        assert!(found.annotations().is_empty() && found.metadata.managed_fields.is_none());
        assert_eq!(found.data, json!({OF_HANDLE: digest(&long)}));
    }
}
