//! The storage location of an entry: when there is one, and whether its cluster may write there.
//! Each directory has one writer.

use super::entry_life::Phase;
use berth_core::location::DEFAULT_LOCATION;

/// What its cluster may do there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// The location that there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    None,
    /// The location stays as it is.
    AsItIs,
    Kept(Access),
}

/// `ready`: bucket and directory were created. `exists`: the location is there. It stays if the
/// bucket has a passing fault.
pub fn wanted(phase: Phase, ready: bool, exists: bool) -> Wanted {
    match phase {
        Phase::Live if ready || exists => Wanted::Kept(Access::ReadWrite),
        Phase::Unconfirmed if exists => Wanted::AsItIs,
        // A location that exists becomes read-only; none is created only to be read.
        Phase::Arriving | Phase::Leaving | Phase::Elsewhere | Phase::Grace if exists => {
            Wanted::Kept(Access::ReadOnly)
        }
        Phase::Live
        | Phase::Unconfirmed
        | Phase::Arriving
        | Phase::Leaving
        | Phase::Elsewhere
        | Phase::Grace => Wanted::None,
        Phase::Removing => Wanted::None,
    }
}

/// Is it the default location? Only if a person asks for that, and no other location is.
pub fn is_default(asked: bool, another: bool) -> bool {
    asked && !another
}

/// A location of a member cluster, reduced to what [`legacy`] needs.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    pub is_default: bool,
    /// It leads into the directory of an entry.
    pub is_shared: bool,
}

/// Legacy mode: the cluster's own location for backups that name none, chosen as
/// [`choose`](berth_core::location::choose) does it. `None`: these backups go into a shared bucket,
/// or have no location.
pub fn legacy<'a>(all: &[Candidate<'a>]) -> Option<&'a str> {
    let any_marked = all.iter().any(|one| one.is_default);
    let is_default = |one: &Candidate<'_>| {
        if any_marked { one.is_default } else { one.name == DEFAULT_LOCATION }
    };
    all.iter().find(|one| is_default(one) && !one.is_shared).map(|one| one.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_states() {
        let (rw, ro) = (Wanted::Kept(Access::ReadWrite), Wanted::Kept(Access::ReadOnly));
        let rows = [
            (Phase::Live, false, false, Wanted::None),
            (Phase::Live, true, false, rw),
            (Phase::Live, false, true, rw),
            (Phase::Live, true, true, rw),
            (Phase::Unconfirmed, true, false, Wanted::None),
            (Phase::Unconfirmed, true, true, Wanted::AsItIs),
            (Phase::Arriving, true, true, ro),
            (Phase::Arriving, true, false, Wanted::None),
            (Phase::Leaving, true, true, ro),
            (Phase::Leaving, true, false, Wanted::None),
            (Phase::Elsewhere, true, true, ro),
            (Phase::Elsewhere, true, false, Wanted::None),
            (Phase::Grace, false, true, ro),
            (Phase::Grace, true, false, Wanted::None),
            (Phase::Removing, true, true, Wanted::None),
        ];
        for (phase, ready, exists, mode) in rows {
            assert_eq!(wanted(phase, ready, exists), mode, "{phase:?} ready={ready} exists={exists}");
        }
    }

    #[test]
    fn a_cluster_is_in_legacy_mode_while_its_default_location_is_its_own() {
        let one = |name, is_default, is_shared| Candidate { name, is_default, is_shared };
        let rows: [(&[Candidate<'_>], _); 8] = [
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
