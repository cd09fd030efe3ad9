//! The two nodes, as objects.

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// Each in a zone of its own.
pub const NODES: [(&str, &str); 2] = [("node-a", "zone-a"), ("node-b", "zone-b")];

/// # Errors
/// When the API server refuses one.
pub async fn register(client: &Client, address: &str) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for (name, zone) in NODES {
        let room = json!({"cpu": "8", "memory": "16Gi", "ephemeral-storage": "16Gi", "pods": "110"});
        let now = jiff::Timestamp::now();
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": zone,
            }},
            "status": {
                "capacity": room,
                "allocatable": room,
                "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
                "conditions": [{
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "played by the tests",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }],
            },
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        // Admission taints every new node as not ready; what lifts that elsewhere does not run here.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        nodes.patch(name, &PatchParams::default(), &untainted).await?;
    }
    Ok(())
}
