//! Which storage location a backup goes to.

/// A BackupStorageLocation, as far as choosing one goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub name: String,
    pub is_default: bool,
    pub read_only: bool,
    /// Why the store cannot be used just now.
    pub unavailable: Option<String>,
}

/// Name of the location of a backup that names none, where none is marked as default.
pub const DEFAULT_LOCATION: &str = "default";

/// The location of that name; with an empty name, the one marked as default, else the one called `default`.
pub fn choose<'l>(locations: &'l [Location], wanted: &str) -> Option<&'l Location> {
    if wanted.is_empty() {
        let marked = locations.iter().find(|location| location.is_default);
        return marked.or_else(|| locations.iter().find(|location| location.name == DEFAULT_LOCATION));
    }
    locations.iter().find(|location| location.name == wanted)
}
