//! Shared backup buckets: where clusters' backups go, and what may be asked for.
//!
//! - [`store`]: a store: where it is, by which credentials and settings it is reached.
//! - [`profile`]: where backups of a profile's clusters go, and which buckets that takes.
//! - [`view`]: the objects of hub and member, as far as checks go.
//! - [`check`]: what is refused at admission, kind by kind.
//! - [`scope`]: what may be removed from a bucket.
//! - [`fault`]: what a store's refusal means.
//! - [`operation`]: what an extensions object asks for.
//! - [`entry_life`]: an entry's life, as one seed sees it.
//! - [`member`]: what the agent of a member cluster does next.
//! - [`leave`]: how long the hub's word counts that data may go.
//! - [`fence`]: who may write in an entry's directory while it moves.
//! - [`heartbeat`]: signs of life, by our own clock.
//! - [`identity`]: which cluster a Seed is.
//! - [`location`]: the storage location that an entry yields.
//! - [`location_keys`]: keys for the directory of one entry.
//! - [`lock`]: object locks that may be set, and until when locked data stays.
//! - [`migration`]: from a bucket of a cluster's own into a shared one.
//! - [`owner`]: whose a directory is, by a mark in the store.
//! - [`name`]: what buckets are called, and records of entries that are no more.
//! - [`quota`], [`placement`]: how many entries a bucket takes, and which bucket an entry goes to.
//! - [`executor`]: whose controllers act.
//! - [`life`]: when what was deleted goes.
//! - [`hub`]: all of that, as one decision of the hub.
//! - [`outlook`]: what its decisions come to in the end.

pub mod check;
pub mod entry_life;
pub mod executor;
pub mod fault;
pub mod fence;
pub mod heartbeat;
pub mod hub;
pub mod identity;
pub mod leave;
pub mod life;
pub mod location;
pub mod location_keys;
pub mod lock;
pub mod member;
pub mod migration;
pub mod name;
pub mod operation;
pub mod outlook;
pub mod owner;
pub mod placement;
pub mod profile;
pub mod quota;
pub mod scope;
pub mod store;
pub mod view;

pub use profile::{Backup, Profile, Seed, Wanted, wanted};
pub use store::{LocationKeys, ObjectLock, ObjectLockMode, Place, SecretRef, Store, StoreConfig};
pub use view::View;
