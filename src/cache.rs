//! The watch cache: what is known of the objects of one kind, from the watch ([`crate::watch`]) and
//! from the answers to writes of our own, which come before the watch shows them (kube-scheduler
//! calls these assumed).
//!
//! kube's `reflector::Store` serves where nothing is assumed and whole objects are wanted. It has
//! no place for an answer and takes in whatever the watch shows last, so a list that is older than
//! an answer would undo that answer.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeBounds;
use std::sync::Arc;

use kube::Resource;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use crate::watch::{WatchEvent, is_older};

/// What the rules of a [`Cache`] go by.
pub trait Versioned {
    fn uid(&self) -> &str;

    fn resource_version(&self) -> &str;

    /// Is it being deleted, and has it no finalizer left? In the answer to a write that means: it
    /// is gone. On the watch it does not, because a pod is shown like that while it takes its time
    /// to end.
    fn is_gone(&self) -> bool {
        false
    }
}

impl<K: Resource> Versioned for Arc<K> {
    fn uid(&self) -> &str {
        K::meta(self).uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> &str {
        K::meta(self).resource_version.as_deref().unwrap_or_default()
    }

    fn is_gone(&self) -> bool {
        let meta = K::meta(self);
        meta.deletion_timestamp.is_some() && meta.finalizers.as_ref().is_none_or(Vec::is_empty)
    }
}

/// A version of an object, as a list, a watch or an answer shows it.
pub enum Observed<V> {
    /// This is kept of it.
    Kept(V),
    /// Nothing is kept of it, as of a Backup that has ended.
    Passed { uid: String, resource_version: String },
}

impl<V> From<V> for Observed<V> {
    fn from(value: V) -> Self {
        Self::Kept(value)
    }
}

impl<V: Versioned> Versioned for Observed<V> {
    fn uid(&self) -> &str {
        match self {
            Self::Kept(value) => value.uid(),
            Self::Passed { uid, .. } => uid,
        }
    }

    fn resource_version(&self) -> &str {
        match self {
            Self::Kept(value) => value.resource_version(),
            Self::Passed { resource_version, .. } => resource_version,
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Kept(value) => value.is_gone(),
            Self::Passed { .. } => false,
        }
    }
}

/// An index, kept up with what a [`Cache`] holds.
pub trait Indexer<V>: Default {
    fn insert(&mut self, value: &V);

    /// What was inserted, as it was then.
    fn remove(&mut self, value: &V);
}

/// No index.
impl<V> Indexer<V> for () {
    fn insert(&mut self, _: &V) {}

    fn remove(&mut self, _: &V) {}
}

/// Many more objects than can end while the answer to one write is on its way.
const MAX_GONE: usize = 1000;

/// What is kept of the objects of one kind, by key. A value is replaced as a whole, and no event
/// costs more than a look-up, but for a list.
pub struct Cache<I, V, X = ()> {
    values: BTreeMap<I, V>,
    /// UIDs of the objects that the watch has shown to be gone, the last ones.
    gone: VecDeque<String>,
    index: X,
    is_synced: bool,
}

impl<I, V, X: Default> Default for Cache<I, V, X> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), gone: VecDeque::new(), index: X::default(), is_synced: false }
    }
}

impl<I, V, X> Cache<I, V, X> {
    /// Has there been a list?
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    pub fn index(&self) -> &X {
        &self.index
    }

    /// In the order of their keys.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> {
        self.values.values()
    }
}

impl<I: Ord, V: Versioned, X: Indexer<V>> Cache<I, V, X> {
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        I: Borrow<Q>,
    {
        self.values.get(key)
    }

    pub fn range(&self, keys: impl RangeBounds<I>) -> impl Iterator<Item = (&I, &V)> {
        self.values.range(keys)
    }

    /// Takes in a watch event.
    pub fn observe(&mut self, event: WatchEvent<(I, V), I>) {
        match event {
            WatchEvent::Replaced(all) => self.relist(all),
            WatchEvent::Applied((key, value)) => self.apply(key, value),
            WatchEvent::Deleted(key) => self.remove(&key),
        }
    }

