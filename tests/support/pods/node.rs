//! The nodes, as objects.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node as Object;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

/// A node to play.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

impl Node {
    pub fn new(name: &str, zone: &str) -> Self {
        let labels = [
            ("kubernetes.io/hostname", name),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("topology.kubernetes.io/zone", zone),
        ];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Self { name: name.to_owned(), labels: BTreeMap::from(labels) }
    }

    #[must_use]
    pub fn with_label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// What a cluster has unless a test asks for others: `node-a` and `node-b`, each in a zone of its
/// own.
pub fn two() -> Vec<Node> {
    vec![Node::new("node-a", "zone-a"), Node::new("node-b", "zone-b")]
}

/// `node-1` and so on, in the zones `zone-a`, `zone-b` and `zone-c` by turns.
pub fn many(count: usize) -> Vec<Node> {
    let zones = ["zone-a", "zone-b", "zone-c"].into_iter().cycle();
    (1..=count).zip(zones).map(|(number, zone)| Node::new(&format!("node-{number}"), zone)).collect()
}

/// # Errors
/// When the API server refuses one.
pub async fn register(client: &Client, played: &[Node], address: &str) -> anyhow::Result<()> {
    let nodes: Api<Object> = Api::all(client.clone());
    for Node { name, labels } in played {
        let room = json!({"cpu": "8", "memory": "16Gi", "ephemeral-storage": "16Gi", "pods": "110"});
        let now = jiff::Timestamp::now();
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
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
        // Admission taints every new node as not ready; what lifts that elsewhere does not run
        // here.
        let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
        nodes.patch(name, &PatchParams::default(), &untainted).await?;
    }
    Ok(())
}
