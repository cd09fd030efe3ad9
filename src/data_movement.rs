//! DataUploads and DataDownloads that berth itself carries out, and PodVolumeBackups and
//! PodVolumeRestores that a node agent has handed over. The leader creates the claim and the pod of
//! each (for files of volumes the pod alone), binds a restored volume to its claim, and removes in
//! the end what it created. [`berth_core::mover::own`] decides. The pod runs
//! [`crate::node_agent::mover`].
//!
//! All state is in the objects, and each step can be repeated, so a new leader continues where the
//! last one stopped. Objects that berth creates for a movement have the movement's name, and name
//! the movement as their owner or, if they are cluster-scoped, by a label. No other objects are
//! changed or removed.

mod bind;
mod clear;
mod copy;
mod files;
mod item;
mod make;
mod place;
mod pod;
mod report;
mod seen;
mod sweep;

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys;
use berth_api::velero::{DataDownload, DataMoverStatus, DataUpload, PodVolumeBackup, PodVolumeRestore};
use berth_core::mover::grant::{Mover, MoverPhase};
use berth_core::mover::own::{DataPaths, OwnMover, OwnStep, plan};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use crate::metrics::data_movement::OwnMetrics;
use item::{Carried, Item, MovementObjects, SeenSince, is_wanted, note_since};
use report::ended;
use seen::SeenPod;

use crate::cache::SharedCache;
use crate::client::Clients;
use crate::events::Events;
use crate::movers::NodeCache;
use crate::pace::paced;
use crate::text::chain;
use crate::watch::{of_namespace, reflect};
use crate::write::{Write, WriteResult, delete};

/// The label of the pods of these movements.
const PODS: &str = "app.kubernetes.io/name=berth-data-mover";
/// The longest time between two passes, because objects of other kinds are polled and not watched.
const PERIOD: Duration = Duration::from_secs(3);
/// The shortest time, because changes come one by one and one pass can act on all of them.
const PAUSE: Duration = Duration::from_millis(300);
/// Time-out of one step. The next pass repeats it.
const STEP: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 16;
/// How often berth looks for objects that no movement needs.
const SWEEP: Duration = Duration::from_secs(600);

pub struct OwnMovements {
    pub clients: Clients,
    pub namespace: String,
    /// The folder of each node in which its kubelet keeps pods.
    pub host_pods: PathBuf,
    pub node_cache: Arc<NodeCache>,
    pub events: Events,
    pub metrics: OwnMetrics,
}

/// Why something could not be created.
#[derive(Debug, PartialEq, Eq)]
enum Unmade {
    /// Another attempt would not help.
    Never(String),
    Later(String),
}

impl Unmade {
    /// A call failed, and may succeed later.
    fn call(what: &str) -> impl Fn(kube::Error) -> Self {
        move |error| Self::Later(format!("{what}: {}", chain(&error)))
    }
}

impl OwnMovements {
    /// Runs while this process leads. Never returns.
    pub async fn run(&self) {
        let state = SharedCache::<MovementObjects>::default();
        let (watch, namespace) = (&self.clients.watch, self.namespace.as_str());
        let uploads = reflect(
            of_namespace(watch, namespace),
            watcher::Config::default(),
            |object: DataUpload| (object.name_any(), is_wanted(&object).then(|| Arc::new(object))),
            |event| {
                state.write(|state| event.apply_to(state.uploads.get_or_insert_default()));
            },
        );
        let downloads = reflect(
            of_namespace(watch, namespace),
            watcher::Config::default(),
            |object: DataDownload| (object.name_any(), is_wanted(&object).then(|| Arc::new(object))),
            |event| {
                state.write(|state| event.apply_to(state.downloads.get_or_insert_default()));
            },
        );
        let backups = reflect(
            of_namespace(watch, namespace),
            watcher::Config::default(),
            |object: PodVolumeBackup| (object.name_any(), is_wanted(&object).then(|| Arc::new(object))),
            |event| {
                state.write(|state| event.apply_to(state.backups.get_or_insert_default()));
            },
        );
        let restores = reflect(
            of_namespace(watch, namespace),
            watcher::Config::default(),
            |object: PodVolumeRestore| (object.name_any(), is_wanted(&object).then(|| Arc::new(object))),
            |event| {
                state.write(|state| event.apply_to(state.restores.get_or_insert_default()));
            },
        );
        let pods = reflect(
            of_namespace(watch, namespace),
            watcher::Config::default().labels(PODS),
            |pod: Pod| SeenPod::read(&pod),
            |event| {
                state.write(|state| event.apply_to(state.pods.get_or_insert_default()));
            },
        );
        tokio::join!(uploads, downloads, backups, restores, pods, self.work(&state));
    }

    async fn work(&self, state: &SharedCache<MovementObjects>) {
        let mut changed = state.changed();
        let mut told = Mutex::new(HashMap::new());
        let mut since = SeenSince::default();
        let mut swept: Option<Instant> = None;
        loop {
            changed.mark_unchanged();
            let frozen = self.node_cache.is_synced().then(|| state.read().frozen()).flatten();
            if let Some(mut items) = frozen {
                note_since(&mut items, &mut since, Timestamp::now());
                self.metrics.show(items.iter().map(|item| (item.mover.kind, item.mover.phase)));
                self.look(&items, &told).await;
                let known: BTreeSet<&str> = items.iter().map(|item| item.mover.uid.as_str()).collect();
                told.get_mut().retain(|uid: &String, _| known.contains(uid.as_str()));
                if swept.is_none_or(|at| at.elapsed() >= paced(SWEEP)) {
                    self.sweep(&known).await;
                    swept = Some(Instant::now());
                }
            }
            sleep(PAUSE).await;
            tokio::select! {
                _ = changed.changed() => {}
                () = sleep(PERIOD) => {}
            }
        }
    }

