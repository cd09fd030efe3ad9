//! The age of the last good backup of each schedule and of each namespace. It is computed from the
//! Backups, so it is right as soon as a leader has listed them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use berth_core::age::{LastGoodBackup, of_namespaces};
use berth_core::namespace::NamespaceSet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::Lifecycle;
use super::known::KnownBackups;
use crate::backup::metrics::AHEAD;
use crate::client::endless;
use crate::metrics::followed::Followed;
use crate::pace::paced;
use crate::text::chain;

/// At most so many schedules have metrics of their own.
const SCHEDULES: usize = 1000;
/// Pause between two computations, because each goes through all Backups.
const PAUSE: Duration = Duration::from_secs(10);
/// How often the namespaces are listed.
const NAMESPACES: Duration = Duration::from_secs(60);
const PAGE: u32 = 500;
/// Pages of one list of them.
const PAGES: usize = 200;
const CALL: Duration = Duration::from_secs(30);

/// When the last good backup ended, by the name of the schedule. `None`: there is none.
type LastGoodBySchedule = BTreeMap<String, Option<Timestamp>>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AgeScheduleLabels {
    schedule: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByNamespace {
    namespace: String,
}

/// The metrics of ages. Only the leader sets them.
#[derive(Clone, Default)]
pub struct AgeMetrics {
    /// A metric with Velero's name.
    total: Gauge,
    schedules: Followed<AgeScheduleLabels>,
    namespaces: Followed<ByNamespace>,
    without: Gauge,
}

impl AgeMetrics {
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        let velero = registry.sub_registry_with_prefix("velero");
        velero.register("backup_total", "Backups in the cluster", all.total.clone());
        let age = registry.sub_registry_with_prefix("berth_last_good_backup");
        age.register(
            "timestamp_seconds",
            "When the last Completed backup of a schedule ended; 0 where none was Completed",
            all.schedules.family.clone(),
        );
        age.register(
            "of_namespace_timestamp_seconds",
            "When the last Completed backup ended that took the whole namespace; 0 where there is none",
            all.namespaces.family.clone(),
        );
        age.register(
            "missing_namespaces",
            "Namespaces of which no Completed backup took the whole",
            all.without.clone(),
        );
        all
    }

    /// Clears the gauges, because another leader sets them now.
    pub fn forget(&self) {
        self.schedules.show([]);
        self.namespaces.show([]);
        self.total.set(0);
        self.without.set(0);
    }

    /// Sets a value for the reference, because a family of metrics is shown only if it has one.
    pub fn show_any(&self, any: &str) {
        self.schedules.show([(AgeScheduleLabels { schedule: any.to_owned() }, 0)]);
        self.namespaces.show([(ByNamespace { namespace: any.to_owned() }, 0)]);
    }

    fn show(&self, known: &KnownBackups, namespaces: &BTreeSet<String>, most: usize, now: Timestamp) {
        // Backups that berth created for Schedules, and Backups that only have their labels.
        let (mut made, mut labelled) = (LastGoodBySchedule::new(), LastGoodBySchedule::new());
        // By the set of namespaces, because most Backups belong to a few schedules with the same
        // set.
        let mut good: BTreeMap<Arc<NamespaceSet>, Timestamp> = BTreeMap::new();
        let mut total = 0;
        let read_only = known.read_only_locations();
        let latest = now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX);
        known.each(|_, backup| {
            total += 1;
            // A backup that another cluster stores says nothing of this cluster, which may have
            // none.
            if backup.came_finished() && read_only.contains(&backup.location) {
                return;
            }
            // A backup that ended in the future, by a wrong clock, would hide for long that there
            // is no newer one.
            let good_at = backup.good_at.filter(|at| *at <= latest);
            let of_its_kind = if backup.is_of_schedule() { &mut made } else { &mut labelled };
            if let Some(schedule) = &backup.schedule
                && (of_its_kind.len() < SCHEDULES || of_its_kind.contains_key(schedule))
            {
                let last = of_its_kind.entry(schedule.clone()).or_default();
                *last = (*last).max(good_at);
            }
            if let (Some(set), Some(at)) = (&backup.namespaces, good_at) {
                let last = good.entry(Arc::clone(set)).or_insert(at);
                *last = (*last).max(at);
            }
        });
        self.total.set(total);
        labelled.retain(|schedule, _| !made.contains_key(schedule));
        let schedules = made.into_iter().chain(labelled).take(SCHEDULES);
        self.schedules.show(schedules.map(|(schedule, at)| (AgeScheduleLabels { schedule }, seconds(at))));
        let good = good.into_iter().map(|(namespaces, ended)| LastGoodBackup { namespaces, ended }).collect();
        let ages = of_namespaces(namespaces.iter().map(String::as_str), good);
        let without = ages.values().filter(|last| last.is_none()).count();
        self.without.set(i64::try_from(without).unwrap_or(i64::MAX));
        // If there is no room for all, the oldest come first.
        let mut ages: Vec<(Option<Timestamp>, &str)> =
            ages.into_iter().map(|(name, last)| (last, name)).collect();
        ages.sort_unstable();
        let label = |name: &str| ByNamespace { namespace: name.to_owned() };
        self.namespaces.show(ages.into_iter().take(most).map(|(last, name)| (label(name), seconds(last))));
    }
}

