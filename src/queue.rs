//! The queue at the rim: a watch cache of Backups, one cycle that decides on them, and the only
//! writer of positions and ReadyToStart.

pub mod cache;
pub mod cycle;
pub mod definition;
pub mod gate;
pub mod refusals;
pub mod reporter;
pub mod seen;
pub mod writer;

pub use cache::{BackupCache, QueueSettings};
