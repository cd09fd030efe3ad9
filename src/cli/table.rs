//! Objects as rows of tables, with Velero's columns.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use berth_api::velero::backup_storage_location::AccessMode;
use berth_api::velero::{Backup, BackupStorageLocation, BackupStorageLocationPhase, Schedule, SchedulePhase};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt};

use crate::args::value::{go_text, selector_text};
use crate::cli::print::ColumnHead;
use crate::cli::zone;

/// The heads of a table and its rows.
pub struct Table {
    pub heads: Vec<ColumnHead>,
    pub rows: Vec<Vec<String>>,
}

/// Which columns besides the usual ones.
#[derive(Clone, Debug, Default)]
pub struct More {
    pub wide: bool,
    /// Labels, each with a column of its own.
    pub label_columns: Vec<String>,
    pub show_labels: bool,
}

impl More {
    fn head(&self, mut usual: Vec<ColumnHead>, wide: &[&'static str]) -> Vec<ColumnHead> {
        if self.wide {
            usual.extend(wide.iter().copied().map(ColumnHead::Always));
        }
        usual.extend(self.label_columns.iter().map(|label| {
            let short = label.rsplit('/').next().unwrap_or(label);
            ColumnHead::Named(short.to_uppercase())
        }));
        if self.show_labels {
            usual.push(ColumnHead::Always("LABELS"));
        }
        usual
    }

    fn row(&self, mut usual: Vec<String>, wide: Vec<String>, object: &impl Resource) -> Vec<String> {
        if self.wide {
            usual.extend(wide);
        }
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let labels = object.meta().labels.as_ref().unwrap_or(&NONE);
        let value = |label: &String| labels.get(label).cloned().unwrap_or_default();
        usual.extend(self.label_columns.iter().map(value));
        if self.show_labels {
            let all: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            usual.push(if all.is_empty() { "<none>".to_owned() } else { all.join(",") });
        }
        usual
    }
}

/// Backups in Velero's order: by name, and of those that one schedule made the newest first.
pub fn sort_backups(backups: &mut [Backup]) {
    fn name(backup: &Backup) -> &str {
        backup.metadata.name.as_deref().unwrap_or_default()
    }
    backups.sort_by(|a, b| by_schedule(name(a), name(b)));
}

fn by_schedule(a: &str, b: &str) -> Ordering {
    match (stamp(a), stamp(b)) {
        (Some((of_a, at_a)), Some((of_b, at_b))) if of_a == of_b => at_b.cmp(at_a),
        // The name without its time comes first, so that the backups of one schedule stay together.
        _ => {
            let (head_a, head_b) = (stamp(a).map_or(a, |(of, _)| of), stamp(b).map_or(b, |(of, _)| of));
            head_a.cmp(head_b).then_with(|| a.cmp(b))
        }
    }
}

/// What stands before and after `-` and 14 digits at the end of a name.
fn stamp(name: &str) -> Option<(&str, &str)> {
    let (of, digits) = name.split_at_checked(name.len().checked_sub(15)?)?;
    let digits = digits.strip_prefix('-')?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then_some((of, digits))
}

/// The columns of `backup get`.
pub fn backups(backups: &[Backup], more: &More, now: Timestamp) -> Table {
    let heads = [
        "NAME",
        "STATUS",
        "ERRORS",
        "WARNINGS",
        "CREATED",
        "EXPIRES",
        "STORAGE LOCATION",
        "QUEUE POSITION",
        "SELECTOR",
    ];
    let heads =
        more.head(heads.map(ColumnHead::Always).to_vec(), &["ITEMS", "DURATION", "SCHEDULE", "NAMESPACES"]);
    let rows = backups.iter().map(|backup| {
        let status = backup.status.clone().unwrap_or_default();
        let spec = &backup.spec;
        let number = |number: Option<i64>| number.unwrap_or(0).to_string();
        let position = status.queue_position.filter(|position| *position > 0);
        let usual = vec![
            backup.name_any(),
            phase(backup).to_owned(),
            number(status.errors),
            number(status.warnings),
            status.start_timestamp.as_ref().map_or_else(|| "<nil>".to_owned(), time),
            from_now(expiration(backup), now),
            spec.storage_location.clone().unwrap_or_default(),
            position.map(|position| position.to_string()).unwrap_or_default(),
            selector_text(spec.label_selector.as_ref()),
        ];
        let items = status.progress.map(|p| (p.items_backed_up.unwrap_or(0), p.total_items.unwrap_or(0)));
        let took = match (&status.start_timestamp, &status.completion_timestamp) {
            (Some(start), Some(end)) => short(end.0.duration_since(start.0)),
            _ => String::new(),
        };
        let wide = vec![
            items
                .map(|(done, all)| if done == all { done.to_string() } else { format!("{done}/{all}") })
                .unwrap_or_default(),
            took,
            backup.labels().get(berth_api::keys::SCHEDULE).cloned().unwrap_or_default(),
            spec.included_namespaces.as_ref().map_or_else(|| "*".to_owned(), |names| names.join(",")),
        ];
        more.row(usual, wide, backup)
    });
    Table { heads, rows: rows.collect() }
}

/// The phase that people are shown.
pub fn phase(backup: &Backup) -> &'static str {
    if backup.metadata.deletion_timestamp.is_some() { "Deleting" } else { backup.phase().as_str() }
}

