//! Volumes in restic repositories: their files, or a device as one file, which `restic` itself can
//! list, check and restore. What rustic_core does not do is here: a back end over the stores that
//! berth opens, restic's locks, and a way into a volume and out of it that no link and no mount
//! leads astray. No other package knows rustic_core.
//!
//! Everything of rustic_core runs on blocking threads, and may panic there: whoever waits gets
//! [`Fault::Panic`].

mod ahead;
mod backend;
mod beneath;
mod blob;
mod device;
mod fault;
mod forget;
mod hung;
mod lock;
mod maintain;
mod metadata;
mod packs;
mod repository;
mod restore;
mod source;
mod store;
mod watched;
mod windows;

pub use beneath::{Folder, descend, is_mounted, open_many_files};
pub use device::Device;
pub use fault::{Fault, Unfinished};
pub use forget::Unneeded;
pub use hung::Hung;
pub use repository::{Data, Repository, Saved, Source};
pub use restore::Restored;
pub use store::Store;
pub use watched::{Progress, Watched};
