//! berth as it runs in a cluster: webhook and controller as processes of their own, each under its
//! own identity.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use berth::leader::LEASE;
use serde_json::{Value, json};

use super::kubectl::Answer;
use super::process::in_own_session;
use super::{ControlPlane, Kubectl, Process, backup, http, log, manifest, port, wait_for};
use crate::wait::PATIENCE;

const BUCKET: &str = "backups";
/// After this time an API server counts as not having noticed how its webhooks are called.
const UNNOTICED: Duration = Duration::from_secs(20);
/// For the controllers of a test that kills a leader, and so waits for its Lease.
/// Renewed within two thirds of it: a busy machine must be able to.
pub const SHORT_LEASE: &str = "--lease-duration=6s";
/// For agents of a test that kills them again and again, and minds nothing of one that loses its
/// Lease.
pub const SHORTEST_LEASE: &str = "--lease-duration=2s";

/// Kinds whose objects an API server looks through at requests of any namespace.
const LOOKED_THROUGH: [&str; 5] = [
    "ValidatingAdmissionPolicyBinding",
    "ValidatingAdmissionPolicy",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ClusterRoleBinding",
];

/// How to run berth.
#[derive(Clone)]
pub struct Options {
    /// The binary.
    pub program: PathBuf,
    pub namespace: String,
    pub concurrent_backups: u16,
    pub item_block_workers: u16,
    /// Velero runs the backups; the test that asks for this has created the default location.
    pub beside_velero: bool,
    /// The test has created the default location. Else berth gets one that is a folder.
    pub has_location: bool,
    /// It judges shared buckets. At most one of a control plane does.
    pub garden: bool,
    pub webhook_args: Vec<String>,
    pub controller_args: Vec<String>,
    /// Where the controller finds the API server, if not where all others do.
    pub controller_url: Option<String>,
    /// For both.
    pub env: Vec<(String, String)>,
    /// A rule that is taken out of the manifests: kind and name of its role, and which.
    pub without_rule: Option<(&'static str, &'static str, usize)>,
    /// How long to wait until it is ready.
    pub patience: Duration,
}

impl Options {
    pub fn new(program: impl Into<PathBuf>, namespace: &str) -> Self {
        Self {
            program: program.into(),
            namespace: namespace.to_owned(),
            concurrent_backups: 1,
            item_block_workers: 1,
            beside_velero: false,
            has_location: false,
            garden: false,
            webhook_args: Vec::new(),
            controller_args: Vec::new(),
            controller_url: None,
            env: Vec::new(),
            without_rule: None,
            patience: PATIENCE,
        }
    }
}

/// The control plane under a [`Berth`]: its own, or one that others use too.
pub enum Plane {
    Own(Box<ControlPlane>),
    Shared(&'static ControlPlane),
    /// For as long as one of them is there.
    Common(Arc<ControlPlane>),
}

impl From<ControlPlane> for Plane {
    fn from(plane: ControlPlane) -> Self {
        Self::Own(Box::new(plane))
    }
}

impl From<&'static ControlPlane> for Plane {
    fn from(plane: &'static ControlPlane) -> Self {
        Self::Shared(plane)
    }
}

impl From<Arc<ControlPlane>> for Plane {
    fn from(plane: Arc<ControlPlane>) -> Self {
        Self::Common(plane)
    }
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::Own(plane) => plane,
            Self::Shared(plane) => plane,
            Self::Common(plane) => plane,
        }
    }
}

/// A berth process.
pub struct Server {
    pub process: Process,
    health: SocketAddr,
}

impl Server {
    pub fn is_ready(&self) -> bool {
        http::get(self.health, "/readyz").is_ok_and(|(status, _)| status == 200)
    }

    /// Where probes and metrics are asked for.
    pub fn health_address(&self) -> SocketAddr {
        self.health
    }

