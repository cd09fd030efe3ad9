//! Deployments that really run: a control plane with controllers and a scheduler, and this process
//! in the place of the kubelet and the container engine of its nodes.
//!
//! A container is a program of this machine in a network namespace, a file system and an identity
//! of its own, as its manifest asks for. Left out are images' own files (but for the program at
//! `/berth`, or where the container's command has it, and the libraries of this machine), cgroups,
//! seccomp, name resolution, Events, init containers, and everything that
//! [`unsupported`](limits::unsupported) tells. Mounted Secrets, ConfigMaps and tokens are written
//! once.

mod container;
mod environment;
mod identity;
mod kubelet;
mod launch;
mod limits;
mod node;
mod pod;
mod probe;
mod site;
mod status;
mod volumes;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use super::control_plane::Scope;
use super::{ControlPlane, Kubectl, http, log};
use kubelet::Kubelet;
#[allow(unused_imports, reason = "not everybody who has this module uses all of it")]
pub use node::{Node, many};
use site::Site;

/// A control plane and nodes. All pods end when it is dropped, and nothing of them stays.
pub struct Cluster {
    site: Arc<Site>,
    /// Before the control plane, which it talks to.
    _kubelet: Kubelet,
    plane: ControlPlane,
}

impl Cluster {
    /// From nothing to two ready nodes. `images` are the programs that containers with those images
    /// run.
    ///
    /// # Errors
    /// When a program is missing or does not come up, or we are not root.
    pub fn start(images: BTreeMap<String, PathBuf>) -> anyhow::Result<Self> {
        Self::start_with_nodes(images, node::two())
    }

    /// The same with other nodes: [`many`], or some with labels of their own.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_with_nodes(images: BTreeMap<String, PathBuf>, nodes: Vec<Node>) -> anyhow::Result<Self> {
        let plane = ControlPlane::start_with(Scope::Pods)?;
        let network = plane.network().context("a control plane for pods has a network")?;
        let site = Arc::new(Site::new(plane.folder(), plane.address(), Arc::clone(network), nodes, images));
        let kubelet = Kubelet::start(Arc::clone(&site), plane.kubeconfig())?;
        Ok(Self { site, _kubelet: kubelet, plane })
    }

    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    /// From now on containers with this image run that program. Those that run stay as they are.
    pub fn set_image(&self, image: &str, program: impl Into<PathBuf>) {
        self.site.images.send_modify(|images| drop(images.insert(image.to_owned(), program.into())));
    }

    /// From now on containers whose first argument is this one are started with these besides,
    /// which their manifests do not show: periods that a test does not want to wait for. Those that
    /// run stay as they are.
    pub fn add_args(&self, first: &str, more: &[&str]) {
        self.site.add_args(first, more);
    }

    /// Containers that start from now on have this variable, too.
    pub fn set_variable(&self, name: &str, value: &str) {
        self.site.set_variable(name, value);
    }

    /// Pods with this label, whatever its value, are played by the test from now on and not run
    /// here. Running ones continue.
    pub fn leave(&self, label: &str) {
        self.site.leave(label);
    }

    pub fn nodes(&self) -> &[Node] {
        &self.site.nodes
    }

    /// The nodes' folder of pods, as `/var/lib/kubelet/pods` is a real one's. All nodes share it.
    pub fn pods_folder(&self) -> PathBuf {
        self.site.pods()
    }

    /// # Errors
    /// When they cannot be listed.
    pub fn pods(&self, namespace: &str, selector: &str) -> anyhow::Result<Vec<Pod>> {
        #[derive(Deserialize)]
        struct Found {
            items: Vec<Pod>,
        }
        let args = ["get", "pods", "--namespace", namespace, "--selector", selector, "-o", "json"];
        let found: Found = serde_json::from_str(&self.kubectl().run(&args)?)?;
        Ok(found.items)
    }

    /// The sum of one of berth's metrics over its pods with this label, those that do not answer
    /// left out. Those on their way out are not asked: one whose network goes meanwhile leaves the
    /// question without an answer for minutes.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn metric(&self, namespace: &str, selector: &str, name: &str) -> anyhow::Result<u64> {
        let of = |pod: &Pod| {
            if pod.metadata.deletion_timestamp.is_some() {
                return None;
            }
            let ip = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
            let text = http::get(SocketAddr::new(ip, 8085), "/metrics").ok()?.1;
            text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().parse::<u64>().ok())
        };
        Ok(self.pods(namespace, selector)?.iter().filter_map(of).sum())
    }

    /// Those with this label that were ever bound to a node, as they were seen last: pods of data
    /// movements are gone before anybody can ask for them.
    pub fn pods_ever(&self, namespace: &str, label: &str) -> Vec<Pod> {
        let mut pods = self.site.ever();
        pods.retain(|pod| {
            pod.metadata.namespace.as_deref() == Some(namespace)
                && pod.metadata.labels.iter().flatten().any(|(key, _)| key == label)
        });
        pods
    }

    /// Of the program in the pod's first container, on this machine.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self, namespace: &str, pod: &str) -> anyhow::Result<Pid> {
        let running = self.site.running();
        let key = (namespace.to_owned(), pod.to_owned());
        let first = running.get(&key).and_then(|containers| containers.first_key_value());
        first.map(|(_, (_, pid))| *pid).with_context(|| format!("{namespace}/{pod} runs no program"))
    }

    /// Sends a signal to the program in the pod's first container.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, namespace: &str, pod: &str, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid(namespace, pod)?;
        kill(pid, signal).with_context(|| format!("failed to signal {namespace}/{pod}"))
    }

    /// Of this machine, as pods see it: what listens here can be reached by them.
    pub fn address(&self) -> Ipv4Addr {
        self.site.network.address()
    }

    /// What a container has written, over all its restarts.
    pub fn log(&self, namespace: &str, pod: &str, container: &str) -> PathBuf {
        self.site.log_of(namespace, pod, container)
    }

    /// Of the control plane, the nodes, and every container there was.
    pub fn logs(&self) -> Vec<PathBuf> {
        let mut logs = self.plane.logs();
        logs.push(self.site.own_log());
        logs.extend(self.site.container_logs());
        logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        log::report_if_panicking(&self.logs());
    }
}
