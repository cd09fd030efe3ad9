//! A cluster in which pods run, with berth as `berth install` brings it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;
use berth_test_support::pods::{Cluster, many};

pub const NAMESPACE: &str = "velero";

/// Without berth.
///
/// # Errors
/// As [`Cluster::start`].
pub fn cluster(berth: &Path, nodes: usize) -> anyhow::Result<Cluster> {
    let image = concat!("berth:", env!("CARGO_PKG_VERSION")).to_owned();
    Cluster::start_with_nodes(BTreeMap::from([(image, berth.to_owned())]), many(nodes))
}

/// # Errors
/// When it fails, with what it said.
pub fn install(cluster: &Cluster, berth: &Path, flag: &str) -> anyhow::Result<()> {
    let mut command = Command::new(berth);
    command.args(["install", flag, "--kubeconfig"]).arg(cluster.plane().kubeconfig());
    // A busy machine takes more than the two seconds now and then, and whoever asks for a place
    // meanwhile would have it without being counted.
    command.env("BERTH_WEBHOOK_TIMEOUT", "30s");
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "berth install {flag}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
