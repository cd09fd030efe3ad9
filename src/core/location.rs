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
/// it is the default that is meant. Whoever runs a backup whose store cannot be used just now lets it fail: it waits instead.
pub fn closed(locations: &[Location]) -> HashMap<String, Closed> {
    let why = |location: &Location| match &location.unavailable {
        _ if location.held => Some(Closed::Held),
        Some(why) => Some(Closed::Unavailable { why: why.clone() }),
        None => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backups_of_a_location_that_is_held_or_away_wait_by_its_name_and_by_none() {
        let location = |name: &str, is_default: bool| Location {
            name: name.to_owned(),
            is_default,
            read_only: false,
            held: false,
            unavailable: None,
        };
        let away = Location { unavailable: Some("no route".to_owned()), ..location("away", true) };
        let held = Location { held: true, ..away.clone() };
        let why = || Closed::Unavailable { why: "no route".to_owned() };
        let expected = HashMap::from([("away".to_owned(), why()), (String::new(), why())]);
        assert_eq!(closed(&[away, location("there", false)]), expected);
        assert_eq!(closed(&[held]).get("away"), Some(&Closed::Held), "somebody has to release it");
    }
}
