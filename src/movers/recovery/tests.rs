use std::sync::Arc;

use berth_core::mover::grant::MoverPhase;
use berth_test_scripted::{Scripted, delete, get, patch};
use tokio::time::Instant;

use super::*;

const UPLOAD: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads/one";
const VOLUME: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/one";
const POD: &str = "/api/v1/namespaces/velero/pods/one";
const CLAIM: &str = "/api/v1/namespaces/velero/persistentvolumeclaims/one";
/// Where a node-agent looks for it, and where Velero moves it.
const SNAPSHOT: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/snap";
const TAKEN: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/velero/volumesnapshots/one";

fn mover(kind: MoverKind, version: &str) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.as_str(),
        "metadata": {"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {"sourceNamespace": "app", "csiSnapshot": {"volumeSnapshot": "snap"}},
        "status": {"phase": "Accepted"},
    })
}

/// The metadata of an object that was made for a data mover.
fn made_for(owner: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "one", "namespace": "velero", "uid": uid, "ownerReferences": [
            {"apiVersion": "velero.io/v1", "kind": "DataUpload", "name": "one", "uid": owner}]},
    })
}

fn deleted() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"})
}

/// An item seen at version 7.
fn seen(kind: MoverKind) -> MoverItem {
    let accepted =
        Mover { phase: MoverPhase::Accepted, ..Mover::new(kind, "one", "u", Timestamp::UNIX_EPOCH) };
    let mover = Mover { bound_node: kind.is_bound().then(|| "n1".to_owned()), ..accepted };
    MoverItem { mover: Arc::new(mover), resource_version: "7".to_owned(), target_pod: None }
}

async fn recovered(
    api: &Scripted,
    item: &MoverItem,
    node_gone: bool,
) -> anyhow::Result<Option<(String, String)>> {
    let orphan = Recover { mover: 0, keeps_place: false, for_long: false };
    recover(&api.client("velero"), "velero", item, orphan, node_gone).await
}

#[tokio::test(start_paused = true)]
async fn what_has_changed_meanwhile_is_left_alone() {
    let mut another = mover(MoverKind::PodVolumeBackup, "7");
    another["metadata"]["uid"] = json!("of a later one");
    let api = Scripted::new()
        .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "8")))
        .next(get(VOLUME).answers(another));
    for _ in 0..2 {
        let left = recovered(&api, &seen(MoverKind::PodVolumeBackup), false).await.unwrap_err();
        assert_eq!(left.to_string(), "it has changed meanwhile");
    }
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn one_begins_anew_when_its_own_pod_and_claim_are_gone_and_on_the_version_that_was_seen() {
    let api = Scripted::new()
        .next(get(UPLOAD).answers(mover(MoverKind::DataUpload, "7")))
        .next(get(SNAPSHOT).answers(made_for("u", "s")))
        .next(get(TAKEN).refuses(404))
        .next(get(POD).answers(made_for("u", "p")))
        .next(delete(POD).answers(deleted()))
        .next(get(POD).answers(made_for("u", "p")))
        .next(get(POD).refuses(404))
        .next(get(CLAIM).answers(made_for("u", "c")))
        .next(delete(CLAIM).answers(deleted()))
        // Another object has the same name now: ours is gone.
        .next(get(CLAIM).answers(made_for("u", "another")))
        .next(patch(UPLOAD).answers(mover(MoverKind::DataUpload, "8")));
    let (_, version) = recovered(&api, &seen(MoverKind::DataUpload), false).await.unwrap().unwrap();
    assert_eq!(version, "8");
    let writes = api.writes();
    assert_eq!(writes[0].body["preconditions"], json!({"uid": "p"}));
    assert_eq!(writes[1].body["preconditions"], json!({"uid": "c"}));
    let written = &writes[2].body;
    assert_eq!(written["metadata"]["resourceVersion"], "7");
    assert_eq!(written["metadata"]["uid"], "u");
    assert_eq!(written["metadata"]["annotations"], json!({keys::GRANTED: null, keys::BEGUN_ANEW: "1"}));
    assert_eq!(written["status"]["phase"], "New");
    assert!(written["status"]["acceptedByNode"].is_null() && written["status"]["node"].is_null());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_go_keeps_it_from_beginning_anew() {
    let api = Scripted::new()
        .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "7")))
        .always(get(POD).answers(made_for("u", "p")))
        .next(delete(POD).answers(deleted()));
    let begun = Instant::now();
    let left = recovered(&api, &seen(MoverKind::PodVolumeBackup), false).await.unwrap_err();
    assert_eq!((left.to_string().as_str(), begun.elapsed().as_secs()), ("Pod one is still there", 20));
    assert_eq!(api.writes().len(), 1, "nothing but the deletion");
}

/// A deletion that was refused as a conflict says nothing of whether the pod is there.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_deletion_meets_a_conflict_counts_as_gone_only_where_it_is() {
    for is_there in [true, false] {
        let api = Scripted::new()
            .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "7")))
            .next(get(POD).answers(made_for("u", "p")))
            .next(delete(POD).refuses(409))
            .always(get(POD).answers(made_for("u", if is_there { "p" } else { "another" })));
        if !is_there {
            api.next(patch(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "8")));
        }
        let outcome = recovered(&api, &seen(MoverKind::PodVolumeBackup), false).await;
        assert_eq!(outcome.is_err(), is_there, "{outcome:?}");
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_names_another_owner_or_none_is_not_removed() {
    let mut ownerless = made_for("u", "p");
    ownerless["metadata"]["ownerReferences"] = json!([]);
    for pod in [made_for("somebody else", "p"), ownerless] {
        let api = Scripted::new()
            .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "7")))
            .next(get(POD).answers(pod))
            .next(patch(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "8")));
        recovered(&api, &seen(MoverKind::PodVolumeBackup), false).await.unwrap();
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_meets_another_one_is_an_error() {
    let api = Scripted::new()
        .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "7")))
        .next(get(POD).refuses(404))
        .next(patch(VOLUME).refuses(409));
    recovered(&api, &seen(MoverKind::PodVolumeBackup), false).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn one_whose_snapshot_velero_has_taken_over_waits_and_nothing_is_removed() {
    let api = Scripted::new()
        .next(get(UPLOAD).answers(mover(MoverKind::DataUpload, "7")))
        .next(get(SNAPSHOT).refuses(404));
    assert_eq!(recovered(&api, &seen(MoverKind::DataUpload), false).await.unwrap(), None);
    // If that cannot be found out, nothing is done either.
    let broken = Scripted::new()
        .next(get(UPLOAD).answers(mover(MoverKind::DataUpload, "7")))
        .next(get(SNAPSHOT).refuses(500));
    recovered(&broken, &seen(MoverKind::DataUpload), false).await.unwrap_err();
    assert_eq!((api.writes(), broken.writes()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn one_whose_node_is_gone_fails_first_and_is_cleared_up_then() {
    let api = Scripted::new()
        .next(get(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "7")))
        .next(patch(VOLUME).answers(mover(MoverKind::PodVolumeBackup, "8")))
        // It has ended, whatever happens to its pod.
        .next(get(POD).refuses(500));
    let (outcome, version) = recovered(&api, &seen(MoverKind::PodVolumeBackup), true).await.unwrap().unwrap();
    assert!(outcome.contains("node n1 is gone") && version == "8", "{outcome}");
    let written = &api.writes()[0].body;
    assert_eq!(
        (&written["metadata"]["resourceVersion"], &written["status"]["phase"]),
        (&json!("7"), &json!("Failed"))
    );
    assert!(written["status"]["completionTimestamp"].is_string(), "{written}");
}
