//! The watch cache of Backups: those that wait or run, and how long the others took. It is rebuilt
//! from one list whenever the watch starts; nothing else is remembered.

mod state;
mod weight;

use std::collections::HashMap;
use std::sync::Arc;

use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::location::{self, Location};
use berth_core::queue::{
    Expectation, QueueEntry, QueueOrder, QueuePhase, QueueView, RunHistory, depends_on_all, expect, handicaps,
};
use jiff::Timestamp;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use tokio::sync::{Notify, watch};

use super::seen::{BackupAfterQueue, CachedBackup, GoneBackup, QueueItem};
use crate::cache::SharedCache;
use crate::queue::refusals::Refusals;
use crate::watch::{WatchEvent, of_namespace, reflect, reflect_by};
use state::QueueState;
use weight::ListWeight;

/// What a view is frozen with, besides the Backups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueSettings {
    /// `--concurrent-backups`.
    pub slots: usize,
    pub order: QueueOrder,
}

/// Readers take a snapshot; [`BackupCache::changed`] wakes the loops that act on it.
pub struct BackupCache {
    settings: QueueSettings,
    state: SharedCache<QueueState>,
    locations: watch::Sender<Option<Arc<Vec<Location>>>>,
    relist: Notify,
    /// What the API server refuses to write. Of the leader alone.
    pub refusals: Refusals,
}

