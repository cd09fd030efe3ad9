//! The queue alone: this process plays a Velero whose runs take no time.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::velero::{Backup, BackupPhase};
use berth_test_support::backup::backup_of;
use berth_test_support::control_plane::client;
use berth_test_support::peers::install_definitions;
use berth_test_support::{Berth, ControlPlane, Options};
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::observer::{self, Change, Observer};
use crate::report::{Aim, Report, quantile};
use crate::system;

const SLOTS: u16 = 5;
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Clone, Copy)]
enum Shape {
    /// Each of a namespace of its own.
    Distinct,
    /// One to three of a tenth as many namespaces as there are backups.
    Overlapping,
}

impl Shape {
    fn namespaces(self, i: usize, size: usize) -> Vec<String> {
        let name = |n: usize| format!("q-{n}");
        // Scattered enough, and the same at every run.
        let scattered = |k: usize| (i * 4 + k).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        match self {
            Self::Distinct => vec![name(i)],
            Self::Overlapping => (0..=i % 3).map(|k| name(scattered(k) % (size / 10).max(1))).collect(),
        }
    }
}

pub fn measure(
    runtime: &Runtime,
    program: &Path,
    sizes: &[usize],
    report: &mut Report,
) -> anyhow::Result<()> {
    eprintln!("The queue, with runs that take no time:");
    for size in sizes {
        for (shape, text) in [(Shape::Distinct, "distinct"), (Shape::Overlapping, "overlapping")] {
            let part = format!("queue, {size} {text}");
            let plane = ControlPlane::start()?;
            plane.define()?;
            install_definitions(&plane)?;
            one(runtime, program, plane, *size, shape, &part, report)?;
        }
    }
    Ok(())
}

fn one(
    runtime: &Runtime,
    program: &Path,
    plane: ControlPlane,
    size: usize,
    shape: Shape,
    part: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let namespace = "velero";
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "velero", "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "velero"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "velero", "namespace": namespace}],
        },
        {
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
            "metadata": {"name": "default", "namespace": namespace},
            "spec": {"provider": "berth.dev/filesystem", "default": true, "objectStorage": {"bucket": "none"},
                     "config": {"path": "/"}},
        },
    ]});
    plane.kubectl().run_with(&["apply", "--server-side", "-f", "-"], &objects.to_string())?;
    let options =
        Options { concurrent_backups: SLOTS, beside_velero: true, ..Options::new(program, namespace) };
    let mut berth = Berth::start(plane, options)?;
    // All of them wait before the first one starts.
    berth.controller.process.kill()?;
    let kubeconfig = berth.plane().service_account_kubeconfig(namespace, "velero")?;
    let run = async {
        let (admin, velero) = (berth.plane().client().await?, client(&kubeconfig).await?);
        let backups = (0..size).map(|i| {
            let namespaces = shape.namespaces(i, size);
            let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
            backup_of(&format!("b-{i}"), &namespaces)
        });
        let creating = Instant::now();
        observer::create(&admin, namespace, backups.collect()).await?;
        eprintln!("  created in {:.0} s", creating.elapsed().as_secs_f64());
        let line = line(&admin, namespace).await?;
        let before = observer::writes(&admin, "backups").await?;
        let (ready, play) = mpsc::unbounded_channel();
        let playing = tokio::spawn(play_velero(velero.clone(), namespace, play));
        let answering = tokio::spawn(answer_status_requests(velero, namespace));
        let mut observer = Observer::start(&admin, namespace, move |change| {
            if change.phase == BackupPhase::ReadyToStart {
                let _ = ready.send(change.name.clone());
            }
        })
        .await?;
        berth.controller.process.restart()?;
        observer.wait_ended(size, LONGEST).await?;
        let changes = observer.changes();
        drop(observer);
        answering.abort();
        playing.await??;
        let writes = observer::writes(&admin, "backups").await? - before;
        anyhow::Ok((line, changes, writes))
    };
    let (line, changes, writes) = runtime.block_on(run)?;
    let cpu = system::cpu_seconds(berth.controller.process.id())?;
    let peak = system::peak_mib(berth.controller.process.id())?;
    let starts: Vec<&Change> = changes.iter().filter(|c| c.phase == BackupPhase::ReadyToStart).collect();
    let (first, last) =
        (starts.first().context("nothing started")?.at, starts.last().context("nothing started")?.at);
    let rate = starts.len() as f64 / (last - first).as_secs_f64();
    report.add(part, "dequeues", rate, "/s", Aim::AtLeast(200.0));
    // One of them is that of the player.
    let per_dequeue = (writes - size as f64) / size as f64;
    report.add(part, "writes of the queue", per_dequeue, "per dequeue", Aim::AtMost(3.0));
    report.add(part, "CPU of the controller", cpu * 1000.0 / size as f64, "ms per dequeue", Aim::None);
    report.add(part, "peak memory of the controller", peak, "MiB", Aim::None);
    if matches!(shape, Shape::Distinct) {
        let latencies = latencies(&changes);
        report.add(part, "free slot to next start, p50", quantile(&latencies, 0.5), "ms", Aim::None);
        report.add(part, "free slot to next start, p99", quantile(&latencies, 0.99), "ms", Aim::AtMost(50.0));
    }
    report.add(part, "started out of order", out_of_order(&line, &starts) as f64, "", Aim::AtMost(0.0));
    Ok(())
}

