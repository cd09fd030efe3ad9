//! A kubelet that really runs commands: kwok, for one node. It does nothing else for the node's
//! pods. What is run in a pod of that node runs on this machine, as us.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::ensure;
use serde_json::{Value, json};

use super::process::in_own_session;
use super::{ControlPlane, Process, binaries, http, log, port, wait_for};
use crate::wait::PATIENCE;

pub struct Kwok {
    pub process: Process,
    node: String,
    /// kwok asks nobody who he is, and runs commands as us in whatever pod the address names. It
    /// does so only for containers of these names, which nobody else on this machine can guess.
    containers: [String; 2],
}

impl Kwok {
    /// With a Node of that name.
    ///
    /// # Errors
    /// When it cannot be found, built or started, or the API server refuses the Node.
    pub fn start(plane: &ControlPlane, node: &str) -> anyhow::Result<Self> {
        let [program] = binaries::get(["kwok"])?;
        let folder = plane.folder().join(format!("kwok-{node}"));
        std::fs::create_dir_all(&folder)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port::free()?));
        let status = json!({
            "addresses": [{"type": "InternalIP", "address": address.ip()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}},
        });
        let object =
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "status": status});
        let made = plane.kubectl().create("default", &[object])?;
        ensure!(made.status.success(), "{}", made.stderr);
        // It wants to have something to do for nodes or pods: this is for none.
        let stage = json!({
            "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": "nothing"},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": "Node"},
                "selector": {"matchLabels": {"berth.test/nobody": "has-this"}},
                "next": {},
            },
        });
        let secret = secret()?;
        let containers = ["main", "side"].map(|name| format!("{name}-{secret}"));
        let exec = json!({
            "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "ClusterExec", "metadata": {"name": "everywhere"},
            "spec": {"execs": [{"containers": containers, "local": {"workDir": folder}}]},
        });
        let config = folder.join("kwok.yaml");
        std::fs::write(&config, format!("{stage}\n---\n{exec}\n"))?;
        let pki = plane.folder().join("pki");
        let mut command = in_own_session(&program);
        command.arg("--config").arg(&config).arg("--kubeconfig").arg(plane.kubeconfig());
        command.arg(format!("--manage-single-node={node}")).arg("--node-lease-duration-seconds=0");
        command.arg(format!("--server-address={address}"));
        command.arg(format!("--tls-cert-file={}", pki.join("server.crt").display()));
        command.arg(format!("--tls-private-key-file={}", pki.join("server.key").display()));
        command.env("HOME", &folder);
        let process = Process::start("kwok", command, &folder.join("kwok.log"))?;
        let mut started = Self { process, node: node.to_owned(), containers };
        wait_for("kwok to answer", PATIENCE, || {
            started.process.ensure_runs()?;
            Ok(http::get(address, "/healthz").is_ok_and(|(status, _)| status == 200).then_some(()))
        })?;
        Ok(started)
    }

    /// A pod of this node with two containers. It is as if it ran.
    pub fn pod(&self, namespace: &str, name: &str, annotations: &Value) -> Value {
        let containers =
            self.containers.each_ref().map(|name| json!({"name": name, "image": "example.com/nothing"}));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {"nodeName": self.node, "containers": containers},
        })
    }

    /// The name of the second container of each pod.
    pub fn side(&self) -> &str {
        &self.containers[1]
    }
}

impl Drop for Kwok {
    fn drop(&mut self) {
        log::report_if_panicking(&[self.process.log().to_owned()]);
    }
}

fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
