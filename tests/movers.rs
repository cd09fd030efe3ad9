//! Data movements of a stock Velero: what there is to put in order without berth, and how it is with berth.

mod affinity;
mod real;
mod refused;
mod seen;
mod soothing;
mod together;

use std::time::Duration;

use serde_json::json;

use crate::cluster::run;
use crate::support::movers::Kind;
use crate::support::pods::Cluster;
use crate::support::wait_for;

const NAMESPACE: &str = "velero";

/// berth as people install it. What tests make of movers before that is theirs.
fn install(cluster: &Cluster) {
    run(cluster, "berth install --beside-velero");
}

/// Until all replicas of the webhook hold back what has no grant.
fn wait_for_gate(cluster: &Cluster) {
    // Refused if it does, and created by nobody.
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
    wait_for("the gate to be closed", Duration::from_secs(60), || {
        // They take turns.
        for _ in 0..8 {
            if !cluster.kubectl().answer(&create, &forged)?.stderr.contains("waits for a place") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .unwrap();
}
