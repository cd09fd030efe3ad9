//! The storage location of an entry: when there is one, and whether its cluster may write there.
//! Each directory has one writer.

use super::entry_life::EntryPhase;
use berth_core::location::DEFAULT_LOCATION;

/// What its cluster may do there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LocationAccess {
    ReadWrite,
    ReadOnly,
}

/// The location that there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DesiredLocation {
    None,
    /// The location stays as it is.
    AsItIs,
    Kept(LocationAccess),
}

/// `ready`: bucket and directory were created. `exists`: the location is there. It stays if the
/// bucket has a passing fault.
pub fn wanted(phase: EntryPhase, ready: bool, exists: bool) -> DesiredLocation {
    match phase {
        EntryPhase::Live if ready || exists => DesiredLocation::Kept(LocationAccess::ReadWrite),
        EntryPhase::Unconfirmed if exists => DesiredLocation::AsItIs,
        // A location that exists becomes read-only; none is created only to be read.
        EntryPhase::Arriving | EntryPhase::Leaving | EntryPhase::Elsewhere | EntryPhase::Grace if exists => {
            DesiredLocation::Kept(LocationAccess::ReadOnly)
        }
        EntryPhase::Live
        | EntryPhase::Unconfirmed
        | EntryPhase::Arriving
        | EntryPhase::Leaving
        | EntryPhase::Elsewhere
        | EntryPhase::Grace => DesiredLocation::None,
        EntryPhase::Removing => DesiredLocation::None,
    }
}

/// Is it the default location? Only if a person asks for that, and no other location is.
pub fn is_default(asked: bool, another: bool) -> bool {
    asked && !another
}

/// A location of a member cluster, reduced to what [`legacy`] needs.
#[derive(Clone, Copy, Debug)]
pub struct LegacyCandidate<'a> {
    pub name: &'a str,
    pub is_default: bool,
    /// It leads into the directory of an entry.
    pub is_shared: bool,
}

/// Legacy mode: the cluster's own location for backups that name none, chosen as
/// [`choose`](berth_core::location::choose) does it. `None`: these backups go into a shared bucket,
/// or have no location.
pub fn legacy<'a>(all: &[LegacyCandidate<'a>]) -> Option<&'a str> {
    let any_marked = all.iter().any(|one| one.is_default);
    let is_default = |one: &LegacyCandidate<'_>| {
        if any_marked { one.is_default } else { one.name == DEFAULT_LOCATION }
    };
    all.iter().find(|one| is_default(one) && !one.is_shared).map(|one| one.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_states() {
        let (rw, ro) = (
            DesiredLocation::Kept(LocationAccess::ReadWrite),
            DesiredLocation::Kept(LocationAccess::ReadOnly),
        );
        let rows = [
            (EntryPhase::Live, false, false, DesiredLocation::None),
            (EntryPhase::Live, true, false, rw),
            (EntryPhase::Live, false, true, rw),
            (EntryPhase::Live, true, true, rw),
            (EntryPhase::Unconfirmed, true, false, DesiredLocation::None),
            (EntryPhase::Unconfirmed, true, true, DesiredLocation::AsItIs),
            (EntryPhase::Arriving, true, true, ro),
            (EntryPhase::Arriving, true, false, DesiredLocation::None),
            (EntryPhase::Leaving, true, true, ro),
            (EntryPhase::Leaving, true, false, DesiredLocation::None),
            (EntryPhase::Elsewhere, true, true, ro),
            (EntryPhase::Elsewhere, true, false, DesiredLocation::None),
            (EntryPhase::Grace, false, true, ro),
            (EntryPhase::Grace, true, false, DesiredLocation::None),
            (EntryPhase::Removing, true, true, DesiredLocation::None),
        ];
        for (phase, ready, exists, mode) in rows {
            assert_eq!(wanted(phase, ready, exists), mode, "{phase:?} ready={ready} exists={exists}");
        }
    }

    #[test]
    fn a_cluster_is_in_legacy_mode_while_its_default_location_is_its_own() {
        let one = |name, is_default, is_shared| LegacyCandidate { name, is_default, is_shared };
        let rows: [(&[LegacyCandidate<'_>], _); 8] = [
            (&[], None),
            (&[one("old", true, false)], Some("old")),
            (&[one("old", false, false)], None),
            (&[one("default", false, false)], Some("default")),
            (&[one("default", false, false), one("old", true, false)], Some("old")),
            // Led into an entry's directory, or made there.
            (&[one("old", true, true)], None),
            (&[one("default", false, true)], None),
            (&[one("default", false, false), one("ship--1", true, true)], None),
        ];
        for (all, wanted) in rows {
            assert_eq!(legacy(all), wanted, "{all:?}");
        }
    }
}
