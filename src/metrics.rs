//! The metrics of berth's processes, in Prometheus' text format.

pub mod data_movement;
pub mod followed;

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use data_movement::OwnMetrics;

const EVENTS_DROPPED: &str = "Events dropped because too many waited to be sent";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabels {
    /// See [`berth_core::queue::QueueReason::word`].
    pub reason: &'static str,
}

/// The queue, as its leader sees it. Gauges follow from the objects, so they are right at once
/// after a restart. A process that does not lead shows zeros.
#[derive(Clone)]
pub struct QueueMetrics {
    pub depth: Gauge,
    pub running: Gauge,
    pub slots: Gauge,
    pub leading: Gauge,
    pub waiting: Family<ReasonLabels, Gauge>,
    pub passed_over: Family<ReasonLabels, Counter>,
    pub dequeued: Counter,
    pub wait: Histogram,
    pub cycle: Histogram,
    pub positions_written: Counter,
    pub conflicts: Counter,
    pub watchdog_trips: Counter,
    pub superseded: Counter,
    pub piled_up: Counter,
    pub unwritable: Gauge,
    pub counted_as_all: Gauge,
    pub executor_available: Gauge,
    pub ca_bundles_missing: Gauge,
    pub events_dropped: Counter,
}

/// Data movers, as the leader sees them.
#[derive(Clone, Default)]
pub struct MoverMetrics {
    pub waiting: Gauge,
    pub preparing: Gauge,
    pub granted: Counter,
    pub recovered: Counter,
    pub missed: Counter,
    pub configuration_faults: Gauge,
    pub configuration_rejected: Gauge,
    pub own: OwnMetrics,
}

impl MoverMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let movers = registry.sub_registry_with_prefix("berth_movers");
        movers.register("waiting", "Data movers without a place", metrics.waiting.clone());
        movers.register("preparing", "Data movers Accepted or Prepared", metrics.preparing.clone());
        movers.register("granted", "Places given to data movers", metrics.granted.clone());
        movers.register(
            "recovered",
            "Data movers restarted because their node-agent was gone",
            metrics.recovered.clone(),
        );
        movers.register(
            "missed_affinity",
            "Pods of data movers created while no webhook answered",
            metrics.missed.clone(),
        );
        movers.register(
            "configuration_faults",
            "Faults in the node-agents' ConfigMap",
            metrics.configuration_faults.clone(),
        );
        movers.register(
            "configuration_rejected",
            "1 where the node-agents' ConfigMap is unusable and the last good one is in use",
            metrics.configuration_rejected.clone(),
        );
        metrics.own.register(movers);
        metrics
    }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ByBucket {
    pub bucket: String,
}

/// Shared buckets, as the hub sees them.
#[derive(Clone, Default)]
pub struct GardenMetrics {
    pub entries: Family<ByBucket, Gauge>,
    pub limit: Family<ByBucket, Gauge>,
    pub pending: Gauge,
    pub executor_changes: Counter,
    pub removed: Counter,
    pub conflicts: Counter,
}

impl GardenMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let garden = registry.sub_registry_with_prefix("berth_garden");
        garden.register("bucket_entries", "BackupEntries in the bucket", metrics.entries.clone());
        garden.register(
            "bucket_limit",
            "Most BackupEntries in the bucket, where there is a limit",
            metrics.limit.clone(),
        );
        garden.register("entries_pending", "BackupEntries without a bucket", metrics.pending.clone());
        garden.register(
            "executor_changes",
            "Times that another seed took over a bucket, or an entry that is being deleted",
            metrics.executor_changes.clone(),
        );
        garden.register(
            "entries_removed",
            "BackupEntries whose deletion is recorded",
            metrics.removed.clone(),
        );
        garden.register(
            "conflicts",
            "Writes given up because the object had changed",
            metrics.conflicts.clone(),
        );
        metrics
    }
}

