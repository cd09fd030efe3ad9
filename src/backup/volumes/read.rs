//! What a backup reads of claims, volumes and pods, to decide how their data is backed up.

use std::collections::BTreeMap;

use berth_api::keys::{
    BACKUP_NAME, CLAIM_SNAPSHOT_CLASS, DATA_UPLOAD_NAME, VOLUME_SNAPSHOT_NAME, label_value,
};
use berth_api::quantity::Quantity;
use berth_core::policy::volume::{CsiSource, KINDS, NfsSource, VolumeProperties};
use berth_core::selection::ResourceType;
use berth_core::volume::PodPhase;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backup::actions::snapshots::binary;
use crate::patch::digest;

/// How many volumes of one pod are considered.
const MOST_OF_POD: usize = 1000;

/// The fields of a PersistentVolume that the file of volume infos has, because a restore may have
/// to create the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeTraits {
    pub reclaim_policy: String,
    pub labels: BTreeMap<String, String>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundVolume {
    pub volume: VolumeProperties,
    pub traits: VolumeTraits,
}

impl FoundVolume {
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            volume: VolumeProperties {
                capacity: amount(&spec["capacity"]["storage"]),
                storage_class: text(&spec["storageClassName"]).to_owned(),
                ..of_source(spec)
            },
            traits: VolumeTraits {
                reclaim_policy: text(&spec["persistentVolumeReclaimPolicy"]).to_owned(),
                labels: texts(&object["metadata"]["labels"]),
            },
        }
    }
}

/// A claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundClaim {
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    /// The VolumeSnapshotClass that its annotation names.
    pub snapshot_class: Option<String>,
    pub storage_class: String,
    /// The volume to which it is bound.
    pub bound: Option<String>,
    /// The properties of that volume that the claim alone shows.
    pub alone: VolumeProperties,
}

impl FoundClaim {
    pub fn read(object: &Value) -> Self {
        let phase = text(&object["status"]["phase"]);
        let bound = object["spec"]["volumeName"].as_str().filter(|name| phase == "Bound" && !name.is_empty());
        let labels = texts(&object["metadata"]["labels"]);
        let storage_class = text(&object["spec"]["storageClassName"]).to_owned();
        // Taken from the claim, because the volume may not be readable.
        let mut alone = VolumeProperties {
            labels: labels.clone(),
            phase: phase.to_owned(),
            ..VolumeProperties::default()
        };
        if bound.is_some() {
            alone.capacity = amount(&object["status"]["capacity"]["storage"]);
            alone.storage_class.clone_from(&storage_class);
        }
        let class = object["metadata"]["annotations"][CLAIM_SNAPSHOT_CLASS].as_str();
        Self {
            uid: text(&object["metadata"]["uid"]).to_owned(),
            labels,
            snapshot_class: class.map(str::to_owned),
            storage_class,
            bound: bound.map(str::to_owned),
            alone,
        }
    }

