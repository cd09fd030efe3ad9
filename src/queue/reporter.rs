//! What users see of the queue: log lines, Events and metrics. Reports changes only.

use std::collections::{BTreeSet, HashMap};

use berth_api::keys;
use berth_core::queue::{Plan, QueueEntry, QueueReason, QueueView};
use jiff::Timestamp;
use tracing::info;

use crate::events::{EventReason, Events};
use crate::leader::LeaseAnnotations;
use crate::metrics::{QueueMetrics, ReasonLabels};

/// Places whose turn may come soon.
const NEAR: u32 = 10;
/// Most UIDs that are written to the Lease; the metric counts all.
const NOTED: usize = 50;

pub struct QueueReporter {
    pub metrics: QueueMetrics,
    events: Events,
    notes: LeaseAnnotations,
    /// The reason reported last, by UID. `None` before the first cycle, because what a new leader
    /// finds is no news.
    told: Option<HashMap<String, QueueReason>>,
}

impl QueueReporter {
    pub fn new(metrics: QueueMetrics, events: Events, notes: LeaseAnnotations) -> Self {
        Self { metrics, events, notes, told: None }
    }

    /// Reports the UIDs of Backups whose every write the API server refuses. It cannot be reported
    /// on the objects themselves.
    pub fn tell_unwritable(&self, uids: &BTreeSet<String>) {
        self.metrics.unwritable.set(i64::try_from(uids.len()).unwrap_or(i64::MAX));
        let noted: Vec<&str> = uids.iter().take(NOTED).map(String::as_str).collect();
        self.notes.put(keys::UNWRITABLE, noted.join(","));
    }

    pub fn tell(&mut self, view: &QueueView, decided: &Plan) {
        self.count(view, decided);
        let mut telling = HashMap::with_capacity(decided.waiting.len() + decided.start.len());
        let waiting = decided.waiting.iter().map(|w| (w.backup, Some(w.place), &w.reason));
        let starting = decided.start.iter().map(|i| (*i, None, &QueueReason::Next));
        for (index, place, reason) in starting.chain(waiting) {
            let Some(entry) = view.backups.get(index) else { continue };
            match self.told.as_ref().map(|told| told.get(&entry.uid)) {
                None => log_passed_over(entry, place, reason),
                Some(None) => {
                    self.tell_queued(view, entry, place, reason);
                    self.tell_passed_over(entry, place, reason);
                }
                Some(Some(before)) if before.word() != reason.word() => {
                    self.tell_passed_over(entry, place, reason);
                }
                // Another backup is in its way now. That is logged only if its turn may come soon,
                // because each end changes it for all that wait behind.
                Some(Some(before)) if before != reason && place.is_some_and(|place| place <= NEAR) => {
                    self.tell_passed_over(entry, place, reason);
                }
                Some(Some(_)) => {}
            }
            telling.insert(entry.uid.clone(), reason.clone());
        }
        // A backup that could not be ended waits again; it is not new.
        for entry in decided.end.iter().filter_map(|end| view.backups.get(end.backup)) {
            if let Some(before) = self.told.as_ref().and_then(|told| told.get(&entry.uid)) {
                telling.insert(entry.uid.clone(), before.clone());
            }
        }
        self.told = Some(telling);
    }

    fn tell_queued(&self, view: &QueueView, entry: &QueueEntry, place: Option<u32>, reason: &QueueReason) {
        let note = format!("{}; waits for {reason}", at(place));
        self.events.tell(EventReason::Queued, &entry.name, &entry.uid, note);
        let Some(schedule) = entry.schedule.as_deref().filter(|_| !entry.supersedes) else { return };
        let same = |b: &&std::sync::Arc<QueueEntry>| {
            b.schedule.as_deref() == Some(schedule) && !b.phase.is_running() && b.uid != entry.uid
        };
        let others = view.backups.iter().filter(same).count();
        if others > 0 {
            info!(name = %entry.name, %schedule, others, "piles up: other backups of its schedule still wait");
            self.metrics.piled_up.inc();
            let note = format!("{others} other backups of schedule {schedule} still wait");
            self.events.tell(EventReason::PiledUp, &entry.name, &entry.uid, note);
        }
    }

    fn tell_passed_over(&self, entry: &QueueEntry, place: Option<u32>, reason: &QueueReason) {
        if *reason == QueueReason::Next {
            return;
        }
        self.metrics.passed_over.get_or_create(&ReasonLabels { reason: reason.word() }).inc();
        log_passed_over(entry, place, reason);
        if let QueueReason::Overlap { with, .. } = reason {
            let note = format!("{}; waits for {reason}", at(place));
            self.events.tell_because(EventReason::PassedOver, &entry.name, &entry.uid, note, Some(with));
        }
    }

    pub fn dequeued(&self, entry: &QueueEntry, now: Timestamp) {
        let wait = now.duration_since(entry.created_at).as_secs_f64();
        info!(name = %entry.name, wait_seconds = wait, "dequeued");
        self.metrics.dequeued.inc();
        self.metrics.wait.observe(wait);
        let note = format!("ready to start after {wait:.0} s in the queue");
        self.events.tell(EventReason::Dequeued, &entry.name, &entry.uid, note);
    }

    /// The backup ended without having run.
    pub fn ended(&self, entry: &QueueEntry, what: EventReason, reason: &str) {
        info!(name = %entry.name, %reason, "ended while it waited");
        if what == EventReason::Superseded {
            self.metrics.superseded.inc();
        }
        self.events.tell(what, &entry.name, &entry.uid, reason);
    }

    fn count(&self, view: &QueueView, decided: &Plan) {
        let running = view.backups.iter().filter(|b| b.phase.is_running()).count();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.running.set(gauge(running));
        self.metrics.depth.set(gauge(view.backups.len() - running));
        self.metrics.slots.set(gauge(view.slots));
        self.metrics.counted_as_all.set(gauge(view.backups.iter().filter(|b| b.lacks_room()).count()));
        for word in QueueReason::WORDS {
            let waiting = decided.waiting.iter().filter(|waiting| waiting.reason.word() == word).count();
            self.metrics.waiting.get_or_create(&ReasonLabels { reason: word }).set(gauge(waiting));
        }
    }
}

fn log_passed_over(entry: &QueueEntry, place: Option<u32>, reason: &QueueReason) {
    if let (Some(place), QueueReason::Overlap { with, namespaces, .. }) = (place, reason) {
        let namespaces = namespaces.join(",");
        info!(name = %entry.name, place, %with, %namespaces, "passed over: namespaces in conflict");
    }
}

fn at(place: Option<u32>) -> String {
    place.map_or_else(|| "first in line".to_owned(), |place| format!("at position {place}"))
}

impl Drop for QueueReporter {
    /// Clears the metrics: a process that does not lead knows nothing of the queue.
    fn drop(&mut self) {
        for gauge in [
            &self.metrics.depth,
            &self.metrics.running,
            &self.metrics.slots,
            &self.metrics.leading,
            &self.metrics.unwritable,
            &self.metrics.counted_as_all,
        ] {
            gauge.set(0);
        }
        self.metrics.executor_available.set(0);
        self.notes.put(keys::UNWRITABLE, String::new());
        self.metrics.waiting.clear();
    }
}
