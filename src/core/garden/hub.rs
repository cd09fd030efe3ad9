//! What the hub does next: which buckets there should be, in which bucket each entry has its place,
//! which seed acts on them, and what is removed. One frozen [`HubView`] in, one [`HubPlan`] out.

mod plan;
mod reason;
mod record;
mod view;

pub use plan::{BucketEnd, BucketPlan};
pub use plan::{EntryEnd, EntryHandover, EntryPlan, HubPlan, NewBucket, plan};
pub use reason::PlacementWaitReason;
pub use record::{EntryRecord, LeftoverData, left};
pub use view::{HubSettings, HubView, ProfileState, ProfileStatus, SecretState, SeedAccess, SeedState};

#[cfg(test)]
mod tests;
