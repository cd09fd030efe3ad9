//! Whether anything could take the data that a Backup asks for.

use std::collections::{BTreeMap, BTreeSet};

use super::movers::Known;
use super::*;

fn nobody() -> Known {
    Known {
        agents: Some(false),
        own_agents: Some(false),
        drivers: Some(BTreeSet::new()),
        provisioners: Some(BTreeMap::from([("gp3".to_owned(), "ebs.csi.aws.com".to_owned())])),
    }
}

async fn warned(router: &Router, spec: Value, old: Option<Value>) -> Vec<String> {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let judged = review(operation, backup("b", spec), old.map(|spec| backup("b", spec)), false);
    let answer = ask(router, VALIDATE_PATH, judged).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
    warnings.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn data_that_nothing_could_take_is_told_with_the_field_and_the_way_out() {
    let (cluster, router) = state();
    let moved = json!({"snapshotMoveData": true});
    assert_eq!(warned(&router, moved.clone(), None).await, [""; 0], "nothing is known yet");
    *cluster.movers.takers.lock() = nobody();
    let told = warned(&router, moved.clone(), None).await;
    assert_eq!(told.len(), 2, "{told:?}");
    for (line, words) in told.iter().zip([
        ["berth: spec.snapshotMoveData: no node-agent runs", "velero install --use-node-agent"],
        ["berth: spec.snapshotMoveData: there is no VolumeSnapshotClass", "create one for each CSI driver"],
    ]) {
        assert!(words.iter().all(|words| line.contains(words)), "{line}");
    }
    // Who changes something else is not told again.
    let mut labelled = backup("b", moved.clone());
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let judged = review("UPDATE", labelled, Some(backup("b", moved.clone())), false);
    let answer = ask(&router, VALIDATE_PATH, judged).await;
    assert!(answer["warnings"].as_array().is_none_or(Vec::is_empty), "{answer}");
    assert_eq!(warned(&router, moved.clone(), Some(json!({}))).await.len(), 2);
    for (spec, expected) in [
        (json!({}), vec![]),
        (json!({"snapshotVolumes": true}), vec!["spec.snapshotVolumes: there is no VolumeSnapshotClass"]),
        (json!({"defaultVolumesToFsBackup": true}), vec!["spec.defaultVolumesToFsBackup: no node-agent"]),
        (json!({"defaultVolumesToRestic": true}), vec!["spec.defaultVolumesToFsBackup: no node-agent"]),
        (json!({"snapshotMoveData": true, "snapshotVolumes": false}), vec![]),
        (json!({"snapshotMoveData": true, "datamover": "other"}), vec!["there is no VolumeSnapshotClass"]),
        (
            json!({"snapshotMoveData": true, "datamover": "velero"}),
            vec!["no node-agent", "there is no VolumeS"],
        ),
        (json!({"snapshotMoveData": true, "resourcePolicy": {"kind": "ConfigMap", "name": "p"}}), vec![]),
        (json!({"snapshotVolumes": true, "includedResources": ["configmaps", "pods"]}), vec![]),
        (
            json!({"snapshotVolumes": true, "includedResources": ["pvc"]}),
            vec!["there is no VolumeSnapshotClass"],
        ),
        (json!({"snapshotVolumes": true, "excludedResources": ["persistentvolumeclaims"]}), vec![]),
        (json!({"snapshotVolumes": true, "excludedNamespaceScopedResources": ["*claims"]}), vec![]),
        (
            json!({"defaultVolumesToFsBackup": true, "includedNamespaceScopedResources": ["Pod"]}),
            vec!["spec.defaultVolumesToFsBackup: no node-agent"],
        ),
        (json!({"defaultVolumesToFsBackup": true, "includedResources": ["secrets"]}), vec![]),
    ] {
        let told = warned(&router, spec.clone(), None).await;
        assert_eq!(told.len(), expected.len(), "{spec}: {told:?}");
        assert!(told.iter().zip(expected).all(|(line, words)| line.contains(words)), "{spec}: {told:?}");
    }
    // berth's own agents read files and move snapshots, of which there are none without a class.
    cluster.movers.takers.lock().own_agents = Some(true);
    assert_eq!(warned(&router, json!({"defaultVolumesToFsBackup": true}), None).await, [""; 0]);
    let told = warned(&router, moved.clone(), None).await;
    assert!(told.len() == 1 && told[0].contains("there is no VolumeSnapshotClass"), "{told:?}");
    // Velero may have plugins that take snapshots.
    cluster.beside_velero.store(true, Ordering::Relaxed);
    assert_eq!(warned(&router, json!({"snapshotVolumes": true}), None).await, [""; 0]);
    assert_eq!(warned(&router, moved, None).await.len(), 1);
}

#[tokio::test]
async fn drivers_without_a_class_are_named() {
    let (cluster, router) = state();
    let drivers = Some(BTreeSet::from(["ebs.csi.aws.com".to_owned()]));
    *cluster.movers.takers.lock() = Known { agents: Some(true), drivers, ..nobody() };
    let asked = json!({"snapshotVolumes": true});
    assert_eq!(warned(&router, asked.clone(), None).await, [""; 0]);
    let all = [("gp3", "ebs.csi.aws.com"), ("shared", "nfs.csi.k8s.io")];
    let all = all.map(|(class, driver)| (class.to_owned(), driver.to_owned()));
    cluster.movers.takers.lock().provisioners = Some(BTreeMap::from(all));
    let told = warned(&router, asked, None).await;
    assert_eq!(told.len(), 1, "{told:?}");
    for words in
        ["berth: spec.snapshotVolumes: some drivers have no", "; StorageClass shared (nfs.csi.k8s.io)"]
    {
        assert!(told[0].contains(words), "{told:?}");
    }
}

#[tokio::test]
async fn a_schedule_is_told_by_the_path_of_its_template() {
    let (cluster, router) = state();
    *cluster.movers.takers.lock() = nobody();
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": "daily", "namespace": "velero"},
        "spec": {"schedule": "0 2 * * *", "template": {"defaultVolumesToFsBackup": true}},
    });
    let answer = ask(&router, SCHEDULE_PATH, review("CREATE", schedule, None, false)).await;
    let told = answer["warnings"][0].as_str().unwrap_or_default();
    assert!(told.starts_with("berth: spec.template.defaultVolumesToFsBackup: no node-agent"), "{answer}");
}
