//! CSI volumes of one pod: how long their backup takes, and for how long hooks keep the pod frozen,
//! with berth and with a stock Velero.
//!
//! The driver is played, and answers at once, so this is the time of the two programs. A stock
//! Velero looks whether a snapshot is there every five seconds, one volume after another.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::snapshot::VolumeSnapshot;
use berth_test_support::csi::{class, define_snapshots};
use berth_test_support::kwok::Kwok;
use berth_test_support::peers::{S3, Velero, install_definitions, prepare};
use berth_test_support::{Berth, ControlPlane, Options, log};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::backed_up::{BackedUp, back_up};
use crate::report::{Aim, Report, median};
use crate::stock;

const NAMESPACE: &str = "velero";
/// Of the stock Velero.
const STOCK: &str = "stock";
const PART: &str = "CSI volumes of one pod";
pub const DRIVER: &str = "played.berth.test";
/// By its provisioner a stock Velero finds the VolumeSnapshotClass.
const CLASS: &str = "any";
/// How many volumes the pod has, and within how many seconds it is to be backed up.
const COUNTS: [(usize, f64); 4] = [(1, 1.0), (5, 1.0), (10, 1.0), (50, 3.0)];
/// How many volumes the aim for the time between the hooks is for.
const FROZEN: usize = 10;
/// With berth. With a stock Velero, which takes minutes, there is one.
const RUNS: usize = 3;
/// Of a stock Velero with fifty volumes, on a slow machine.
const LONGEST: Duration = Duration::from_secs(900);

/// Seconds.
#[derive(Clone, Copy)]
struct Taken {
    wall: f64,
    frozen: f64,
}

/// A pod with so many volumes, whose hooks write when they run.
struct Application {
    namespace: String,
    count: usize,
    before: PathBuf,
    after: PathBuf,
}

pub fn measure(runtime: &Runtime, program: &Path, alone: bool, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("{PART}:");
    if !alone {
        stock::find()?;
    }
    let plane = ControlPlane::start()?;
    define_snapshots(&plane)?;
    plane.apply(vec![
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": "played"}, "driver": DRIVER, "deletionPolicy": "Delete",
        }),
        class(CLASS, DRIVER, "Immediate", &json!({})),
    ])?;
    let berth = Berth::start(plane, Options::new(program, NAMESPACE))?;
    let kwok = Kwok::start(berth.plane(), "hooked")?;
    let client = runtime.block_on(berth.plane().client())?;
    let driver = runtime.spawn(play(client.clone()));
    let mut ours = Vec::new();
    for (count, aim) in COUNTS {
        let application = Application::create(runtime, &client, berth.plane(), &kwok, count)?;
        let runs = (0..RUNS).map(|run| {
            let name = format!("{}-{run}", application.namespace);
            application.back_up(runtime, &client, NAMESPACE, &name)
        });
        let runs = runs.collect::<anyhow::Result<Vec<Taken>>>()?;
        let middle = |of: fn(&Taken) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>());
        let taken = Taken { wall: middle(|run| run.wall), frozen: middle(|run| run.frozen) };
        report.add(PART, &format!("{count}: wall"), taken.wall, "s", Aim::AtMost(aim));
        let aim = if count == FROZEN { Aim::AtMost(0.5) } else { Aim::None };
        report.add(PART, &format!("{count}: frozen"), taken.frozen, "s", aim);
        ours.push((application, taken));
    }
    if !alone {
        beside(runtime, &client, berth.plane(), &ours, report)?;
    }
    driver.abort();
    Ok(())
}

/// The same pods with a stock Velero.
fn beside(
    runtime: &Runtime,
    client: &Client,
    plane: &ControlPlane,
    ours: &[(Application, Taken)],
    report: &mut Report,
) -> anyhow::Result<()> {
    let s3 = S3::start(plane, "volumes")?;
    install_definitions(plane)?;
    prepare(plane, STOCK, &s3, STOCK)?;
    let velero = Velero::start_unhurried(plane, STOCK, &s3, &["--features=EnableCSI"])?;
    for (application, ours) in ours {
        let theirs = application.back_up(runtime, client, STOCK, &application.namespace);
        let theirs = theirs.with_context(|| log::tail(velero.log(), 20))?;
        let count = application.count;
        report.add(PART, &format!("{count}, stock: wall"), theirs.wall, "s", Aim::None);
        report.add(PART, &format!("{count}, stock: frozen"), theirs.frozen, "s", Aim::None);
        let [wall, frozen] = [theirs.wall / ours.wall, theirs.frozen / ours.frozen];
        report.add(PART, &format!("{count}: stock's wall to berth's"), wall, "×", Aim::None);
        report.add(PART, &format!("{count}: stock's frozen to berth's"), frozen, "×", Aim::None);
    }
    Ok(())
}

impl Application {
    fn create(
        runtime: &Runtime,
        client: &Client,
        plane: &ControlPlane,
        kwok: &Kwok,
        count: usize,
    ) -> anyhow::Result<Self> {
        let namespace = format!("volumes-{count}");
        plane
            .apply(vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})])?;
        runtime.block_on(make_claims(client, &namespace, count))?;
        let [before, after] =
            ["before", "after"].map(|word| plane.folder().join(format!("{namespace}-{word}")));
        let now_in =
            |file: &Path| json!(["/bin/sh", "-c", format!("date +%s%N > {}", file.display())]).to_string();
        let annotations = json!({
            "pre.hook.backup.velero.io/command": now_in(&before),
            "post.hook.backup.velero.io/command": now_in(&after),
        });
        let mut pod = kwok.pod(&namespace, "db", &annotations);
        let volume = |i: usize| json!({"name": claim(i), "persistentVolumeClaim": {"claimName": claim(i)}});
        pod["spec"]["volumes"] = (0..count).map(volume).collect();
        plane.apply(vec![pod])?;
        Ok(Self { namespace, count, before, after })
    }

    /// `at`: the namespace of the program that does it.
    fn back_up(&self, runtime: &Runtime, client: &Client, at: &str, name: &str) -> anyhow::Result<Taken> {
        let spec = json!({"includedNamespaces": [self.namespace], "csiSnapshotTimeout": "60s"});
        let BackedUp { seconds, status } = runtime.block_on(back_up(client, at, name, spec, LONGEST))?;
        // One that failed would be an error, and the backup not Completed.
        let attempted = status.csi_volume_snapshots_attempted;
        ensure!(attempted == i64::try_from(self.count).ok(), "{name} has {attempted:?} snapshots");
        let frozen = (nanoseconds(&self.after)? - nanoseconds(&self.before)?) / 1e9;
        Ok(Taken { wall: seconds, frozen })
    }
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
                "storageClassName": CLASS, "csi": {"driver": DRIVER, "volumeHandle": volume},
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
                "storageClassName": CLASS, "volumeName": volume,
            },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(&bound)).await?;
    }
    Ok(())
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
