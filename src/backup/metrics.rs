//! The metrics of Velero's server about backups, under its names and labels, for backups that
//! berth's engine runs, so that existing alerts keep working. Counters begin at zero with the
//! process, as in Velero; gauges are read from the Backups when a leader begins, so that a restart
//! hides neither the last success nor the last failure.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::schedule::BackupOrigin;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::warn;

use crate::client::endless;
use crate::guarded::Guarded;
use crate::text::chain;

/// Most schedules with metrics of their own, because users choose the label and its values are
/// kept.
pub const SCHEDULES: usize = 1000;
/// How far the clocks of two nodes may differ. An end that is further in the future is of a clock
/// that was wrong, and says nothing of when the backup ended.
pub const AHEAD: SignedDuration = SignedDuration::from_mins(5);
/// Label of all other schedules: no object's name begins like this.
const OTHERS: &str = "_others";
/// Velero's buckets: 1, 5, 10, 15, 30 minutes, 1 to 4 hours.
const SECONDS: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 14_400.0];
/// Backups per request, requests, and the pause before another attempt.
const PAGE: u32 = 500;
const PAGES: usize = 200;
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BackupScheduleLabels {
    /// Empty: the backup belongs to no schedule.
    schedule: String,
}

#[derive(Clone, Default)]
pub struct BackupMetrics {
    attempts: Family<BackupScheduleLabels, Counter>,
    successes: Family<BackupScheduleLabels, Counter>,
    partial_failures: Family<BackupScheduleLabels, Counter>,
    failures: Family<BackupScheduleLabels, Counter>,
    validation_failures: Family<BackupScheduleLabels, Counter>,
    with_warnings: Family<BackupScheduleLabels, Counter>,
    deletion_attempts: Family<BackupScheduleLabels, Counter>,
    deletion_successes: Family<BackupScheduleLabels, Counter>,
    deletion_failures: Family<BackupScheduleLabels, Counter>,
    durations: Durations,
    last_successful: Family<BackupScheduleLabels, Gauge>,
    last_status: Family<BackupScheduleLabels, Gauge>,
    items: Family<BackupScheduleLabels, Gauge>,
    errors: Family<BackupScheduleLabels, Gauge>,
    size: Family<BackupScheduleLabels, Gauge>,
    /// For each schedule with metrics of its own, and one for all others.
    last: Arc<Mutex<HashMap<String, LastBackup>>>,
}

#[derive(Clone)]
struct Durations(Family<BackupScheduleLabels, Histogram>);

