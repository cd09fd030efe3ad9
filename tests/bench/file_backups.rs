//! File-system backups of 20 pods on three nodes, by stock node-agents that read two volumes at a
//! time: with berth, and with a stock Velero, which takes one pod after another.
//!
//! The pods that would read the files are played, each for a second and a half, so this is the time
//! that each program lets the node-agents be idle. The repository of the namespace is there before:
//! a Velero server connects to it, also for berth.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_test_support::movers::{Burst, Pace};
use berth_test_support::node_agent;
use berth_test_support::peers::{self, S3, Velero};
use berth_test_support::pods::Cluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::backed_up::back_up;
use crate::installed::{NAMESPACE, cluster, install};
use crate::report::{Aim, Report};

const PART: &str = "files of 20 pods, 3 nodes, two at a time";
const APP: &str = "files";
const PODS: usize = 20;
const NODES: usize = 3;
const AT_ONCE: usize = 2;
const PACE: Pace = Pace { start: Duration::from_millis(500), run: Duration::from_secs(1) };
const VOLUME: &str = "data";
/// Label of the pods, which no kubelet runs.
const PLAYED: &str = "berth.test/bench";
/// Label of the pod that is backed up alone at first.
const FIRST: &str = "berth.test/first";
/// Of the Velero server beside berth, which runs the backups.
const BERTHS: [&str; 2] = ["backup-queue", "backup"];
const LONGEST: Duration = Duration::from_secs(1200);

pub fn measure(runtime: &Runtime, berth: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    let cluster = cluster(berth, NODES)?;
    let plane = cluster.plane();
    // Velero's definitions, and whoever plays the pods that read.
    let burst = Burst::new(&cluster, NAMESPACE, PACE)?;
    let s3 = S3::start(plane, "files")?;
    peers::prepare(plane, NAMESPACE, &s3, "")?;
    node_agent::start(&cluster, NAMESPACE, &json!({"loadConcurrency": {"globalConfig": AT_ONCE}}), &[])?;
    let client = runtime.block_on(plane.client())?;
    runtime.block_on(make_pods(&cluster, &client))?;
    let theirs = if alone {
        None
    } else {
        let velero = Velero::start(plane, NAMESPACE, &s3, &[], &[])?;
        let taken = take(runtime, &cluster, &client, "stock");
        Some(taken.with_context(|| berth_test_support::log::tail(velero.log(), 20))?)
    };
    install(&cluster, berth, "--adjust-velero")?;
    let velero = Velero::start(plane, NAMESPACE, &s3, &BERTHS, &[])?;
    let ours = take(runtime, &cluster, &client, "berth");
    let ours = ours.with_context(|| berth_test_support::log::tail(velero.log(), 20))?;
    burst.ensure_plays()?;
    report.add(PART, "berth: wall", ours, "s", Aim::None);
    if let Some(theirs) = theirs {
        report.add(PART, "stock: wall", theirs, "s", Aim::None);
        report.add(PART, "stock's time to berth's", theirs / ours, "×", Aim::AtLeast(4.0));
    }
    Ok(())
}

/// Pods with a volume each, by turns on the nodes, as if they ran.
async fn make_pods(cluster: &Cluster, client: &Client) -> anyhow::Result<()> {
    cluster.leave(PLAYED);
    let nodes = cluster.nodes().iter().cycle();
    let pods = (0..PODS).zip(nodes).map(|(number, node)| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name_of(number), "namespace": APP,
                "labels": {PLAYED: "", FIRST: if number == 0 { "yes" } else { "no" }},
                "annotations": {"backup.velero.io/backup-volumes": VOLUME},
            },
            "spec": {
                "nodeName": node.name,
                "containers": [{
                    "name": "app", "image": "none", "volumeMounts": [{"name": VOLUME, "mountPath": "/data"}],
                }],
                "volumes": [{"name": VOLUME, "emptyDir": {}}],
            },
        })
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}});
    cluster.plane().apply(std::iter::once(namespace).chain(pods).collect())?;
    let api: Api<Pod> = Api::namespaced(client.clone(), APP);
    for number in 0..PODS {
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        let pod = api.patch_status(&name_of(number), &PatchParams::default(), &running).await?;
        let folder = cluster.pods_folder().join(pod.uid().context("a pod without a UID")?);
        let volume = folder.join("volumes/kubernetes.io~empty-dir").join(VOLUME);
        std::fs::create_dir_all(&volume)?;
        std::fs::write(volume.join("file"), "small")?;
    }
    Ok(())
}

fn name_of(number: usize) -> String {
    format!("app-{number}")
}

/// How long the backup of all pods takes.
fn take(runtime: &Runtime, cluster: &Cluster, client: &Client, who: &str) -> anyhow::Result<f64> {
    let all = json!({"includedNamespaces": [APP]});
    let mut first = all.clone();
    first["labelSelector"] = json!({"matchLabels": {FIRST: "yes"}});
    runtime.block_on(back_up(client, NAMESPACE, &format!("{who}-first"), first, LONGEST))?;
    let name = format!("{who}-all");
    let seconds = runtime.block_on(back_up(client, NAMESPACE, &name, all, LONGEST))?.seconds;
    let label = format!("velero.io/backup-name={name}");
    let phases = "jsonpath={.items[*].status.phase}";
    let args = ["get", "podvolumebackups", "-n", NAMESPACE, "-l", &label, "-o", phases];
    let phases = cluster.kubectl().run(&args)?;
    let completed = phases.split_whitespace().filter(|phase| *phase == "Completed").count();
    ensure!(completed == PODS, "{name} has read {completed} volumes: {phases}");
    Ok(seconds)
}
