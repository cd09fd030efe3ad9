//! Velero's item actions: how an object is changed before it is stored. They apply to claims, pods,
//! service accounts, and the types of snapshots. Objects of all other types are stored as the API
//! server sent them.
//!
//! What an object needs besides is read by [`super::related`] and taken in `collect::follow`.

pub mod snapshots;

use berth_api::keys::{
    BACKUP_NAME, DATA_UPLOAD_NAME, MUST_INCLUDE, RESTORE_NAME, RESTORE_UID, SKIP_FROM_BACKUP,
    VOLUME_SNAPSHOT_NAME,
};
use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::related::Related;

/// Prefix of label keys that only Velero writes.
const VELEROS: &str = "velero.io/";
/// Labels that an earlier restore or backup has left on a claim.
const STALE_LABELS: [&str; 4] = [RESTORE_NAME, RESTORE_UID, VOLUME_SNAPSHOT_NAME, MUST_INCLUDE];
/// Annotations that an earlier backup has left on a claim: with them a restore would look for a
/// snapshot or a data movement of another backup.
const STALE_ANNOTATIONS: [&str; 2] = [VOLUME_SNAPSHOT_NAME, DATA_UPLOAD_NAME];
/// Finalizer of a VolumeSnapshot that belongs to a group, and the kind of that group, which owns
/// it.
const IN_GROUP: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
const GROUP: &str = "VolumeGroupSnapshot";

/// The result of an item action.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ActionResult {
    /// The changed object; `None`: unchanged.
    pub json: Option<Bytes>,
    /// An annotation leaves the object out of the backup.
    pub skips: bool,
    /// No filter may keep out the objects that this one needs.
    pub requires: bool,
}

/// Whether objects of this type have an item action.
pub fn applies(of: Related) -> bool {
    matches!(
        of,
        Related::Pod
            | Related::Claim
            | Related::Account
            | Related::Snapshot
            | Related::SnapshotContent
            | Related::SnapshotClass
    )
}

/// Runs the item action of a type. `backup`: the name of the Backup that the object is stored for.
///
/// # Errors
/// When the object is not of its type.
pub fn act(of: Related, json: &[u8], backup: &str) -> Result<ActionResult, serde_json::Error> {
    let requires = matches!(of, Related::Snapshot | Related::SnapshotContent | Related::SnapshotClass);
    let is_marked =
        [SKIP_FROM_BACKUP, MUST_INCLUDE].iter().any(|mark| memmem::find(json, mark.as_bytes()).is_some());
    let is_stale = of == Related::Claim && may_be_stale(json)?;
    let is_grouped = of == Related::Snapshot && memmem::find(json, IN_GROUP.as_bytes()).is_some();
    if !is_marked && !is_stale && !is_grouped {
        return Ok(ActionResult { requires, ..ActionResult::default() });
    }
    let mut object: Value = serde_json::from_slice(json)?;
    let mut acted = ActionResult { requires, ..ActionResult::default() };
    let mut is_changed = false;
    if let Some(annotations) = entries(&mut object, &["metadata", "annotations"]) {
        acted.skips = annotations.contains_key(SKIP_FROM_BACKUP);
        let must = annotations.remove(MUST_INCLUDE);
        acted.requires |= must.as_ref().is_some_and(|value| value == "true");
        is_changed |= must.is_some();
    }
    if is_stale && !acted.skips {
        is_changed |= clean(&mut object, backup);
    }
    if is_grouped && !acted.skips {
        is_changed |= ungroup(&mut object);
    }
    if is_changed && !acted.skips {
        acted.json = Some(serde_json::to_vec(&object)?.into());
    }
    Ok(acted)
}

/// The object at `path`, if there is one.
fn entries<'o>(object: &'o mut Value, path: &[&str]) -> Option<&'o mut Map<String, Value>> {
    path.iter().try_fold(object, |object, key| object.get_mut(key))?.as_object_mut()
}

