//! What belongs to a volume snapshot: its class, its content, and the Secrets with which a CSI
//! driver lists and deletes snapshots.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Related;

/// Annotations of a class, and of a content (as Velero reads them, and as the snapshot controller
/// writes them): name and namespace of a Secret.
const OF_CLASS: [[&str; 2]; 1] = [[
    "csi.storage.k8s.io/snapshotter-list-secret-name",
    "csi.storage.k8s.io/snapshotter-list-secret-namespace",
]];
const OF_CONTENT: [[&str; 2]; 2] = [
    ["csi.storage.k8s.io/snapshotter-secret-name", "csi.storage.k8s.io/snapshotter-secret-namespace"],
    [
        "snapshot.storage.kubernetes.io/deletion-secret-name",
        "snapshot.storage.kubernetes.io/deletion-secret-namespace",
    ],
];

/// Type, namespace and name of an object that another one names.
pub type RelatedReference = (Related, Option<String>, String);

#[derive(Deserialize)]
struct SnapshotObject {
    metadata: Option<SnapshotMetadata>,
    spec: Option<SnapshotSpec>,
    status: Option<SnapshotStatus>,
}

#[derive(Deserialize)]
struct SnapshotMetadata {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotSpec {
    volume_snapshot_class_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SnapshotStatus {
    bound_volume_snapshot_content_name: Option<String>,
}

/// # Errors
/// When the object is not of its type.
pub fn named(of: Related, json: &[u8]) -> Result<Vec<RelatedReference>, serde_json::Error> {
    let object: SnapshotObject = serde_json::from_slice(json)?;
    let secrets: &[[&str; 2]] = match of {
        Related::Snapshot => {
            let class = object.spec.and_then(|spec| spec.volume_snapshot_class_name);
            let content = object.status.and_then(|status| status.bound_volume_snapshot_content_name);
            let named = [(Related::SnapshotClass, class), (Related::SnapshotContent, content)];
            return Ok(named.into_iter().filter_map(|(of, name)| Some((of, None, name?))).collect());
        }
        Related::SnapshotContent => &OF_CONTENT,
        Related::SnapshotClass => &OF_CLASS,
        _ => &[],
    };
    let annotations = object.metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
    let secret = |[name, namespace]: &[&str; 2]| {
        Some((Related::Secret, Some(annotations.get(*namespace)?.clone()), annotations.get(*name)?.clone()))
    };
    Ok(secrets.iter().filter_map(secret).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(of: Related, object: &Value) -> Vec<RelatedReference> {
        named(of, object.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_snapshot_names_its_class_and_its_content() {
        let snapshot = json!({
            "metadata": {"name": "s", "annotations": {"a": "b"}},
            "spec": {"volumeSnapshotClassName": "fast", "source": {}},
            "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true},
        });
        let expected = [
            (Related::SnapshotClass, None, "fast".to_owned()),
            (Related::SnapshotContent, None, "content".to_owned()),
        ];
        assert_eq!(of(Related::Snapshot, &snapshot), expected);
        assert!(of(Related::Snapshot, &json!({"spec": {}, "status": null})).is_empty());
    }

    #[test]
    fn classes_and_contents_name_secrets_where_name_and_namespace_are_there() {
        let annotated = |annotations: Value| json!({"metadata": {"annotations": annotations}});
        let list = annotated(json!({
            "csi.storage.k8s.io/snapshotter-list-secret-name": "s",
            "csi.storage.k8s.io/snapshotter-list-secret-namespace": "ns",
        }));
        let secret = (Related::Secret, Some("ns".to_owned()), "s".to_owned());
        assert_eq!(of(Related::SnapshotClass, &list), std::slice::from_ref(&secret));
        assert!(of(Related::SnapshotContent, &list).is_empty() && of(Related::Pod, &list).is_empty());
        for prefix in
            ["csi.storage.k8s.io/snapshotter-secret", "snapshot.storage.kubernetes.io/deletion-secret"]
        {
            let mut both = json!({});
            both[format!("{prefix}-name")] = json!("s");
            assert!(of(Related::SnapshotContent, &annotated(both.clone())).is_empty());
            both[format!("{prefix}-namespace")] = json!("ns");
            assert_eq!(of(Related::SnapshotContent, &annotated(both)), std::slice::from_ref(&secret));
        }
    }
}
