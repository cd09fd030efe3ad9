//! The permission to remove data for a hub. An object in a member cluster may carry an old deletion
//! of the hub's; by then another seed may have removed that data, and a new entry of the same name
//! may have its own there. So a permit is valid only for a short time after the hub was asked, and
//! no longer than it takes the hub to choose another seed.

use std::time::Duration;

use jiff::Timestamp;

use super::assignment::SILENT;

/// How long a permit is valid.
pub const VALID: Duration = Duration::from_secs(30);
/// After this time the hub is asked again.
pub const ASK_AGAIN: Duration = Duration::from_secs(8);

const _: () = assert!(VALID.as_secs() < SILENT.as_secs().unsigned_abs());
const _: () = assert!(ASK_AGAIN.as_secs() * 3 < VALID.as_secs());

/// A time by two clocks, because one stops while the machine is suspended, and the other one is set
/// now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Since this process began.
    pub steady: Duration,
    pub wall: Timestamp,
}

impl ClockReading {
    /// By the clock that shows the longer time.
    fn since(self, before: Self) -> Duration {
        let wall = self.wall.duration_since(before.wall).unsigned_abs();
        self.steady.saturating_sub(before.steady).max(wall)
    }
}

/// Is a permit still valid that was asked for at `asked`? The hub answered after that time, so the
/// permit is never valid for longer than it should be.
pub fn is_valid(asked: ClockReading, now: ClockReading) -> bool {
    now.since(asked) < VALID
}

/// Does the hub have to be asked again?
pub fn is_stale(asked: ClockReading, now: ClockReading) -> bool {
    now.since(asked) >= ASK_AGAIN
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    /// So many seconds later by each clock.
    fn after(start: ClockReading, steady: u64, wall: i64) -> ClockReading {
        ClockReading {
            steady: start.steady + Duration::from_secs(steady),
            wall: start.wall + SignedDuration::from_secs(wall),
        }
    }

    #[test]
    fn a_permit_is_valid_while_it_is_fresh_by_both_clocks() {
        let start = ClockReading { steady: Duration::from_secs(9), wall: Timestamp::UNIX_EPOCH };
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
            assert_eq!(is_valid(start, after(start, steady, wall)), is_given, "{steady} {wall}");
        }
        assert!(!is_stale(start, after(start, 7, 7)) && is_stale(start, after(start, 8, 8)));
    }
}
