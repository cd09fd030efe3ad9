//! Which writes of a phase may pass.

use super::view::MoverPhase;
use crate::mover::MoverKind;

/// One write of the phase of a data mover, as admission sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub kind: MoverKind,
    /// As it is stored. None: it is being created.
    pub from: Option<MoverPhase>,
    pub to: MoverPhase,
    /// Does the **stored** object carry a grant? What the writer brings along does not count.
    pub granted: bool,
    pub third_party: bool,
}

/// How to refuse, so that a stock node-agent takes it well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Status 409: who accepts a DataUpload or DataDownload takes it that another one was faster, and turns to the next
    /// object, without an error.
    Conflict,
    /// Status 403: all other writes are repeated ten times a second **for as long as they conflict**, by the only worker
    /// of that kind on that node: behind a PodVolumeBackup that has no place yet, one that has a place would never
    /// be accepted, and if it held the last one, nothing would move any more. Any other error ends the attempt; it
    /// is repeated later and later, and at once when the object changes, as by a grant.
    Forbidden,
}

/// May this write pass, while a limit is in force?
///
/// # Errors
/// The way to refuse it.
pub fn judge(step: &Step) -> Result<(), Refusal> {
    let takes_place = step.to.holds_place() && !step.from.is_some_and(MoverPhase::holds_place);
    if step.third_party || !takes_place {
        return Ok(());
    }
    match step.from {
        Some(MoverPhase::New) if step.to == MoverPhase::Accepted => match step.granted {
            true => Ok(()),
            false if step.kind.is_bound() => Err(Refusal::Forbidden),
            false => Err(Refusal::Conflict),
        },
        // Some writers do not look at the phase that they replace: one that has ended would come back, and one that begins
        // anew would be Prepared without what was made for it.
        _ => Err(Refusal::Forbidden),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(kind: MoverKind, from: MoverPhase, to: MoverPhase, granted: bool) -> Result<(), Refusal> {
        judge(&Step { kind, from: Some(from), to, granted, third_party: false })
    }

    #[test]
    fn only_what_is_granted_takes_a_place() {
        use MoverKind::*;
        use MoverPhase::*;
        for (kind, from, to, granted, expected) in [
            (DataUpload, New, Accepted, true, Ok(())),
            (PodVolumeRestore, New, Accepted, true, Ok(())),
            (DataUpload, New, Accepted, false, Err(Refusal::Conflict)),
            (DataDownload, New, Accepted, false, Err(Refusal::Conflict)),
            (PodVolumeBackup, New, Accepted, false, Err(Refusal::Forbidden)),
            (PodVolumeRestore, New, Accepted, false, Err(Refusal::Forbidden)),
            (DataUpload, New, Prepared, false, Err(Refusal::Forbidden)),
            (DataUpload, New, Prepared, true, Err(Refusal::Forbidden)),
            (DataUpload, New, Canceled, false, Ok(())),
            (DataUpload, New, New, false, Ok(())),
            (DataUpload, Accepted, Prepared, false, Ok(())),
            (DataUpload, Accepted, New, false, Ok(())),
            (DataUpload, Prepared, InProgress, false, Ok(())),
            (PodVolumeBackup, Canceled, Accepted, true, Err(Refusal::Forbidden)),
            (DataUpload, InProgress, Prepared, true, Err(Refusal::Forbidden)),
        ] {
            assert_eq!(judged(kind, from, to, granted), expected, "{kind} {from:?} to {to:?}, {granted}");
        }
    }

    #[test]
    fn none_is_created_with_a_place() {
        let born = Step {
            kind: MoverKind::DataUpload,
            from: None,
            to: MoverPhase::Accepted,
            granted: true,
            third_party: false,
        };
        assert_eq!(judge(&born), Err(Refusal::Forbidden));
        assert_eq!(judge(&Step { to: MoverPhase::New, ..born }), Ok(()));
    }

    #[test]
    fn what_others_move_is_never_refused() {
        let step = Step {
            kind: MoverKind::DataUpload,
            from: Some(MoverPhase::New),
            to: MoverPhase::Accepted,
            granted: false,
            third_party: true,
        };
        assert_eq!(judge(&step), Ok(()));
    }
}
