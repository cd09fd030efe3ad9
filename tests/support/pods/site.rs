//! What everything that runs pods here has in common.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use nix::unistd::Pid;
use tokio::sync::watch;

use super::node::Node;
use crate::network::Network;

/// Namespace and name of a pod.
pub type Key = (String, String);
/// Containers by their order in the manifest, with their names.
pub type Running = BTreeMap<Key, BTreeMap<usize, (String, Pid)>>;

pub struct Site {
    folder: PathBuf,
    /// As pods get it.
    pub api_server: SocketAddr,
    pub network: Arc<Network>,
    pub nodes: Vec<Node>,
    /// Programs by image.
    pub images: watch::Sender<BTreeMap<String, PathBuf>>,
    running: Mutex<Running>,
    /// Every pod that was ever bound to a node, as it was seen last.
    ever: Mutex<BTreeMap<Key, Pod>>,
    /// Labels of pods that the test plays.
    left: Mutex<BTreeSet<String>>,
    /// Of containers, by the first argument that their manifests have.
    more_args: Mutex<BTreeMap<String, Vec<String>>>,
    /// Variables of all containers that no manifest names.
    variables: Mutex<BTreeMap<String, String>>,
}

impl Site {
    pub fn new(
        folder: &Path,
        api_server: SocketAddr,
        network: Arc<Network>,
        nodes: Vec<Node>,
        images: BTreeMap<String, PathBuf>,
    ) -> Self {
        let images = watch::Sender::new(images);
        Self {
            folder: folder.to_owned(),
            api_server,
            network,
            nodes,
            images,
            running: Mutex::default(),
            ever: Mutex::default(),
            left: Mutex::default(),
            more_args: Mutex::default(),
            variables: Mutex::default(),
        }
    }

    pub fn set_variable(&self, name: &str, value: &str) {
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        variables.insert(name.to_owned(), value.to_owned());
    }

    pub fn variables(&self) -> BTreeMap<String, String> {
        self.variables.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn remember(&self, pod: &Pod) {
        self.ever.lock().unwrap_or_else(PoisonError::into_inner).insert(key(pod), pod.clone());
    }

    pub fn ever(&self) -> Vec<Pod> {
        self.ever.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Pods with this label are not run from now on.
    pub fn leave(&self, label: &str) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(label.to_owned());
    }

    pub fn is_left(&self, pod: &Pod) -> bool {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        pod.metadata.labels.iter().flatten().any(|(label, _)| left.contains(label))
    }

    /// Containers whose first argument is this one are started with these besides.
    pub fn add_args(&self, first: &str, more: &[&str]) {
        let mut known = self.more_args.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(first.to_owned()).or_default().extend(more.iter().map(|arg| (*arg).to_owned()));
    }

    pub fn more_args(&self, args: &[String]) -> Vec<String> {
        let known = self.more_args.lock().unwrap_or_else(PoisonError::into_inner);
        args.first().and_then(|first| known.get(first)).cloned().unwrap_or_default()
    }

    pub fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of all pods: what lies below `/var/lib/kubelet` on a real node, and in the same order.
    pub fn pods(&self) -> PathBuf {
        self.folder.join("pods")
    }

    /// What a pod has on this machine.
    pub fn folder_of(&self, pod: &Pod) -> PathBuf {
        self.pods().join(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    pub fn log_of(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        self.folder.join(format!("{namespace}_{pod}_{container}.log"))
    }

    /// No other log here has a name of this form.
    pub fn container_logs(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten();
        let mut logs: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        logs.retain(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(".log") && name.matches('_').count() == 2
        });
        logs.sort();
        logs
    }

    pub fn own_log(&self) -> PathBuf {
        self.folder.join("kubelet.log")
    }

    /// For the reader who wonders why a pod does not run.
    pub fn note(&self, pod: &Pod, text: &str) {
        let (namespace, name) = key(pod);
        self.note_general(&format!("{namespace}/{name}: {text}"));
    }

    pub fn note_general(&self, text: &str) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(self.own_log());
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{} {text}", Timestamp::now());
        }
    }
}

/// A [`Site`] and a client that belongs to the runtime of the pods' tasks.
pub struct Host {
    pub site: Arc<Site>,
    pub client: Client,
}

pub fn key(pod: &Pod) -> Key {
    let metadata = &pod.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
