//! Orphans: data movers that hold a place and make no progress, because the node-agent that would
//! continue them is away.

use jiff::{SignedDuration, Timestamp};

use super::view::{GrantView, Mover, MoverPhase, MoverPod, NodeAgentTimeouts};
use crate::mover::MoverKind;

/// A mover pod that exists continues without the agent that created it, and may take its time: a
/// volume is attached, an image pulled, a node added. It does not get unlimited time, because the
/// agent may have died before it created everything that the pod needs.
pub const STALLED_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// How often one data mover may be reset to New. It keeps its age and so goes first each time: if
/// agents keep dying because of it, it would keep all others waiting for ever, and Velero's own
/// time-out starts over each time as well.
pub const MAX_RESETS: u32 = 3;

/// What to do with an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing yet: it cannot be reset to New, and stock Velero continues it when its agent is
    /// back.
    Wait,
    /// Delete the objects that were made for it, and reset its phase to New.
    Reset,
    /// Set its phase to InProgress, for which its pod waits. The pod then moves the data by itself,
    /// and reports by Events and its termination message what its node-agent needs when it is back.
    /// For a while more data paths may run than the node allows; but the place is free, and
    /// everything is saved that stock Velero would have saved.
    MarkInProgress,
    /// Set its phase to Failed.
    Fail(Unrecoverable),
}

/// Why a data mover cannot be reset to New.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrecoverable {
    /// Velero moves the snapshot into its own namespace before it creates the pod, and would look
    /// for it in the old one.
    SnapshotTaken,
    /// It was reset [`MAX_RESETS`] times already.
    TooOften,
    /// The only node that can reach its volume has left the cluster.
    NodeGone,
}

/// What the plan that found an orphan does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// The snapshot of a DataUpload is no longer where a node-agent looks for it.
    pub snapshot_taken: bool,
    /// The node to which it is bound does not exist.
    pub node_gone: bool,
    /// See [`super::Recover::for_long`].
    pub for_long: bool,
}

/// The remedy for an orphan.
pub fn remedy(mover: &Mover, circumstances: Circumstances) -> Remedy {
    let Circumstances { snapshot_taken, node_gone, for_long } = circumstances;
    let is_running = mover.mover_pod.as_ref().is_some_and(|pod| pod.running);
    if mover.kind.is_bound() && node_gone {
        // In phase New it would wait for ever, and its Backup for hours.
        Remedy::Fail(Unrecoverable::NodeGone)
    } else if mover.canceled {
        // Any agent ends a canceled one as soon as it is New, and cleans up after it.
        Remedy::Reset
    } else if mover.kind == MoverKind::DataUpload && snapshot_taken {
        match mover.phase {
            MoverPhase::Prepared if is_running => Remedy::MarkInProgress,
            _ if !for_long => Remedy::Wait,
            _ => Remedy::Fail(Unrecoverable::SnapshotTaken),
        }
    } else if mover.resets >= MAX_RESETS {
        Remedy::Fail(Unrecoverable::TooOften)
    } else {
        Remedy::Reset
    }
}

/// Does it hold a place, while no agent that could continue it has been ready for long enough?
pub(super) fn is_orphan(view: &GrantView, mover: &Mover, now: Timestamp) -> bool {
    match mover.phase {
        // The leader itself goes on with it.
        _ if mover.own => false,
        MoverPhase::Accepted => {
            let pod_is_lost = mover.mover_pod.as_ref().is_some_and(|pod| is_lost(view, pod, now));
            pod_is_lost || is_left_by_who_accepted(view, mover, now)
        }
        // Only the agent of its node starts a Prepared one.
        MoverPhase::Prepared => mover.node().is_some_and(|node| is_out(view, node, now)),
        _ => false,
    }
}

/// Has it been an orphan for so long that its agent has been away for
/// [`NodeAgentTimeouts::given_up_after`]?
pub(super) fn is_orphan_for_long(view: &GrantView, mover: &Mover, now: Timestamp) -> bool {
    let NodeAgentTimeouts { out_after, given_up_after } = view.patience;
    let before = now.saturating_sub(given_up_after.saturating_sub(out_after)).unwrap_or(Timestamp::MIN);
    is_orphan(view, mover, before)
}

/// Only the agent of the node of its pod makes it Prepared, whichever agent accepted it. The agent
/// of a new node may become ready after the pod.
fn is_lost(view: &GrantView, pod: &MoverPod, now: Timestamp) -> bool {
    let is_settled = pod.placed_at.is_none_or(|at| now.duration_since(at) >= view.patience.out_after);
    is_settled && pod.node.as_deref().is_some_and(|node| is_out(view, node, now))
}

fn is_left_by_who_accepted(view: &GrantView, mover: &Mover, now: Timestamp) -> bool {
    let Some(node) = mover.accepted_by.as_deref().or(mover.bound_node.as_deref()) else { return false };
    if view.has_ready_agent(node) {
        // A restarted agent assumes that an Accepted data mover is exposed already, and never
        // exposes it again.
        let started = view.agents.get(node).and_then(|agent| agent.started_at);
        let restarted = started.zip(mover.accepted_at).is_some_and(|(started, accepted)| {
            started > accepted && now.duration_since(started) >= view.patience.out_after
        });
        return restarted && mover.mover_pod.is_none();
    }
    is_out(view, node, now) && !goes_on_elsewhere(view, mover, now)
}

/// Has this node been without a ready agent for long enough?
pub(super) fn is_out(view: &GrantView, node: &str, now: Timestamp) -> bool {
    let since = match view.agents.get(node) {
        Some(agent) if agent.ready => return false,
        Some(agent) => agent.not_ready_since,
        None => None,
    };
    now.duration_since(since.unwrap_or(view.watching_since)) >= view.patience.out_after
}

/// Will the agent of the node of its pod, present or future, continue it?
fn goes_on_elsewhere(view: &GrantView, mover: &Mover, now: Timestamp) -> bool {
    let Some(pod) = &mover.mover_pod else { return false };
    let has_agent = pod.node.is_some() || view.some_agent_is_ready();
    let accepted = mover.accepted_at.unwrap_or(mover.created_at);
    let is_fresh = || now.duration_since(accepted) < STALLED_AFTER;
    !mover.kind.is_bound() && has_agent && (pod.running || is_fresh())
}