    /// The properties on which volume policies decide: those of the volume, with the claim's labels
    /// and phase.
    pub fn with(&self, found: Option<&FoundVolume>) -> VolumeProperties {
        let mut volume = found.map_or_else(|| self.alone.clone(), |found| found.volume.clone());
        volume.labels.clone_from(&self.alone.labels);
        volume.phase.clone_from(&self.alone.phase);
        volume
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPod {
    pub uid: String,
    pub node: String,
    pub phase: PodPhase,
    /// Values of the two annotations that name volumes.
    pub named: String,
    pub excluded: String,
    pub volumes: Vec<PodVolume>,
}

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodVolume {
    pub name: String,
    pub claim: Option<String>,
    /// Of a volume without a claim: the properties on which volume policies decide.
    pub source: VolumeProperties,
    pub is_mounted: bool,
    pub is_device: bool,
}

impl FoundPod {
    pub fn read(object: &Value, named: &str, excluded: &str) -> Self {
        let (spec, annotations) = (&object["spec"], &object["metadata"]["annotations"]);
        let containers = || spec["containers"].as_array().into_iter().flatten();
        let has = |list: &str, name: &str| {
            let all = containers().flat_map(|container| container[list].as_array().into_iter().flatten());
            all.into_iter().any(|mount| mount["name"] == name)
        };
        let volumes = spec["volumes"].as_array().into_iter().flatten().take(MOST_OF_POD);
        let volumes = volumes.map(|volume| {
            let name = text(&volume["name"]);
            PodVolume {
                name: name.to_owned(),
                claim: volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned),
                source: of_source(volume),
                is_mounted: has("volumeMounts", name),
                is_device: has("volumeDevices", name),
            }
        });
        Self {
            uid: text(&object["metadata"]["uid"]).to_owned(),
            node: text(&spec["nodeName"]).to_owned(),
            phase: match text(&object["status"]["phase"]) {
                "Running" => PodPhase::Running,
                "Succeeded" | "Failed" => PodPhase::Ended,
                _ => PodPhase::Waiting,
            },
            named: text(&annotations[named]).to_owned(),
            excluded: text(&annotations[excluded]).to_owned(),
            volumes: volumes.collect(),
        }
    }
}

/// Adds to a claim what its restore from a snapshot needs or, if its data was moved, its restore
/// from an `upload`. `backup`: the value of the label. `None`: the claim is not a JSON object.
pub fn with_snapshot(
    json: &[u8],
    snapshot: &str,
    size: Option<u64>,
    backup: &str,
    upload: Option<&str>,
) -> Option<Vec<u8>> {
    let mut claim: Value = serde_json::from_slice(json).ok()?;
    let metadata = claim.get_mut("metadata")?.as_object_mut()?;
    // The names of a group's snapshots are longer than a label may be.
    let label = label_value(snapshot, digest);
    for (list, entries) in [
        ("labels", [(VOLUME_SNAPSHOT_NAME, label.as_str()), (BACKUP_NAME, backup)]),
        ("annotations", [(VOLUME_SNAPSHOT_NAME, snapshot), (DATA_UPLOAD_NAME, upload.unwrap_or_default())]),
    ] {
        let list = metadata.entry(list).or_insert(Value::Null);
        if list.is_null() {
            *list = json!({});
        }
        let list = list.as_object_mut()?;
        let entries = entries.into_iter().filter(|(_, value)| !value.is_empty());
        list.extend(entries.map(|(key, value)| (key.to_owned(), json!(value))));
    }
    // The volume of a restore must not be smaller than the snapshot.
    if let Some(size) = size {
        let asked = amount(&claim["spec"]["resources"]["requests"]["storage"]);
        if i128::from(size).saturating_mul(1_000_000_000) > asked {
            set(&mut claim, &["spec", "resources", "requests", "storage"], json!(binary(size)));
        }
    }
    serde_json::to_vec(&claim).ok()
}

/// Sets a field, and creates the objects around it. If something else is in their place, nothing is
/// changed.
fn set(object: &mut Value, path: &[&str], value: Value) -> Option<()> {
    let mut at = object;
    for key in path {
        if at.is_null() {
            *at = json!({});
        }
        at = at.as_object_mut()?.entry(*key).or_insert(Value::Null);
    }
    *at = value;
    Some(())
}

/// Reads the source of a volume.
fn of_source(source: &Value) -> VolumeProperties {
    let nfs = source["nfs"].as_object().map(|_| NfsSource {
        server: text(&source["nfs"]["server"]).to_owned(),
        path: text(&source["nfs"]["path"]).to_owned(),
    });
    let csi = source["csi"].as_object().map(|_| CsiSource {
        driver: text(&source["csi"]["driver"]).to_owned(),
        attributes: texts(&source["csi"]["volumeAttributes"]),
    });
    let kind = KINDS.into_iter().find(|kind| source[*kind].is_object()).unwrap_or_default();
    VolumeProperties { nfs, csi, kind: kind.to_owned(), ..VolumeProperties::default() }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), text(value).to_owned())).collect()
}

fn amount(value: &Value) -> i128 {
    Quantity::parse(text(value)).map_or(0, Quantity::billionths)
}

/// The types of claims and of volumes.
pub fn claims() -> ResourceType {
    ResourceType::regular("", "v1", "PersistentVolumeClaim", true)
}

