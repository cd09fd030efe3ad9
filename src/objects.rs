//! Names and labels of objects that several parts use, most of them berth's own.

use std::collections::BTreeMap;

/// Label of every installed object, with the value [`PART_OF_BERTH`].
pub const PART_OF: &str = "app.kubernetes.io/part-of";
pub const PART_OF_BERTH: &str = "berth";
/// Label of the pods of berth's node agents.
pub const NODE_AGENTS: &str = "app.kubernetes.io/name=berth-node-agent";
/// Selects the pods of Velero's node-agents. berth's have Velero's label, too, because a Velero
/// that restores files looks for a pod with it on the node.
pub const STOCK_NODE_AGENTS: &str = "role=node-agent,app.kubernetes.io/name!=berth-node-agent";
/// The label of the pods of node-agents, Velero's and berth's.
pub const NODE_AGENT_ROLE: (&str, &str) = ("role", "node-agent");
/// ConfigMap with the grants that are decided, but not seen on their objects yet.
pub const LEDGER: &str = "berth-mover-grants";

/// Are these the labels of the pods of Velero's node-agents, as [`STOCK_NODE_AGENTS`] selects them?
pub fn is_stock_node_agent(labels: &BTreeMap<String, String>) -> bool {
    STOCK_NODE_AGENTS.split(',').all(|term| match term.split_once("!=") {
        Some((key, other)) => labels.get(key).is_none_or(|value| value != other),
        None => {
            term.split_once('=').is_some_and(|(key, value)| labels.get(key).is_some_and(|is| is == value))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn berths_node_agents_are_none_of_veleros() {
        let berths = NODE_AGENTS.split_once('=').unwrap();
        for (labels, is_stock) in [
            (vec![("name", "node-agent"), ("role", "node-agent")], true),
            (vec![("role", "node-agent"), ("app.kubernetes.io/name", "velero")], true),
            (vec![("role", "node-agent"), berths], false),
            (vec![berths], false),
            (vec![("role", "web")], false),
            (Vec::new(), false),
        ] {
            let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(is_stock_node_agent(&labels), is_stock, "{labels:?}");
        }
    }
}
