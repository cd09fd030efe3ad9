//! What a record that is found in a bucket is to whoever asks for a migration. It outlives a good deal: nothing is removed on
//! the word of one that is of something else by now.

use super::Phase;

/// Where the location leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    ToSource,
    ToDestination,
    Elsewhere,
}

/// A record, compared with what is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Made for this entry, and not for an earlier one of its name.
    pub is_of_entry: bool,
    /// Of the location whose backups are to be moved.
    pub is_of_location: bool,
    /// The entry's directory is where it was.
    pub is_in_place: bool,
    pub leads: Leads,
    pub phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// From this phase.
    GoOn(Phase),
    /// It is of an earlier entry: planned anew, as if there were none.
    Earlier,
    /// That migration is over, and this is another one: planned anew.
    Over,
    /// Another location is being moved there.
    Another,
    /// The entry's directory was somewhere else.
    Moved,
    /// The location leads to neither end.
    Astray,
}

pub fn standing(found: &Found) -> Standing {
    let is_over = found.phase == Phase::Retired;
    match found.leads {
        _ if !found.is_of_entry => Standing::Earlier,
        _ if !found.is_in_place => Standing::Moved,
        _ if !found.is_of_location && is_over => Standing::Over,
        _ if !found.is_of_location => Standing::Another,
        Leads::ToDestination => Standing::GoOn(found.phase),
        _ if is_over => Standing::Over,
        Leads::Elsewhere => Standing::Astray,
        // Somebody may have written at the source since it was last looked at.
        Leads::ToSource if found.phase == Phase::CutOver => Standing::GoOn(Phase::Delta),
        Leads::ToSource => Standing::GoOn(found.phase),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_what_it_was_made_for() {
        use Leads::{Elsewhere, ToDestination, ToSource};
        use Phase::{Copying, CutOver, Retired};
        let found =
            |phase, leads| Found { is_of_entry: true, is_of_location: true, is_in_place: true, leads, phase };
        let rows = [
            (found(Copying, ToSource), Standing::GoOn(Copying)),
            (found(CutOver, ToDestination), Standing::GoOn(CutOver)),
            (found(CutOver, ToSource), Standing::GoOn(Phase::Delta)),
            (found(Retired, ToDestination), Standing::GoOn(Retired)),
            (found(Retired, ToSource), Standing::Over),
            (found(Retired, Elsewhere), Standing::Over),
            (found(CutOver, Elsewhere), Standing::Astray),
            (found(Copying, Elsewhere), Standing::Astray),
            (Found { is_of_location: false, ..found(CutOver, ToDestination) }, Standing::Another),
            (Found { is_of_location: false, ..found(Retired, ToSource) }, Standing::Over),
            (Found { is_in_place: false, ..found(CutOver, ToDestination) }, Standing::Moved),
        ];
        for (found, wanted) in rows {
            assert_eq!(standing(&found), wanted, "{found:?}");
        }
        for leads in [ToSource, ToDestination, Elsewhere] {
            for phase in [Copying, CutOver, Retired] {
                let earlier = Found { is_of_entry: false, ..found(phase, leads) };
                assert_eq!(standing(&earlier), Standing::Earlier, "{earlier:?}");
            }
        }
    }
}
