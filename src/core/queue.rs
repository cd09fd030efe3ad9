//! The queue of Backups: one total order of those that wait, and a plan of what happens next.
//!
//! [`QueueView`] is the state of the API objects at one moment. [`plan`] decides on it, and the
//! package `berth` writes what the [`Plan`] says.

mod claimed;
mod end_order;
mod estimate;
mod index;
mod newcomer;
mod order;
mod plan;
mod position;
mod reason;
mod view;

pub use claimed::PlanCost;
pub use end_order::{EndLimits, split_ends};
pub use estimate::{Band, CompletedRun, Expectation, Lived, RunHistory, expect};
pub use index::QueueIndex;
pub use newcomer::{depends_on_all, explain_newcomer};
pub use order::{DEFAULT_CLASS, FairShare, QueueOrder, Use, handicaps};
pub use plan::{EndCause, EndWithoutRun, Plan, WaitingBackup, may_run, plan, starts, work};
pub use position::{CLOCKS_DIFFER, RenumberBudget, is_likely, mark, position_of_newcomer};
pub use reason::QueueReason;
pub use view::{Includes, QueueEntry, QueueKey, QueuePhase, QueueView};