fn seconds(at: Option<Timestamp>) -> i64 {
    at.map_or(0, Timestamp::as_second)
}

/// Runs for ever.
pub async fn run(lifecycle: &Lifecycle) {
    let mut changed = lifecycle.known.changed();
    let mut namespaces: Option<(Instant, BTreeSet<String>)> = None;
    loop {
        let is_old = namespaces.as_ref().is_none_or(|(at, _)| at.elapsed() >= paced(NAMESPACES));
        if is_old {
            match list(lifecycle).await {
                Ok(names) => namespaces = Some((Instant::now(), names)),
                Err(error) => {
                    warn!(
                        error = chain(&*error),
                        "failed to list the namespaces for the ages of their backups"
                    );
                    // If the list fails, the names of the last list are used.
                    namespaces = namespaces.map(|(_, names)| (Instant::now(), names));
                }
            }
        }
        if lifecycle.known.is_synced() {
            let none = BTreeSet::new();
            let names = namespaces.as_ref().map_or(&none, |(_, names)| names);
            let (known, most) = (&lifecycle.known, lifecycle.namespace_metrics);
            lifecycle.age_metrics.show(known, names, most, Timestamp::now());
            sleep(paced(PAUSE)).await;
        }
        tokio::select! {
            _ = changed.changed() => {}
            () = sleep(paced(NAMESPACES)) => {}
        }
    }
}

