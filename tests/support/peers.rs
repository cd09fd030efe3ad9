//! The strangers that berth must get along with: a real S3-protocol server, and stock Velero.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use berth_core::mover::MoverKind;
use nix::sys::signal::{Signal, killpg};
use object_store::DynObjectStore;
use object_store::aws::AmazonS3Builder;
use serde_json::{Value, json};

use super::kubectl::Answer;
use super::process::{in_own_session, without_proxies};
use super::{ControlPlane, Process, binaries, http, log, port, times, wait_for};
use crate::wait::PATIENCE;

/// Others may hold the one place for a stock Velero for as long as their restores take.
const TURN: Duration = Duration::from_secs(3600);
/// How often one is started before it is given up: it ends by itself when its caches or plugins
/// take too long on a busy machine, and a cluster would start it again.
const STARTS: u32 = 3;
const REGION: &str = "us-east-1";
const ACCESS_LOG: &str = "access.log";

/// What opens an S3 server.
#[derive(Clone)]
pub struct Keys {
    pub id: String,
    pub secret: String,
}

impl Keys {
    pub fn new(name: &str) -> Self {
        Self { id: format!("id-of-{name}"), secret: format!("secret-of-{name}") }
    }

    /// As AWS's shared credentials file has them.
    pub fn file(&self) -> String {
        format!("[default]\naws_access_key_id={}\naws_secret_access_key={}\n", self.id, self.secret)
    }

    /// The Secret in which berth and Velero look when a location names none.
    pub fn secret_object(&self, namespace: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "cloud-credentials", "namespace": namespace},
            "stringData": {"cloud": self.file()},
        })
    }
}

/// versitygw with one bucket. Ends with the control plane in whose folder it keeps everything.
pub struct S3 {
    pub process: Process,
    pub keys: Keys,
    /// Credentials of another user, who may have buckets of their own.
    pub stranger: Keys,
    bucket: String,
    folder: PathBuf,
    address: SocketAddr,
}

impl S3 {
    /// # Errors
    /// When it cannot be found, built or started.
    pub fn start(plane: &ControlPlane, name: &str) -> anyhow::Result<Self> {
        Self::start_with(plane, name, false)
    }

    /// With a log of all requests, for [`Self::requests`].
    ///
    /// # Errors
    /// When it cannot be found, built or started.
    pub fn start_counting(plane: &ControlPlane, name: &str) -> anyhow::Result<Self> {
        Self::start_with(plane, name, true)
    }

    fn start_with(plane: &ControlPlane, name: &str, counts: bool) -> anyhow::Result<Self> {
        let [program] = binaries::get(["versitygw"])?;
        let folder = plane.folder().join(format!("s3-{name}"));
        let bucket = format!("bucket-{name}");
        let (root, sidecar) = (folder.join("root"), folder.join("sidecar"));
        let (versions, accounts) = (folder.join("versions"), folder.join("accounts"));
        for wanted in [&root.join(&bucket), &sidecar, &versions, &accounts] {
            std::fs::create_dir_all(wanted)?;
        }
        let stranger = Keys::new("a-stranger");
        let account = json!({"access": stranger.id, "secret": stranger.secret, "role": "userplus"});
        let account = json!({"accessAccounts": {stranger.id.as_str(): account}});
        std::fs::write(accounts.join("users.json"), account.to_string())?;
        let host = plane.network().map_or(Ipv4Addr::LOCALHOST, |network| network.address());
        let address: SocketAddr = (host, port::free()?).into();
        let keys = Keys::new(name);
        let mut command = in_own_session(&program);
        command.args(["--port", &address.to_string(), "--region", REGION, "--health", "/health", "--quiet"]);
        command.env("ROOT_ACCESS_KEY_ID", &keys.id).env("ROOT_SECRET_ACCESS_KEY", &keys.secret);
        command.arg("--iam-dir").arg(&accounts);
        if counts {
            command.arg("--access-log").arg(folder.join(ACCESS_LOG));
        }
        // Without a place for ETags no multipart upload can be completed.
        command.args(["posix", "--sidecar"]).arg(sidecar).arg("--versioning-dir").arg(versions).arg(root);
        let process = Process::start("versitygw", command, &plane.folder().join(format!("s3-{name}.log")))?;
        let mut started = Self { process, keys, stranger, bucket, folder, address };
        started.wait_ready()?;
        Ok(started)
    }

