//! Messages for people about the nodes on which a mover can run.

use std::fmt;

use super::term::Expression;
use super::toleration::Taint;

/// Which rules apply to a mover, or why none do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityReason {
    /// The rules of its StorageClass.
    ClassRules { class: String, rules: usize },
    /// The rules without a StorageClass apply, because its own class has none.
    GlobalRules { rules: usize },
    /// No rule applies to it.
    NoRules,
    /// The pod that uses the restored volume decides about the node, and has.
    NodeSelected { node: String },
    /// The pod that uses the restored volume decides about the node, and has not yet.
    WaitsForConsumer { class: String },
    /// The mover runs on the node of the pod whose volume it moves.
    NodeGiven { node: String },
}

impl AffinityReason {
    /// All values of [`AffinityReason::word`].
    pub const WORDS: [&str; 6] =
        ["ClassRules", "GlobalRules", "NoRules", "NodeSelected", "WaitsForConsumer", "NodeGiven"];

    /// One word out of a closed set, for metric labels and Event reasons.
    pub fn word(&self) -> &'static str {
        match self {
            Self::ClassRules { .. } => "ClassRules",
            Self::GlobalRules { .. } => "GlobalRules",
            Self::NoRules => "NoRules",
            Self::NodeSelected { .. } => "NodeSelected",
            Self::WaitsForConsumer { .. } => "WaitsForConsumer",
            Self::NodeGiven { .. } => "NodeGiven",
        }
    }
}

impl fmt::Display for AffinityReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClassRules { class, rules: 1 } => write!(f, "the rule of StorageClass {class}"),
            Self::ClassRules { class, rules } => {
                write!(f, "any of the {rules} rules of StorageClass {class}")
            }
            Self::GlobalRules { rules: 1 } => f.write_str("the rule for all StorageClasses"),
            Self::GlobalRules { rules } => write!(f, "any of the {rules} rules for all StorageClasses"),
            Self::NoRules => f.write_str("no rule applies: any node"),
            Self::NodeSelected { node } => {
                write!(f, "no rules: the volume's consumer is to run on node {node}, and so is the mover")
            }
            Self::WaitsForConsumer { class } => write!(
                f,
                "no rules: StorageClass {class} waits for the volume's consumer, whose node it is \
                 (restorePVC.ignoreDelayBinding would change that)"
            ),
            Self::NodeGiven { node } => {
                write!(f, "no rules: the pod whose volume it is for runs on node {node}")
            }
        }
    }
}

/// A requirement that a node does not satisfy, with the value that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    pub expression: Expression,
    /// The node's value of the key; `None` if it has none.
    pub has: Option<String>,
}

/// The node that fails the fewest requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NearMiss {
    pub node: String,
    pub lacking: Vec<Lacking>,
}

/// Some nodes by name, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSample {
    pub names: Vec<String>,
    pub count: usize,
}

/// A problem that deserves a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinityFinding {
    /// No node matches: the mover stays Pending until its time-out.
    NoNode { nearest: Option<NearMiss> },
    /// Nodes match, but none of them has a node-agent: a mover there is never picked up.
    NoAgent { nodes: NodeSample },
    /// Every matching node has a taint that the mover does not tolerate.
    NotTolerated { node: String, taint: Taint },
    /// An alternative was omitted, because none of its nodes has a node-agent, while a node of
    /// another alternative has one.
    LeftOut { alternative: Vec<Expression>, nodes: NodeSample },
    /// The mover's node is not one that the rules allow, and the rules do not apply to it.
    NodeOutsideRules { node: String },
    /// Velero's choice, by this or an older configuration, cannot be distinguished from the
    /// topology of the volume, because that is not known.
    ChoiceKept,
    /// Velero 1.18.1 requires Windows and another system at the same time, after it created movers
    /// for both.
    TwoSystems,
}

impl AffinityFinding {
    /// All values of [`AffinityFinding::word`].
    pub const WORDS: [&str; 7] =
        ["NoNode", "NoAgent", "NotTolerated", "LeftOut", "NodeOutsideRules", "ChoiceKept", "TwoSystems"];

    /// One word out of a closed set, for metric labels and Event reasons.
    pub fn word(&self) -> &'static str {
        match self {
            Self::NoNode { .. } => "NoNode",
            Self::NoAgent { .. } => "NoAgent",
            Self::NotTolerated { .. } => "NotTolerated",
            Self::LeftOut { .. } => "LeftOut",
            Self::NodeOutsideRules { .. } => "NodeOutsideRules",
            Self::ChoiceKept => "ChoiceKept",
            Self::TwoSystems => "TwoSystems",
        }
    }
}

impl fmt::Display for NodeSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.count.saturating_sub(self.names.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for NearMiss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.lacking.iter().map(|lacking| lacking.expression.to_string());
        let has = self.lacking.iter().map(|Lacking { expression, has }| match has {
            Some(value) => format!("{}={value}", expression.key()),
            None => format!("no {}", expression.key()),
        });
        let (wanted, has): (Vec<_>, Vec<_>) = (wanted.collect(), has.collect());
        write!(f, "{}; nearest: {} has {}", wanted.join(" and "), self.node, has.join(", "))
    }
}

impl fmt::Display for AffinityFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode { nearest: Some(nearest) } => write!(f, "no node matches {nearest}"),
            Self::NoNode { nearest: None } => f.write_str("no node matches"),
            Self::NoAgent { nodes } => {
                write!(f, "no node-agent runs on a node that matches: {nodes}")
            }
            Self::NotTolerated { node, taint } => write!(
                f,
                "every node that matches has a taint that the mover does not tolerate: {node} has {taint} \
                 (loadTolerations adds tolerations)"
            ),
            Self::LeftOut { alternative, nodes } => {
                let parts: Vec<String> = alternative.iter().map(ToString::to_string).collect();
                let alternative = parts.join(" and ");
                write!(f, "left out: {alternative}, because no node-agent runs on {nodes}")
            }
            Self::NodeOutsideRules { node } => {
                write!(f, "the rules of loadAffinity exclude node {node}, but do not count here")
            }
            Self::ChoiceKept => f.write_str(
                "the topology of the volume is not known, so everything is kept that may be it: a rule that Velero \
                 chose may go on counting",
            ),
            Self::TwoSystems => f.write_str(
                "Velero asks for Windows and for another system at once, so no node matches: restart the \
                 node-agents",
            ),
        }
    }
}
