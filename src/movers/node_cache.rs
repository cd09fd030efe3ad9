//! The nodes, node-agents, StorageClasses and configuration that decide where data movers can run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_api::node_agent::ReclaimPolicy;
use berth_core::affinity::{Effect, Node, Nodes, Taint, VolumeBindingMode};
use berth_core::mover::grant;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::watch;

use super::configuration::ConfigurationState;
use crate::cache::SharedCache;
use crate::objects::{NODE_AGENTS, STOCK_NODE_AGENTS};
use crate::watch::{WatchEvent, of_namespace, reflect};

/// Name of its container in Velero's installer and chart.
const CONTAINER: &str = "node-agent";

/// A pod of a node-agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAgentPod {
    pub pod: String,
    pub node: String,
    pub ready: bool,
    /// When its container started.
    pub started_at: Option<Timestamp>,
}

/// The current state.
#[derive(Default)]
pub struct NodeCacheState {
    pub nodes: Nodes,
    /// By name of the pod.
    pub agents: HashMap<String, NodeAgentPod>,
    /// By node: since when it has no ready agent.
    pub away: HashMap<String, Timestamp>,
    pub classes: BTreeMap<String, StorageClassState>,
    pub configuration: ConfigurationState,
    /// Names of the pods of berth's own node agents. `None` until they have been listed.
    own_agents: Option<BTreeSet<String>>,
    synced: SyncedKinds,
}

/// A StorageClass.
#[derive(Clone, Debug)]
pub struct StorageClassState {
    pub provisioner: String,
    pub binding: VolumeBindingMode,
    pub reclaim: ReclaimPolicy,
}

#[derive(Clone, Copy, Default)]
struct SyncedKinds {
    nodes: bool,
    agents: bool,
    classes: bool,
    configuration: bool,
}

impl NodeCacheState {
    /// Did a node-agent start before its configuration was last changed? Agents read the
    /// configuration only once.
    pub fn agents_outdated(&self) -> bool {
        self.outdated().next().is_some()
    }

    /// The node-agents that did.
    pub fn outdated(&self) -> impl Iterator<Item = &NodeAgentPod> {
        let changed = self.configuration.changed_at;
        self.agents.values().filter(move |agent| {
            agent.started_at.zip(changed).is_some_and(|(started, changed)| started < changed)
        })
    }

    /// `loadConcurrency`, in the form that grants need.
    pub fn limits(&self) -> grant::Limits {
        let config = &self.configuration.config;
        grant::Limits {
            limit: config.prepare_queue_length,
            global: config.global_config.max(1),
            per_node: config.per_node.clone(),
        }
    }

    /// The agents by node, in the form that grants need, and the labels of those nodes.
    pub fn carriers(
        &self,
    ) -> (HashMap<String, grant::NodeAgentState>, HashMap<String, BTreeMap<String, String>>) {
        let mut agents: HashMap<String, grant::NodeAgentState> = HashMap::new();
        for agent in self.agents.values() {
            let known = agents.entry(agent.node.clone()).or_default();
            known.ready |= agent.ready;
            known.started_at = known.started_at.max(agent.started_at);
        }
        for (node, since) in &self.away {
            agents.entry(node.clone()).or_default().not_ready_since = Some(*since);
        }
        let labels =
            agents.keys().filter_map(|node| Some((node.clone(), self.nodes.get(node)?.labels.clone())));
        let labels = labels.collect();
        (agents, labels)
    }

    /// Have the StorageClasses been listed?
    pub fn has_classes(&self) -> bool {
        self.synced.classes
    }

    pub fn reclaim_policies(&self) -> BTreeMap<String, ReclaimPolicy> {
        self.classes.iter().map(|(name, class)| (name.clone(), class.reclaim)).collect()
    }

    /// Is there a node-agent? `None`: they have not been listed yet.
    pub fn has_agents(&self) -> Option<bool> {
        self.synced.agents.then_some(!self.agents.is_empty())
    }

    /// The same of berth's own.
    pub fn has_own_agents(&self) -> Option<bool> {
        self.own_agents.as_ref().map(|agents| !agents.is_empty())
    }

    /// The StorageClasses, with their provisioners. `None`: they have not been listed yet.
    pub fn provisioners(&self) -> Option<Vec<(&str, &str)>> {
        let all = || self.classes.iter().map(|(name, class)| (name.as_str(), class.provisioner.as_str()));
        self.synced.classes.then(|| all().collect())
    }

    /// Replaces all nodes.
    pub(super) fn put_nodes(&mut self, all: Vec<Node>) {
        self.nodes = Nodes::default();
        all.into_iter().for_each(|node| self.nodes.put(node));
        let agents: Vec<String> = self.agents.values().map(|agent| agent.node.clone()).collect();
        agents.iter().for_each(|node| self.settle(node));
    }

    /// Replaces all agents.
    pub(super) fn put_agents(&mut self, all: impl IntoIterator<Item = NodeAgentPod>) {
        let known: Vec<String> = self.agents.keys().cloned().collect();
        known.iter().for_each(|pod| self.remove_agent(pod));
        all.into_iter().for_each(|agent| self.put_agent(agent));
    }

    fn put_agent(&mut self, agent: NodeAgentPod) {
        let before = self.agents.insert(agent.pod.clone(), agent.clone());
        for node in before.map(|before| before.node).into_iter().chain([agent.node]) {
            self.settle(&node);
        }
    }

