//! Who asks for data that nothing could take is told at once.

use serde_json::{Value, json};

use super::played::start;
use crate::support::{Berth, PATIENCE, backup, wait_for};

/// What the API server says beside a Backup that it would create.
fn warnings(berth: &Berth, spec: Value) -> String {
    let args = ["create", "--dry-run=server", "-n", berth.namespace(), "-o", "name", "-f", "-"];
    let answer = berth.kubectl().answer(&args, &backup("asks", spec).to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    answer.stderr
}

fn wait(berth: &Berth, what: &str, is_so: impl Fn(&str) -> bool) {
    let spec = json!({"snapshotMoveData": true});
    let told = || Ok(is_so(&warnings(berth, spec.clone())).then_some(()));
    wait_for(what, PATIENCE, told)
        .unwrap_or_else(|error| panic!("{error}: {}", warnings(berth, spec.clone())));
}

#[test]
fn who_asks_for_data_that_nothing_could_take_is_told_at_once() {
    const NO_AGENT: &str = "berth: spec.snapshotMoveData: no node-agent runs in this namespace";
    const BARE: &str = "StorageClass warned-bare (bare.example.com)";
    let (berth, _) = start("vol-warned", &[]);
    let kubectl = berth.kubectl();
    wait(&berth, "the missing node-agent to be told", |told| told.contains(NO_AGENT) && !told.contains(BARE));
    assert_eq!(warnings(&berth, json!({})).matches("spec.").count(), 0);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "warned-bare"},
        "provisioner": "bare.example.com",
    });
    let agent = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node-agent-x", "labels": {"role": "node-agent"}},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "node-agent", "image": "example.com/nothing"}]},
    });
    let made = kubectl.create(berth.namespace(), &[class, agent]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait(&berth, "the driver without a class to be told", |told| {
        !told.contains(NO_AGENT) && told.contains(BARE)
    });
    let class = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "warned"}, "driver": "bare.example.com", "deletionPolicy": "Delete",
    });
    let made = kubectl.create("default", &[class]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait(&berth, "nothing to be told", |told| !told.contains("spec."));
}
