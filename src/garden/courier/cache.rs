//! The watch cache of the objects of one kind, of the hub or of the member cluster.

use std::fmt::Debug;
use std::sync::Arc;

use kube::api::Api;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::cache::{Cache, SharedCache};
use crate::guarded::Guarded;
use crate::watch::reflect_by;

/// Name, then namespace (empty for cluster-scoped kinds), so that all objects of one name are
/// together.
type CacheKey = (String, String);

pub struct ObjectCache<K> {
    objects: SharedCache<Cache<CacheKey, Arc<K>>>,
}

impl<K> ObjectCache<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// `changes` counts changes of several kinds together.
    pub fn new(changes: &Arc<watch::Sender<u64>>) -> Self {
        Self { objects: SharedCache::new(Cache::default(), changes) }
    }

    pub fn is_synced(&self) -> bool {
        self.objects.read().is_synced()
    }

    /// The first object of that name.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.named(name).into_iter().next()
    }

    /// Of all namespaces.
    pub fn named(&self, name: &str) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        let from = objects.range((name.to_owned(), String::new())..);
        from.take_while(|((found, _), _)| found == name).map(|(_, object)| Arc::clone(object)).collect()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.objects.read().values().cloned().collect()
    }

    /// Takes in the answer to a write of this process, which the watch will show only later.
    pub fn note(&self, object: K) {
        self.objects.write_silently(|objects| objects.assume(key(&object), Arc::new(object)));
    }

    /// Runs for ever.
    pub async fn follow(&self, api: Api<Guarded<K>>, config: watcher::Config) {
        let keep = |mut object: K| {
            object.meta_mut().managed_fields = None;
            (key(&object), Arc::new(object))
        };
        reflect_by(
            api,
            config,
            key,
            || (),
            keep,
            |event| {
                self.objects.write(|objects| objects.observe(event));
            },
        )
        .await;
    }
}

fn key(object: &impl ResourceExt) -> CacheKey {
    (object.name_any(), object.namespace().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use berth_api::keys::GARDEN_FINALIZER;
    use berth_garden_api::{BackupEntry, BackupEntrySpec};
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
        let known = ObjectCache::new(&Arc::default());
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
        let known = ObjectCache::new(&Arc::default());
        let mut going = entry("a", "one", &[GARDEN_FINALIZER]);
        going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        known.note(going.clone());
        assert!(known.get("one").is_some());
        going.metadata.finalizers = None;
        known.note(going);
        assert!(known.get("one").is_none());
    }
}
