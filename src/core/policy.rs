//! The contents of a Backup's resource policy: types and objects to take in addition to the spec's
//! filters, and actions for volumes. `berth_api::policy` reads it from a ConfigMap.
//!
//! - [`filters`]: which objects of a kind are taken, by namespace, name and label.
//! - [`volume`]: the action for a volume.

pub mod filters;
pub mod volume;

use crate::selection::Lists;
use filters::{NamespacePolicy, ResourceFilterRule};
use volume::VolumePolicy;

/// The contents of one ConfigMap. An empty policy changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// `includeExcludePolicy`: resource types.
    pub types: Option<Lists>,
    /// `clusterScopedFilterPolicy`: cluster-scoped objects.
    pub cluster: Vec<ResourceFilterRule>,
    /// `namespacedFilterPolicies`: objects in namespaces. The first policy that matches a namespace
    /// applies.
    pub namespaced: Vec<NamespacePolicy>,
    /// `volumePolicies`. The first policy that matches a volume applies.
    pub volumes: Vec<VolumePolicy>,
}

impl Policies {
    /// Does the policy select objects? Such a policy is valid with scoped filters only.
    pub fn chooses(&self) -> bool {
        self.types.is_some() || !self.cluster.is_empty() || !self.namespaced.is_empty()
    }
}
