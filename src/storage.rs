//! Where archives live: a BackupStorageLocation opened as an object store, Velero's layout in it, and the
//! administration of buckets.

pub mod bucket;
mod check;
mod clouds;
mod credentials;
mod layout;
mod open;
mod roots;
mod rotation;

pub use check::Checker;
pub use layout::{Layout, Side};
pub use open::{OpenError, Opener};
pub use roots::Roots;