/// When the backup may be removed: what its status says, or else its creation and ttl.
pub fn expiration(backup: &Backup) -> Option<Timestamp> {
    let told = backup.status.as_ref().and_then(|status| status.expiration.as_ref()).map(|time| time.0);
    told.or_else(|| {
        let ttl = backup.spec.ttl.as_ref()?.get().ok()??;
        let created = backup.metadata.creation_timestamp.as_ref()?.0;
        created.checked_add(SignedDuration::try_from(ttl).ok()?).ok()
    })
}

/// The phase of a Schedule that people are shown.
pub fn schedule_phase(schedule: &Schedule) -> &'static str {
    match schedule.status.as_ref().and_then(|status| status.phase) {
        Some(SchedulePhase::Enabled) => "Enabled",
        Some(SchedulePhase::FailedValidation) => "FailedValidation",
        Some(SchedulePhase::New) | None => "New",
    }
}

/// The columns of `schedule get`.
pub fn schedules(schedules: &[Schedule], more: &More, now: Timestamp) -> Table {
    let heads = ["NAME", "STATUS", "CREATED", "SCHEDULE", "BACKUP TTL", "LAST BACKUP", "SELECTOR", "PAUSED"];
    let heads = more.head(heads.map(ColumnHead::Always).to_vec(), &["STORAGE LOCATION", "NAMESPACES"]);
    let rows = schedules.iter().map(|schedule| {
        let status = schedule.status.clone().unwrap_or_default();
        let template = &schedule.spec.template;
        let ttl = template.ttl.as_ref().and_then(|ttl| ttl.get().ok().flatten()).unwrap_or_default();
        let usual = vec![
            schedule.name_any(),
            schedule_phase(schedule).to_owned(),
            schedule.metadata.creation_timestamp.as_ref().map_or_else(|| "<nil>".to_owned(), time),
            schedule.spec.schedule.clone(),
            go_text(ttl),
            from_now(status.last_backup.map(|time| time.0), now),
            selector_text(template.label_selector.as_ref()),
            (schedule.spec.paused == Some(true)).to_string(),
        ];
        let wide = vec![
            template.storage_location.clone().unwrap_or_default(),
            template.included_namespaces.as_ref().map_or_else(|| "*".to_owned(), |names| names.join(",")),
        ];
        more.row(usual, wide, schedule)
    });
    Table { heads, rows: rows.collect() }
}

