//! Beside and after stock Velero: it reads what berth stored, and berth runs on its definitions.

mod beside;
mod definitions;
mod restore;
pub mod s3;
mod taken_over;