    fn remove_agent(&mut self, pod: &str) {
        if let Some(agent) = self.agents.remove(pod) {
            self.settle(&agent.node);
        }
    }

    /// Records whether the node has a ready agent now, and if not, since when.
    fn settle(&mut self, node: &str) {
        let ready = self.agents.values().any(|agent| agent.node == node && agent.ready);
        self.nodes.put_agent(node, ready);
        if ready {
            self.away.remove(node);
        } else {
            self.away.entry(node.to_owned()).or_insert_with(Timestamp::now);
        }
    }
}

/// Filled by [`NodeCache::follow`], shared by all readers. It needs no [`crate::cache::Cache`],
/// because berth never writes these objects, the nodes are an index of core, and the state of a
/// node depends on all agents on it.
#[derive(Default)]
pub struct NodeCache {
    state: SharedCache<NodeCacheState>,
}

impl NodeCache {
    pub fn read<T>(&self, look: impl FnOnce(&NodeCacheState) -> T) -> T {
        look(&self.state.read())
    }

    pub fn is_synced(&self) -> bool {
        let SyncedKinds { nodes, agents, classes, configuration } = self.state.read().synced;
        nodes && agents && classes && configuration
    }

    /// Notifies of every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.state.changed()
    }

    pub(crate) fn configure(&self, configuration: ConfigurationState) {
        self.state.write(|state| {
            state.configuration = configuration;
            state.synced.configuration = true;
        });
    }

    /// Watches everything except the configuration, which `configuration_watch` follows. Never
    /// returns.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let everything = watcher::Config::default;
        let nodes = reflect(Api::all(client.clone()), everything(), node, |event| {
            self.state.write(|state| {
                match event {
                    WatchEvent::Replaced(all) => {
                        state.put_nodes(all);
                        state.synced.nodes = true;
                    }
                    WatchEvent::Applied(node) => state.nodes.put(node),
                    WatchEvent::Deleted(name) => state.nodes.remove(&name),
                };
            });
        });
        let stock = everything().labels(STOCK_NODE_AGENTS);
        let agents = reflect(of_namespace(client, namespace), stock, agent, |event| {
            self.state.write(|state| match event {
                WatchEvent::Replaced(all) => {
                    state.put_agents(all.into_iter().flatten());
                    state.synced.agents = true;
                }
                WatchEvent::Applied(Some(agent)) => state.put_agent(agent),
                WatchEvent::Applied(None) => {}
                WatchEvent::Deleted(pod) => state.remove_agent(&pod),
            });
        });
        let classes = reflect(Api::all(client.clone()), everything(), class, |event| {
            self.state.write(|state| {
                state.synced.classes |= matches!(event, WatchEvent::Replaced(_));
                event.apply_to(&mut state.classes);
            });
        });
        let own = everything().labels(NODE_AGENTS);
        let own = reflect(
            of_namespace(client, namespace),
            own,
            |pod: Pod| pod.name_any(),
            |event| {
                self.state.write(|state| {
                    let known = state.own_agents.get_or_insert_default();
                    match event {
                        WatchEvent::Replaced(all) => *known = all.into_iter().collect(),
                        WatchEvent::Applied(name) => drop(known.insert(name)),
                        WatchEvent::Deleted(name) => drop(known.remove(&name)),
                    }
                });
            },
        );
        tokio::join!(nodes, agents, classes, own);
    }
}

pub(super) fn node(node: NodeObject) -> Node {
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let taint = |taint: k8s_openapi::api::core::v1::Taint| {
        let effect = Effect::parse(&taint.effect)?;
        Some(Taint { key: taint.key, value: taint.value.unwrap_or_default(), effect })
    };
    Node {
        name: node.metadata.name.unwrap_or_default(),
        labels: node.metadata.labels.unwrap_or_default(),
        taints: taints.into_iter().filter_map(taint).collect(),
    }
}

/// `None`: the pod is not on a node yet.
pub(super) fn agent(pod: Pod) -> Option<NodeAgentPod> {
    let name = pod.name_any();
    let node = pod.spec.and_then(|spec| spec.node_name)?;
    let status = pod.status.unwrap_or_default();
    let condition = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
    let going = pod.metadata.deletion_timestamp.is_some();
    let containers = status.container_statuses.unwrap_or_default();
    // Other containers of the pod may come and go.
    let own = containers.iter().find(|container| container.name == CONTAINER);
    let ready = own.map_or(condition.is_some_and(|condition| condition.status == "True"), |own| own.ready);
    let started = containers
        .iter()
        .filter(|container| own.is_none_or(|own| own.name == container.name))
        .filter_map(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    Some(NodeAgentPod {
        pod: name,
        node,
        ready: !going && ready,
        // Without container statuses: when the pod began.
        started_at: started.map(|time| time.0).max().or(status.start_time.map(|time| time.0)),
    })
}

pub(super) fn class(class: StorageClass) -> (String, StorageClassState) {
    let binding = match class.volume_binding_mode.as_deref() {
        Some("WaitForFirstConsumer") => VolumeBindingMode::WaitForFirstConsumer,
        _ => VolumeBindingMode::Immediate,
    };
    let reclaim = match class.reclaim_policy.as_deref() {
        Some("Retain") => ReclaimPolicy::Retain,
        _ => ReclaimPolicy::Delete,
    };
    (
        class.metadata.name.unwrap_or_default(),
        StorageClassState { provisioner: class.provisioner, binding, reclaim },
    )
}
