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
//! snapshot.

mod concurrency;
mod files;
mod job;
mod maintenance;
pub mod mover;
mod reports;
pub mod repositories;
mod seen;
mod volume;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_api::velero::{PodVolumeBackup, PodVolumeRestore};
use berth_core::pod_volume::{Step, step};
use berth_pod_volumes::Watched;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::{sleep, timeout};
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
/// For how long this process leaves an object alone that another process has taken over from it.
/// Otherwise two live processes would take it from each other for ever.
const LEFT: Duration = Duration::from_secs(600);
/// Time that jobs have to remove their locks when the process is told to stop.
const LAST: Duration = Duration::from_secs(20);

/// Settings from flags.
#[derive(Clone, Debug)]
pub struct Settings {
    pub namespace: String,
    pub node: String,
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
        Self { context: Arc::new(AgentContext { clients, settings, repositories }) }
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
        let mut jobs: JoinSet<()> = JoinSet::new();
        let mut uids: HashMap<Id, String> = HashMap::new();
        // How many objects wait for Velero's node-agent to end.
        let mut was_waiting = None;
        while !stop.is_cancelled() {
            let mut pause = LOOK;
            let (found, is_beside) = {
                let state = state.lock();
                let found = state.found(|uid| running.contains_key(uid));
                (found, state.has_stock_agent(&self.context.settings.namespace))
            };
            let begins = |seen| matches!(step(seen), Step::Start | Step::Finish | Step::EndCanceled);
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
                    Step::Start | Step::Finish | Step::EndCanceled if is_beside => {}
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
                    Step::Start | Step::Finish => {
                        let is_try = step(seen) == Step::Start;
                        let again = if is_try { AGAIN } else { LOOK };
                        let Some(place) = places.take() else { continue };
                        let watched = Watched::default();
                        let uid = kind.uid().to_owned();
                        running.insert(uid.clone(), watched.clone());
                        let context = Arc::clone(&self.context);
                        let job = Job::new(context, watched, stop.clone(), is_try, place);
                        let stop = stop.clone();
                        let spawned = jobs.spawn(async move {
                            let pause = match job.run(kind).await {
                                EndWrite::Done => Duration::ZERO,
                                EndWrite::OfAnother => LEFT,
                                EndWrite::Failed => again,
                            };
                            // Frees its place before the pause.
                            drop(job);
                            tokio::select! {
                                () = sleep(pause) => {}
                                () = stop.cancelled() => {}
                            }
                        });
                        uids.insert(spawned.id(), uid);
                    }
                }
            }
            tokio::select! {
                () = changed.notified() => {}
                Some(done) = jobs.join_next_with_id() => {
                    let id = match done {
                        Ok((id, ())) => id,
                        Err(error) => {
                            warn!(%error, "a job ended early");
                            error.id()
                        }
                    };
                    if let Some(uid) = uids.remove(&id) {
                        running.remove(&uid);
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
}

impl Kind {
    fn uid(&self) -> &str {
        let meta = match self {
            Self::Backup(object) => &object.metadata,
            Self::Restore(object) => &object.metadata,
        };
        meta.uid.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use berth_api::keys::CARRIER;
    use berth_test_scripted::{Scripted, get, list, patch, watch};
    use serde_json::json;

    use super::*;

    const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
    const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups/b";

    #[tokio::test(start_paused = true)]
    async fn what_another_process_has_begun_meanwhile_is_not_taken_back_from_it() {
        let object = json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {"name": "b", "namespace": "velero", "uid": "u", "resourceVersion": "7"},
            "spec": {"node": "n1", "uploaderType": "restic"}, "status": {"phase": "InProgress"},
        });
        let mut of_another = object.clone();
        of_another["metadata"]["annotations"] = json!({CARRIER: "n1/another"});
        let api = Scripted::new()
            .always(get(BACKUPS).answers(list("7", std::slice::from_ref(&object))))
            .always(patch(BACKUP).answers(object))
            .always(get(BACKUP).answers(of_another))
            .always(watch(BACKUPS).never_answers());
        for path in [
            "/apis/velero.io/v1/namespaces/velero/podvolumerestores",
            "/apis/velero.io/v1/namespaces/velero/backuprepositories",
            "/api/v1/pods",
        ] {
            api.always(get(path).answers(list("7", &[]))).always(watch(path).never_answers());
        }
        let client = api.client("velero");
        let opener = Opener::new(client.clone(), "velero", Vec::new().into());
        let clients = Clients { watch: client.clone(), call: client };
        let agent = Agent::new(clients, Settings::of_tests("/pods"), opener);
        let begun = async {
            sleep(LEFT / 2).await;
            let first = api.writes().len();
            sleep(LEFT).await;
            [first, api.writes().len()]
        };
        tokio::select! {
            () = agent.run(CancellationToken::new()) => unreachable!("nobody told it to end"),
            begun = begun => assert_eq!(begun, [1, 2], "it is begun again if that one does not end it"),
        }
    }
}
