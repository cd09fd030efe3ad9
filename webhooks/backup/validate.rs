//! All faults of a write to a Backup, in one answer.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys::{self, LASTING_MARKS, MARKS};
use berth_api::place::QueueFields;
use berth_api::unserved::unserved;
use berth_api::velero::{BackupPhase, BackupSpec};
use berth_core::guard::{BackupChange, Roles, judge};
use berth_core::limits;
use berth_core::location::{Location, choose};
use berth_core::queue::DEFAULT_CLASS;
use berth_core::violation::{Field, Violations};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::data;
use super::incoming::IncomingBackup;
use crate::listers::Listers;
use crate::review::{AdmissionRequest, RefusalReason, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

/// How long to wait for a location that a Backup names and the watch has not shown yet, because
/// people apply both together.
const LOCATION_PATIENCE: Duration = Duration::from_millis(400);

/// Judges a write: may this user change these fields, and, where the Backup waits, can its spec be
/// run.
///
/// # Errors
/// When the object cannot be read.
pub async fn validate<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    if !request.is_write() {
        return Ok(ReviewVerdict::allow());
    }
    let incoming = IncomingBackup::of::<BackupSpec>(request)?;
    let old = request.old_object.map(IncomingBackup::parse::<BackupSpec>).transpose()?;
    let spec_changed = old.as_ref().is_none_or(|old| old.spec != incoming.spec);
    let marks_changed = match &old {
        Some(old) => MARKS.iter().any(|key| old.mark(key) != incoming.mark(key)),
        None => MARKS.iter().any(|key| *key != keys::ENQUEUED_AT && incoming.mark(key).is_some()),
    };
    let marks_dropped = old.as_ref().is_some_and(|old| {
        let mut changed = MARKS.iter().filter(|key| old.mark(key) != incoming.mark(key));
        changed.all(|key| incoming.mark(key).is_none() && !LASTING_MARKS.contains(key))
    });
    let change = BackupChange {
        from: old.as_ref().map(IncomingBackup::phase),
        to: incoming.phase(),
        status_changed: status(old.as_ref().and_then(|old| old.status))? != status(incoming.status)?,
        spec_changed,
        is_decided: old.as_ref().is_some_and(|old| {
            let hooks = old.spec.hooks.as_ref().and_then(|hooks| hooks.resources.as_ref());
            old.mark(keys::SCHEDULE_UID).is_some() || hooks.is_some_and(|hooks| !hooks.is_empty())
        }),
        marks_changed,
        marks_dropped,
        ..BackupChange::default()
    };
    let user = request.user_info.username.as_str();
    // The admission policy checks what RBAC allows, with the API server's own authorizer, because
    // the policy holds while no webhook answers, too.
    let roles = Roles { operator: true, editor: true, deleter: true, ..state.roles(user) };
    if let Err(refusal) = judge(roles, &change) {
        if !request.is_dry_run() && is_of_another_queue(roles, &change) {
            state.metrics().foreign_queue();
            state.events().foreign_queue(&request.name, &incoming.metadata.uid, user);
        }
        let mut violations = Violations::default();
        violations.push(Field::root(refusal.field), refusal.message);
        return Ok(ReviewVerdict::refuse(RefusalReason::Conflict, violations));
    }
    if !incoming.wants_place() || !spec_changed {
        return Ok(ReviewVerdict::allow());
    }
    let BackupFindings { mut found, gaps, mut warnings } = check(state, incoming.source()).await;
    let size = request.object.map_or(0, |object| object.get().len());
    if size > limits::OBJECT {
        let most = limits::OBJECT;
        let message = format!(
            "the Backup has {size} bytes and at most {most} are taken, because what is written to it later has to fit: use several Backups"
        );
        found.push(Field::root("spec"), message);
    }
    let labels = Field::root("metadata").child("labels");
    found.limit(incoming.source().labels.len(), limits::OWN_LABELS, &labels, "use fewer");
    let mut verdict = if found.is_empty() {
        ReviewVerdict::allow()
    } else {
        ReviewVerdict::refuse(RefusalReason::Invalid, found)
    };
    warnings.extend(data::told(&gaps));
    verdict.warnings = warnings;
    Ok(verdict)
}

