//! Backups at admission: a place in line on create, and every fault of a write in one answer.

mod data;
mod enqueue;
mod incoming;
mod validate;

pub(crate) use data::told;
pub use enqueue::{enqueue, enqueue_later};
pub use validate::validate;
pub(crate) use validate::{check, status};
