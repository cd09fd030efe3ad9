//! What berth decides. Every public item here is a value or a pure function of values: no async, no API
//! client, no clock (`now` is an argument), no randomness, no files, no logging. The rim (package `berth`)
//! freezes a view, asks this package, and acts on the answer.
//!
//! - [`namespace`]: which namespaces a backup takes, and whether two backups can meet.
//! - [`queue`]: the order of waiting backups, who may start, why the others wait, how positions are kept.
//! - [`selection`]: which resource types and items a backup takes.
//! - [`policy`]: what a resource policy says of types, objects and volumes.
//! - [`reading`]: whether a read that failed is tried again.
//! - [`revision`]: as of which moment lists are, and what is not.
//! - [`label`]: label selectors: are they well formed, what do they match.
//! - [`hook`]: which commands run in a pod before and after it is stored.
//! - [`guard`]: who may change what of a Backup.
//! - [`block`]: which pods go through their hooks together.
//! - [`limits`]: how much a Backup may ask for.
//! - [`claim`]: whose a backup's folder in a store is.
//! - [`run`]: what becomes of a backup whose run ended before it did.
//! - [`upload`]: who goes on with an upload in parts, and who may abort it.
//! - [`location`]: which storage location a backup goes to.
//! - [`affinity`]: on which nodes a data mover may run.
//! - [`mover`]: data movers: which may take a place in the cluster.
//! - [`garden`]: shared buckets: where clusters' backups go, and what may be asked for.
//! - [`violation`]: faults of an object, each with its field path, all of them at once.

pub mod affinity;
pub mod block;
pub mod claim;
pub mod garden;
pub mod glob;
pub mod guard;
pub mod hook;
pub mod label;
pub mod limits;
pub mod location;
pub mod mover;
pub mod namespace;
pub mod policy;
pub mod queue;
pub mod reading;
pub mod revision;
pub mod run;
pub mod selection;
pub mod upload;
pub mod violation;
