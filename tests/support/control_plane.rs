//! A real control plane for one process: etcd and kube-apiserver on loopback, nothing else.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_certs::Authority;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::janitor::Janitor;
use super::log::ReportOnPanic;
use super::process::in_own_session;
use super::{Kubectl, Process, binaries, manifest, port, wait_for, wait_until};

/// Much longer than the three seconds it takes: a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct ControlPlane {
    folder: PathBuf,
    url: String,
    kubectl: Kubectl,
    is_defined: Mutex<bool>,
    etcd: Process,
    api_server: Process,
    /// Last: removes the folder.
    janitor: Janitor,
}

impl ControlPlane {
    /// From nothing to ready.
    ///
    /// # Errors
    /// When a program is missing or does not come up: with the end of its log.
    pub fn start() -> anyhow::Result<Self> {
        let [etcd, api_server, kubectl] = binaries::get(["etcd", "kube-apiserver", "kubectl"])?;
        let janitor = Janitor::start()?;
        let folder = janitor.folder().to_owned();
        let keys = Keys::make(&folder.join("pki"))?;
        let (etcd, etcd_url) = start_etcd(&etcd, &folder)?;
        let (api_server, url) = start_api_server(&api_server, &folder, &keys, &etcd_url)?;
        let user =
            json!({"client-certificate": keys.path("admin.crt"), "client-key": keys.path("admin.key")});
        let kubeconfig = folder.join("kubeconfig");
        write_kubeconfig(&kubeconfig, &url, &keys.path("ca.crt"), user)?;
        let kubectl = Kubectl::new(kubectl, kubeconfig, &folder);
        let mut plane =
            Self { folder, url, kubectl, is_defined: Mutex::default(), etcd, api_server, janitor };
        plane.wait_ready()?;
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

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let kubeconfig = self.kubeconfig();
        let (etcd, api_server) = (&mut self.etcd, &mut self.api_server);
        on_own_runtime(async || {
            let client = client(&kubeconfig).await?;
            wait_until("the API server to be ready", PATIENCE, async || {
                etcd.ensure_runs()?;
                api_server.ensure_runs()?;
                let request = http::Request::get("/readyz").body(Vec::new())?;
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

    /// Of an admin whom no rule binds.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// kubectl as that admin.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A client as that admin. It belongs to the runtime it is made on.
    ///
    /// # Errors
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client(&self.kubeconfig()).await
    }

    /// kube-apiserver, for a test that stops or kills it. On a control plane of its own, please.
    pub fn api_server(&self) -> &Process {
        &self.api_server
    }

    /// Where etcd and kube-apiserver write.
    pub fn logs(&self) -> Vec<PathBuf> {
        vec![self.etcd.log().to_owned(), self.api_server.log().to_owned()]
    }

    /// Hold it in a test: should that fail, the logs are shown and kept.
    pub fn report_on_panic(&self) -> ReportOnPanic {
        ReportOnPanic { logs: self.logs() }
    }

    /// Applies the project's CustomResourceDefinitions, once. For two seconds more the API server delays whoever creates
    /// such an object.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub fn define(&self) -> anyhow::Result<()> {
        let mut is_defined = self.is_defined.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_defined {
            return Ok(());
        }
        let definitions = manifest::definitions()?;
        let named = |crd: &Value| Some(format!("crd/{}", crd["metadata"]["name"].as_str()?));
        let names: Vec<String> = definitions.iter().filter_map(named).collect();
        self.apply(definitions)?;
        let mut wait = vec!["wait", "--for=condition=Established", "--timeout=60s"];
        wait.extend(names.iter().map(String::as_str));
        self.kubectl.run(&wait)?;
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

    fn apply(&self, objects: Vec<Value>) -> anyhow::Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        self.kubectl.run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list)?;
        Ok(())
    }

    /// A kubeconfig with a token of that service account, which must exist.
    ///
    /// # Errors
    /// When the API server issues none.
    pub fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let token =
            self.kubectl.run(&["create", "token", name, "--namespace", namespace, "--duration=24h"])?;
        let kubeconfig = self.folder.join(format!("kubeconfig-{namespace}-{name}"));
        let ca = self.folder.join("pki/ca.crt");
        write_kubeconfig(&kubeconfig, &self.url, &ca, json!({"token": token.trim()}))?;
        Ok(kubeconfig)
    }

    /// Leaves it running, once `save` has kept what [`super::janitor::tidy`] needs in order to end it.
    ///
    /// # Errors
    /// When `save` fails, or the control plane is about to end anyway.
    pub fn leave_running(&mut self, save: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.etcd.leave_running();
        self.api_server.leave_running();
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
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
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

/// Keys and certificates of one control plane, as files.
struct Keys(PathBuf);

impl Keys {
    fn make(folder: &Path) -> anyhow::Result<Self> {
        let now = Timestamp::now();
        let ca = Authority::new("throw-away", now)?;
        let names = ["127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"].map(str::to_owned);
        let server = ca.issue("kube-apiserver", &[], &names, now)?;
        let admin = ca.issue("admin", &["system:masters"], &[], now)?;
        let accounts = Authority::new("service-accounts", now)?;
        std::fs::create_dir_all(folder)?;
        for (name, text) in [
            ("ca.crt", &ca.certificate),
            ("server.crt", &server.certificate),
            ("server.key", &server.key),
            ("admin.crt", &admin.certificate),
            ("admin.key", &admin.key),
            ("service-accounts.crt", &accounts.certificate),
            ("service-accounts.key", &accounts.key),
        ] {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(Self(folder.to_owned()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.path(name).display())
    }
}

fn start_etcd(program: &Path, folder: &Path) -> anyhow::Result<(Process, String)> {
    let (process, [client, _]) = on_free_ports(|[client, peer]| {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = in_own_session(program);
        command.args(["--name=test", "--unsafe-no-fsync", "--log-level=warn"]);
        command.arg(format!("--data-dir={}", folder.join("etcd").display()));
        command.args([
            format!("--listen-client-urls={}", url(client)),
            format!("--advertise-client-urls={}", url(client)),
        ]);
        command.args([
            format!("--listen-peer-urls={}", url(peer)),
            format!("--initial-advertise-peer-urls={}", url(peer)),
        ]);
        command.arg(format!("--initial-cluster=test={}", url(peer)));
        Process::start("etcd", command, &folder.join("etcd.log"))
    })?;
    Ok((process, format!("http://127.0.0.1:{client}")))
}

fn start_api_server(
    program: &Path,
    folder: &Path,
    keys: &Keys,
    etcd: &str,
) -> anyhow::Result<(Process, String)> {
    let (process, [port]) = on_free_ports(|[port]| {
        let mut command = in_own_session(program);
        command.args([
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
        ]);
        command.args([format!("--secure-port={port}"), format!("--etcd-servers={etcd}")]);
        command.args([
            "--authorization-mode=RBAC",
            "--allow-privileged",
            "--service-cluster-ip-range=10.0.0.0/24",
        ]);
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        // Without kube-controller-manager nobody makes the accounts that it would put on pods.
        command.arg("--disable-admission-plugins=ServiceAccount");
        command.arg(keys.flag("--client-ca-file", "ca.crt"));
        command.args([
            keys.flag("--tls-cert-file", "server.crt"),
            keys.flag("--tls-private-key-file", "server.key"),
        ]);
        command.arg(keys.flag("--service-account-key-file", "service-accounts.crt"));
        command.arg(keys.flag("--service-account-signing-key-file", "service-accounts.key"));
        Process::start("kube-apiserver", command, &folder.join("kube-apiserver.log"))
    })?;
    Ok((process, format!("https://127.0.0.1:{port}")))
}

/// Starts a program and waits until it listens on the first of its ports; on others, if somebody took one meanwhile.
fn on_free_ports<const N: usize>(
    start: impl Fn([u16; N]) -> anyhow::Result<Process>,
) -> anyhow::Result<(Process, [u16; N])> {
    let mut tries = 3;
    loop {
        let mut ports = [0; N];
        for port in &mut ports {
            *port = port::free()?;
        }
        let mut process = start(ports)?;
        let what = format!("{} to listen", process.name());
        let first = ports.first().copied().unwrap_or_default();
        let listens = wait_for(&what, PATIENCE, || {
            process.ensure_runs()?;
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, first)).ok().map(drop))
        });
        tries -= 1;
        match listens {
            Ok(()) => return Ok((process, ports)),
            Err(error) if tries > 0 && error.to_string().contains("address already in use") => {}
            Err(error) => return Err(error),
        }
    }
}