    /// # Errors
    /// When it has ended, or takes too long.
    pub fn wait_ready(&mut self) -> anyhow::Result<()> {
        wait_for("versitygw to answer", PATIENCE, || {
            self.process.ensure_runs()?;
            Ok(http::get(self.address, "/health").is_ok_and(|(status, _)| status == 200).then_some(()))
        })
    }

    /// After [`Process::kill`]: on the same address, with the same objects.
    ///
    /// # Errors
    /// When it does not come back.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.process.restart()?;
        self.wait_ready()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far of all clients, as in `s3_GetObject /bucket/key`, if they are logged.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn requests(&self) -> anyhow::Result<Vec<String>> {
        let text = match std::fs::read_to_string(self.folder.join(ACCESS_LOG)) {
            Ok(text) => text,
            // It is made by the first request.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        // After the bucket, the time (two words), the address, the user and the id of the request.
        let request = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let what = words.get(7).filter(|what| what.starts_with("s3_"))?;
            Some(format!("{what} {}", words.get(9)?))
        };
        Ok(text.lines().filter_map(request).collect())
    }

    /// Where the objects below `key` lie as files.
    pub fn file(&self, key: &str) -> PathBuf {
        self.folder.join("root").join(&self.bucket).join(key)
    }

    /// Where the objects of another bucket of the same server lie.
    pub fn sibling(&self, bucket: &str) -> PathBuf {
        self.folder.join("root").join(bucket)
    }

    /// A BackupStorageLocation here, as an admin would write it for either program.
    pub fn location(&self, name: &str, prefix: &str) -> Value {
        json!({
            "apiVersion": "velero.io/v1",
            "kind": "BackupStorageLocation",
            "metadata": {"name": name},
            "spec": {
                "provider": "aws",
                "objectStorage": {"bucket": self.bucket, "prefix": prefix},
                "config": {"region": REGION, "s3ForcePathStyle": "true", "s3Url": self.url()},
                "validationFrequency": "1s",
                "backupSyncPeriod": "1s",
            },
        })
    }

    /// The bucket, for a reader of our own.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn store(&self) -> anyhow::Result<Arc<DynObjectStore>> {
        self.store_of(&self.bucket)
    }

    /// Another bucket of the same server.
    ///
    /// # Errors
    /// When the client cannot be made.
    pub fn store_of(&self, bucket: &str) -> anyhow::Result<Arc<DynObjectStore>> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = AmazonS3Builder::new().with_access_key_id(&self.keys.id);
        let builder = builder.with_secret_access_key(&self.keys.secret).with_endpoint(self.url());
        let builder = builder.with_bucket_name(bucket).with_region(REGION).with_allow_http(true);
        Ok(Arc::new(builder.build()?))
    }
}

/// The namespace, the service account of Velero, the credentials, a location, and an empty
/// Deployment `velero`, without which restores are not whole.
///
/// # Errors
/// When the API server refuses something.
pub fn prepare(plane: &ControlPlane, namespace: &str, s3: &S3, prefix: &str) -> anyhow::Result<()> {
    let mut location = s3.location("default", prefix);
    location["metadata"]["namespace"] = json!(namespace);
    location["spec"]["default"] = json!(true);
    // Each check of a stock Velero starts its plugin again, and a check that fails on a busy
    // machine makes Velero fail every backup that it picks up before the next one.
    location["spec"]["validationFrequency"] = json!("1m");
    let labels = json!({"deploy": "velero"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "velero", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "velero", "image": "velero"}]},
            },
        },
    });
    let objects = [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "velero", "namespace": namespace}}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("velero-{namespace}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "velero", "namespace": namespace}],
        }),
        s3.keys.secret_object(namespace),
        location,
        deployment,
    ];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &list.to_string())?;
    Ok(())
}

