//! JSON types: Velero's API kinds, the labels and annotations of berth, and the parser that turns
//! them into validated values of `berth-core`. The webhook accepts exactly what the controller can
//! read, because both call [`parse`]. The kinds of shared buckets are in a package of their own,
//! `berth-garden-api`, on top of this one.

pub mod crd;
pub mod duration;
mod filter;
pub mod hook;
pub mod keys;
pub mod mover_pod;
pub mod node_agent;
pub mod order;
pub mod parse;
pub mod place;
pub mod policy;
pub mod quantity;
mod selector;
pub mod snapshot;
pub mod unserved;
pub mod velero;

pub use duration::GoDuration;
