//! Shared backup buckets: a hub decides, member clusters execute.
//!
//! - [`known`]: hub and member as a webhook knows them.

pub mod known;
