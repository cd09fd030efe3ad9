//! What is known of one kind: what the watch shows, and what our own writes were answered with.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::mirror::{Change, is_older, mirror_everywhere};

/// Name, and namespace, which is empty for cluster-scoped kinds: all of one name stand together.
type Key = (String, String);

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    is_listed: bool,
}

pub struct Known<K> {
    state: RwLock<State<K>>,
    changes: Arc<watch::Sender<u64>>,
}

impl<K> Known<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// `changes` counts what happens to any of several kinds.
    pub fn new(changes: &Arc<watch::Sender<u64>>) -> Self {
        let state = State { objects: BTreeMap::new(), is_listed: false };
        Self { state: RwLock::new(state), changes: Arc::clone(changes) }
    }

    pub fn is_listed(&self) -> bool {
        self.state.read().is_listed
    }

    /// The only one of that name; of several the first.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.named(name).into_iter().next()
    }

    /// Of all namespaces.
    pub fn named(&self, name: &str) -> Vec<Arc<K>> {
        let state = self.state.read();
        let from = state.objects.range((name.to_owned(), String::new())..);
        from.take_while(|((found, _), _)| found == name).map(|(_, object)| Arc::clone(object)).collect()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// Takes in the answer to a write of our own, which the watch will show only later. Of one that was its last, nothing is
    /// left; the watch may have said so before.
    pub fn note(&self, object: K) {
        let mut state = self.state.write();
        if object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty() {
            state.objects.remove(&key(&object));
        } else {
            state.put(object);
        }
    }

    /// For ever.
    pub async fn follow(&self, api: Api<DeserializeGuard<K>>, config: watcher::Config) {
        let keep = |mut object: K| {
            object.meta_mut().managed_fields = None;
            object
        };
        mirror_everywhere(api, config, keep, |change| {
            let mut state = self.state.write();
            match change {
                Change::All(all) => {
                    let all = all.into_iter().map(|object| (key(&object), state.newer(object)));
                    state.objects = all.collect();
                    state.is_listed = true;
                }
                Change::Applied(object) => state.put(object),
                Change::Deleted((namespace, name)) => drop(state.objects.remove(&(name, namespace))),
            }
            drop(state);
            self.changes.send_modify(|count| *count += 1);
        })
        .await;
    }
}

impl<K: Resource<DynamicType = ()>> State<K> {
    fn put(&mut self, object: K) {
        let key = key(&object);
        let object = self.newer(object);
        self.objects.insert(key, object);
    }

    fn newer(&self, object: K) -> Arc<K> {
        let before = self.objects.get(&key(&object)).filter(|known| known.uid() == object.uid());
        let version = |object: &K| object.resource_version().unwrap_or_default();
        match before {
            Some(before) if is_older(&version(&object), &version(before)) => Arc::clone(before),
            _ => Arc::new(object),
        }
    }
}

fn key(object: &impl ResourceExt) -> Key {
    (object.name_any(), object.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use berth_api::garden::{BackupEntry, BackupEntrySpec};
    use berth_api::keys::GARDEN_FINALIZER;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn entry(namespace: &str, name: &str, finalizers: &[&str]) -> BackupEntry {
        let mut entry = BackupEntry::new(name, BackupEntrySpec::default());
        entry.metadata.namespace = Some(namespace.to_owned());
        entry.metadata.uid = Some(format!("{namespace}-{name}"));
        entry.metadata.finalizers = Some(finalizers.iter().map(|one| (*one).to_owned()).collect());
        entry
    }

    #[test]
    fn objects_of_one_name_are_told_apart_by_their_namespace() {
        let known = Known::new(&Arc::default());
        for (namespace, name) in [("b", "one"), ("a", "one"), ("a", "on"), ("a", "one-more")] {
            known.note(entry(namespace, name, &[]));
        }
        let namespaces: Vec<_> = known.named("one").iter().filter_map(|one| one.namespace()).collect();
        assert_eq!(namespaces, ["a", "b"]);
        assert!(known.get("none").is_none());
        assert_eq!(known.all().len(), 4);
    }

    #[test]
    fn of_a_last_write_nothing_is_left() {
        let known = Known::new(&Arc::default());
        let mut going = entry("a", "one", &[GARDEN_FINALIZER]);
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        known.note(going.clone());
        assert!(known.get("one").is_some());
        going.metadata.finalizers = None;
        known.note(going);
        assert!(known.get("one").is_none());
    }
}
