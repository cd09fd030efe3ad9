//! The data movers of all four kinds, and their pods, as the leader sees them.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use berth_api::velero::{DataDownload, DataMover, DataUpload, PodVolumeBackup, PodVolumeRestore};
use berth_core::mover::MoverKind;
use berth_core::mover::grant::{Mover, MoverPhase, MoverPod};
use k8s_openapi::api::core::v1::Pod;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::mirror::{Change, is_older, mirror, of_namespace};

/// A mover and the version that was seen.
#[derive(Clone, Debug)]
pub struct Item {
    pub mover: Arc<Mover>,
    pub resource_version: String,
    /// The pod whose volume a PodVolumeRestore is for: namespace and name.
    pub target_pod: Option<(String, String)>,
}

type Key = (MoverKind, String);

#[derive(Default)]
struct State {
    items: HashMap<Key, Item>,
    pods: HashMap<String, MoverPod>,
    listed: HashSet<MoverKind>,
    pods_listed: bool,
}

impl State {
    /// An answer to a write of our own may be newer than what the watch shows: a place that was given must not seem free.
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

    /// Wakes on every change after this call.
    pub fn changed(&self) -> watch::Receiver<u64> {
        let mut changes = self.changes.subscribe();
        changes.mark_unchanged();
        changes
    }

    /// All that have not ended, each with its pod.
    pub fn frozen(&self) -> Vec<Item> {
        let state = self.state.read();
        let going = state.items.values().filter(|item| !item.mover.phase.is_final());
        going
            .map(|item| {
                let Some(pod) = state.pods.get(&item.mover.name) else { return item.clone() };
                let mover = Mover { mover_pod: Some(pod.clone()), ..(*item.mover).clone() };
                Item { mover: Arc::new(mover), ..item.clone() }
            })
            .collect()
    }

    /// For ever. What is listed is no older than this call.
    pub async fn follow(&self, client: &Client, namespace: &str) {
        let pods = mirror(of_namespace(client, namespace), watcher::Config::default(), pod, |change| {
            self.write(|state| match change {
                Change::All(all) => {
                    state.pods = all.into_iter().filter_map(|(name, pod)| Some((name, pod?))).collect();
                    state.pods_listed = true;
                }
                Change::Applied((name, Some(pod))) => drop(state.pods.insert(name, pod)),
                Change::Applied((_, None)) => {}
                Change::Deleted(name) => drop(state.pods.remove(&name)),
            });
        });
        tokio::join!(
            self.kind::<DataUpload>(client, namespace, |_| None),
            self.kind::<DataDownload>(client, namespace, |_| None),
            self.kind::<PodVolumeBackup>(client, namespace, |_| None),
            self.kind::<PodVolumeRestore>(client, namespace, target_pod),
            pods,
        );
    }

    async fn kind<K>(
        &self,
        client: &Client,
        namespace: &str,
        target: impl Fn(&K) -> Option<(String, String)> + Copy,
    ) where
        K: DataMover + Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let keep = |object: K| Item {
            mover: Arc::new(object.mover()),
            resource_version: object.resource_version().unwrap_or_default(),
            target_pod: target(&object),
        };
        let key = |item: &Item| (K::KIND, item.mover.name.clone());
        mirror(of_namespace(client, namespace), watcher::Config::default(), keep, |change| {
            self.write(|state| match change {
                Change::All(all) => {
                    let listed: Vec<_> = all.into_iter().map(|item| (key(&item), item)).collect();
                    let kept = listed.into_iter().map(|(key, item)| (key.clone(), state.newer(&key, item)));
                    let kept: Vec<_> = kept.collect();
                    state.items.retain(|(kind, _), _| *kind != K::KIND);
                    state.items.extend(kept);
                    state.listed.insert(K::KIND);
                }
                Change::Applied(item) => {
                    let key = key(&item);
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

    /// Takes in the answer to a grant of our own, which the watch will show only later.
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

fn target_pod(restore: &PodVolumeRestore) -> Option<(String, String)> {
    let pod = restore.spec.pod.clone()?;
    Some((pod.namespace?, pod.name?))
}

/// `None`: not a data mover's.
fn pod(pod: Pod) -> (String, Option<MoverPod>) {
    let owner = berth_api::mover_pod::owner(&pod.metadata);
    let node = pod.spec.and_then(|spec| spec.node_name).filter(|node| !node.is_empty());
    let running = pod.status.and_then(|status| status.phase).is_some_and(|phase| phase == "Running");
    (pod.metadata.name.unwrap_or_default(), owner.map(|_| MoverPod { node, running }))
}
