//! Compares a record that is found in a bucket with the migration that is asked for. A record may
//! be old, and belong to an earlier entry or location, so nothing is removed because of a record
//! that does not fit.

use super::MigrationPhase;

/// Where the location leads now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    ToSource,
    ToDestination,
    Elsewhere,
}

/// A record, compared with the migration that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct FoundRecord {
    /// The record is of this entry, and not of an earlier one with the same name.
    pub is_of_entry: bool,
    /// The record is of the location whose backups are to be moved.
    pub is_of_location: bool,
    /// The entry still has the directory that the record names.
    pub is_in_place: bool,
    pub leads: Leads,
    pub phase: MigrationPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resume {
    /// Continue from this phase.
    GoOn(MigrationPhase),
    /// The record is of an earlier entry: plan anew, as if there were no record.
    Earlier,
    /// The recorded migration has ended, and another one is asked for: plan anew.
    Over,
    /// Another location is being moved into this directory.
    Another,
    /// The entry had another directory then.
    Moved,
    /// The location leads neither to the source nor to the target.
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
        // Somebody may have written at the source since the last copy.
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
