//! Schedule (source: Velero's `pkg/apis/velero/v1/schedule_types.go`, 1.18).

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_core::cron::Cron;
use berth_core::retention::HistoryLimits;
use berth_core::schedule::preview::PlannedSchedule;
use berth_core::schedule::{self, Concurrency, backup_name};
use berth_core::violation::{Field, Violations, tellable};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::{CustomResource, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Backup, BackupSpec};
use crate::parse::backup_namespaces;
use crate::{GoDuration, keys};

/// Creates a Backup at each time of a cron expression.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "velero.io", version = "v1", kind = "Schedule", plural = "schedules", namespaced)]
#[kube(status = "ScheduleStatus", derive = "Default", derive = "PartialEq")]
#[kube(
    printcolumn = r#"{"name":"Status","type":"string","description":"Whether the schedule is valid","jsonPath":".status.phase"}"#
)]
#[kube(
    printcolumn = r#"{"name":"Schedule","type":"string","description":"When backups are created","jsonPath":".spec.schedule"}"#
)]
#[kube(
    printcolumn = r#"{"name":"LastBackup","type":"date","description":"The time that the last backup was for","jsonPath":".status.lastBackup"}"#
)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[kube(printcolumn = r#"{"name":"Paused","type":"boolean","jsonPath":".spec.paused"}"#)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// The spec of the Backups.
    pub template: BackupSpec,
    /// When Backups are created: a cron expression with five fields, a name as @daily, or @every
    /// with a duration. A time zone may stand in front, as in CRON_TZ=Europe/Berlin 0 2 * * *.
    pub schedule: String,
    /// Backups that it creates are deleted with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_owner_references_in_backup: Option<bool>,
    /// No Backups are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// Skips what is due at this moment, and is set to false then. Absent: the controller's
    /// --schedule-skip-immediately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip_immediately: Option<bool>,
}

/// Status of a Schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScheduleStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<SchedulePhase>,
    /// The time that the last Backup was created for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_backup: Option<Time>,
    /// The last time that passed without a Backup, because that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_skipped: Option<Time>,
    /// What is wrong with the Schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_errors: Option<Vec<String>>,
}

/// The status as merge patches of it, in which `null` removes a field.
impl ScheduleStatus {
    /// Whether the Schedule is valid, and what is wrong with it.
    pub fn validated(phase: SchedulePhase, errors: &[String]) -> Value {
        json!({"phase": phase, "validationErrors": Some(errors).filter(|errors| !errors.is_empty())})
    }

    /// The Backup of this time was created.
    pub fn backed_up(tick: Timestamp) -> Value {
        json!({"lastBackup": Time(tick)})
    }

    /// No Backup of this time is created.
    pub fn skipped(tick: Timestamp) -> Value {
        json!({"lastSkipped": Time(tick)})
    }

    /// Both times anew.
    pub fn mended(last_backup: Option<Timestamp>, last_skipped: Option<Timestamp>) -> Value {
        json!({"lastBackup": last_backup.map(Time), "lastSkipped": last_skipped.map(Time)})
    }
}

/// Phase of a Schedule. Absent or `New`: not processed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SchedulePhase {
    New,
    /// Backups are created.
    Enabled,
    /// Its expression cannot be read.
    FailedValidation,
}

/// The annotations by which a Schedule says how berth is to create its Backups. Admission judges
/// them, and its Backups do not get them.
pub const SCHEDULE_ANNOTATIONS: [&str; 5] = [
    keys::CONCURRENCY_POLICY,
    keys::STARTING_DEADLINE,
    keys::JITTER,
    keys::SUCCESSFUL_HISTORY_LIMIT,
    keys::FAILED_HISTORY_LIMIT,
];

/// kubectl notes here what it has applied: it is the Schedule's, and not its Backups'.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// By labels and annotations of these prefixes a tool knows what it has applied itself. A Backup
/// that had them from its Schedule would be taken for an object that is no longer wanted, and
/// removed, running or not. Velero copies them.
const TRACKING: [&str; 8] = [
    "argocd.argoproj.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "meta.helm.sh/",
    "kapp.k14s.io/",
    "applyset.kubernetes.io/",
    "objectset.rio.cattle.io/",
    "config.k8s.io/owning-inventory",
];
/// Argo CD's label for the same, unless it is told otherwise. Helm's charts set it, too.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Does a tool know by this label or annotation what it has applied?
fn is_tracking(key: &str) -> bool {
    key == INSTANCE || TRACKING.iter().any(|prefix| key.starts_with(prefix))
}

