//! The queue at the rim: Backups mirrored from the API server, one cycle that decides on them, and the only
//! writer of positions and ReadyToStart.

pub mod cycle;
pub mod store;

pub use store::Store;
