//! Object stores: a BackupStorageLocation opened as a store, Velero's layout in it, and the
//! administration of buckets.

pub mod bucket;
mod check;
mod checkpoint;
mod claim;
mod clouds;
mod conditional;
mod credentials;
mod layout;
mod open;
mod open_error;
mod parts;
mod removal;
mod renewed;
mod roots;
mod rotation;
mod stored;

pub use check::Checker;
pub use claim::{ClaimError, Found};
pub use conditional::put_if;
pub use layout::{Artifact, Layout};
pub use open::{Link, LinkError, Opener};
pub use open_error::OpenError;
pub use parts::{Opened, Parts, Receipt, Staged, is_refused};
pub use removal::Survey;
pub use roots::Roots;
pub use stored::{Files, Metadata, StoredBackups};
