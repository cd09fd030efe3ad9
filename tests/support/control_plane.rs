//! A real control plane for one process: etcd and kube-apiserver on loopback, or all that runs
//! pods.

mod keys;
mod programs;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::janitor::Janitor;
use super::log::ReportOnPanic;
use super::network::Network;
use super::times::{self, Record, Wait};
use super::{Kubectl, Process, binaries, manifest, wait_until};
use keys::Keys;
use programs::PATIENCE;

/// How much of a control plane.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// etcd and kube-apiserver on loopback: objects are kept, and no controller acts on them.
    Objects,
    /// The same of an API server that knows no ValidatingAdmissionPolicy.
    ObjectsWithoutPolicies,
    /// Besides, kube-controller-manager, kube-scheduler, and a network of their own for pods, on
    /// which the API server listens. Takes root.
    Pods,
}

pub struct ControlPlane {
    folder: PathBuf,
    address: SocketAddr,
    url: String,
    kubectl: Kubectl,
    is_defined: Mutex<bool>,
    etcd: Process,
    api_server: Process,
    /// That make use of them.
    others: Vec<Process>,
    network: Option<Arc<Network>>,
    /// Last: removes the folder.
    janitor: Janitor,
}

impl ControlPlane {
    /// From nothing to ready. In a run of all tests the next one starts meanwhile, so that no test
    /// but the first waits for all of it.
    ///
    /// # Errors
    /// When a program is missing or does not come up: with the end of its log.
    pub fn start() -> anyhow::Result<Self> {
        static NEXT: Mutex<Option<JoinHandle<anyhow::Result<ControlPlane>>>> = Mutex::new(None);
        let next = || NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = next().take();
        let plane = match ahead {
            Some(ahead) => {
                let _wait = Wait::start("a control plane");
                ahead.join().map_err(|_| anyhow!("a thread of the tests panicked"))?
            }
            None => Self::start_with(Scope::Objects),
        }?;
        if times::is_a_run() {
            next().get_or_insert_with(|| std::thread::spawn(|| Self::start_with(Scope::Objects)));
        }
        Ok(plane)
    }

    /// From nothing to ready.
    ///
    /// # Errors
    /// As [`ControlPlane::start`]; for pods also when we may not make a network.
    pub fn start_with(scope: Scope) -> anyhow::Result<Self> {
        let [etcd, api_server, kubectl] = binaries::get(["etcd", "kube-apiserver", "kubectl"])?;
        let more = match scope {
            Scope::Objects | Scope::ObjectsWithoutPolicies => None,
            Scope::Pods => Some(binaries::get(["kube-controller-manager", "kube-scheduler"])?),
        };
        let started = Instant::now();
        let _wait = Wait::start("a control plane");
        let janitor = Janitor::start()?;
        let folder = janitor.folder().to_owned();
        let network = match scope {
            Scope::Objects | Scope::ObjectsWithoutPolicies => None,
            Scope::Pods => Some(Arc::new(Network::start(&folder)?)),
        };
        let address = network.as_ref().map_or(Ipv4Addr::LOCALHOST, |network| network.address());
        let keys = Keys::make(&folder.join("pki"), &address.to_string())?;
        let (etcd, etcd_url) = programs::start_etcd(&etcd, &folder, &keys)?;
        let (api_server, address) =
            programs::start_api_server(&api_server, &folder, &keys, &etcd_url, IpAddr::from(address), scope)?;
        let url = format!("https://{address}");
        let user =
            json!({"client-certificate": keys.path("admin.crt"), "client-key": keys.path("admin.key")});
        let kubeconfig = folder.join("kubeconfig");
        write_kubeconfig(&kubeconfig, &url, &keys.path("ca.crt"), user)?;
        let kubectl = Kubectl::new(kubectl, kubeconfig.clone(), &folder);
        let (is_defined, others) = (Mutex::default(), Vec::new());
        let mut plane =
            Self { folder, address, url, kubectl, is_defined, etcd, api_server, others, network, janitor };
        let what = match more {
            None => {
                plane.wait_answers("/readyz")?;
                "of objects"
            }
            Some([controllers, scheduler]) => {
                // Ten seconds after it was started, kube-controller-manager ends where the API
                // server is not healthy yet.
                plane.wait_answers("/healthz")?;
                let (folder, keys) = (&plane.folder, &keys);
                plane.others = vec![
                    programs::start_controllers(&controllers, folder, keys, &kubeconfig)?,
                    programs::start_scheduler(&scheduler, folder, &kubeconfig)?,
                ];
                plane.wait_answers("/readyz")?;
                // No pod can be created before. What is made for one namespace will be made for
                // all.
                plane.wait_answers("/api/v1/namespaces/default/serviceaccounts/default")?;
                plane.wait_answers("/api/v1/namespaces/default/configmaps/kube-root-ca.crt")?;
                "with pods"
            }
        };
        Record::new("starting control planes", what, started.elapsed()).save();
        Ok(plane)
    }

