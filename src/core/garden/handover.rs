//! Between a hub and a member cluster: what becomes of the member's object (a bucket or an entry of Gardener's) that was
//! made for one of the hub. Data goes for one reason only: the hub says in so many words that it is to go, and that this
//! cluster is to do it. A hub that knows nothing of an object, or nothing any more, has said no such thing.

/// What the hub says of its object, as seen from one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Told {
    /// Nothing: there is no such object, and no record of its end.
    Nothing,
    /// There is one, and nobody was chosen to act on it.
    Unassigned,
    /// Somebody else acts on it, or it has ended and its end is on record.
    Elsewhere,
    /// It is ours to keep.
    Keep,
    /// It is ours to remove, with its data.
    Remove,
    /// We removed it, and the hub knows.
    Removed,
}

/// The member's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    Absent,
    /// Whoever executes has it in hand. `let_go`: that was told to give it up as it is.
    Live {
        let_go: bool,
    },
    /// Asked to be deleted; who executes is still at it.
    Going {
        let_go: bool,
    },
    /// Who executes is done with it: only our finalizer keeps it. `gone`: and its data is gone.
    Done {
        gone: bool,
    },
    /// The same without a deletion: it was given up as it was.
    GivenUp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Leave,
    /// Make it what the hub wants, where it is not.
    Apply,
    /// Ask for its deletion.
    Delete,
    /// Tell whoever executes to give it up without touching data.
    LetGo,
    /// Tell the hub that it is gone; it is needed until the hub has written that down.
    Report,
    /// Take our finalizer off.
    Release,
}

/// One step at a time: after each the situation is looked at again, so any of them may be the last before a crash.
pub fn next(told: Told, held: Held) -> Step {
    match (told, held) {
        (Told::Nothing | Told::Unassigned, Held::Absent | Held::Live { .. } | Held::Going { .. }) => {
            Step::Leave
        }
        (Told::Nothing | Told::Unassigned, Held::GivenUp) | (Told::Unassigned, Held::Done { .. }) => {
            Step::Leave
        }
        // All was done and told; what is left is a shell.
        (Told::Nothing, Held::Done { .. }) => Step::Release,
        (Told::Elsewhere, Held::Absent) => Step::Leave,
        (Told::Elsewhere, Held::Live { let_go: false } | Held::Going { let_go: false }) => Step::LetGo,
        (Told::Elsewhere, Held::Live { let_go: true } | Held::Going { let_go: true }) => Step::Leave,
        (Told::Elsewhere, Held::GivenUp) => Step::Delete,
        (Told::Elsewhere, Held::Done { .. }) => Step::Release,
        (Told::Keep, Held::Absent | Held::Live { let_go: false }) => Step::Apply,
        // The hub came back from a time before it was to go, or somebody deleted it here: what is left is saved.
        (Told::Keep, Held::Going { let_go: false }) => Step::LetGo,
        (Told::Keep, Held::Live { let_go: true } | Held::Going { let_go: true }) => Step::Leave,
        (Told::Keep, Held::GivenUp) => Step::Delete,
        (Told::Keep, Held::Done { .. }) => Step::Release,
        // Only who has it in hand removes data: another one's object is made here before it is deleted.
        (Told::Remove, Held::Absent) => Step::Apply,
        (Told::Remove, Held::Live { let_go: false }) => Step::Delete,
        (Told::Remove, Held::Live { let_go: true } | Held::Going { .. }) => Step::Leave,
        (Told::Remove, Held::GivenUp) => Step::Delete,
        (Told::Remove, Held::Done { gone: true }) => Step::Report,
        // Given up with its data: begin anew.
        (Told::Remove, Held::Done { gone: false }) => Step::Release,
        (Told::Removed, Held::Done { .. }) => Step::Release,
        (Told::Removed, Held::Absent | Held::Live { .. } | Held::Going { .. } | Held::GivenUp) => Step::Leave,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: [Told; 6] =
        [Told::Nothing, Told::Unassigned, Told::Elsewhere, Told::Keep, Told::Remove, Told::Removed];
    const HELD: [Held; 8] = [
        Held::Absent,
        Held::Live { let_go: false },
        Held::Live { let_go: true },
        Held::Going { let_go: false },
        Held::Going { let_go: true },
        Held::Done { gone: false },
        Held::Done { gone: true },
        Held::GivenUp,
    ];

    /// What the member's object is after a step, and after whoever executes had a turn.
    fn after(held: Held, step: Step) -> Held {
        match (step, held) {
            (Step::Apply, Held::Absent) => Held::Live { let_go: false },
            (Step::Delete, Held::Live { let_go }) => Held::Going { let_go },
            (Step::Delete, Held::GivenUp) => Held::Done { gone: false },
            (Step::LetGo, Held::Live { .. }) => Held::Live { let_go: true },
            (Step::LetGo, Held::Going { .. }) => Held::Going { let_go: true },
            (Step::Release, Held::Done { .. }) => Held::Absent,
            (_, held) => held,
        }
    }

    fn executed(held: Held) -> Held {
        match held {
            Held::Live { let_go: true } => Held::GivenUp,
            Held::Going { let_go } => Held::Done { gone: !let_go },
            held => held,
        }
    }

    #[test]
    fn data_goes_only_when_the_hub_says_so() {
        for told in TOLD {
            for held in HELD {
                let step = next(told, held);
                let removes = step == Step::Delete && matches!(held, Held::Live { let_go: false });
                assert_eq!(
                    removes,
                    told == Told::Remove && held == Held::Live { let_go: false },
                    "{told:?} {held:?} {step:?}"
                );
            }
        }
    }

    #[test]
    fn from_anywhere_each_word_of_the_hub_is_carried_out() {
        for told in TOLD {
            for from in HELD {
                let (mut held, mut reported) = (from, false);
                for _ in 0..12 {
                    let step = next(told, held);
                    reported |= step == Step::Report;
                    held = executed(after(held, step));
                }
                let arrived = match told {
                    // Whoever executes goes on with what it was told before.
                    Told::Nothing | Told::Unassigned => true,
                    Told::Elsewhere => held == Held::Absent,
                    Told::Keep => held == Held::Live { let_go: false },
                    Told::Remove => held == Held::Done { gone: true } && reported,
                    // Only a hub that came back from an older time of its own leaves more than that.
                    Told::Removed => {
                        held == Held::Absent || matches!(from, Held::Live { .. } | Held::GivenUp)
                    }
                };
                assert!(arrived, "told {told:?}, from {from:?}, it became {held:?}");
            }
        }
    }

    #[test]
    fn a_hub_that_lost_everything_changes_nothing() {
        for held in HELD {
            let wanted = if matches!(held, Held::Done { .. }) { Step::Release } else { Step::Leave };
            assert_eq!(next(Told::Nothing, held), wanted, "{held:?}");
        }
    }
}
