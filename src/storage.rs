//! Object stores: a BackupStorageLocation opened as a store, Velero's layout in it, and the
//! administration of buckets.

pub mod bucket;
mod check;
mod checkpoint;
mod claim;
mod clouds;
mod conditional;
mod credentials;
mod http_clients;
mod layout;
mod limited;
mod locked;
mod open;
mod open_error;
mod parts;
mod regular;
mod removal;
mod renewed;
mod roots;
mod rotation;
mod secrets;
mod stored;

pub use check::LocationChecker;
pub use claim::{ClaimError, ClaimedFolder};
pub use conditional::put_if;
pub use layout::{BackupArtifact, BackupLayout};
pub use locked::locked_until;
pub use open::{Link, LinkError, Opener};
pub use open_error::OpenError;
pub use parts::{MultipartTarget, Opened, Receipt, Staged, is_refused};
pub use removal::Survey;
pub use roots::Roots;
pub use stored::{FolderFiles, ListedFolder, MetadataFile, StoredBackups};
