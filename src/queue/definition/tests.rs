use berth_test_scripted::{Scripted, get};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/backups.velero.io";

/// As far as anybody asks. Of Velero 1.18, or else before.
fn definition(has_queue: bool) -> Value {
    let phases = if has_queue {
        json!(["New", "Queued", "ReadyToStart", "InProgress"])
    } else {
        json!(["New", "InProgress"])
    };
    let phase = json!({"type": "string", "enum": phases});
    let status = json!({"type": "object", "properties": {"phase": phase}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"status": status}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": "velero.io", "scope": "Namespaced", "names": {"kind": "Backup", "plural": "backups"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn a_definition_without_the_phases_or_none_at_all_is_a_fault_and_says_the_way_out() {
    let api = Scripted::new()
        .next(get(PATH).answers(definition(true)))
        .next(get(PATH).answers(definition(false)))
        .next(get(PATH).refuses(404));
    let client = api.client("velero");
    assert_eq!(check(&client).await, Ok(()));
    let old = check(&client).await.unwrap_err();
    assert!(old.contains("no phase Queued and no phase ReadyToStart") && old.contains("berth crd"), "{old}");
    let none = check(&client).await.unwrap_err();
    assert!(none.contains("is missing") && none.contains("berth crd"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_cannot_be_read_now_is_taken_to_be_fine() {
    let api = Scripted::new().next(get(PATH).refuses(500)).next(get(PATH).never_answers());
    let client = api.client("velero");
    assert_eq!(check(&client).await, Ok(()));
    let begun = Instant::now();
    assert_eq!(check(&client).await, Ok(()));
    assert_eq!(begun.elapsed().as_secs(), 10);
}
