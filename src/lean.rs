//! What is kept of objects whose creators choose their size: a watch cache, or a list of all, must
//! not take a MiB for each of them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// One character more than the longest name of an object, so that no object has a name that was
/// cut.
const NAME: usize = 254;
/// Characters of the value of a label or an annotation.
const VALUE: usize = 1024;

/// A text that stands where a name of an object is expected.
pub fn name(text: String) -> String {
    cut(text, NAME)
}

/// Who the object is, which version of it was seen, whether it goes, and of its labels and
/// annotations those with these keys.
pub fn metadata(whole: ObjectMeta, labels: &[&str], annotations: &[&str]) -> ObjectMeta {
    ObjectMeta {
        name: whole.name,
        namespace: whole.namespace,
        uid: whole.uid,
        resource_version: whole.resource_version,
        generation: whole.generation,
        creation_timestamp: whole.creation_timestamp,
        deletion_timestamp: whole.deletion_timestamp,
        labels: only(whole.labels, labels),
        annotations: only(whole.annotations, annotations),
        ..ObjectMeta::default()
    }
}

fn only(all: Option<BTreeMap<String, String>>, keys: &[&str]) -> Option<BTreeMap<String, String>> {
    let kept = all?.into_iter().filter(|(key, _)| keys.contains(&key.as_str()));
    let kept: BTreeMap<String, String> = kept.map(|(key, value)| (key, cut(value, VALUE))).collect();
    (!kept.is_empty()).then_some(kept)
}

fn cut(text: String, most: usize) -> String {
    if text.len() <= most { text } else { text.chars().take(most).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::patch::json_size;

    #[test]
    fn nothing_is_kept_of_metadata_but_what_is_read_and_that_is_cut() {
        let large = "x".repeat(10_000);
        let many: BTreeMap<String, String> =
            (0..10_000).map(|i| (format!("berth.dev/{i}"), large.clone())).collect();
        let mut whole: ObjectMeta = serde_json::from_value(json!({
            "name": "b", "namespace": "velero", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
            "labels": {"team": large, "velero.io/backup-uid": "v"}, "finalizers": [large], "managedFields": [{}],
            "ownerReferences": [{"apiVersion": "v1", "kind": large, "name": "o", "uid": "o"}],
        }))
        .unwrap();
        whole.annotations = Some(many);
        let kept = metadata(whole, &["velero.io/backup-uid"], &["berth.dev/7", "berth.dev/none"]);
        assert!(json_size(&kept) < 2000, "{}", json_size(&kept));
        let annotations = kept.annotations.unwrap();
        assert_eq!(annotations.len(), 1);
        assert_eq!(annotations["berth.dev/7"].len(), VALUE);
        assert_eq!(json!(kept.labels), json!({"velero.io/backup-uid": "v"}));
        assert_eq!((kept.name.as_deref(), kept.uid.as_deref()), (Some("b"), Some("u")));
        assert_eq!((kept.resource_version.as_deref(), kept.generation), (Some("7"), Some(2)));
        assert!(kept.creation_timestamp.is_some() && kept.deletion_timestamp.is_some());
        assert_eq!(metadata(ObjectMeta::default(), &["a"], &["b"]), ObjectMeta::default());
        assert_eq!(name("b".to_owned()), "b");
        assert_eq!(name("é".repeat(500)).chars().count(), NAME, "no object has it");
    }
}
