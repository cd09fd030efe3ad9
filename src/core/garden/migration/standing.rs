//! What a record that is found in a bucket is to whoever asks for a migration. It outlives a good
//! deal: nothing is removed on the word of one that is of something else by now.

use super::MigrationPhase;

/// Where the location leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    ToSource,
    ToDestination,
    Elsewhere,
}

/// A record, compared with what is asked for.
#[derive(Clone, Copy, Debug)]
pub struct FoundRecord {
    /// Made for this entry, and not for an earlier one of its name.
    pub is_of_entry: bool,
    /// Of the location whose backups are to be moved.
    pub is_of_location: bool,
    /// The entry's directory is where it was.
    pub is_in_place: bool,
    pub leads: Leads,
    pub phase: MigrationPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// From this phase.
    GoOn(MigrationPhase),
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

pub fn resume_for(found: &FoundRecord) -> Resume {
    let is_over = found.phase == MigrationPhase::Retired;
    match found.leads {
        _ if !found.is_of_entry => Resume::Earlier,
        _ if !found.is_in_place => Resume::Moved,
        _ if !found.is_of_location && is_over => Resume::Over,
        _ if !found.is_of_location => Resume::Another,
        Leads::ToDestination => Resume::GoOn(found.phase),
        _ if is_over => Resume::Over,
        Leads::Elsewhere => Resume::Astray,
        // Somebody may have written at the source since it was last looked at.
        Leads::ToSource if found.phase == MigrationPhase::CutOver => Resume::GoOn(MigrationPhase::Delta),
        Leads::ToSource => Resume::GoOn(found.phase),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_of_what_it_was_made_for() {
        use Leads::{Elsewhere, ToDestination, ToSource};
        use MigrationPhase::{Copying, CutOver, Retired};
        let found = |phase, leads| FoundRecord {
            is_of_entry: true,
            is_of_location: true,
            is_in_place: true,
            leads,
            phase,
        };
        let rows = [
            (found(Copying, ToSource), Resume::GoOn(Copying)),
            (found(CutOver, ToDestination), Resume::GoOn(CutOver)),
            (found(CutOver, ToSource), Resume::GoOn(MigrationPhase::Delta)),
            (found(Retired, ToDestination), Resume::GoOn(Retired)),
            (found(Retired, ToSource), Resume::Over),
            (found(Retired, Elsewhere), Resume::Over),
            (found(CutOver, Elsewhere), Resume::Astray),
            (found(Copying, Elsewhere), Resume::Astray),
            (FoundRecord { is_of_location: false, ..found(CutOver, ToDestination) }, Resume::Another),
            (FoundRecord { is_of_location: false, ..found(Retired, ToSource) }, Resume::Over),
            (FoundRecord { is_in_place: false, ..found(CutOver, ToDestination) }, Resume::Moved),
        ];
        for (found, wanted) in rows {
            assert_eq!(resume_for(&found), wanted, "{found:?}");
        }
        for leads in [ToSource, ToDestination, Elsewhere] {
            for phase in [Copying, CutOver, Retired] {
                let earlier = FoundRecord { is_of_entry: false, ..found(phase, leads) };
                assert_eq!(resume_for(&earlier), Resume::Earlier, "{earlier:?}");
            }
        }
    }
}
