//! The watch cache of the data movers of all four kinds, and of their pods. For the leader.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::velero::{
    DataDownload, DataMover, DataUpload, PodReference, PodVolumeBackup, PodVolumeRestore,
};
use berth_core::mover::MoverKind;
use berth_core::mover::grant::{Mover, MoverPhase, MoverPod};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::cache::{Cache, SharedCache, Versioned};
use crate::watch::{WatchEvent, list, of_namespace, reflect};

/// A data mover, and the resourceVersion that was seen.
#[derive(Clone, Debug)]
pub struct MoverItem {
    pub mover: Arc<Mover>,
    pub resource_version: String,
    /// The pod whose volume a PodVolumeRestore is for.
    pub target_pod: Option<PodReference>,
}

impl Versioned for MoverItem {
    fn uid(&self) -> &str {
        &self.mover.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }
}

impl MoverItem {
    /// By name.
    fn of<K: DataMover>(object: &K) -> (String, Self) {
        let item = Self {
            mover: Arc::new(object.mover()),
            resource_version: object.meta().resource_version.clone().unwrap_or_default(),
            target_pod: object.target_pod(),
        };
        (item.mover.name.clone(), item)
    }

    /// The pod whose node it needs, while that node is not known and it has not begun.
    pub fn unbound(&self) -> Option<&PodReference> {
        let is_unbound = self.mover.bound_node.is_none() && self.mover.phase == MoverPhase::New;
        self.target_pod.as_ref().filter(|_| is_unbound)
    }

    /// Sets the node of that pod, if it is on one.
    pub fn bind(&mut self, node: Option<String>) {
        if node.is_some() {
            self.mover = Arc::new(Mover { bound_node: node, ..(*self.mover).clone() });
        }
    }
}

#[derive(Default)]
struct MoverCacheState {
    /// By name.
    movers: HashMap<MoverKind, Cache<String, MoverItem>>,
    /// By name of the pod, each with the UID of its data mover.
    pods: HashMap<String, (String, MoverPod)>,
    pods_listed: bool,
}

impl MoverCacheState {
    /// Replaces all pods.
    fn put_pods(&mut self, all: impl IntoIterator<Item = (String, Option<(String, MoverPod)>)>) {
        self.pods = all.into_iter().filter_map(|(name, pod)| Some((name, pod?))).collect();
    }
}

/// Filled by [`MoverCache::follow`].
#[derive(Default)]
pub struct MoverCache {
    state: SharedCache<MoverCacheState>,
}

impl MoverCache {
    pub fn is_synced(&self) -> bool {
        let state = self.state.read();
        let is_synced = |kind: &MoverKind| state.movers.get(kind).is_some_and(|cache| cache.is_synced());
        state.pods_listed && MoverKind::ALL.iter().all(is_synced)
    }

    /// Notifies of every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.state.changed()
    }

    /// All data movers that have not ended, each with its pod.
    pub fn frozen(&self) -> Vec<MoverItem> {
        let state = self.state.read();
        let movers = state.movers.values().flat_map(|cache| cache.values());
        let going = movers.filter(|item| !item.mover.phase.is_final());
        going
            .map(|item| {
                // A data mover of another kind may have the same name, and so may an earlier one.
                let pod = state.pods.get(&item.mover.name).filter(|(owner, _)| *owner == item.mover.uid);
                let Some((_, pod)) = pod else { return item.clone() };
                let mover = Mover { mover_pod: Some(pod.clone()), ..(*item.mover).clone() };
                MoverItem { mover: Arc::new(mover), ..item.clone() }
            })
            .collect()
    }

    /// Watches. Never returns. The lists are no older than this call.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let pods = reflect(of_namespace(client, namespace), watcher::Config::default(), pod, |event| {
            self.state.write(|state| match event {
                WatchEvent::Replaced(all) => {
                    state.put_pods(all);
                    state.pods_listed = true;
                }
                WatchEvent::Applied((name, Some(pod))) => drop(state.pods.insert(name, pod)),
                WatchEvent::Applied((_, None)) => {}
                WatchEvent::Deleted(name) => drop(state.pods.remove(&name)),
            });
        });
        tokio::join!(
            self.kind::<DataUpload>(client, namespace),
            self.kind::<DataDownload>(client, namespace),
            self.kind::<PodVolumeBackup>(client, namespace),
            self.kind::<PodVolumeRestore>(client, namespace),
            pods,
        );
    }

    /// Lists once, in place of [`MoverCache::follow`].
    ///
    /// # Errors
    /// The objects cannot be listed.
    pub async fn list(&self, client: &Client, namespace: &str) -> anyhow::Result<()> {
        let everything = ListParams::default();
        let pods = list(of_namespace(client, namespace), &everything);
        let ((), (), (), (), pods) = tokio::try_join!(
            self.list_kind::<DataUpload>(client, namespace),
            self.list_kind::<DataDownload>(client, namespace),
            self.list_kind::<PodVolumeBackup>(client, namespace),
            self.list_kind::<PodVolumeRestore>(client, namespace),
            pods,
        )?;
        self.state.write(|state| state.put_pods(pods.into_iter().map(pod)));
        Ok(())
    }

    async fn list_kind<K>(&self, client: &Client, namespace: &str) -> anyhow::Result<()>
    where
        K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let found: Vec<K> = list(of_namespace(client, namespace), &ListParams::default()).await?;
        let items = found.iter().map(MoverItem::of);
        self.state.write(|state| state.movers.entry(K::KIND).or_default().relist(items));
        Ok(())
    }

    async fn kind<K>(&self, client: &Client, namespace: &str)
    where
        K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let keep = |object: K| MoverItem::of(&object);
        reflect(of_namespace(client, namespace), watcher::Config::default(), keep, |event| {
            self.state.write(|state| state.movers.entry(K::KIND).or_default().observe(event));
        })
        .await;
    }

    /// Processes the answer to a grant of our own, which the watch shows only later, because a
    /// place that was granted must not seem free. A data mover that has begun meanwhile stays as
    /// the watch shows it.
    pub fn assume_granted(&self, mover: &Mover, granted: bool, resource_version: String) {
        self.state.write_silently(|state| {
            let Some(cache) = state.movers.get_mut(&mover.kind) else { return };
            let is_same =
                |known: &&MoverItem| known.mover.uid == mover.uid && known.mover.phase == MoverPhase::New;
            let Some(known) = cache.get(&mover.name).filter(is_same) else { return };
            let mover = Arc::new(Mover { granted, ..(*known.mover).clone() });
            let assumed = MoverItem { mover, resource_version, target_pod: known.target_pod.clone() };
            cache.assume(assumed.mover.name.clone(), assumed);
        });
    }
}

/// `None`: the pod does not belong to a data mover.
fn pod(pod: Pod) -> (String, Option<(String, MoverPod)>) {
    let owner = berth_api::mover_pod::owner(&pod.metadata);
    let node = pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
    let status = pod.status.unwrap_or_default();
    let scheduled =
        status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "True");
    let scheduled_at = scheduled.and_then(|condition| condition.last_transition_time.as_ref());
    // A pod that is created with a node name passes no scheduler.
    let placed_at = scheduled_at.or(pod.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    let mover_pod = MoverPod { node, placed_at, running: status.phase.as_deref() == Some("Running") };
    (pod.metadata.name.unwrap_or_default(), owner.map(|owner| (owner.uid, mover_pod)))
}
