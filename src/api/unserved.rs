//! Fields of a Backup that berth's own engine does not implement. A request that is not served is
//! never a mere warning: admission refuses it, and a Backup that has it all the same (because no
//! webhook was called, or because the executor was changed later) has an error for each, so it ends
//! as PartiallyFailed. None of this applies to backups that Velero runs.

use berth_core::violation::{Field, Violations};

use crate::velero::BackupSpec;

/// The end of every one of these messages.
pub const WAY_OUT: &str = "remove it, or let Velero run the backups (berth install --executor=velero)";

/// All requests in the spec that the engine does not implement, each with its field path and the
/// way out.
pub fn unserved(spec: &BackupSpec) -> Violations {
    // A backup that takes no snapshots uses no location of them.
    let has_locations = spec.volume_snapshot_locations.as_ref().is_some_and(|list| !list.is_empty());
    let asked = [(
        "volumeSnapshotLocations",
        has_locations && spec.snapshot_volumes != Some(false),
        "berth's engine takes snapshots by CSI drivers only, and not by the plugins of providers",
    )];
    let (at, mut found) = (Field::root("spec"), Violations::default());
    for (field, is_asked, why) in asked {
        found.require(!is_asked, &at.child(field), format!("{why}: {WAY_OUT}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(spec: serde_json::Value) -> Vec<String> {
        let spec: BackupSpec = serde_json::from_value(spec).unwrap_or_else(|e| unreachable!("{e}"));
        unserved(&spec).iter().map(|one| one.field.to_string()).collect()
    }

    #[test]
    fn each_request_that_is_not_served_is_named_with_its_field() {
        let asked = serde_json::json!({"volumeSnapshotLocations": ["default"]});
        assert_eq!(fields(asked), ["spec.volumeSnapshotLocations"]);
    }

    /// Values that Velero's command line and server write by default, and fields that the engine
    /// implements.
    #[test]
    fn what_asks_for_nothing_is_served() {
        let spec = serde_json::json!({
            "snapshotVolumes": false, "snapshotMoveData": true, "defaultVolumesToFsBackup": false,
            "volumeSnapshotLocations": [], "datamover": "velero", "hooks": {},
            "orderedResources": {"pods": "a/b"}, "resourcePolicy": {"kind": "ConfigMap", "name": "p"},
            "uploaderConfig": {}, "volumeGroupSnapshotLabelKey": "velero.io/volume-group", "csiSnapshotTimeout": "10m0s",
        });
        let hooks = serde_json::json!({"resources": [{"name": "h"}]});
        let volumes = serde_json::json!({
            "snapshotVolumes": true, "snapshotMoveData": true, "defaultVolumesToFsBackup": true, "datamover": "velero",
        });
        let harmless = serde_json::json!({"snapshotVolumes": false, "volumeSnapshotLocations": ["default"]});
        for spec in [
            spec,
            volumes,
            harmless,
            serde_json::json!({"hooks": hooks, "metadata": {}}),
            serde_json::json!({}),
        ] {
            assert_eq!(fields(spec), [""; 0]);
        }
    }
}
