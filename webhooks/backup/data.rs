//! Whether anything in the cluster could take the data that a Backup asks for. Answers from watch
//! caches, as every rule does.

use berth_api::hook::pods;
use berth_api::parse::{resource_filter, resource_policy};
use berth_api::velero::BackupSpec;
use berth_core::selection::{ResourceType, TypeSelection};
use berth_core::violation::{Field, Violations};
use berth_core::volume::VolumeOptions;
use berth_core::volume::takers::{self, MoverWish, VolumeDataRequest};

use crate::listers::Listers;

/// What the spec asks for and nothing can take. The spec has no faults.
pub(super) fn gaps<K: Listers>(listers: &K, spec: &BackupSpec) -> Violations {
    let is_set = |field: Option<bool>| field == Some(true);
    let wish = VolumeOptions {
        snapshots: spec.snapshot_volumes,
        files: is_set(spec.default_volumes_to_fs_backup) || is_set(spec.default_volumes_to_restic),
        moves: is_set(spec.snapshot_move_data),
    };
    let mut found = Violations::default();
    if !wish.files && !wish.moves && wish.snapshots != Some(true) {
        return found;
    }
    let (pods, claims) = (pods(), claims());
    let selection = resource_filter(spec).resolve(&[pods.clone(), claims.clone()], true);
    let asked = VolumeDataRequest {
        wish,
        mover: MoverWish::of(spec.datamover.as_deref()),
        has_policy: resource_policy(spec).is_some(),
        takes_pods: selection.fate(&pods) >= TypeSelection::Needed,
        takes_claims: selection.fate(&claims) >= TypeSelection::Needed,
        by_berth: listers.runs_backups(),
    };
    let at = Field::root("spec");
    for gap in listers.with_takers(|takers| takers::gaps(&asked, takers)) {
        found.push(at.child(gap.field), gap.lack.to_string());
    }
    found
}

/// The same as warnings.
pub(crate) fn told(gaps: &Violations) -> impl Iterator<Item = String> {
    gaps.lines().into_iter().map(|line| format!("berth: {line}"))
}

fn claims() -> ResourceType {
    let kind = ResourceType::regular("", "v1", "PersistentVolumeClaim", true);
    ResourceType { short_names: vec!["pvc".to_owned()], ..kind }
}