/// Most characters of its name, because its Backups have it in a label.
const NAME: usize = 63;

/// The annotations that say how a Schedule is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleAnnotations {
    pub concurrency: Concurrency,
    pub deadline: Option<SignedDuration>,
    pub jitter: SignedDuration,
}

impl ScheduleAnnotations {
    /// Reads the annotations; what cannot be read counts as absent.
    pub fn of(annotations: &BTreeMap<String, String>, found: &mut Violations) -> Self {
        let at = |key: &str| Field::root("metadata").child("annotations").key(key);
        let concurrency = match annotations.get(keys::CONCURRENCY_POLICY).map(String::as_str) {
            None => Concurrency::default(),
            Some("Allow") => Concurrency::Allow,
            Some("Forbid") => Concurrency::Forbid,
            Some(other) => {
                let message = format!("{other:?} is not a policy: write Allow or Forbid, or leave it out");
                found.push(at(keys::CONCURRENCY_POLICY), message);
                Concurrency::default()
            }
        };
        let mut duration = |key: &str| {
            let text = annotations.get(key)?;
            match GoDuration(text.clone()).get() {
                // 0 means the default here, as in Velero's own fields.
                Ok(duration) => SignedDuration::try_from(duration?).ok(),
                Err(error) => {
                    found.push(at(key), error.to_string());
                    None
                }
            }
        };
        let deadline = duration(keys::STARTING_DEADLINE);
        Self { concurrency, deadline, jitter: duration(keys::JITTER).unwrap_or_default() }
    }
}

/// Reads the annotations that limit the history of a Schedule; what cannot be read counts as
/// absent, so that nothing is deleted because of it.
pub fn history_of(annotations: &BTreeMap<String, String>, found: &mut Violations) -> HistoryLimits {
    let mut limit = |key: &str, least: usize| {
        let text = annotations.get(key)?;
        let limit = text.parse::<usize>().ok().filter(|limit| *limit >= least);
        if limit.is_none() {
            let field = Field::root("metadata").child("annotations").key(key);
            found.push(field, format!("{text:?} is not a whole number of at least {least}"));
        }
        limit
    };
    HistoryLimits {
        successful: limit(keys::SUCCESSFUL_HISTORY_LIMIT, 1),
        failed: limit(keys::FAILED_HISTORY_LIMIT, 0),
    }
}

/// Faults of an expression, with the field.
pub fn check_expression(text: &str, found: &mut Violations) -> Option<Cron> {
    match Cron::parse(text) {
        Ok(cron) => Some(cron),
        Err(fault) => {
            found.push(Field::root("spec").child("schedule"), fault.to_string());
            None
        }
    }
}

/// A fault, if the Backups of a Schedule of this name could not be created.
pub fn check_name(name: &str, found: &mut Violations) {
    let message = format!("has more than {NAME} characters, and its Backups carry it in a label");
    found.require(name.len() <= NAME, &Field::root("metadata").child("name"), message);
}

impl Schedule {
    /// The part that is decided on.
    pub fn decided(&self) -> schedule::Schedule {
        let mut found = Violations::default();
        let steering = ScheduleAnnotations::of(self.annotations(), &mut found);
        let status = self.status.clone().unwrap_or_default();
        let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
        let (phase, errors) = self.validity();
        schedule::Schedule {
            name: self.name_any(),
            uid: self.uid().unwrap_or_default(),
            cron: Cron::parse(&self.spec.schedule),
            paused: self.spec.paused == Some(true),
            skip_immediately: self.spec.skip_immediately,
            created_at: time(&self.creation_timestamp()).unwrap_or(Timestamp::UNIX_EPOCH),
            last_backup: time(&status.last_backup),
            last_skipped: time(&status.last_skipped),
            is_shown: status.phase == Some(phase) && status.validation_errors.unwrap_or_default() == errors,
            concurrency: steering.concurrency,
            deadline: steering.deadline,
            jitter: steering.jitter,
        }
    }

    /// When it will create Backups, and of which namespaces. `None`: it creates none as it is,
    /// because it is paused or faulty.
    pub fn planned(&self) -> Option<PlannedSchedule> {
        let namespaces = backup_namespaces(&self.spec.template).ok()?;
        self.decided().planned(Arc::new(namespaces))
    }

