//! The pods of node-agents, by which is decided who reads files and who moves snapshots.

use berth_core::volume::node_agents::NodeAgents;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};

use super::insist::insist;
use crate::objects;
use crate::text::chain;

/// The pods of node-agents of both kinds.
///
/// # Errors
/// When they cannot be listed.
pub async fn node_agents(client: &Client, namespace: &str) -> Result<NodeAgents, String> {
    let mut agents = NodeAgents::default();
    for (node, is_running) in nodes(client, namespace, objects::STOCK_NODE_AGENTS).await? {
        agents.add_velero(node, is_running);
    }
    for (node, is_running) in nodes(client, namespace, objects::NODE_AGENTS).await? {
        if is_running {
            agents.add_berth(node);
        }
    }
    Ok(agents)
}

/// The nodes of the pods with a label that have not ended, and whether each of them runs.
async fn nodes(client: &Client, namespace: &str, labels: &str) -> Result<Vec<(String, bool)>, String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(labels);
    let found = insist(|| async { api.list(&params).await.into() }).await;
    let found = found.map_err(|error| format!("the node-agents cannot be listed: {}", chain(&error)))?;
    let node = |pod: Pod| {
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let is_running = phase == "Running" && pod.metadata.deletion_timestamp.is_none();
        let has_ended = matches!(phase.as_str(), "Succeeded" | "Failed");
        Some((pod.spec?.node_name?, is_running)).filter(|_| !has_ended)
    };
    Ok(found.items.into_iter().filter_map(node).collect())
}
