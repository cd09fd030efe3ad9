//! Snapshots of a dead run, where the run that takes the backup up has lost it in its turn.

use std::collections::BTreeSet;

use berth_test_scripted::delete;

use super::*;

const ALL: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshots";

fn snapshot(name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "app", "uid": format!("uid-{name}")},
        "spec": {"source": {"persistentVolumeClaimName": "data"}},
    })
}

/// Its folder is there when it is looked at, and gone when the run that takes the backup up opens
/// it.
#[tokio::test]
async fn a_location_that_goes_between_two_looks_leaves_nothing_of_a_dead_run_in_the_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = folder.path().join("bucket");
    std::fs::create_dir(&bucket).unwrap();
    let mut begun = backup("8", "InProgress");
    begun["metadata"]["annotations"] = json!({keys::RUN: "dead", keys::RUNS: "1"});
    let standing = Arc::new(Mutex::new(begun));
    let (read, written) = (Arc::clone(&standing), Arc::clone(&standing));
    // One that was validated is not created.
    let mut validated = location(folder.path());
    validated["status"] = json!({"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"});
    let content = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-uid-begun";
    let api = Scripted::new()
        .always(get(ONE).answers_with(move |_| read.lock().clone()))
        .always(patch(ONE).answers_with(move |sent| {
            let mut standing = written.lock();
            json_patch::merge(&mut standing, sent);
            standing.clone()
        }))
        .always(get(LOCATION).answers(validated))
        .once(get("/api/v1/namespaces/kube-system").answers_with(move |_| {
            std::fs::remove_dir(&bucket).unwrap();
            json!({"metadata": {"name": "kube-system", "uid": "here"}})
        }))
        .once(get(ALL).answers(list("1", &[snapshot("begun")])))
        .once(get("/apis/velero.io/v1/namespaces/velero/podvolumebackups").answers(list("1", &[])))
        .once(get(content).refuses(404))
        .once(
            delete("/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/begun")
                .answers(snapshot("begun")),
        );
    let engine = engine(&api, &folder, AfterInterruption::Resume);
    let ended = engine.recover("one", "u", Signals::default(), |_| {}).await.unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Failed, "{:?}", ended.status);
    assert!(ended.status.unwrap().failure_reason.unwrap().contains("does not exist"));
    api.finish();
}

#[tokio::test]
async fn what_a_dead_run_has_begun_is_removed_by_nobody_but_the_run_that_has_the_backup() {
    let kept = BTreeSet::from(["app/kept".to_owned()]);
    for run in ["ours", "of another"] {
        let had = |run: &str| {
            let mut had = backup("8", "InProgress");
            had["metadata"]["annotations"] = json!({keys::RUN: run});
            had
        };
        let folder = tempfile::tempdir().unwrap();
        let api = Scripted::new().next(get(ONE).answers(backup("7", "InProgress")));
        api.next(patch(ONE).answers(had("ours")));
        let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
        record.take_over("ours", OPENING).await.unwrap();
        api.next(get(ALL).answers(list("1", &[snapshot("kept"), snapshot("begun")])));
        // It may have been taken over while that was listed.
        api.next(get(ONE).answers(had(run)));
        if run == "ours" {
            let content = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/snapcontent-uid-begun";
            let begun = "/apis/snapshot.storage.k8s.io/v1/namespaces/app/volumesnapshots/begun";
            api.next(get(content).refuses(404)).next(delete(begun).answers(snapshot("begun")));
        }
        let engine = engine(&api, &folder, AfterInterruption::Resume);
        engine.remove_snapshots_but("one", &record, &kept).await;
        api.finish();
    }
}
