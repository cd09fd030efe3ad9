//! Hooks as people write them: in a Backup's spec, and as annotations of pods.

mod command;
mod pod;
mod spec;

pub use pod::{MARK, Pod};
pub use spec::{entries, pods};
