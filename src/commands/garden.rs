//! `berth garden …`: buckets that many clusters share.

pub mod agent;
