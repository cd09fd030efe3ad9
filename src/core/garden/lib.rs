//! Shared backup buckets: the decisions of hub, members and admission.
//!
//! - [`store`]: a store: its place, credentials and settings.
//! - [`profile`]: where backups of a profile's clusters go, and which buckets that takes.
//! - [`bucket`], [`entry`], [`condition`]: the hub's buckets and entries, for admission and for the
//!   hub's plan.
//! - [`view`]: the objects of hub and member, reduced to what admission checks.
//! - [`check`]: what is refused at admission, kind by kind.
//! - [`scope`]: what may be removed from a bucket.
//! - [`fault`]: what a store's refusal means.
//! - [`operation`]: types and states of operations, and what the executor does next.
//! - [`entry_life`]: an entry's life, as one seed sees it.
//! - [`member`]: what the agent of a member cluster does next.
//! - [`deletion_permit`]: how long the hub's permission to remove data is valid.
//! - [`fence`]: which cluster may write in an entry's directory while it moves.
//! - [`heartbeat`]: heartbeats of seeds, by the hub's own clock.
//! - [`identity`]: which cluster a Seed is.
//! - [`location`]: the storage location that an entry yields.
//! - [`location_keys`]: keys for the directory of one entry.
//! - [`lock`]: object locks that may be set, and until when locked data stays.
//! - [`migration`]: moves backups from a cluster's own bucket into a shared one.
//! - [`owner`]: the owner of a directory, by a mark in the store.
//! - [`name`]: names of buckets, and of records of entries that have ended.
//! - [`quota`], [`placement`]: how many entries a bucket takes, and which bucket an entry goes to.
//! - [`assignment`]: which seed acts on a bucket or an entry.
//! - [`retention`]: when the data of deleted entries is removed.
//! - [`hub`]: all of that as one plan of the hub.
//! - [`simulation`]: the state that the hub's plans lead to.

pub mod assignment;
pub mod bucket;
pub mod check;
pub mod condition;
pub mod deletion_permit;
pub mod entry;
pub mod entry_life;
pub mod fault;
pub mod fence;
pub mod heartbeat;
pub mod hub;
pub mod identity;
pub mod location;
pub mod location_keys;
pub mod lock;
pub mod member;
pub mod migration;
pub mod name;
pub mod operation;
pub mod owner;
pub mod placement;
pub mod profile;
pub mod quota;
pub mod retention;
pub mod scope;
pub mod simulation;
pub mod store;
pub mod view;

pub use profile::{Profile, ProfileBackupSettings, RequiredBuckets, Seed, wanted};
pub use store::{
    LocationKeyMode, ObjectLockSettings, ProviderRegion, RetentionMode, SecretRef, Store, StoreSettings,
};
pub use view::GardenView;
