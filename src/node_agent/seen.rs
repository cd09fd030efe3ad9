//! What the watches show.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::keys::CARRIER;
use berth_api::velero::{DataMover, PodVolumeBackup, PodVolumeRestore};
use berth_core::pod_volume::{ObservedPodVolume, is_own};
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};

use super::job::Kind;
use crate::movers::target::waits;
use crate::objects::is_stock_node_agent;
use crate::watch::{ObjectKey, WatchEvent};

/// A pod of this node.
#[derive(Clone, Debug)]
pub struct TargetPod {
    uid: String,
    /// Has the pod an init container that waits for restores?
    waits: bool,
    /// Is it one of Velero's node-agents?
    is_stock: bool,
}

impl TargetPod {
    pub fn of(pod: &Pod) -> (ObjectKey, Self) {
        let key = (pod.namespace().unwrap_or_default(), pod.name_any());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let has_ended = matches!(phase, Some("Failed" | "Succeeded"));
        let is_stock = !has_ended && is_stock_node_agent(pod.labels());
        (key, Self { uid: pod.uid().unwrap_or_default(), waits: waits(pod), is_stock })
    }
}

/// The process that carried each object which was in progress, by UID.
type Carriers = BTreeMap<String, Option<String>>;

/// What the watches show. A job writes its object only on the version that it has seen
/// ([`super::job`]), so maps are enough.
#[derive(Default)]
pub struct AgentObjects {
    /// Only those of this node.
    backups: BTreeMap<String, Arc<PodVolumeBackup>>,
    restores: BTreeMap<String, Arc<PodVolumeRestore>>,
    /// When they were listed for the first time.
    backups_at_first: Option<Carriers>,
    restores_at_first: Option<Carriers>,
    /// `None` until they have been listed.
    pods: Option<BTreeMap<ObjectKey, TargetPod>>,
}

fn put<K: Resource>(
    map: &mut BTreeMap<String, Arc<K>>,
    event: WatchEvent<K>,
    is_wanted: impl Fn(&K) -> bool,
) {
    match event {
        WatchEvent::Replaced(all) => {
            let all = all.into_iter().filter(is_wanted);
            *map = all.map(|object| (object.name_any(), Arc::new(object))).collect();
        }
        WatchEvent::Applied(object) if is_wanted(&object) => {
            map.insert(object.name_any(), Arc::new(object));
        }
        WatchEvent::Applied(object) => drop(map.remove(&object.name_any())),
        WatchEvent::Deleted(name) => drop(map.remove(&name)),
    }
}

fn carriers<K: DataMover>(map: &BTreeMap<String, Arc<K>>) -> Carriers {
    let begun = map.values().filter(|object| object.phase_text() == "InProgress");
    begun
        .filter_map(|object| Some((object.meta().uid.clone()?, object.annotations().get(CARRIER).cloned())))
        .collect()
}

impl AgentObjects {
    pub fn put_backups(&mut self, node: &str, event: WatchEvent<PodVolumeBackup>) {
        put(&mut self.backups, event, |object| {
            object.spec.node.as_deref() == Some(node) && is_own(object.spec.uploader_type.as_deref())
        });
        self.backups_at_first.get_or_insert_with(|| carriers(&self.backups));
    }

    pub fn put_restores(&mut self, event: WatchEvent<PodVolumeRestore>) {
        put(&mut self.restores, event, |object| is_own(object.spec.uploader_type.as_deref()));
        self.restores_at_first.get_or_insert_with(|| carriers(&self.restores));
    }

    /// Does the process carry the object that carried it before this one began? A node has one
    /// agent at a time, so that one counts as dead.
    pub fn is_inherited(&self, uid: &str, carrier: &str) -> bool {
        let at_first = [&self.backups_at_first, &self.restores_at_first];
        let at_first = at_first.into_iter().flatten().find_map(|carriers| carriers.get(uid));
        at_first.is_some_and(|then| then.as_deref() == Some(carrier))
    }

    pub fn put_pods(&mut self, event: WatchEvent<(ObjectKey, TargetPod), ObjectKey>) {
        event.apply_to(self.pods.get_or_insert_default());
    }

    /// Does one of Velero's node-agents run on this node? It takes every PodVolumeBackup of the
    /// node, whatever its uploader, and restores what restic wrote.
    pub fn has_stock_agent(&self, namespace: &str) -> bool {
        // Until the pods are listed this is not known.
        self.pods
            .as_ref()
            .is_none_or(|pods| pods.iter().any(|((of, _), pod)| of == namespace && pod.is_stock))
    }

    /// The pod of a restore, if it is on this node.
    fn target(&self, object: &PodVolumeRestore) -> Option<&TargetPod> {
        let pod = object.spec.pod.as_ref()?;
        let key = (pod.namespace.clone()?, pod.name.clone()?);
        let uid = pod.uid.as_ref().filter(|uid| !uid.is_empty());
        self.pods.as_ref()?.get(&key).filter(|pod| uid.is_none_or(|uid| *uid == pod.uid))
    }

    /// All objects of this node, the oldest first, but for those that were handed over to data
    /// mover pods.
    pub fn found(&self, is_running: impl Fn(&str) -> bool) -> Vec<(Kind, ObservedPodVolume<'static>)> {
        let seen = |object: &dyn Look, is_ready| ObservedPodVolume {
            phase: known(object.phase()),
            is_canceled: object.is_canceled(),
            is_running: is_running(object.uid()),
            is_ready,
            is_left: false,
        };
        // A job of this process goes on until the pod begins.
        let is_handed_over =
            |is_own: bool, uid: &Option<String>| is_own && !is_running(uid.as_deref().unwrap_or_default());
        let backups = self.backups.values();
        let backups = backups.filter(|object| !is_handed_over(object.is_own(), &object.metadata.uid));
        let backups = backups.map(|object| (Kind::Backup(Arc::clone(object)), seen(&**object, true)));
        let restores = self.restores.values().filter_map(|object| {
            if is_handed_over(object.is_own(), &object.metadata.uid) {
                return None;
            }
            let pod = self.target(object);
            let is_running = is_running(object.metadata.uid.as_deref().unwrap_or_default());
            // The pod is on another node, or does not exist.
            if pod.is_none() && !is_running {
                return None;
            }
            let is_ready = pod.is_some_and(|pod| pod.waits);
            Some((Kind::Restore(Arc::clone(object)), seen(&**object, is_ready)))
        });
        let mut found: Vec<_> = backups.chain(restores).collect();
        found.sort_by_key(|(kind, _)| kind.age());
        found
    }
}

/// The phase as a static text.
fn known(phase: &str) -> &'static str {
    const PHASES: [&str; 9] =
        ["", "New", "Accepted", "Prepared", "InProgress", "Canceling", "Canceled", "Completed", "Failed"];
    PHASES.into_iter().find(|known| *known == phase).unwrap_or("Unknown")
}

trait Look {
    fn uid(&self) -> &str;
    fn phase(&self) -> &str;
    fn is_canceled(&self) -> bool;
}

macro_rules! look {
    ($kind:ident) => {
        impl Look for $kind {
            fn uid(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }

            fn phase(&self) -> &str {
                self.phase_text()
            }

            fn is_canceled(&self) -> bool {
                self.spec.cancel == Some(true) || self.metadata.deletion_timestamp.is_some()
            }
        }
    };
}

look!(PodVolumeBackup);
look!(PodVolumeRestore);
