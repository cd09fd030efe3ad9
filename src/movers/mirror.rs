//! A cache of the data movers of all four kinds and their pods, for the leader.

use std::collections::{HashMap, HashSet};
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
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::mirror::{Change, is_older, list, mirror, of_namespace};

/// A data mover, and the resourceVersion that was seen.
#[derive(Clone, Debug)]
pub struct Item {
    pub mover: Arc<Mover>,
    pub resource_version: String,
    /// The pod whose volume a PodVolumeRestore is for.
    pub target_pod: Option<PodReference>,
}

impl Item {
    fn of<K: DataMover>(object: &K) -> Self {
        Self {
            mover: Arc::new(object.mover()),
            resource_version: object.meta().resource_version.clone().unwrap_or_default(),
            target_pod: object.target_pod(),
        }
    }

    fn key(&self) -> Key {
        (self.mover.kind, self.mover.name.clone())
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

type Key = (MoverKind, String);

#[derive(Default)]
struct State {
    items: HashMap<Key, Item>,
    /// By name of the pod, each with the UID of its data mover.
    pods: HashMap<String, (String, MoverPod)>,
    listed: HashSet<MoverKind>,
    pods_listed: bool,
}

impl State {
    /// Replaces all pods.
    fn put_pods(&mut self, all: impl IntoIterator<Item = (String, Option<(String, MoverPod)>)>) {
        self.pods = all.into_iter().filter_map(|(name, pod)| Some((name, pod?))).collect();
    }

    /// Keeps what an answer to a write of our own brought if it is newer than the watch, because a
    /// place that was granted must not seem free.
    fn newer(&self, key: &Key, item: Item) -> Item {
        match self.items.get(key).filter(|known| known.mover.uid == item.mover.uid) {
            Some(known) if is_older(&item.resource_version, &known.resource_version) => known.clone(),
            _ => item,
        }
    }
}

/// Filled by [`Movers::follow`].
#[derive(Default)]
pub struct Movers {
    state: RwLock<State>,
    changes: watch::Sender<u64>,
}

impl Movers {
    pub fn is_synced(&self) -> bool {
        let state = self.state.read();
        state.pods_listed && state.listed.len() == MoverKind::ALL.len()
    }

    /// Notifies of every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    /// All data movers that have not ended, each with its pod.
    pub fn frozen(&self) -> Vec<Item> {
        let state = self.state.read();
        let going = state.items.values().filter(|item| !item.mover.phase.is_final());
        going
            .map(|item| {
                // A data mover of another kind may have the same name, and so may an earlier one.
                let pod = state.pods.get(&item.mover.name).filter(|(owner, _)| *owner == item.mover.uid);
                let Some((_, pod)) = pod else { return item.clone() };
                let mover = Mover { mover_pod: Some(pod.clone()), ..(*item.mover).clone() };
                Item { mover: Arc::new(mover), ..item.clone() }
            })
            .collect()
    }

    /// Watches. Never returns. The lists are no older than this call.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let pods = mirror(of_namespace(client, namespace), watcher::Config::default(), pod, |change| {
            self.write(|state| match change {
                Change::All(all) => {
                    state.put_pods(all);
                    state.pods_listed = true;
                }
                Change::Applied((name, Some(pod))) => drop(state.pods.insert(name, pod)),
                Change::Applied((_, None)) => {}
                Change::Deleted(name) => drop(state.pods.remove(&name)),
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

    /// Lists once, in place of [`Movers::follow`].
    ///
    /// # Errors
    /// The objects cannot be listed.
    pub async fn look(&self, client: &Client, namespace: &str) -> anyhow::Result<()> {
        let everything = ListParams::default();
        let pods = list(of_namespace(client, namespace), &everything);
        let ((), (), (), (), pods) = tokio::try_join!(
            self.look_at::<DataUpload>(client, namespace),
            self.look_at::<DataDownload>(client, namespace),
            self.look_at::<PodVolumeBackup>(client, namespace),
            self.look_at::<PodVolumeRestore>(client, namespace),
            pods,
        )?;
        self.write(|state| state.put_pods(pods.into_iter().map(pod)));
        Ok(())
    }

    async fn look_at<K>(&self, client: &Client, namespace: &str) -> anyhow::Result<()>
    where
        K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let found: Vec<K> = list(of_namespace(client, namespace), &ListParams::default()).await?;
        let items = found.iter().map(Item::of);
        self.write(|state| state.items.extend(items.map(|item| (item.key(), item))));
        Ok(())
    }

    async fn kind<K>(&self, client: &Client, namespace: &str)
    where
        K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let keep = |object: K| Item::of(&object);
        mirror(of_namespace(client, namespace), watcher::Config::default(), keep, |change| {
            self.write(|state| match change {
                Change::All(all) => {
                    let listed: Vec<_> = all.into_iter().map(|item| (item.key(), item)).collect();
                    let kept = listed.into_iter().map(|(key, item)| (key.clone(), state.newer(&key, item)));
                    let kept: Vec<_> = kept.collect();
                    state.items.retain(|(kind, _), _| *kind != K::KIND);
                    state.items.extend(kept);
                    state.listed.insert(K::KIND);
                }
                Change::Applied(item) => {
                    let key = item.key();
                    let item = state.newer(&key, item);
                    state.items.insert(key, item);
                }
                Change::Deleted(name) => drop(state.items.remove(&(K::KIND, name))),
            });
        })
        .await;
    }

    fn write(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Processes the answer to a grant of our own, which the watch shows only later.
    pub fn note_granted(&self, mover: &Mover, granted: bool, resource_version: String) {
        let mut state = self.state.write();
        let known = state.items.get_mut(&(mover.kind, mover.name.clone()));
        let Some(known) = known.filter(|known| known.mover.uid == mover.uid) else { return };
        if known.mover.phase == MoverPhase::New && is_older(&known.resource_version, &resource_version) {
            known.mover = Arc::new(Mover { granted, ..(*known.mover).clone() });
            known.resource_version = resource_version;
        }
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