    /// One for all tests of this process.
    ///
    /// # Errors
    /// As [`ControlPlane::start`], the same to everybody.
    pub fn shared() -> anyhow::Result<&'static Self> {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        let shared = SHARED.get_or_init(|| Self::start().map_err(|error| format!("{error:#}")));
        shared.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// Until the API server answers there, as long as all programs run.
    fn wait_answers(&mut self, path: &str) -> anyhow::Result<()> {
        let kubeconfig = self.kubeconfig();
        let (etcd, api_server, others) = (&mut self.etcd, &mut self.api_server, &mut self.others);
        on_own_runtime(async || {
            let client = client(&kubeconfig).await?;
            wait_until(&format!("{path} of the API server"), PATIENCE, async || {
                etcd.ensure_runs()?;
                api_server.ensure_runs()?;
                others.iter_mut().try_for_each(Process::ensure_runs)?;
                let request = http::Request::get(path).body(Vec::new())?;
                Ok(client.request_text(request).await.ok().map(drop))
            })
            .await
        })
    }

    /// Its folder. Whatever is started in addition and names it on its command line ends with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the API server answers.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same address, as pods get it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where pods are, if there can be any.
    pub fn network(&self) -> Option<&Arc<Network>> {
        self.network.as_ref()
    }

    /// Of an admin whom no rule binds.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// kubectl as that admin.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The certificate of the authority whose client certificate the API server shows to webhooks.
    pub fn webhook_client_authority(&self) -> PathBuf {
        self.folder.join("pki/webhook-clients.crt")
    }

    /// A client as that admin. It belongs to the runtime it is made on.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client(&self.kubeconfig()).await
    }

    /// One that tells every refusal: kube tries some of them again, for minutes.
    ///
    /// # Errors
    /// As [`ControlPlane::client`].
    pub async fn impatient_client(&self) -> anyhow::Result<Client> {
        let mut config = config(&self.kubeconfig()).await?;
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }

    /// kube-apiserver, for a test that stops or kills it. On a control plane of its own, please.
    pub fn api_server(&self) -> &Process {
        &self.api_server
    }

    /// Its programs.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        [&self.etcd, &self.api_server].into_iter().chain(&self.others)
    }

    /// Where its programs write.
    pub fn logs(&self) -> Vec<PathBuf> {
        self.processes().map(|process| process.log().to_owned()).collect()
    }

    /// Hold it in a test: should that fail, the logs are shown and kept.
    pub fn report_on_panic(&self) -> ReportOnPanic {
        ReportOnPanic { logs: self.logs() }
    }

    /// Applies the project's CustomResourceDefinitions, once. For two seconds more the API server
    /// delays every create of such an object.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub fn define(&self) -> anyhow::Result<()> {
        let mut is_defined = self.is_defined.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_defined {
            return Ok(());
        }
        self.apply(manifest::definitions()?)?;
        self.kubectl.await_definitions()?;
        *is_defined = true;
        Ok(())
    }

    /// Applies the project's definitions, and these.
    ///
    /// # Errors
    /// When the API server refuses something.
    pub fn install(&self, objects: Vec<Value>) -> anyhow::Result<()> {
        self.define()?;
        self.apply(objects)
    }

    /// # Errors
    /// When the API server refuses one.
    pub fn apply(&self, objects: Vec<Value>) -> anyhow::Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.kubectl.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list)?;
        Ok(())
    }

    /// A kubeconfig with a token of that service account, which must exist.
    ///
    /// # Errors
    /// When the API server issues none.
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let token = self.kubectl.token(namespace, name)?;
        let kubeconfig = self.folder.join(format!("kubeconfig-{namespace}-{name}"));
        let ca = self.folder.join("pki/ca.crt");
        write_kubeconfig(&kubeconfig, &self.url, &ca, json!({"token": token}))?;
        Ok(kubeconfig)
    }

    /// Leaves it running, once `save` has kept the lines that `tests/support/janitor` reads in
    /// order to end it.
    ///
    /// # Errors
    /// When `save` fails, or the control plane is about to end anyway.
    pub fn leave_running(&mut self, save: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.etcd.leave_running();
        self.api_server.leave_running();
        self.others.iter_mut().for_each(Process::leave_running);
        self.janitor.detach(save)
    }
}

/// Runs `task` to its end, whether or not the caller is on a runtime.
fn on_own_runtime<T: Send>(task: impl AsyncFnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(task());
    std::thread::scope(|scope| scope.spawn(run).join())
        .map_err(|_| anyhow!("a thread of the tests panicked"))?
}

/// A client for the identity in this file.
///
/// # Errors
/// When it cannot be read.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

async fn config(kubeconfig: &Path) -> anyhow::Result<Config> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(config)
}

fn write_kubeconfig(file: &Path, url: &str, ca: &Path, user: Value) -> anyhow::Result<()> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": ca}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    });
    let text = serde_json::to_string_pretty(&kubeconfig)?;
    std::fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}