    /// Ends it as a cluster does: a controller frees its Lease, so that the next one need not wait
    /// for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.process.terminate(PATIENCE).map(drop)
    }

    /// Does this controller have the Lease?
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn leads(&self, kubectl: &Kubectl, namespace: &str) -> anyhow::Result<bool> {
        // HOST_PROCESS_START
        Ok(holder(kubectl, namespace)?.contains(&format!("_{}_", self.process.id())))
    }

    /// Kills a controller, and takes its Lease away if it has it, so that another one leads at
    /// once: a Lease that is short enough to wait for is one that leaders lose that live, where a
    /// machine is busy. They read everything anew then, and that keeps the machine busy. Gives
    /// whether it had led.
    ///
    /// # Errors
    /// When it cannot be killed, or its Lease cannot be read or removed.
    pub fn kill(&mut self, kubectl: &Kubectl, namespace: &str) -> anyhow::Result<bool> {
        self.process.kill()?;
        let leads = self.leads(kubectl, namespace)?;
        if leads {
            kubectl.run(&["delete", "lease", LEASE, "-n", namespace])?;
        }
        Ok(leads)
    }

    /// What it counts, in Prometheus' text format.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn metrics(&self) -> anyhow::Result<String> {
        Ok(http::get(self.health, "/metrics")?.1)
    }

    /// Waits until it serves a metric, with or without its value: it counts after it has written
    /// what others see.
    ///
    /// # Errors
    /// When there is no such line in time, with what it serves.
    pub fn await_metric(&self, line: &str) -> anyhow::Result<()> {
        let mut seen = String::new();
        let wait = wait_for(&format!("{line} in the metrics"), PATIENCE, || {
            seen = self.metrics()?;
            let is_it = |served: &str| {
                served.strip_prefix(line).is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', ' ']))
            };
            Ok(seen.lines().any(is_it).then_some(()))
        });
        wait.with_context(|| seen)
    }
}

/// Who has the Lease of the controllers in that namespace; empty where nobody has.
///
/// # Errors
/// When it cannot be read.
pub fn holder(kubectl: &Kubectl, namespace: &str) -> anyhow::Result<String> {
    let path = "jsonpath={.spec.holderIdentity}";
    kubectl.run(&["get", "lease", LEASE, "-n", namespace, "--ignore-not-found", "-o", path])
}

/// Waits until the API server goes by the roles that have been written: what it refuses before is
/// no fault of theirs. It learns of each kind in the order of writing, so the last of each kind
/// tells.
fn await_roles(plane: &ControlPlane, namespace: &str) -> anyhow::Result<()> {
    let account = format!("system:serviceaccount:{namespace}:berth-controller");
    let rights = [("Cluster", "watch-all-over"), ("", "watch-here")];
    let objects = rights.iter().flat_map(|(scope, verb)| {
        let name = format!("last-of-{namespace}");
        let mut metadata = json!({"name": name});
        if scope.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
        [
            json!({
                "apiVersion": api, "kind": format!("{scope}Role"), "metadata": metadata,
                "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}],
            }),
            json!({
                "apiVersion": api, "kind": format!("{scope}RoleBinding"), "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": format!("{scope}Role"), "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": "berth-controller", "namespace": namespace}],
            }),
        ]
    });
    plane.apply(objects.collect())?;
    for (_, verb) in rights {
        plane.kubectl().await_right(&account, namespace, verb, "configmaps")?;
    }
    Ok(())
}

/// Those of [`LOOKED_THROUGH`], as kubectl names them.
fn looked_through(objects: &[Value]) -> Vec<String> {
    let named = |object: &Value| {
        let kind = object["kind"].as_str().filter(|kind| LOOKED_THROUGH.contains(kind))?;
        Some(format!("{}/{}", kind.to_lowercase(), object["metadata"]["name"].as_str()?))
    };
    objects.iter().filter_map(named).collect()
}

/// One berth, in one namespace of a control plane, with a default location that is a folder unless
/// the test has made another one.
pub struct Berth {
    options: Options,
    webhook_address: SocketAddr,
    folder: PathBuf,
    pub webhook: Server,
    pub controller: Server,
    looked_through: Vec<String>,
    plane: Plane,
}

