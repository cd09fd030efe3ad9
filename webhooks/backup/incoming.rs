//! The parts of a Backup under review that rules read.

use std::collections::BTreeMap;

use berth_api::keys::MARKS;
use berth_api::place::QueueFields;
use berth_api::velero::{BackupPhase, BackupSpec};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::patch::Edit;
use crate::review::{AdmissionRequest, ReviewError, ReviewVerdict};

static NONE: BTreeMap<String, String> = BTreeMap::new();

pub(super) struct IncomingBackup<'a> {
    pub(super) metadata: BackupMetadata,
    pub(super) spec: BackupSpec,
    pub(super) status: Option<&'a RawValue>,
    phase: Option<String>,
}

/// `S`: the parts of the spec that are read.
#[derive(Deserialize)]
struct BackupObject<'a, S> {
    #[serde(default)]
    metadata: BackupMetadata,
    #[serde(default)]
    spec: S,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupMetadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    generate_name: Option<String>,
    #[serde(default)]
    pub(super) uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct IncomingStatus {
    /// Text, because a phase that this build does not know belongs to another component.
    #[serde(default)]
    phase: Option<String>,
}

impl<'a> IncomingBackup<'a> {
    /// `S`: the parts of the spec that are read.
    pub(super) fn of<S>(request: &AdmissionRequest<'a>) -> Result<Self, ReviewError>
    where
        S: Default + Deserialize<'a> + Into<BackupSpec>,
    {
        Self::parse::<S>(request.object.ok_or(ReviewError::NoObject)?)
    }

    pub(super) fn parse<S>(object: &'a RawValue) -> Result<Self, ReviewError>
    where
        S: Default + Deserialize<'a> + Into<BackupSpec>,
    {
        let object: BackupObject<'a, S> = serde_json::from_str(object.get())?;
        let BackupObject { metadata, spec, status } = object;
        let phase = status.map(|status| serde_json::from_str::<IncomingStatus>(status.get())).transpose()?;
        let phase = phase.and_then(|status| status.phase);
        Ok(Self { metadata, spec: spec.into(), status, phase })
    }

    pub(super) fn phase(&self) -> &str {
        self.phase.as_deref().unwrap_or_default()
    }

    /// Does this Backup wait for a place? A phase Queued in a create was written by hand, and
    /// counts as none.
    pub(super) fn wants_place(&self) -> bool {
        ["", BackupPhase::New.as_str(), BackupPhase::Queued.as_str()].contains(&self.phase())
    }

    pub(super) fn mark(&self, key: &str) -> Option<&String> {
        self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key))
    }

    pub(super) fn source(&self) -> QueueFields<'_> {
        QueueFields {
            labels: self.metadata.labels.as_ref().unwrap_or(&NONE),
            annotations: self.metadata.annotations.as_ref().unwrap_or(&NONE),
            spec: &self.spec,
        }
    }

    /// Removes marks that were written by hand, or copied from another Backup.
    pub(super) fn remove_marks(&self, edit: &mut Edit) {
        for key in MARKS.into_iter().filter(|key| self.mark(key).is_some()) {
            edit.remove(&["metadata", "annotations", key]);
        }
    }

    /// Lets the Backup in without a place, because a position computed from empty caches would
    /// always be the first one. The leader queues it.
    pub(super) fn later(&self, why: &str) -> ReviewVerdict {
        let mut edit = Edit::default();
        self.remove_marks(&mut edit);
        if self.status.is_some() {
            edit.remove(&["status"]);
        }
        let warnings = vec![format!("berth: queued by the controller in a moment: {why}")];
        ReviewVerdict { patch: Some(edit.into_patch()), warnings, ..ReviewVerdict::allow() }
    }

    pub(super) fn name(&self) -> String {
        let generated = || self.metadata.generate_name.as_ref().map(|base| format!("{base}…"));
        self.metadata.name.clone().or_else(generated).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use berth_api::keys;

    use super::*;

    /// The marks in each list of a manifest that holds marks.
    fn marks_in(manifest: &'static str) -> Vec<BTreeSet<&'static str>> {
        let lists = manifest.split('[').filter_map(|rest| rest.split_once(']')).map(|(list, _)| list);
        let marks =
            |list: &'static str| list.split('\'').filter(|word| word.starts_with("berth.dev/")).collect();
        lists.filter(|list| list.contains(keys::WAITS_SINCE)).map(marks).collect()
    }

    /// A mark that only one of them knows could be written by anybody where the other one is away.
    #[test]
    fn the_policy_and_the_webhook_know_the_same_marks() {
        let all = BTreeSet::from(MARKS);
        let mut of_births = all.clone();
        of_births.remove(keys::ENQUEUED_AT);
        let guard = include_str!("../../manifests/webhook/guard.yaml");
        assert_eq!(marks_in(guard), [of_births, all.clone()]);
        let matters = include_str!("../../manifests/webhook/validating.yaml");
        assert_eq!(marks_in(matters), [all]);
    }
}
