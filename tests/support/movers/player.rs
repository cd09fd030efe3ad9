//! Plays the pods of data movements: they get their volumes, run on the node that the scheduler
//! gave them, say what they do as real ones do, and end well. No program runs.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::anyhow;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as KubeEvent, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{History, KINDS, Kind};
use crate::control_plane;
use crate::pods::Cluster;

/// Driver of the volumes that are made here; no component asks for more than its name.
pub const DRIVER: &str = "played.berth.test";
/// How often a pod checks whether it may begin.
const LOOK: Duration = Duration::from_millis(50);

/// How long the played pods take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From being bound to a node until it runs: that long the object stays Accepted.
    pub start: Duration,
    /// From the first to the last word about the data.
    pub run: Duration,
}

/// Nodes on which something is not to happen.
#[derive(Default)]
struct Held {
    /// Nothing begins to run there.
    starts: BTreeSet<String>,
    /// What runs there does not end.
    ends: BTreeSet<String>,
}

pub struct Player {
    held: Arc<Mutex<Held>>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Player {
    /// Takes over the pods of data movements in a namespace, and their claims.
    ///
    /// # Errors
    /// When nothing can be watched.
    pub fn start(
        cluster: &Cluster,
        namespace: &str,
        history: Arc<History>,
        pace: Pace,
    ) -> anyhow::Result<Self> {
        for kind in KINDS {
            cluster.leave(kind.label());
        }
        let stop = CancellationToken::new();
        let failed = Arc::<Mutex<Option<String>>>::default();
        let (ready, is_ready) = mpsc::channel();
        let held = Arc::<Mutex<Held>>::default();
        let stage = Stage { namespace: namespace.to_owned(), history, pace, held: Arc::clone(&held) };
        let (kubeconfig, stopped, told) = (cluster.plane().kubeconfig(), stop.clone(), Arc::clone(&failed));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let play = async |stage: Stage| {
                let client = control_plane::client(Path::new(&kubeconfig)).await?;
                let _ = ready.send(());
                tokio::select! {
                    () = stopped.cancelled() => Ok(()),
                    ended = play(&client, Arc::new(stage)) => ended,
                }
            };
            let ended =
                runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(play(stage)));
            if let Err(error) = ended {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:#}"));
            }
        };
        let thread = std::thread::Builder::new().name("player".to_owned()).spawn(run)?;
        let player = Self { held, stop, thread: Some(thread), failed };
        is_ready.recv().map_err(|_| anyhow!("the player did not start: {:?}", player.ensure_plays()))?;
        Ok(player)
    }

    /// From now on no pod on this node begins to run, and none ends.
    pub fn hold(&self, node: &str) {
        lock(&self.held).starts.insert(node.to_owned());
        self.hold_ends(node);
    }

    /// From now on no pod on this node ends that has begun.
    pub fn hold_ends(&self, node: &str) {
        lock(&self.held).ends.insert(node.to_owned());
    }

    /// After [`Player::hold`] and [`Player::hold_ends`]: they go on.
    pub fn release(&self, node: &str) {
        let mut held = lock(&self.held);
        held.starts.remove(node);
        held.ends.remove(node);
    }

    /// # Errors
    /// When it could not go on.
    pub fn ensure_plays(&self) -> anyhow::Result<()> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(anyhow!("nobody plays the pods any more: {why}")),
        }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Stage {
    namespace: String,
    history: Arc<History>,
    pace: Pace,
    held: Arc<Mutex<Held>>,
}

async fn play(client: &Client, stage: Arc<Stage>) -> anyhow::Result<()> {
    let config = watcher::Config::default;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &stage.namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), &stage.namespace);
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let mut claims = pin!(watcher(claims, config()).default_backoff().applied_objects());
    let mut pods = pin!(watcher(pods, config()).default_backoff().applied_objects());
    let mut changed = pin!(watcher(volumes.clone(), config()).default_backoff().applied_objects());
    // By uid: what has been seen to.
    let (mut bound, mut played) = (BTreeSet::new(), BTreeSet::new());
    let mut parts = JoinSet::<anyhow::Result<()>>::new();
    loop {
        tokio::select! {
            Some(claim) = claims.next() => {
                if let Ok(claim) = claim
                    && wants_volume(&claim)
                    && bound.insert(claim.uid())
                {
                    let client = client.clone();
                    parts.spawn(async move { bind(&client, &claim).await });
                }
            }
            Some(pod) = pods.next() => {
                if let Ok(pod) = pod
                    && let Some(kind) = kind_of(&pod)
                    && is_bound(&pod)
                    && played.insert(pod.uid())
                {
                    let (client, stage) = (client.clone(), Arc::clone(&stage));
                    parts.spawn(async move { Part { client, stage, kind, pod }.act().await });
                }
            }
            Some(volume) = changed.next() => {
                if let Ok(volume) = volume
                    && is_to_go(&volume)
                {
                    match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
                        Ok(_) => {}
                        Err(kube::Error::Api(status)) if status.code == 404 => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Some(ended) = parts.join_next() => ended??,
        }
    }
}

/// It was made for a data movement.
fn wants_volume(claim: &PersistentVolumeClaim) -> bool {
    let has_volume = claim.spec.as_ref().is_some_and(|spec| spec.volume_name.is_some());
    let is_ours = |owner: &str| KINDS.iter().any(|kind| kind.name() == owner);
    !has_volume && claim.owner_references().iter().any(|owner| is_ours(&owner.kind))
}

/// A volume for this claim alone; kube-controller-manager binds them.
async fn bind(client: &Client, claim: &PersistentVolumeClaim) -> anyhow::Result<()> {
    let Some(spec) = &claim.spec else { return Ok(()) };
    let size = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    let uid = claim.uid().unwrap_or_default();
    let name = format!("pv-{uid}");
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": {"storage": size},
            "storageClassName": spec.storage_class_name,
            "volumeMode": spec.volume_mode,
            // As stock Velero sets it, too, when it has done with one.
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"kind": "PersistentVolumeClaim", "namespace": claim.namespace(), "name": claim.name_any(), "uid": uid},
            "csi": {"driver": DRIVER, "volumeHandle": name},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    Ok(())
}

