//! Stands in for the package of this name, of which rustic_core asks one question: where its cache
//! may be. berth opens repositories without a cache, because a container has no home. So the
//! question needs no answer, and what the package links for it (by the MPL, which `deny.toml` does
//! not allow) is left out.

use std::path::PathBuf;

/// No folder.
#[must_use]
pub fn cache_dir() -> Option<PathBuf> {
    None
}
