//! Backups at admission: a place in line for what is created, and every fault told at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_api::keys;
use berth_api::place::{PlacedSpec, Source};
use berth_api::unserved::unserved;
use berth_api::velero::{BackupPhase, BackupSpec};
use berth_core::guard::{Change, Roles, judge};
use berth_core::limits;
use berth_core::location::{Location, choose};
use berth_core::queue::{
    Band, DEFAULT_CLASS, Entry, Phase, Reason, View, explain_newcomer, mark, position_of_newcomer,
};
use berth_core::violation::{Field, Violations};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::desk::Desk;
use crate::known::Known;
use crate::patch::Edit;
use crate::review::{Operation, Question, RefusalReason, ReviewError, Verdict};

/// How long a location that is named but not known may take to show up in the watch: people apply both in
/// one go.
const LOCATION_PATIENCE: Duration = Duration::from_millis(400);
/// Annotations that only berth writes: they decide on order, on what runs together, on what is run in pods, on what is read, on who runs
/// it, and on how often.
const MARKS: [&str; 8] = [
    keys::ENQUEUED_AT,
    keys::RESOLVED_NAMESPACES,
    keys::WAITS_SINCE,
    keys::FROZEN,
    keys::SCOPE,
    keys::RUN,
    keys::RUNS,
    keys::PUBLISHING,
];

static NONE: BTreeMap<String, String> = BTreeMap::new();

struct Incoming<'a> {
    metadata: Metadata,
    spec: BackupSpec,
    status: Option<&'a RawValue>,
    phase: Option<String>,
}

/// `S`: what is read of the spec.
#[derive(Deserialize)]
struct Object<'a, S> {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: S,
    #[serde(borrow, default)]
    status: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    generate_name: Option<String>,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Status {
    /// Text: a phase that this build does not know is somebody else's business.
    #[serde(default)]
    phase: Option<String>,
}

impl<'a> Incoming<'a> {
    /// `S`: as much of the spec as is looked at.
    fn of<S>(question: &Question<'a>) -> Result<Self, ReviewError>
    where
        S: Default + Deserialize<'a> + Into<BackupSpec>,
    {
        Self::parse::<S>(question.object.ok_or(ReviewError::NoObject)?)
    }

    fn parse<S>(object: &'a RawValue) -> Result<Self, ReviewError>
    where
        S: Default + Deserialize<'a> + Into<BackupSpec>,
    {
        let object: Object<'a, S> = serde_json::from_str(object.get())?;
        let Object { metadata, spec, status } = object;
        let phase = status.map(|status| serde_json::from_str::<Status>(status.get())).transpose()?;
        let phase = phase.and_then(|status| status.phase);
        Ok(Self { metadata, spec: spec.into(), status, phase })
    }

    fn phase(&self) -> &str {
        self.phase.as_deref().unwrap_or_default()
    }

    /// A place that somebody wrote down by hand is no place.
    fn wants_place(&self) -> bool {
        ["", BackupPhase::New.as_str(), BackupPhase::Queued.as_str()].contains(&self.phase())
    }

    fn mark(&self, key: &str) -> Option<&String> {
        self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key))
    }

    fn source(&self) -> Source<'_> {
        Source {
            labels: self.metadata.labels.as_ref().unwrap_or(&NONE),
            annotations: self.metadata.annotations.as_ref().unwrap_or(&NONE),
            spec: &self.spec,
        }
    }

    /// What somebody wrote there by hand, or copied from another Backup.
    fn remove_marks(&self, edit: &mut Edit) {
        for key in MARKS.into_iter().filter(|key| self.mark(key).is_some()) {
            edit.remove(&["metadata", "annotations", key]);
        }
    }

    /// Without a place: one that is worked out from nothing would be the first one. The leader gives it a true one.
    fn later(&self, why: &str) -> Verdict {
        let mut edit = Edit::default();
        self.remove_marks(&mut edit);
        if self.status.is_some() {
            edit.remove(&["status"]);
        }
        let warnings = vec![format!("berth: queued by the controller in a moment: {why}")];
        Verdict { patch: Some(edit.into_patch()), warnings, ..Verdict::allow() }
    }

    fn name(&self) -> String {
        let generated = || self.metadata.generate_name.as_ref().map(|base| format!("{base}…"));
        self.metadata.name.clone().or_else(generated).unwrap_or_default()
    }
}