/// Names in queue order, with their namespaces.
async fn line(client: &Client, namespace: &str) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    let mut backups = api.list(&ListParams::default()).await?.items;
    let place = |b: &Backup| {
        let position = b.status.as_ref().and_then(|s| s.queue_position).unwrap_or(0);
        (position, b.annotations().get("berth.dev/enqueued-at").cloned())
    };
    backups.sort_by_cached_key(place);
    let namespaces = |b: &Backup| b.spec.included_namespaces.clone().unwrap_or_default();
    Ok(backups.iter().map(|b| (b.name_any(), namespaces(b))).collect())
}

/// Of the backups of each namespace, how many started before one that stood ahead of them?
fn out_of_order(line: &[(String, Vec<String>)], starts: &[&Change]) -> usize {
    let mut waiting: BTreeMap<&str, VecDeque<&str>> = BTreeMap::new();
    let namespaces: BTreeMap<&str, &Vec<String>> = line.iter().map(|(name, n)| (name.as_str(), n)).collect();
    for (name, namespaces) in line {
        for namespace in namespaces {
            waiting.entry(namespace).or_default().push_back(name);
        }
    }
    let mut broken = 0;
    for start in starts {
        for namespace in namespaces.get(start.name.as_str()).into_iter().flat_map(|n| n.iter()) {
            let line = waiting.entry(namespace).or_default();
            broken += usize::from(line.front() != Some(&start.name.as_str()));
            line.retain(|name| *name != start.name);
        }
    }
    broken
}

/// From each end to the start that took the slot over, in milliseconds.
fn latencies(changes: &[Change]) -> Vec<f64> {
    let mut free: VecDeque<Instant> = VecDeque::new();
    let mut found = Vec::new();
    for change in changes {
        match change.phase {
            BackupPhase::ReadyToStart => {
                found.extend(free.pop_front().map(|since| (change.at - since).as_secs_f64() * 1000.0));
            }
            phase if phase.is_final() => free.push_back(change.at),
            _ => {}
        }
    }
    found
}

/// Ends whatever is ReadyToStart.
async fn play_velero(
    client: Client,
    namespace: &str,
    mut ready: mpsc::UnboundedReceiver<String>,
) -> anyhow::Result<()> {
    let api: Api<Backup> = Api::namespaced(client, namespace);
    let mut writes = tokio::task::JoinSet::new();
    while let Some(name) = ready.recv().await {
        let api = api.clone();
        writes.spawn(async move {
            let patch = Patch::Merge(json!({"status": {"phase": "Completed"}}));
            api.patch(&name, &PatchParams::default(), &patch).await
        });
        while let Some(written) = writes.try_join_next() {
            written??;
        }
    }
    while let Some(written) = writes.join_next().await {
        written??;
    }
    Ok(())
}

/// As a Velero server does for `velero version`.
async fn answer_status_requests(client: Client, namespace: &str) -> anyhow::Result<()> {
    let kind = GroupVersionKind::gvk("velero.io", "v1", "ServerStatusRequest");
    let resource = ApiResource::from_gvk_with_plural(&kind, "serverstatusrequests");
    let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
    let mut asked =
        std::pin::pin!(watcher(api.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(asked) = asked.next().await {
        let asked = asked?;
        if asked.data.get("status").and_then(|status| status.get("phase")).and_then(Value::as_str).is_none() {
            let status = json!({"status": {"phase": "Processed", "serverVersion": "v1.18.3"}});
            api.patch(&asked.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
        }
    }
    ensure!(false, "the watch of status requests ended");
    Ok(())
}