impl Default for Durations {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

/// Which backup of a schedule its gauges show.
#[derive(Clone, Copy, Default)]
struct LastBackup {
    ended: Option<Timestamp>,
    successful: Option<Timestamp>,
}

impl BackupMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        let backup = registry.sub_registry_with_prefix("velero_backup");
        backup.register("attempt", "Backups that were begun", all.attempts.clone());
        backup.register("success", "Backups that were Completed", all.successes.clone());
        backup.register("partial_failure", "Backups that were PartiallyFailed", all.partial_failures.clone());
        backup.register("failure", "Backups that Failed", all.failures.clone());
        let invalid = all.validation_failures.clone();
        backup.register("validation_failure", "Backups that were FailedValidation", invalid);
        backup.register("warning", "Backups that ended with warnings", all.with_warnings.clone());
        let attempts = all.deletion_attempts.clone();
        backup.register("deletion_attempt", "Deletions of Backups that were begun", attempts);
        let successes = all.deletion_successes.clone();
        backup.register("deletion_success", "Backups that were deleted", successes);
        let failures = all.deletion_failures.clone();
        backup.register("deletion_failure", "Deletions of Backups that failed", failures);
        let durations = all.durations.0.clone();
        backup.register("duration_seconds", "From the beginning of a backup to its end", durations);
        let successful = all.last_successful.clone();
        backup.register("last_successful_timestamp", "When the last Completed backup ended", successful);
        let status = all.last_status.clone();
        backup.register("last_status", "1 where the last backup was Completed, else 0", status);
        backup.register("items_total", "Objects in the last backup", all.items.clone());
        backup.register("items_errors", "Errors of the last backup", all.errors.clone());
        backup.register("tarball_size_bytes", "Archive of the last backup", all.size.clone());
        all
    }

    /// Shows the counters of a schedule that has had no backup yet.
    pub fn show_schedule(&self, schedule: &str) {
        self.label(Some(schedule));
    }

    /// Counts a backup that begins.
    pub fn begun(&self, schedule: Option<&str>) {
        self.attempts.get_or_create(&self.label(schedule)).inc();
    }

    /// Counts a deletion that begins.
    pub fn deletion_begun(&self, schedule: Option<&str>) {
        self.deletion_attempts.get_or_create(&self.label(schedule)).inc();
    }

    /// Counts a deletion that has ended.
    pub fn deletion_ended(&self, schedule: Option<&str>, is_deleted: bool) {
        let counter = if is_deleted { &self.deletion_successes } else { &self.deletion_failures };
        counter.get_or_create(&self.label(schedule)).inc();
    }

    /// Records the size of a stored archive.
    pub fn stored(&self, schedule: Option<&str>, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.size.get_or_create(&self.label(schedule)).set(bytes);
    }

    /// Counts a backup that has ended just now, by this process or found so.
    pub fn ended(&self, backup: &Backup, now: Timestamp) {
        let label = self.label(schedule(backup));
        let counter = match backup.phase() {
            BackupPhase::Completed => &self.successes,
            BackupPhase::PartiallyFailed => &self.partial_failures,
            BackupPhase::Failed => &self.failures,
            BackupPhase::FailedValidation => &self.validation_failures,
            _ => return,
        };
        counter.get_or_create(&label).inc();
        let status = backup.status.as_ref();
        if status.and_then(|status| status.warnings).is_some_and(|warnings| warnings > 0) {
            self.with_warnings.get_or_create(&label).inc();
        }
        let times =
            status.and_then(|s| Some((s.start_timestamp.as_ref()?.0, s.completion_timestamp.as_ref()?.0)));
        if let Some((start, end)) = times {
            let seconds = end.duration_since(start).as_secs_f64().max(0.0);
            self.durations.0.get_or_create(&label).observe(seconds);
        }
        let completed = status.and_then(|status| status.completion_timestamp.as_ref()).map(|time| time.0);
        self.show(backup, &label, completed.unwrap_or(now), now);
    }

    /// Sets the gauges, unless they show a later end. One that is too late ([`AHEAD`]) hides no
    /// other.
    fn show(&self, backup: &Backup, label: &BackupScheduleLabels, ended: Timestamp, now: Timestamp) {
        let mut last = self.last.lock();
        let last = last.entry(label.schedule.clone()).or_default();
        let is_complete = backup.phase() == BackupPhase::Completed;
        let latest = now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX);
        let is_later = |before: Timestamp| before > ended && before <= latest;
        if is_complete && !last.successful.is_some_and(is_later) {
            last.successful = Some(ended);
            self.last_successful.get_or_create(label).set(ended.as_second());
        }
        if last.ended.is_some_and(is_later) {
            return;
        }
        last.ended = Some(ended);
        self.last_status.get_or_create(label).set(i64::from(is_complete));
        let status = backup.status.as_ref();
        let items = status.and_then(|status| status.progress.as_ref()?.items_backed_up);
        self.items.get_or_create(label).set(items.unwrap_or(0));
        self.errors.get_or_create(label).set(status.and_then(|status| status.errors).unwrap_or(0));
    }

    /// Sets the gauges for a backup that had ended before this process led. One that came from a
    /// store may have run in another cluster, whose schedules have the same names.
    fn remember(&self, backup: &Backup, now: Timestamp) {
        let status = backup.status.as_ref();
        let time = status.and_then(|s| s.completion_timestamp.as_ref().or(s.start_timestamp.as_ref()));
        let ended = time.or(backup.metadata.creation_timestamp.as_ref()).map(|time| time.0);
        let generation = backup.metadata.generation;
        let found = BackupOrigin { phase: backup.phase().as_str(), generation, ..BackupOrigin::default() };
        let latest = now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX);
        let Some(ended) = ended.filter(|ended| *ended <= latest) else { return };
        if backup.phase().is_final() && !found.came_finished() {
            self.show(backup, &self.label(schedule(backup)), ended, now);
        }
    }

    /// Reads the existing Backups once, then never completes.
    pub async fn keep(&self, client: &Client, namespace: &str) {
        while let Err(error) = self.rebuild(client, namespace, Timestamp::now()).await {
            warn!(
                error = chain(&error),
                "could not compute the metrics of earlier backups from their Backups: trying again"
            );
            tokio::time::sleep(PAUSE).await;
        }
        std::future::pending().await
    }

    async fn rebuild(&self, client: &Client, namespace: &str, now: Timestamp) -> Result<(), kube::Error> {
        let api: Api<Guarded<Backup>> = Api::namespaced(client.clone(), namespace);
        let mut params = ListParams::default().limit(PAGE);
        for _ in 0..PAGES {
            let page = api.list(&params).await?;
            for backup in page.items {
                // An unreadable Backup is logged by the watch.
                if let Ok(backup) = backup.0 {
                    self.remember(&backup, now);
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(()),
            }
        }
        // To try again would show no more: a schedule that is left out has metrics again when its
        // next backup ends.
        warn!("{}: the metrics of some earlier backups are missing", endless(PAGES, PAGE));
        Ok(())
    }

    /// Clears the gauges, because another leader sets them now.
    pub fn forget(&self) {
        for gauge in [&self.last_successful, &self.last_status, &self.items, &self.errors, &self.size] {
            gauge.clear();
        }
        for last in self.last.lock().values_mut() {
            *last = LastBackup::default();
        }
    }

    /// Creates every counter of the label at once, because a rate needs a zero before the first
    /// increment.
    fn label(&self, schedule: Option<&str>) -> BackupScheduleLabels {
        let schedule = schedule.unwrap_or_default();
        let mut known = self.last.lock();
        let is_full = known.len() >= SCHEDULES && !schedule.is_empty() && !known.contains_key(schedule);
        let name = if is_full { OTHERS } else { schedule };
        let label = BackupScheduleLabels { schedule: name.to_owned() };
        if !known.contains_key(name) {
            known.insert(name.to_owned(), LastBackup::default());
            for counter in [
                &self.attempts,
                &self.successes,
                &self.partial_failures,
                &self.failures,
                &self.validation_failures,
                &self.with_warnings,
                &self.deletion_attempts,
                &self.deletion_successes,
                &self.deletion_failures,
            ] {
                drop(counter.get_or_create(&label));
            }
        }
        label
    }
}

