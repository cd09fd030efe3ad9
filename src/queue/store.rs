//! Backups, mirrored: those that wait or run, and how long the others took. Rebuilt from one list whenever the
//! watch starts; nothing else is ever remembered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use berth_api::velero::{Backup, BackupStorageLocation};
use berth_core::location::{self, Location};
use berth_core::queue::{
    Entry, Expectation, History, Index, Order, Phase, Run, Use, View, depends_on_all, expect, handicaps,
};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::runtime::watcher;
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};

use super::seen::{Item, Seen};
use crate::mirror::{Change, mirror, of_namespace};
use crate::patch::known_location;
use crate::queue::refusals::Refusals;

#[derive(Default)]
struct State {
    items: HashMap<String, Item>,
    /// Of the items.
    index: Index,
    /// Runs that ended well, by the name of the Backup.
    ended: HashMap<String, Run>,
    synced: bool,
    marks: Marks,
}

/// Time marks of the Backups seen last, ended ones included.
#[derive(Default)]
struct Marks {
    known: HashSet<Timestamp>,
    order: VecDeque<Timestamp>,
}

impl Marks {
    /// Many more than a webhook answers before its watch shows the first of them.
    const MOST: usize = 50_000;

    fn note(&mut self, mark: Timestamp) {
        if self.known.insert(mark) {
            self.order.push_back(mark);
            if self.order.len() > Self::MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }
}

/// What a view is frozen with, besides the Backups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `--concurrent-backups`.
    pub slots: usize,
    pub order: Order,
}

/// Readers take a snapshot; [`Store::changed`] wakes whoever acts on it.
pub struct Store {
    settings: Settings,
    state: RwLock<State>,
    locations: watch::Sender<Option<Arc<Vec<Location>>>>,
    changes: watch::Sender<u64>,
    relist: Notify,
    /// What the API server refuses to write. Of the leader alone.
    pub refusals: Refusals,
}

