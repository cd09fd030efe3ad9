//! The node agent. On each node one process backs up the files of its pods' volumes into
//! repositories, and restores them. It acts on objects whose uploader is restic; all others are for
//! Velero's node-agents.
//!
//! [`berth_core::pod_volume`] decides. A [`job`] works on one object, and [`files`] has what it
//! does to the files of a volume. [`concurrency`] limits how many jobs run at the same time: each
//! has a place, and a job that waits for a repository's lock gives its place to others meanwhile.
//! An object that is in progress and has no job is started again, because the process that worked
//! on it has died; what that process stored is still in the repository.
//!
//! [`mover`] is the same program in the pods that the leader creates to move the data of one
//! snapshot; or the files of one volume, where the agent itself sees nothing of its node
//! ([`FileAccess`]) and hands each object over instead of starting a job.

mod concurrency;
mod files;
mod job;
mod maintenance;
pub mod mover;
mod reports;
pub mod repositories;
mod seen;
pub mod volume;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::CARRIER;
use berth_api::velero::{PodVolumeBackup, PodVolumeRestore};
use berth_core::pod_volume::others::Others;
use berth_core::pod_volume::{FileAccess, ObservedPodVolume, Step, step};
use berth_pod_volumes::Watched;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::client::Clients;
use crate::storage::Opener;
use crate::watch::{of_namespace, reflect, reflect_everywhere};

use concurrency::Places;
use job::{EndWrite, Job, Kind};
use repositories::Repositories;
use seen::{AgentObjects, TargetPod};

/// All objects are checked this often, whatever the watches show.
const LOOK: Duration = Duration::from_secs(30);
/// An object is checked again this soon after a write that failed.
const AGAIN: Duration = Duration::from_secs(2);
/// Time that jobs have to remove their locks when the process is told to stop.
const LAST: Duration = Duration::from_secs(20);

/// Settings from flags.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub node: String,
    /// Whether this process itself reads and writes the files.
    pub access: FileAccess,
    /// Where the kubelet's folder of pods is mounted.
    pub pods: PathBuf,
    /// Volumes are read even if nothing is mounted on their folder.
    pub allows_unmounted: bool,
    /// How many jobs run at the same time, unless the ConfigMap says otherwise.
    pub concurrency: usize,
    /// The node-agents' ConfigMap, which may set the number.
    pub configmap: Option<String>,
    /// The one Secret with the password of all repositories. Default: each repository has its own.
    pub secret: Option<String>,
}

#[cfg(test)]
impl Settings {
    /// Settings of an agent with one job at a time and pods in this folder.
    fn of_tests(pods: impl Into<PathBuf>) -> Self {
        Self {
            namespace: "velero".to_owned(),
            node: "n1".to_owned(),
            access: FileAccess::Agent,
            pods: pods.into(),
            allows_unmounted: false,
            concurrency: 1,
            configmap: None,
            secret: None,
        }
    }
}

/// What every job uses.
pub(crate) struct AgentContext {
    pub clients: Clients,
    pub settings: Settings,
    pub repositories: Repositories,
    /// How the IDs of its jobs begin, and of no other process'.
    process: String,
}

impl AgentContext {
    pub fn new(clients: Clients, settings: Settings, repositories: Repositories) -> Self {
        let process = format!("{}/{}", settings.node, random());
        Self { clients, settings, repositories, process }
    }

    /// The ID of a new job.
    fn job(&self) -> String {
        format!("{}.{}", self.process, random())
    }

    /// Is that a job of this process?
    fn is_own(&self, carrier: &str) -> bool {
        carrier.rsplit_once('.').is_some_and(|(process, _)| process == self.process)
    }
}

/// Something that no two processes have, nor two jobs.
fn random() -> String {
    format!("{:016x}", RandomState::new().hash_one(()))
}

pub struct Agent {
    context: Arc<AgentContext>,
}

impl Agent {
    pub fn new(clients: Clients, settings: Settings, opener: Opener) -> Self {
        let repositories = Repositories::new(
            clients.call.clone(),
            &settings.namespace,
            settings.secret.clone(),
            opener.patient(),
        )
        .reporting();
        Self { context: Arc::new(AgentContext::new(clients, settings, repositories)) }
    }

    /// Runs until `stop`. Then the running jobs end, and their objects stay in progress for the
    /// next process.
    pub async fn run(&self, stop: CancellationToken) {
        let state = Arc::new(Mutex::new(AgentObjects::default()));
        let changed = Arc::new(Notify::new());
        let Settings { namespace, node, .. } = &self.context.settings;
        let watch = &self.context.clients.watch;
        let backups = reflect(
            of_namespace::<PodVolumeBackup>(watch, namespace),
            watcher::Config::default(),
            |object| object,
            |event| {
                state.lock().put_backups(node, event);
                changed.notify_one();
            },
        );
        let restores = reflect(
            of_namespace::<PodVolumeRestore>(watch, namespace),
            watcher::Config::default(),
            |object| object,
            |event| {
                state.lock().put_restores(event);
                changed.notify_one();
            },
        );
        let pods = reflect_everywhere(
            kube::Api::all(watch.clone()),
            watcher::Config::default().fields(&format!("spec.nodeName={node}")),
            |pod: Pod| TargetPod::of(&pod),
            |event| {
                state.lock().put_pods(event);
                changed.notify_one();
            },
        );
        info!(%node, "started");
        let places = Places::new(self.context.settings.concurrency, Arc::clone(&changed));
        let (client, settings) = (&self.context.clients.call, &self.context.settings);
        tokio::select! {
            () = async {
                tokio::join!(
                    self.work(&state, &changed, &places, &stop),
                    maintenance::run(&self.context, &stop),
                );
            } => {}
            () = concurrency::follow(client, settings, &places) => {}
            () = async { tokio::join!(backups, restores, pods); } => warn!("a watch ended"),
        }
    }