    /// What its status is to say of it. An annotation that cannot be read is told, and stops
    /// nothing.
    pub fn validity(&self) -> (SchedulePhase, Vec<String>) {
        let mut found = Violations::default();
        let phase = match check_expression(&self.spec.schedule, &mut found) {
            Some(_) => SchedulePhase::Enabled,
            None => SchedulePhase::FailedValidation,
        };
        ScheduleAnnotations::of(self.annotations(), &mut found);
        history_of(self.annotations(), &mut found);
        (phase, found.lines().iter().map(|line| tellable(line).into_owned()).collect())
    }

    /// The Backup for this time, as Velero would create it, without what tools track the Schedule
    /// by, and with the Schedule's UID.
    pub fn backup(&self, tick: Timestamp) -> Backup {
        let name = self.name_any();
        let of_template = self.spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let own = || {
            let own = self.labels().iter().filter(|(key, _)| !is_tracking(key));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let mut labels: BTreeMap<String, String> = of_template.unwrap_or_else(own);
        labels.insert(keys::SCHEDULE.to_owned(), name.clone());
        let is_kept_back = |key: &str| {
            key == LAST_APPLIED
                || SCHEDULE_ANNOTATIONS.contains(&key)
                || keys::MARKS.contains(&key)
                || is_tracking(key)
        };
        let annotations = self.annotations().iter().filter(|(key, _)| !is_kept_back(key));
        let mut annotations: BTreeMap<String, String> =
            annotations.map(|(key, value)| (key.clone(), value.clone())).collect();
        annotations.extend(self.uid().map(|uid| (keys::SCHEDULE_UID.to_owned(), uid)));
        let owner = OwnerReference {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            name: name.clone(),
            uid: self.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let is_owner = self.spec.use_owner_references_in_backup == Some(true);
        let metadata = ObjectMeta {
            name: Some(backup_name(&name, tick)),
            namespace: self.namespace(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            owner_references: is_owner.then(|| vec![owner]),
            ..ObjectMeta::default()
        };
        Backup { metadata, spec: self.spec.template.clone(), status: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(object: Value) -> Schedule {
        serde_json::from_value(object).unwrap()
    }

    fn schedule(metadata: Value, spec: Value) -> Schedule {
        let mut object = json!({
            "apiVersion": "velero.io/v1", "kind": "Schedule",
            "metadata": {"name": "daily", "namespace": "velero", "uid": "u1", "creationTimestamp": "2026-01-01T12:00:00Z"},
            "spec": {"schedule": "0 2 * * *", "template": {}},
        });
        json_merge(&mut object["metadata"], metadata);
        json_merge(&mut object["spec"], spec);
        read(object)
    }

    fn json_merge(object: &mut Value, more: Value) {
        let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) else { unreachable!() };
        object.extend(more);
    }

    fn tick() -> Timestamp {
        "2026-01-02T02:00:00Z".parse().unwrap()
    }

    /// As `velero schedule create` writes it.
    #[test]
    fn what_veleros_command_line_writes_is_read() {
        let template = json!({
            "metadata": {}, "hooks": {}, "ttl": "0s", "includedNamespaces": ["*"], "csiSnapshotTimeout": "0s",
            "itemOperationTimeout": "0s",
        });
        let spec =
            json!({"template": template, "useOwnerReferencesInBackup": false, "schedule": "@every 6h"});
        let found = schedule(json!({}), spec).decided();
        assert!(found.cron.is_ok() && !found.paused && !found.is_shown, "{found:?}");
    }

    #[test]
    fn its_backup_is_as_velero_would_create_it() {
        let metadata = json!({
            "labels": {"app": "web"},
            "annotations": {
                "team": "a", keys::SUPERSEDE: "true", keys::ENQUEUED_AT: "x", keys::RUN: "y", keys::JITTER: "1h",
                keys::FAILED_HISTORY_LIMIT: "3",
                keys::SCHEDULE_UID: "u0",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
        });
        let spec = json!({
            "template": {"includedNamespaces": ["a"], "ttl": "24h0m0s"}, "useOwnerReferencesInBackup": true,
        });
        let backup = serde_json::to_value(schedule(metadata, spec).backup(tick())).unwrap();
        let expected = json!({
            "apiVersion": "velero.io/v1", "kind": "Backup",
            "metadata": {
                "name": "daily-20260102020000", "namespace": "velero",
                "labels": {"app": "web", "velero.io/schedule-name": "daily"},
                "annotations": {"team": "a", "berth.dev/supersede": "true", "berth.dev/schedule-uid": "u1"},
                "ownerReferences": [{
                    "apiVersion": "velero.io/v1", "kind": "Schedule", "name": "daily", "uid": "u1", "controller": true,
                }],
            },
            "spec": {"includedNamespaces": ["a"], "ttl": "24h0m0s"},
        });
        assert_eq!(backup, expected);
    }

    #[test]
    fn labels_of_the_template_take_the_place_of_its_own() {
        for (template, expected) in [
            (
                json!({"metadata": {"labels": {"tier": "b"}}}),
                json!({"tier": "b", "velero.io/schedule-name": "daily"}),
            ),
            (json!({"metadata": {"labels": {}}}), json!({"velero.io/schedule-name": "daily"})),
            (json!({"metadata": {}}), json!({"app": "web", "velero.io/schedule-name": "daily"})),
        ] {
            let made = schedule(json!({"labels": {"app": "web"}}), json!({"template": template}));
            let backup = made.backup(tick());
            assert_eq!(json!(backup.labels()), expected);
            assert!(backup.owner_references().is_empty());
            assert_eq!(json!(backup.annotations()), json!({"berth.dev/schedule-uid": "u1"}));
        }
    }

    /// A tool that prunes would take the Backups for its own, and remove them while they run.
    #[test]
    fn what_tools_track_a_schedule_by_stays_with_it() {
        let mut some = json!({
            "argocd.argoproj.io/tracking-id": "x", "argocd.argoproj.io/sync-wave": "1", "app.kubernetes.io/instance": "x",
            "kustomize.toolkit.fluxcd.io/name": "x", "helm.toolkit.fluxcd.io/name": "x",
            "meta.helm.sh/release-name": "x", "kapp.k14s.io/app": "x", "applyset.kubernetes.io/part-of": "x",
            "objectset.rio.cattle.io/hash": "x", "config.k8s.io/owning-inventory": "x",
        });
        json_merge(&mut some, json!({"app.kubernetes.io/name": "web"}));
        let made = schedule(json!({"labels": some, "annotations": some}), json!({})).backup(tick());
        let labels = json!({"app.kubernetes.io/name": "web", keys::SCHEDULE: "daily"});
        assert_eq!(json!(made.labels()), labels);
        let annotations = json!({"app.kubernetes.io/name": "web", keys::SCHEDULE_UID: "u1"});
        assert_eq!(json!(made.annotations()), annotations);
        // What somebody writes for the Backups themselves is meant.
        let template = json!({"template": {"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}});
        let made = schedule(json!({}), template).backup(tick());
        assert_eq!(made.labels().get("app.kubernetes.io/instance").map(String::as_str), Some("x"));
    }

    #[test]
    fn what_is_wrong_is_told_in_its_status_once() {
        let broken = schedule(json!({}), json!({"schedule": "0 25 * * *"}));
        let (phase, errors) = broken.validity();
        assert_eq!(phase, SchedulePhase::FailedValidation);
        assert!(
            errors[0].starts_with("spec.schedule: hour \"25\" (characters 3 to 4) is above 23"),
            "{errors:?}"
        );
        assert!(!broken.decided().is_shown);
        let status = ScheduleStatus {
            phase: Some(phase),
            validation_errors: Some(errors),
            ..ScheduleStatus::default()
        };
        assert!(Schedule { status: Some(status), ..broken }.decided().is_shown);

        let annotations = json!({"annotations": {
            keys::CONCURRENCY_POLICY: "Replace", keys::STARTING_DEADLINE: "an hour", keys::JITTER: "10m",
            keys::SUCCESSFUL_HISTORY_LIMIT: "0", keys::FAILED_HISTORY_LIMIT: "0",
        }});
        let odd = schedule(annotations, json!({}));
        let (phase, errors) = odd.validity();
        assert_eq!((phase, errors.len()), (SchedulePhase::Enabled, 3), "{errors:?}");
        assert!(errors[2].ends_with("\"0\" is not a whole number of at least 1"), "{errors:?}");
        let history = history_of(odd.annotations(), &mut Violations::default());
        assert_eq!(history, HistoryLimits { successful: None, failed: Some(0) });
        let found = odd.decided();
        assert_eq!(
            (found.concurrency, found.deadline, found.jitter),
            (Concurrency::Postpone, None, SignedDuration::from_mins(10))
        );
    }
}
