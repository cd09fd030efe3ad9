//! Retries of a failed read of the API server: whether there is another attempt, and after which
//! pause.

use std::time::Duration;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server may ask for a longer pause than the usual one, but not for one that lasts for hours.
const LONGEST_ASKED: Duration = Duration::from_secs(60);
/// How long reads are retried while the server has too many requests: such a server is healthy, and
/// the backup must not miss objects because of the throttling.
const THROTTLED: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFault {
    /// The server has too many requests at the moment.
    Throttled,
    /// The next attempt may succeed.
    Passing,
    /// The next attempt would fail, too.
    Lasting,
}

impl ReadFault {
    /// Classifies an answer that is no success by its status code and message.
    pub fn of_answer(code: u16, message: &str) -> Self {
        match code {
            // The server cannot load the type into its cache, for example because its conversion
            // webhook is gone. That does not depend on the number of requests.
            429 if message.contains("storage is (re)initializing") => Self::Passing,
            429 => Self::Throttled,
            // A token that was renewed a moment ago may not be known to every API server yet. A
            // list whose continue token expired starts over.
            401 | 408 | 410 | 500..=599 => Self::Passing,
            _ => Self::Lasting,
        }
    }
}

/// The failures of one read so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failures {
    pub count: u32,
    /// Time since the first failure.
    pub lasted: Duration,
    /// Time since the first failure that was no throttling.
    pub lasted_unthrottled: Duration,
}

impl Failures {
    /// The pause before the next attempt; `None` if there is none.
    ///
    /// `patience` counts from the first failure, so an attempt that takes longer than that is still
    /// repeated. `asked`: the pause that the server asks for. `scatter`: a random number, so that
    /// clients that were refused together do not come back together.
    pub fn pause(
        self,
        fault: ReadFault,
        patience: Duration,
        asked: Option<Duration>,
        scatter: u32,
    ) -> Option<Duration> {
        let longest = (FIRST_PAUSE * (1_u32 << self.count.min(6))).min(LONGEST_PAUSE);
        let own = longest / 2 + longest / 2 * (scatter % 1024) / 1024;
        let pause = own.max(asked.unwrap_or_default().min(LONGEST_ASKED));
        let (lasted, lasts) = match fault {
            ReadFault::Throttled => (self.lasted, patience.max(THROTTLED)),
            ReadFault::Passing => (self.lasted_unthrottled, patience),
            ReadFault::Lasting => return None,
        };
        (lasted + pause < lasts).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn what_concerns_the_server_passes_and_what_concerns_the_request_lasts() {
        for (code, fault) in [
            (401, ReadFault::Passing),
            (403, ReadFault::Lasting),
            (404, ReadFault::Lasting),
            (406, ReadFault::Lasting),
            (408, ReadFault::Passing),
            (410, ReadFault::Passing),
            (422, ReadFault::Lasting),
            (429, ReadFault::Throttled),
            (500, ReadFault::Passing),
            (503, ReadFault::Passing),
            (302, ReadFault::Lasting),
        ] {
            assert_eq!(ReadFault::of_answer(code, "please try again later"), fault, "{code}");
        }
        assert_eq!(ReadFault::of_answer(429, "storage is (re)initializing"), ReadFault::Passing);
    }

    #[test]
    fn pauses_grow_to_a_limit_and_are_scattered() {
        let pause = |count: u32, scatter: u32| {
            Failures { count, ..Failures::default() }.pause(ReadFault::Passing, MINUTE, None, scatter)
        };
        assert_eq!(pause(0, 0), Some(FIRST_PAUSE / 2));
        assert!(pause(0, 1023) > pause(0, 0) && pause(0, 1023) <= Some(FIRST_PAUSE));
        assert_eq!(pause(3, 0), Some(FIRST_PAUSE * 4));
        assert_eq!(pause(u32::MAX, 0), Some(LONGEST_PAUSE / 2));
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it_within_limits() {
        let pause = |asked: u64| {
            let asked = Some(Duration::from_secs(asked));
            Failures::default().pause(ReadFault::Throttled, MINUTE, asked, 0)
        };
        assert_eq!(pause(7), Some(Duration::from_secs(7)));
        assert_eq!(pause(u64::MAX), Some(LONGEST_ASKED));
    }

    #[test]
    fn throttling_is_waited_for_much_longer_than_what_fails() {
        let after = |fault: ReadFault, seconds: u64, patience: Duration| {
            let lasted = Duration::from_secs(seconds);
            let failures = Failures { count: 9, lasted, lasted_unthrottled: lasted };
            failures.pause(fault, patience, None, 0).is_some()
        };
        assert!(after(ReadFault::Passing, 50, MINUTE) && !after(ReadFault::Passing, 60, MINUTE));
        assert!(after(ReadFault::Throttled, 500, MINUTE) && !after(ReadFault::Throttled, 600, MINUTE));
        assert!(after(ReadFault::Throttled, 900, 20 * MINUTE));
        assert!(!after(ReadFault::Lasting, 0, MINUTE) && !after(ReadFault::Passing, 0, Duration::ZERO));
        // After long throttling, one failure of another kind.
        let failures = Failures { count: 9, lasted: 5 * MINUTE, ..Failures::default() };
        assert!(failures.pause(ReadFault::Passing, MINUTE, None, 0).is_some());
    }
}