/// Gives a Backup that is being created its place: phase, position, time mark, and warnings that say what it
/// waits for. Any other phase is left alone: whoever copies finished backups from a store creates those.
///
/// # Errors
/// When the object cannot be read.
pub fn enqueue<K: Known>(
    desk: &Desk<K>,
    question: &Question<'_>,
    now: Timestamp,
) -> Result<Verdict, ReviewError> {
    let incoming = Incoming::of::<PlacedSpec>(question)?;
    if question.operation != Operation::Create || !incoming.wants_place() {
        return Ok(Verdict::allow());
    }
    if let Some(why) = desk.known().cannot_queue() {
        return Ok(Verdict { warnings: vec![format!("berth: not queued: {why}")], ..Verdict::allow() });
    }
    if !desk.known().ready() {
        return Ok(incoming.later("this replica has just started"));
    }
    // Shared, because what it takes may be long: the answer that is remembered has no copy of it.
    let mut newcomer = Arc::new(Entry {
        name: incoming.name(),
        uid: question.uid.clone(),
        phase: Phase::Queued,
        created_at: now,
        ..incoming.source().entry(desk.known().order())
    });
    // A list that cannot be read takes nothing; the validating webhook refuses it.
    let readable = newcomer.refused.is_empty();
    let size = question.object.map_or(0, |object| object.get().len());
    let remember = (!question.is_dry_run() && readable).then_some(size + question.uid.len());
    let mut view = desk.known().queue(&newcomer, now);
    let (position, enqueued_at, reason, piled_up) = desk.recent().with(
        &mut view,
        |mark| desk.known().has_seen(mark),
        Instant::now(),
        remember,
        |view| {
            let placed = Arc::make_mut(&mut newcomer);
            placed.enqueued_at = Some(desk.mark(mark(view, now)));
            placed.position = position_of_newcomer(view, placed);
            let reason = readable.then(|| explain_newcomer(view, &newcomer));
            let answer =
                (newcomer.position, newcomer.enqueued_at, reason, waiting_of_schedule(view, &newcomer));
            (answer, Arc::clone(&newcomer))
        },
    );
    let mut warnings = vec![warning(position, reason.as_ref())];
    let start = desk.known().expected_start(&view, &question.uid, now);
    if let Some(start) = start.filter(|_| reason != Some(Reason::Next)) {
        warnings.push(expectation(start, now));
    }
    if let (Some(schedule), 1..) = (incoming.source().labels.get(keys::SCHEDULE), piled_up) {
        warnings.push(format!(
            "berth: {piled_up} of schedule {schedule} wait already; annotate the Schedule {}=true to keep only the last one",
            keys::SUPERSEDE
        ));
    }
    let mut edit = Edit::default();
    incoming.remove_marks(&mut edit);
    let has_annotations = incoming.metadata.annotations.is_some();
    edit.set(
        &["metadata", "annotations"],
        has_annotations,
        keys::ENQUEUED_AT,
        json!(enqueued_at.map(micros)),
    );
    edit.set(&["status"], incoming.status.is_some(), "phase", json!(BackupPhase::Queued.as_str()));
    edit.set(&["status"], incoming.status.is_some(), "queuePosition", json!(position));
    Ok(Verdict { patch: Some(edit.into_patch()), warnings, refused: None })
}

/// What is answered where [`enqueue`] takes longer than anybody waits.
///
/// # Errors
/// When the object cannot be read.
pub fn enqueue_later(question: &Question<'_>) -> Result<Verdict, ReviewError> {
    let incoming = Incoming::of::<PlacedSpec>(question)?;
    let is_meant = question.operation == Operation::Create && incoming.wants_place();
    Ok(if is_meant { incoming.later("this replica is busy") } else { Verdict::allow() })
}

/// Backups of the newcomer's schedule that wait and will not be superseded by it.
fn waiting_of_schedule(view: &View, newcomer: &Entry) -> usize {
    let same = |b: &&Arc<Entry>| !b.phase.is_running() && b.schedule == newcomer.schedule;
    match newcomer.schedule {
        Some(_) if !newcomer.supersedes => view.backups.iter().filter(same).count(),
        _ => 0,
    }
}

fn expectation(start: Band<Timestamp>, now: Timestamp) -> String {
    let minutes = |at: Timestamp| at.duration_since(now).as_secs().max(0).saturating_add(59) / 60;
    let (earliest, likely, latest) = (minutes(start.earliest), minutes(start.likely), minutes(start.latest));
    format!(
        "berth: expected to start in about {likely} min ({earliest} to {latest}, as such backups went lately)"
    )
}

