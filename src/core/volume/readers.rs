//! Which program reads the files of a node's volumes: one of Velero's node-agents, or berth's. And
//! who moves the data of snapshots.
//!
//! Velero's takes every PodVolumeBackup of its node, whatever its uploader, and berth's begins
//! nothing beside one. So where both are Velero's reads.

use std::collections::{BTreeMap, BTreeSet};

use crate::pod_volume::UPLOADER;

/// The uploader of Velero's node-agents.
pub const KOPIA: &str = "kopia";

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    Velero,
    Berth,
}

impl Reader {
    /// `spec.uploaderType` of its PodVolumeBackups.
    pub fn uploader(self) -> &'static str {
        match self {
            Self::Velero => KOPIA,
            Self::Berth => UPLOADER,
        }
    }
}

/// Why nobody reads on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReader {
    /// The pod is on no node.
    Nowhere,
    /// There is no node-agent on the node.
    Nobody,
    /// Velero's is there, and does not run.
    NotRunning,
}

impl NoReader {
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
pub struct Readers {
    /// Nodes with one of Velero's, and whether it runs.
    velero: BTreeMap<String, bool>,
    /// Nodes on which one of berth's runs.
    berth: BTreeSet<String>,
}

impl Readers {
    /// Adds a pod of a node-agent of Velero's that has not ended.
    pub fn add_velero(&mut self, node: String, is_running: bool) {
        *self.velero.entry(node).or_default() |= is_running;
    }

    /// Adds a pod of one of berth's that runs.
    pub fn add_berth(&mut self, node: String) {
        self.berth.insert(node);
    }

    /// Who reads on a node.
    ///
    /// # Errors
    /// When nobody does.
    pub fn on(&self, node: &str) -> Result<Reader, NoReader> {
        match self.velero.get(node) {
            _ if node.is_empty() => Err(NoReader::Nowhere),
            Some(true) => Ok(Reader::Velero),
            Some(false) => Err(NoReader::NotRunning),
            None if self.berth.contains(node) => Ok(Reader::Berth),
            None => Err(NoReader::Nobody),
        }
    }

    /// Who moves the data of snapshots, which may happen on any node: Velero's node-agents where
    /// there is one, because its restores find that data, too. `None`: nobody, as far as is seen.
    pub fn mover(&self) -> Option<Reader> {
        match (self.velero.is_empty(), self.berth.is_empty()) {
            (false, _) => Some(Reader::Velero),
            (true, false) => Some(Reader::Berth),
            (true, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn velero_reads_where_it_has_an_agent_and_berth_where_it_has_none() {
        let mut readers = Readers::default();
        for (node, is_running) in
            [("both", true), ("velero", true), ("starting", false), ("two", false), ("two", true)]
        {
            readers.add_velero(node.to_owned(), is_running);
        }
        for node in ["both", "berth", "starting", ""] {
            readers.add_berth(node.to_owned());
        }
        for (node, reader) in [
            ("both", Ok(Reader::Velero)),
            ("velero", Ok(Reader::Velero)),
            ("two", Ok(Reader::Velero)),
            ("berth", Ok(Reader::Berth)),
            // It takes what berth's would take as soon as it runs.
            ("starting", Err(NoReader::NotRunning)),
            ("none", Err(NoReader::Nobody)),
            ("", Err(NoReader::Nowhere)),
        ] {
            assert_eq!(readers.on(node), reader, "{node}");
        }
        assert_eq!((Reader::Velero.uploader(), Reader::Berth.uploader()), ("kopia", "restic"));
        assert_eq!(readers.mover(), Some(Reader::Velero));
        let mut alone = Readers::default();
        assert_eq!(alone.mover(), None);
        alone.add_berth("berth".to_owned());
        assert_eq!(alone.mover(), Some(Reader::Berth));
        assert!(NoReader::Nobody.on("n1").contains("node n1 (`berth install --pod-volumes`"));
    }
}
