//! What is known of one kind, by name: what the watch shows, and what our own writes were answered with.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::mirror::{Change, is_older, mirror};

struct State<K> {
    objects: HashMap<String, Arc<K>>,
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
        let state = State { objects: HashMap::new(), is_listed: false };
        Self { state: RwLock::new(state), changes: Arc::clone(changes) }
    }

    pub fn is_listed(&self) -> bool {
        self.state.read().is_listed
    }

    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.state.read().objects.get(name).cloned()
    }

    pub fn all(&self) -> Vec<Arc<K>> {
        self.state.read().objects.values().cloned().collect()
    }

    /// Takes in the answer to a write of our own, which the watch will show only later.
    pub fn note(&self, object: K) {
        let mut state = self.state.write();
        let name = object.name_any();
        let object = newer(&state.objects, object);
        state.objects.insert(name, object);
    }

    /// For ever.
    pub async fn follow(&self, api: Api<DeserializeGuard<K>>, config: watcher::Config) {
        let keep = |mut object: K| {
            object.meta_mut().managed_fields = None;
            object
        };
        mirror(api, config, keep, |change| {
            let mut state = self.state.write();
            match change {
                Change::All(all) => {
                    let all =
                        all.into_iter().map(|object| (object.name_any(), newer(&state.objects, object)));
                    state.objects = all.collect();
                    state.is_listed = true;
                }
                Change::Applied(object) => {
                    let name = object.name_any();
                    let object = newer(&state.objects, object);
                    state.objects.insert(name, object);
                }
                Change::Deleted(name) => drop(state.objects.remove(&name)),
            }
            drop(state);
            self.changes.send_modify(|count| *count += 1);
        })
        .await;
    }
}

fn newer<K: Resource<DynamicType = ()>>(known: &HashMap<String, Arc<K>>, object: K) -> Arc<K> {
    let before = known.get(&object.name_any()).filter(|known| known.uid() == object.uid());
    let version = |object: &K| object.resource_version().unwrap_or_default();
    match before {
        Some(before) if is_older(&version(&object), &version(before)) => Arc::clone(before),
        _ => Arc::new(object),
    }
}
