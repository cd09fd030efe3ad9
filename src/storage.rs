//! Where archives live: a BackupStorageLocation opened as an object store, and Velero's layout in it.

mod check;
mod credentials;
mod layout;
mod open;

pub use check::Checker;
pub use layout::{Layout, Side};
pub use open::{OpenError, Opener};
