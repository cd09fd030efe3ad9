//! Which writes of a data mover's phase are admitted.

use super::view::MoverPhase;
use crate::mover::MoverKind;

/// One write of the phase of a data mover, as admission sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseWrite {
    pub kind: MoverKind,
    /// The stored phase. `None`: the object is being created.
    pub from: Option<MoverPhase>,
    pub to: MoverPhase,
    /// Does the **stored** object carry a grant? An annotation that the writer adds with this write
    /// does not count.
    pub granted: bool,
    pub third_party: bool,
}

/// How to refuse a write, so that a stock node-agent handles it well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateRefusal {
    /// Status 409: the node-agent that accepts a DataUpload or DataDownload assumes that another
    /// one was faster, and continues with the next object without an error.
    Conflict,
    /// Status 403: a node-agent repeats all other writes ten times a second **as long as they
    /// conflict**, in the only worker of that kind on that node. Behind a PodVolumeBackup without a
    /// place, one with a place would never be accepted; if that one held the last place, nothing
    /// would move any more. Any other error ends the attempt, which is repeated with growing
    /// pauses, and at once when the object changes, for example by a grant.
    Forbidden,
}

/// Is this write admitted while a limit is in force?
///
/// # Errors
/// How to refuse the write.
pub fn judge(step: &PhaseWrite) -> Result<(), GateRefusal> {
    let takes_place = step.to.holds_place() && !step.from.is_some_and(MoverPhase::holds_place);
    if step.third_party || !takes_place {
        return Ok(());
    }
    match step.from {
        Some(MoverPhase::New) if step.to == MoverPhase::Accepted => match step.granted {
            true => Ok(()),
            false if step.kind.is_bound() => Err(GateRefusal::Forbidden),
            false => Err(GateRefusal::Conflict),
        },
        // Some writers do not check the phase that they replace: a data mover that has ended would
        // come back, and one that was reset to New would become Prepared without the objects it
        // needs.
        _ => Err(GateRefusal::Forbidden),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(kind: MoverKind, from: MoverPhase, to: MoverPhase, granted: bool) -> Result<(), GateRefusal> {
        judge(&PhaseWrite { kind, from: Some(from), to, granted, third_party: false })
    }

    #[test]
    fn only_what_is_granted_takes_a_place() {
        use MoverKind::*;
        use MoverPhase::*;
        for (kind, from, to, granted, expected) in [
            (DataUpload, New, Accepted, true, Ok(())),
            (PodVolumeRestore, New, Accepted, true, Ok(())),
            (DataUpload, New, Accepted, false, Err(GateRefusal::Conflict)),
            (DataDownload, New, Accepted, false, Err(GateRefusal::Conflict)),
            (PodVolumeBackup, New, Accepted, false, Err(GateRefusal::Forbidden)),
            (PodVolumeRestore, New, Accepted, false, Err(GateRefusal::Forbidden)),
            (DataUpload, New, Prepared, false, Err(GateRefusal::Forbidden)),
            (DataUpload, New, Prepared, true, Err(GateRefusal::Forbidden)),
            (DataUpload, New, Canceled, false, Ok(())),
            (DataUpload, New, New, false, Ok(())),
            (DataUpload, Accepted, Prepared, false, Ok(())),
            (DataUpload, Accepted, New, false, Ok(())),
            (DataUpload, Prepared, InProgress, false, Ok(())),
            (PodVolumeBackup, Canceled, Accepted, true, Err(GateRefusal::Forbidden)),
            (DataUpload, InProgress, Prepared, true, Err(GateRefusal::Forbidden)),
        ] {
            assert_eq!(judged(kind, from, to, granted), expected, "{kind} {from:?} to {to:?}, {granted}");
        }
    }

    #[test]
    fn none_is_created_with_a_place() {
        let born = PhaseWrite {
            kind: MoverKind::DataUpload,
            from: None,
            to: MoverPhase::Accepted,
            granted: true,
            third_party: false,
        };
        assert_eq!(judge(&born), Err(GateRefusal::Forbidden));
        assert_eq!(judge(&PhaseWrite { to: MoverPhase::New, ..born }), Ok(()));
    }

    #[test]
    fn what_others_move_is_never_refused() {
        let step = PhaseWrite {
            kind: MoverKind::DataUpload,
            from: Some(MoverPhase::New),
            to: MoverPhase::Accepted,
            granted: false,
            third_party: true,
        };
        assert_eq!(judge(&step), Ok(()));
    }
}