    async fn work(
        &self,
        state: &Mutex<AgentObjects>,
        changed: &Notify,
        places: &Arc<Places>,
        stop: &CancellationToken,
    ) {
        let mut running: BTreeMap<String, Watched> = BTreeMap::new();
        let mut jobs: JoinSet<EndWrite> = JoinSet::new();
        let mut uids: HashMap<Id, String> = HashMap::new();
        let (begun, mut others) = (Instant::now(), Others::default());
        let step = |seen| step(seen, self.context.settings.access);
        // How many objects wait for Velero's node-agent to end.
        let mut was_waiting = None;
        while !stop.is_cancelled() {
            let mut pause = LOOK;
            let (found, is_beside) = {
                let state = state.lock();
                let mut found = state.found(|uid| running.contains_key(uid));
                self.leave(&mut found, &state, &mut others, begun.elapsed());
                (found, state.has_stock_agent(&self.context.settings.namespace))
            };
            let begins =
                |seen| matches!(step(seen), Step::Start | Step::Finish | Step::HandOver | Step::EndCanceled);
            let waiting = is_beside.then(|| found.iter().filter(|(_, seen)| begins(*seen)).count());
            if let Some(objects) = waiting.filter(|_| waiting != was_waiting) {
                info!(
                    "nothing is begun while one of Velero's node-agents runs on this node, or until that is known; objects that wait: {objects}"
                );
            }
            was_waiting = waiting;
            // The result of an object that is gone is of no use.
            for (uid, watched) in &running {
                if !found.iter().any(|(kind, _)| kind.uid() == uid) {
                    watched.cancel();
                }
            }
            for (kind, seen) in found {
                match step(seen) {
                    Step::Nothing => {}
                    Step::Start | Step::Finish | Step::HandOver | Step::EndCanceled if is_beside => {}
                    Step::Stop => {
                        if let Some(watched) = running.get(kind.uid())
                            && !watched.is_canceled()
                        {
                            watched.cancel();
                        }
                    }
                    Step::EndCanceled => {
                        if !job::end_canceled(&self.context, &kind).await {
                            pause = AGAIN;
                        }
                    }
                    Step::HandOver => {
                        if !job::hand_over(&self.context, &kind).await {
                            pause = AGAIN;
                        }
                    }
                    Step::Start | Step::Finish => {
                        let is_try = step(seen) == Step::Start;
                        let again = if is_try { AGAIN } else { LOOK };
                        let Some(place) = places.take() else { continue };
                        let watched = Watched::default();
                        let uid = kind.uid().to_owned();
                        others.remove(&uid);
                        running.insert(uid.clone(), watched.clone());
                        let context = Arc::clone(&self.context);
                        let job = Job::new(context, watched, stop.clone(), is_try, place);
                        let stop = stop.clone();
                        let spawned = jobs.spawn(async move {
                            let write = job.run(kind).await;
                            // Frees its place before the pause.
                            drop(job);
                            if write == EndWrite::Failed {
                                tokio::select! {
                                    () = sleep(again) => {}
                                    () = stop.cancelled() => {}
                                }
                            }
                            write
                        });
                        uids.insert(spawned.id(), uid);
                    }
                }
            }
            tokio::select! {
                () = changed.notified() => {}
                Some(done) = jobs.join_next_with_id() => {
                    let (id, write) = match done {
                        Ok(done) => done,
                        Err(error) => {
                            warn!(%error, "a job ended early");
                            (error.id(), EndWrite::Failed)
                        }
                    };
                    if let Some(uid) = uids.remove(&id) {
                        running.remove(&uid);
                        if write == EndWrite::OfAnother {
                            others.leave(&uid, begun.elapsed());
                        }
                    }
                }
                () = sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
        running.values().for_each(Watched::cancel);
        if timeout(LAST, async { while jobs.join_next().await.is_some() {} }).await.is_err() {
            warn!("jobs did not end in time: the locks that they leave are stale after half an hour");
        }
    }

    /// Marks what another process carries that lives. One that began what was in progress before
    /// this process did is its predecessor, and dead. The last one to begin an object keeps it, so
    /// of two that live each takes it once at most.
    fn leave(
        &self,
        found: &mut [(Kind, ObservedPodVolume<'static>)],
        state: &AgentObjects,
        others: &mut Others,
        now: Duration,
    ) {
        let is_begun = |seen: &ObservedPodVolume<'_>| seen.phase == "InProgress" && !seen.is_running;
        others.retain(|uid| found.iter().any(|(kind, seen)| kind.uid() == uid && is_begun(seen)));
        for (kind, seen) in found.iter_mut().filter(|(_, seen)| is_begun(seen)) {
            let uid = kind.uid();
            let is_of_another = kind
                .carrier()
                .is_some_and(|carrier| !self.context.is_own(carrier) && !state.is_inherited(uid, carrier));
            // The watch may be late.
            if is_of_another || others.has(uid) {
                seen.is_left = others.keeps(uid, kind.version(), now);
            }
        }
    }
}

impl Kind {
    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Backup(object) => &object.metadata,
            Self::Restore(object) => &object.metadata,
        }
    }

    fn uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or_default()
    }

    /// The process that began it last.
    fn carrier(&self) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(CARRIER).map(String::as_str)
    }
}

#[cfg(test)]
mod tests;
