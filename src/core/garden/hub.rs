//! What the hub does next: which buckets there should be, in which bucket each entry has its place,
//! which seed acts on them, and what is removed. One frozen [`View`] in, one [`Plan`] out.

mod plan;
mod reason;
mod record;
mod view;

pub use plan::{BucketEnd, BucketPlan};
pub use plan::{End, EntryPlan, Handed, NewBucket, Plan, plan};
pub use reason::Waiting;
pub use record::{Left, Record, left};
pub use view::{Access, Credentials, ProfileState, ProfileStatus, SeedState, Settings, View};

#[cfg(test)]
mod tests;
