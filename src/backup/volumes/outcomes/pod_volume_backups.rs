//! The PodVolumeBackups of a backup at its end: which of them the backup keeps, and which files are
//! missing without an error in the log.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Outcomes, VolumeDataResult, VolumeOutcomes};
use crate::backup::related::key;

impl Outcomes {
    /// Files that are missing at the end of the backup without an error in the log, because the run
    /// that waited for them has died: sentences for the log, each with its namespace. Claims
    /// without any PodVolumeBackup become missing. `files`: the PodVolumeBackups of the backup.
    pub fn unfinished(&self, files: &[Value]) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (mut complete, mut asked) = (BTreeSet::new(), BTreeSet::new());
        // A volume whose PodVolumeBackup failed may have another one, from a later run.
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
}

/// The PodVolumeBackups that the backup keeps. One that was canceled and completed nevertheless may
/// have been read while its pod was not frozen. It is left out if another one of the same pod and
/// volume has completed; otherwise the last one stays, with a sentence for the log and its
/// namespace.
pub fn standing(files: Vec<Value>) -> (Vec<Value>, Vec<(String, String)>) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_complete = |file: &Value| file["status"]["phase"] == "Completed";
    let is_canceled = |file: &Value| file["spec"]["cancel"] == true;
    let place = |file: &Value| (text(&file["spec"]["pod"]["uid"]), text(&file["spec"]["volume"]));
    let name = |file: &Value| text(&file["metadata"]["name"]);
    let age = |file: &Value| (text(&file["metadata"]["creationTimestamp"]), name(file));
    // For each volume the one that is kept: the last that was not canceled, or else the last.
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

/// The key of a pod's volume in the records.
pub fn volume_of(namespace: &str, pod: &str, volume: &str) -> String {
    format!("{namespace}/{pod}/{volume}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::outcome;
    use super::*;

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
        // The PodVolumeBackup of an earlier run failed, and that of the next run did not.
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
}