impl Berth {
    /// Installs berth and starts it; returns once a Backup that is created would be queued.
    ///
    /// # Errors
    /// When a process ends early (with the end of its log) or does not become ready.
    pub fn start(plane: impl Into<Plane>, options: Options) -> anyhow::Result<Self> {
        let plane = plane.into();
        let webhook_address = loopback()?;
        let url = format!("https://{webhook_address}");
        let objects = if options.garden { manifest::objects_with_garden } else { manifest::objects };
        let mut objects = objects(&options.namespace, &url, options.beside_velero)?;
        if let Some((kind, role, index)) = options.without_rule {
            manifest::take_rule(
                &mut objects,
                kind,
                &manifest::suffixed_role(kind, role, &options.namespace),
                index,
            )?;
        }
        for webhook in
            objects.iter_mut().filter_map(|object| object.get_mut("webhooks")?.as_array_mut()).flatten()
        {
            // An API server on a busy machine may need more than the two seconds of the manifests
            // for a call, and would admit the Backup without a place. A webhook that is down
            // refuses the connection, however long the time-out is.
            webhook["timeoutSeconds"] = json!(30);
        }
        let mut looked_through = looked_through(&objects);
        plane.install(objects)?;
        if options.without_rule.is_some() {
            await_roles(&plane, &options.namespace)?;
            looked_through.push(format!("clusterrolebinding/last-of-{}", options.namespace));
        }
        let folder = plane.folder().join(&options.namespace);
        std::fs::create_dir_all(folder.join("archives").join(BUCKET))?;
        let controller = start_controller(&plane, &options, "controller", &folder)?;
        let webhook = start_webhook(&plane, &options, "webhook", &folder, webhook_address)?;
        let mut berth = Self { options, webhook_address, folder, webhook, controller, looked_through, plane };
        if !(berth.options.beside_velero || berth.options.has_location) {
            berth.make_location()?;
        }
        berth.wait_ready()?;
        Ok(berth)
    }

