//! The wire: Velero's API kinds as JSON, the keys berth puts on objects, and the one reader that turns what
//! people wrote into checked values of `berth-core`. The webhook lets in exactly what the controller can
//! read, since both call [`parse`].

pub mod crd;
pub mod duration;
pub mod extensions;
mod filter;
pub mod garden;
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
pub mod unserved;
pub mod velero;

pub use duration::GoDuration;
