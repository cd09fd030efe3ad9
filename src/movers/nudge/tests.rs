use berth_test_scripted::{Scripted, get, list as whole, patch};
use serde_json::Value;
use tokio::time::Instant;

use super::*;

const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";
const DOWNLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datadownloads";

fn mover(kind: &str, name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "velero", "uid": name, "resourceVersion": "7"},
        "spec": {}, "status": {"phase": phase},
    })
}

#[tokio::test(start_paused = true)]
async fn those_that_are_new_get_a_mark_and_nothing_else_and_no_others_do() {
    let waits = mover("DataUpload", "waits", "New");
    let api = Scripted::new()
        .once(get(UPLOADS).answers(whole("9", &[waits.clone(), mover("DataUpload", "goes", "Accepted")])))
        .once(get(DOWNLOADS).answers(whole("9", &[mover("DataDownload", "ended", "Completed")])))
        .once(patch(&format!("{UPLOADS}/waits")).answers(waits));
    assert_eq!(refused(&api.client("velero"), "velero").await, 1);
    let body = &api.writes()[0].body;
    let mark = &body["metadata"]["annotations"][keys::NUDGED_AT];
    assert!(mark.is_string(), "{body}");
    // The patch has no phase, so a concurrent write of the node-agent is kept.
    assert_eq!(*body, json!({"metadata": {"annotations": {keys::NUDGED_AT: mark}}}));
}

#[tokio::test(start_paused = true)]
async fn one_kind_that_cannot_be_listed_and_one_that_is_gone_keep_nobody_else_asleep() {
    let three = ["gone", "slow", "waits"].map(|name| mover("DataDownload", name, "New"));
    let api = Scripted::new()
        .once(get(UPLOADS).never_answers())
        .once(get(DOWNLOADS).answers(whole("9", &three)))
        .once(patch(&format!("{DOWNLOADS}/gone")).refuses(404))
        .once(patch(&format!("{DOWNLOADS}/slow")).never_answers())
        .once(patch(&format!("{DOWNLOADS}/waits")).answers(three[2].clone()));
    let begun = Instant::now();
    assert_eq!(refused(&api.client("velero"), "velero").await, 1);
    assert_eq!(begun.elapsed().as_secs(), 40, "half a minute for the list, and ten seconds for the slow one");
}
