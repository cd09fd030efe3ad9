//! The Backups of Schedules that have not ended, and which of them cannot be written.

use std::collections::HashMap;

use berth_api::velero::Schedule;
use berth_core::queue::QueuePhase;
use berth_core::schedule::UnfinishedBackup;
use berth_core::stage::Stage;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use tracing::warn;

use super::{CachedSchedule, Scheduler};
use crate::cache::Versioned as _;
use crate::events::EventReason;

/// The Backups that have not ended, by the UID of the Schedule that made them.
pub(super) type UnfinishedBackups = HashMap<String, Vec<UnfinishedBackup>>;

const UNFINISHED: [QueuePhase; 4] =
    [QueuePhase::New, QueuePhase::Queued, QueuePhase::ReadyToStart, QueuePhase::InProgress];

impl Scheduler {
    pub(super) fn unfinished(&self) -> UnfinishedBackups {
        let given_up = self.store.refusals.given_up();
        let mut all = UnfinishedBackups::new();
        for item in UNFINISHED.into_iter().flat_map(|phase| self.store.in_phase(phase)) {
            let entry = &item.entry;
            // Whoever takes the label off takes the Backup out of its schedule.
            if let (Some(_), Some(uid)) = (&entry.schedule, item.schedule_uid) {
                let (name, is_given_up) = (entry.name.clone(), given_up.contains(&entry.uid));
                let (phase, is_stored) = (entry.phase, false);
                let own = UnfinishedBackup { name, phase, is_stored, is_given_up };
                all.entry(uid).or_default().push(own);
            }
        }
        // One that only has to be completed may wait for its location for as long as it is kept.
        self.lifecycle.known.each(|name, backup| {
            let is_moved = Stage::of(backup.phase.as_str()) == Some(Stage::Waiting);
            if let (true, Some(_), Some(uid)) = (is_moved, &backup.schedule, backup.schedule_uid()) {
                let (name, phase) = (name.to_owned(), QueuePhase::InProgress);
                let own = UnfinishedBackup { name, phase, is_stored: true, is_given_up: false };
                all.entry(uid.to_owned()).or_default().push(own);
            }
        });
        all
    }

    /// Tells each Schedule once of its Backups that cannot be written, because it may wait for one
    /// of them.
    pub(super) fn tell_unwritable(&self, items: &[CachedSchedule]) {
        let lasting = self.store.refusals.lasting();
        let mut told = self.told.lock();
        told.retain(|uid| lasting.contains(uid));
        if told.len() == lasting.len() {
            return;
        }
        for item in UNFINISHED.into_iter().flat_map(|phase| self.store.in_phase(phase)) {
            let (name, uid) = (&item.entry.name, &item.entry.uid);
            if !lasting.contains(uid) || !told.insert(uid.clone()) {
                continue;
            }
            let own = items.iter().find(|schedule| Some(schedule.uid()) == item.schedule_uid.as_deref());
            let Some(own) = own else { continue };
            let schedule = own.schedule.name.as_str();
            warn!(schedule, %name, "a Backup of the Schedule cannot be written: it counts as unfinished for some minutes");
            let note = format!(
                "Backup {name} of this schedule cannot be written: if that lasts for ten minutes, it does not keep later backups from being created any more"
            );
            let about = ObjectReference {
                api_version: Some(Schedule::api_version(&()).into_owned()),
                kind: Some(Schedule::kind(&()).into_owned()),
                name: Some(schedule.to_owned()),
                namespace: Some(self.lifecycle.namespace.clone()),
                uid: Some(own.uid().to_owned()),
                ..ObjectReference::default()
            };
            self.events.tell_about(EventReason::Unwritable, about, note);
        }
    }
}
