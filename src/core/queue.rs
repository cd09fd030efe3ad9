//! The queue: one total order of waiting backups, and what may happen next.
//!
//! [`View`] is frozen from the API objects, [`plan`] decides on it, the rim writes what the [`Plan`] says.

mod plan;
mod position;
mod reason;
mod view;

pub use plan::{Plan, Waiting, explain_newcomer, plan};
pub use position::{RenumberBudget, next_position};
pub use reason::Reason;
pub use view::{Entry, Phase, View, precedence};
