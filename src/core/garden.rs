//! Shared backup buckets: where clusters' backups go, and what may be asked for.
//!
//! - [`store`]: a store: where it is, by which credentials and settings it is reached.
//! - [`profile`]: where backups of a profile's clusters go, and which buckets that takes.
//! - [`view`]: the objects of hub and member, as far as checks go.
//! - [`check`]: what is refused at admission, kind by kind.

pub mod check;
pub mod profile;
pub mod store;
pub mod view;

pub use profile::{Backup, Profile, Seed, Wanted, wanted};
pub use store::{ObjectLock, ObjectLockMode, Place, SecretRef, Store, StoreConfig};
pub use view::View;
