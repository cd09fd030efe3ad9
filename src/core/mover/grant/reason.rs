//! The reason why a data mover waits.

use std::fmt;
use std::sync::Arc;

/// A value until it is printed: the same one labels metrics and becomes the text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MoverWaitReason {
    /// A place is free for it, and the next plan grants it.
    Next,
    /// All places are taken. `by` has the names of the first few that hold one, shared by all that
    /// wait.
    NoPlace { places: usize, taken: usize, by: Arc<[String]> },
    /// No node-agent can run it: its node has no ready agent, or no node has one.
    NoAgent { node: Option<String> },
    /// Its pod is not scheduled to a node yet.
    NoNode,
    /// The data paths of its node are taken, and others that wait could start at once.
    NodeFull { node: String },
}

impl MoverWaitReason {
    /// All values of [`MoverWaitReason::word`].
    pub const WORDS: [&str; 5] = ["Next", "NoPlace", "NoAgent", "NoNode", "NodeFull"];
    /// How many names [`MoverWaitReason::NoPlace`] has at most.
    pub const MAX_NAMES: usize = 3;

    /// One word out of a closed set, for metric labels, Event reasons and columns.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Next => "Next",
            Self::NoPlace { .. } => "NoPlace",
            Self::NoAgent { .. } => "NoAgent",
            Self::NoNode => "NoNode",
            Self::NodeFull { .. } => "NodeFull",
        }
    }
}

impl fmt::Display for MoverWaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("nothing: it goes next"),
            Self::NoPlace { places, taken, by } => {
                if taken > places {
                    write!(f, "{taken} places are taken, {places} allowed: by {}", by.join(", "))?;
                } else {
                    write!(f, "{taken} of {places} places are taken by {}", by.join(", "))?;
                }
                match taken.saturating_sub(by.len()) {
                    0 => Ok(()),
                    others => write!(f, " and {others} more"),
                }
            }
            Self::NoAgent { node: Some(node) } => write!(f, "node {node} has no ready node-agent"),
            Self::NoAgent { node: None } => f.write_str("no node has a ready node-agent"),
            Self::NoNode => f.write_str("its pod does not wait for it on a node yet"),
            Self::NodeFull { node } => write!(f, "node {node} is full and others can go first"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_plain_words() {
        let full = |places, taken, by: &[&str]| MoverWaitReason::NoPlace {
            places,
            taken,
            by: by.iter().map(|name| (*name).to_owned()).collect(),
        };
        let node = || "n3".to_owned();
        for (reason, expected) in [
            (full(2, 2, &["du-1", "du-2"]), "2 of 2 places are taken by du-1, du-2"),
            (full(5, 5, &["a", "b", "c"]), "5 of 5 places are taken by a, b, c and 2 more"),
            (full(1, 2, &["a", "b"]), "2 places are taken, 1 allowed: by a, b"),
            (MoverWaitReason::NoAgent { node: Some(node()) }, "node n3 has no ready node-agent"),
            (MoverWaitReason::NoAgent { node: None }, "no node has a ready node-agent"),
            (MoverWaitReason::NoNode, "its pod does not wait for it on a node yet"),
            (MoverWaitReason::NodeFull { node: node() }, "node n3 is full and others can go first"),
            (MoverWaitReason::Next, "nothing: it goes next"),
        ] {
            assert_eq!(reason.to_string(), expected);
            assert!(MoverWaitReason::WORDS.contains(&reason.word()));
        }
    }
}