    fn make_location(&self) -> anyhow::Result<()> {
        let location = json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": "default"},
            "spec": {
                "provider": "berth.dev/filesystem",
                "default": true,
                "objectStorage": {"bucket": BUCKET},
                "config": {"path": self.folder.join("archives")},
            },
        });
        let args = ["apply", "--server-side", "--namespace", &self.options.namespace, "-f", "-"];
        self.kubectl().run_with(&args, &location.to_string())?;
        Ok(())
    }

    /// Waits until both processes are ready and the API server can call the webhooks. After a
    /// restart, too.
    ///
    /// # Errors
    /// When one of them ends, or it takes too long.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        let configuration = manifest::suffixed("berth", &self.options.namespace);
        let patience = self.options.patience;
        let mut seen = "nothing yet".to_owned();
        let begun = Instant::now();
        let mut touched = begun;
        let mut step = || {
            self.ensure_runs()?;
            let ready = self.controller.is_ready() && self.webhook.is_ready();
            if !ready {
                "not ready: see their logs".clone_into(&mut seen);
                return Ok(None);
            }
            if !has_bundles(self.kubectl(), &configuration)? {
                "a webhook has no caBundle".clone_into(&mut seen);
                return Ok(None);
            }
            // The API server learns of a caBundle through a watch: only a try tells.
            let queued = self.try_backup(json!({}))?;
            let refused = self.try_backup(json!({"includedNamespaces": ["No Name"]}))?;
            let object: Value = serde_json::from_str(&queued.stdout).unwrap_or_default();
            seen = format!("a Backup would not be queued: {} {}", object["status"], queued.stderr.trim_end());
            let is_ready = object["status"]["phase"] == "Queued" && !refused.status.success();
            // An API server that computes its list of webhooks while a configuration changes may
            // keep the old list until the next change.
            if !is_ready && touched.elapsed() >= UNNOTICED {
                touched = Instant::now();
                for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
                    let again = format!("berth.test/touched={}", begun.elapsed().as_millis());
                    drop(self.kubectl().run(&["annotate", "--overwrite", kind, &configuration, &again]));
                }
            }
            Ok(is_ready.then_some(()))
        };
        wait_for("berth to be ready", patience, &mut step)
            .with_context(|| format!("berth is not ready ({seen})"))
    }

    /// Waits until the webhook knows that location, of which it learns through a watch: for a
    /// moment it waits with a review of a Backup that goes there, and then refuses it.
    ///
    /// # Errors
    /// When it takes too long.
    pub fn await_location(&self, name: &str) -> anyhow::Result<()> {
        wait_for(&format!("the webhook to know the location {name}"), PATIENCE, || {
            let tried = self.try_backup(json!({"storageLocation": name}))?;
            Ok(tried.status.success().then_some(()))
        })
    }

    fn try_backup(&self, spec: Value) -> anyhow::Result<Answer> {
        let args =
            ["create", "--dry-run=server", "--namespace", &self.options.namespace, "-o", "json", "-f", "-"];
        self.kubectl().answer(&args, &backup("probe", spec).to_string())
    }

    /// Kills the controller, and takes its Lease away, so that whoever is started next leads at
    /// once: a Lease that is short enough to wait for is one that a busy machine loses.
    ///
    /// # Errors
    /// When it cannot be killed, or has no Lease.
    pub fn kill_controller(&mut self) -> anyhow::Result<()> {
        self.controller.process.kill()?;
        self.kubectl().run(&["delete", "lease", LEASE, "-n", self.namespace()]).map(drop)
    }

    /// # Errors
    /// When a process has ended: with the end of its log.
    pub fn ensure_runs(&mut self) -> anyhow::Result<()> {
        self.webhook.process.ensure_runs()?;
        self.controller.process.ensure_runs()
    }

    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    pub fn namespace(&self) -> &str {
        &self.options.namespace
    }

    /// Where the webhook answers, HTTPS.
    pub fn webhook_address(&self) -> SocketAddr {
        self.webhook_address
    }

    /// What would be the bucket's root, were it a bucket: holds `backups/NAME/NAME.tar.gz`.
    pub fn archives(&self) -> PathBuf {
        self.folder.join("archives").join(BUCKET)
    }

    /// The archive of a Backup, whether or not it exists.
    pub fn archive(&self, name: &str) -> PathBuf {
        self.archives().join("backups").join(name).join(format!("{name}.tar.gz"))
    }

    /// One more controller with the same flags, as a second replica. The caller ends it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_another_controller(&self, name: &str) -> anyhow::Result<Server> {
        start_controller(&self.plane, &self.options, name, &self.folder)
    }

    /// Kills the webhook, and starts one with these additional flags in its place. Until the new
    /// one is ready, no webhook is asked.
    ///
    /// # Errors
    /// When the new one cannot be started or does not become ready.
    pub fn replace_webhook(&mut self, more: &[&str]) -> anyhow::Result<()> {
        self.webhook.process.kill()?;
        let mut options = self.options.clone();
        options.webhook_args.extend(more.iter().map(|arg| (*arg).to_owned()));
        self.webhook = start_webhook(&self.plane, &options, "webhook", &self.folder, self.webhook_address)?;
        wait_for("the webhook to be ready", self.options.patience, || {
            self.webhook.process.ensure_runs()?;
            Ok(self.webhook.is_ready().then_some(()))
        })
    }

    /// One more webhook with the same flags, on an address that the API server does not call.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_another_webhook(&self, name: &str) -> anyhow::Result<(Server, SocketAddr)> {
        let address = loopback()?;
        Ok((start_webhook(&self.plane, &self.options, name, &self.folder, address)?, address))
    }

    /// Whatever the processes of this berth and its control plane wrote.
    pub fn logs(&self) -> Vec<PathBuf> {
        let mut logs = self.plane.logs();
        let files =
            std::fs::read_dir(&self.folder).into_iter().flatten().filter_map(|file| Some(file.ok()?.path()));
        logs.extend(files.filter(|file| file.extension().is_some_and(|e| e == "log")));
        logs
    }

    /// Leaves all of it running, once `save` has kept the lines that `tests/support/janitor` reads
    /// in order to end it.
    ///
    /// # Errors
    /// When `save` fails, or the control plane is not this berth's own.
    pub fn leave_running(mut self, save: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
        self.webhook.process.leave_running();
        self.controller.process.leave_running();
        match &mut self.plane {
            Plane::Own(plane) => plane.leave_running(save),
            Plane::Shared(_) | Plane::Common(_) => {
                bail!("others use this control plane: it cannot be left behind")
            }
        }
    }
}

