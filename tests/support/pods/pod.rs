//! One pod, from being bound to a node until its object is gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};
use k8s_openapi::api::core::v1::{Container as Spec, ContainerStatus, Pod, PodSpec};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout};

use super::container::{Board, Container, Order, waiting};
use super::limits;
use super::site::{self, Host};
use super::status::Status;
use super::volumes::{self, Volume};
use crate::network::Place;

/// Before something that failed is tried again.
const RETRY: Duration = Duration::from_millis(200);
/// More than any call takes.
const CALL: Duration = Duration::from_secs(10);

/// What the watch says of a pod.
#[derive(Clone)]
pub enum Seen {
    Here(Arc<Pod>),
    Gone,
}

struct Worker {
    host: Arc<Host>,
    pod: Arc<Pod>,
    spec: PodSpec,
    seen: watch::Receiver<Seen>,
    is_gone: bool,
    place: Option<Arc<Place>>,
    board: Board,
    status: Status,
    published: Value,
    /// Grace period, and when it is over.
    deadline: Option<(i64, Instant)>,
}

/// Runs the pod, reports its status, and ends it when it is being deleted.
pub async fn run(host: Arc<Host>, pod: Arc<Pod>, seen: watch::Receiver<Seen>) {
    let spec = pod.spec.clone().unwrap_or_default();
    let folder = host.site.folder_of(&pod);
    let mut worker = Worker {
        board: Arc::new(watch::Sender::new(spec.containers.iter().map(not_started).collect())),
        status: Status::new(host.site.network.address()),
        host,
        pod,
        spec,
        seen,
        is_gone: false,
        place: None,
        published: Value::Null,
        deadline: None,
    };
    if !is_over(&worker.pod)
        && let Some(volumes) = worker.prepare().await
    {
        worker.live(volumes).await;
    }
    while !worker.is_leaving() {
        worker.see().await;
    }
    worker.detach().await;
    let _ = std::fs::remove_dir_all(folder);
    worker.bury().await;
}

impl Worker {
    /// Waits for news of it.
    async fn see(&mut self) {
        let is_told = self.seen.changed().await.is_ok();
        match self.seen.borrow_and_update().clone() {
            Seen::Here(pod) if is_told => self.pod = pod,
            Seen::Here(_) | Seen::Gone => self.is_gone = true,
        }
    }

    fn is_leaving(&self) -> bool {
        self.is_gone || self.pod.metadata.deletion_timestamp.is_some()
    }

    /// `None` when the pod must end before it began.
    async fn prepare(&mut self) -> Option<BTreeMap<String, Volume>> {
        let mut said = String::new();
        while !self.is_leaving() {
            let error = match self.try_prepare().await {
                Ok(volumes) => return Some(volumes),
                Err(error) => error,
            };
            let why = format!("{error:#}");
            if why != said {
                self.host.site.note(&self.pod, &why);
                said.clone_from(&why);
            }
            self.board.send_modify(|containers| {
                for container in containers {
                    container.state = waiting("ContainerCreating", &why);
                }
            });
            self.publish().await;
            tokio::select! {
                () = sleep(RETRY) => {}
                () = self.see() => {}
            }
        }
        None
    }

    async fn try_prepare(&mut self) -> anyhow::Result<BTreeMap<String, Volume>> {
        let unsupported = limits::unsupported(&self.spec);
        ensure!(unsupported.is_empty(), "the tests' nodes cannot do this: {}", unsupported.join(", "));
        let place = match &self.place {
            Some(place) => Arc::clone(place),
            None => {
                let network = Arc::clone(&self.host.site.network);
                let place = Arc::new(spawn_blocking(move || network.attach()).await??);
                self.place = Some(Arc::clone(&place));
                place
            }
        };
        match timeout(CALL, volumes::make(&self.host, &self.pod, place.address)).await {
            Ok(made) => made,
            Err(_) => bail!("the API server does not answer"),
        }
    }