pub fn volumes() -> ResourceType {
    ResourceType::regular("", "v1", "PersistentVolume", false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(claim: &Value, size: Option<u64>) -> Value {
        let json =
            with_snapshot(claim.to_string().as_bytes(), "velero-data-1", size, "nightly", None).unwrap();
        serde_json::from_slice(&json).unwrap()
    }

    #[test]
    fn a_claim_names_its_snapshot_and_asks_for_at_least_its_size() {
        let claim = |size: &str| {
            json!({
                "metadata": {"name": "data", "labels": {"app": "db"}},
                "spec": {"fresh": {"n": 9_007_199_254_740_993_i64}, "resources": {"requests": {"storage": size}}},
            })
        };
        for (asked, snapshot, expected) in [
            ("1Gi", Some(1 << 30), "1Gi"),
            ("1G", Some(1 << 30), "1Gi"),
            ("2Gi", Some(1 << 30), "2Gi"),
            ("1G", None, "1G"),
            ("1G", Some(0), "1G"),
        ] {
            let found = annotated(&claim(asked), snapshot);
            let labels = json!({"app": "db", "velero.io/backup-name": "nightly", "velero.io/volume-snapshot-name": "velero-data-1"});
            assert_eq!(found["metadata"]["labels"], labels);
            assert_eq!(
                found["metadata"]["annotations"],
                json!({"velero.io/volume-snapshot-name": "velero-data-1"})
            );
            assert_eq!(found["spec"]["resources"]["requests"]["storage"], expected, "{asked}");
            assert_eq!(
                found["spec"]["fresh"],
                claim("")["spec"]["fresh"],
                "what is newer than the program stays"
            );
        }
        // Odd objects are left as they are.
        for odd in [json!({"metadata": {"labels": 1}}), json!({"metadata": []}), json!([])] {
            assert!(with_snapshot(odd.to_string().as_bytes(), "s", Some(1), "b", None).is_none(), "{odd}");
        }
        assert!(with_snapshot(b"{", "s", None, "b", None).is_none());
        let moved = with_snapshot(b"{\"metadata\": {}}", "", None, "b", Some("velero/b-1")).unwrap();
        let moved: Value = serde_json::from_slice(&moved).unwrap();
        assert_eq!(moved["metadata"]["annotations"], json!({"velero.io/data-upload-name": "velero/b-1"}));
        assert_eq!(moved["metadata"]["labels"], json!({"velero.io/backup-name": "b"}));
        annotated(&json!({"metadata": {}, "spec": []}), Some(1));
        // The name of a snapshot that a group snapshot has created. A restore creates the claim
        // with the label, and finds the snapshot by the annotation.
        let long = format!("snapshot-{}", "0f".repeat(32));
        let grouped = with_snapshot(b"{\"metadata\": {}}", &long, None, "b", None).unwrap();
        let grouped: Value = serde_json::from_slice(&grouped).unwrap();
        assert_eq!(grouped["metadata"]["annotations"][VOLUME_SNAPSHOT_NAME], long);
        let label = grouped["metadata"]["labels"][VOLUME_SNAPSHOT_NAME].as_str().unwrap();
        assert!(label.len() == 63 && label.starts_with(&long[..57]), "{label}");
    }

    #[test]
    fn of_a_pod_it_is_known_which_containers_have_which_volume() {
        let pod = FoundPod::read(
            &json!({
                "metadata": {"uid": "u", "annotations": {"a": "data", "b": "tmp"}},
                "spec": {
                    "nodeName": "n",
                    "volumes": [
                        {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
                        {"name": "raw", "persistentVolumeClaim": {"claimName": "d"}},
                        {"name": "tmp", "emptyDir": {}},
                    ],
                    "containers": [
                        {"volumeMounts": [{"name": "data"}]}, {"volumeDevices": [{"name": "raw"}]}, {},
                    ],
                },
                "status": {"phase": "Running"},
            }),
            "a",
            "b",
        );
        assert_eq!((pod.phase, pod.node.as_str()), (PodPhase::Running, "n"));
        assert_eq!((pod.named.as_str(), pod.excluded.as_str()), ("data", "tmp"));
        let known: Vec<_> = pod
            .volumes
            .iter()
            .map(|v| (v.name.as_str(), v.claim.as_deref(), v.is_mounted, v.is_device, v.source.kind.as_str()))
            .collect();
        assert_eq!(
            known,
            [
                ("data", Some("c"), true, false, "persistentVolumeClaim"),
                ("raw", Some("d"), false, true, "persistentVolumeClaim"),
                ("tmp", None, false, false, "emptyDir"),
            ]
        );
        for (phase, expected) in [("Pending", PodPhase::Waiting), ("Failed", PodPhase::Ended)] {
            assert_eq!(FoundPod::read(&json!({"status": {"phase": phase}}), "a", "b").phase, expected);
        }
        assert!(FoundPod::read(&json!([1]), "a", "b").volumes.is_empty());
    }

    #[test]
    fn the_volume_of_a_claim_is_known_by_the_claim_where_it_cannot_be_read() {
        let claim = FoundClaim::read(&json!({
            "metadata": {"labels": {"app": "db"}, "annotations": {"velero.io/csi-volumesnapshot-class": "fast"}},
            "spec": {"volumeName": "pv", "storageClassName": "gp2"},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        }));
        assert_eq!((claim.bound.as_deref(), claim.snapshot_class.as_deref()), (Some("pv"), Some("fast")));
        let alone = claim.with(None);
        assert_eq!((alone.storage_class.as_str(), alone.phase.as_str()), ("gp2", "Bound"));
        let volume = FoundVolume::read(&json!({
            "metadata": {"labels": {"zone": "a"}},
            "spec": {"capacity": {"storage": "2Gi"}, "storageClassName": "gp3", "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": "ebs", "volumeAttributes": {"k": "v"}}},
        }));
        let both = claim.with(Some(&volume));
        assert_eq!((both.storage_class.as_str(), both.kind.as_str()), ("gp3", "csi"));
        assert_eq!(both.labels, BTreeMap::from([("app".to_owned(), "db".to_owned())]), "those of the claim");
        assert_eq!(volume.traits.labels, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
        let pending = json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Pending"}});
        assert_eq!(FoundClaim::read(&pending).bound, None);
    }
}