/// The columns of `backup-location get`.
pub fn locations(locations: &[BackupStorageLocation], more: &More) -> Table {
    let heads = ["NAME", "PROVIDER", "BUCKET/PREFIX", "PHASE", "LAST VALIDATED", "ACCESS MODE", "DEFAULT"];
    let heads = more.head(heads.map(ColumnHead::Always).to_vec(), &["CREDENTIAL", "MESSAGE"]);
    let rows = locations.iter().map(|location| {
        let (spec, status) = (&location.spec, location.status.clone().unwrap_or_default());
        let storage = &spec.object_storage;
        let prefix = storage.prefix.as_ref().filter(|prefix| !prefix.is_empty());
        let usual = vec![
            location.name_any(),
            spec.provider.clone(),
            prefix.map_or_else(|| storage.bucket.clone(), |prefix| format!("{}/{prefix}", storage.bucket)),
            match status.phase {
                Some(BackupStorageLocationPhase::Available) => "Available",
                Some(BackupStorageLocationPhase::Unavailable) => "Unavailable",
                None => "Unknown",
            }
            .to_owned(),
            status.last_validation_time.as_ref().map_or_else(|| "Unknown".to_owned(), time),
            match spec.access_mode {
                Some(AccessMode::ReadOnly) => "ReadOnly",
                Some(AccessMode::ReadWrite) | None => "ReadWrite",
            }
            .to_owned(),
            if spec.default == Some(true) { "true".to_owned() } else { String::new() },
        ];
        let credential = spec.credential.as_ref().map(|key| format!("{}={}", key.name, key.key));
        let wide = vec![credential.unwrap_or_default(), status.message.unwrap_or_default()];
        more.row(usual, wide, location)
    });
    Table { heads, rows: rows.collect() }
}

/// A time as Velero prints it, in the zone of whoever reads it: `2026-11-25 17:02:30 +0100 CET`.
pub fn time(time: &Time) -> String {
    time_in(time, zone::local())
}

/// The same in another zone.
pub fn time_in(time: &Time, zone: &TimeZone) -> String {
    time.0.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S %z %Z").to_string()
}

/// How far off a time is: `29d`, `3h ago`, `n/a`.
pub fn from_now(when: Option<Timestamp>, now: Timestamp) -> String {
    match when {
        None => "n/a".to_owned(),
        Some(when) if when >= now => short(when.duration_since(now)),
        Some(when) => format!("{} ago", short(now.duration_since(when))),
    }
}

