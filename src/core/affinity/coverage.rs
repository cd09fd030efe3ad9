//! Coverage: the nodes on which movers of one StorageClass and one operation could run, before
//! there is such a mover.

use super::nodes::{Node, Nodes, Questions};
use super::placement;
use super::reason::{AffinityFinding, AffinityReason};
use super::term::{Expression, NodeSelectorOperator, Term};
use super::toleration::{Effect, Toleration, TolerationRule};
use super::{AffinityInput, LoadAffinityRule, MoverOperation, decide};

/// Keys of the node-agent's tolerations that Velero copies to a mover (source: Velero 1.18,
/// `pkg/util/third_party.go`).
const HANDED_ON: [&str; 2] = ["kubernetes.azure.com/scalesetpriority", "CriticalAddonsOnly"];

/// The operating system of a mover's pod: that of the nodes on which the volume was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Linux,
    Windows,
}

impl System {
    pub const ALL: [Self; 2] = [Self::Linux, Self::Windows];

    /// The value of `kubernetes.io/os`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Windows => "windows",
        }
    }

    /// The requirement that Velero writes into every term.
    fn expression(self) -> Expression {
        let operator =
            if self == Self::Windows { NodeSelectorOperator::In } else { NodeSelectorOperator::NotIn };
        Expression::new("kubernetes.io/os", operator, ["windows"])
    }

    /// Tolerations of a mover pod before any rule adds some. `agents`: the tolerations of the
    /// node-agent.
    fn tolerations(self, agents: &[Toleration]) -> Vec<Toleration> {
        let handed_on = agents.iter().filter(|toleration| HANDED_ON.contains(&toleration.key.as_str()));
        let windows = [Effect::NoSchedule, Effect::NoExecute].map(|effect| Toleration {
            key: "os".to_owned(),
            value: Some("windows".to_owned()),
            effect: Some(effect),
            seconds: None,
        });
        let added = windows.into_iter().filter(|_| self == Self::Windows);
        handed_on.cloned().chain(added).collect()
    }

    /// Does a node with this operating system have a node-agent?
    pub fn is_served(self, nodes: &Nodes) -> bool {
        let term = Term { expressions: vec![self.expression()], fields: Vec::new() };
        nodes.iter().any(|node| term.matches(&node.name, &node.labels) && nodes.has_agent(&node.name))
    }
}

/// The cluster's state on which coverage depends besides the volume.
#[derive(Clone, Copy, Debug)]
pub struct CoverageInput<'a> {
    pub rules: &'a [LoadAffinityRule],
    pub toleration_rules: &'a [TolerationRule],
    /// Tolerations of the node-agent's own pods.
    pub agent_tolerations: &'a [Toleration],
    pub nodes: &'a Nodes,
}

/// The nodes on which such movers could run, and the reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coverage {
    /// Names in order. Each node has a ready node-agent, and no taint keeps a mover away. The
    /// topology of a single volume may leave fewer of them.
    pub nodes: Vec<String>,
    pub reason: AffinityReason,
    pub findings: Vec<AffinityFinding>,
}

/// Coverage for a pod as Velero creates it for that operation.
pub fn cover(operation: MoverOperation<'_>, system: System, cluster: &CoverageInput<'_>) -> Coverage {
    let terms = [Term { expressions: vec![system.expression()], fields: Vec::new() }];
    let mut tolerations = system.tolerations(cluster.agent_tolerations);
    let nodes = cluster.nodes;
    let decision = decide(&AffinityInput {
        operation,
        rules: cluster.rules,
        toleration_rules: cluster.toleration_rules,
        terms: &terms,
        tolerations: &tolerations,
        agents_outdated: false,
        nodes: Some(nodes),
    });
    tolerations.extend(decision.tolerations);
    let mut findings = decision.findings;
    if matches!(decision.reason, AffinityReason::WaitsForConsumer { .. }) {
        // The node is not known yet, but there must be one.
        findings.extend(placement::judge(&terms, &tolerations, &mut Questions::new(nodes)));
    }
    let terms = decision.terms.as_deref().unwrap_or(&terms);
    let is_open = |node: &&Node| {
        nodes.has_agent(&node.name)
            && terms.iter().any(|term| term.matches(&node.name, &node.labels))
            && placement::untolerated(node, &tolerations).is_none()
    };
    let mut open: Vec<String> = nodes.iter().filter(is_open).map(|node| node.name.clone()).collect();
    open.sort_unstable();
    Coverage { nodes: open, reason: decision.reason, findings }
}
