//! Played node-agents, many in one process: they write what stock ones write, in the same order and
//! with the same resourceVersions, and take a refusal as those do (source: Velero 1.18.3;
//! `tests/movers/refused.rs` shows it of real ones). Left out are volumes, snapshots, and their own
//! count of who holds a place: without berth each would accept all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::{Semaphore, mpsc as orders};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::{KINDS, Kind};
use crate::{ControlPlane, control_plane};

const EXPOSING: &str = "velero.io/expose-on-going";
/// A container that has died is not there again sooner; times in objects are whole seconds.
const RESTART: Duration = Duration::from_millis(1_100);
/// The first of the pauses after an error; each is twice the last one. Real ones begin sooner, and
/// many of them ask a lot.
const BACKOFF: Duration = Duration::from_secs(1);
/// Of one call that an API server is too busy for.
const TRIES: usize = 30;
/// Real ones wait for five seconds.
const DATA_PATH: Duration = Duration::from_millis(100);

/// How they work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Data paths of a node.
    pub data_paths: usize,
    /// From accepting one to making its pod.
    pub expose: Duration,
    /// From its pod's being there to its running.
    pub start: Duration,
    /// Of its data.
    pub run: Duration,
}

pub struct Agents {
    kill: Option<orders::Sender<usize>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<String>>>,
}

impl Agents {
    /// One on each node, ready. The namespace must be there.
    ///
    /// # Errors
    /// When their pods cannot be made.
    pub fn start(plane: &ControlPlane, namespace: &str, nodes: &[&str], work: Work) -> anyhow::Result<Self> {
        let failed = Arc::<Mutex<Option<String>>>::default();
        let (kill, killed) = orders::channel(16);
        let (ready, is_ready) = mpsc::channel();
        let (kubeconfig, namespace, told) = (plane.kubeconfig(), namespace.to_owned(), Arc::clone(&failed));
        let nodes: Arc<[String]> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let work = async || {
                let client = control_plane::client(Path::new(&kubeconfig)).await?;
                let agent = |node: &String| Agent {
                    client: client.clone(),
                    namespace: namespace.clone(),
                    node: node.clone(),
                    nodes: Arc::clone(&nodes),
                    work,
                    data_paths: Arc::new(Semaphore::new(work.data_paths)),
                    running: Arc::default(),
                };
                let agents: Vec<Agent> = nodes.iter().map(agent).collect();
                for agent in &agents {
                    agent.appear().await?;
                }
                let _ = ready.send(());
                all(agents, killed).await
            };
            let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(work()));
            if let Err(error) = ended {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:#}"));
            }
        };
        let thread = std::thread::Builder::new().name("agents".to_owned()).spawn(run)?;
        let agents = Self { kill: Some(kill), thread: Some(thread), failed };
        is_ready.recv().map_err(|_| anyhow!("no node-agent started: {:?}", agents.ensure_work()))?;
        Ok(agents)
    }

    /// As `kill -9`: it stops between two writes, whichever they are, and starts again with no
    /// memory.
    ///
    /// # Errors
    /// When they do not work any more.
    pub fn kill(&self, agent: usize) -> anyhow::Result<()> {
        self.ensure_work()?;
        self.kill
            .as_ref()
            .context("they are stopped")?
            .blocking_send(agent)
            .context("they do not work any more")
    }

    /// # Errors
    /// When one could not go on.
    pub fn ensure_work(&self) -> anyhow::Result<()> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(anyhow!("the node-agents do not work any more: {why}")),
        }
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.kill = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Until the process can no longer be killed.
async fn all(agents: Vec<Agent>, mut killed: orders::Receiver<usize>) -> anyhow::Result<()> {
    let mut lives: Vec<JoinSet<anyhow::Result<()>>> = agents.iter().map(Agent::live).collect();
    loop {
        let order = {
            let ended =
                futures::future::select_all(lives.iter_mut().map(|life| life.join_next().boxed_local()));
            tokio::select! {
                (ended, ..) = ended => {
                    ended.context("a node-agent does nothing")???;
                    continue;
                }
                order = killed.recv() => order,
            }
        };
        let Some(order) = order else { return Ok(()) };
        let (Some(life), Some(agent)) = (lives.get_mut(order), agents.get(order)) else { continue };
        life.shutdown().await;
        let reborn = Agent {
            data_paths: Arc::new(Semaphore::new(agent.work.data_paths)),
            running: Arc::default(),
            ..agent.clone()
        };
        life.spawn(async move {
            sleep(RESTART).await;
            reborn.appear().await?;
            let mut life = reborn.live();
            while let Some(ended) = life.join_next().await {
                ended??;
            }
            Ok(())
        });
    }
}

