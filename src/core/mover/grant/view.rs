//! The immutable state on which one plan is made.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::label::Selector;
use crate::mover::MoverKind;

/// `status.phase` of all four kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MoverPhase {
    /// Empty or `New`.
    #[default]
    New,
    Accepted,
    Prepared,
    InProgress,
    Canceling,
    Canceled,
    Completed,
    Failed,
    /// A phase that berth does not know: neither counted nor granted.
    Unknown,
}

impl MoverPhase {
    /// Parses the value of `status.phase`; an absent one is the empty text.
    pub fn parse(text: &str) -> Self {
        match text {
            "" | "New" => Self::New,
            "Accepted" => Self::Accepted,
            "Prepared" => Self::Prepared,
            "InProgress" => Self::InProgress,
            "Canceling" => Self::Canceling,
            "Canceled" => Self::Canceled,
            "Completed" => Self::Completed,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }

    /// The value of `status.phase`; `New` for the empty one.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Accepted => "Accepted",
            Self::Prepared => "Prepared",
            Self::InProgress => "InProgress",
            Self::Canceling => "Canceling",
            Self::Canceled => "Canceled",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// Does a data mover in this phase take one of the places?
    pub fn holds_place(self) -> bool {
        matches!(self, Self::Accepted | Self::Prepared)
    }

    /// Does it take one of the data paths of its node now, or will it shortly?
    fn loads_node(self) -> bool {
        matches!(self, Self::Accepted | Self::Prepared | Self::InProgress | Self::Canceling)
    }

    /// Is this the last phase of the data mover?
    pub fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::Completed | Self::Failed)
    }
}

/// The pod that moves the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoverPod {
    /// Name of the node to which the scheduler assigned it.
    pub node: Option<String>,
    /// When the scheduler assigned it, in whole seconds.
    pub placed_at: Option<Timestamp>,
    pub running: bool,
}

/// One data mover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mover {
    pub kind: MoverKind,
    /// Unique within its kind.
    pub name: String,
    pub uid: String,
    pub phase: MoverPhase,
    /// `metadata.creationTimestamp`, whole seconds.
    pub created_at: Timestamp,
    /// The object carries a grant (`berth.dev/granted`). Means nothing once the data mover is past
    /// New, because grants are not removed then.
    pub granted: bool,
    /// `spec.cancel` is set, or the object is being deleted.
    pub canceled: bool,
    /// Handled by another vendor's data mover: never counted, never granted, never refused.
    pub third_party: bool,
    /// Carried by berth itself: it waits for a place as the others do, and for no node-agent.
    pub own: bool,
    /// The only node whose agent can run it: `spec.node` of a PodVolumeBackup, the node of the pod
    /// of a PodVolumeRestore.
    pub bound_node: Option<String>,
    /// `status.acceptedByNode`. The bound kinds do not have this field, because they are accepted
    /// on the node to which they are bound.
    pub accepted_by: Option<String>,
    /// `status.acceptedTimestamp`, whole seconds.
    pub accepted_at: Option<Timestamp>,
    /// `status.node`.
    pub running_on: Option<String>,
    /// How often it was reset to New (`berth.dev/begun-anew`).
    pub resets: u32,
    pub mover_pod: Option<MoverPod>,
}

impl Mover {
    /// A data mover that has just been created.
    pub fn new(
        kind: MoverKind,
        name: impl Into<String>,
        uid: impl Into<String>,
        created_at: Timestamp,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            uid: uid.into(),
            phase: MoverPhase::New,
            created_at,
            granted: false,
            canceled: false,
            third_party: false,
            own: false,
            bound_node: None,
            accepted_by: None,
            accepted_at: None,
            running_on: None,
            resets: 0,
            mover_pod: None,
        }
    }

    /// The node on which it takes a data path, as far as that is known.
    pub fn node(&self) -> Option<&str> {
        let on_pod = || self.mover_pod.as_ref().and_then(|pod| pod.node.as_deref());
        self.bound_node.as_deref().or(self.running_on.as_deref()).or_else(on_pod)
    }

    /// The nodes whose agents handle it.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let pod = self.mover_pod.as_ref().and_then(|pod| pod.node.as_deref());
        let nodes = [&self.bound_node, &self.accepted_by, &self.running_on];
        nodes.into_iter().filter_map(|node| node.as_deref()).chain(pod).collect()
    }

    pub(super) fn loads_node(&self) -> bool {
        self.phase.loads_node() || (self.phase == MoverPhase::New && self.granted)
    }

    /// The sort key: the older goes first, then by kind, then by name, so that the order is total.
    pub fn queue_key(&self) -> (Timestamp, MoverKind, &str) {
        (self.created_at, self.kind, &self.name)
    }
}

