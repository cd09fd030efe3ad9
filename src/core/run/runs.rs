//! How often a Backup was run, and whether its runs made progress.

use std::fmt;
use std::str::FromStr;

/// Runs in a row that ended early and came no further than those before. A backup that kills its
/// leader at some object would do so for ever, and block the queue.
pub const MOST_RUNS: u32 = 3;
/// Runs in all that ended early, because a backup that makes a little progress each time blocks the
/// queue, too.
pub const MOST_RUNS_AT_ALL: u32 = 10;

/// The runs of one Backup so far, including the current one. A run that was handed over during a
/// regular shutdown does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    pub all: u32,
    /// Runs in a row without progress, including the latest.
    pub in_vain: u32,
    /// Largest number of objects in a checkpoint of this Backup, as its run recorded after writing
    /// it; 0 if there was none.
    pub furthest: u64,
}

impl Default for Runs {
    /// The first run.
    fn default() -> Self {
        Self { all: 1, in_vain: 1, furthest: 0 }
    }
}

impl Runs {
    /// May the Backup be run again, now that its latest run has ended early?
    pub fn may_go_on(self) -> bool {
        let next = self.next();
        next.in_vain <= MOST_RUNS && next.all <= MOST_RUNS_AT_ALL
    }

    /// The count with the run that begins now, after one that ended early.
    #[must_use]
    pub fn next(self) -> Self {
        Self { all: self.all.saturating_add(1), in_vain: self.in_vain.saturating_add(1), ..self }
    }

    /// The count after a checkpoint with so many objects was written. The first checkpoint only
    /// sets the mark for later ones, so its run counts as one without progress.
    #[must_use]
    pub fn kept(self, stored: u64) -> Self {
        let came_further = self.furthest > 0 && stored > self.furthest;
        let in_vain = if came_further { 0 } else { self.in_vain };
        Self { in_vain, furthest: self.furthest.max(stored), ..self }
    }

    /// For messages: how many runs there were, and how many are allowed.
    pub fn told(self) -> String {
        match self.all <= self.in_vain {
            true => format!("{} of {MOST_RUNS}", self.in_vain),
            false => format!("{} of {MOST_RUNS_AT_ALL}", self.all),
        }
    }

    /// The count without the latest run, which does not count because it ended for another reason.
    #[must_use]
    pub fn without_latest(self) -> Self {
        Self { all: self.all.saturating_sub(1), in_vain: self.in_vain.saturating_sub(1), ..self }
    }
}

/// The value of the annotation `berth.dev/runs`: `IN_VAIN`, or `IN_VAIN ALL FURTHEST` if the other
/// two numbers add anything.
impl fmt::Display for Runs {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { all, in_vain, furthest } = self;
        if *furthest == 0 && all == in_vain {
            return write!(out, "{in_vain}");
        }
        write!(out, "{in_vain} {all} {furthest}")
    }
}

impl FromStr for Runs {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(' ');
        let in_vain = words.next().unwrap_or_default().parse()?;
        let all = words.next().map_or(Ok(in_vain), str::parse)?;
        let furthest = words.next().map_or(Ok(0), str::parse)?;
        Ok(Self { all, in_vain, furthest })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Number of runs when each dies with so many objects in its checkpoint.
    fn all_runs(died_at: impl IntoIterator<Item = u64>) -> u32 {
        let mut runs = Runs::default();
        for stored in died_at {
            runs = runs.kept(stored);
            if !runs.may_go_on() {
                break;
            }
            runs = runs.next();
        }
        runs.all
    }

    #[test]
    fn what_kills_each_run_at_the_same_object_has_three_and_what_comes_further_goes_on() {
        assert_eq!(all_runs([0; 20]), MOST_RUNS);
        assert_eq!(all_runs([7; 20]), MOST_RUNS);
        assert_eq!(all_runs([9, 7, 8, 9, 9, 9]), MOST_RUNS);
        assert_eq!(all_runs([7, 9, 9, 9, 9, 9, 9]), 2 + MOST_RUNS);
        assert_eq!(all_runs([1, 2, 3, 4, 5]), 6);
        assert_eq!(all_runs(1..100), MOST_RUNS_AT_ALL);
    }

    #[test]
    fn what_is_handed_over_does_not_count() {
        let second = Runs::default().kept(5).next();
        assert_eq!(second.without_latest(), Runs { furthest: 5, ..Runs::default() });
        assert_eq!(Runs::default().without_latest().without_latest().to_string(), "0");
    }

    #[test]
    fn a_lone_number_is_what_was_written_before_progress_counted() {
        assert_eq!("2".parse(), Ok(Runs { all: 2, in_vain: 2, furthest: 0 }));
        for wrong in ["", "x", "1 2 x", "-1", "4294967296"] {
            assert!(wrong.parse::<Runs>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn it_is_read_as_it_is_written(all: u32, in_vain: u32, furthest: u64) {
            let runs = Runs { all, in_vain, furthest };
            prop_assert_eq!(runs.to_string().parse(), Ok(runs));
        }

        #[test]
        fn there_are_never_more_than_ten(died_at in prop::collection::vec(0_u64..20, 0..100)) {
            prop_assert!(all_runs(died_at) <= MOST_RUNS_AT_ALL);
        }
    }
}
