//! Speed of internal periods that no flag sets: polling, silence, settling. Tests shorten them by
//! `BERTH_PACE`. Processes that judge each other's silence must have the same pace.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

const VARIABLE: &str = "BERTH_PACE";
/// Largest factor, because no process does its work within less than a sixtieth of the time.
const FASTEST: u32 = 60;

/// How many times faster periods pass.
static TIMES: LazyLock<u32> = LazyLock::new(|| {
    let said = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<u32>().ok());
    let times = said.unwrap_or(1).clamp(1, FASTEST);
    if times > 1 {
        warn!(times, "{VARIABLE} is set: silences and periods are that much shorter than they should be");
    }
    times
});

/// A period at the present pace.
pub fn paced(usual: Duration) -> Duration {
    usual / *TIMES
}

/// A measured duration at the normal pace, to compare with a normal period.
pub fn passed(elapsed: Duration) -> Duration {
    elapsed.saturating_mul(*TIMES)
}

/// The time of an event, moved to where it would be at the normal pace.
pub fn counted(at: Timestamp, now: Timestamp) -> Timestamp {
    let ago = SignedDuration::try_from(passed(now.duration_since(at).unsigned_abs())).unwrap_or_default();
    if at > now { at } else { now.checked_sub(ago).unwrap_or(Timestamp::MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails if the variable is set for the tests.
    #[test]
    fn time_passes_as_usual_where_nobody_says_otherwise() {
        let (minute, at) = (Duration::from_secs(60), Timestamp::UNIX_EPOCH);
        assert_eq!((paced(minute), passed(minute)), (minute, minute));
        for seconds in [-5, 0, 90] {
            assert_eq!(counted(at, at + SignedDuration::from_secs(seconds)), at);
        }
    }
}
