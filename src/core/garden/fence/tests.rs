use super::*;

#[test]
fn the_table_of_moves() {
    use Answer::{LetGo, Nothing, Outdated};
    use HandoverReason::{Free, NeverMade, TakenOver};
    use Liveness::{Lately, Silent, Unregistered};
    use Request::{Move, TakeOver};
    use WaitingFor::{Sign, Upgrade};
    let made = Holder::Another { was_made: true };
    let unmade = Holder::Another { was_made: false };
    let rows = [
        (Holder::Nobody, Nothing, Unregistered, Move, Step::HandOver(Free)),
        (Holder::Wanted, LetGo, Lately, TakeOver, Step::Stay),
        (Holder::Wanted, Nothing, Silent, Move, Step::Stay),
        (unmade, Nothing, Silent, Move, Step::HandOver(NeverMade)),
        (made, Nothing, Lately, Move, Step::Wait(WaitingFor::Answer)),
        (made, Outdated, Lately, Move, Step::Wait(Upgrade)),
        (made, Nothing, Silent, Move, Step::Wait(Sign)),
        (made, Outdated, Silent, Move, Step::Wait(Sign)),
        (made, LetGo, Silent, Move, Step::HandOver(HandoverReason::LetGo)),
        (made, LetGo, Lately, TakeOver, Step::HandOver(HandoverReason::LetGo)),
        (made, Nothing, Unregistered, Move, Step::HandOver(HandoverReason::Unregistered)),
        (made, Nothing, Silent, TakeOver, Step::HandOver(TakenOver)),
        (made, Nothing, Lately, TakeOver, Step::HandOver(TakenOver)),
    ];
    for (holder, answer, heard, asked, step) in rows {
        assert_eq!(
            next(holder, answer, heard, asked, true),
            step,
            "{holder:?} {answer:?} {heard:?} {asked:?}"
        );
    }
    // Neither Seed is there: the hub is being restored.
    assert_eq!(next(made, Nothing, Unregistered, Move, false), Step::Wait(Sign));
    assert_eq!(next(made, LetGo, Unregistered, Move, false), Step::HandOver(HandoverReason::LetGo));
}
