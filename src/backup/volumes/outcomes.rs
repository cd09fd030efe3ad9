//! What became of the data of each volume: kept for the file of volume infos, for the status, and
//! for the checkpoint, because a run that continues does not take again what is stored.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::read::VolumeTraits;
use crate::backup::related::key;

/// Most claims of which is kept what became of their data, some hundred bytes each: a checkpoint
/// has room for so many.
const MOST: usize = 50_000;
/// Most snapshots and pods that are noted for the next run, should this one end.
const MOST_NOTED: usize = 10_000;
/// Most characters of a reason.
const REASON: usize = 300;

/// What became of the data of one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeDataResult {
    Skipped {
        reason: String,
    },
    /// A node-agent reads its files.
    Files,
    Snapshot(CompletedSnapshot),
    /// Its snapshot was handed to a data mover.
    Moved,
    /// It was asked for, or tried, and is missing. `attempted`: a snapshot was begun. `asked`:
    /// whether the backup asks for it, if that is told at the end and for all such claims at one
    /// time.
    Missing {
        reason: String,
        attempted: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        asked: Option<bool>,
    },
}

/// A snapshot that is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CompletedSnapshot {
    pub name: String,
    pub content: String,
    pub handle: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_handle: Option<String>,
    pub driver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_at: Option<String>,
}

/// A snapshot that was cut while pods were frozen for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StillCut {
    /// UID of the claim.
    pub claim: String,
    pub name: String,
    pub uid: String,
    /// The deletion policy of its content, before the backup has kept it.
    pub policy: String,
    /// All other data of its block was taken as well. If not, it stands only beside pods that are
    /// stored.
    pub is_whole: bool,
}

/// One claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimOutcome {
    /// The PersistentVolume; empty if the claim is bound to none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traits: Option<VolumeTraits>,
    pub fate: VolumeDataResult,
}

/// By key of the claim: namespace, slash, name.
pub type ByClaim = BTreeMap<String, ClaimOutcome>;

/// What a stored backup says of the data of its volumes.
#[derive(Debug, Default)]
pub struct Data {
    /// The file of volume infos.
    pub infos: Vec<Value>,
    /// The file of PodVolumeBackups.
    pub files: Vec<Value>,
    /// Snapshots that were attempted, and those that are complete.
    pub snapshots: (u64, u64),
}

/// What became of the data of a backup's volumes, as a checkpoint records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeOutcomes {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: ByClaim,
    /// There may be PodVolumeBackups.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_files: bool,
    /// Volumes (namespace, slash, pod, slash, volume) and claims whose files are missing and were
    /// told of.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub told: BTreeSet<String>,
    /// UIDs of pods that were thawed while their files were read: what PodVolumeBackups of earlier
    /// runs have of them may be of more than one moment.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub spoiled: BTreeSet<String>,
    /// By claim: snapshots that were cut while pods were frozen for them. The claim may not be
    /// stored yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cuts: BTreeMap<String, StillCut>,
    /// UIDs of pods whose files were read while they were frozen, of blocks of which all data was
    /// taken.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub whole: BTreeSet<String>,
}

/// What became of the data of a backup's volumes, over all of its runs.
#[derive(Default)]
pub struct Outcomes(Mutex<VolumeOutcomes>);

impl Outcomes {
    /// What an earlier run has stored.
    pub fn of(earlier: VolumeOutcomes) -> Self {
        Self(Mutex::new(earlier))
    }

    pub fn note_files(&self) {
        self.0.lock().has_files = true;
    }

    /// Notes that a pod was thawed while its files were read.
    pub fn spoil(&self, pod_uid: &str) {
        let spoiled = &mut self.0.lock().spoiled;
        if spoiled.len() < MOST {
            spoiled.insert(pod_uid.to_owned());
        }
    }

    pub fn is_spoiled(&self, pod_uid: &str) -> bool {
        self.0.lock().spoiled.contains(pod_uid)
    }

