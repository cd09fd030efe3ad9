//! What a volume snapshot is stored with, so that a restore finds it in its storage.

use berth_api::keys::{
    GROUP_SNAPSHOT_HANDLE, SNAPSHOT_DELETION_POLICY, SNAPSHOT_DRIVER, SNAPSHOT_HANDLE, SNAPSHOT_RESTORE_SIZE,
};
use serde_json::{Value, json};

/// Copies to a snapshot what its content knows, so that a restore finds the snapshot in its
/// storage.
pub fn annotate(snapshot: &mut Value, content: &Value) {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let status = &content["status"];
    let handle = text(&status["snapshotHandle"]);
    let driver = text(&content["spec"]["driver"]).filter(|_| handle.is_some());
    let size = status["restoreSize"].as_u64().map(binary);
    for (key, value) in [
        (SNAPSHOT_DELETION_POLICY, text(&content["spec"]["deletionPolicy"])),
        (SNAPSHOT_HANDLE, handle),
        (SNAPSHOT_DRIVER, driver),
        (SNAPSHOT_RESTORE_SIZE, size),
        (GROUP_SNAPSHOT_HANDLE, text(&status["volumeGroupSnapshotHandle"])),
    ] {
        let Some(metadata) = snapshot.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if annotations.is_null() {
            *annotations = json!({});
        }
        if let (Some(annotations), Some(value)) = (annotations.as_object_mut(), value) {
            annotations.insert(key.to_owned(), json!(value));
        }
    }
}

/// A quantity as Kubernetes writes it with binary suffixes.
pub fn binary(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let (mut amount, mut unit) = (bytes, 0);
    while amount != 0 && amount.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        amount /= 1024;
        unit += 1;
    }
    // Kubernetes writes amounts below 1024 with decimal suffixes.
    if bytes == 1000 {
        "1k".to_owned()
    } else {
        format!("{amount}{}", UNITS.get(unit).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_annotated_with_what_its_content_knows() {
        let content = json!({
            "spec": {"driver": "ebs", "deletionPolicy": "Retain"},
            "status": {"snapshotHandle": "snap-1", "restoreSize": 10_737_418_240_u64, "volumeGroupSnapshotHandle": "g"},
        });
        let mut snapshot = json!({"metadata": {"name": "s", "annotations": {"mine": "x"}}});
        annotate(&mut snapshot, &content);
        let expected = json!({
            "mine": "x", SNAPSHOT_DELETION_POLICY: "Retain", SNAPSHOT_HANDLE: "snap-1", SNAPSHOT_DRIVER: "ebs",
            SNAPSHOT_RESTORE_SIZE: "10Gi", GROUP_SNAPSHOT_HANDLE: "g",
        });
        assert_eq!(snapshot["metadata"]["annotations"], expected);
        let mut early = json!({"metadata": {"name": "s"}});
        annotate(&mut early, &json!({"spec": {"driver": "ebs", "deletionPolicy": "Delete"}}));
        assert_eq!(early["metadata"]["annotations"], json!({SNAPSHOT_DELETION_POLICY: "Delete"}));
    }

    #[test]
    fn amounts_are_written_as_kubernetes_writes_them() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1000, "1k"),
            (1024, "1Ki"),
            (1_000_000, "1000000"),
            (1_610_612_736, "1536Mi"),
            (1 << 40, "1Ti"),
            (1 << 63, "8Ei"),
        ] {
            assert_eq!(binary(bytes), text);
        }
    }
}
