//! Who may write in an entry's directory while the entry moves from one cluster to another: one of them at any time, by the
//! hub's word. The next one gets it when the one before has said that it writes no more. Who does not answer may be writing
//! still, for as long as nobody says anything else: it may have lost its way to the hub and not that to the store.

/// Who may write there by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    Nobody,
    /// The cluster that it is to be of.
    Wanted,
    /// Another one. `was_made`: and perhaps there is something there by which to write.
    Another {
        was_made: bool,
    },
}

/// What the holder has said of moving away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Nothing,
    /// It saw that it is to, and did as before: its controllers are of an earlier version.
    Deaf,
    /// It writes no more, since the last time that anybody changed his mind.
    LetGo,
}

/// The holder's controllers, as the hub hears of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heard {
    /// They report; or it is not known yet that they do not.
    Lately,
    Silent,
    /// There is no such Seed any more: somebody has said that the cluster is gone.
    Unregistered,
}

/// What people said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    Move,
    /// Not to wait for the holder's answer.
    TakeOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Nobody moves.
    Stay,
    /// From now on the wanted one may write there.
    HandOver(Because),
    Wait(For),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Because {
    /// Nobody had it.
    Free,
    /// The holder never made anything of it.
    NeverMade,
    LetGo,
    /// The holder's cluster is gone, as somebody said.
    Unregistered,
    /// Somebody said so.
    TakenOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum For {
    /// The holder ends its writing.
    Answer,
    /// It may be writing, and says nothing.
    Sign,
    /// Its controllers do not know what they are asked.
    Upgrade,
}

/// `is_expected`: the wanted one's Seed is there. In a hub that is being restored, Seeds come one after the other: one that is
/// not there yet is not gone.
pub fn next(holder: Holder, answer: Answer, heard: Heard, asked: Asked, is_expected: bool) -> Step {
    match (holder, answer, heard, asked) {
        (Holder::Nobody, ..) => Step::HandOver(Because::Free),
        (Holder::Wanted, ..) => Step::Stay,
        (Holder::Another { was_made: false }, ..) => Step::HandOver(Because::NeverMade),
        (Holder::Another { was_made: true }, Answer::LetGo, ..) => Step::HandOver(Because::LetGo),
        (Holder::Another { was_made: true }, _, Heard::Unregistered, _) if is_expected => {
            Step::HandOver(Because::Unregistered)
        }
        (Holder::Another { was_made: true }, _, _, Asked::TakeOver) => Step::HandOver(Because::TakenOver),
        (Holder::Another { was_made: true }, _, Heard::Silent | Heard::Unregistered, Asked::Move) => {
            Step::Wait(For::Sign)
        }
        (Holder::Another { was_made: true }, Answer::Deaf, Heard::Lately, Asked::Move) => {
            Step::Wait(For::Upgrade)
        }
        (Holder::Another { was_made: true }, Answer::Nothing, Heard::Lately, Asked::Move) => {
            Step::Wait(For::Answer)
        }
    }
}

#[cfg(test)]
mod tests;
