//! CSI volumes of one pod: how long their backup takes, and for how long hooks keep the pod frozen.
//!
//! The driver is played, and answers at once, so this is berth's own time. A stock Velero looks
//! whether a snapshot is there every five seconds, one volume after another; it is not here.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::snapshot::VolumeSnapshot;
use berth_api::velero::{Backup, BackupPhase};
use berth_test_support::csi::define_snapshots;
use berth_test_support::kwok::Kwok;
use berth_test_support::{Berth, ControlPlane, Options};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::report::{Aim, Report, median};

const NAMESPACE: &str = "velero";
const PART: &str = "CSI volumes of one pod";
pub const DRIVER: &str = "played.berth.test";
/// How many volumes the pod has, and within how many seconds it is to be backed up.
const COUNTS: [(usize, f64); 4] = [(1, 1.0), (5, 1.0), (10, 1.0), (50, 3.0)];
/// How many volumes the aim for the time between the hooks is for.
const FROZEN: usize = 10;
const RUNS: usize = 3;
const LONGEST: Duration = Duration::from_secs(300);

pub fn measure(runtime: &Runtime, program: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    let plane = ControlPlane::start()?;
    define_snapshots(&plane)?;
    plane.apply(vec![json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": "played"}, "driver": DRIVER, "deletionPolicy": "Delete",
    })])?;
    let berth = Berth::start(plane, Options::new(program, NAMESPACE))?;
    let kwok = Kwok::start(berth.plane(), "hooked")?;
    let client = runtime.block_on(berth.plane().client())?;
    let driver = runtime.spawn(play(client.clone()));
    for (count, aim) in COUNTS {
        let namespace = format!("volumes-{count}");
        berth
            .plane()
            .apply(vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})])?;
        runtime.block_on(make_claims(&client, &namespace, count))?;
        let [before, after] =
            ["before", "after"].map(|word| berth.plane().folder().join(format!("{namespace}-{word}")));
        let now_in =
            |file: &Path| json!(["/bin/sh", "-c", format!("date +%s%N > {}", file.display())]).to_string();
        let annotations = json!({
            "pre.hook.backup.velero.io/command": now_in(&before),
            "post.hook.backup.velero.io/command": now_in(&after),
        });
        let mut pod = kwok.pod(&namespace, "db", &annotations);
        let volume = |i: usize| json!({"name": claim(i), "persistentVolumeClaim": {"claimName": claim(i)}});
        pod["spec"]["volumes"] = (0..count).map(volume).collect();
        berth.plane().apply(vec![pod])?;
        let (mut seconds, mut frozen) = (Vec::new(), Vec::new());
        for run in 0..RUNS {
            let name = format!("{namespace}-{run}");
            seconds.push(runtime.block_on(back_up(&client, &name, &namespace, count))?);
            frozen.push((nanoseconds(&after)? - nanoseconds(&before)?) / 1e9);
        }
        report.add(PART, &format!("{count}: wall"), median(&seconds), "s", Aim::AtMost(aim));
        let aim = if count == FROZEN { Aim::AtMost(0.5) } else { Aim::None };
        report.add(PART, &format!("{count}: frozen"), median(&frozen), "s", aim);
    }
    driver.abort();
    Ok(())
}

fn claim(i: usize) -> String {
    format!("data-{i}")
}

/// The time that a hook has written.
fn nanoseconds(file: &Path) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(file)?;
    text.trim().parse().with_context(|| format!("{} holds no time: {text}", file.display()))
}

/// Claims that are bound to volumes of the driver, because nobody binds them here.
pub async fn make_claims(client: &Client, namespace: &str, count: usize) -> anyhow::Result<()> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    for name in (0..count).map(claim) {
        let volume = format!("{namespace}-{name}");
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "any", "csi": {"driver": DRIVER, "volumeHandle": volume},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace,
                    "name": name,
                },
            },
        });
        volumes.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "any", "volumeName": volume,
            },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(&bound)).await?;
    }
    Ok(())
}

async fn back_up(client: &Client, name: &str, namespace: &str, count: usize) -> anyhow::Result<f64> {
    let api: Api<Backup> = Api::namespaced(client.clone(), NAMESPACE);
    let backup: Backup = serde_json::from_value(json!({
        "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": name},
        "spec": {"includedNamespaces": [namespace], "csiSnapshotTimeout": "60s"},
    }))?;
    let started = Instant::now();
    api.create(&PostParams::default(), &backup).await?;
    let is_final = |backup: Option<&Backup>| backup.is_some_and(|backup| backup.phase().is_final());
    let ended = tokio::time::timeout(LONGEST, await_condition(api, name, is_final)).await;
    let seconds = started.elapsed().as_secs_f64();
    let status = ended.context("the backup takes too long")??.and_then(|backup| backup.status);
    let status = status.context("the Backup is gone")?;
    ensure!(status.phase == Some(BackupPhase::Completed), "{name} ended {status:?}");
    let completed = status.csi_volume_snapshots_completed;
    ensure!(completed == i64::try_from(count).ok(), "{name} has {completed:?} snapshots");
    Ok(seconds)
}

/// Snapshot controller and driver, for as long as this runs. What is kept in the storage is
/// nobody's business here.
pub async fn play(client: Client) {
    let snapshots: Api<VolumeSnapshot> = Api::all(client.clone());
    let mut events = pin!(watcher(snapshots, watcher::Config::default()));
    let mut seen = BTreeSet::new();
    while let Some(event) = events.next().await {
        if let Ok(watcher::Event::Apply(snapshot) | watcher::Event::InitApply(snapshot)) = event
            && seen.insert(snapshot.uid())
        {
            let client = client.clone();
            tokio::spawn(async move {
                if let Err(error) = take(&client, &snapshot).await {
                    eprintln!("the driver failed: {error:#}");
                }
            });
        }
    }
}

/// Takes a snapshot.
async fn take(client: &Client, snapshot: &VolumeSnapshot) -> anyhow::Result<()> {
    let uid = snapshot.uid().context("a snapshot without a UID")?;
    let namespace = snapshot.namespace().context("a snapshot without a namespace")?;
    let name = format!("snapcontent-{uid}");
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    let contents: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&kind));
    let snapshots: Api<VolumeSnapshot> = Api::namespaced(client.clone(), &namespace);
    let content: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name},
        "spec": {
            "deletionPolicy": "Delete", "driver": DRIVER, "source": {"volumeHandle": "h"},
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "name": snapshot.name_any(), "namespace": namespace, "uid": uid,
            },
        },
    }))?;
    contents.create(&PostParams::default(), &content).await?;
    let params = PatchParams::default();
    let cut = json!({"snapshotHandle": uid, "restoreSize": 1_073_741_824, "readyToUse": true});
    let told = |status: Value| Patch::Merge(json!({"status": status}));
    contents.patch_status(&name, &params, &told(cut)).await?;
    let ready = json!({"boundVolumeSnapshotContentName": name, "readyToUse": true});
    snapshots.patch_status(&snapshot.name_any(), &params, &told(ready)).await?;
    Ok(())
}
