//! What a Backup's resource policy says: which types and objects are taken besides what the spec says, and what becomes of
//! volumes. `berth_api::policy` reads it from a ConfigMap.
//!
//! - [`filters`]: which objects of a kind are taken, by namespace, name and label.
//! - [`volume`]: what is to become of a volume.

pub mod filters;
pub mod volume;

use crate::selection::Lists;
use filters::{NamespacePolicy, Rule};
use volume::VolumePolicy;

/// All that one ConfigMap says. Without anything in it nothing changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// `includeExcludePolicy`: types.
    pub types: Option<Lists>,
    /// `clusterScopedFilterPolicy`: objects of the whole cluster.
    pub cluster: Vec<Rule>,
    /// `namespacedFilterPolicies`: objects of namespaces. The first one that fits a namespace counts.
    pub namespaced: Vec<NamespacePolicy>,
    /// `volumePolicies`. The first one that fits a volume counts.
    pub volumes: Vec<VolumePolicy>,
}

impl Policies {
    /// Does it say which objects are taken? That goes with the scoped style of filter only.
    pub fn chooses(&self) -> bool {
        self.types.is_some() || !self.cluster.is_empty() || !self.namespaced.is_empty()
    }
}
