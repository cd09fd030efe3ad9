//! Places: at most `prepareQueueLength` data movers of all four kinds together are Accepted or
//! Prepared.
//!
//! Each node-agent counts in a cache of its own, so together they accept too many. Therefore they
//! do not count: a node-agent's write of the phase Accepted passes [`judge`] only if the stored
//! object carries a grant, an annotation, and only the leader grants. These rules keep the count
//! exact across changes of the leader and writes that arrive late:
//!
//! 1. *The ledger*, one object, names the grants that are decided and not yet seen on their
//!    objects. It is written with the resourceVersion that was read, before every annotation, even
//!    if its contents do not change: a leader whose write succeeds has read all of it, and no other
//!    leader has written it since.
//! 2. *An annotation* is written with the resourceVersion on which it was decided. Once the object
//!    carries a grant, or is past New, any other annotation still on its way fails. So the UID is
//!    removed from the ledger then, and not before.
//! 3. *A new leader* reads the ledger, writes it (from now on the next write of the old leader
//!    fails), and lists the data movers **after** that. It reads the limit no earlier than the
//!    ledger. That list can be trusted: of each grant that was ever given it shows the annotation
//!    or the phase, or the ledger has the UID. A cache from before the write is not good enough.
//! 4. *When the limit changes*, the leader begins as a new one does, because there is no ledger
//!    entry for what was accepted while there was no limit.
//! 5. *A place is free once the view shows it*: a place that a write of this plan frees is given
//!    away by a later plan.
//! 6. *The ledger is never deleted*, only marked as not in force ([`GrantPlan::retire_ledger`]),
//!    because a re-created ledger could not be distinguished from one that was never read.
//!
//! The model in `tests/mover_model` runs these steps in every order, and finds a violation if any
//! rule is left out.

mod gate;
mod orphan;
mod plan;
mod reason;
mod view;

pub use gate::{GateRefusal, PhaseWrite, judge};
pub use orphan::{Circumstances, MAX_RESETS, Remedy, STALLED_AFTER, Unrecoverable, remedy};
pub use plan::{AT_ONCE, GrantPlan, LedgerPlan, LedgerWrite, Recover, WaitingMover, plan};
pub use reason::MoverWaitReason;
pub use view::{
    GIVEN_UP_AFTER, GrantView, Limits, Mover, MoverPhase, MoverPod, NodeAgentState, NodeAgentTimeouts,
    OUT_AFTER,
};

#[cfg(test)]
mod simulation;