/// A driver would delete it now. A node-agent waits for that, up to a minute.
fn is_to_go(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let is_ours = spec.and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == DRIVER);
    let is_deleted = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    is_ours
        && is_deleted
        && matches!(phase, Some("Released" | "Failed"))
        && volume.metadata.deletion_timestamp.is_none()
}

fn kind_of(pod: &Pod) -> Option<Kind> {
    KINDS.into_iter().find(|kind| pod.labels().contains_key(kind.label()))
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
        && pod.metadata.deletion_timestamp.is_none()
}

struct Part {
    client: Client,
    stage: Arc<Stage>,
    kind: Kind,
    pod: Pod,
}

impl Part {
    async fn act(&self) -> anyhow::Result<()> {
        sleep(self.stage.pace.start).await;
        self.while_held(|held| &held.starts).await;
        if !self.turn("Running", &json!({"running": {"startedAt": now()}})).await? {
            return Ok(());
        }
        if !self.may_begin().await? {
            return Ok(());
        }
        self.say("Data-Path-Started", "Data path for the played volume started").await?;
        sleep(self.stage.pace.run).await;
        self.while_held(|held| &held.ends).await;
        let result = json!({"snapshotID": "played", "source": {}, "totalBytes": 1, "incrementalBytes": 1});
        self.say("Data-Path-Stopped", "Data path for the played volume stopped").await?;
        let ended = json!({"terminated": {
            "exitCode": 0, "reason": "Completed", "message": result.to_string(), "finishedAt": now(),
        }});
        self.turn("Succeeded", &ended).await.map(drop)
    }

    fn name(&self) -> String {
        self.pod.name_any()
    }

    /// Until its node is none of these.
    async fn while_held(&self, nodes: impl Fn(&Held) -> &BTreeSet<String>) {
        let node = self.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        while nodes(&lock(&self.stage.held)).contains(node) {
            sleep(LOOK).await;
        }
    }

    /// Once its object is InProgress; never if it has ended before.
    async fn may_begin(&self) -> anyhow::Result<bool> {
        loop {
            match self.stage.history.phase(self.kind, &self.name())?.as_str() {
                "InProgress" => return Ok(true),
                "Accepted" | "Prepared" => sleep(LOOK).await,
                _ => return Ok(false),
            }
        }
    }

    /// `false` if it is there no more.
    async fn turn(&self, phase: &str, state: &Value) -> anyhow::Result<bool> {
        let containers = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers: Vec<Value> = containers
            .map(|container| {
                json!({
                    "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
                    "ready": phase == "Running", "state": state,
                })
            })
            .collect();
        let patch = json!({
            "metadata": {"uid": self.pod.uid()},
            "status": {"phase": phase, "containerStatuses": containers},
        });
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.stage.namespace);
        match pods.patch_status(&self.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// An Event of its object, which is how a data mover tells its node-agent.
    async fn say(&self, reason: &str, message: &str) -> anyhow::Result<()> {
        let events: Api<KubeEvent> = Api::namespaced(self.client.clone(), &self.stage.namespace);
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": format!("{}.{}", self.name(), reason.to_lowercase()),
                "namespace": self.stage.namespace,
            },
            "involvedObject": {
                "apiVersion": self.kind.api_version(), "kind": self.kind.name(),
                "namespace": self.stage.namespace, "name": self.name(),
            },
            "reason": reason,
            "message": message,
            "type": "Normal",
            "source": {"component": self.name()},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        });
        match events.create(&PostParams::default(), &serde_json::from_value(event)?).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// To the second, which is all that these fields hold.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
