//! Leave to remove data for a hub. A deletion of the hub's can be told any time later by an object in a member cluster; by
//! then somebody else may have removed that data, and a new entry of the same name may have its own there. So the hub's
//! word counts while it is fresh, and no longer than it takes the hub to choose somebody else.

use std::time::Duration;

use jiff::Timestamp;

use super::executor::SILENT;

/// How long the hub's word counts.
pub const COUNTS: Duration = Duration::from_secs(30);
/// After so long the hub is asked again.
pub const ASK_AGAIN: Duration = Duration::from_secs(8);

const _: () = assert!(COUNTS.as_secs() < SILENT.as_secs().unsigned_abs());
const _: () = assert!(ASK_AGAIN.as_secs() * 3 < COUNTS.as_secs());

/// By two clocks: one stands still while the machine is suspended, the other one is set now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since this process began.
    pub steady: Duration,
    pub wall: Timestamp,
}

impl Moment {
    /// By the clock that says more.
    fn since(self, before: Self) -> Duration {
        let wall = self.wall.duration_since(before.wall).unsigned_abs();
        self.steady.saturating_sub(before.steady).max(wall)
    }
}

/// Does the word still count that was asked for at `asked`? What was true when it was answered was so after that.
pub fn counts(asked: Moment, now: Moment) -> bool {
    now.since(asked) < COUNTS
}

/// Is the hub to be asked again?
pub fn is_stale(asked: Moment, now: Moment) -> bool {
    now.since(asked) >= ASK_AGAIN
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// So many seconds later by each clock.
    fn after(start: Moment, steady: u64, wall: i64) -> Moment {
        Moment {
            steady: start.steady + Duration::from_secs(steady),
            wall: start.wall + SignedDuration::from_secs(wall),
        }
    }

    #[test]
    fn a_word_counts_while_it_is_fresh_by_both_clocks() {
        let start = Moment { steady: Duration::from_secs(9), wall: Timestamp::UNIX_EPOCH };
        for (steady, wall, is_given) in [
            (0, 0, true),
            (29, 29, true),
            (30, 30, false),
            // A machine that slept.
            (1, 3600, false),
            // A clock that was set back.
            (31, -5, false),
            (1, -3600, false),
            (1, -5, true),
        ] {
            assert_eq!(counts(start, after(start, steady, wall)), is_given, "{steady} {wall}");
        }
        assert!(!is_stale(start, after(start, 7, 7)) && is_stale(start, after(start, 8, 8)));
    }
}