impl Store {
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: RwLock::default(),
            locations: watch::Sender::new(None),
            changes: watch::Sender::new(0),
            relist: Notify::new(),
            refusals: Refusals::default(),
        }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Asks whoever feeds this store to list anew.
    pub fn ask_for_relist(&self) {
        self.relist.notify_one();
    }

    /// Resolves when somebody has asked.
    pub async fn relist_asked(&self) {
        self.relist.notified().await;
    }

    /// Takes in a watch event.
    pub fn observe(&self, change: Change<Backup>) {
        let order = &self.settings.order;
        self.observe_seen(match change {
            Change::All(backups) => Change::All(backups.iter().map(|b| Seen::of(b, order)).collect()),
            Change::Applied(backup) => Change::Applied(Seen::of(&backup, order)),
            Change::Deleted(name) => Change::Deleted(name),
        });
    }

    /// What a Backup says is read before the lock is taken: whoever creates one decides how long that takes.
    fn observe_seen(&self, change: Change<Seen>) {
        {
            let mut state = self.state.write();
            match change {
                Change::All(all) => {
                    let items = std::mem::take(&mut state.items);
                    state.index = Index::default();
                    state.ended.clear();
                    for seen in all {
                        // An answer to a write of our own may be newer than the list.
                        let known = items.get(&seen.name).filter(|known| seen.is_older_than(known));
                        let seen = match known {
                            Some(known) => Seen { item: Some(known.clone()), ..seen },
                            None => seen,
                        };
                        state.apply(seen);
                    }
                    state.synced = true;
                }
                Change::Applied(seen) => state.apply(seen),
                Change::Deleted(name) => {
                    state.remove(&name);
                    state.ended.remove(&name);
                }
            }
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Takes in the answer to a write of our own, which the watch will show only later. Not so of a Backup whose end
    /// it has shown meanwhile: nothing would ever tell us again that it is gone.
    pub fn observe_write(&self, backup: &Backup) {
        let seen = Seen::of(backup, &self.settings.order);
        let mut state = self.state.write();
        let known = state.items.get(&seen.name);
        if known.is_some_and(|known| known.entry.uid == seen.uid) {
            state.apply(seen);
            drop(state);
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// The API server says that it is gone, whatever the watch has shown so far.
    pub fn forget(&self, name: &str, uid: &str) {
        let mut state = self.state.write();
        if state.items.get(name).is_some_and(|item| item.entry.uid == uid) {
            state.remove(name);
        }
    }

    pub fn is_synced(&self) -> bool {
        self.state.read().synced && self.locations.borrow().is_some()
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    pub fn observe_location(&self, change: Change<BackupStorageLocation>) {
        self.locations.send_modify(|known| {
            let mut locations = known.as_deref().cloned().unwrap_or_default();
            let (before, now) = (locations.clone(), Timestamp::now());
            let seen = |location: &BackupStorageLocation| {
                let location = known_location(location);
                let before = before.iter().find(|before| before.name == location.name);
                location.seen_after(before, now)
            };
            match change {
                Change::All(all) => locations = all.iter().map(seen).collect(),
                Change::Applied(location) => {
                    let location = seen(&location);
                    locations.retain(|other| other.name != location.name);
                    locations.push(location);
                }
                Change::Deleted(name) => locations.retain(|other| other.name != name),
            }
            locations.sort_by(|a, b| a.name.cmp(&b.name));
            *known = Some(Arc::new(locations));
        });
        self.changes.send_modify(|count| *count += 1);
    }

    /// By name. Empty until they have been listed.
    pub fn locations(&self) -> Arc<Vec<Location>> {
        self.locations.borrow().clone().unwrap_or_default()
    }

    /// Resolves at the next change of [`Store::locations`].
    pub fn locations_changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.locations.subscribe();
        async move {
            // The sender lives as long as the store.
            let _ = changes.changed().await;
        }
    }

    /// Frozen; `stopped` says why nothing can start at all.
    pub fn view(&self, stopped: Option<String>, now: Timestamp) -> View {
        let mut view = self.frame(stopped, now);
        view.backups = self.state.read().standing(&view);
        view
    }

    /// Frozen for one newcomer: if there are more than `few`, without those on which what it is told does not depend.
    pub fn view_facing(&self, newcomer: &Entry, now: Timestamp, few: usize) -> View {
        let mut view = self.frame(None, now);
        {
            let state = self.state.read();
            if state.items.len() <= few {
                view.backups = state.standing(&view);
                return view;
            }
            view.backups = state.index.facing(&view, newcomer, now);
            view.others = state.items.len().saturating_sub(view.backups.len());
        }
        // Without the lock: comparing may take long.
        if depends_on_all(&view, newcomer) { self.view(None, now) } else { view }
    }

    /// A view without Backups.
    fn frame(&self, stopped: Option<String>, now: Timestamp) -> View {
        let Settings { slots, order } = &self.settings;
        let handicaps = match &order.share {
            Some(share) => handicaps(self.state.read().uses(share.workers, now), share, now),
            None => HashMap::new(),
        };
        View {
            slots: *slots,
            order: order.clone(),
            handicaps,
            closed_locations: location::closed(&self.locations(), now),
            stopped,
            unwritable: self.refusals.out_of_line(),
            failures: self.refusals.failures(),
            ..View::default()
        }
    }

    /// What is expected of the backups of this view, where runs like them are known. Nothing, if there are more than
    /// `most`: somebody waits for the answer.
    pub fn expectations(&self, view: &View, now: Timestamp, most: usize) -> Vec<Expectation> {
        if view.backups.len() + view.others > most {
            return Vec::new();
        }
        expect(view, &History::new(self.state.read().ended.values()), now, most)
    }

    pub fn get(&self, name: &str) -> Option<Item> {
        self.state.read().items.get(name).cloned()
    }

    /// Has a Backup with this time mark been seen, whatever became of it?
    pub fn has_seen(&self, mark: Timestamp) -> bool {
        self.state.read().marks.known.contains(&mark)
    }

    pub fn in_phase(&self, phase: Phase) -> Vec<Item> {
        self.state.read().items.values().filter(|item| item.entry.phase == phase).cloned().collect()
    }
}

/// Feeds the store for ever: Backups and storage locations. Lists everything anew when asked to.
pub async fn mirror_queue(client: &Client, namespace: &str, store: &Store) {
    let everything = watcher::Config::default;
    let locations = mirror(
        of_namespace(client, namespace),
        everything(),
        |location: BackupStorageLocation| location,
        |change| store.observe_location(change),
    );
    let order = &store.settings.order;
    let backups = async {
        loop {
            let backups = of_namespace(client, namespace);
            let seen = |backup: Backup| Seen::of(&backup, order);
            let watching = mirror(backups, everything(), seen, |change| store.observe_seen(change));
            tokio::select! {
                () = watching => {}
                () = store.relist_asked() => {}
            }
        }
    };
    tokio::join!(locations, backups);
}

impl State {
    fn standing(&self, view: &View) -> Vec<Arc<Entry>> {
        let entries = self.items.values().map(|item| &item.entry);
        entries.filter(|entry| !view.is_stuck(entry)).cloned().collect()
    }

    fn insert(&mut self, name: String, item: Item) {
        self.remove(&name);
        self.index.insert(&item.entry);
        self.items.insert(name, item);
    }

    fn remove(&mut self, name: &str) {
        if let Some(known) = self.items.remove(name) {
            self.index.remove(&known.entry);
        }
    }

    /// What each tenant used, runs that go on included.
    fn uses(&self, workers: u16, now: Timestamp) -> impl Iterator<Item = Use> {
        let used = move |tenant: &String, took: SignedDuration, until| Use {
            tenant: tenant.clone(),
            worker_seconds: took.as_secs_f64() * f64::from(workers.max(1)),
            until,
        };
        let ended =
            self.ended.values().filter_map(move |run| Some(used(run.tenant.as_ref()?, run.took, run.ended)));
        let in_progress = self.items.values().filter(|item| item.entry.phase == Phase::InProgress);
        let running = in_progress.filter_map(move |item| {
            let took = now.duration_since(item.entry.started_at?);
            Some(used(item.entry.tenant.as_ref()?, took, now))
        });
        ended.chain(running)
    }

    fn apply(&mut self, seen: Seen) {
        if let Some(mark) = seen.mark {
            self.marks.note(mark);
        }
        if self.items.get(&seen.name).is_some_and(|known| seen.is_older_than(known)) {
            return;
        }
        match seen.item {
            Some(item) => {
                self.insert(seen.name, item);
            }
            None => {
                self.remove(&seen.name);
                if let Some(run) = seen.run {
                    self.ended.insert(seen.name, run);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