/// One unit: `5s`, `12m`, `3h`, `29d`, `2y`.
pub fn short(duration: SignedDuration) -> String {
    match duration.as_secs().max(0) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s if s < 86_400 * 365 => format!("{}d", s / 86_400),
        s => format!("{}y", s / 86_400 / 365),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::print;

    fn text(table: &Table) -> String {
        let mut out = Vec::new();
        print::table(&mut out, &table.heads, &table.rows).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn backups_are_listed_with_veleros_columns() {
        let now: Timestamp = "2026-11-25T16:00:00Z".parse().unwrap();
        let list: Vec<Backup> = serde_json::from_value(json!([
            {"metadata": {"name": "done", "labels": {"example.com/team": "web"}}, "spec": {
                "storageLocation": "default", "labelSelector": {"matchLabels": {"a": "b"}},
            }, "status": {
                "phase": "Completed", "startTimestamp": "2026-11-25T15:00:00Z", "warnings": 2,
                "completionTimestamp": "2026-11-25T15:02:00Z", "expiration": "2026-12-25T15:00:00Z",
                "progress": {"totalItems": 7, "itemsBackedUp": 7},
            }},
            {"metadata": {"name": "waits", "creationTimestamp": "2026-11-25T15:59:00Z"}, "spec": {"ttl": "1h"},
             "status": {"phase": "Queued", "queuePosition": 3}},
            {"metadata": {"name": "new"}, "spec": {}},
        ]))
        .unwrap();
        let said = text(&backups(&list, &More::default(), now));
        let expected = "\
NAME   STATUS     ERRORS  WARNINGS  CREATED                        EXPIRES  STORAGE LOCATION  QUEUE POSITION  SELECTOR
done   Completed  0       2         2026-11-25 15:00:00 +0000 UTC  29d      default                           a=b
waits  Queued     0       0         <nil>                          59m                        3               <none>
new    New        0       0         <nil>                          n/a                                        <none>
";
        assert_eq!(said, expected);
        let more = More { wide: true, label_columns: vec!["example.com/team".into()], show_labels: true };
        let said = text(&backups(&list, &more, now));
        let head = said.lines().next().unwrap_or_default();
        assert!(head.ends_with("ITEMS  DURATION  SCHEDULE  NAMESPACES  TEAM  LABELS"), "{said}");
        assert!(said.contains("7      2m                  *           web   example.com/team=web"), "{said}");
    }

    #[test]
    fn the_backups_of_a_schedule_stand_together_newest_first() {
        let mut names = [
            "daily-20260102000000",
            "b",
            "daily-20260101000000",
            "daily-2026",
            "a-20260101000000",
            "daily",
            "daily-20260103000000",
            "ab",
        ];
        names.sort_by(|a, b| by_schedule(a, b));
        let expected = [
            "a-20260101000000",
            "ab",
            "b",
            "daily",
            "daily-20260103000000",
            "daily-20260102000000",
            "daily-20260101000000",
            "daily-2026",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn times_are_told_in_one_unit() {
        let now: Timestamp = "2026-11-25T16:00:00Z".parse().unwrap();
        for (seconds, told) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (7200, "2h"),
            (86_400 * 29 + 5, "29d"),
            (86_400 * 400, "1y"),
            (-5, "5s ago"),
            (-10_800, "3h ago"),
        ] {
            let when = now.checked_add(SignedDuration::from_secs(seconds)).ok();
            assert_eq!(from_now(when, now), told);
        }
    }

    #[test]
    fn schedules_and_locations_are_listed_with_veleros_columns() {
        let now: Timestamp = "2026-11-25T16:00:00Z".parse().unwrap();
        let list: Vec<Schedule> = serde_json::from_value(json!([{
            "metadata": {"name": "daily", "creationTimestamp": "2026-11-01T00:00:00Z"},
            "spec": {"schedule": "0 1 * * *", "template": {"ttl": "720h0m0s"}, "paused": true},
            "status": {"phase": "Enabled", "lastBackup": "2026-11-25T01:00:00Z"},
        }]))
        .unwrap();
        assert_eq!(
            text(&schedules(&list, &More::default(), now)),
            "\
NAME   STATUS   CREATED                        SCHEDULE   BACKUP TTL  LAST BACKUP  SELECTOR  PAUSED
daily  Enabled  2026-11-01 00:00:00 +0000 UTC  0 1 * * *  720h0m0s    15h ago      <none>    true
"
        );
        let wide = More { wide: true, ..More::default() };
        let said = text(&schedules(&list, &wide, now));
        let is_wide = said.contains("  PAUSED  STORAGE LOCATION  NAMESPACES\n") && said.ends_with("  *\n");
        assert!(is_wide, "{said}");
        let list: Vec<BackupStorageLocation> = serde_json::from_value(json!([
            {"metadata": {"name": "s3"}, "spec": {
                "provider": "aws", "objectStorage": {"bucket": "b", "prefix": "p"}, "default": true,
            }, "status": {"phase": "Available", "lastValidationTime": "2026-11-25T15:00:00Z"}},
            {"metadata": {"name": "new"}, "spec": {
                "provider": "aws", "objectStorage": {"bucket": "b"}, "accessMode": "ReadOnly",
            }},
        ]))
        .unwrap();
        assert_eq!(
            text(&locations(&list, &More::default())),
            "\
NAME  PROVIDER  BUCKET/PREFIX  PHASE      LAST VALIDATED                 ACCESS MODE  DEFAULT
s3    aws       b/p            Available  2026-11-25 15:00:00 +0000 UTC  ReadWrite    true
new   aws       b              Unknown    Unknown                        ReadOnly
"
        );
        let fails = json!({"metadata": {"name": "s3"}, "spec": {
            "provider": "aws", "objectStorage": {"bucket": "b"}, "credential": {"name": "keys", "key": "cloud"},
        }, "status": {"phase": "Unavailable", "message": "no route"}});
        let said = text(&locations(&[serde_json::from_value(fails).unwrap()], &wide));
        for end in ["CREDENTIAL  MESSAGE\n", "keys=cloud  no route\n"] {
            assert!(said.contains(end), "{end:?} is not in {said}");
        }
    }
}
