//! The frozen state on which one plan is made.

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
    /// None that berth knows: neither counted nor granted.
    Unknown,
}

impl MoverPhase {
    /// Reads what stands on the wire; absent is the empty text.
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

    /// As it stands on the wire; `New` where that is empty.
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

    /// Does it take one of the places?
    pub fn holds_place(self) -> bool {
        matches!(self, Self::Accepted | Self::Prepared)
    }

    /// Does it take one of the data paths of its node, or will it shortly?
    fn loads_node(self) -> bool {
        matches!(self, Self::Accepted | Self::Prepared | Self::InProgress | Self::Canceling)
    }

    /// Nothing more happens to it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Canceled | Self::Completed | Self::Failed)
    }
}

/// The pod that moves the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MoverPod {
    /// Where the scheduler put it.
    pub node: Option<String>,
    /// When it was put there, whole seconds.
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
    /// Its object carries a grant (`berth.dev/granted`). Says nothing once it is past New: grants are not taken off.
    pub granted: bool,
    /// `spec.cancel`, or it is being deleted.
    pub canceled: bool,
    /// A data mover of somebody else: never counted, never granted, never refused.
    pub third_party: bool,
    /// The only node whose agent can carry it: `spec.node` of a PodVolumeBackup, the node of a PodVolumeRestore's pod.
    pub bound_node: Option<String>,
    /// `status.acceptedByNode`; the bound kinds have no such field, they are accepted where they are bound.
    pub accepted_by: Option<String>,
    /// `status.acceptedTimestamp`, whole seconds.
    pub accepted_at: Option<Timestamp>,
    /// `status.node`.
    pub running_on: Option<String>,
    /// How often it has been put back to New (`berth.dev/begun-anew`).
    pub begun_anew: u32,
    pub mover_pod: Option<MoverPod>,
}

impl Mover {
    /// One that has just been created.
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
            bound_node: None,
            accepted_by: None,
            accepted_at: None,
            running_on: None,
            begun_anew: 0,
            mover_pod: None,
        }
    }

    /// The node on which it takes a data path, as far as that is known.
    pub fn node(&self) -> Option<&str> {
        let on_pod = || self.mover_pod.as_ref().and_then(|pod| pod.node.as_deref());
        self.bound_node.as_deref().or(self.running_on.as_deref()).or_else(on_pod)
    }

    /// Those whose node-agents have to do with it.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let pod = self.mover_pod.as_ref().and_then(|pod| pod.node.as_deref());
        let told = [&self.bound_node, &self.accepted_by, &self.running_on];
        told.into_iter().filter_map(|node| node.as_deref()).chain(pod).collect()
    }

    pub(super) fn loads_node(&self) -> bool {
        self.phase.loads_node() || (self.phase == MoverPhase::New && self.granted)
    }

    /// Who goes first: 1. the older, 2. by kind, 3. by name, so that the order is total.
    pub fn standing(&self) -> (Timestamp, MoverKind, &str) {
        (self.created_at, self.kind, &self.name)
    }
}

/// A node-agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agent {
    pub ready: bool,
    /// When its container started. Stamped on the node on which `acceptedTimestamp` is stamped too.
    pub started_at: Option<Timestamp>,
    /// Since when it is not ready, or is gone. Absent: since nobody knows when.
    pub not_ready_since: Option<Timestamp>,
}

/// `loadConcurrency` of the node-agents' configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `prepareQueueLength`, at least 1: how many places there are. None: as many as anybody likes.
    pub limit: Option<usize>,
    /// `globalConfig`, at least 1: data paths of a node.
    pub global: u32,
    /// `perNodeConfig`: of all that match, the smallest positive number counts.
    pub per_node: Vec<(Selector, u32)>,
}

impl Limits {
    /// How many data paths a node with these labels has.
    pub fn data_paths(&self, labels: &BTreeMap<String, String>) -> u32 {
        let matching =
            self.per_node.iter().filter(|(selector, number)| *number > 0 && selector.matches(labels));
        matching.map(|(_, number)| *number).min().unwrap_or(self.global.max(1))
    }
}

/// An agent that is away for so long will not be back in a moment. One that is rolled, or restarts, is: its image is on
/// the node. Stock Velero waits for thirty minutes, or for hours, and all that time the place is taken.
pub const OUT_AFTER: SignedDuration = SignedDuration::from_secs(25);

/// What cannot begin anew ends only after this: its agent may be back, with another image to pull.
pub const GIVEN_UP_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// How long a node may be without a ready agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Before what the agent carried is looked after: [`OUT_AFTER`], unless somebody says otherwise.
    pub out_after: SignedDuration,
    /// Before what cannot begin anew ends: [`GIVEN_UP_AFTER`].
    pub given_up_after: SignedDuration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { out_after: OUT_AFTER, given_up_after: GIVEN_UP_AFTER }
    }
}

/// Everything one plan may look at.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// In any order; finished ones may be left out. No older than the ledger: listed after it was read, see
    /// [`super`]. Shared, so that freezing a view copies none.
    pub movers: Vec<Arc<Mover>>,
    /// By node. One that is gone is best kept, with the time since when.
    pub agents: HashMap<String, Agent>,
    pub node_labels: HashMap<String, BTreeMap<String, String>>,
    pub limits: Limits,
    /// UIDs in the ledger as it was last read or written. None: there is none, or none in force.
    pub ledger: Option<BTreeSet<String>>,
    /// Since when agents are watched. What is away for longer is taken to be away since then.
    pub watching_since: Timestamp,
    pub patience: Patience,
}

impl View {
    /// Is there an agent that works?
    pub fn has_ready_agent(&self, node: &str) -> bool {
        self.agents.get(node).is_some_and(|agent| agent.ready)
    }

    pub(super) fn some_agent_is_ready(&self) -> bool {
        self.agents.values().any(|agent| agent.ready)
    }
}
