//! The metrics of the data movements that berth carries itself, as the leader sees them.

use berth_core::mover::MoverKind;
use berth_core::mover::grant::MoverPhase;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::followed::Followed;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByPhase {
    pub kind: &'static str,
    pub phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByKind {
    pub kind: &'static str,
}

#[derive(Clone)]
pub struct OwnMetrics {
    now: Followed<ByPhase>,
    ended: Family<ByPhase, Counter>,
    pub replaced: Counter,
    bytes: Family<ByKind, Counter>,
    seconds: Family<ByKind, Histogram>,
}

impl Default for OwnMetrics {
    fn default() -> Self {
        Self {
            now: Followed::default(),
            ended: Family::default(),
            replaced: Counter::default(),
            bytes: Family::default(),
            seconds: Family::new_with_constructor(long),
        }
    }
}

/// Buckets from a second to 18 hours.
fn long() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 17))
}

impl OwnMetrics {
    pub fn register(&self, movers: &mut Registry) {
        movers.register(
            "own",
            "Data movements that berth carries itself, by phase, until nothing is left of what was made for them",
            self.now.family.clone(),
        );
        movers.register(
            "own_ended",
            "Data movements that berth carried itself and that have ended, by their last phase",
            self.ended.clone(),
        );
        movers.register(
            "own_pods_replaced",
            "Data mover pods of berth that were evicted, or lost their nodes, and are made again",
            self.replaced.clone(),
        );
        movers.register(
            "own_bytes",
            "Bytes of files and devices that berth's data movements have read or written, those included that the repository had already",
            self.bytes.clone(),
        );
        movers.register(
            "own_seconds",
            "From the first byte of a data movement of berth's to its end",
            self.seconds.clone(),
        );
    }

    /// Shows how many movements are in which phase now.
    pub fn show(&self, all: impl IntoIterator<Item = (MoverKind, MoverPhase)>) {
        let mut counts = std::collections::HashMap::<ByPhase, i64>::new();
        for (kind, phase) in all {
            *counts.entry(ByPhase { kind: kind.as_str(), phase: phase.as_str() }).or_default() += 1;
        }
        self.now.show(counts);
    }

    /// Counts a movement that has ended. `seconds`: `None` if it had not begun.
    pub fn ended(&self, kind: MoverKind, phase: MoverPhase, bytes: u64, seconds: Option<f64>) {
        let kind = kind.as_str();
        self.ended.get_or_create(&ByPhase { kind, phase: phase.as_str() }).inc();
        self.bytes.get_or_create(&ByKind { kind }).inc_by(bytes);
        if let Some(seconds) = seconds {
            self.seconds.get_or_create(&ByKind { kind }).observe(seconds);
        }
    }
}
