//! Backups at admission: a place in line for what is created, and every fault told at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_api::keys;
use berth_api::velero::{BackupPhase, BackupSpec};
use berth_core::guard::{Change, judge};
use berth_core::location::{Location, choose};
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{Entry, Phase, Reason, explain_newcomer, next_position};
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
/// Annotations that only berth writes: they decide on order and on what runs together.
const MARKS: [&str; 2] = [keys::ENQUEUED_AT, keys::RESOLVED_NAMESPACES];

#[derive(Deserialize)]
struct Incoming {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: BackupSpec,
    #[serde(default)]
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    generate_name: Option<String>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Status {
    /// Text: a phase that this build does not know is somebody else's business.
    #[serde(default)]
    phase: Option<String>,
}

impl Incoming {
    fn parse(question: &Question<'_>) -> Result<Self, ReviewError> {
        let object = question.object.ok_or(ReviewError::NoObject)?;
        Ok(serde_json::from_str(object.get())?)
    }

    fn phase(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// A place that somebody wrote down by hand is no place.
    fn wants_place(&self) -> bool {
        ["", BackupPhase::New.as_str(), BackupPhase::Queued.as_str()].contains(&self.phase())
    }

    fn mark(&self, key: &str) -> Option<&String> {
        self.metadata.annotations.as_ref().and_then(|annotations| annotations.get(key))
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
    let incoming = Incoming::parse(question)?;
    if question.operation != Operation::Create || !incoming.wants_place() {
        return Ok(Verdict::allow());
    }
    // A list that cannot be read takes nothing; the validating webhook refuses it.
    let namespaces = berth_api::parse::backup_namespaces(&incoming.spec);
    let enqueued_at = desk.mark(now);
    let mut view = desk.known().queue();
    let (position, reason) = desk.recent().with(
        &mut view,
        |mark| desk.known().has_seen(mark),
        Instant::now(),
        |view| {
            let position = next_position(&view.backups);
            let reason = namespaces.as_ref().map(|set| explain_newcomer(view, set));
            let remembered = Entry {
                name: incoming.name(),
                uid: question.uid.clone(),
                phase: Phase::Queued,
                position,
                held: false,
                canceled: false,
                first: None,
                enqueued_at: Some(enqueued_at),
                created_at: now,
                namespaces: namespaces.clone().unwrap_or_else(|| NamespaceSet::literal([])),
            };
            let remember = !question.is_dry_run() && namespaces.is_some();
            ((position, reason), remember.then_some(remembered))
        },
    );
    let mut edit = Edit::default();
    let has_annotations = incoming.metadata.annotations.is_some();
    edit.set(&["metadata", "annotations"], has_annotations, keys::ENQUEUED_AT, json!(micros(enqueued_at)));
    edit.set(&["status"], incoming.status.is_some(), "phase", json!(BackupPhase::Queued.as_str()));
    edit.set(&["status"], incoming.status.is_some(), "queuePosition", json!(position));
    let warnings = vec![warning(position, reason.as_ref())];
    Ok(Verdict { patch: Some(edit.into_patch()), warnings, refused: None })
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
    let incoming = Incoming::parse(question)?;
    let old = question.old_object.map(|old| serde_json::from_str::<Incoming>(old.get())).transpose()?;
    let spec_changed = old.as_ref().is_none_or(|old| old.spec != incoming.spec);
    let marks_changed =
        old.as_ref().is_some_and(|old| MARKS.iter().any(|key| old.mark(key) != incoming.mark(key)));
    let change = Change {
        from: old.as_ref().map(Incoming::phase),
        to: incoming.phase(),
        status_changed: status(question.old_object)? != status(question.object)?,
        spec_changed,
        marks_changed,
    };
    if let Err(refusal) = judge(desk.roles(&question.user_info.username), &change) {
        let mut violations = Violations::default();
        violations.push(Field::root(refusal.field), refusal.message);
        return Ok(Verdict::refuse(RefusalReason::Conflict, violations));
    }
    if !incoming.wants_place() || !spec_changed {
        return Ok(Verdict::allow());
    }
    let mut found = berth_api::parse::backup(&incoming.spec).err().unwrap_or_default();
    let mut warnings = Vec::new();
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

/// The status as it stands, fields unknown to us included; absent and empty are the same.
fn status(object: Option<&RawValue>) -> Result<Value, ReviewError> {
    #[derive(Deserialize)]
    struct WithStatus {
        #[serde(default)]
        status: Value,
    }
    let read: Option<WithStatus> = object.map(|object| serde_json::from_str(object.get())).transpose()?;
    let status = read.map(|object| object.status).unwrap_or_default();
    Ok(if status.is_null() { json!({}) } else { status })
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
