//! What the agent of a member cluster tells the hub, as a change of the status of the hub's object.

use berth_api::velero::BackupStorageLocation;
use berth_garden_core::member::EntryReport;
use berth_garden_core::member::handoff::Handoff;
use berth_garden_core::member::location::{LocationReport, NoLocationReason};
use berth_garden_core::member::object::ObjectReport;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde_json::{Value, json};

use super::location::{self, reason};
use super::member_objects::is_ours;
use super::report::{self, MemberReport, locked_until, says_the_same, with_condition, without_condition};
use super::{BackupBucket, BackupEntry, Condition, LastError, LastOperation, Removed};
use crate::extensions::{self, Extension};

/// How long an object may wait for an executor before the hub is told so: most are taken up and
/// done at once.
const TAKE_UP: SignedDuration = SignedDuration::from_secs(5);

/// What the status of the hub's object says already.
#[derive(Clone, Copy)]
struct PreviousStatus<'a> {
    generation: Option<i64>,
    observed: Option<i64>,
    operation: Option<&'a LastOperation>,
    error: Option<&'a LastError>,
}

impl<'a> PreviousStatus<'a> {
    fn of(
        metadata: &ObjectMeta,
        observed: Option<i64>,
        operation: Option<&'a LastOperation>,
        error: Option<&'a LastError>,
    ) -> Self {
        Self { generation: metadata.generation, observed, operation, error }
    }
}

/// As a merge patch of `status`. `found`: the member's object. `None`: the status says it already.
pub fn bucket_change(
    hub: &BackupBucket,
    report: &ObjectReport,
    found: Option<&extensions::BackupBucket>,
    now: Timestamp,
) -> Option<Value> {
    let status = hub.status.clone().unwrap_or_default();
    let (operation, error) = (status.last_operation.as_ref(), status.last_error.as_ref());
    let before = PreviousStatus::of(&hub.metadata, status.observed_generation, operation, error);
    change(object(report, found, before, now).as_ref(), before)
}

/// As [`bucket_change`]. `locations`: all of the member cluster. `is_ours`: the entry is this
/// cluster's, so that its conditions are, too.
pub fn entry_change(
    hub: &BackupEntry,
    is_ours: bool,
    report: &EntryReport,
    found: Option<&extensions::BackupEntry>,
    locations: &[&BackupStorageLocation],
    now: Timestamp,
) -> Option<Value> {
    let status = hub.status.clone().unwrap_or_default();
    let (operation, error) = (status.last_operation.as_ref(), status.last_error.as_ref());
    let before = PreviousStatus::of(&hub.metadata, status.observed_generation, operation, error);
    let operation = match &report.handoff {
        Some(Handoff::Leaving { running, is_made }) => {
            // A generation says that the directory was made, and that its content is the entry's
            // own.
            Some(report::leaving(*running, before.generation.filter(|_| *is_made), now))
        }
        Some(Handoff::Stays(problem)) => Some(report::stays(problem, now)),
        None => object(&report.object, found, before, now),
    };
    let mut change = change(operation.as_ref(), before);
    if let Some(removed) = removed(&report.object, found) {
        if let Some(removed) = more(removed, status.removed) {
            change.get_or_insert_with(|| json!({}))["removed"] = json!(removed);
        }
        // Only the seed that removes the data reports counts, so it also knows what is still
        // locked.
        let locked = locked_until(found.and_then(Extension::common));
        if locked != status.locked_until {
            change.get_or_insert_with(|| json!({}))["lockedUntil"] = json!(locked);
        }
    }
    if let Some(conditions) = is_ours.then(|| conditions(hub, &report.location, locations, now)).flatten() {
        change.get_or_insert_with(|| json!({}))["conditions"] = json!(conditions);
    }
    change
}

/// How much of the data the executor has removed, by the member's object.
pub fn removed<E: Extension>(report: &ObjectReport, found: Option<&E>) -> Option<Removed> {
    let removed = || report::removed(found.and_then(Extension::common));
    match report {
        ObjectReport::Going => removed(),
        ObjectReport::Gone => Some(removed().unwrap_or_default()),
        ObjectReport::Nothing
        | ObjectReport::Failed { .. }
        | ObjectReport::LeftAlone
        | ObjectReport::Kept => None,
    }
}

fn object<E>(
    report: &ObjectReport,
    found: Option<&E>,
    before: PreviousStatus<'_>,
    now: Timestamp,
) -> Option<MemberReport>
where
    E: Extension + Resource<DynamicType = ()>,
{
    let status = found.and_then(Extension::common);
    match report {
        ObjectReport::Nothing => None,
        ObjectReport::Failed { problem, is_removal } => {
            Some(report::failed(problem, *is_removal, before.operation, now))
        }
        ObjectReport::LeftAlone => {
            Some(report::let_be("the object was left alone, and so was its data", now))
        }
        ObjectReport::Kept => {
            let metadata = found.map(|found| found.meta().clone()).unwrap_or_default();
            let kept = report::kept(&metadata, status, before.generation, before.operation, now);
            let made = metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
            let is_fresh = before.operation.is_none() && now.duration_since(made) < TAKE_UP;
            (!is_fresh || kept.is_settled()).then_some(kept)
        }
        ObjectReport::Going => report::going(status),
        ObjectReport::Gone => Some(report::gone(status, now)),
    }
}