    /// Until the pod must end and its containers have ended.
    async fn live(&mut self, volumes: BTreeMap<String, Volume>) {
        let Some(place) = self.place.clone() else { return };
        let volumes = Arc::new(volumes);
        let (orders, order) = watch::channel(Order::Run);
        let mut tasks = JoinSet::new();
        for (index, spec) in self.spec.containers.iter().enumerate() {
            let container = Container {
                host: Arc::clone(&self.host),
                pod: Arc::clone(&self.pod),
                index,
                spec: spec.clone(),
                place: Arc::clone(&place),
                volumes: Arc::clone(&volumes),
                board: Arc::clone(&self.board),
            };
            tasks.spawn(container.run(order.clone()));
        }
        let mut news = self.board.subscribe();
        loop {
            let order = self.order();
            orders.send_if_modified(|given| std::mem::replace(given, order) != order);
            let is_told = self.publish().await;
            if tasks.is_empty() && self.is_leaving() {
                return;
            }
            tokio::select! {
                _ = news.changed() => {}
                () = self.see() => {}
                Some(_) = tasks.join_next() => {}
                () = sleep(RETRY), if !is_told => {}
            }
        }
    }

    /// A second deletion may shorten the time that the first one gave.
    fn order(&mut self) -> Order {
        let metadata = &self.pod.metadata;
        let grace = if self.is_gone {
            0
        } else if metadata.deletion_timestamp.is_some() {
            metadata.deletion_grace_period_seconds.unwrap_or_default()
        } else {
            return Order::Run;
        };
        let by = Instant::now() + Duration::from_secs(u64::try_from(grace).unwrap_or_default());
        let (_, by) = *match &mut self.deadline {
            Some(known) if known.0 <= grace => known,
            Some(known) => {
                *known = (grace, by.min(known.1));
                known
            }
            unknown => unknown.insert((grace, by)),
        };
        Order::End { by }
    }

    /// `false` if the status could not be written, and should be tried again.
    async fn publish(&mut self) -> bool {
        if self.is_gone {
            return true;
        }
        let containers = self.board.borrow().clone();
        let address = self.place.as_ref().map(|place| place.address);
        let status = self.status.of(&self.pod, containers, address, self.is_leaving());
        if status == self.published {
            return true;
        }
        // Another pod of this name is not meant.
        let patch = Patch::Merge(json!({"metadata": {"uid": self.pod.metadata.uid}, "status": status}));
        let (namespace, name) = site::key(&self.pod);
        let pods: Api<Pod> = Api::namespaced(self.host.client.clone(), &namespace);
        let is_told = self.tell(pods.patch_status(&name, &PatchParams::default(), &patch)).await;
        if is_told {
            self.published = status;
        }
        is_told
    }

    async fn detach(&mut self) {
        let Some(place) = self.place.take() else { return };
        let network = Arc::clone(&self.host.site.network);
        if let Ok(Err(error)) = spawn_blocking(move || network.detach(&place)).await {
            self.host.site.note(&self.pod, &format!("{error:#}"));
        }
    }

    /// Nothing of it runs any more: now the object may go.
    async fn bury(&self) {
        let (namespace, name) = site::key(&self.pod);
        let pods: Api<Pod> = Api::namespaced(self.host.client.clone(), &namespace);
        let preconditions = Preconditions { uid: self.pod.metadata.uid.clone(), ..Preconditions::default() };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        while !matches!(*self.seen.borrow(), Seen::Gone) && !self.tell(pods.delete(&name, &params)).await {
            sleep(RETRY).await;
        }
    }

    /// Whether the API server took it, or has no such pod any more.
    async fn tell<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> bool {
        let error = match timeout(CALL, call).await {
            Ok(Ok(_)) => return true,
            Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => return true,
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => "no answer".to_owned(),
        };
        self.host.site.note(&self.pod, &format!("the API server could not be told: {error}"));
        false
    }
}

fn not_started(spec: &Spec) -> ContainerStatus {
    ContainerStatus {
        name: spec.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        state: waiting("ContainerCreating", ""),
        started: Some(false),
        ..ContainerStatus::default()
    }
}

/// It has ended for good, before we looked.
fn is_over(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
