//! What becomes of a backup when its run ends before it does, as whoever ran it says.

use super::AfterInterruption;

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its process is to end.
    Stopped,
    /// The store or the API server failed: another run may find it well.
    Passing,
    /// The store does not go on with the upload, or does not put it together: it is gone, or a part of it is another one. No run
    /// will ever come further with it.
    Unusable,
    /// Another run would end as this one did, or nobody wants one.
    Lasting,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub cause: Cause,
    /// There may be another run after this one: see [`super::Runs::may_go_on`].
    pub may_go_on: bool,
    /// A checkpoint stands in the store: this run's, or the one that it began with.
    pub is_resumable: bool,
    /// It went on from a checkpoint, and its store took nothing more.
    pub is_stuck: bool,
    pub setting: AfterInterruption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Whoever leads next runs it, and this run does not count.
    HandOver,
    /// It is run again, from its checkpoint.
    Resume,
    /// It is run again, from nothing: what its checkpoint names is of no use.
    Restart,
    End,
}

pub fn after(ended: &Ended) -> Next {
    let is_worth_it = ended.is_resumable && ended.may_go_on;
    match ended.cause {
        _ if ended.setting == AfterInterruption::Fail => Next::End,
        Cause::Stopped => Next::HandOver,
        Cause::Passing if is_worth_it && !ended.is_stuck => Next::Resume,
        Cause::Passing | Cause::Unusable if is_worth_it => Next::Restart,
        Cause::Passing | Cause::Unusable | Cause::Lasting => Next::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_that_is_of_no_use_costs_a_run_and_not_the_backup() {
        use Next::{End, HandOver, Restart, Resume};
        for (cause, is_resumable, is_stuck, next) in [
            (Cause::Stopped, false, false, HandOver),
            (Cause::Stopped, true, true, HandOver),
            (Cause::Passing, true, false, Resume),
            (Cause::Passing, true, true, Restart),
            (Cause::Passing, false, false, End),
            (Cause::Unusable, true, false, Restart),
            (Cause::Unusable, true, true, Restart),
            // Nobody was promised that: it is as any other failure of a store.
            (Cause::Unusable, false, false, End),
            (Cause::Lasting, true, false, End),
        ] {
            let setting = AfterInterruption::Resume;
            let ended = Ended { cause, may_go_on: true, is_resumable, is_stuck, setting };
            assert_eq!(after(&ended), next, "{ended:?}");
            let last = Ended { may_go_on: false, ..ended };
            let expected = if cause == Cause::Stopped { HandOver } else { End };
            assert_eq!(after(&last), expected, "{last:?}");
            let fails = Ended { setting: AfterInterruption::Fail, ..ended };
            assert_eq!(after(&fails), End, "{fails:?}");
        }
    }
}