    /// Takes in a list. What the list does not have is gone, assumed or not: one that was created
    /// after the list is shown by the watch that begins there, but of one that ended before the
    /// list no event would ever come. What was assumed of an object that the list shows in an older
    /// version stays.
    pub fn relist<S: Into<Observed<V>>>(&mut self, all: impl IntoIterator<Item = (I, S)>) {
        let mut before = std::mem::take(&mut self.values);
        self.index = X::default();
        for (key, seen) in all {
            let seen = seen.into();
            match before.remove(&key).filter(|known| is_outdated(&seen, known)) {
                Some(known) => self.put(key, Observed::Kept(known)),
                None => self.put(key, seen),
            }
        }
        for (_, known) in before {
            self.bury(&known);
        }
        self.is_synced = true;
    }

    /// Takes in what the watch shows, unless a newer version of that object is known from an
    /// answer.
    pub fn apply(&mut self, key: I, seen: impl Into<Observed<V>>) {
        let seen = seen.into();
        if self.values.get(&key).is_none_or(|known| !is_outdated(&seen, known)) {
            self.put(key, seen);
        }
    }

    /// Takes in the answer to a write of our own, which the watch will show only later. If it was
    /// the last write to that object, nothing is left of it. An object whose end the watch has
    /// shown meanwhile stays gone, because no event would ever say so again.
    pub fn assume(&mut self, key: I, answer: impl Into<Observed<V>>) {
        let answer = answer.into();
        let is_here = self.values.get(&key).is_some_and(|known| known.uid() == answer.uid());
        if !is_here && self.gone.iter().any(|uid| uid == answer.uid()) {
            return;
        }
        if answer.is_gone() {
            self.forget(&key, answer.uid());
        } else {
            self.apply(key, answer);
        }
    }

    /// [`Cache::assume`] for objects that are never created here. `false`: that object is not
    /// known, because the watch has shown its end meanwhile. No event would ever say again that it
    /// is gone.
    pub fn assume_known(&mut self, key: I, answer: impl Into<Observed<V>>) -> bool {
        let answer = answer.into();
        let is_known = self.values.get(&key).is_some_and(|known| known.uid() == answer.uid());
        if is_known {
            self.assume(key, answer);
        }
        is_known
    }

    /// The API server says that the object of this UID is gone, whatever the watch has shown so
    /// far.
    pub fn forget<Q: Ord + ?Sized>(&mut self, key: &Q, uid: &str)
    where
        I: Borrow<Q>,
    {
        if self.values.get(key).is_some_and(|known| known.uid() == uid) {
            self.remove(key);
        }
    }

    /// The watch says that it is gone.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        I: Borrow<Q>,
    {
        if let Some(known) = self.take_out(key) {
            self.bury(&known);
        }
    }

    fn take_out<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        I: Borrow<Q>,
    {
        let known = self.values.remove(key)?;
        self.index.remove(&known);
        Some(known)
    }

    fn bury(&mut self, known: &V) {
        if known.uid().is_empty() {
            return;
        }
        if self.gone.len() >= MAX_GONE {
            self.gone.pop_front();
        }
        self.gone.push_back(known.uid().to_owned());
    }

    fn put(&mut self, key: I, seen: Observed<V>) {
        self.take_out(&key);
        if let Observed::Kept(value) = seen {
            self.index.insert(&value);
            self.values.insert(key, value);
        }
    }
}

/// A newer resourceVersion wins. Another object of that name is newer in any case: names are free
/// only when the object before has gone.
fn is_outdated(seen: &impl Versioned, known: &impl Versioned) -> bool {
    seen.uid() == known.uid() && is_older(seen.resource_version(), known.resource_version())
}

/// Caches that are filled and read by several tasks: readers wait for changes and look at one
/// moment of all of them.
pub struct SharedCache<S> {
    state: RwLock<S>,
    changes: Arc<watch::Sender<u64>>,
}

impl<S: Default> Default for SharedCache<S> {
    fn default() -> Self {
        Self::new(S::default(), &Arc::default())
    }
}

impl<S> SharedCache<S> {
    /// `changes` counts the changes of this one and of others beside it.
    pub fn new(state: S, changes: &Arc<watch::Sender<u64>>) -> Self {
        Self { state: RwLock::new(state), changes: Arc::clone(changes) }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, S> {
        self.state.read()
    }

    /// Wakes all that wait for changes.
    pub fn write<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let done = self.write_silently(change);
        self.wake();
        done
    }

    /// For what a reader did itself and need not look at again.
    pub fn write_silently<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut self.state.write())
    }

    pub fn wake(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }
}

#[cfg(test)]
mod tests;
