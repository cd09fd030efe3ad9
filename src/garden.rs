//! Shared backup buckets: a hub decides, member clusters execute.
//!
//! - [`hub`]: what the hub decides, and writes.
//! - [`known`]: hub and member as a webhook knows them.
//! - [`executor`]: in a member cluster: store calls, as objects of Gardener's extensions API ask for them.
//! - [`courier`]: between a hub and a member: what was decided goes down, what became of it goes up.
//! - [`leave`]: which data may be removed for a hub: told by the courier, asked by the executor.
//! - [`running`]: backups that write to a location.
//! - [`migration`]: from a bucket of a cluster's own into its directory of a shared one.

pub mod courier;
pub mod executor;
pub mod hub;
pub mod known;
pub mod leave;
pub mod migration;
pub mod running;