impl BackupCache {
    pub fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            state: SharedCache::default(),
            locations: watch::Sender::new(None),
            relist: Notify::new(),
            refusals: Refusals::default(),
        }
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// Asks [`reflect_queue`] to list all Backups again.
    pub fn ask_for_relist(&self) {
        self.relist.notify_one();
    }

    /// Resolves when a new list was asked for.
    pub async fn relist_asked(&self) {
        self.relist.notified().await;
    }

    /// Takes in a watch event.
    pub fn observe(&self, event: WatchEvent<Backup>) {
        let order = &self.settings.order;
        self.observe_seen(match event {
            WatchEvent::Replaced(backups) => {
                WatchEvent::Replaced(backups.iter().map(|b| CachedBackup::of(b, order)).collect())
            }
            WatchEvent::Applied(backup) => WatchEvent::Applied(CachedBackup::of(&backup, order)),
            WatchEvent::Deleted(name) => WatchEvent::Deleted(name),
        });
    }

    /// Parse the Backup before taking the lock, because its creator decides how long that takes.
    fn observe_seen(&self, event: WatchEvent<CachedBackup>) {
        self.state.write(|state| match event {
            WatchEvent::Replaced(all) => state.relist(all),
            WatchEvent::Applied(seen) => state.apply(seen),
            WatchEvent::Deleted(name) => {
                let run = state.backups.get(&name).and_then(GoneBackup::of_run);
                let gone = run.or_else(|| state.after.get(&name).map(GoneBackup::of_operations));
                state.note_gone(gone);
                state.backups.remove(&name);
                state.names.remove(&name);
                state.ended.remove(&name);
                state.after.remove(&name);
            }
        });
    }

    /// Takes in the answer to a write of our own, which the watch will show only later.
    pub fn observe_write(&self, backup: &Backup) {
        let seen = CachedBackup::of(backup, &self.settings.order);
        if self.state.write_silently(|state| state.assume(seen)) {
            self.state.wake();
        }
    }

    /// The API server says that it is gone, whatever the watch has shown so far.
    pub fn forget(&self, name: &str, uid: &str) {
        self.state.write_silently(|state| {
            state.backups.forget(name, uid);
            state.after.forget(name, uid);
        });
    }

    /// Backups that wait for operations, or have to be completed.
    pub fn after(&self) -> Vec<BackupAfterQueue> {
        self.state.read().after.values().cloned().collect()
    }

    /// Those of them, and of those that ran, that were deleted and are due now. The others wait for
    /// a later call.
    pub fn take_gone(&self, is_due: impl FnMut(&GoneBackup) -> bool) -> Vec<GoneBackup> {
        self.state.write_silently(|state| {
            let (due, later): (Vec<_>, Vec<_>) =
                std::mem::take(&mut state.gone).into_iter().partition(is_due);
            state.gone = later.into();
            due
        })
    }

    /// Is this Backup there, and has not ended?
    pub fn is_there(&self, name: &str, uid: &str) -> bool {
        let state = self.state.read();
        state.backups.get(name).is_some_and(|item| item.entry.uid == uid)
            || state.after.get(name).is_some_and(|after| after.uid == uid)
    }

    /// Has somebody canceled it?
    pub fn is_canceled(&self, name: &str, uid: &str) -> bool {
        let state = self.state.read();
        state.backups.get(name).is_some_and(|item| item.entry.uid == uid && item.entry.canceled)
            || state.after.get(name).is_some_and(|after| after.uid == uid && after.is_canceled)
    }

    pub fn is_synced(&self) -> bool {
        self.state.read().backups.is_synced() && self.locations.borrow().is_some()
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.state.changed()
    }

    pub fn observe_location(&self, event: WatchEvent<BackupStorageLocation>) {
        self.locations.send_modify(|known| {
            let mut locations = known.as_deref().cloned().unwrap_or_default();
            let (before, now) = (locations.clone(), Timestamp::now());
            let seen = |location: &BackupStorageLocation| {
                let location = location.decided();
                let before = before.iter().find(|before| before.name == location.name);
                location.seen_after(before, now)
            };
            match event {
                WatchEvent::Replaced(all) => locations = all.iter().map(seen).collect(),
                WatchEvent::Applied(location) => {
                    let location = seen(&location);
                    locations.retain(|other| other.name != location.name);
                    locations.push(location);
                }
                WatchEvent::Deleted(name) => locations.retain(|other| other.name != name),
            }
            locations.sort_by(|a, b| a.name.cmp(&b.name));
            *known = Some(Arc::new(locations));
        });
        self.state.wake();
    }

    /// By name. Empty until they have been listed.
    pub fn locations(&self) -> Arc<Vec<Location>> {
        self.locations.borrow().clone().unwrap_or_default()
    }

    /// Resolves at the next change of [`BackupCache::locations`].
    pub fn locations_changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.locations.subscribe();
        async move {
            // The sender lives as long as the cache.
            let _ = changes.changed().await;
        }
    }

    /// Frozen; `stopped` says why nothing can start at all.
    pub fn view(&self, stopped: Option<String>, now: Timestamp) -> QueueView {
        let mut view = self.frame(stopped, now);
        view.backups = self.state.read().standing(&view);
        view
    }

    /// A view for the answer to one newcomer: if there are more than `few` Backups, without those
    /// that do not change the answer.
    pub fn view_facing(&self, newcomer: &QueueEntry, now: Timestamp, few: usize) -> QueueView {
        let mut view = self.frame(None, now);
        {
            let state = self.state.read();
            let count = state.backups.values().len();
            if count <= few {
                view.backups = state.standing(&view);
                return view;
            }
            view.backups = state.backups.index().index.facing(&view, newcomer, now);
            view.others = count.saturating_sub(view.backups.len());
        }
        // Without the lock: comparing may take long.
        if depends_on_all(&view, newcomer) { self.view(None, now) } else { view }
    }

    /// A view without Backups.
    fn frame(&self, stopped: Option<String>, now: Timestamp) -> QueueView {
        let QueueSettings { slots, order } = &self.settings;
        let handicaps = match &order.share {
            Some(share) => handicaps(self.state.read().uses(share.workers, now), share, now),
            None => HashMap::new(),
        };
        QueueView {
            slots: *slots,
            order: order.clone(),
            handicaps,
            closed_locations: location::closed(&self.locations(), now),
            stopped,
            unwritable: self.refusals.out_of_line(),
            failures: self.refusals.failures(),
            ..QueueView::default()
        }
    }

    /// Estimates for the backups of this view, where similar runs are known. Empty if there are
    /// more than `most`, because the caller waits for the answer.
    pub fn expectations(&self, view: &QueueView, now: Timestamp, most: usize) -> Vec<Expectation> {
        if view.backups.len() + view.others > most {
            return Vec::new();
        }
        expect(view, &RunHistory::new(self.state.read().ended.values()), now, most)
    }

    pub fn get(&self, name: &str) -> Option<QueueItem> {
        self.state.read().backups.get(name).cloned()
    }

    /// Has the Backup of this answer been seen, whatever became of it, or is another one of its
    /// name here?
    pub fn has_seen(&self, answered: &QueueEntry) -> bool {
        let state = self.state.read();
        let is_marked = answered.enqueued_at.is_none_or(|mark| state.marks.known.contains(&mark));
        is_marked || state.names.contains(&answered.name)
    }

    pub fn in_phase(&self, phase: QueuePhase) -> Vec<QueueItem> {
        self.state.read().backups.values().filter(|item| item.entry.phase == phase).cloned().collect()
    }
}

/// Feeds the cache for ever: Backups and storage locations. Lists all Backups again when asked to.
pub async fn reflect_queue(client: &Client, namespace: &str, cache: &BackupCache) {
    let everything = watcher::Config::default;
    let locations = reflect(
        of_namespace(client, namespace),
        everything(),
        |location: BackupStorageLocation| location,
        |event| cache.observe_location(event),
    );
    let order = &cache.settings.order;
    let backups = async {
        loop {
            let backups = of_namespace(client, namespace);
            let listed = ListWeight::default();
            let seen = |backup: Backup| {
                let mut seen = CachedBackup::of(&backup, order);
                listed.bound(&mut seen.observed);
                seen
            };
            let observe = |event| {
                listed.end();
                cache.observe_seen(event);
            };
            let watching =
                reflect_by(backups, everything(), ResourceExt::name_any, || listed.begin(), seen, observe);
            tokio::select! {
                () = watching => {}
                () = cache.relist_asked() => {}
            }
        }
    };
    tokio::join!(locations, backups);
}

#[cfg(test)]
mod tests;