/// RFC 3339 with microseconds.
fn micros(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn warning(position: u32, reason: Option<&Reason>) -> String {
    match reason {
        Some(Reason::Next) => format!("berth: queued at position {position}; it starts next"),
        Some(reason) => format!("berth: queued at position {position}; waits for {reason}"),
        None => format!("berth: queued at position {position}"),
    }
}

/// Judges a write: may this caller do that, and, where a Backup waits, can what it asks for be done.
///
/// # Errors
/// When the object cannot be read.
pub async fn validate<K: Known>(desk: &Desk<K>, question: &Question<'_>) -> Result<Verdict, ReviewError> {
    if !matches!(question.operation, Operation::Create | Operation::Update) {
        return Ok(Verdict::allow());
    }
    let incoming = Incoming::of::<BackupSpec>(question)?;
    let old = question.old_object.map(Incoming::parse::<BackupSpec>).transpose()?;
    let spec_changed = old.as_ref().is_none_or(|old| old.spec != incoming.spec);
    let marks_changed = match &old {
        Some(old) => MARKS.iter().any(|key| old.mark(key) != incoming.mark(key)),
        None => MARKS.iter().any(|key| *key != keys::ENQUEUED_AT && incoming.mark(key).is_some()),
    };
    let change = Change {
        from: old.as_ref().map(Incoming::phase),
        to: incoming.phase(),
        status_changed: status(old.as_ref().and_then(|old| old.status))? != status(incoming.status)?,
        spec_changed,
        marks_changed,
        ..Change::default()
    };
    let user = question.user_info.username.as_str();
    // What RBAC gives is for the policy to ask, by the API server's own authorizer: it holds while this is away, too.
    let roles = Roles { operator: true, editor: true, ..desk.roles(user) };
    if let Err(refusal) = judge(roles, &change) {
        if !question.is_dry_run() && is_of_another_queue(roles, &change) {
            desk.tally().foreign_queue();
            desk.known().foreign_queue(&question.name, &incoming.metadata.uid, user);
        }
        let mut violations = Violations::default();
        violations.push(Field::root(refusal.field), refusal.message);
        return Ok(Verdict::refuse(RefusalReason::Conflict, violations));
    }
    if !incoming.wants_place() || !spec_changed {
        return Ok(Verdict::allow());
    }
    let mut found = berth_api::parse::check(&incoming.spec);
    if desk.known().runs_backups() {
        found.append(unserved(&incoming.spec));
    }
    let size = question.object.map_or(0, |object| object.get().len());
    if size > limits::OBJECT {
        let most = limits::OBJECT;
        let message = format!(
            "the Backup has {size} bytes and at most {most} are taken, because what is written to it later has to fit: use several Backups"
        );
        found.push(Field::root("spec"), message);
    }
    let mut warnings = Vec::new();
    check_class(desk, &incoming, &mut found, &mut warnings);
    let wanted = incoming.spec.storage_location.as_deref().unwrap_or_default();
    match find_location(desk.known(), wanted).await {
        Ok(location) => {
            let field = Field::root("spec").child("storageLocation");
            let message = format!("location {:?} is read-only: name one that can be written", location.name);
            found.require(!location.read_only, &field, message);
            if let Some(why) = location.unavailable {
                warnings.push(format!("berth: location {} is unavailable just now: {why}", location.name));
            }
        }
        Err(message) => found.push(Field::root("spec").child("storageLocation"), message),
    }
    let mut verdict =
        if found.is_empty() { Verdict::allow() } else { Verdict::refuse(RefusalReason::Invalid, found) };
    verdict.warnings = warnings;
    Ok(verdict)
}

/// Does whoever runs or deletes backups want to place one, as Velero's own queue does when it is left on?
fn is_of_another_queue(roles: Roles, change: &Change<'_>) -> bool {
    let places = [BackupPhase::Queued, BackupPhase::ReadyToStart].iter().any(|p| p.as_str() == change.to);
    !roles.queue && (roles.executor || roles.lifecycle) && change.status_changed && places
}

/// A class that nobody configured would be taken for the default one without a word.
fn check_class<K: Known>(
    desk: &Desk<K>,
    incoming: &Incoming<'_>,
    found: &mut Violations,
    warnings: &mut Vec<String>,
) {
    let (order, source) = (desk.known().order(), incoming.source());
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
    found.push(field, format!("{class:?} is no priority class: choose one of {}", known.join(", ")));
}

/// The status as it stands, fields unknown to us included; absent and empty are the same.
fn status(status: Option<&RawValue>) -> Result<Value, ReviewError> {
    let read: Option<Value> = status.map(|status| serde_json::from_str(status.get())).transpose()?;
    Ok(read.filter(|status| !status.is_null()).unwrap_or_else(|| json!({})))
}

async fn find_location<K: Known>(known: &K, wanted: &str) -> Result<Location, String> {
    let find = || {
        let locations = known.locations();
        choose(&locations, wanted).cloned()
    };
    let patient = tokio::time::timeout(LOCATION_PATIENCE, async {
        loop {
            let changed = known.locations_changed();
            if let Some(location) = find() {
                return location;
            }
            changed.await;
        }
    });
    if let Ok(location) = patient.await {
        return Ok(location);
    }
    let locations = known.locations();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that stand in one list with others, list by list.
    fn marks_in(manifest: &'static str) -> Vec<BTreeSet<&'static str>> {
        let lists = manifest.split('[').filter_map(|rest| rest.split_once(']')).map(|(list, _)| list);
        let marks =
            |list: &'static str| list.split('\'').filter(|word| word.starts_with("berth.dev/")).collect();
        lists.filter(|list| list.contains(keys::WAITS_SINCE)).map(marks).collect()
    }

    /// What one of them does not know is nobody's there.
    #[test]
    fn the_policy_and_the_webhook_know_the_same_marks() {
        let all = BTreeSet::from(MARKS);
        let mut of_births = all.clone();
        of_births.remove(keys::ENQUEUED_AT);
        let guard = include_str!("../manifests/webhook/guard.yaml");
        assert_eq!(marks_in(guard), [of_births, all.clone()]);
        let matters = include_str!("../manifests/webhook/validating.yaml");
        assert_eq!(marks_in(matters), [all]);
    }
}
