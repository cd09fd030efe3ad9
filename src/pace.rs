//! How fast time passes for what waits by itself and for nobody: periods of looks, silences, time to settle, none of which anybody
//! can set. Tests make it pass faster, by `BERTH_PACE`, and do not wait for what they test the end of. Whoever judges another
//! one's silence has to have the same pace as that one.

use std::sync::LazyLock;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tracing::warn;

const VARIABLE: &str = "BERTH_PACE";
/// Nobody gets everything done within a sixtieth of the time.
const FASTEST: u32 = 60;

/// How many times faster than usual.
static TIMES: LazyLock<u32> = LazyLock::new(|| {
    let said = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<u32>().ok());
    let times = said.unwrap_or(1).clamp(1, FASTEST);
    if times > 1 {
        warn!(times, "{VARIABLE} is set: silences and periods are that much shorter than they should be");
    }
    times
});

/// How long that lasts.
pub fn paced(usual: Duration) -> Duration {
    usual / *TIMES
}

/// How long it was, to be compared with what is usual.
pub fn passed(elapsed: Duration) -> Duration {
    elapsed.saturating_mul(*TIMES)
}

/// When it would have been, had it been as long ago as it counts.
pub fn counted(at: Timestamp, now: Timestamp) -> Timestamp {
    let ago = SignedDuration::try_from(passed(now.duration_since(at).unsigned_abs())).unwrap_or_default();
    if at > now { at } else { now.checked_sub(ago).unwrap_or(Timestamp::MIN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever sets the variable here gets other numbers.
    #[test]
    fn time_passes_as_usual_where_nobody_says_otherwise() {
        let (minute, at) = (Duration::from_secs(60), Timestamp::UNIX_EPOCH);
        assert_eq!((paced(minute), passed(minute)), (minute, minute));
        for seconds in [-5, 0, 90] {
            assert_eq!(counted(at, at + SignedDuration::from_secs(seconds)), at);
        }
    }
}
