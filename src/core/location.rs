//! Which storage location a backup goes to.

use std::collections::HashMap;

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

/// Why backups of a location are to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Until somebody releases it.
    Held,
    /// Until its store can be used.
    Unavailable { why: String },
}

/// What a [`View`](crate::queue::View) calls the locations whose backups are to wait: their names, and the empty one if
/// it is the default that is meant. With `waits_for_stores`, those whose store cannot be used just now are among them.
pub fn closed(locations: &[Location], waits_for_stores: bool) -> HashMap<String, Closed> {
    let why = |location: &Location| match &location.unavailable {
        _ if location.held => Some(Closed::Held),
        Some(why) if waits_for_stores => Some(Closed::Unavailable { why: why.clone() }),
        _ => None,
    };
    let mut closed: HashMap<String, Closed> =
        locations.iter().filter_map(|location| Some((location.name.clone(), why(location)?))).collect();
    if let Some(why) = choose(locations, "").and_then(why) {
        closed.insert(String::new(), why);
    }
    closed
}

/// The location of that name; with an empty name, the one marked as default, else the one called `default`.
pub fn choose<'l>(locations: &'l [Location], wanted: &str) -> Option<&'l Location> {
    if wanted.is_empty() {
        let marked = locations.iter().find(|location| location.is_default);
        return marked.or_else(|| locations.iter().find(|location| location.name == DEFAULT_LOCATION));
    }
    locations.iter().find(|location| location.name == wanted)
}
