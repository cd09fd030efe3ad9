use super::*;

#[test]
fn the_table_of_moves() {
    use Answer::{Deaf, LetGo, Nothing};
    use Asked::{Move, TakeOver};
    use Because::{Free, NeverMade, TakenOver};
    use For::{Sign, Upgrade};
    use Heard::{Lately, Silent, Unregistered};
    let made = Holder::Another { was_made: true };
    let unmade = Holder::Another { was_made: false };
    let rows = [
        (Holder::Nobody, Nothing, Unregistered, Move, Step::HandOver(Free)),
        (Holder::Wanted, LetGo, Lately, TakeOver, Step::Stay),
        (Holder::Wanted, Nothing, Silent, Move, Step::Stay),
        (unmade, Nothing, Silent, Move, Step::HandOver(NeverMade)),
        (made, Nothing, Lately, Move, Step::Wait(For::Answer)),
        (made, Deaf, Lately, Move, Step::Wait(Upgrade)),
        (made, Nothing, Silent, Move, Step::Wait(Sign)),
        (made, Deaf, Silent, Move, Step::Wait(Sign)),
        (made, LetGo, Silent, Move, Step::HandOver(Because::LetGo)),
        (made, LetGo, Lately, TakeOver, Step::HandOver(Because::LetGo)),
        (made, Nothing, Unregistered, Move, Step::HandOver(Because::Unregistered)),
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
    assert_eq!(next(made, LetGo, Unregistered, Move, false), Step::HandOver(Because::LetGo));
}