    /// Notes what was cut of a block while its pods were frozen, for a run that continues, and
    /// `pods` whose files were read, if all data of the block was taken. What finds no room is
    /// taken anew by that run, which tells of it.
    pub fn note_block<'p>(&self, cuts: Vec<(String, StillCut)>, pods: impl Iterator<Item = &'p str>) {
        let VolumeOutcomes { claims, cuts: noted, whole, .. } = &mut *self.0.lock();
        if noted.len() + cuts.len() > MOST_NOTED {
            // Those of claims that are settled are probably stored by now.
            noted.retain(|claim, _| !claims.contains_key(claim));
        }
        if noted.len() + cuts.len() <= MOST_NOTED {
            noted.extend(cuts);
        }
        for pod in pods.take(MOST_NOTED.saturating_sub(whole.len())) {
            whole.insert(pod.to_owned());
        }
    }

    /// The snapshot of a claim that was cut while pods were frozen for it.
    pub fn noted_cut(&self, claim: &str) -> Option<StillCut> {
        self.0.lock().cuts.get(claim).cloned()
    }

    /// The noted snapshots of chosen claims: namespace, slash, name.
    pub fn noted_snapshots(&self, is_chosen: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let VolumeOutcomes { cuts, .. } = &*self.0.lock();
        let chosen = cuts.iter().filter(|(claim, _)| is_chosen(claim));
        chosen.filter_map(|(claim, cut)| Some(key(Some(claim.split_once('/')?.0), &cut.name))).collect()
    }

    pub fn is_whole(&self, pod_uid: &str) -> bool {
        self.0.lock().whole.contains(pod_uid)
    }

    /// Whether there may be PodVolumeBackups, or should be.
    pub fn has_files(&self) -> bool {
        let kept = self.0.lock();
        kept.has_files || kept.claims.values().any(|one| matches!(one.fate, VolumeDataResult::Files))
    }

    /// Notes that the log says that the files of a volume, which may be that of a claim, are
    /// missing.
    pub fn note_told(&self, volume: String, claim: Option<&str>) {
        let told = &mut self.0.lock().told;
        if told.len() < MOST {
            told.insert(volume);
            told.extend(claim.map(str::to_owned));
        }
    }

    /// What is missing at the end of the backup though nobody has told of it, because the run that
    /// waited for it is gone: sentences for the log, each with its namespace. Claims of which no
    /// PodVolumeBackup tells become missing. `files`: the backup's PodVolumeBackups.
    pub fn unfinished(&self, files: &[Value]) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (mut complete, mut asked) = (BTreeSet::new(), BTreeSet::new());
        // A volume of which one failed may have another one that a later run asked for.
        let mut failed = BTreeMap::new();
        for file in files {
            let (pod, volume) = (&file["spec"]["pod"], text(&file["spec"]["volume"]));
            let (namespace, phase) = (text(&pod["namespace"]), text(&file["status"]["phase"]));
            let claim = file["metadata"]["annotations"][berth_api::keys::PVC_NAME].as_str();
            let claim = claim.map(|claim| key(Some(&namespace), claim));
            let place = volume_of(&namespace, &text(&pod["name"]), &volume);
            asked.extend(claim.clone());
            if phase == "Completed" {
                complete.insert(place);
                complete.extend(claim);
            } else {
                failed.insert(place, (namespace, claim, text(&file["metadata"]["name"]), phase));
            }
        }
        let VolumeOutcomes { claims, told, .. } = &mut *self.0.lock();
        let mut found = Vec::new();
        for (place, (namespace, claim, name, phase)) in failed {
            if complete.contains(&place) || told.contains(&place) {
                continue;
            }
            let phase = if phase.is_empty() { "New" } else { phase.as_str() };
            let message = format!(
                "the files of volume {place} are not backed up: its PodVolumeBackup {name} is in phase {phase}"
            );
            found.push((namespace, message));
            told.insert(place);
            told.extend(claim);
        }
        for (claim, one) in claims.iter_mut().filter(|(_, one)| matches!(one.fate, VolumeDataResult::Files)) {
            if complete.contains(claim) {
                continue;
            }
            let why = "nobody has backed up its files: its pod was gone, or the run that would have asked for it ended";
            if !told.contains(claim) {
                let namespace = claim.split_once('/').map_or("", |(namespace, _)| namespace);
                let message = format!("claim {claim} is stored without the data of its volume: {why}");
                found.push((namespace.to_owned(), message));
                told.insert(claim.clone());
            }
            if !asked.contains(claim) {
                one.fate =
                    VolumeDataResult::Missing { reason: why.to_owned(), attempted: false, asked: None };
            }
        }
        found
    }

    /// Notes that the files of a claim are missing, and no PodVolumeBackup tells of it.
    pub fn miss(&self, claim: &str, why: &str) {
        if let Some(one) = self.0.lock().claims.get_mut(claim) {
            one.fate = VolumeDataResult::Missing { reason: why.to_owned(), attempted: false, asked: None };
        }
    }

    /// `false`: there is no room for more.
    pub fn set(&self, claim: &str, outcome: ClaimOutcome) -> bool {
        let all = &mut self.0.lock().claims;
        if all.len() >= MOST && !all.contains_key(claim) {
            return false;
        }
        all.insert(claim.to_owned(), outcome);
        true
    }

    pub fn has_snapshot(&self, claim: &str) -> bool {
        self.0
            .lock()
            .claims
            .get(claim)
            .is_some_and(|one| matches!(one.fate, VolumeDataResult::Snapshot(_) | VolumeDataResult::Moved))
    }

    /// Claims without data that are told of at the end, by whether the backup asks for it and why.
    pub fn lacking(&self) -> BTreeMap<(bool, String), BTreeSet<String>> {
        let mut lacking = BTreeMap::<_, BTreeSet<String>>::new();
        for (claim, one) in &self.0.lock().claims {
            if let VolumeDataResult::Missing { reason, asked: Some(asked), .. } = &one.fate {
                lacking.entry((*asked, reason.clone())).or_default().insert(claim.clone());
            }
        }
        lacking
    }

    /// Forgets what is not stored, and what was noted of claims that are.
    pub fn retain(&self, is_stored: impl Fn(&str) -> bool) {
        let VolumeOutcomes { claims, cuts, .. } = &mut *self.0.lock();
        claims.retain(|claim, _| is_stored(claim));
        cuts.retain(|claim, _| !is_stored(claim));
    }

    /// A copy for a checkpoint.
    pub fn all(&self) -> VolumeOutcomes {
        self.0.lock().clone()
    }

    /// Snapshots that belong to the backup: their namespaces, and what is known of each.
    pub fn snapshots(&self) -> Vec<(String, CompletedSnapshot)> {
        let all = &self.0.lock().claims;
        let taken = all.iter().filter_map(|(claim, one)| match &one.fate {
            VolumeDataResult::Snapshot(taken) => Some((claim.split_once('/')?.0.to_owned(), taken.clone())),
            _ => None,
        });
        taken.collect()
    }

    /// Names of these contents, and keys of these snapshots.
    pub fn objects(&self) -> BTreeSet<String> {
        let each = self.snapshots().into_iter();
        each.flat_map(|(namespace, taken)| [key(Some(&namespace), &taken.name), taken.content]).collect()
    }

    /// `status.csiVolumeSnapshotsAttempted` and `…Completed`.
    pub fn counts(&self) -> (u64, u64) {
        let all = &self.0.lock().claims;
        let completed = all.values().filter(|one| matches!(one.fate, VolumeDataResult::Snapshot(_))).count();
        let failed =
            all.values().filter(|one| matches!(one.fate, VolumeDataResult::Missing { attempted: true, .. }));
        ((completed + failed.count()) as u64, completed as u64)
    }

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
                    if let Some(at) = &taken.cut_at {
                        info["startTimestamp"] = json!(at);
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

/// The PodVolumeBackups that stand in the backup. One that was canceled and has completed
/// nonetheless may have been read while its pod was not frozen: it goes if another one of its pod
/// and volume has completed. Otherwise the last of them stays, with a sentence for the log and its
/// namespace.
pub fn standing(files: Vec<Value>) -> (Vec<Value>, Vec<(String, String)>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_complete = |file: &Value| file["status"]["phase"] == "Completed";
    let is_canceled = |file: &Value| file["spec"]["cancel"] == true;
    let place = |file: &Value| (text(&file["spec"]["pod"]["uid"]), text(&file["spec"]["volume"]));
    let name = |file: &Value| text(&file["metadata"]["name"]);
    let age = |file: &Value| (text(&file["metadata"]["creationTimestamp"]), name(file));
    // Of each volume the one that counts: the last that was not canceled, or else the last.
    let mut best = BTreeMap::new();
    for file in files.iter().filter(|file| is_complete(file)) {
        let rank = (!is_canceled(file), age(file));
        let best = best.entry(place(file)).or_insert_with(|| rank.clone());
        *best = rank.max(best.clone());
    }
    let (mut standing, mut told) = (Vec::new(), Vec::new());
    for file in files {
        if is_complete(&file) && is_canceled(&file) {
            if best.get(&place(&file)) != Some(&(false, age(&file))) {
                continue;
            }
            let pod = &file["spec"]["pod"];
            let message = format!(
                "the files of volume {} of pod {} may be of more than one moment: its PodVolumeBackup {} was canceled and has completed nonetheless",
                text(&file["spec"]["volume"]),
                text(&pod["name"]),
                name(&file)
            );
            told.push((text(&pod["namespace"]), message));
        }
        standing.push(file);
    }
    (standing, told)
}

/// How a volume of a pod is noted.
pub fn volume_of(namespace: &str, pod: &str, volume: &str) -> String {
    format!("{namespace}/{pod}/{volume}")
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
    use super::*;

    fn outcome(volume: &str, fate: VolumeDataResult) -> ClaimOutcome {
        ClaimOutcome { volume: volume.to_owned(), traits: Some(VolumeTraits::default()), fate }
    }

    fn taken() -> CompletedSnapshot {
        CompletedSnapshot {
            name: "velero-a-1".to_owned(),
            content: "snapcontent-1".to_owned(),
            handle: "h".to_owned(),
            driver: "ebs".to_owned(),
            size: Some(1024),
            cut_at: Some("2026-01-01T00:00:00Z".to_owned()),
            ..CompletedSnapshot::default()
        }
    }

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
        assert_eq!(infos[1]["skippedReason"], "berth: because;");
        assert_eq!(
            (&infos[4]["pvbInfo"]["snapshotHandle"], &infos[4]["pvbInfo"]["size"]),
            (&json!("k"), &json!(7))
        );
        assert_eq!(infos[4]["pvcName"], "d");
        assert_eq!(infos[5].get("pvcName"), None);
        assert_eq!(outcomes.counts(), (2, 1));
    }

    #[test]
    fn files_that_nobody_waited_for_are_told_of_once() {
        let outcomes = Outcomes::default();
        for name in ["done", "open", "failed", "lost"] {
            outcomes.set(&format!("ns/{name}"), outcome("pv", VolumeDataResult::Files));
        }
        let file = |claim: &str, volume: &str, phase: &str| {
            json!({
                "metadata": {"name": format!("pvb-{claim}"), "annotations": {"velero.io/pvc-name": claim}},
                "spec": {"volume": volume, "pod": {"name": "p", "namespace": "ns"}},
                "status": {"phase": phase},
            })
        };
        // One of an earlier run failed, and the next one did not.
        let files = [
            file("done", "a", "Failed"),
            file("done", "a", "Completed"),
            file("open", "b", "InProgress"),
            file("failed", "c", "Failed"),
        ];
        outcomes.note_told(volume_of("ns", "p", "c"), Some("ns/failed"));
        let told = outcomes.unfinished(&files);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].1.contains("pvb-open") && told[1].1.contains("claim ns/lost"), "{told:?}");
        let claims = outcomes.all().claims;
        assert!(matches!(claims["ns/lost"].fate, VolumeDataResult::Missing { .. }));
        assert!(matches!(claims["ns/open"].fate, VolumeDataResult::Files));
        assert!(outcomes.unfinished(&files).is_empty());
    }

    #[test]
    fn what_was_canceled_and_completed_stands_only_if_nothing_else_has_completed() {
        let file = |name: &str, volume: &str, is_canceled: bool, phase: &str| {
            json!({
                "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {
                    "volume": volume, "cancel": is_canceled,
                    "pod": {"name": "p", "namespace": "ns", "uid": "u"},
                },
                "status": {"phase": phase},
            })
        };
        let files = vec![
            file("replaced", "a", true, "Completed"),
            file("ended", "a", true, "Canceled"),
            file("anew", "a", false, "Completed"),
            file("first", "b", true, "Completed"),
            file("last", "b", true, "Completed"),
            file("failed", "b", false, "Failed"),
            file("only", "c", false, "Completed"),
            json!({}),
        ];
        let (standing, told) = standing(files);
        let names: Vec<&str> = standing.iter().filter_map(|file| file["metadata"]["name"].as_str()).collect();
        assert_eq!(names, ["ended", "anew", "last", "failed", "only"]);
        assert_eq!(standing.len(), 6);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].0 == "ns" && told[0].1.contains("PodVolumeBackup last was canceled"), "{told:?}");
    }

    #[test]
    fn what_is_known_is_the_same_after_a_checkpoint() {
        let outcomes = Outcomes::default();
        outcomes.spoil("pod-uid");
        let cut = |claim: &str| {
            (format!("ns/{claim}"), StillCut { name: format!("velero-{claim}"), ..StillCut::default() })
        };
        outcomes.note_block(vec![cut("a"), cut("c")], std::iter::once("whole-uid"));
        outcomes.set("ns/a", outcome("pv-a", VolumeDataResult::Snapshot(taken())));
        outcomes.set("ns/b", outcome("pv-b", VolumeDataResult::Files));
        let text = serde_json::to_string(&outcomes.all()).unwrap();
        let again = Outcomes::of(serde_json::from_str(&text).unwrap());
        assert_eq!(again.all(), outcomes.all());
        assert!(again.is_spoiled("pod-uid") && !again.is_spoiled("other"));
        again.retain(|claim| claim == "ns/a");
        assert_eq!(again.objects(), BTreeSet::from(["ns/velero-a-1".to_owned(), "snapcontent-1".to_owned()]));
        assert!(again.has_snapshot("ns/a") && !again.has_snapshot("ns/b"));
        assert!(again.is_whole("whole-uid") && !again.is_whole("pod-uid"));
        assert_eq!(again.noted_snapshots(|_| true), BTreeSet::from(["ns/velero-c".to_owned()]));
    }

    #[test]
    fn as_many_snapshots_are_noted_as_there_is_room_for_and_those_of_settled_claims_go_first() {
        let outcomes = Outcomes::default();
        let cuts = |from: usize, count: usize| -> Vec<_> {
            (from..from + count).map(|i| (format!("ns/{i}"), StillCut::default())).collect()
        };
        outcomes.note_block(cuts(0, MOST_NOTED), std::iter::empty());
        outcomes.note_block(cuts(MOST_NOTED, 1), std::iter::empty());
        assert_eq!(outcomes.all().cuts.len(), MOST_NOTED);
        outcomes.set("ns/0", outcome("pv", VolumeDataResult::Snapshot(taken())));
        outcomes.note_block(cuts(MOST_NOTED, 1), std::iter::empty());
        let noted = outcomes.all().cuts;
        assert!(noted.len() == MOST_NOTED && !noted.contains_key("ns/0"), "{}", noted.len());
    }
}