fn schedule(backup: &Backup) -> Option<&str> {
    backup.labels().get(keys::SCHEDULE).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, page};
    use serde_json::{Value, json};

    use super::*;

    fn backup(schedule: &str, phase: &str, minute: u8) -> Value {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {"name": format!("b{minute}"), "labels": {keys::SCHEDULE: schedule}},
            "spec": {},
            "status": {
                "phase": phase, "errors": 2, "warnings": 1, "progress": {"totalItems": 7, "itemsBackedUp": 7},
                "startTimestamp": "2026-01-01T00:00:00Z", "completionTimestamp": format!("2026-01-01T00:{minute:02}:00Z"),
            },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_backups_that_does_not_end_is_left_after_so_many_pages() {
        let path = "/apis/velero.io/v1/namespaces/velero/backups";
        let more = page("1", "more", &[]);
        let api = Scripted::new()
            .always(get(path).answers(more.clone()))
            .always(get(path).page("more").answers(more));
        let metrics = BackupMetrics::default();
        metrics.rebuild(&api.client("velero"), "velero", Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!(api.asked().len(), PAGES);
    }

    fn read(value: Value) -> Backup {
        serde_json::from_value(value).unwrap()
    }

    fn shown(registry: Registry) -> String {
        crate::metrics::encode(&Arc::new(registry)).unwrap()
    }

    fn assert_has(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|one| one == format!("velero_backup_{line}")), "{line}: {text}");
        }
    }

    #[test]
    fn each_end_counts_under_veleros_names_with_its_schedule() {
        let mut registry = Registry::default();
        let metrics = BackupMetrics::new(&mut registry);
        metrics.begun(Some("daily"));
        metrics.stored(Some("daily"), 42);
        let ended = read(backup("daily", "PartiallyFailed", 2));
        metrics.ended(&ended, Timestamp::UNIX_EPOCH);
        metrics.begun(None);
        let text = shown(registry);
        assert_has(
            &text,
            &[
                r#"attempt_total{schedule="daily"} 1"#,
                r#"attempt_total{schedule=""} 1"#,
                r#"success_total{schedule="daily"} 0"#,
                r#"partial_failure_total{schedule="daily"} 1"#,
                r#"failure_total{schedule="daily"} 0"#,
                r#"validation_failure_total{schedule="daily"} 0"#,
                r#"warning_total{schedule="daily"} 1"#,
                r#"duration_seconds_bucket{le="60.0",schedule="daily"} 0"#,
                r#"duration_seconds_bucket{le="300.0",schedule="daily"} 1"#,
                r#"last_status{schedule="daily"} 0"#,
                r#"items_total{schedule="daily"} 7"#,
                r#"items_errors{schedule="daily"} 2"#,
                r#"tarball_size_bytes{schedule="daily"} 42"#,
            ],
        );
        assert!(!text.contains("last_successful_timestamp{"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_restart_gauges_are_those_of_the_last_ends_and_counters_begin_anew() {
        let mut registry = Registry::default();
        let metrics = BackupMetrics::new(&mut registry);
        let path = "/apis/velero.io/v1/namespaces/velero/backups";
        let page = |items: Value, token: &str| json!({"apiVersion": "velero.io/v1", "kind": "BackupList", "metadata": {"continue": token}, "items": items});
        // In no order of time, as names are.
        let first = page(json!([backup("daily", "Failed", 9), backup("daily", "Completed", 5)]), "more");
        // Another cluster's, from a store, and one by a clock that was ahead.
        let mut brought = backup("daily", "Completed", 10);
        brought["metadata"]["generation"] = json!(1);
        let ahead = backup("daily", "Completed", 50);
        let second = page(
            json!([backup("daily", "Completed", 3), backup("new", "InProgress", 1), brought, ahead]),
            "",
        );
        let api = Scripted::new().next(get(path).answers(first)).next(get(path).page("more").answers(second));
        let now = "2026-01-01T00:30:00Z".parse().unwrap();
        metrics.rebuild(&api.client("velero"), "velero", now).await.unwrap();
        let at = "2026-01-01T00:05:00Z".parse::<Timestamp>().unwrap().as_second();
        let text = shown(registry);
        assert_has(
            &text,
            &[
                r#"last_status{schedule="daily"} 0"#,
                &format!(r#"last_successful_timestamp{{schedule="daily"}} {at}"#),
                r#"failure_total{schedule="daily"} 0"#,
            ],
        );
        assert!(!text.contains(r#"schedule="new""#), "it has not ended: {text}");
    }

    #[test]
    fn an_end_by_a_clock_that_was_ahead_hides_no_later_one() {
        let mut registry = Registry::default();
        let metrics = BackupMetrics::new(&mut registry);
        let at = |minute: i64| {
            "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_mins(minute)
        };
        metrics.ended(&read(backup("daily", "Completed", 50)), at(50));
        // The clock is right again.
        metrics.ended(&read(backup("daily", "Failed", 7)), at(7));
        metrics.ended(&read(backup("new", "Completed", 50)), at(50));
        metrics.ended(&read(backup("new", "Completed", 8)), at(8));
        let text = shown(registry);
        let last = at(8).as_second();
        assert_has(
            &text,
            &[
                r#"last_status{schedule="daily"} 0"#,
                &format!(r#"last_successful_timestamp{{schedule="new"}} {last}"#),
            ],
        );
    }

    #[test]
    fn schedules_that_somebody_makes_up_have_one_number_together() {
        let mut registry = Registry::default();
        let metrics = BackupMetrics::new(&mut registry);
        for i in 0..SCHEDULES + 100 {
            metrics.begun(Some(&format!("s{i}")));
        }
        metrics.begun(None);
        let text = shown(registry);
        assert_has(&text, &[r#"attempt_total{schedule="_others"} 100"#, r#"attempt_total{schedule=""} 1"#]);
        let count = text.lines().filter(|line| line.starts_with("velero_backup_attempt_total{")).count();
        assert_eq!(count, SCHEDULES + 2);
    }
}
