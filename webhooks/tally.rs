//! What a replica answered, counted.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

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
}

impl Default for Tally {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(Seconds);
        Self { reviews: Family::default(), seconds, foreign: Counter::default() }
    }
}

impl Tally {
    pub fn register(&self, registry: &mut Registry) {
        let admission = registry.sub_registry_with_prefix("berth_admission");
        admission.register("reviews", "Reviews answered", self.reviews.clone());
        admission.register("seconds", "From the body of a review to its answer", self.seconds.clone());
        admission.register(
            "foreign_queue_writes",
            "Writes refused to another queue: it should be switched off",
            self.foreign.clone(),
        );
    }

    pub(crate) fn answered(&self, rule: &'static str, verdict: Answer, took: Duration) {
        self.reviews.get_or_create(&Reviewed { rule, verdict }).inc();
        self.seconds.get_or_create(&OfRule { rule }).observe(took.as_secs_f64());
    }

    pub(crate) fn foreign_queue(&self) {
        self.foreign.inc();
    }
}
