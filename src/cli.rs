//! What people type: from flags to objects, from objects to tables and descriptions, and what both
//! need: downloads, waiting, suggestions. The commands themselves are in [`crate::commands`].

pub mod archive;
pub mod compare;
pub mod completion;
pub mod config;
pub mod describe;
pub mod download;
pub mod kinds;
pub mod kubectl;
pub mod names;
pub mod object;
pub mod plan;
pub mod print;
pub mod rights;
pub mod suggest;
pub mod table;
pub mod topics;
pub mod typed;
pub mod wait;
pub mod zone;

#[cfg(test)]
mod tests;
