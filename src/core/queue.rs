//! The queue of Backups: one total order of those that wait, and a plan of what happens next.
//!
//! [`View`] is the state of the API objects at one moment. [`plan`] decides on it, and the package
//! `berth` writes what the [`Plan`] says.

mod claimed;
mod estimate;
mod index;
mod newcomer;
mod order;
mod plan;
mod position;
mod reason;
mod turn;
mod view;

pub use claimed::Work;
pub use estimate::{Band, Expectation, History, Lived, Run, expect};
pub use index::Index;
pub use newcomer::{depends_on_all, explain_newcomer};
pub use order::{DEFAULT_CLASS, FairShare, Order, Use, handicaps};
pub use plan::{Cause, End, Plan, Waiting, may_run, plan, starts, work};
pub use position::{CLOCKS_DIFFER, RenumberBudget, is_likely, mark, position_of_newcomer};
pub use reason::Reason;
pub use turn::{Room, turns};
pub use view::{Entry, Includes, Phase, QueueKey, View};
