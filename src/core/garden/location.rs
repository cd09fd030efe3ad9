//! The storage location of an entry: when there is one, and who may write there. Each directory has one writer.

use crate::location::DEFAULT_LOCATION;

/// Who may write there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Where the entry is in its life, as the seed sees it whose cluster's backups these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Backups of this cluster go there.
    Live,
    /// Its objects are being moved.
    Migrating,
    /// Another cluster's backups go there by now.
    Elsewhere,
    /// Deleted, and the data stays for a while.
    Grace,
    /// Its data is going, or is gone.
    Going,
}

/// The mode of the location that there should be; `None`: none.
///
/// `ready`: the bucket is there. `exists`: so is the location. A bucket with a passing fault keeps its locations.
pub fn wanted(life: Life, ready: bool, exists: bool) -> Option<Access> {
    match life {
        Life::Live => (ready || exists).then_some(Access::ReadWrite),
        // Made read-only, but not for that: nobody reads what was never there.
        Life::Migrating | Life::Elsewhere | Life::Grace => exists.then_some(Access::ReadOnly),
        Life::Going => None,
    }
}

/// Is it the one for backups that name none? Only when somebody asks, and no other location is.
pub fn is_default(asked: bool, another: bool) -> bool {
    asked && !another
}

/// A location of a member cluster, as far as [`legacy`] goes.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub name: &'a str,
    pub is_default: bool,
    /// It is in the directory of an entry: made there, or led there.
    pub is_shared: bool,
}

/// Legacy mode: the cluster's own location to which its backups go that name none, chosen as
/// [`choose`](crate::location::choose) does it. `None`: they go into a shared bucket, or nowhere.
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
        let (rw, ro) = (Some(Access::ReadWrite), Some(Access::ReadOnly));
        let rows = [
            (Life::Live, false, false, None),
            (Life::Live, true, false, rw),
            (Life::Live, false, true, rw),
            (Life::Live, true, true, rw),
            (Life::Migrating, true, true, ro),
            (Life::Migrating, true, false, None),
            (Life::Elsewhere, true, true, ro),
            (Life::Elsewhere, true, false, None),
            (Life::Grace, false, true, ro),
            (Life::Grace, true, false, None),
            (Life::Going, true, true, None),
        ];
        for (life, ready, exists, mode) in rows {
            assert_eq!(wanted(life, ready, exists), mode, "{life:?} ready={ready} exists={exists}");
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
