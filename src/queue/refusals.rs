//! Counts writes to Backups that the API server refuses again and again, for example because the
//! object is as large as etcd takes, or because an admission policy forbids the write. Such a
//! Backup must not hold a slot that it can never use. Also keeps which writes failed last, for
//! whatever reason: these are tried again after the others.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use kube::Error;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::client::{is_denied, is_too_large};

/// After this many refused writes in a row a Backup is out of the queue.
const ENOUGH: u32 = 3;
/// Pause before the next attempt; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A Backup whose every write has been refused for so long is given up: its Schedule goes on
/// without it. Long enough for a restart of what refused, as an admission webhook.
const GIVEN_UP: Duration = Duration::from_secs(600);

struct Failed {
    /// Number of refusals.
    count: u32,
    /// When the first of these writes failed.
    since: Instant,
    /// When the last write was refused.
    last: Instant,
    /// Number of its last failure.
    failure: u64,
}

impl Failed {
    fn pause(&self) -> Duration {
        let doubled = self.count.saturating_sub(ENOUGH).min(8);
        FIRST_PAUSE.saturating_mul(1 << doubled).min(LONGEST_PAUSE)
    }
}

#[derive(Default)]
pub struct Refusals(Mutex<FailedWrites>);

#[derive(Default)]
struct FailedWrites {
    /// By UID.
    failed: HashMap<String, Failed>,
    /// Number of failures so far.
    failures: u64,
}

impl FailedWrites {
    fn fails(&mut self, uid: &str) -> &mut Failed {
        self.failures = self.failures.saturating_add(1);
        let now = Instant::now();
        let new = || Failed { count: 0, since: now, last: now, failure: 0 };
        let failed = self.failed.entry(uid.to_owned()).or_insert_with(new);
        failed.failure = self.failures;
        failed
    }
}

/// Whether the answer is about this object, and any other object might be written.
pub fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Api(status) => {
            let passes = matches!(status.code, 401 | 404 | 408 | 409 | 429) && !is_denied(error);
            matches!(status.code, 400..=500) && !passes
        }
        _ => false,
    }
}

/// Whether the same write will be refused again. An internal error of the API server may pass.
pub fn is_lasting(error: &Error) -> bool {
    let is_own = matches!(error, Error::Api(status) if status.code == 500);
    is_too_large(error) || (is_refusal(error) && !is_own)
}

impl Refusals {
    /// Counts a refusal. `true`: it takes the Backup out of the queue.
    pub fn refused(&self, uid: &str) -> bool {
        let mut noted = self.0.lock();
        let refused = noted.fails(uid);
        refused.count = refused.count.saturating_add(1);
        refused.last = Instant::now();
        refused.count == ENOUGH
    }

    /// Counts a failed write, whatever the reason.
    pub fn failed(&self, uid: &str) {
        self.0.lock().fails(uid);
    }

    pub fn written(&self, uid: &str) {
        self.0.lock().failed.remove(uid);
    }

    /// UIDs of the Backups whose last write failed, each with the number of that failure.
    pub fn failures(&self) -> HashMap<String, u64> {
        self.0.lock().failed.iter().map(|(uid, failed)| (uid.clone(), failed.failure)).collect()
    }

    /// UIDs of the Backups that are out of the queue now.
    pub fn out_of_line(&self) -> HashSet<String> {
        let noted = self.0.lock();
        let is_out = |refused: &Failed| refused.count >= ENOUGH && refused.last.elapsed() < refused.pause();
        noted.failed.iter().filter(|(_, refused)| is_out(refused)).map(|(uid, _)| uid.clone()).collect()
    }

    /// UIDs of the Backups that were refused often enough and not written since.
    pub fn lasting(&self) -> BTreeSet<String> {
        let noted = self.0.lock();
        noted
            .failed
            .iter()
            .filter(|(_, refused)| refused.count >= ENOUGH)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// UIDs of those of them that were not written for so long that they may never be.
    pub fn given_up(&self) -> HashSet<String> {
        let noted = self.0.lock();
        let is_given_up = |failed: &Failed| failed.count >= ENOUGH && failed.since.elapsed() >= GIVEN_UP;
        noted.failed.iter().filter(|(_, failed)| is_given_up(failed)).map(|(uid, _)| uid.clone()).collect()
    }

    pub fn keep(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().failed.retain(|uid, _| is_known(uid));
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_is_about_the_object_is_told_from_what_passes() {
        for (code, message, refusal, lasting) in [
            (400, "", true, true),
            (403, "", true, true),
            (413, "", true, true),
            (422, "", true, true),
            (500, "", true, false),
            (500, "etcdserver: request is too large", true, true),
            (503, "", false, false),
            // The client is unknown or sends too many requests: any other object would fare the
            // same.
            (401, "", false, false),
            (404, "", false, false),
            (408, "", false, false),
            (409, "", false, false),
            (429, "", false, false),
        ] {
            let error = Error::Api(Status::failure(message, "").with_code(code).boxed());
            assert_eq!((is_refusal(&error), is_lasting(&error)), (refusal, lasting), "{code} {message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_known_in_the_order_of_its_last_failure_until_it_is_written_or_gone() {
        let refusals = Refusals::default();
        refusals.failed("a");
        refusals.refused("b");
        for _ in 0..ENOUGH {
            refusals.failed("a");
        }
        let failures = refusals.failures();
        assert!(failures["a"] > failures["b"], "{failures:?}");
        assert!(refusals.lasting().is_empty(), "what was not refused is in the line");
        refusals.written("a");
        refusals.keep(|uid| uid != "b");
        assert!(refusals.failures().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_three_times_is_out_of_the_line_and_tried_again_ever_more_seldom() {
        let refusals = Refusals::default();
        assert!(!refusals.refused("a") && !refusals.refused("a") && refusals.out_of_line().is_empty());
        assert!(refusals.refused("a"));
        for seconds in [5, 10, 20, 40, 60, 60] {
            assert!(refusals.out_of_line().contains("a"));
            tokio::time::advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
            assert!(refusals.out_of_line().contains("a"), "{seconds}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(refusals.out_of_line().is_empty(), "{seconds}");
            assert!(refusals.lasting().contains("a"), "only its next try may succeed");
            assert!(!refusals.refused("a"));
        }
        refusals.written("a");
        assert!(refusals.out_of_line().is_empty() && refusals.lasting().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_for_ten_minutes_is_given_up_until_it_is_written() {
        let refusals = Refusals::default();
        for uid in ["a", "a", "a", "b", "b"] {
            refusals.refused(uid);
        }
        tokio::time::advance(GIVEN_UP - Duration::from_millis(1)).await;
        assert!(refusals.given_up().is_empty());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(refusals.given_up(), HashSet::from(["a".to_owned()]));
        refusals.written("a");
        refusals.refused("a");
        assert!(refusals.given_up().is_empty());
    }
}
