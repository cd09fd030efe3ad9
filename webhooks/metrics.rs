//! Metrics of the answers of one replica.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::intake::TurnedAway;

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum ReviewOutcome {
    Allowed,
    Invalid,
    Conflict,
    Forbidden,
    /// The body was not an AdmissionReview.
    Unreadable,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reviewed {
    rule: &'static str,
    verdict: ReviewOutcome,
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
    /// Buckets from 0.05 ms to 1.6 s.
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.000_05, 2.0, 16))
    }
}

/// Shared by all handlers of a replica.
#[derive(Debug)]
pub struct AdmissionMetrics {
    reviews: Family<Reviewed, Counter>,
    seconds: Family<OfRule, Histogram, Seconds>,
    foreign: Counter,
    turned_away: Family<Turned, Counter>,
    lines_dropped: Counter,
    lines: Ration,
}

/// A limit per second.
#[derive(Debug)]
pub(crate) struct Ration {
    most: usize,
    /// Start of the current second, and how many were taken in it.
    taken: Mutex<(Option<Instant>, usize)>,
}

impl Ration {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes one. `false`: none is left in this second.
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

/// At most this many log lines about answers in one second, because any client that reaches the
/// port could fill the logs.
const LINES: usize = 50;

impl Default for AdmissionMetrics {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(Seconds);
        Self {
            reviews: Family::default(),
            seconds,
            foreign: Counter::default(),
            turned_away: Family::default(),
            lines_dropped: Counter::default(),
            lines: Ration::new(LINES),
        }
    }
}

impl AdmissionMetrics {
    pub(crate) fn register(&self, admission: &mut Registry) {
        admission.register("reviews", "Reviews answered", self.reviews.clone());
        admission.register("seconds", "From the body of a review to its answer", self.seconds.clone());
        admission.register(
            "foreign_queue_writes",
            "Writes of another queue that were refused: switch that queue off",
            self.foreign.clone(),
        );
        admission.register(
            "turned_away",
            "Reviews without a verdict: too large, too slow, too many at once, or late",
            self.turned_away.clone(),
        );
        admission.register(
            "lines_dropped",
            "Log lines about answers dropped because there were too many in one second",
            self.lines_dropped.clone(),
        );
    }

    /// May a line about an answer be logged? Counts the lines that may not.
    pub(crate) fn may_log(&self, now: Instant) -> bool {
        let may = self.lines.take(now);
        if !may {
            self.lines_dropped.inc();
        }
        may
    }

    pub(crate) fn turned_away(&self, rule: &'static str, why: TurnedAway) {
        self.turned_away.get_or_create(&Turned { rule, why }).inc();
    }

    pub(crate) fn answered(&self, rule: &'static str, verdict: ReviewOutcome, took: Duration) {
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
    fn lines_beyond_the_limit_of_a_second_are_dropped_and_counted() {
        let (metrics, now) = (AdmissionMetrics::default(), Instant::now());
        let logged = (0..1000).filter(|_| metrics.may_log(now)).count();
        assert_eq!((logged, metrics.lines_dropped.get()), (LINES, 1000 - LINES as u64));
        assert!(metrics.may_log(now + Duration::from_secs(1)));
    }
}
