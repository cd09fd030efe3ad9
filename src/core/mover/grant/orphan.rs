//! Data movers that were accepted and will not go on by themselves.

use jiff::{SignedDuration, Timestamp};

use super::view::{Mover, MoverPhase, View};

/// An agent that is away for so long will not be back in a moment. One that is rolled, or restarts, is: its image is on
/// the node. Stock Velero waits for thirty minutes, and all that time the place is taken.
pub const OUT_AFTER: SignedDuration = SignedDuration::from_secs(25);

/// A mover pod that is there goes on without the agent that made it, and may take its time: a volume is attached, an image
/// pulled, a node added. Not for ever: the agent may have died before it made all that the pod needs.
pub const STALLED_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// Has nobody carried it for long enough that it should begin anew?
pub(super) fn is_orphan(view: &View, mover: &Mover, now: Timestamp) -> bool {
    if mover.phase != MoverPhase::Accepted {
        return false;
    }
    let Some(node) = mover.accepted_by.as_deref().or(mover.bound_node.as_deref()) else { return false };
    if view.has_ready_agent(node) {
        // A restarted agent takes it that what is Accepted is exposed, and never does it again.
        let started = view.agents.get(node).and_then(|agent| agent.started_at);
        let restarted = started.zip(mover.accepted_at).is_some_and(|(started, accepted)| {
            started > accepted && now.duration_since(started) >= OUT_AFTER
        });
        return restarted && mover.mover_pod.is_none();
    }
    is_out(view, node, now) && !goes_on_elsewhere(view, mover, now)
}

/// Has its node been without a ready agent for long enough?
pub(super) fn is_out(view: &View, node: &str, now: Timestamp) -> bool {
    let since = match view.agents.get(node) {
        Some(agent) if agent.ready => return false,
        Some(agent) => agent.not_ready_since,
        None => None,
    };
    now.duration_since(since.unwrap_or(view.watching_since)) >= OUT_AFTER
}

/// Will the agent of the node where its pod is, or comes to be, carry it on?
fn goes_on_elsewhere(view: &View, mover: &Mover, now: Timestamp) -> bool {
    let Some(pod) = &mover.mover_pod else { return false };
    let has_agent = match &pod.node {
        Some(node) => view.has_ready_agent(node),
        None => view.some_agent_is_ready(),
    };
    let accepted = mover.accepted_at.unwrap_or(mover.created_at);
    let is_fresh = || now.duration_since(accepted) < STALLED_AFTER;
    !mover.kind.is_bound() && has_agent && (pod.running || is_fresh())
}
