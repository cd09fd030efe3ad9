//! The programs of a control plane and their flags.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::Scope;
use super::keys::Keys;
use crate::process::in_own_session;
pub use crate::wait::PATIENCE;
use crate::{Process, port, wait_for};

/// Those that Deployments, DaemonSets, Services, service accounts, namespaces and claims need, by
/// the names that the flag has.
const CONTROLLERS: [&str; 12] = [
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "endpointslice-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "disruption-controller",
];

/// [`in_own_session`] for a Go program that may take more memory than usual: collecting garbage is
/// a good part of what it does.
fn generous(program: &Path) -> Command {
    let mut command = in_own_session(program);
    command.env("GOGC", "400");
    command
}

/// Gives its URL, too. It serves only clients with a certificate of our CA, because other users of
/// this machine reach its port, and what is in it runs as us.
///
/// # Errors
/// When it does not come up.
pub fn start_etcd(program: &Path, folder: &Path, keys: &Keys) -> anyhow::Result<(Process, String)> {
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    let (process, [client, _]) = on_free_ports(loopback, |[client, peer]| {
        let url = |port: u16| format!("https://127.0.0.1:{port}");
        let mut command = generous(program);
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
        for of in ["", "peer-"] {
            command.args([
                keys.flag(&format!("--{of}cert-file"), "server.crt"),
                keys.flag(&format!("--{of}key-file"), "server.key"),
                keys.flag(&format!("--{of}trusted-ca-file"), "ca.crt"),
                format!("--{of}client-cert-auth"),
            ]);
        }
        Process::start("etcd", command, &folder.join("etcd.log"))
    })?;
    // Its certificate has that name.
    Ok((process, format!("https://localhost:{client}")))
}

/// Gives where it answers, too.
///
/// # Errors
/// When it does not come up.
pub fn start_api_server(
    program: &Path,
    folder: &Path,
    keys: &Keys,
    etcd: &str,
    address: IpAddr,
    scope: Scope,
) -> anyhow::Result<(Process, SocketAddr)> {
    let admission = configure_admission(folder, keys)?;
    let (process, [port]) = on_free_ports(address, |[port]| {
        let mut command = generous(program);
        command.arg(format!("--admission-control-config-file={}", admission.display()));
        command.args([format!("--bind-address={address}"), format!("--advertise-address={address}")]);
        command.arg("--endpoint-reconciler-type=none");
        command.args([format!("--secure-port={port}"), format!("--etcd-servers={etcd}")]);
        command.args([
            "--authorization-mode=RBAC",
            "--allow-privileged",
            "--service-cluster-ip-range=10.0.0.0/24",
        ]);
        command.arg("--service-account-issuer=https://kubernetes.default.svc");
        match scope {
            // Without kube-controller-manager no controller creates the accounts that the plugin
            // would put on pods.
            Scope::Objects => command.arg("--disable-admission-plugins=ServiceAccount"),
            Scope::ObjectsWithoutPolicies => {
                let plugins = "ServiceAccount,ValidatingAdmissionPolicy";
                let group = "admissionregistration.k8s.io/v1";
                let off = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
                let off = off.map(|resource| format!("{group}/{resource}=false"));
                command.arg(format!("--disable-admission-plugins={plugins}"));
                command.arg(format!("--runtime-config={}", off.join(",")))
            }
            // No kube-proxy makes a Service's address lead anywhere: webhooks are called at the
            // pods' own.
            Scope::Pods => command.arg("--enable-aggregator-routing=true"),
        };
        command.args([
            keys.flag("--etcd-cafile", "ca.crt"),
            keys.flag("--etcd-certfile", "admin.crt"),
            keys.flag("--etcd-keyfile", "admin.key"),
        ]);
        command.arg(keys.flag("--client-ca-file", "ca.crt"));
        command.args([
            keys.flag("--tls-cert-file", "server.crt"),
            keys.flag("--tls-private-key-file", "server.key"),
        ]);
        command.arg(keys.flag("--service-account-key-file", "service-accounts.crt"));
        command.arg(keys.flag("--service-account-signing-key-file", "service-accounts.key"));
        Process::start("kube-apiserver", command, &folder.join("kube-apiserver.log"))
    })?;
    Ok((process, SocketAddr::new(address, port)))
}

/// Says which certificate the API server shows to webhooks that ask for one.
fn configure_admission(folder: &Path, keys: &Keys) -> anyhow::Result<PathBuf> {
    let user = json!({
        "client-certificate": keys.path("webhook-caller.crt"),
        "client-key": keys.path("webhook-caller.key"),
    });
    let users = json!({"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]});
    let kubeconfig = folder.join("webhook-clients.kubeconfig");
    std::fs::write(&kubeconfig, users.to_string())?;
    let of = |plugin: &str| {
        json!({"name": plugin, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": kubeconfig,
        }})
    };
    let plugins = ["MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"].map(of);
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": plugins,
    });
    let file = folder.join("admission.json");
    std::fs::write(&file, configuration.to_string())?;
    Ok(file)
}

/// # Errors
/// When it cannot be started.
pub fn start_controllers(
    program: &Path,
    folder: &Path,
    keys: &Keys,
    kubeconfig: &Path,
) -> anyhow::Result<Process> {
    let mut command = generous(program);
    command.arg(format!("--kubeconfig={}", kubeconfig.display()));
    command.arg(format!("--controllers={}", CONTROLLERS.join(",")));
    command.args(["--leader-elect=false", "--secure-port=0", "--kube-api-qps=200", "--kube-api-burst=400"]);
    command.arg(keys.flag("--root-ca-file", "ca.crt"));
    command.arg(keys.flag("--service-account-private-key-file", "service-accounts.key"));
    Process::start("kube-controller-manager", command, &folder.join("kube-controller-manager.log"))
}

/// # Errors
/// When it cannot be started.
pub fn start_scheduler(program: &Path, folder: &Path, kubeconfig: &Path) -> anyhow::Result<Process> {
    let mut command = generous(program);
    command.arg(format!("--kubeconfig={}", kubeconfig.display()));
    command.args(["--leader-elect=false", "--secure-port=0"]);
    Process::start("kube-scheduler", command, &folder.join("kube-scheduler.log"))
}

/// Starts a program and waits until it listens on the first of its ports; on other ports, if
/// another program took one meanwhile.
fn on_free_ports<const N: usize>(
    address: IpAddr,
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
            Ok(TcpStream::connect((address, first)).ok().map(drop))
        });
        tries -= 1;
        match listens {
            Ok(()) => return Ok((process, ports)),
            Err(error) if tries > 0 && error.to_string().contains("address already in use") => {}
            Err(error) => return Err(error),
        }
    }
}