/// What is wrong with a Backup, and what may be.
#[derive(Default)]
pub(crate) struct BackupFindings {
    pub(crate) found: Violations,
    /// Data that nothing in the cluster could take. Not searched for in a spec with faults.
    pub(crate) gaps: Violations,
    pub(crate) warnings: Vec<String>,
}

/// Judges the spec of a Backup that is to be run, with its priority class and its location.
pub(crate) async fn check<K: Listers>(state: &AdmissionState<K>, source: QueueFields<'_>) -> BackupFindings {
    let spec = source.spec;
    let (mut found, mut warnings) = (berth_api::parse::check(spec), Vec::new());
    if state.listers().runs_backups() {
        found.append(unserved(spec));
    }
    check_class(state, source, &mut found, &mut warnings);
    let wanted = spec.storage_location.as_deref().unwrap_or_default();
    let field = Field::root("spec").child("storageLocation");
    match find_location(state.listers(), wanted).await {
        Ok(location) => {
            let message = format!("location {:?} is read-only: name one that can be written", location.name);
            found.require(!location.read_only, &field, message);
            if let Some(why) = location.unavailable {
                warnings.push(format!("berth: location {} is unavailable just now: {why}", location.name));
            }
        }
        Err(message) => found.push(field, message),
    }
    let gaps = if found.is_empty() { data::gaps(state.listers(), spec) } else { Violations::default() };
    BackupFindings { found, gaps, warnings }
}

/// Does the component that runs or deletes backups write a queue phase, as Velero's own queue does
/// unless it is switched off?
fn is_of_another_queue(roles: Roles, change: &BackupChange<'_>) -> bool {
    let places = [BackupPhase::Queued, BackupPhase::ReadyToStart].iter().any(|p| p.as_str() == change.to);
    !roles.queue && (roles.executor || roles.lifecycle) && change.status_changed && places
}

/// Refuses a priority class that is not configured, because it would otherwise silently count as
/// the default one.
fn check_class<K: Listers>(
    state: &AdmissionState<K>,
    source: QueueFields<'_>,
    found: &mut Violations,
    warnings: &mut Vec<String>,
) {
    let order = state.listers().order();
    let Some(class) = source.class().filter(|class| order.head_start(Some(class)).is_none()) else { return };
    if order.classes.is_empty() {
        warnings.push(format!("berth: priority class {class:?} is ignored: no classes are configured"));
        return;
    }
    let mut known: BTreeSet<&str> = order.classes.keys().map(String::as_str).collect();
    known.insert(DEFAULT_CLASS);
    let known: Vec<&str> = known.into_iter().collect();
    let kind = if source.annotations.contains_key(keys::PRIORITY_CLASS) { "annotations" } else { "labels" };
    let field = Field::root("metadata").child(kind).key(keys::PRIORITY_CLASS);
    found.push(field, format!("{class:?} is not a priority class: choose one of {}", known.join(", ")));
}

/// The whole status, including fields that this build does not know; absent and empty are the same.
pub(crate) fn status(status: Option<&RawValue>) -> Result<Value, ReviewError> {
    let read: Option<Value> = status.map(|status| serde_json::from_str(status.get())).transpose()?;
    Ok(read.filter(|status| !status.is_null()).unwrap_or_else(|| json!({})))
}

async fn find_location<K: Listers>(listers: &K, wanted: &str) -> Result<Location, String> {
    let find = || {
        let locations = listers.locations();
        choose(&locations, wanted).cloned()
    };
    let patient = tokio::time::timeout(LOCATION_PATIENCE, async {
        loop {
            let changed = listers.locations_changed();
            if let Some(location) = find() {
                return location;
            }
            changed.await;
        }
    });
    if let Ok(location) = patient.await {
        return Ok(location);
    }
    let locations = listers.locations();
    let names: Vec<&str> = locations.iter().map(|l| l.name.as_str()).collect();
    let there = if names.is_empty() {
        "there is none yet".to_owned()
    } else {
        format!("there are: {}", names.join(", "))
    };
    Err(match wanted {
        "" => format!("no BackupStorageLocation is marked as default: name one, or create one ({there})"),
        name => format!("BackupStorageLocation {name:?} does not exist in this namespace ({there})"),
    })
}
