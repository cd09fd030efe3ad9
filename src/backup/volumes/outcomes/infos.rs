//! The file of volume infos of a stored backup: one entry for each volume, as Velero writes it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ByClaim, ClaimOutcome, Outcomes, VolumeDataResult};
use crate::backup::related::key;
use crate::backup::volumes::read::VolumeTraits;

/// Most characters of a reason.
const REASON: usize = 300;

impl Outcomes {
    /// The file of volume infos. `files`: the backup's PodVolumeBackups. `traits_of`: by the name
    /// of a volume, what is known of volumes that nothing was taken of.
    pub fn infos(&self, files: &[Value], traits_of: &BTreeMap<String, VolumeTraits>) -> Vec<Value> {
        let all = &self.0.lock().claims;
        let traits = |one: &ClaimOutcome| one.traits.clone().or_else(|| traits_of.get(&one.volume).cloned());
        let mut infos = Vec::new();
        for (claim, one) in all.iter().filter(|(_, one)| !one.volume.is_empty()) {
            let Some((namespace, name)) = claim.split_once('/') else { continue };
            let mut info = json!({
                "pvcName": name, "pvcNamespace": namespace, "pvName": one.volume,
                "snapshotDataMoved": false, "preserveLocalSnapshot": false, "skipped": false,
            });
            if let Some(traits) = traits(one) {
                info["pvInfo"] = json!(traits);
            }
            match &one.fate {
                VolumeDataResult::Skipped { reason } => {
                    info["skipped"] = json!(true);
                    info["skippedReason"] = json!(skipped(reason));
                }
                VolumeDataResult::Missing { reason, attempted, .. } => {
                    info["skipped"] = json!(true);
                    info["skippedReason"] = json!(skipped(reason));
                    if *attempted {
                        info["result"] = json!("failed");
                    }
                }
                VolumeDataResult::Snapshot(taken) => {
                    info["backupMethod"] = json!("CSISnapshot");
                    info["preserveLocalSnapshot"] = json!(true);
                    info["result"] = json!("succeeded");
                    info["csiSnapshotInfo"] = json!({
                        "snapshotHandle": taken.handle, "size": taken.size.unwrap_or(0), "driver": taken.driver,
                        "vscName": taken.content, "ReadyToUse": true,
                    });
                    if let Some(group) = &taken.group_handle {
                        info["csiSnapshotInfo"]["volumeGroupSnapshotHandle"] = json!(group);
                    }
                    for (key, at) in
                        [("startTimestamp", &taken.cut_at), ("completionTimestamp", &taken.ready_at)]
                    {
                        if let Some(at) = at {
                            info[key] = json!(at);
                        }
                    }
                }
                // Told by the PodVolumeBackup, or by the data movement.
                VolumeDataResult::Files | VolumeDataResult::Moved => continue,
            }
            infos.push(info);
        }
        infos.extend(files.iter().map(|file| of_files(file, all)));
        infos
    }
}

fn skipped(reason: &str) -> String {
    let reason: String = reason.chars().take(REASON).collect();
    format!("berth: {reason};")
}

/// The info of a PodVolumeBackup.
fn of_files(object: &Value, claims: &ByClaim) -> Value {
    let (spec, status) = (&object["spec"], &object["status"]);
    let is_complete = status["phase"] == "Completed";
    let mut info = json!({
        "backupMethod": "PodVolumeBackup", "snapshotDataMoved": false, "preserveLocalSnapshot": false, "skipped": false,
        "result": if is_complete { "succeeded" } else { "failed" },
        "pvbInfo": {
            "uploaderType": spec["uploaderType"], "volumeName": spec["volume"], "podName": spec["pod"]["name"],
            "podNamespace": spec["pod"]["namespace"], "nodeName": spec["node"],
            "Phase": status["phase"].as_str().unwrap_or_default(),
        },
    });
    for (key, value) in [
        ("snapshotHandle", &status["snapshotID"]),
        ("size", &status["progress"]["totalBytes"]),
        ("incrementalSize", &status["incrementalBytes"]),
    ] {
        if !(value.is_null() || *value == 0 || *value == "") {
            info["pvbInfo"][key] = value.clone();
        }
    }
    for key in ["startTimestamp", "completionTimestamp"] {
        if !status[key].is_null() {
            info[key] = status[key].clone();
        }
    }
    let namespace = spec["pod"]["namespace"].as_str().unwrap_or_default();
    let claim = object["metadata"]["annotations"][berth_api::keys::PVC_NAME].as_str();
    if let Some(claim) = claim {
        info["pvcName"] = json!(claim);
        info["pvcNamespace"] = json!(namespace);
        if let Some(one) = claims.get(&key(Some(namespace), claim)) {
            info["pvName"] = json!(one.volume);
            if let Some(traits) = &one.traits {
                info["pvInfo"] = json!(traits);
            }
        }
    }
    info
}

