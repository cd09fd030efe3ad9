//! Which program reads the files of a node's volumes: one of Velero's node-agents, or berth's. And
//! who moves the data of snapshots.
//!
//! Velero's takes every PodVolumeBackup of its node, whatever its uploader, and berth's begins
//! nothing beside one. So where both are Velero's reads.

use std::collections::{BTreeMap, BTreeSet};

use crate::pod_volume::UPLOADER;

/// The uploader of Velero's node-agents.
pub const KOPIA: &str = "kopia";

/// Whose node-agent reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAgent {
    Velero,
    Berth,
}

impl NodeAgent {
    /// `spec.uploaderType` of its PodVolumeBackups.
    pub fn uploader(self) -> &'static str {
        match self {
            Self::Velero => KOPIA,
            Self::Berth => UPLOADER,
        }
    }
}

/// Why no node-agent reads on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoNodeAgent {
    /// The pod is on no node.
    Nowhere,
    /// There is no node-agent on the node.
    Nobody,
    /// Velero's is there, and does not run.
    NotRunning,
}

impl NoNodeAgent {
    /// In words, with the way out.
    pub fn on(self, node: &str) -> String {
        match self {
            Self::Nowhere => "its pod is on no node".to_owned(),
            Self::Nobody => format!(
                "no node-agent runs on node {node} (`berth install --pod-volumes` brings berth's, `velero install --use-node-agent` Velero's)"
            ),
            Self::NotRunning => format!("Velero's node-agent on node {node} does not run"),
        }
    }
}

/// The node-agents that were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAgents {
    /// Nodes with one of Velero's, and whether it runs.
    velero: BTreeMap<String, bool>,
    /// Nodes on which one of berth's runs.
    berth: BTreeSet<String>,
}

impl NodeAgents {
    /// Adds a pod of a node-agent of Velero's that has not ended.
    pub fn add_velero(&mut self, node: String, is_running: bool) {
        *self.velero.entry(node).or_default() |= is_running;
    }

    /// Adds a pod of one of berth's that runs.
    pub fn add_berth(&mut self, node: String) {
        self.berth.insert(node);
    }

    /// Whose node-agent reads on a node.
    ///
    /// # Errors
    /// When none does.
    pub fn on(&self, node: &str) -> Result<NodeAgent, NoNodeAgent> {
        match self.velero.get(node) {
            _ if node.is_empty() => Err(NoNodeAgent::Nowhere),
            Some(true) => Ok(NodeAgent::Velero),
            Some(false) => Err(NoNodeAgent::NotRunning),
            None if self.berth.contains(node) => Ok(NodeAgent::Berth),
            None => Err(NoNodeAgent::Nobody),
        }
    }

    /// Who moves the data of snapshots, which may happen on any node: Velero's node-agents where
    /// there is one, because its restores find that data, too. `None`: nobody, as far as is seen.
    pub fn mover(&self) -> Option<NodeAgent> {
        match (self.velero.is_empty(), self.berth.is_empty()) {
            (false, _) => Some(NodeAgent::Velero),
            (true, false) => Some(NodeAgent::Berth),
            (true, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn velero_reads_where_it_has_an_agent_and_berth_where_it_has_none() {
        let mut agents = NodeAgents::default();
        for (node, is_running) in
            [("both", true), ("velero", true), ("starting", false), ("two", false), ("two", true)]
        {
            agents.add_velero(node.to_owned(), is_running);
        }
        for node in ["both", "berth", "starting", ""] {
            agents.add_berth(node.to_owned());
        }
        for (node, agent) in [
            ("both", Ok(NodeAgent::Velero)),
            ("velero", Ok(NodeAgent::Velero)),
            ("two", Ok(NodeAgent::Velero)),
            ("berth", Ok(NodeAgent::Berth)),
            // It takes what berth's would take as soon as it runs.
            ("starting", Err(NoNodeAgent::NotRunning)),
            ("none", Err(NoNodeAgent::Nobody)),
            ("", Err(NoNodeAgent::Nowhere)),
        ] {
            assert_eq!(agents.on(node), agent, "{node}");
        }
        assert_eq!((NodeAgent::Velero.uploader(), NodeAgent::Berth.uploader()), ("kopia", "restic"));
        assert_eq!(agents.mover(), Some(NodeAgent::Velero));
        let mut alone = NodeAgents::default();
        assert_eq!(alone.mover(), None);
        alone.add_berth("berth".to_owned());
        assert_eq!(alone.mover(), Some(NodeAgent::Berth));
        assert!(NoNodeAgent::Nobody.on("n1").contains("node n1 (`berth install --pod-volumes`"));
    }
}
