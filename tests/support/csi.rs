//! Volumes, snapshots and clones as a CSI driver makes them: a driver of the tests, and the real
//! sidecars and controller beside it.
//!
//! All are programs of this machine rather than pods: they talk to the API server and to one
//! another, not to nodes. A volume is a folder of this machine, which pods of a [`Cluster`] that
//! claim it have in their file system.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::pods::Cluster;
use super::process::in_own_session;
use super::{ControlPlane, Process, binaries, log, wait_for};
use crate::wait::PATIENCE;

pub const DRIVER: &str = "csi.berth.test";
/// A StorageClass whose volumes are made at once, and reached from everywhere.
pub const IMMEDIATE: &str = "immediate";
/// A StorageClass whose volumes are made once a pod wants them, and reached from the zone of its
/// node only.
pub const ZONAL: &str = "zonal";
pub const SNAPSHOT_CLASS: &str = "snapshots";
/// The VolumeGroupSnapshotClass of the driver.
pub const GROUP_CLASS: &str = "groups";
const ZONE: &str = "topology.kubernetes.io/zone";

pub struct Csi {
    /// Those that make use of the driver first.
    pub processes: Vec<Process>,
}

impl Csi {
    /// Driver, sidecars and controller, and the classes that lead to them.
    ///
    /// # Errors
    /// When a program is missing or ends, or the API server refuses an object.
    pub fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let [driver, provisioner, snapshotter, controller] =
            binaries::get(["csi-driver", "csi-provisioner", "csi-snapshotter", "snapshot-controller"])?;
        let plane = cluster.plane();
        define_snapshots(plane)?;
        plane.apply(objects(cluster))?;
        let folder = plane.folder().join("csi");
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let mut command = in_own_session(&driver);
        command.arg("-socket").arg(&socket).arg("-folder").arg(folder.join("kept")).args(["-name", DRIVER]);
        let mut driver = Process::start("csi-driver", command, &folder.join("csi-driver.log"))?;
        wait_for("the CSI driver to listen", PATIENCE, || {
            driver.ensure_runs()?;
            Ok(socket.exists().then_some(()))
        })?;
        let at_driver = format!("--csi-address={}", socket.display());
        let start = |name: &str, program: &Path, args: &[&str]| {
            let mut command = in_own_session(program);
            command.arg(format!("--kubeconfig={}", plane.kubeconfig().display()));
            // As many as there may be: at the usual limits thirty snapshots take a minute.
            command.args(["--kube-api-qps=200", "--kube-api-burst=400"]);
            // Two of them that write the same object: the slower one would be at it again after a
            // second.
            command.arg("--retry-interval-start=100ms").args(args);
            Process::start(name, command, &folder.join(format!("{name}.log")))
        };
        let processes = vec![
            start("csi-provisioner", &provisioner, &[&at_driver])?,
            start("csi-snapshotter", &snapshotter, &[&at_driver])?,
            start("snapshot-controller", &controller, &[])?,
            driver,
        ];
        let mut started = Self { processes };
        started.ensure_run()?;
        Ok(started)
    }

    /// # Errors
    /// When one has ended: with the end of its log.
    pub fn ensure_run(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::ensure_runs)
    }

    /// What they wrote.
    pub fn logs(&self) -> Vec<PathBuf> {
        self.processes.iter().map(|process| process.log().to_owned()).collect()
    }
}

impl Drop for Csi {
    fn drop(&mut self) {
        log::report_if_panicking(&self.logs());
    }
}

/// The kinds VolumeSnapshot and VolumeSnapshotContent, and their relatives.
///
/// # Errors
/// When the API server refuses one.
pub fn define_snapshots(plane: &ControlPlane) -> anyhow::Result<()> {
    let [folder] = binaries::get(["snapshot-crds"])?;
    let folder = folder.display().to_string();
    plane.kubectl().run(&["apply", "--server-side", "--force-conflicts", "-f", &folder])?;
    plane.kubectl().await_definitions()
}

/// A StorageClass.
pub fn class(name: &str, provisioner: &str, mode: &str, parameters: &Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "parameters": parameters,
        "volumeBindingMode": mode,
        "reclaimPolicy": "Delete",
    })
}

fn objects(cluster: &Cluster) -> Vec<Value> {
    let mut objects = vec![
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": false},
        }),
        class(IMMEDIATE, DRIVER, "Immediate", &json!({})),
        class(ZONAL, DRIVER, "WaitForFirstConsumer", &json!({"zonal": "true"})),
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": SNAPSHOT_CLASS, "labels": {"velero.io/csi-volumesnapshot-class": "true"}},
            "driver": DRIVER,
            "deletionPolicy": "Delete",
        }),
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2",
            "kind": "VolumeGroupSnapshotClass",
            "metadata": {
                "name": GROUP_CLASS, "labels": {"velero.io/csi-volumegroupsnapshot-class": "true"},
            },
            "driver": DRIVER,
            "deletionPolicy": "Delete",
        }),
    ];
    // What a kubelet tells of the driver on its node.
    objects.extend(cluster.nodes().iter().map(|node| {
        json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSINode",
            "metadata": {"name": node.name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": node.name, "topologyKeys": [ZONE]}]},
        })
    }));
    objects
}

/// A claim of one mebibyte.
pub fn claim(namespace: &str, name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

/// Waits until the claim is bound; gives its volume.
///
/// # Errors
/// When it is not bound in time.
pub fn bound(plane: &ControlPlane, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let get =
        |args: &[&str]| -> anyhow::Result<Value> { Ok(serde_json::from_str(&plane.kubectl().run(args)?)?) };
    let volume = wait_for(&format!("claim {namespace}/{name} to be bound"), PATIENCE, || {
        let claim = get(&["get", "pvc", name, "--namespace", namespace, "-o", "json"])?;
        let is_bound = claim["status"]["phase"] == "Bound";
        Ok(claim["spec"]["volumeName"].as_str().filter(|_| is_bound).map(str::to_owned))
    })?;
    get(&["get", "pv", &volume, "-o", "json"])
}

/// The folder of this machine that a volume of the driver is.
///
/// # Errors
/// When it is none of the driver's.
pub fn folder(volume: &Value) -> anyhow::Result<PathBuf> {
    let folder = volume["spec"]["csi"]["volumeAttributes"]["berth.test/folder"].as_str();
    let folder = PathBuf::from(folder.context("the volume is none of the CSI driver's")?);
    ensure!(folder.is_dir(), "no {}", folder.display());
    Ok(folder)
}

/// Puts a file into a volume, as if some pod had.
///
/// # Errors
/// When it cannot be written.
pub fn write(volume: &Value, name: &str, text: &str) -> anyhow::Result<()> {
    Ok(std::fs::write(folder(volume)?.join(name), text)?)
}
