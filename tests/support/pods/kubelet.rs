//! The thread that watches pods, and gives each that is bound to one of the nodes a task, but for
//! those that the test plays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::task::JoinHandle as Task;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::node;
use super::pod::{self, Seen};
use super::site::{Host, Site};
use crate::control_plane;

/// Before the watch is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How long pods may take that must end at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends all pods when dropped.
pub struct Kubelet {
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    /// Returns once the nodes are there and pods are watched.
    ///
    /// # Errors
    /// When the API server refuses the nodes.
    pub fn start(site: Arc<Site>, kubeconfig: PathBuf) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let (ready, is_ready) = mpsc::channel();
        let stopped = stop.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let ended = runtime
                .map_err(anyhow::Error::from)
                .and_then(|runtime| runtime.block_on(run(Arc::clone(&site), &kubeconfig, stopped, &ready)));
            if let Err(error) = ended {
                site.note_general(&format!("{error:#}"));
                // The receiver is gone if it fails later.
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("kubelet".to_owned()).spawn(run)?;
        let kubelet = Self { stop, thread: Some(thread) };
        is_ready.recv().map_err(|_| anyhow!("the kubelet's thread panicked"))??;
        Ok(kubelet)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn run(
    site: Arc<Site>,
    kubeconfig: &Path,
    stop: CancellationToken,
    ready: &mpsc::Sender<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let client = control_plane::client(kubeconfig).await?;
    let address = site.network.address().to_string();
    node::register(&client, &site.nodes, &address).await.context("failed to make the nodes")?;
    let pods: Api<Pod> = Api::all(client.clone());
    let mut desk = Desk { host: Arc::new(Host { site, client }), workers: BTreeMap::new() };
    let mut events = pin!(watcher(pods, watcher::Config::default()));
    let mut listed = BTreeSet::new();
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => break,
            event = events.next() => event.context("the watch of pods ended")?,
        };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.metadata.uid.clone());
                desk.see(pod);
            }
            Ok(Event::InitDone) => {
                desk.keep(&listed);
                let _ = ready.send(Ok(()));
            }
            Ok(Event::Apply(pod)) => desk.see(pod),
            Ok(Event::Delete(pod)) => desk.lose(pod.metadata.uid.as_deref().unwrap_or_default()),
            Err(error) => {
                desk.host.site.note_general(&format!("the watch of pods failed: {error}"));
                sleep(RETRY).await;
            }
        }
    }
    desk.close().await;
    Ok(())
}

struct Worker {
    tell: watch::Sender<Seen>,
    task: Task<()>,
}

struct Desk {
    host: Arc<Host>,
    /// By the pod's uid.
    workers: BTreeMap<String, Worker>,
}

impl Desk {
    fn see(&mut self, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let site = &self.host.site;
        if !site.nodes.iter().any(|played| Some(played.name.as_str()) == node) {
            return;
        }
        site.remember(&pod);
        if site.is_left(&pod) {
            // On a real node it would have one, and stock Velero's node-agent does not start where
            // it misses one.
            if let Err(error) = std::fs::create_dir_all(site.folder_of(&pod)) {
                site.note(&pod, &format!("its folder cannot be made: {error}"));
            }
            return;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let pod = Arc::new(pod);
        if let Some(worker) = self.workers.get(&uid) {
            worker.tell.send_replace(Seen::Here(pod));
            return;
        }
        let (tell, seen) = watch::channel(Seen::Here(Arc::clone(&pod)));
        let task = tokio::spawn(pod::run(Arc::clone(&self.host), pod, seen));
        self.workers.retain(|_, worker| !worker.task.is_finished());
        self.workers.insert(uid, Worker { tell, task });
    }

    fn lose(&mut self, uid: &str) {
        if let Some(worker) = self.workers.get(uid) {
            worker.tell.send_replace(Seen::Gone);
        }
    }

    /// All but these are gone.
    fn keep(&mut self, listed: &BTreeSet<String>) {
        for (_, worker) in self.workers.iter().filter(|(uid, _)| !listed.contains(*uid)) {
            worker.tell.send_replace(Seen::Gone);
        }
    }

    async fn close(self) {
        for worker in self.workers.values() {
            worker.tell.send_replace(Seen::Gone);
        }
        let tasks = self.workers.into_values().map(|worker| worker.task);
        // Whatever is left is killed with the runtime.
        let _ = timeout(PATIENCE, futures::future::join_all(tasks)).await;
    }
}
