//! Certificates and keys. Depends on no other package of berth, and on no API client.
//!
//! - [`issue`]: a CA and a leaf for the webhook's names.
//! - [`bundle`]: PEM to a chain and key that belong together.
//! - [`rotation`]: the next step of a set of keys.
//! - [`resolver`]: the current key of a running server, replaced atomically.

pub mod bundle;
pub mod issue;
pub mod resolver;
pub mod rotation;

pub use bundle::{Bundle, BundleError};
pub use issue::{Authority, IssueError};
pub use resolver::{ClientAuthority, CurrentKey};
pub use rotation::{KeySet, Rotate, RotationStep};
