//! The storage location of an entry: when there is one, and who may write there. Each directory has one writer.

use crate::location::DEFAULT_LOCATION;

/// Who may write there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Who may write there by the hub's word, as one seed sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The hub has not said.
    Nobody,
    Us,
    Another,
}

/// Where the entry is in its life, as one seed sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// Backups of this cluster go there.
    Live,
    /// They are to, and the hub has not said that they may: a hub that was restored says so in a moment.
    Unsaid,
    /// They are to, and another cluster may be writing there still.
    Coming,
    /// Another cluster's backups are to go there, when it has our word that none of ours do.
    Leaving,
    /// Another cluster's backups go there by now.
    Elsewhere,
    /// Deleted, and the data stays for a while.
    Grace,
    /// Its data is going, or is gone.
    Going,
}

/// `is_ours`: backups of this cluster are to go there. `is_released`: its data is to go.
pub fn life(is_ours: bool, holder: Holder, is_deleted: bool, is_released: bool) -> Life {
    match (is_released, is_deleted, is_ours, holder) {
        (true, ..) => Life::Going,
        (false, true, true, _) => Life::Grace,
        // In its grace nobody writes there, and nobody need be asked.
        (false, true, false, _) => Life::Elsewhere,
        (false, false, true, Holder::Us) => Life::Live,
        (false, false, true, Holder::Nobody) => Life::Unsaid,
        (false, false, true, Holder::Another) => Life::Coming,
        (false, false, false, Holder::Us) => Life::Leaving,
        (false, false, false, Holder::Nobody | Holder::Another) => Life::Elsewhere,
    }
}

/// What there should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    None,
    /// Whatever there is, as it is.
    AsItIs,
    Kept(Access),
}

/// `ready`: the bucket is there. `exists`: so is the location. A bucket with a passing fault keeps its locations.
pub fn wanted(life: Life, ready: bool, exists: bool) -> Wanted {
    match life {
        Life::Live if ready || exists => Wanted::Kept(Access::ReadWrite),
        Life::Unsaid if exists => Wanted::AsItIs,
        // Made read-only, but not for that: nobody reads what was never there.
        Life::Coming | Life::Leaving | Life::Elsewhere | Life::Grace if exists => {
            Wanted::Kept(Access::ReadOnly)
        }
        Life::Live | Life::Unsaid | Life::Coming | Life::Leaving | Life::Elsewhere | Life::Grace => {
            Wanted::None
        }
        Life::Going => Wanted::None,
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
        let (rw, ro) = (Wanted::Kept(Access::ReadWrite), Wanted::Kept(Access::ReadOnly));
        let rows = [
            (Life::Live, false, false, Wanted::None),
            (Life::Live, true, false, rw),
            (Life::Live, false, true, rw),
            (Life::Live, true, true, rw),
            (Life::Unsaid, true, false, Wanted::None),
            (Life::Unsaid, true, true, Wanted::AsItIs),
            (Life::Coming, true, true, ro),
            (Life::Coming, true, false, Wanted::None),
            (Life::Leaving, true, true, ro),
            (Life::Leaving, true, false, Wanted::None),
            (Life::Elsewhere, true, true, ro),
            (Life::Elsewhere, true, false, Wanted::None),
            (Life::Grace, false, true, ro),
            (Life::Grace, true, false, Wanted::None),
            (Life::Going, true, true, Wanted::None),
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

    #[test]
    fn only_by_the_hubs_word_does_anybody_write() {
        for holder in [Holder::Nobody, Holder::Us, Holder::Another] {
            for (is_ours, is_deleted, is_released) in [false, true]
                .into_iter()
                .flat_map(|a| [false, true].map(|b| (a, b)))
                .flat_map(|(a, b)| [false, true].map(|c| (a, b, c)))
            {
                let life = life(is_ours, holder, is_deleted, is_released);
                let may_write = is_ours && holder == Holder::Us && !is_deleted && !is_released;
                assert_eq!(life == Life::Live, may_write, "{is_ours} {holder:?} {is_deleted} {is_released}");
                let is_asked = !is_ours && holder == Holder::Us && !is_deleted && !is_released;
                assert_eq!(life == Life::Leaving, is_asked);
            }
        }
    }
}
