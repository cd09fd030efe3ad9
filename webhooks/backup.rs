//! Backups at admission: a place in line for what is created, and every fault told at once.

mod enqueue;
mod incoming;
mod validate;

pub use enqueue::{enqueue, enqueue_later};
pub use validate::validate;
