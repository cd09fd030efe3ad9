//! What the hub does next: which buckets there are to be, which entries go where, who acts on them, and what goes.
//! One frozen [`View`] in, one [`Plan`] out.

mod plan;
mod reason;
mod record;
mod view;

pub use plan::{BucketEnd, BucketPlan};
pub use plan::{End, EntryPlan, Handed, NewBucket, Plan, plan};
pub use reason::Waiting;
pub use record::{Left, Record, left};
pub use view::{
    About, Access, Bucket, BucketStatus, Cluster, Condition, Conditions, Credentials, Entry, EntryStatus,
    Infrastructure, Operation, OperationKind, OperationState, ProfileStatus, Settings, View,
};

#[cfg(test)]
mod tests;
