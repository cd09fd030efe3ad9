//! `berth garden …`: buckets that many clusters share.

pub mod agent;
pub mod list;
pub mod migrate;
pub mod plan;