/// The state of the node-agent of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAgentState {
    pub ready: bool,
    /// When its container started, by the clock of the node that also sets `acceptedTimestamp`.
    pub started_at: Option<Timestamp>,
    /// Since when it is not ready or is gone. `None`: the time is not known.
    pub not_ready_since: Option<Timestamp>,
}

/// The limits of `loadConcurrency` in the node-agents' configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `prepareQueueLength`, at least 1: the number of places. `None`: no limit.
    pub limit: Option<usize>,
    /// `globalConfig`, at least 1: the number of data paths of a node.
    pub global: u32,
    /// `perNodeConfig`: of all entries whose selector matches, the smallest positive number counts.
    pub per_node: Vec<(Selector, u32)>,
}

impl Limits {
    /// The number of data paths of a node with these labels.
    pub fn data_paths(&self, labels: &BTreeMap<String, String>) -> u32 {
        let matching =
            self.per_node.iter().filter(|(selector, number)| *number > 0 && selector.matches(labels));
        matching.map(|(_, number)| *number).min().unwrap_or(self.global.max(1))
    }
}

/// An agent that is away for longer is not merely restarting: one that is rolled out or restarts is
/// back sooner, because its image is on the node. Stock Velero waits for thirty minutes or for
/// hours, and the place stays taken all that time.
pub const OUT_AFTER: SignedDuration = SignedDuration::from_secs(25);

/// A data mover that cannot be reset to New is failed only after this time, because its agent may
/// come back with another image to pull.
pub const GIVEN_UP_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// How long a node may be without a ready agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAgentTimeouts {
    /// Until the data movers of that agent are recovered: [`OUT_AFTER`] unless set otherwise.
    pub out_after: SignedDuration,
    /// Until a data mover that cannot be reset to New is failed: [`GIVEN_UP_AFTER`] unless set
    /// otherwise.
    pub given_up_after: SignedDuration,
}

impl Default for NodeAgentTimeouts {
    fn default() -> Self {
        Self { out_after: OUT_AFTER, given_up_after: GIVEN_UP_AFTER }
    }
}

/// All state on which one plan depends.
#[derive(Clone, Debug, Default)]
pub struct GrantView {
    /// In any order; finished ones may be missing. Must be listed after the ledger was read: see
    /// [`super`]. Behind `Arc`, so that building a view copies none.
    pub movers: Vec<Arc<Mover>>,
    /// By node. Keep an agent that is gone, with the time of its disappearance.
    pub agents: HashMap<String, NodeAgentState>,
    pub node_labels: HashMap<String, BTreeMap<String, String>>,
    pub limits: Limits,
    /// UIDs in the ledger as it was last read or written. `None`: there is no ledger, or it is not
    /// in force.
    pub ledger: Option<BTreeSet<String>>,
    /// Since when agents are watched. An agent that was away before that counts as away since then.
    pub watching_since: Timestamp,
    pub patience: NodeAgentTimeouts,
}

impl GrantView {
    /// Has this node a ready agent?
    pub fn has_ready_agent(&self, node: &str) -> bool {
        self.agents.get(node).is_some_and(|agent| agent.ready)
    }

    pub(super) fn some_agent_is_ready(&self) -> bool {
        self.agents.values().any(|agent| agent.ready)
    }
}
