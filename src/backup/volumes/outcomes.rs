//! The results of the data of each volume. They become the file of volume infos and a part of the
//! status, and are in checkpoints, because a run that continues does not take again what is stored.

mod infos;
mod pod_volume_backups;

use std::collections::{BTreeMap, BTreeSet};

use berth_api::snapshot::VolumeSnapshot;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::read::VolumeTraits;
use crate::backup::related::key;
pub use pod_volume_backups::{standing, volume_of};

/// For at most so many claims the result is kept, some hundred bytes each, because a checkpoint has
/// no room for more.
const MOST: usize = 50_000;
/// At most so many snapshots, pods and namespaces are recorded for the next run, in case this one
/// ends.
pub const MOST_NOTED: usize = 10_000;

/// The result of the data of one claim.
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
    /// The data was asked for or attempted, and is missing. `attempted`: a snapshot was started.
    /// `asked`: set if the claim is reported only at the end, together with all similar ones; says
    /// whether the backup asks for its data.
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
    /// When it was seen to be ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<String>,
}

/// A snapshot that was cut while pods were frozen for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StillCut {
    /// UID of the claim.
    pub claim: String,
    pub name: String,
    pub uid: String,
    /// The deletion policy of its content before the backup changed it.
    pub policy: String,
    /// All other data of its block was taken, too. If not, the snapshot counts only if the pods are
    /// already stored.
    pub is_whole: bool,
}

/// The snapshot of a claim that an earlier run has cut, if there is one, with the record of it.
pub(super) type EarlierCut = Result<Option<(VolumeSnapshot, StillCut)>, String>;

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

/// What a stored backup contains about the data of its volumes.
#[derive(Debug, Default)]
pub struct StoredVolumeData {
    /// The file of volume infos.
    pub infos: Vec<Value>,
    /// The file of PodVolumeBackups.
    pub files: Vec<Value>,
    /// Snapshots that were attempted, and those that are complete.
    pub snapshots: (u64, u64),
}

/// The results of the data of a backup's volumes, as a checkpoint records them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeOutcomes {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: ByClaim,
    /// There may be PodVolumeBackups.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_files: bool,
    /// Namespaces of these PodVolumeBackups, whose repositories may have snapshots for the backup.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub file_namespaces: BTreeSet<String>,
    /// Volumes (namespace, slash, pod, slash, volume) and claims whose files are missing, which the
    /// log already says.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub told: BTreeSet<String>,
    /// UIDs of pods that were thawed while their files were read, so what PodVolumeBackups of
    /// earlier runs contain of them may be of several moments.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub spoiled: BTreeSet<String>,
    /// By claim: snapshots that were cut while pods were frozen for them. The claim may not be
    /// stored yet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cuts: BTreeMap<String, StillCut>,
    /// UIDs of pods whose files were read while they were frozen, if all data of their block was
    /// taken.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub whole: BTreeSet<String>,
}

/// The results of the data of a backup's volumes, of all of its runs.
#[derive(Default)]
pub struct Outcomes(Mutex<VolumeOutcomes>);

impl Outcomes {
    /// Starts with the results that an earlier run has stored.
    pub fn of(earlier: VolumeOutcomes) -> Self {
        Self(Mutex::new(earlier))
    }

    /// Records that the files of a volume in this namespace are asked for.
    pub fn note_files(&self, namespace: &str) {
        let VolumeOutcomes { has_files, file_namespaces, .. } = &mut *self.0.lock();
        *has_files = true;
        if file_namespaces.len() < MOST_NOTED && !file_namespaces.contains(namespace) {
            file_namespaces.insert(namespace.to_owned());
        }
    }

    /// Records that a pod was thawed while its files were read.
    pub fn spoil(&self, pod_uid: &str) {
        let spoiled = &mut self.0.lock().spoiled;
        if spoiled.len() < MOST {
            spoiled.insert(pod_uid.to_owned());
        }
    }

    pub fn is_spoiled(&self, pod_uid: &str) -> bool {
        self.0.lock().spoiled.contains(pod_uid)
    }

