//! Which cluster may write in an entry's directory while the entry moves from one to another: only
//! one at any time, and the hub decides. The next one may write once the holder has answered that
//! it writes no more. A holder that does not answer counts as writing until a person says
//! otherwise, because it may have lost the connection to the hub and not that to the store.

/// The cluster that may write there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectoryWriter {
    Nobody,
    /// The cluster that the entry should belong to.
    Wanted,
    /// Another one. `was_made`: its directory was created, so the cluster may have a location
    /// there.
    Another {
        was_made: bool,
    },
}

/// The holder's answer to the request to give the entry up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoverAnswer {
    Nothing,
    /// It has seen the request and ignored it: its controllers are of an earlier version.
    Outdated,
    /// It writes no more, as of the present generation of the entry.
    LetGo,
}

/// The heartbeats of the holder's controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Liveness {
    /// They report, or it is not known yet that they do not.
    Lately,
    Silent,
    /// Its Seed was deleted, by which a person says that the cluster is gone.
    Unregistered,
}

/// What people asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoverRequest {
    Move,
    /// A move that does not wait for the holder's answer.
    TakeOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoverStep {
    /// The entry does not move.
    Stay,
    /// From now on the wanted cluster may write there.
    HandOver(HandoverReason),
    Wait(WaitingFor),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HandoverReason {
    /// There was no holder.
    Free,
    /// The holder never created the directory.
    NeverMade,
    LetGo,
    /// The holder's Seed was deleted.
    Unregistered,
    /// A person asked not to wait.
    TakenOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitingFor {
    /// The holder has to stop writing, and to answer.
    Answer,
    /// The holder may still be writing, and sends no heartbeats.
    Sign,
    /// The holder's controllers are too old to know the request, and must be upgraded.
    Upgrade,
}

/// `is_expected`: the Seed of the wanted cluster is there. In a hub that is being restored, Seeds
/// appear one after the other, and a missing one is not gone.
pub fn next(
    holder: DirectoryWriter,
    answer: HandoverAnswer,
    heard: Liveness,
    asked: HandoverRequest,
    is_expected: bool,
) -> HandoverStep {
    match (holder, answer, heard, asked) {
        (DirectoryWriter::Nobody, ..) => HandoverStep::HandOver(HandoverReason::Free),
        (DirectoryWriter::Wanted, ..) => HandoverStep::Stay,
        (DirectoryWriter::Another { was_made: false }, ..) => {
            HandoverStep::HandOver(HandoverReason::NeverMade)
        }
        (DirectoryWriter::Another { was_made: true }, HandoverAnswer::LetGo, ..) => {
            HandoverStep::HandOver(HandoverReason::LetGo)
        }
        (DirectoryWriter::Another { was_made: true }, _, Liveness::Unregistered, _) if is_expected => {
            HandoverStep::HandOver(HandoverReason::Unregistered)
        }
        (DirectoryWriter::Another { was_made: true }, _, _, HandoverRequest::TakeOver) => {
            HandoverStep::HandOver(HandoverReason::TakenOver)
        }
        (
            DirectoryWriter::Another { was_made: true },
            _,
            Liveness::Silent | Liveness::Unregistered,
            HandoverRequest::Move,
        ) => HandoverStep::Wait(WaitingFor::Sign),
        (
            DirectoryWriter::Another { was_made: true },
            HandoverAnswer::Outdated,
            Liveness::Lately,
            HandoverRequest::Move,
        ) => HandoverStep::Wait(WaitingFor::Upgrade),
        (
            DirectoryWriter::Another { was_made: true },
            HandoverAnswer::Nothing,
            Liveness::Lately,
            HandoverRequest::Move,
        ) => HandoverStep::Wait(WaitingFor::Answer),
    }
}

#[cfg(test)]
mod tests;
