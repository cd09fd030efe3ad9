//! What a watch has shown of the five Backups so far.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::bail;
use berth::queue::seen::entry;
use berth::watch::WatchEvent;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::queue::{QueueOrder, QueueReason, QueueView, plan};
use kube::ResourceExt;

use crate::order::{Happening, NAMES};
use crate::table::Row;

struct Seen {
    backup: Backup,
    first: Instant,
    ended: Option<Instant>,
}

pub struct Scene {
    slots: usize,
    backups: BTreeMap<String, Seen>,
    /// In the order of the watch, which is the order of the writes.
    happened: Vec<Happening>,
}

impl Scene {
    pub fn new(slots: usize) -> Self {
        Self { slots, backups: BTreeMap::new(), happened: Vec::new() }
    }

    pub fn observe(&mut self, at: Instant, change: WatchEvent<Backup>) {
        match change {
            WatchEvent::Replaced(backups) => backups.into_iter().for_each(|backup| self.apply(at, backup)),
            WatchEvent::Applied(backup) => self.apply(at, backup),
            WatchEvent::Deleted(name) => drop(self.backups.remove(&name)),
        }
    }

    fn apply(&mut self, at: Instant, backup: Backup) {
        let (name, phase) = (backup.name_any(), backup.phase());
        let is_started = !matches!(phase, BackupPhase::New | BackupPhase::Queued);
        if is_started {
            self.happen(Happening::Started(name.clone()));
        }
        if phase.is_final() {
            self.happen(Happening::Ended(name.clone()));
        }
        let known = self.backups.remove(&name);
        let first = known.as_ref().map_or(at, |known| known.first);
        let ended = known.and_then(|known| known.ended).or_else(|| phase.is_final().then_some(at));
        self.backups.insert(name, Seen { backup, first, ended });
    }

    fn happen(&mut self, happening: Happening) {
        if !self.happened.contains(&happening) {
            self.happened.push(happening);
        }
    }

    pub fn happened(&self) -> &[Happening] {
        &self.happened
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.backups.keys().map(String::as_str)
    }

    /// All are there and have ended.
    pub fn is_over(&self) -> bool {
        NAMES.iter().all(|name| self.backups.get(*name).is_some_and(|seen| seen.ended.is_some()))
    }

    /// # Errors
    /// When one has ended otherwise: with what it says about that.
    pub fn ensure_completed(&self) -> anyhow::Result<()> {
        for (name, Seen { backup, .. }) in &self.backups {
            if backup.phase() != BackupPhase::Completed {
                let status = serde_json::to_string_pretty(&backup.status)?;
                bail!("{name} is {}, not Completed: {status}", backup.phase().as_str());
            }
        }
        Ok(())
    }

    /// One row per Backup, with what berth's own plan says about those that wait.
    pub fn rows(&self, now: Instant) -> Vec<Row> {
        let backups = self
            .backups
            .values()
            .filter_map(|seen| entry(&seen.backup, &QueueOrder::default()))
            .map(Arc::new)
            .collect();
        let view = QueueView { slots: self.slots, backups, ..QueueView::default() };
        let plan = plan(&view);
        let name_of = |index: usize| view.backups.get(index).map(|entry| entry.name.as_str());
        let waits_for = |name: &str| {
            let waiting = plan.waiting.iter().find(|waiting| name_of(waiting.backup) == Some(name));
            let starts = plan.start.iter().any(|index| name_of(*index) == Some(name));
            waiting
                .map(|w| brief(&w.reason))
                .or_else(|| starts.then(|| brief(&QueueReason::Next)))
                .unwrap_or_default()
        };
        let row = |(name, seen): (&String, &Seen)| {
            let status = seen.backup.status.as_ref();
            let progress = status.and_then(|status| status.progress).unwrap_or_default();
            let items = |count: Option<i64>| count.unwrap_or(0);
            Row {
                name: name.clone(),
                phase: seen.backup.phase().as_str(),
                position: status.and_then(|s| s.queue_position).filter(|p| *p > 0).map(|p| p.to_string()),
                waits_for: waits_for(name),
                items: progress
                    .total_items
                    .map(|total| format!("{}/{total}", items(progress.items_backed_up)))
                    .unwrap_or_default(),
                elapsed: seen.ended.unwrap_or(now).saturating_duration_since(seen.first),
            }
        };
        self.backups.iter().map(row).collect()
    }
}

fn brief(reason: &QueueReason) -> String {
    match reason {
        QueueReason::Held | QueueReason::LocationHeld { .. } => "its release".to_owned(),
        QueueReason::Unwritable => "its deletion".to_owned(),
        QueueReason::LocationUnavailable { .. } => "its store".to_owned(),
        QueueReason::NoExecutor { .. } => "whoever runs it".to_owned(),
        QueueReason::Next => "nothing: next".to_owned(),
        QueueReason::NoSlot { .. } => "a free slot".to_owned(),
        QueueReason::Overlap { with, namespaces, .. } => format!("{with}: {}", namespaces.join(", ")),
    }
}
