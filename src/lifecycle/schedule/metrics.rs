//! What is counted of Schedules: under Velero's names where Velero has one.

use std::collections::BTreeSet;

use berth_core::schedule::SkipReason;
use jiff::SignedDuration;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::CachedSchedule;
use crate::backup::metrics::{BackupMetrics, SCHEDULES};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ScheduleLabels {
    schedule: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SkipReasonLabels {
    reason: &'static str,
}

#[derive(Clone)]
pub struct ScheduleMetrics {
    interval: Family<ScheduleLabels, Gauge>,
    created: Counter,
    skipped: Family<SkipReasonLabels, Counter>,
    failed: Counter,
    lateness: Histogram,
}

impl Default for ScheduleMetrics {
    fn default() -> Self {
        Self {
            interval: Family::default(),
            created: Counter::default(),
            skipped: Family::default(),
            failed: Counter::default(),
            // From 0.125 s to 18 h.
            lateness: Histogram::new(exponential_buckets(0.125, 2.0, 20)),
        }
    }
}

impl ScheduleMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        let velero = registry.sub_registry_with_prefix("velero_schedule");
        let interval = all.interval.clone();
        velero.register(
            "expected_interval_seconds",
            "Time between the next two times of the schedule",
            interval,
        );
        let berth = registry.sub_registry_with_prefix("berth_schedules");
        berth.register("backups_created", "Backups created for Schedules", all.created.clone());
        berth.register("times_skipped", "Times of Schedules without a Backup, by why", all.skipped.clone());
        berth.register(
            "creations_failed",
            "Backups of Schedules that could not be created at once",
            all.failed.clone(),
        );
        berth.register(
            "lateness_seconds",
            "From the time of a Schedule to the creation of its Backup",
            all.lateness.clone(),
        );
        for why in [SkipReason::Late, SkipReason::Overlap] {
            drop(all.skipped.get_or_create(&by(why)));
        }
        all
    }

    pub fn created(&self, late: SignedDuration) {
        self.created.inc();
        self.lateness.observe(late.as_secs_f64().max(0.0));
    }

    pub fn skipped(&self, why: SkipReason) {
        self.skipped.get_or_create(&by(why)).inc();
    }

    pub fn failed(&self) {
        self.failed.inc();
    }

    /// Shows each Schedule, right after it is seen. `known`: those that are shown.
    pub(super) fn keep(
        &self,
        items: &[CachedSchedule],
        known: &mut BTreeSet<String>,
        backups: &BackupMetrics,
    ) {
        let names: BTreeSet<String> =
            items.iter().take(SCHEDULES).map(|item| item.schedule.name.clone()).collect();
        for gone in known.difference(&names) {
            self.interval.remove(&ScheduleLabels { schedule: gone.clone() });
        }
        for item in items.iter().take(SCHEDULES) {
            let schedule = &item.schedule;
            let label = ScheduleLabels { schedule: schedule.name.clone() };
            let seconds = item.interval.filter(|_| !schedule.paused).map(|interval| interval.as_secs());
            match seconds {
                Some(seconds) => drop(self.interval.get_or_create(&label).set(seconds)),
                None => drop(self.interval.remove(&label)),
            }
            if !known.contains(&schedule.name) {
                backups.show_schedule(&schedule.name);
            }
        }
        *known = names;
    }

    /// Gives the gauge a value, because a family without one is not encoded.
    pub fn show_any(&self, schedule: &str) {
        drop(self.interval.get_or_create(&ScheduleLabels { schedule: schedule.to_owned() }));
    }

    /// No Schedule is shown any more, because another leader shows them.
    pub fn forget(&self) {
        self.interval.clear();
    }
}

fn by(why: SkipReason) -> SkipReasonLabels {
    SkipReasonLabels {
        reason: match why {
            SkipReason::Overlap => "Overlap",
            SkipReason::Late => "Late",
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_schedule_shows_its_interval_while_it_is_there_and_not_paused() {
        let item = |name: &str, paused: bool| {
            let schedule = json!({
                "apiVersion": "velero.io/v1", "kind": "Schedule",
                "metadata": {"name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"schedule": "@every 1h", "paused": paused, "template": {}},
            });
            CachedSchedule::of(&serde_json::from_value(schedule).unwrap())
        };
        let mut registry = Registry::default();
        let metrics = ScheduleMetrics::new(&mut registry);
        let (registry, backups, mut known) = (Arc::new(registry), BackupMetrics::default(), BTreeSet::new());
        let mut shown = |items: &[CachedSchedule]| -> Vec<String> {
            metrics.keep(items, &mut known, &backups);
            let text = crate::metrics::encode(&registry).unwrap();
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("velero_schedule_expected_interval_seconds"));
            lines.map(str::to_owned).collect()
        };
        let both = [item("one", false), item("two", false)];
        assert_eq!(shown(&both).len(), 2);
        assert_eq!(shown(&[item("one", false), item("two", true)]), [r#"{schedule="one"} 3600"#]);
        assert_eq!(shown(&both).len(), 2);
        assert_eq!(shown(&both[1..]), [r#"{schedule="two"} 3600"#], "the other one is gone");
    }
}
