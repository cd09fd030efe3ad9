//! The life of an entry, as one seed sees it. What the hub's object says is read once into a
//! [`HubState`]; every table of this package decides on what this module makes of it. A bucket has
//! the right half of the same life: it is assigned, kept and removed, and never moves.
//!
//! ```text
//!  spec.seedName: this seed                             spec.seedName: another seed
//!
//!   Unconfirmed ── status.seed: this ──▶ Live ────────────▶ Leaving ── answered ──▶ Elsewhere
//!   Arriving  ─── seed; before: another ──┘ │
//!                                           │ deletionTimestamp
//!                                           ▼
//!                                         Grace ── status.releasedAt ──▶ Removing ──▶ (on record)
//! ```
//!
//! - Who may write in the directory follows from the [`EntryPhase`] alone: only in `Live` anybody
//!   may.
//! - What becomes of the member's object follows from the [`Intent`] and its [`MemberState`]
//!   (`member::object`).
//! - How `status.seed` passes from one seed to another is [`fence`](super::fence), on the hub.
//! - How long `Grace` lasts is [`life`](super::retention), on the hub.

/// Whom `status.seed` of the hub's object names. As long as an entry is not deleted, that seed may
/// write there; of a deleted object it is the one that removes the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AssignedSeed {
    /// The hub has assigned no seed, or has lost its statuses.
    #[default]
    Nobody,
    Us,
    Another,
}

/// What the hub's object says, as far as it concerns one seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HubState {
    /// `spec.seedName` of an entry: the backups of this seed's cluster are to go there.
    pub is_ours: bool,
    pub holder: AssignedSeed,
    /// It has a deletionTimestamp.
    pub is_deleted: bool,
    /// It is deleted, and the hub has released its data since. A hub that was restored may have the
    /// release without the deletion, which is then not a release.
    pub is_released: bool,
    /// A seed has reported that its data is gone.
    pub is_removed: bool,
}

/// Where the entry is in its life, as one seed sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryPhase {
    /// Backups of this cluster go there.
    Live,
    /// Backups of this cluster are to go there, and the hub names no holder: after a restore the
    /// hub names one in a moment.
    Unconfirmed,
    /// Backups of this cluster are to go there, and another cluster may still be writing there.
    Arriving,
    /// Another cluster's backups are to go there once this seed has answered that its cluster
    /// writes no more.
    Leaving,
    /// Another cluster's backups go there.
    Elsewhere,
    /// Deleted, and the data stays for a while.
    Grace,
    /// The data is being removed, or is gone.
    Removing,
}

pub fn phase(hub: &HubState) -> EntryPhase {
    match (hub.is_released, hub.is_deleted, hub.is_ours, hub.holder) {
        (true, ..) => EntryPhase::Removing,
        (false, true, true, _) => EntryPhase::Grace,
        // In its grace nobody writes there, so nobody has to be asked.
        (false, true, false, _) => EntryPhase::Elsewhere,
        (false, false, true, AssignedSeed::Us) => EntryPhase::Live,
        (false, false, true, AssignedSeed::Nobody) => EntryPhase::Unconfirmed,
        (false, false, true, AssignedSeed::Another) => EntryPhase::Arriving,
        (false, false, false, AssignedSeed::Us) => EntryPhase::Leaving,
        (false, false, false, AssignedSeed::Nobody | AssignedSeed::Another) => EntryPhase::Elsewhere,
    }
}

/// What the hub wants this seed to do with its object of a bucket or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Intent {
    /// The hub has no object of this name, and no record of the end of one.
    Unknown,
    /// The hub has one, and has assigned no seed.
    Unassigned,
    /// Another seed acts on it, or it has ended and its end is on record.
    Elsewhere,
    /// This seed keeps it.
    Keep,
    /// This seed removes it, with its data.
    Remove,
    /// This seed removed it, and the hub knows.
    Removed,
}

/// `hub`: `None` where the hub has no object of this name. `has_ended`: the hub has a record of the
/// end of the one that the member's object was made for.
pub fn intent(hub: Option<&HubState>, has_ended: bool) -> Intent {
    let Some(hub) = hub else {
        return if has_ended { Intent::Elsewhere } else { Intent::Unknown };
    };
    match (hub.holder, hub.is_released, hub.is_removed) {
        (AssignedSeed::Nobody, ..) => Intent::Unassigned,
        (AssignedSeed::Another, ..) => Intent::Elsewhere,
        (AssignedSeed::Us, false, _) => Intent::Keep,
        (AssignedSeed::Us, true, false) => Intent::Remove,
        (AssignedSeed::Us, true, true) => Intent::Removed,
    }
}

/// The member's object (a bucket or an entry of Gardener's extensions API).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MemberState {
    #[default]
    Absent,
    /// The executor acts on it. `let_go`: the executor was asked to give it up without touching
    /// data.
    Live { let_go: bool },
    /// It is deleted, and the executor has not finished.
    Going { let_go: bool },
    /// It is deleted and the executor has finished: only the courier's finalizer keeps it.
    /// `gone`: its data is gone.
    Done { gone: bool },
    /// It is not deleted, and the executor has given it up with its data in place.
    GivenUp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_speaks_to_the_seed_it_chose() {
        let by = |holder| Some(HubState { holder, ..HubState::default() });
        assert_eq!(intent(None, false), Intent::Unknown);
        assert_eq!(intent(None, true), Intent::Elsewhere);
        assert_eq!(intent(by(AssignedSeed::Nobody).as_ref(), false), Intent::Unassigned);
        assert_eq!(intent(by(AssignedSeed::Another).as_ref(), false), Intent::Elsewhere);
        assert_eq!(intent(by(AssignedSeed::Us).as_ref(), true), Intent::Keep);
        let released = HubState { holder: AssignedSeed::Us, is_released: true, ..HubState::default() };
        assert_eq!(intent(Some(&released), false), Intent::Remove);
        assert_eq!(intent(Some(&HubState { is_removed: true, ..released }), false), Intent::Removed);
    }

    #[test]
    fn a_cluster_writes_only_while_the_hub_names_its_seed() {
        let flags = [false, true];
        for holder in [AssignedSeed::Nobody, AssignedSeed::Us, AssignedSeed::Another] {
            for (is_ours, is_deleted, is_released) in flags
                .into_iter()
                .flat_map(|a| flags.map(|b| (a, b)))
                .flat_map(|(a, b)| flags.map(|c| (a, b, c)))
            {
                let hub = HubState { is_ours, holder, is_deleted, is_released, is_removed: false };
                let is_open = holder == AssignedSeed::Us && !is_deleted && !is_released;
                assert_eq!(phase(&hub) == EntryPhase::Live, is_ours && is_open, "{hub:?}");
                assert_eq!(phase(&hub) == EntryPhase::Leaving, !is_ours && is_open, "{hub:?}");
            }
        }
    }
}
