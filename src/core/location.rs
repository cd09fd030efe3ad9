//! The BackupStorageLocation that a backup uses, and whether its backups must wait.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// The part of a BackupStorageLocation that these decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    pub name: String,
    pub is_default: bool,
    pub read_only: bool,
    /// The location has the annotation `berth.dev/hold`: its backups wait.
    pub held: bool,
    /// Why the store cannot be used at the moment; `None` if it can.
    pub unavailable: Option<String>,
    /// Since when the store can be used again, if it could not before.
    pub reopened_at: Option<Timestamp>,
}

/// No backup starts for so long after the location became available again. A Velero reads locations
/// from its own cache, and fails a backup for good if it starts it before that cache has the
/// change.
const SETTLING: SignedDuration = SignedDuration::from_secs(2);

impl Location {
    /// The location, with the time of its recovery taken over from how it was `before`.
    #[must_use]
    pub fn seen_after(self, before: Option<&Self>, now: Timestamp) -> Self {
        let reopened_at = match before {
            Some(before) if before.unavailable.is_some() && self.unavailable.is_none() => Some(now),
            Some(before) => before.reopened_at,
            None => None,
        };
        Self { reopened_at, ..self }
    }
}

/// Name of the location of a backup that names none, if no location is marked as default.
pub const DEFAULT_LOCATION: &str = "default";

/// Why the backups of a location must wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Until the annotation `berth.dev/hold` is removed.
    Held,
    /// Until its store can be used.
    Unavailable { why: String },
}

/// The value of `closed_locations` of a [`View`](crate::queue::QueueView): names of the locations
/// whose backups must wait, and the empty name if the default location is one of them. Backups wait
/// instead of starting there, because an executor would fail them.
pub fn closed(locations: &[Location], now: Timestamp) -> HashMap<String, Closed> {
    let why = |location: &Location| match &location.unavailable {
        _ if location.held => Some(Closed::Held),
        Some(why) => Some(Closed::Unavailable { why: why.clone() }),
        None => {
            let settles =
                location.reopened_at.is_some_and(|at| at <= now && now.duration_since(at) < SETTLING);
            settles.then(|| Closed::Unavailable { why: "it became available a moment ago".to_owned() })
        }
    };
    let mut closed: HashMap<String, Closed> =
        locations.iter().filter_map(|location| Some((location.name.clone(), why(location)?))).collect();
    if let Some(why) = choose(locations, "").and_then(why) {
        closed.insert(String::new(), why);
    }
    closed
}

/// The location with that name. For the empty name, the one marked as default, or else the one
/// called `default`.
pub fn choose<'l>(locations: &'l [Location], wanted: &str) -> Option<&'l Location> {
    if wanted.is_empty() {
        let marked = locations.iter().find(|location| location.is_default);
        return marked.or_else(|| locations.iter().find(|location| location.name == DEFAULT_LOCATION));
    }
    locations.iter().find(|location| location.name == wanted)
}

/// A location that is marked as the default one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    pub name: String,
    pub created_at: Timestamp,
}

/// Of several default locations: the one that stays, which was created last, and the others.
pub fn no_longer_default(marked: &[Marked]) -> (Option<&str>, Vec<&str>) {
    let stays = marked.iter().max_by_key(|location| (location.created_at, &location.name));
    let stays = stays.map(|location| location.name.as_str());
    let names = marked.iter().map(|location| location.name.as_str());
    (stays, names.filter(|name| Some(*name) != stays).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_location_that_was_created_last_stays_it() {
        let at = |seconds| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let marked = |name: &str, seconds| Marked { name: name.to_owned(), created_at: at(seconds) };
        assert_eq!(no_longer_default(&[]), (None, vec![]));
        assert_eq!(no_longer_default(&[marked("a", 1)]), (Some("a"), vec![]));
        let three = [marked("a", 1), marked("c", 2), marked("b", 2)];
        assert_eq!(no_longer_default(&three), (Some("c"), vec!["a", "b"]));
    }

    #[test]
    fn backups_of_a_location_that_is_held_or_away_wait_by_its_name_and_by_none() {
        let location = |name: &str, is_default: bool| Location {
            name: name.to_owned(),
            is_default,
            read_only: false,
            held: false,
            unavailable: None,
            reopened_at: None,
        };
        let away = Location { unavailable: Some("no route".to_owned()), ..location("away", true) };
        let held = Location { held: true, ..away.clone() };
        let why = || Closed::Unavailable { why: "no route".to_owned() };
        let expected = HashMap::from([("away".to_owned(), why()), (String::new(), why())]);
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(closed(&[away.clone(), location("there", false)], now), expected);
        assert_eq!(closed(&[held], now).get("away"), Some(&Closed::Held), "somebody has to release it");
        // Velero learns a moment later that it is back.
        let back = location("away", true)
            .seen_after(Some(&away), now)
            .seen_after(Some(&location("away", true)), now);
        assert_eq!(back.reopened_at, None, "it was there before");
        let back = location("away", true).seen_after(Some(&away), now);
        let again = location("away", true).seen_after(Some(&back), now + SETTLING);
        assert!(closed(&[back], now).contains_key("away"));
        assert!(closed(&[again], now + SETTLING).is_empty());
    }
}
