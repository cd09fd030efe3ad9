//! What a replica answered, counted.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::intake::TurnedAway;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum Answer {
    Allowed,
    Invalid,
    Conflict,
    Forbidden,
    /// The body was no review.
    Unreadable,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reviewed {
    rule: &'static str,
    verdict: Answer,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Turned {
    rule: &'static str,
    why: TurnedAway,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfRule {
    rule: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    /// A twentieth of a millisecond to a second and a half.
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.000_05, 2.0, 16))
    }
}

/// Shared by all handlers of a replica.
#[derive(Debug)]
pub struct Tally {
    reviews: Family<Reviewed, Counter>,
    seconds: Family<OfRule, Histogram, Seconds>,
    foreign: Counter,
    turned_away: Family<Turned, Counter>,
    untold: Counter,
    lines: Ration,
}

/// So many in one second, and no more.
#[derive(Debug)]
pub(crate) struct Ration {
    most: usize,
    /// The second that goes by, and how many were taken in it.
    taken: Mutex<(Option<Instant>, usize)>,
}

impl Ration {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Is there one more?
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut taken = self.taken.lock();
        let is_same = |since: Instant| now.saturating_duration_since(since) < Duration::from_secs(1);
        if !taken.0.is_some_and(is_same) {
            *taken = (Some(now), 0);
        }
        taken.1 = taken.1.saturating_add(1);
        taken.1 <= self.most
    }
}

/// Lines about answers in one second. Whoever can reach the port could fill the logs.
const LINES: usize = 50;

impl Default for Tally {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(Seconds);
        Self {
            reviews: Family::default(),
            seconds,
            foreign: Counter::default(),
            turned_away: Family::default(),
            untold: Counter::default(),
            lines: Ration::new(LINES),
        }
    }
}

impl Tally {
    pub(crate) fn register(&self, admission: &mut Registry) {
        admission.register("reviews", "Reviews answered", self.reviews.clone());
        admission.register("seconds", "From the body of a review to its answer", self.seconds.clone());
        admission.register(
            "foreign_queue_writes",
            "Writes refused to another queue: it should be switched off",
            self.foreign.clone(),
        );
        admission.register(
            "turned_away",
            "Reviews without a verdict: too large, too slow, too many at once, or late",
            self.turned_away.clone(),
        );
        admission.register(
            "lines_dropped",
            "Log lines about answers, dropped: too many at once",
            self.untold.clone(),
        );
    }

    /// May a line about an answer be logged? What may not is counted.
    pub(crate) fn may_tell(&self, now: Instant) -> bool {
        let may = self.lines.take(now);
        if !may {
            self.untold.inc();
        }
        may
    }

    pub(crate) fn turned_away(&self, rule: &'static str, why: TurnedAway) {
        self.turned_away.get_or_create(&Turned { rule, why }).inc();
    }

    pub(crate) fn answered(&self, rule: &'static str, verdict: Answer, took: Duration) {
        self.reviews.get_or_create(&Reviewed { rule, verdict }).inc();
        self.seconds.get_or_create(&OfRule { rule }).observe(took.as_secs_f64());
    }

    pub(crate) fn foreign_queue(&self) {
        self.foreign.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_are_told_in_a_second_and_the_rest_is_counted() {
        let (tally, now) = (Tally::default(), Instant::now());
        let told = (0..1000).filter(|_| tally.may_tell(now)).count();
        assert_eq!((told, tally.untold.get()), (LINES, 1000 - LINES as u64));
        assert!(tally.may_tell(now + Duration::from_secs(1)));
    }
}
