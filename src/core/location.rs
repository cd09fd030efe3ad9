//! Which storage location a backup goes to.

use std::collections::HashSet;

/// A BackupStorageLocation, as far as choosing one goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub name: String,
    pub is_default: bool,
    pub read_only: bool,
    /// Somebody wants its backups to wait (`berth.dev/hold`).
    pub held: bool,
    /// Why the store cannot be used just now.
    pub unavailable: Option<String>,
}

/// Name of the location of a backup that names none, where none is marked as default.
pub const DEFAULT_LOCATION: &str = "default";

/// What a [`View`](crate::queue::View) calls the locations whose backups are to wait: their names, and the empty
/// one if it is the default that is held.
pub fn held(locations: &[Location]) -> HashSet<String> {
    let mut held: HashSet<String> =
        locations.iter().filter(|location| location.held).map(|location| location.name.clone()).collect();
    if choose(locations, "").is_some_and(|location| location.held) {
        held.insert(String::new());
    }
    held
}

/// The location of that name; with an empty name, the one marked as default, else the one called `default`.
pub fn choose<'l>(locations: &'l [Location], wanted: &str) -> Option<&'l Location> {
    if wanted.is_empty() {
        let marked = locations.iter().find(|location| location.is_default);
        return marked.or_else(|| locations.iter().find(|location| location.name == DEFAULT_LOCATION));
    }
    locations.iter().find(|location| location.name == wanted)
}