#[derive(Clone)]
struct Agent {
    client: Client,
    namespace: String,
    node: String,
    nodes: Arc<[String]>,
    work: Work,
    data_paths: Arc<Semaphore>,
    /// Those whose data it moves.
    running: Arc<Mutex<BTreeSet<(Kind, String)>>>,
}

/// What to do with an object after a reconciliation.
enum Next {
    /// Nothing, until it changes.
    Leave,
    /// It is looked at again when a data path may be free.
    Wait,
    /// It failed: again, later and later.
    Retry,
}

impl Agent {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        kind.api(&self.client, &self.namespace)
    }

    /// Its own pod says that it is ready, and since when its container runs.
    async fn appear(&self) -> anyhow::Result<()> {
        let name = format!("node-agent-{}", self.node);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"role": "node-agent"}},
            "spec": {"nodeName": self.node, "containers": [{"name": "node-agent", "image": "none"}]},
        });
        self.create(&serde_json::from_value(pod)?).await?;
        let container = json!({
            "name": "node-agent", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": now()}},
        });
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [container],
        }});
        let (pods, params, status) = (self.pods(), PatchParams::default(), Patch::Merge(status));
        patiently(|| pods.patch_status(&name, &params, &status)).await?;
        Ok(())
    }

    /// One that is there already is taken for it.
    async fn create(&self, pod: &Pod) -> anyhow::Result<()> {
        let (pods, params) = (self.pods(), PostParams::default());
        match patiently(|| pods.create(&params, pod)).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// One worker for each kind, as there is in a stock one, and one for pods.
    fn live(&self) -> JoinSet<anyhow::Result<()>> {
        let mut life = JoinSet::new();
        for kind in KINDS {
            let agent = self.clone();
            life.spawn(async move { agent.reconcile(kind).await });
        }
        let agent = self.clone();
        life.spawn(async move { agent.follow_pods().await });
        life
    }

    /// Reconciles each object that changed, by its last known state, and again those that failed.
    async fn reconcile(self, kind: Kind) -> anyhow::Result<()> {
        let config = watcher::Config::default();
        let mut changes = pin!(watcher(self.api(kind), config).default_backoff().applied_objects());
        let mut known: BTreeMap<String, DynamicObject> = BTreeMap::new();
        let mut due: BTreeMap<String, Instant> = BTreeMap::new();
        let mut pauses: BTreeMap<String, Duration> = BTreeMap::new();
        let mut ending = JoinSet::<anyhow::Result<()>>::new();
        loop {
            while let Some(Some(change)) = changes.next().now_or_never() {
                note(change, &mut known, &mut due);
            }
            let next = due.iter().min_by_key(|(_, at)| **at).map(|(name, at)| (name.clone(), *at));
            tokio::select! {
                Some(change) = changes.next() => note(change, &mut known, &mut due),
                Some(ended) = ending.join_next() => ended??,
                () = sleep_until(next.as_ref().map_or_else(Instant::now, |(_, at)| *at)), if next.is_some() => {
                    let Some((name, _)) = next else { continue };
                    due.remove(&name);
                    let Some(object) = known.get(&name) else { continue };
                    match self.handle(kind, object, &mut ending).await.with_context(|| format!("{kind:?} {name}"))? {
                        Next::Leave => drop(pauses.remove(&name)),
                        Next::Wait => drop(due.insert(name, Instant::now() + DATA_PATH)),
                        Next::Retry => {
                            let pause = pauses.entry(name.clone()).or_insert(BACKOFF);
                            due.insert(name, Instant::now() + *pause);
                            *pause *= 2;
                        }
                    }
                }
            }
        }
    }

    async fn handle(
        &self,
        kind: Kind,
        object: &DynamicObject,
        ending: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<Next> {
        let status = |field: &str| object.data["status"][field].as_str().unwrap_or_default();
        match status("phase") {
            "" | "New" if self.can_carry(kind, object) => self.accept(kind, object).await,
            "Prepared" if self.is_here(kind, object) => self.begin(kind, object, ending).await,
            "InProgress" if self.is_here(kind, object) => {
                // One that it began before it was killed.
                self.take_up(kind, object.name_any(), ending);
                Ok(Next::Leave)
            }
            _ => Ok(Next::Leave),
        }
    }

    fn can_carry(&self, kind: Kind, object: &DynamicObject) -> bool {
        let target = match kind {
            Kind::DataUpload | Kind::DataDownload => return true,
            Kind::PodVolumeBackup => object.data["spec"]["node"].as_str().map(str::to_owned),
            Kind::PodVolumeRestore => object.data["spec"]["pod"]["name"].as_str().and_then(node_of),
        };
        target.as_ref() == Some(&self.node)
    }

    fn is_here(&self, kind: Kind, object: &DynamicObject) -> bool {
        match kind {
            Kind::PodVolumeBackup => self.can_carry(kind, object),
            _ => object.data["status"]["node"] == self.node.as_str(),
        }
    }

    async fn accept(&self, kind: Kind, object: &DynamicObject) -> anyhow::Result<Next> {
        let mut wanted = object.clone();
        wanted.labels_mut().insert(EXPOSING.to_owned(), "true".to_owned());
        let status = &mut wanted.data["status"];
        status["phase"] = json!("Accepted");
        status["acceptedTimestamp"] = json!(now());
        match kind {
            Kind::DataUpload | Kind::DataDownload => status["acceptedByNode"] = json!(self.node),
            Kind::PodVolumeRestore => status["node"] = json!(self.node),
            Kind::PodVolumeBackup => {}
        }
        match self.replace(kind, &wanted).await? {
            Written::Yes => {}
            // Another agent was faster, or the answer says so.
            Written::Conflict => return Ok(Next::Leave),
            Written::Refused => return Ok(Next::Retry),
        }
        sleep(self.work.expose).await;
        self.expose(kind, object).await?;
        Ok(Next::Leave)
    }

    /// Makes the pod. The scheduler is played, too: any node, by the name.
    async fn expose(&self, kind: Kind, object: &DynamicObject) -> anyhow::Result<()> {
        let name = object.name_any();
        let sum = name.bytes().map(usize::from).sum::<usize>();
        let node = match kind {
            Kind::DataUpload | Kind::DataDownload => &self.nodes[sum % self.nodes.len()],
            Kind::PodVolumeBackup | Kind::PodVolumeRestore => &self.node,
        };
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {kind.label(): name}, "ownerReferences": [{
                "apiVersion": kind.api_version(), "kind": kind.name(), "name": name, "uid": object.uid(), "controller": true,
            }]},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "mover", "image": "none"}],
            },
        });
        self.create(&serde_json::from_value(pod)?).await
    }

    /// Those on its node become Prepared.
    async fn follow_pods(self) -> anyhow::Result<()> {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        let mut pods = pin!(watcher(self.pods(), config).default_backoff().applied_objects());
        let mut seen = BTreeSet::new();
        let mut preparing = JoinSet::<anyhow::Result<()>>::new();
        loop {
            tokio::select! {
                Some(pod) = pods.next() => {
                    if let Ok(pod) = pod
                        && let Some(kind) = KINDS.into_iter().find(|kind| pod.labels().contains_key(kind.label()))
                        && seen.insert(pod.uid())
                    {
                        let agent = self.clone();
                        preparing.spawn(async move { agent.prepare(kind, pod.name_any()).await });
                    }
                }
                Some(prepared) = preparing.join_next() => prepared??,
            }
        }
    }

    async fn prepare(&self, kind: Kind, name: String) -> anyhow::Result<()> {
        sleep(self.work.start).await;
        loop {
            let Some(mut object) = self.get(kind, &name).await? else { return Ok(()) };
            if object.data["status"]["phase"] != "Accepted" {
                return Ok(());
            }
            object.data["status"]["phase"] = json!("Prepared");
            object.data["status"]["node"] = json!(self.node);
            match self.replace(kind, &object).await? {
                Written::Conflict => {}
                Written::Yes | Written::Refused => return Ok(()),
            }
        }
    }

    async fn begin(
        &self,
        kind: Kind,
        object: &DynamicObject,
        ending: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<Next> {
        let Ok(path) = Arc::clone(&self.data_paths).try_acquire_owned() else { return Ok(Next::Wait) };
        let mut wanted = object.clone();
        wanted.labels_mut().remove(EXPOSING);
        wanted.data["status"]["phase"] = json!("InProgress");
        wanted.data["status"]["startTimestamp"] = json!(now());
        if matches!(self.replace(kind, &wanted).await?, Written::Yes) {
            let (agent, name) = (self.clone(), object.name_any());
            if self.is_first(kind, &name) {
                ending.spawn(async move {
                    let ended = agent.end(kind, &name).await;
                    drop(path);
                    ended
                });
            }
        }
        Ok(Next::Leave)
    }

    /// What runs already gets no data path: it has one.
    fn take_up(&self, kind: Kind, name: String, ending: &mut JoinSet<anyhow::Result<()>>) {
        if self.is_first(kind, &name) {
            let agent = self.clone();
            ending.spawn(async move { agent.end(kind, &name).await });
        }
    }

    fn is_first(&self, kind: Kind, name: &str) -> bool {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, name.to_owned()))
    }

    async fn end(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        sleep(self.work.run).await;
        let (pods, params) = (self.pods(), DeleteParams::default());
        match patiently(|| pods.delete(name, &params)).await {
            Ok(_) => {}
            Err(error) if code(&error) == Some(404) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            let Some(mut object) = self.get(kind, name).await? else { return Ok(()) };
            object.data["status"]["phase"] = json!("Completed");
            object.data["status"]["completionTimestamp"] = json!(now());
            if matches!(self.replace(kind, &object).await?, Written::Yes) {
                return Ok(());
            }
        }
    }

    async fn get(&self, kind: Kind, name: &str) -> anyhow::Result<Option<DynamicObject>> {
        let api = self.api(kind);
        Ok(patiently(|| api.get_opt(name)).await?)
    }

    async fn replace(&self, kind: Kind, object: &DynamicObject) -> anyhow::Result<Written> {
        let (api, name, params) = (self.api(kind), object.name_any(), PostParams::default());
        match patiently(|| api.replace(&name, &params, object)).await {
            Ok(_) => Ok(Written::Yes),
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(Written::Conflict),
            Err(error) if code(&error) == Some(403) => Ok(Written::Refused),
            Err(error) => Err(error.into()),
        }
    }
}

enum Written {
    Yes,
    Conflict,
    Refused,
}

fn note(
    change: Result<DynamicObject, watcher::Error>,
    known: &mut BTreeMap<String, DynamicObject>,
    due: &mut BTreeMap<String, Instant>,
) {
    // An interrupted watch begins again.
    let Ok(object) = change else { return };
    let name = object.name_any();
    due.insert(name.clone(), Instant::now());
    known.insert(name, object);
}

/// As client-go does where an API server is too busy to answer. What was written all the same is a
/// conflict the next time.
pub async fn patiently<T, Answer>(ask: impl Fn() -> Answer) -> kube::Result<T>
where
    Answer: Future<Output = kube::Result<T>>,
{
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if code(&error).is_none_or(|code| code == 429 || code >= 500) => sleep(BACKOFF).await,
            answer => return answer,
        }
    }
    ask().await
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Of the application's pod that a restore is for.
fn node_of(application: &str) -> Option<String> {
    application.strip_prefix("application-").map(str::to_owned)
}

/// To the second, which is all that these fields hold.
fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
