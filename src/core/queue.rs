//! The queue: one total order of waiting backups, and what may happen next.
//!
//! [`View`] is frozen from the API objects, [`plan`] decides on it, the rim writes what the [`Plan`] says.

mod estimate;
mod held;
mod index;
mod newcomer;
mod order;
mod plan;
mod position;
mod reason;
mod turn;
mod view;

pub use estimate::{Band, Expectation, History, Run, expect};
pub use held::Work;
pub use index::Index;
pub use newcomer::{depends_on_all, explain_newcomer};
pub use order::{DEFAULT_CLASS, FairShare, Order, Use, handicaps};
pub use plan::{Cause, End, Plan, Waiting, may_open, plan, starts, work};
pub use position::{CLOCKS_DIFFER, RenumberBudget, is_likely, mark, position_of_newcomer};
pub use reason::Reason;
pub use turn::{Room, turns};
pub use view::{Entry, Phase, Standing, View};