    /// Takes the next step of each movement.
    async fn look(&self, items: &[Item], told: &Mutex<HashMap<String, String>>) {
        if items.is_empty() {
            return;
        }
        let seen: Vec<OwnMover<'_>> = items.iter().map(Item::seen).collect();
        let steps = plan(&seen, &self.paths(), Timestamp::now());
        let due = items.iter().zip(steps).filter(|(_, step)| *step != OwnStep::Nothing);
        futures::stream::iter(due)
            .for_each_concurrent(AT_ONCE, |(item, step)| async move {
                if timeout(STEP, self.take(item, step, told)).await.is_err() {
                    self.tell(item, told, "the API server did not answer in time");
                }
            })
            .await;
    }

    fn paths(&self) -> DataPaths {
        self.node_cache.read(|state| {
            let limits = state.limits();
            let nodes = state.nodes.iter();
            DataPaths {
                by_node: nodes.map(|node| (node.name.clone(), limits.data_paths(&node.labels))).collect(),
                is_limited: limits.limit.is_some(),
            }
        })
    }

    async fn take(&self, item: &Item, step: OwnStep, told: &Mutex<HashMap<String, String>>) {
        let now = Timestamp::now();
        match step {
            OwnStep::Nothing => {}
            OwnStep::Accept => {
                let status = DataMoverStatus::accepted(now);
                let metadata = json!({"annotations": {keys::MADE: now}, "finalizers": item.finalizers(true)});
                if self.write(item, json!({"metadata": metadata, "status": status})).await {
                    self.report_accepted(item);
                }
            }
            OwnStep::Begin => {
                self.write(item, json!({"status": DataMoverStatus::prepared()})).await;
            }
            OwnStep::Cancel => {
                let mut change = ended(MoverPhase::Canceled, "canceled");
                // A movement that was never accepted has a snapshot as well, which must be removed.
                let since = item.annotation(keys::MADE).map_or_else(|| json!(now), |since| json!(since));
                change["metadata"]["annotations"][keys::MADE] = since;
                self.write(item, change).await;
            }
            OwnStep::Fail(fault) => {
                let why = self.reason(item, fault, told) + &self.kept_volume(item).await;
                self.end(item, MoverPhase::Failed, &why).await;
            }
            OwnStep::Make => match self.make(item).await {
                Ok(()) => {}
                Err(Unmade::Never(why)) => self.end(item, MoverPhase::Failed, &why).await,
                Err(Unmade::Later(why)) => self.tell(item, told, &why),
            },
            OwnStep::Replace => {
                if let Err(error) = self.replace(item).await {
                    self.tell(item, told, &format!("{error:#}"));
                }
            }
            OwnStep::Bind => match self.bind(item).await {
                Ok(true) => {
                    self.write(item, json!({"status": DataMoverStatus::completed(now)})).await;
                }
                Ok(false) => {}
                Err(Unmade::Never(why)) => {
                    let why = why + &self.kept_volume(item).await;
                    self.end(item, MoverPhase::Failed, &why).await;
                }
                Err(Unmade::Later(why)) => self.tell(item, told, &why),
            },
            OwnStep::Clear => match self.clear(item).await {
                Ok(true) => {
                    let metadata =
                        json!({"annotations": {keys::MADE: null}, "finalizers": item.finalizers(false)});
                    if self.write(item, json!({"metadata": metadata})).await {
                        self.report_ended(item);
                    }
                }
                Ok(false) => {}
                Err(error) => self.tell(item, told, &format!("{error:#}")),
            },
        }
    }

    /// Removes a pod that was lost. The loss is recorded before that, so that losses are counted
    /// even if this process ends.
    async fn replace(&self, item: &Item) -> anyhow::Result<()> {
        let Some(pod) = &item.pod else { return Ok(()) };
        if !item.lost_pods().any(|lost| lost == pod.uid) {
            let lost: Vec<&str> = item.lost_pods().chain([pod.uid.as_str()]).collect();
            let lost = json!({keys::LOST_PODS: lost.join(" ")});
            self.write(item, json!({"metadata": {"annotations": lost}})).await;
            return Ok(());
        }
        let Mover { kind, name, .. } = &item.mover;
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), &self.namespace);
        match delete(&pods, Write::to(name).uid(Some(&pod.uid))).await {
            WriteResult::Written(()) => {
                info!(%kind, %name, why = pod.why, "removed a data mover pod that was lost: it is created again");
                self.report_replaced(item, &pod.why);
                Ok(())
            }
            WriteResult::Gone(_) | WriteResult::Conflict(_) => Ok(()),
            answer => answer.written().context("its pod, which was lost, cannot be removed"),
        }
    }

    fn client(&self) -> &Client {
        &self.clients.call
    }
}

#[cfg(test)]
mod tests;