/// Names of the namespaces that backups can take.
async fn list(lifecycle: &Lifecycle) -> anyhow::Result<BTreeSet<String>> {
    let api: Api<Namespace> = Api::all(lifecycle.clients.call.clone());
    let mut names = BTreeSet::new();
    // Backups skip namespaces with this label.
    let selector = format!("{}!=true", berth_api::keys::EXCLUDE_FROM_BACKUP);
    let mut params = ListParams::default().limit(PAGE).labels(&selector);
    for _ in 0..PAGES {
        let page = timeout(CALL, api.list_metadata(&params)).await??;
        names.extend(page.items.iter().map(ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(names),
        }
    }
    Err(anyhow!(endless(PAGES, PAGE)))
}

#[cfg(test)]
mod tests {
    use berth_api::velero::Backup;
    use jiff::SignedDuration;
    use serde_json::{Value, json};

    use super::*;

    fn backup(name: &str, schedule: &str, phase: &str, minute: u8, spec: &Value) -> Backup {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {
                "name": name, "uid": name, "resourceVersion": "1", "labels": {"velero.io/schedule-name": schedule},
            },
            "spec": spec,
            "status": {"phase": phase, "completionTimestamp": format!("1970-01-01T00:{minute:02}:00Z")},
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_of_namespaces_that_does_not_end_is_given_up() {
        use berth_test_scripted::{Scripted, get, page};
        let (path, more) = ("/api/v1/namespaces", page("1", "more", &[]));
        let api = Scripted::new()
            .always(get(path).answers(more.clone()))
            .always(get(path).page("more").answers(more));
        let error = list(&crate::lifecycle::fake(&api.client("velero"))).await.unwrap_err();
        assert!(error.to_string().contains("more than 100000 objects"), "{error}");
        assert_eq!(api.asked().len(), PAGES);
    }

    #[test]
    fn schedules_and_namespaces_show_their_last_good_backup_or_none() {
        let known = KnownBackups::default();
        let all = json!({"excludedNamespaces": ["c"]});
        for backup in [
            backup("1", "daily", "Completed", 1, &all),
            backup("2", "daily", "Completed", 2, &all),
            backup("3", "daily", "PartiallyFailed", 3, &all),
            backup("4", "new", "Failed", 4, &json!({})),
            backup("5", "of-b", "Completed", 5, &json!({"includedNamespaces": ["b"]})),
            // A backup of a part of a namespace does not count for the namespace.
            backup("6", "parts", "Completed", 6, &json!({"labelSelector": {"matchLabels": {"a": "b"}}})),
            backup("7", "types", "Completed", 7, &json!({"includedResources": ["secrets"]})),
        ] {
            known.assume(&backup);
        }
        let mut registry = Registry::default();
        let metrics = AgeMetrics::new(&mut registry);
        let names = ["a", "b", "c"].map(str::to_owned).into();
        metrics.show(&known, &names, 2, Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1));
        let text = crate::metrics::encode(&Arc::new(registry)).unwrap();
        for line in [
            r#"berth_last_good_backup_timestamp_seconds{schedule="daily"} 120"#,
            r#"berth_last_good_backup_timestamp_seconds{schedule="new"} 0"#,
            r#"berth_last_good_backup_timestamp_seconds{schedule="parts"} 360"#,
            r#"berth_last_good_backup_of_namespace_timestamp_seconds{namespace="a"} 120"#,
            r#"berth_last_good_backup_of_namespace_timestamp_seconds{namespace="c"} 0"#,
            "berth_last_good_backup_missing_namespaces 1",
            "velero_backup_total 7",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(!text.contains(r#"namespace="b""#), "there is room for the two oldest: {text}");
    }

    /// Each of these would hide that there has been no good backup for long.
    #[test]
    fn neither_a_clock_that_was_wrong_nor_another_cluster_nor_a_label_makes_a_backup_look_younger() {
        let known = KnownBackups::default();
        for (name, mode) in [("own", "ReadWrite"), ("theirs", "ReadOnly")] {
            let location = json!({
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": name},
                "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "accessMode": mode},
            });
            known.observe_location(serde_json::from_value(location).unwrap());
        }
        let all = |location: &str| json!({"storageLocation": location});
        let with = |mut backup: Backup, mark: bool, generation: i64| {
            let mark = mark.then(|| (berth_api::keys::SCHEDULE_UID.to_owned(), "s".to_owned()));
            backup.metadata.annotations = Some(mark.into_iter().collect());
            backup.metadata.generation = Some(generation);
            backup
        };
        for backup in [
            with(backup("1", "daily", "Completed", 1, &all("own")), true, 5),
            with(backup("2", "daily", "Failed", 9, &all("own")), true, 5),
            // A user has given it the label of the Schedule.
            with(backup("3", "daily", "Completed", 9, &all("own")), false, 5),
            // A backup of another cluster, and one that was synced from a store.
            with(backup("4", "hourly", "Completed", 9, &all("theirs")), false, 1),
            with(backup("5", "lost", "Completed", 7, &all("own")), false, 1),
            // From a clock that was ahead.
            with(backup("6", "ahead", "Completed", 59, &all("own")), true, 5),
        ] {
            known.assume(&backup);
        }
        let mut registry = Registry::default();
        let metrics = AgeMetrics::new(&mut registry);
        let names = ["a"].map(str::to_owned).into();
        metrics.show(&known, &names, 2, Timestamp::UNIX_EPOCH + SignedDuration::from_mins(10));
        let text = crate::metrics::encode(&Arc::new(registry)).unwrap();
        for line in [
            r#"berth_last_good_backup_timestamp_seconds{schedule="daily"} 60"#,
            r#"berth_last_good_backup_timestamp_seconds{schedule="lost"} 420"#,
            r#"berth_last_good_backup_timestamp_seconds{schedule="ahead"} 0"#,
            r#"berth_last_good_backup_of_namespace_timestamp_seconds{namespace="a"} 540"#,
            "velero_backup_total 6",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(!text.contains(r#"schedule="hourly""#), "{text}");
    }
}
