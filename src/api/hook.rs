//! Hooks in JSON: in a Backup's spec, and in annotations of pods.

mod command;
mod pod;
mod spec;

pub use pod::{AnnotatedPod, MARK};
pub use spec::{entries, pods};