/// Applies the definitions that stock Velero ships, over whatever stands there.
///
/// # Errors
/// When the API server refuses one.
pub fn install_definitions(plane: &ControlPlane) -> anyhow::Result<()> {
    let [folder] = binaries::get(["velero-crds"])?;
    let folder = folder.display().to_string();
    plane.kubectl().run(&["apply", "--server-side", "--force-conflicts", "-f", &folder])?;
    plane.kubectl().await_definitions()
}

/// Velero's definitions of the four kinds of data movers, beside berth's own.
///
/// # Errors
/// When they cannot be had or applied.
pub fn define_movers(plane: &ControlPlane) -> anyhow::Result<()> {
    let [folder] = binaries::get(["velero-crds"])?;
    let file =
        |kind: &MoverKind| folder.join(format!("velero.io_{}.yaml", kind.plural())).display().to_string();
    let files = MoverKind::ALL.iter().map(file).collect::<Vec<_>>().join(",");
    plane.kubectl().run(&["apply", "--server-side", "--force-conflicts", "-f", &files])?;
    plane.kubectl().await_definitions()
}

/// `velero ARGS` as an administrator runs it, in `namespace`. A refusal is an answer, too.
///
/// # Errors
/// When it cannot be found, built or run.
pub fn velero(plane: &ControlPlane, namespace: &str, args: &[&str]) -> anyhow::Result<Answer> {
    let [program] = binaries::get(["velero"])?;
    let home = plane.folder().join(format!("velero-cli-{namespace}"));
    std::fs::create_dir_all(&home)?;
    let mut command = Command::new(&program);
    command.args(args).args(["--namespace", namespace, "--kubeconfig"]).arg(plane.kubeconfig());
    command.env("HOME", &home).env("TMPDIR", &home).current_dir(&home).stdin(Stdio::null());
    // It prints times in the zone of whoever reads them.
    command.env("TZ", "UTC");
    without_proxies(&mut command);
    let output = command.output().with_context(|| format!("failed to run {}", program.display()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer { stdout: text(&output.stdout), stderr: text(&output.stderr), status: output.status })
}

/// A stock `velero server`. It always takes `*:8080`, so only one runs at a time on this machine.
pub struct Velero {
    pub process: Process,
    program: PathBuf,
    namespace: String,
    kubeconfig: PathBuf,
    folder: PathBuf,
    /// Last: lets the next one begin.
    turn: File,
}

impl Velero {
    /// In a namespace that [`prepare`] made, on definitions that [`install_definitions`] applied.
    /// It looks once a second, in place of every five, whether a snapshot is there.
    ///
    /// # Errors
    /// When it cannot be found, built or started, or its turn does not come.
    pub fn start(
        plane: &ControlPlane,
        namespace: &str,
        s3: &S3,
        disabled: &[&str],
        more: &[&str],
    ) -> anyhow::Result<Self> {
        let often = [("CSI_SNAPSHOT_EARLY_FREQUENT_POLLING", "true")];
        Self::start_with(plane, namespace, s3, (disabled, more), &often)
    }

    /// The same, and it looks for snapshots as often as it does where nobody says otherwise.
    ///
    /// # Errors
    /// As [`Velero::start`].
    pub fn start_unhurried(
        plane: &ControlPlane,
        namespace: &str,
        s3: &S3,
        more: &[&str],
    ) -> anyhow::Result<Self> {
        Self::start_with(plane, namespace, s3, (&[], more), &[])
    }

    fn start_with(
        plane: &ControlPlane,
        namespace: &str,
        s3: &S3,
        (disabled, more): (&[&str], &[&str]),
        env: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let [program, plugin] = binaries::get(["velero", "velero-plugin-for-aws"])?;
        let turn = take_turn()?;
        let folder = plane.folder().join(format!("velero-{namespace}"));
        let (plugins, scratch) = (folder.join("plugins"), folder.join("tmp"));
        for wanted in [&plugins, &scratch] {
            std::fs::create_dir_all(wanted)?;
        }
        let link = plugins.join("velero-plugin-for-aws");
        if !link.exists() {
            // A copy: Velero skips links.
            std::fs::copy(&plugin, &link)?;
        }
        let credentials = folder.join("credentials");
        std::fs::write(&credentials, s3.keys.file())?;
        let kubeconfig = plane.service_account_kubeconfig(namespace, "velero")?;
        let mut command = in_own_session(&program);
        command.args(["server", "--namespace", namespace, "--plugin-dir"]).arg(&plugins);
        command.arg("--kubeconfig").arg(&kubeconfig);
        for flag in ["--metrics-address", "--profiler-address"] {
            command.args([flag, &format!("127.0.0.1:{}", port::free()?)]);
        }
        if !disabled.is_empty() {
            command.args(["--disable-controllers", &disabled.join(",")]);
        }
        command.args(more).envs(env.iter().copied());
        command.env("AWS_SHARED_CREDENTIALS_FILE", &credentials).env("HOME", &folder);
        // It keeps credentials and archives there, under fixed names.
        command.env("TMPDIR", &scratch).env("VELERO_SCRATCH_DIR", &scratch);
        let of_default = ["backupstoragelocations", "default", "--namespace", namespace];
        let patch = |patch: Value| {
            let patch = patch.to_string();
            let args = [&["patch"][..], &of_default, &["--type=merge", "-p", &patch]].concat();
            plane.kubectl().run(&args)
        };
        // The look that is waited for has to do: it would fail whatever it picks up after a later
        // one that failed.
        patch(json!({"spec": {"validationFrequency": "24h"}, "status": {"lastValidationTime": null}}))?;
        let process = Process::start("velero server", command, &folder.join("velero.log"))?;
        let mut started =
            Self { process, program, namespace: namespace.to_owned(), kubeconfig, folder, turn };
        let what = "stock Velero to find its location Available";
        let mut starts = 1;
        wait_for(what, PATIENCE, || {
            if starts < STARTS && started.process.ended()?.is_some() {
                starts += 1;
                started.end_group(Signal::SIGKILL);
                started.process.restart()?;
            }
            started.process.ensure_runs()?;
            let args = [&["get"][..], &of_default, &["-o", "json"]].concat();
            let location: Value = serde_json::from_str(&plane.kubectl().run(&args)?)?;
            let status = &location["status"];
            let has_looked = !status["lastValidationTime"].is_null();
            if status["phase"] == "Unavailable" && has_looked {
                // It soon checks a location that it has never checked.
                patch(json!({"status": {"lastValidationTime": null}}))?;
            }
            Ok((status["phase"] == "Available" && has_looked).then_some(()))
        })
        .with_context(|| log::tail(started.process.log(), 20))?;
        Ok(started)
    }

    /// `velero ARGS` as people run it; what it prints.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(args).args(["--namespace", &self.namespace, "--kubeconfig"]).arg(&self.kubeconfig);
        command.env("HOME", &self.folder).env("TMPDIR", self.folder.join("tmp")).stdin(Stdio::null());
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy);
        }
        let output = command.output().with_context(|| format!("failed to run {}", self.program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "velero {} failed:\n{said}{complained}", args.join(" "));
        Ok(said)
    }

    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Its plugins are in its group, and would outlive it.
    fn end_group(&self, signal: Signal) {
        if let Ok(group) = self.process.pid() {
            let _ = killpg(group, signal);
        }
    }
}

impl Drop for Velero {
    fn drop(&mut self) {
        self.end_group(Signal::SIGTERM);
        let _ = self.process.terminate(Duration::from_secs(10));
        self.end_group(Signal::SIGKILL);
        // The next server takes its port.
        let _ = self.process.kill();
        let _ = self.turn.unlock();
    }
}

/// It excludes processes and threads alike, because every turn opens the file again.
fn take_turn() -> anyhow::Result<File> {
    let file = binaries::lock_file("stock-velero")?;
    wait_for(times::TURN, TURN, || match file.try_lock() {
        Ok(()) => Ok(Some(())),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error.into()),
    })?;
    // The last one may take a moment to let go of it.
    let free = wait_for("port 8080", PATIENCE, || {
        Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).ok().map(drop))
    });
    if free.is_err() {
        bail!("somebody listens on port 8080, which stock Velero takes whatever it is told");
    }
    Ok(file)
}
