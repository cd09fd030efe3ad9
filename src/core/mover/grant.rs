//! Places: at most `prepareQueueLength` data movers of all four kinds together are Accepted or Prepared.
//!
//! Node-agents count each in a cache of its own and accept too many together. So they are not the ones who count: a
//! node-agent's write to Accepted passes [`judge`] only if the stored object carries a grant, an annotation, and only
//! the leader grants. What makes that exact, over changes of the leader and writes that land late:
//!
//! 1. *The ledger*, one object, names the grants that are decided and not yet seen on their objects. It is written with
//!    the resourceVersion that was read, before every annotation, also when nothing in it changes: who can write it has
//!    seen all of it, and nobody else has written it since.
//! 2. *An annotation* is written with the resourceVersion on which it was decided. Once its object carries a grant, or
//!    is past New, any other one that is still on its way fails. So the UID leaves the ledger then, and not before.
//! 3. *A new leader* reads the ledger, writes it (now the next write of the old one fails), and lists the movers **after**
//!    that; the limit, too, it reads no earlier than the ledger. What it lists, it may trust: of all that was ever granted
//!    it sees the annotation, the phase, or the UID in the ledger. A cache from before that is not good enough.
//! 4. *Where the limit changes*, the leader begins as a new one does: while there was none, the gate stood open, and who
//!    was accepted then is in no ledger.
//! 5. *Places are free when the view shows it*: a place that is given up by a write of this plan is given away by a
//!    later one.
//! 6. *The ledger is never deleted*, only marked as not in force ([`Plan::retire_ledger`]): one that was made anew could
//!    not be told from one that was never seen.
//!
//! The model in `tests/mover_model` runs every order of steps of that, and finds what comes of leaving out any of it.

mod gate;
mod orphan;
mod plan;
mod reason;
mod view;

pub use gate::{Refusal, Step, judge};
pub use orphan::{ANEW_AT_MOST, Circumstances, Hopeless, Remedy, STALLED_AFTER, remedy};
pub use plan::{AT_ONCE, Ledger, LedgerWrite, Plan, Recover, Waiting, plan};
pub use reason::Reason;
pub use view::{Agent, GIVEN_UP_AFTER, Limits, Mover, MoverPhase, MoverPod, OUT_AFTER, Patience, View};

#[cfg(test)]
mod simulation;
