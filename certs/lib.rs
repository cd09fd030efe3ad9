//! Bytes to keys. Knows no queue, no review, no API client.
//!
//! - [`issue`]: a CA and a leaf for the webhook's names.
//! - [`bundle`]: PEM to a chain and key that belong together.
//! - [`rotation`]: what a set of keys should become next.
//! - [`resolver`]: the current key of a running server, swapped whole.

pub mod bundle;
pub mod issue;
pub mod resolver;
pub mod rotation;

pub use bundle::{Bundle, BundleError};
pub use issue::{Authority, IssueError};
pub use resolver::{ClientAuthority, CurrentKey};
pub use rotation::{Keys, Rotate, Step};
