//! A place in line for a Backup that is created.

use std::sync::Arc;
use std::time::Instant;

use berth_api::keys;
use berth_api::place::PlacedSpec;
use berth_api::velero::BackupPhase;
use berth_core::queue::{
    Band, QueueEntry, QueuePhase, QueueReason, QueueView, explain_newcomer, mark, position_of_newcomer,
};
use berth_core::schedule::told_name;
use jiff::Timestamp;
use serde_json::json;

use super::incoming::IncomingBackup;
use crate::listers::Listers;
use crate::patch::Edit;
use crate::review::{AdmissionOperation, AdmissionRequest, ReviewError, ReviewVerdict};
use crate::state::AdmissionState;

/// What a name of a namespace takes in memory, as it is parsed.
const BYTES_OF_A_NAME: usize = 280;

/// Gives a Backup that is being created its place: phase, position, time mark, and warnings that
/// say what it waits for. A Backup with any other phase stays unchanged, because Velero's backup
/// sync creates finished Backups.
///
/// # Errors
/// When the object cannot be read.
pub fn enqueue<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
    now: Timestamp,
) -> Result<ReviewVerdict, ReviewError> {
    let incoming = IncomingBackup::of::<PlacedSpec>(request)?;
    if request.operation != AdmissionOperation::Create || !incoming.wants_place() {
        return Ok(ReviewVerdict::allow());
    }
    if let Some(why) = state.listers().cannot_queue() {
        return Ok(ReviewVerdict {
            warnings: vec![format!("berth: not queued: {why}")],
            ..ReviewVerdict::allow()
        });
    }
    if !state.listers().ready() {
        return Ok(incoming.later(is_by_berth(state, request), "this replica has just started"));
    }
    let by_berth = is_by_berth(state, request);
    let entry = incoming.source().entry(state.listers().order());
    // Shared, because the entry may be large: the assumed entry is this one, not a copy.
    let mut newcomer = Arc::new(QueueEntry {
        // It is told to others who wait for it, and its creation may still be refused.
        name: if by_berth { told_name(&incoming.name()) } else { incoming.name() },
        uid: request.uid.clone(),
        phase: QueuePhase::Queued,
        created_at: now,
        // The mark of anybody else is removed below.
        is_made: entry.is_made && by_berth,
        ..entry
    });
    // A Backup whose lists cannot be read gets no place; the validating webhook refuses it.
    let readable = newcomer.refused.is_empty();
    // Short names take more memory than JSON.
    let names = newcomer.namespaces.weight().saturating_mul(BYTES_OF_A_NAME);
    let size = request.object.map_or(0, |object| object.get().len()).max(names);
    let remember = (!request.is_dry_run() && readable).then_some(size + request.uid.len());
    let seen = |entry: &QueueEntry| state.listers().has_seen(entry);
    let begun = state.assumed().begin(seen, Instant::now());
    let mut view = state.listers().queue(&newcomer, now);
    let mut explained = 0;
    let place = |view: &QueueView| {
        let placed = Arc::make_mut(&mut newcomer);
        placed.enqueued_at = Some(state.mark(mark(view, now)));
        placed.position = position_of_newcomer(view, placed);
        Arc::clone(&newcomer)
    };
    let explain = |view: &QueueView, newcomer: &Arc<QueueEntry>| {
        explained = newcomer.position;
        let reason = readable.then(|| explain_newcomer(view, newcomer));
        (reason, waiting_of_schedule(view, newcomer))
    };
    let (placed, (reason, piled_up)) = state.assumed().with(&mut view, begun, seen, remember, place, explain);
    let (position, enqueued_at) = (placed.position, placed.enqueued_at);
    // What came meanwhile may be in its way.
    let reason = reason.filter(|reason| explained == position || *reason != QueueReason::Next);
    let mut warnings = vec![warning(position, reason.as_ref())];
    let start = state.listers().expected_start(&view, &request.uid, now);
    if let Some(start) = start.filter(|_| reason != Some(QueueReason::Next)) {
        warnings.push(expectation(start, now));
    }
    if let (Some(schedule), 1..) = (incoming.source().labels.get(keys::SCHEDULE), piled_up) {
        warnings.push(format!(
            "berth: {piled_up} of schedule {schedule} wait already; annotate the Schedule {}=true to keep only the last one",
            keys::SUPERSEDE
        ));
    }
    let mut edit = Edit::default();
    incoming.remove_marks(by_berth, &mut edit);
    let has_annotations = incoming.metadata.annotations.is_some();
    edit.set(
        &["metadata", "annotations"],
        has_annotations,
        keys::ENQUEUED_AT,
        json!(enqueued_at.map(micros)),
    );
    edit.set(&["status"], incoming.status.is_some(), "phase", json!(BackupPhase::Queued.as_str()));
    edit.set(&["status"], incoming.status.is_some(), "queuePosition", json!(position));
    Ok(ReviewVerdict { patch: Some(edit.into_patch()), warnings, refused: None })
}

/// The answer where [`enqueue`] takes longer than the API server waits: the controller queues the
/// Backup.
///
/// # Errors
/// When the object cannot be read.
pub fn enqueue_later<K: Listers>(
    state: &AdmissionState<K>,
    request: &AdmissionRequest<'_>,
) -> Result<ReviewVerdict, ReviewError> {
    let incoming = IncomingBackup::of::<PlacedSpec>(request)?;
    let is_meant = request.operation == AdmissionOperation::Create && incoming.wants_place();
    let by_berth = is_by_berth(state, request);
    Ok(if is_meant { incoming.later(by_berth, "this replica is busy") } else { ReviewVerdict::allow() })
}

/// Does the leader create it, for a Schedule? A Velero does not count, because it copies what
/// stands on the Schedule.
fn is_by_berth<K: Listers>(state: &AdmissionState<K>, request: &AdmissionRequest<'_>) -> bool {
    state.roles(&request.user_info.username).queue
}

/// Backups of the newcomer's schedule that wait and will not be superseded by it.
fn waiting_of_schedule(view: &QueueView, newcomer: &QueueEntry) -> usize {
    let same = |b: &&Arc<QueueEntry>| !b.phase.is_running() && b.schedule == newcomer.schedule;
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

fn warning(position: u32, reason: Option<&QueueReason>) -> String {
    match reason {
        Some(QueueReason::Next) => format!("berth: queued at position {position}; it starts next"),
        Some(reason) => format!("berth: queued at position {position}; waits for {reason}"),
        None => format!("berth: queued at position {position}"),
    }
}