/// Fields of the hub's status that are to change; `None`: it says all of this.
fn change(report: Option<&MemberReport>, before: PreviousStatus<'_>) -> Option<Value> {
    let report = report?;
    let is_seen = report.observed_generation.is_none() || report.observed_generation == before.observed;
    if is_seen && says_the_same(report, before.operation, before.error) {
        return None;
    }
    let mut change = json!({"lastOperation": report.last_operation, "lastError": report.last_error});
    if let Some(generation) = report.observed_generation {
        change["observedGeneration"] = json!(generation);
    }
    Some(change)
}

/// Counts only grow: an executor that starts again counts from nothing.
fn more(now: Removed, before: Option<Removed>) -> Option<Removed> {
    let before = before.unwrap_or_default();
    (now.objects > before.objects || now.bytes > before.bytes).then_some(now)
}

/// The conditions of an entry, where they are to change.
fn conditions(
    hub: &BackupEntry,
    report: &LocationReport,
    locations: &[&BackupStorageLocation],
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let name = hub.metadata.name.as_deref().unwrap_or_default();
    let before = hub.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let own = || {
        let is_own = |one: &&&BackupStorageLocation| {
            one.metadata.name.as_deref() == Some(name) && is_ours(&one.metadata)
        };
        locations.iter().find(is_own).map(|own| location::condition(own, now))
    };
    let wanted = match report {
        LocationReport::Nothing => None,
        LocationReport::AsFound { tells_validating } => {
            own().filter(|condition| *tells_validating || condition.reason != reason::VALIDATING)
        }
        LocationReport::Without(why, message) => {
            Some(location::without_location(reason_text(*why), message, now))
        }
    };
    let told = wanted.and_then(|wanted| with_condition(before, wanted));
    // Nothing is to be moved into a directory that will be removed.
    let legacy = hub.metadata.deletion_timestamp.is_none();
    let legacy = legacy.then(|| location::legacy(locations, name, now)).flatten();
    let present = told.as_deref().unwrap_or(before);
    let changed = match legacy {
        Some(wanted) => with_condition(present, wanted),
        None => without_condition(present, location::LEGACY_LOCATION),
    };
    changed.or(told)
}

fn reason_text(why: NoLocationReason) -> &'static str {
    match why {
        NoLocationReason::Unavailable => reason::UNAVAILABLE,
        NoLocationReason::BucketNotReady => reason::BUCKET_NOT_READY,
        NoLocationReason::Moving => reason::MOVING,
        NoLocationReason::NameTaken => reason::NAME_TAKEN,
        NoLocationReason::Credentials => reason::CREDENTIALS,
        NoLocationReason::Removed => reason::REMOVED,
    }
}

#[cfg(test)]
mod tests {
    use berth_garden_core::member::StatusProblem;

    use super::*;
    use crate::{BackupEntrySpec, BackupEntryStatus};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn entry(status: BackupEntryStatus) -> BackupEntry {
        let mut entry = BackupEntry::new("e", BackupEntrySpec::default());
        entry.metadata.generation = Some(3);
        entry.status = Some(status);
        entry
    }

    fn told(hub: &BackupEntry, report: &EntryReport) -> Option<Value> {
        entry_change(hub, true, report, None, &[], NOW)
    }

    fn nothing() -> EntryReport {
        EntryReport { object: ObjectReport::Nothing, handoff: None, location: LocationReport::Nothing }
    }

    /// The status as it is after a change.
    fn after(hub: &BackupEntry, change: &Value) -> BackupEntry {
        let mut status = serde_json::to_value(hub.status.clone().unwrap()).unwrap();
        for (key, value) in change.as_object().unwrap() {
            status[key] = value.clone();
        }
        entry(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn what_the_status_says_already_is_not_written_again() {
        let reports = [
            EntryReport {
                object: ObjectReport::Failed {
                    problem: StatusProblem::of_configuration("why"),
                    is_removal: false,
                },
                ..nothing()
            },
            EntryReport { handoff: Some(Handoff::Leaving { running: 2, is_made: true }), ..nothing() },
            EntryReport { handoff: Some(Handoff::Leaving { running: 0, is_made: true }), ..nothing() },
            EntryReport {
                location: LocationReport::Without(NoLocationReason::NameTaken, "it is".to_owned()),
                ..nothing()
            },
        ];
        for report in reports {
            let hub = entry(BackupEntryStatus::default());
            let change = told(&hub, &report).unwrap();
            assert_eq!(told(&after(&hub, &change), &report), None, "{report:?}");
        }
        assert_eq!(told(&entry(BackupEntryStatus::default()), &nothing()), None);
    }

    #[test]
    fn the_answer_that_nothing_writes_there_names_the_generation_it_is_for() {
        let hub = entry(BackupEntryStatus::default());
        let leaving = |running, is_made| {
            let handoff = Some(Handoff::Leaving { running, is_made });
            told(&hub, &EntryReport { handoff, ..nothing() }).unwrap()
        };
        assert_eq!(leaving(0, true)["observedGeneration"], 3);
        assert_eq!(leaving(0, false)["observedGeneration"], Value::Null, "it was never made");
        assert_eq!(leaving(1, true)["observedGeneration"], Value::Null, "a backup still runs");
        assert_eq!(leaving(1, true)["lastOperation"]["type"], "Migrate");
    }

    #[test]
    fn counts_only_grow() {
        let counts = |objects, bytes| Removed { objects, bytes };
        assert_eq!(more(counts(3, 30), None), Some(counts(3, 30)));
        assert_eq!(more(counts(3, 30), Some(counts(3, 30))), None);
        assert_eq!(more(counts(1, 10), Some(counts(3, 30))), None);
    }
}
