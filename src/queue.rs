//! The queue at the rim: Backups mirrored from the API server, one cycle that decides on them, and the only
//! writer of positions and ReadyToStart.

pub mod cycle;
pub mod definition;
pub mod gate;
pub mod refusals;
pub mod seen;
pub mod store;
pub mod teller;
pub mod writer;

pub use store::{Settings, Store};
