//! Replaces the package of this name, which rustic_core asks one question: where its cache may be.
//! berth opens repositories without a cache, because a container has no home folder. So the
//! question needs no answer, and the code that the original package links for it is left out,
//! because its licence (MPL) is not allowed by `deny.toml`.

use std::path::PathBuf;

/// No folder.
#[must_use]
pub fn cache_dir() -> Option<PathBuf> {
    None
}