    /// Records for a later run the snapshots of a block that were cut while its pods were frozen
    /// and, if all data of the block was taken, `pods` whose files were read. If there is no room
    /// for the record, that run takes the data again, and logs that.
    pub fn note_block<'p>(&self, cuts: Vec<(String, StillCut)>, pods: impl Iterator<Item = &'p str>) {
        let VolumeOutcomes { claims, cuts: noted, whole, .. } = &mut *self.0.lock();
        if noted.len() + cuts.len() > MOST_NOTED {
            // Snapshots of claims that have a result are probably stored by now.
            noted.retain(|claim, _| !claims.contains_key(claim));
        }
        if noted.len() + cuts.len() <= MOST_NOTED {
            noted.extend(cuts);
        }
        for pod in pods.take(MOST_NOTED.saturating_sub(whole.len())) {
            whole.insert(pod.to_owned());
        }
    }

    /// The recorded snapshot of a claim that was cut while pods were frozen for it.
    pub fn noted_cut(&self, claim: &str) -> Option<StillCut> {
        self.0.lock().cuts.get(claim).cloned()
    }

    /// The recorded snapshots of the chosen claims: namespace, slash, name.
    pub fn noted_snapshots(&self, is_chosen: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let VolumeOutcomes { cuts, .. } = &*self.0.lock();
        let chosen = cuts.iter().filter(|(claim, _)| is_chosen(claim));
        chosen.filter_map(|(claim, cut)| Some(key(Some(claim.split_once('/')?.0), &cut.name))).collect()
    }

    pub fn is_whole(&self, pod_uid: &str) -> bool {
        self.0.lock().whole.contains(pod_uid)
    }

    /// Are there PodVolumeBackups, or should there be?
    pub fn has_files(&self) -> bool {
        let kept = self.0.lock();
        kept.has_files || kept.claims.values().any(|one| matches!(one.fate, VolumeDataResult::Files))
    }

    /// Records that the log says that the files of this volume, perhaps that of a claim, are
    /// missing.
    pub fn note_told(&self, volume: String, claim: Option<&str>) {
        let told = &mut self.0.lock().told;
        if told.len() < MOST {
            told.insert(volume);
            told.extend(claim.map(str::to_owned));
        }
    }

    /// Records that the files of a claim are missing, which no PodVolumeBackup shows.
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

    /// Claims without data that are reported at the end, grouped by reason and by whether the
    /// backup asks for their data.
    pub fn lacking(&self) -> BTreeMap<(bool, String), BTreeSet<String>> {
        let mut lacking = BTreeMap::<_, BTreeSet<String>>::new();
        for (claim, one) in &self.0.lock().claims {
            if let VolumeDataResult::Missing { reason, asked: Some(asked), .. } = &one.fate {
                lacking.entry((*asked, reason.clone())).or_default().insert(claim.clone());
            }
        }
        lacking
    }

    /// Removes the results of claims that are not stored, and the records of those that are.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn outcome(volume: &str, fate: VolumeDataResult) -> ClaimOutcome {
        ClaimOutcome { volume: volume.to_owned(), traits: Some(VolumeTraits::default()), fate }
    }

    pub fn taken() -> CompletedSnapshot {
        CompletedSnapshot {
            name: "velero-a-1".to_owned(),
            content: "snapcontent-1".to_owned(),
            handle: "h".to_owned(),
            driver: "ebs".to_owned(),
            size: Some(1024),
            cut_at: Some("2026-01-01T00:00:00Z".to_owned()),
            ready_at: Some("2026-01-01T00:00:09Z".to_owned()),
            ..CompletedSnapshot::default()
        }
    }

    #[test]
    fn what_is_known_is_the_same_after_a_checkpoint() {
        let outcomes = Outcomes::default();
        outcomes.spoil("pod-uid");
        outcomes.note_files("ns");
        let cut = |claim: &str| {
            (format!("ns/{claim}"), StillCut { name: format!("velero-{claim}"), ..StillCut::default() })
        };
        outcomes.note_block(vec![cut("a"), cut("c")], std::iter::once("whole-uid"));
        outcomes.set("ns/a", outcome("pv-a", VolumeDataResult::Snapshot(taken())));
        outcomes.set("ns/b", outcome("pv-b", VolumeDataResult::Files));
        let text = serde_json::to_string(&outcomes.all()).unwrap();
        let again = Outcomes::of(serde_json::from_str(&text).unwrap());
        assert_eq!(again.all(), outcomes.all());
        assert_eq!(again.all().file_namespaces, BTreeSet::from(["ns".to_owned()]));
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