/// Whether there may be anything to remove from a claim. Most claims have nothing of it.
fn may_be_stale(json: &[u8]) -> Result<bool, serde_json::Error> {
    #[derive(Deserialize)]
    struct ClaimObject {
        spec: Option<ClaimSpec>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ClaimSpec {
        data_source: Option<IgnoredAny>,
        data_source_ref: Option<IgnoredAny>,
        selector: Option<IgnoredAny>,
    }
    if memmem::find(json, VELEROS.as_bytes()).is_some() {
        return Ok(true);
    }
    let claim: ClaimObject = serde_json::from_slice(json)?;
    Ok(claim.spec.is_some_and(|spec| {
        spec.data_source.is_some() || spec.data_source_ref.is_some() || spec.selector.is_some()
    }))
}

/// Removes from a bound claim what would keep a restore from giving it a new volume, or lead the
/// restore to data of another backup. Returns whether anything was removed.
fn clean(claim: &mut Value, backup: &str) -> bool {
    let is_bound = claim["status"]["phase"] == "Bound"
        && claim["spec"]["volumeName"].as_str().is_some_and(|volume| !volume.is_empty());
    if !is_bound {
        return false;
    }
    let mut is_changed = false;
    // A claim with storageClassName "" has no class, not even the default class: its volume is
    // found by the selector.
    let has_no_class = claim["spec"]["storageClassName"] == "";
    if let Some(spec) = entries(claim, &["spec"]) {
        for key in ["dataSource", "dataSourceRef"] {
            is_changed |= spec.remove(key).is_some();
        }
        if !has_no_class {
            is_changed |= spec.remove("selector").is_some();
        }
    }
    if let Some(labels) = entries(claim, &["spec", "selector", "matchLabels"]) {
        let before = labels.len();
        labels.retain(|key, _| !key.starts_with(VELEROS));
        is_changed |= labels.len() < before;
    }
    if let Some(labels) = entries(claim, &["metadata", "labels"]) {
        let before = labels.len();
        let is_stale =
            |key: &str, value: &Value| STALE_LABELS.contains(&key) || (key == BACKUP_NAME && value != backup);
        labels.retain(|key, value| !is_stale(key, value));
        is_changed |= labels.len() < before;
    }
    if let Some(annotations) = entries(claim, &["metadata", "annotations"]) {
        for key in STALE_ANNOTATIONS {
            is_changed |= annotations.remove(key).is_some();
        }
    }
    is_changed
}

/// Removes from a snapshot what ties it to its group, which no restore makes: with the finalizer
/// the restored snapshot could never be deleted, and neither could its namespace. Returns whether
/// anything was removed.
fn ungroup(snapshot: &mut Value) -> bool {
    let Some(metadata) = entries(snapshot, &["metadata"]) else { return false };
    let mut is_changed = false;
    let mut keep = |list: &str, is_kept: fn(&Value) -> bool| {
        if let Some(all) = metadata.get_mut(list).and_then(Value::as_array_mut) {
            let before = all.len();
            all.retain(is_kept);
            is_changed |= all.len() < before;
        }
    };
    keep("finalizers", |finalizer| finalizer != IN_GROUP);
    keep("ownerReferences", |owner| owner["kind"] != GROUP);
    is_changed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn acted(of: Related, object: &Value) -> ActionResult {
        act(of, object.to_string().as_bytes(), "nightly").unwrap()
    }

    /// What is stored.
    fn stored(of: Related, object: &Value) -> Value {
        let acted = acted(of, object);
        acted.json.map_or_else(|| object.clone(), |json| serde_json::from_slice(&json).unwrap())
    }

    fn claim(metadata: Value, spec: Value, phase: &str) -> Value {
        let mut claim =
            json!({"metadata": {"name": "c"}, "spec": {"volumeName": "pv"}, "status": {"phase": phase}});
        for (part, more) in [("metadata", metadata), ("spec", spec)] {
            claim[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        }
        claim
    }

    #[test]
    fn a_bound_claim_loses_what_would_keep_it_from_a_new_volume() {
        let source = json!({"kind": "VolumeSnapshot", "name": "s"});
        let selector = json!({"matchLabels": {"app": "db", "velero.io/dynamic-pv-restore": "x"}});
        let kept = json!({"matchLabels": {"app": "db"}});
        for (spec, phase, expected) in [
            (json!({"dataSource": source, "dataSourceRef": source}), "Bound", json!({})),
            (
                json!({"storageClassName": "gp2", "selector": selector}),
                "Bound",
                json!({"storageClassName": "gp2"}),
            ),
            (json!({"selector": selector}), "Bound", json!({})),
            (
                json!({"storageClassName": "", "selector": selector}),
                "Bound",
                json!({"storageClassName": "", "selector": kept}),
            ),
            (
                json!({"dataSource": source, "selector": selector}),
                "Pending",
                json!({"dataSource": source, "selector": selector}),
            ),
            (
                json!({"dataSource": source, "volumeName": ""}),
                "Bound",
                json!({"dataSource": source, "volumeName": ""}),
            ),
            // What a newer Kubernetes has stays, and so do large numbers.
            (
                json!({"dataSource": source, "fresh": {"n": 9007199254740993_i64}}),
                "Bound",
                json!({"fresh": {"n": 9007199254740993_i64}}),
            ),
        ] {
            let found = stored(Related::Claim, &claim(json!({}), spec.clone(), phase));
            assert_eq!(found, claim(json!({}), expected, phase), "{spec} {phase}");
        }
    }

    #[test]
    fn a_bound_claim_loses_what_restores_and_backups_before_have_left() {
        let left = json!({
            "labels": {
                "app": "db", "velero.io/restore-name": "r", "velero.io/restore-uid": "u", "velero.io/backup-name": "weekly",
                "velero.io/volume-snapshot-name": "s", "velero.io/volume-group": "g", MUST_INCLUDE: "true",
            },
            "annotations": {
                "velero.io/volume-snapshot-name": "s", "velero.io/data-upload-name": "velero/d",
                "velero.io/csi-volumesnapshot-class": "fast", "mine": "x",
            },
        });
        let kept = json!({
            "labels": {"app": "db", "velero.io/volume-group": "g"},
            "annotations": {"velero.io/csi-volumesnapshot-class": "fast", "mine": "x"},
        });
        assert_eq!(
            stored(Related::Claim, &claim(left.clone(), json!({}), "Bound")),
            claim(kept, json!({}), "Bound")
        );
        assert_eq!(acted(Related::Claim, &claim(left, json!({}), "Lost")), ActionResult::default());
        let own = claim(json!({"labels": {"velero.io/backup-name": "nightly"}}), json!({}), "Bound");
        assert_eq!(acted(Related::Claim, &own), ActionResult::default(), "that is this backup's own");
    }

    #[test]
    fn what_has_nothing_of_it_is_as_it_was() {
        for of in [Related::Pod, Related::Claim, Related::Account] {
            let plain = claim(json!({"labels": {"app": "db"}}), json!({"storageClassName": "gp2"}), "Bound");
            assert_eq!(acted(of, &plain), ActionResult::default(), "{of:?}");
        }
        // Only of claims, and only as a label or an annotation.
        let source = claim(json!({}), json!({"dataSource": {"name": "velero.io/skip-from-backup"}}), "Bound");
        assert_eq!(acted(Related::Pod, &source), ActionResult::default());
    }

    #[test]
    fn what_says_that_it_is_left_out_is_and_that_goes_before_all_else() {
        for value in ["true", "false", ""] {
            let annotations = json!({SKIP_FROM_BACKUP: value, MUST_INCLUDE: "true"});
            for of in [Related::Pod, Related::Claim, Related::Account, Related::SnapshotClass] {
                let acted = acted(
                    of,
                    &claim(json!({"annotations": annotations}), json!({"dataSource": {}}), "Bound"),
                );
                assert!(acted.skips && acted.json.is_none(), "{of:?} {value}: {acted:?}");
            }
        }
    }

    #[test]
    fn what_says_that_all_it_needs_comes_along_is_stored_without_saying_so() {
        for (value, requires) in [("true", true), ("false", false), ("True", false)] {
            let annotated =
                claim(json!({"annotations": {MUST_INCLUDE: value, "a": "b"}}), json!({}), "Bound");
            assert_eq!(acted(Related::Pod, &annotated).requires, requires);
            assert_eq!(stored(Related::Pod, &annotated)["metadata"]["annotations"], json!({"a": "b"}));
        }
        assert!(
            acted(Related::SnapshotClass, &json!({"metadata": {}})).requires,
            "the action itself says so"
        );
    }

    #[test]
    fn a_snapshot_of_a_group_is_stored_without_what_ties_it_to_the_group() {
        let source = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
        let snapshot = |finalizers: &[&str], owners: &[&str]| {
            let owners: Vec<Value> = owners.iter().map(|kind| json!({"kind": kind, "uid": "u"})).collect();
            json!({"metadata": {"name": "s", "finalizers": finalizers, "ownerReferences": owners}, "spec": {}})
        };
        let grouped = snapshot(&[source, IN_GROUP], &[GROUP, "Mine"]);
        assert_eq!(stored(Related::Snapshot, &grouped), snapshot(&[source], &["Mine"]));
        assert!(acted(Related::Snapshot, &grouped).requires);
        assert_eq!(acted(Related::Snapshot, &snapshot(&[source], &["Mine"])).json, None);
        assert_eq!(acted(Related::Claim, &grouped).json, None);
    }

    #[test]
    fn there_is_an_action_for_few_types() {
        for of in [Related::Volume, Related::Definition, Related::Secret, Related::Binding] {
            assert!(!applies(of));
        }
        assert!(applies(Related::Claim) && applies(Related::Pod));
        assert!(act(Related::Claim, b"{\"spec\": \"odd\"}", "b").is_err());
    }

    proptest! {
        /// A second look finds nothing more, and what is not named stays.
        #[test]
        fn an_action_takes_nothing_but_what_it_names(
            labels in prop::collection::btree_map("(velero\\.io/)?(restore-name|backup-name|app|volume-group)", "[a-z]{0,3}", 0..4),
            has_source in any::<bool>(),
            class in prop::option::of("[a-z]{0,2}"),
            phase in prop::sample::select(vec!["Bound", "Pending"]),
        ) {
            let mut object = claim(json!({"labels": labels}), json!({"storageClassName": class, "more": [1, "x"]}), phase);
            if has_source {
                object["spec"]["dataSource"] = json!({"name": "s"});
            }
            let once = stored(Related::Claim, &object);
            prop_assert_eq!(&stored(Related::Claim, &once), &once);
            prop_assert_eq!(&once["spec"]["more"], &object["spec"]["more"]);
            prop_assert_eq!(&once["status"], &object["status"]);
            for (key, value) in &labels {
                let is_stale = phase == "Bound" && (key == RESTORE_NAME || (key == BACKUP_NAME && value != "nightly"));
                prop_assert_eq!(once["metadata"]["labels"].get(key).is_none(), is_stale, "{}", key);
            }
        }
    }
}