#[cfg(test)]
mod tests {
    use super::super::tests::{outcome, taken};
    use super::*;

    #[test]
    fn each_volume_has_the_info_that_a_restore_needs() {
        let outcomes = Outcomes::default();
        let reason = || "because".to_owned();
        outcomes.set("ns/a", outcome("pv-a", VolumeDataResult::Snapshot(taken())));
        outcomes.set("ns/b", outcome("pv-b", VolumeDataResult::Skipped { reason: reason() }));
        outcomes.set(
            "ns/c",
            outcome("pv-c", VolumeDataResult::Missing { reason: reason(), attempted: true, asked: None }),
        );
        outcomes.set("ns/d", outcome("pv-d", VolumeDataResult::Files));
        outcomes.set(
            "ns/e",
            outcome("pv-e", VolumeDataResult::Missing { reason: reason(), attempted: false, asked: None }),
        );
        outcomes.set("ns/unbound", outcome("", VolumeDataResult::Skipped { reason: reason() }));
        let files = [
            json!({
                "metadata": {"annotations": {"velero.io/pvc-name": "d"}},
                "spec": {"uploaderType": "kopia", "volume": "data", "node": "n", "pod": {"name": "p", "namespace": "ns"}},
                "status": {"phase": "Completed", "snapshotID": "k", "progress": {"totalBytes": 7}, "startTimestamp": "t"},
            }),
            json!({"spec": {"pod": {"name": "q", "namespace": "ns"}, "volume": "tmp"}, "status": {"phase": "Failed"}}),
        ];
        let infos = outcomes.infos(&files, &BTreeMap::new());
        let short: Vec<_> = infos
            .iter()
            .map(|info| {
                let text = |key: &str| info[key].as_str().unwrap_or_default();
                (text("pvName"), text("backupMethod"), info["skipped"].as_bool().unwrap(), text("result"))
            })
            .collect();
        assert_eq!(
            short,
            [
                ("pv-a", "CSISnapshot", false, "succeeded"),
                ("pv-b", "", true, ""),
                ("pv-c", "", true, "failed"),
                ("pv-e", "", true, ""),
                ("pv-d", "PodVolumeBackup", false, "succeeded"),
                ("", "PodVolumeBackup", false, "failed"),
            ]
        );
        assert_eq!(infos[0]["csiSnapshotInfo"]["vscName"], "snapcontent-1");
        assert_eq!(infos[0]["csiSnapshotInfo"]["ReadyToUse"], true);
        let times = ["startTimestamp", "completionTimestamp"].map(|key| infos[0][key].clone());
        assert_eq!(times, [json!("2026-01-01T00:00:00Z"), json!("2026-01-01T00:00:09Z")]);
        assert_eq!(infos[1]["skippedReason"], "berth: because;");
        assert_eq!(
            (&infos[4]["pvbInfo"]["snapshotHandle"], &infos[4]["pvbInfo"]["size"]),
            (&json!("k"), &json!(7))
        );
        assert_eq!(infos[4]["pvcName"], "d");
        assert_eq!(infos[5].get("pvcName"), None);
        assert_eq!(outcomes.counts(), (2, 1));
    }
}
