//! Waiting and running Backups, mirrored. Rebuilt from one list whenever the watch starts; nothing else is
//! ever remembered.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use berth_api::keys;
use berth_api::velero::{Backup, BackupPhase};
use berth_core::glob::Glob;
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{Entry, Phase, View};
use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::mirror::Change;

/// One Backup that waits or runs.
#[derive(Clone, Debug)]
pub struct Item {
    pub entry: Arc<Entry>,
    pub resource_version: String,
}

#[derive(Default)]
struct State {
    items: HashMap<String, Item>,
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

/// Readers take a snapshot; [`Store::changed`] wakes whoever acts on it.
pub struct Store {
    state: RwLock<State>,
    changes: watch::Sender<u64>,
}

impl Default for Store {
    fn default() -> Self {
        Self { state: RwLock::default(), changes: watch::Sender::new(0) }
    }
}

impl Store {
    /// Takes in a watch event.
    pub fn observe(&self, change: Change<Backup>) {
        {
            let mut state = self.state.write();
            match change {
                Change::All(backups) => {
                    state.items = backups.iter().filter_map(item).collect();
                    backups.iter().filter_map(mark).for_each(|mark| state.marks.note(mark));
                    state.synced = true;
                }
                Change::Applied(backup) => state.apply(&backup),
                Change::Deleted(name) => {
                    state.items.remove(&name);
                }
            }
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Takes in the answer to a write of our own, which the watch will show only later.
    pub fn observe_write(&self, backup: &Backup) {
        self.state.write().apply(backup);
        self.changes.send_modify(|count| *count += 1);
    }

    /// The API server says that it is gone, whatever the watch has shown so far.
    pub fn forget(&self, name: &str, uid: &str) {
        let mut state = self.state.write();
        if state.items.get(name).is_some_and(|item| item.entry.uid == uid) {
            state.items.remove(name);
        }
    }

    pub fn is_synced(&self) -> bool {
        self.state.read().synced
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    pub fn view(&self, slots: usize) -> View {
        let state = self.state.read();
        View { slots, backups: state.items.values().map(|item| Arc::clone(&item.entry)).collect() }
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

impl State {
    fn apply(&mut self, backup: &Backup) {
        if let Some(mark) = mark(backup) {
            self.marks.note(mark);
        }
        let name = backup.name_any();
        let older = self.items.get(&name).is_some_and(|known| {
            let uid_same = Some(&known.entry.uid) == backup.metadata.uid.as_ref();
            uid_same && is_older(&backup.resource_version().unwrap_or_default(), &known.resource_version)
        });
        match item(backup) {
            _ if older => {}
            Some((name, item)) => {
                self.items.insert(name, item);
            }
            None => {
                self.items.remove(&name);
            }
        }
    }
}

/// Resource versions of one object grow (KEP-5504). What is no number is taken as newer.
fn is_older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}

/// `None` for a Backup that neither waits nor runs.
fn item(backup: &Backup) -> Option<(String, Item)> {
    let entry = Arc::new(entry(backup)?);
    let resource_version = backup.resource_version().unwrap_or_default();
    Some((backup.name_any(), Item { entry, resource_version }))
}

fn mark(backup: &Backup) -> Option<Timestamp> {
    backup.annotations().get(keys::ENQUEUED_AT).and_then(|text| text.parse().ok())
}

/// What the queue sees of a Backup. `None` when it neither waits nor runs.
pub fn entry(backup: &Backup) -> Option<Entry> {
    let phase = match backup.phase() {
        BackupPhase::New => Phase::New,
        BackupPhase::Queued => Phase::Queued,
        BackupPhase::ReadyToStart => Phase::ReadyToStart,
        BackupPhase::InProgress => Phase::InProgress,
        _ => return None,
    };
    let position = backup.status.as_ref().and_then(|s| s.queue_position).unwrap_or(0);
    let annotation = |key: &str| backup.annotations().get(key);
    let time = |key: &str| annotation(key).and_then(|text| text.parse().ok());
    let is_set = |key: &str| annotation(key).is_some_and(|value| value != "false");
    Some(Entry {
        name: backup.name_any(),
        uid: backup.uid().unwrap_or_default(),
        phase,
        position: u32::try_from(position).unwrap_or(0),
        held: is_set(keys::HOLD),
        canceled: is_set(keys::CANCEL),
        first: time(keys::FIRST),
        enqueued_at: mark(backup),
        created_at: backup.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        namespaces: namespaces(backup, phase),
    })
}

fn namespaces(backup: &Backup, phase: Phase) -> NamespaceSet {
    let resolved = backup.annotations().get(keys::RESOLVED_NAMESPACES).filter(|_| phase == Phase::InProgress);
    if let Some(names) = resolved {
        return NamespaceSet::literal(names.split(',').filter_map(|name| Glob::parse(name).ok()));
    }
    // A list that cannot be read meets nobody; the backup fails validation when its turn comes.
    berth_api::parse::backup_namespaces(&backup.spec).unwrap_or_else(|| NamespaceSet::literal([]))
}
