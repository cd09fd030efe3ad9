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
