//! Whose the files of a Restore are. They lie in a folder of its name, nothing in them says which
//! cluster has written them, and another one that shares the place may have a Restore of the same
//! name. So the time tells: what was written while the Restore ran is its.

use jiff::{SignedDuration, Timestamp};

/// How much the clocks of a store and of a cluster differ at most.
const LAG: SignedDuration = SignedDuration::from_mins(5);

/// When a Restore ran, by its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreTimes {
    pub started: Option<Timestamp>,
    pub ended: Option<Timestamp>,
}

impl RestoreTimes {
    /// Has the Restore provably written a file that the store took at this time?
    pub fn has(self, written: Timestamp) -> bool {
        let (Some(started), Some(ended)) = (self.started, self.ended) else { return false };
        started.duration_since(written) <= LAG && written.duration_since(ended) <= LAG
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_while_a_restore_ran_is_its_and_nothing_else() {
        let at = |seconds: i64| Timestamp::from_second(seconds).unwrap();
        let times = RestoreTimes { started: Some(at(10_000)), ended: Some(at(11_000)) };
        for (written, is_its) in [
            (9_699, false),
            (9_700, true),
            (10_000, true),
            (10_500, true),
            (11_300, true),
            (11_301, false),
            (0, false),
        ] {
            assert_eq!(times.has(at(written)), is_its, "{written}");
        }
        for unknown in [RestoreTimes { started: None, ..times }, RestoreTimes { ended: None, ..times }] {
            assert!(!unknown.has(at(10_500)), "{unknown:?}");
        }
    }
}