impl Drop for Berth {
    /// On a control plane that others use, what it has installed for all namespaces goes with it:
    /// what dozens of berths left took a quarter of the API server's time.
    fn drop(&mut self) {
        log::report_if_panicking(&self.logs());
        if std::thread::panicking() || matches!(self.plane, Plane::Own(_)) {
            return;
        }
        // First, or their logs would tell of rights that they lack only now.
        let _ = self.webhook.process.kill();
        let _ = self.controller.process.kill();
        let mut args = vec!["delete", "--ignore-not-found", "--wait=false"];
        args.extend(self.looked_through.iter().map(String::as_str));
        let _ = self.kubectl().answer(&args, "");
    }
}

fn loopback() -> anyhow::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, port::free()?).into())
}

fn has_bundles(kubectl: &Kubectl, configuration: &str) -> anyhow::Result<bool> {
    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        let text = kubectl.run(&["get", kind, configuration, "-o", "json"])?;
        let found: Value = serde_json::from_str(&text)?;
        let is_there = |webhook: &Value| {
            webhook["clientConfig"]["caBundle"].as_str().is_some_and(|bundle| !bundle.is_empty())
        };
        if !found["webhooks"].as_array().into_iter().flatten().all(is_there) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn start_webhook(
    plane: &ControlPlane,
    options: &Options,
    name: &str,
    folder: &Path,
    address: SocketAddr,
) -> anyhow::Result<Server> {
    let configuration = manifest::suffixed("berth", &options.namespace);
    let mut args = vec![format!("--listen={address}"), format!("--webhook-configuration={configuration}")];
    args.extend(options.webhook_args.iter().cloned());
    start_server(plane, options, "webhook", name, folder, &args)
}

fn start_controller(
    plane: &ControlPlane,
    options: &Options,
    name: &str,
    folder: &Path,
) -> anyhow::Result<Server> {
    let mut args = vec![
        format!("--item-block-worker-count={}", options.item_block_workers),
        format!("--webhook-configuration={}", manifest::suffixed("berth", &options.namespace)),
        // Under which the API server calls the webhooks here.
        "--webhook-name=127.0.0.1".to_owned(),
        format!("--filesystem-root={}", plane.folder().display()),
    ];
    if !options.controller_args.iter().any(|arg| arg.starts_with("--lease-duration")) {
        // What a cluster has: on a busy machine a leader with a short one would lose it.
        args.push("--lease-duration=15s".to_owned());
    }
    args.extend(options.controller_args.iter().cloned());
    start_server(plane, options, "controller", name, folder, &args)
}

fn start_server(
    plane: &ControlPlane,
    options: &Options,
    duty: &str,
    name: &str,
    folder: &Path,
    args: &[String],
) -> anyhow::Result<Server> {
    let kubeconfig = plane.service_account_kubeconfig(&options.namespace, &format!("berth-{duty}"))?;
    if let Some(url) = options.controller_url.as_ref().filter(|_| duty == "controller") {
        let text = std::fs::read_to_string(&kubeconfig)?;
        std::fs::write(&kubeconfig, text.replace(plane.url(), url))?;
    }
    let health = loopback()?;
    let mut command = in_own_session(&options.program);
    command.args([duty, "--namespace", &options.namespace]).arg("--kubeconfig").arg(kubeconfig);
    command.arg(format!("--concurrent-backups={}", options.concurrent_backups));
    if options.beside_velero {
        command.arg("--executor=velero");
    }
    command.arg(format!("--health-address={health}")).args(args);
    command.envs(options.env.iter().cloned());
    let process = Process::start(&format!("berth {name}"), command, &folder.join(format!("{name}.log")))?;
    Ok(Server { process, health })
}
