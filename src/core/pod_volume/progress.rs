//! What is told of a running job besides its bytes: how many files it has begun, and how fast it
//! is.

use std::collections::VecDeque;
use std::time::Duration;

use crate::bytes::size;

/// Time over which the rate is taken. A shorter one jumps with each pack that is stored.
const WINDOW: Duration = Duration::from_secs(10);
/// How many times of that window are kept, however often the job is looked at.
const MOST: usize = 64;

/// How many bytes a job had done at each of its last times.
#[derive(Clone, Debug, Default)]
pub struct Pace(VecDeque<(Duration, u64)>);

impl Pace {
    /// Bytes a second, over the last ten seconds or all the time that there was. `now`: since the
    /// job began. `bytes`: that it has done by then. `None`: no time has passed.
    pub fn rate(&mut self, now: Duration, bytes: u64) -> Option<u64> {
        self.0.push_back((now, bytes));
        while self.0.len() > MOST || self.0.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= WINDOW) {
            self.0.pop_front();
        }
        let (at, before) = self.0.front()?;
        let passed = now.saturating_sub(*at).as_millis();
        let done = u128::from(bytes.saturating_sub(*before)).saturating_mul(1000);
        Some(u64::try_from(done.checked_div(passed)?).unwrap_or(u64::MAX))
    }
}

/// As in `1234 files, 18.2 MiB/s`.
pub fn text(files: u64, rate: Option<u64>) -> String {
    let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    match rate {
        Some(rate) => format!("{files}, {}/s", size(rate)),
        None => files,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn files_and_rate_are_told_in_words() {
        for (files, rate, told) in [
            (0, None, "0 files"),
            (1, None, "1 file"),
            (2, Some(0), "2 files, 0 bytes/s"),
            (1234, Some(19_084_288), "1234 files, 18.2 MiB/s"),
        ] {
            assert_eq!(text(files, rate), told);
        }
    }

    #[test]
    fn the_rate_is_that_of_the_last_ten_seconds() {
        let mut pace = Pace::default();
        assert_eq!(pace.rate(seconds(0), 0), None);
        // A hundred bytes a second, then ten, then none.
        for (second, bytes, wanted) in
            [(1, 100, 100), (5, 500, 100), (10, 1000, 100), (20, 1100, 10), (30, 1100, 0), (31, 1200, 9)]
        {
            assert_eq!(pace.rate(seconds(second), bytes), Some(wanted), "after {second} seconds");
        }
    }

    proptest! {
        #[test]
        fn no_rate_is_more_than_all_that_was_done_and_little_is_kept(
            steps in proptest::collection::vec((0_u64..5_000, 0_u64..u64::MAX / 512), 1..256),
        ) {
            let (mut pace, mut now, mut bytes) = (Pace::default(), Duration::ZERO, 0_u64);
            for (millis, more) in steps {
                now += Duration::from_millis(millis);
                bytes += more;
                if let Some(rate) = pace.rate(now, bytes) {
                    prop_assert!(u128::from(rate) <= u128::from(bytes) * 1000);
                }
                prop_assert!(pace.0.len() <= MOST);
            }
        }
    }
}
