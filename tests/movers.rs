//! Data movements of a stock Velero: what goes wrong without berth, and how it is with berth.

mod affinity;
mod crowd;
mod orphans;
mod reach;
mod real;
mod refused;
mod seen;
mod silence;
mod soothing;
mod together;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::run;
use crate::support::movers::{History, Kind};
use crate::support::pods::Cluster;
use crate::support::{Kubectl, PATIENCE, wait_for};

const NAMESPACE: &str = "velero";

/// berth as people install it. What tests make of movers before that is theirs.
fn install(cluster: &Cluster) {
    run(cluster, "berth install --beside-velero");
}

/// Until all replicas of the webhook hold back what has no grant.
fn wait_for_gate(kubectl: &Kubectl) {
    // A replica that holds it back refuses it. It is a dry run, so no object is created.
    let forged = json!({
        "apiVersion": Kind::DataUpload.api_version(), "kind": Kind::DataUpload.name(),
        "metadata": {"name": "forged", "namespace": NAMESPACE},
        "spec": {
            "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": "source", "operationTimeout": "1m",
            "backupStorageLocation": "default",
        },
        "status": {"phase": "Accepted"},
    })
    .to_string();
    let create = ["create", "--dry-run=server", "-f", "-"];
    wait_for("the gate to be closed", PATIENCE, || {
        // They take turns.
        for _ in 0..8 {
            if !kubectl.answer(&create, &forged)?.stderr.contains("waits for a place") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .unwrap();
}

/// Those that any node-agent can carry are granted in the order of the line: none while as many
/// wait before it as can be granted at once. `late`: by how much who grants may see later than we
/// who is there.
fn ensure_in_order(history: &History, limit: usize, late: Duration) {
    let steps = history.steps().unwrap();
    let is_free = |kind: Kind| matches!(kind, Kind::DataUpload | Kind::DataDownload);
    let mut line = BTreeMap::new();
    for step in steps.iter().filter(|step| is_free(step.kind)) {
        let place = (step.created.unwrap(), step.kind, step.name.clone());
        let (was_granted, since) = *line.entry(place.clone()).or_insert((false, step.at));
        line.insert(place.clone(), (step.is_granted, since));
        if step.is_granted && !was_granted {
            let waits = |(granted, since): &(bool, Instant)| !granted && *since + late <= step.at;
            let before: Vec<_> = line.range(..&place).filter(|(_, one)| waits(one)).collect();
            assert!(before.len() < limit, "{} was granted before {before:?}", step.name);
        }
    }
    assert!(line.values().all(|(granted, _)| *granted), "{line:?}");
}