/// Buckets from 0.1 ms to 26 s.
fn short() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 4.0, 10))
}

/// Buckets from 0.125 s to 18 h.
fn long() -> Histogram {
    Histogram::new(exponential_buckets(0.125, 2.0, 20))
}

impl QueueMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            depth: Gauge::default(),
            running: Gauge::default(),
            slots: Gauge::default(),
            leading: Gauge::default(),
            waiting: Family::default(),
            passed_over: Family::default(),
            dequeued: Counter::default(),
            wait: long(),
            cycle: short(),
            positions_written: Counter::default(),
            conflicts: Counter::default(),
            watchdog_trips: Counter::default(),
            superseded: Counter::default(),
            piled_up: Counter::default(),
            unwritable: Gauge::default(),
            counted_as_all: Gauge::default(),
            executor_available: Gauge::default(),
            ca_bundles_missing: Gauge::default(),
            events_dropped: Counter::default(),
        };
        let queue = registry.sub_registry_with_prefix("berth_queue");
        queue.register("depth", "Waiting Backups", metrics.depth.clone());
        queue.register("running", "Backups that are ReadyToStart or InProgress", metrics.running.clone());
        queue.register("slots", "Backups that may run at the same time", metrics.slots.clone());
        queue.register("leading", "1 where this process leads", metrics.leading.clone());
        queue.register("waiting", "Waiting Backups, by what they wait for", metrics.waiting.clone());
        queue.register(
            "passed_over",
            "Times that a backup began to wait for something, or near the head of the line for another one",
            metrics.passed_over.clone(),
        );
        queue.register("dequeued", "Backups made ReadyToStart", metrics.dequeued.clone());
        queue.register("wait_seconds", "From creation to ReadyToStart", metrics.wait.clone());
        queue.register("cycle_seconds", "One cycle: deciding and writing", metrics.cycle.clone());
        queue.register("positions_written", "Positions written", metrics.positions_written.clone());
        queue.register(
            "conflicts",
            "Writes to Backups that had changed since the decision",
            metrics.conflicts.clone(),
        );
        queue.register(
            "watchdog_trips",
            "Times that a Backup could start and the queue did not move",
            metrics.watchdog_trips.clone(),
        );
        queue.register(
            "superseded",
            "Backups superseded by a later one of their schedule",
            metrics.superseded.clone(),
        );
        queue.register(
            "piled_up",
            "Backups queued while another of their schedule still waited",
            metrics.piled_up.clone(),
        );
        queue.register(
            "unwritable",
            "Backups that are skipped because the API server refuses every write to them",
            metrics.unwritable.clone(),
        );
        queue.register(
            "counted_as_all",
            "Backups that count as all namespaces, because the queue has no room for their names",
            metrics.counted_as_all.clone(),
        );
        queue.register(
            "executor_available",
            "1 where the executor of Backups is available",
            metrics.executor_available.clone(),
        );
        queue.register("events_dropped", EVENTS_DROPPED, metrics.events_dropped.clone());
        registry.register(
            "berth_ca_bundles_missing",
            "Webhooks without a caBundle, where another program has to write it",
            metrics.ca_bundles_missing.clone(),
        );
        metrics
    }
}

/// Registers the counter of Events that a webhook dropped.
pub fn webhook_events_dropped(registry: &mut Registry) -> Counter {
    let dropped = Counter::default();
    registry.register("berth_events_dropped", EVENTS_DROPPED, dropped.clone());
    dropped
}

/// Registers the counter of Events that an agent of shared buckets dropped.
pub fn agent_events_dropped(registry: &mut Registry) -> Counter {
    let dropped = Counter::default();
    registry.register("berth_garden_events_dropped", EVENTS_DROPPED, dropped.clone());
    dropped
}

/// Encodes all registered metrics.
///
/// # Errors
/// Never in practice, because the text is written to memory.
pub fn encode(registry: &Arc<Registry>) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(text)
}
