//! Shared backup buckets: a hub decides, member clusters execute.
//!
//! - [`hub`]: decides on buckets and entries, and writes that down.
//! - [`admission_view`]: hub and member as a webhook sees them.
//! - [`executor`]: in a member cluster: store calls, for objects of Gardener's extensions API.
//! - [`courier`]: copies what the hub decided into the member cluster, and reports back.
//! - [`deletion_permits`]: which data may be removed for a hub: told by the courier, asked by the
//!   executor.
//! - [`active_backups`]: backups that write to a location.
//! - [`migration`]: copies backups from a cluster's own bucket into its directory of a shared one.

pub mod active_backups;
pub mod admission_view;
pub mod courier;
pub mod deletion_permits;
pub mod executor;
pub mod hub;
pub mod migration;
