//! What happens to a backup when its run ends early, as decided by the process that ran it.

use super::AfterInterruption;

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEndCause {
    /// The process must end.
    Stopped,
    /// The store or the API server failed: another run may succeed.
    Passing,
    /// The store neither continues nor completes the upload: it is gone, or a part of it was
    /// replaced. No run can make progress with it.
    Unusable,
    /// Another run would end in the same way, or is not wanted.
    Lasting,
}

/// How a run ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedRun {
    pub cause: RunEndCause,
    /// Another run may follow this one: see [`super::Runs::may_go_on`].
    pub may_go_on: bool,
    /// The store has a checkpoint: this run's, or the one that it began with.
    pub is_resumable: bool,
    /// The run continued from a checkpoint, and the store accepted nothing further.
    pub is_stuck: bool,
    /// The Backup has stored all its objects and has left the queue, so it cannot be restarted.
    pub is_after: bool,
    pub setting: AfterInterruption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFollowUp {
    /// The next leader runs the Backup, and this run does not count.
    HandOver,
    /// The Backup is run again, from its checkpoint.
    Resume,
    /// The Backup is run again from nothing, because what its checkpoint names is unusable.
    Restart,
    End,
}

pub fn after(ended: &EndedRun) -> RunFollowUp {
    let is_worth_it = ended.is_resumable && (ended.may_go_on || ended.is_after);
    match ended.cause {
        _ if ended.setting == AfterInterruption::Fail => RunFollowUp::End,
        RunEndCause::Stopped => RunFollowUp::HandOver,
        RunEndCause::Passing if is_worth_it && (!ended.is_stuck || ended.is_after) => RunFollowUp::Resume,
        RunEndCause::Passing | RunEndCause::Unusable if is_worth_it && !ended.is_after => {
            RunFollowUp::Restart
        }
        RunEndCause::Passing | RunEndCause::Unusable | RunEndCause::Lasting => RunFollowUp::End,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_that_is_of_no_use_costs_a_run_and_not_the_backup() {
        use RunFollowUp::{End, HandOver, Restart, Resume};
        for (cause, is_resumable, is_stuck, next) in [
            (RunEndCause::Stopped, false, false, HandOver),
            (RunEndCause::Stopped, true, true, HandOver),
            (RunEndCause::Passing, true, false, Resume),
            (RunEndCause::Passing, true, true, Restart),
            (RunEndCause::Passing, false, false, End),
            (RunEndCause::Unusable, true, false, Restart),
            (RunEndCause::Unusable, true, true, Restart),
            // Without a checkpoint, this is like every other failure of a store.
            (RunEndCause::Unusable, false, false, End),
            (RunEndCause::Lasting, true, false, End),
        ] {
            let setting = AfterInterruption::Resume;
            let ended = EndedRun { cause, may_go_on: true, is_resumable, is_stuck, is_after: false, setting };
            assert_eq!(after(&ended), next, "{ended:?}");
            let last = EndedRun { may_go_on: false, ..ended };
            let expected = if cause == RunEndCause::Stopped { HandOver } else { End };
            assert_eq!(after(&last), expected, "{last:?}");
            let fails = EndedRun { setting: AfterInterruption::Fail, ..ended };
            assert_eq!(after(&fails), End, "{fails:?}");
            let finalizing = EndedRun { is_after: true, ..ended };
            let expected = match next {
                Restart if cause == RunEndCause::Passing => Resume,
                Restart => End,
                next => next,
            };
            assert_eq!(after(&finalizing), expected, "{finalizing:?}");
            let last = EndedRun { may_go_on: false, ..finalizing };
            assert_eq!(after(&last), expected, "{last:?}");
        }
    }
}
