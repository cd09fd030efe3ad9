use super::*;

#[test]
fn the_table_of_moves() {
    use HandoverAnswer::{LetGo, Nothing, Outdated};
    use HandoverReason::{Free, NeverMade, TakenOver};
    use HandoverRequest::{Move, TakeOver};
    use Liveness::{Lately, Silent, Unregistered};
    use WaitingFor::{Sign, Upgrade};
    let made = DirectoryWriter::Another { was_made: true };
    let unmade = DirectoryWriter::Another { was_made: false };
    let rows = [
        (DirectoryWriter::Nobody, Nothing, Unregistered, Move, HandoverStep::HandOver(Free)),
        (DirectoryWriter::Wanted, LetGo, Lately, TakeOver, HandoverStep::Stay),
        (DirectoryWriter::Wanted, Nothing, Silent, Move, HandoverStep::Stay),
        (unmade, Nothing, Silent, Move, HandoverStep::HandOver(NeverMade)),
        (made, Nothing, Lately, Move, HandoverStep::Wait(WaitingFor::Answer)),
        (made, Outdated, Lately, Move, HandoverStep::Wait(Upgrade)),
        (made, Nothing, Silent, Move, HandoverStep::Wait(Sign)),
        (made, Outdated, Silent, Move, HandoverStep::Wait(Sign)),
        (made, LetGo, Silent, Move, HandoverStep::HandOver(HandoverReason::LetGo)),
        (made, LetGo, Lately, TakeOver, HandoverStep::HandOver(HandoverReason::LetGo)),
        (made, Nothing, Unregistered, Move, HandoverStep::HandOver(HandoverReason::Unregistered)),
        (made, Nothing, Silent, TakeOver, HandoverStep::HandOver(TakenOver)),
        (made, Nothing, Lately, TakeOver, HandoverStep::HandOver(TakenOver)),
    ];
    for (holder, answer, heard, asked, step) in rows {
        assert_eq!(
            next(holder, answer, heard, asked, true),
            step,
            "{holder:?} {answer:?} {heard:?} {asked:?}"
        );
    }
    // Neither Seed is there: the hub is being restored.
    assert_eq!(next(made, Nothing, Unregistered, Move, false), HandoverStep::Wait(Sign));
    assert_eq!(next(made, LetGo, Unregistered, Move, false), HandoverStep::HandOver(HandoverReason::LetGo));
}
