//! The data of CSI volumes in a cluster without any Velero: berth takes snapshots, moves their data
//! into its repositories by pods of its own, and brings it back into new volumes. A real CSI driver
//! with its sidecars, a real scheduler and controllers.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use berth::install::pod_volumes::AGENT;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{assert_same, fill};
use crate::cluster::{NAMESPACE, images, make_location, run};
use crate::support::csi::{self, Csi, IMMEDIATE, ZONAL};
use crate::support::peers::S3;
use crate::support::pods::{Cluster, Node};
use crate::support::{PATIENCE, backup, wait_for};

const BASH: &str = "bash:test";
/// By which a claim gets no volume but the one that is restored for it.
const RESTORED: &str = "velero.io/dynamic-pv-restore";

struct Site {
    cluster: Cluster,
    _csi: Csi,
    s3: S3,
}

/// Two nodes with berth and its node agents, as they are installed.
fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let mut programs = images();
        programs.insert(BASH.to_owned(), PathBuf::from("/bin/bash"));
        let nodes = vec![Node::new("node-a", "zone-a"), Node::new("node-b", "zone-b")];
        let cluster = Cluster::start_with_nodes(programs, nodes).unwrap();
        let csi = Csi::start(&cluster).unwrap();
        run(&cluster, "berth install --pod-volumes");
        let s3 = make_location(&cluster);
        // A node of the tests has its folder of pods elsewhere.
        let pods = cluster.pods_folder();
        std::fs::create_dir_all(&pods).unwrap();
        let path =
            json!([{"op": "replace", "path": "/spec/template/spec/volumes/0/hostPath/path", "value": pods}]);
        let args = ["patch", "daemonset", AGENT, "-n", NAMESPACE, "--type=json", "-p", &path.to_string()];
        cluster.kubectl().run(&args).unwrap();
        wait_for("node agents on both nodes", PATIENCE, || {
            let agents = cluster.pods(NAMESPACE, &format!("app.kubernetes.io/name={AGENT}"))?;
            let runs = |pod: &&Pod| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
            };
            Ok((agents.iter().filter(runs).count() == 2).then_some(()))
        })
        .unwrap();
        Site { cluster, _csi: csi, s3 }
    })
}

pub fn create(cluster: &Cluster, namespace: &str, objects: &[Value]) {
    let made = cluster.kubectl().create(namespace, objects).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

pub fn wait_phase(cluster: &Cluster, kind: &str, name: &str, wanted: &str) -> Value {
    let args = ["get", kind, name, "--namespace", NAMESPACE, "-o", "json"];
    wait_for(&format!("{kind} {name} to be {wanted}"), PATIENCE, || {
        let object: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        assert!(!phase.contains("Failed"), "{:#}", object["status"]);
        Ok((phase == wanted).then_some(object))
    })
    .unwrap()
}

/// Backs up a namespace with one claim, moving its data. Its DataUpload.
fn moved(cluster: &Cluster, app: &str) -> Value {
    let spec = json!({"includedNamespaces": [app], "snapshotMoveData": true});
    create(cluster, NAMESPACE, &[backup(app, spec)]);
    let done = wait_phase(cluster, "backup.velero.io", app, "Completed");
    assert_eq!(done["status"]["backupItemOperationsCompleted"], 1, "{:#}", done["status"]);
    let label = format!("velero.io/backup-name={app}");
    let args = ["get", "datauploads", "-n", NAMESPACE, "-l", &label, "-o", "json"];
    let found: Value = serde_json::from_str(&cluster.kubectl().run(&args).unwrap()).unwrap();
    let [upload] = found["items"].as_array().unwrap().as_slice() else { panic!("{found:#}") };
    assert_eq!(upload["spec"]["datamover"], "berth", "{upload:#}");
    assert_eq!(upload["status"]["phase"], "Completed", "{upload:#}");
    upload.clone()
}

/// Nothing is left of what was made for movements of an application.
fn wait_cleared(cluster: &Cluster, app: &str) {
    wait_for("what was made for the movement to be gone", PATIENCE, || {
        let list = |args: &[&str]| cluster.kubectl().run(&[&["get"], args, &["-o", "name"]].concat());
        let label = ["-n", NAMESPACE, "-l", "berth.dev/made-for"];
        let mut left = list(&[&["pods,pvc,volumesnapshots"], &label[..]].concat())?;
        left += &list(&["volumesnapshotcontents", "-l", "berth.dev/made-for"])?;
        left += &list(&["volumesnapshots", "-n", app])?;
        Ok(left.trim().is_empty().then_some(()))
    })
    .unwrap();
}

/// A claim that only a restore gives a volume.
fn waiting_claim(app: &str, class: &str) -> Value {
    let mut claim = csi::claim(app, "data", class);
    claim["spec"]["selector"] = json!({"matchLabels": {RESTORED: app}});
    claim
}

fn download(app: &str, upload: &Value) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload", "metadata": {"name": app},
        "spec": {
            "datamover": "berth", "targetVolume": {"namespace": app, "pvc": "data", "pv": ""},
            "backupStorageLocation": "default", "sourceNamespace": app, "operationTimeout": "10m",
            "snapshotID": upload["status"]["snapshotID"],
        },
    })
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

#[test]
fn the_data_of_a_csi_volume_is_lost_and_back_without_any_velero() {
    const APP: &str = "bank";
    let Site { cluster, s3, .. } = site();
    let plane = cluster.plane();
    plane.apply(vec![namespace(APP), csi::claim(APP, "data", IMMEDIATE)]).unwrap();
    let source = csi::folder(&csi::bound(plane, APP, "data").unwrap()).unwrap();
    fill(&source);
    let kept = plane.folder().join("kept-bank");
    let copied = Command::new("cp").arg("--archive").arg(&source).arg(&kept).status().unwrap();
    assert!(copied.success());

    let upload = moved(cluster, APP);
    assert!(upload["status"]["progress"]["bytesDone"].as_i64().unwrap() > 9_000_000, "{upload:#}");
    assert!(s3.file("restic/bank/config").exists());
    wait_cleared(cluster, APP);

    cluster.kubectl().run(&["delete", "namespace", APP]).unwrap();
    plane.apply(vec![namespace(APP), waiting_claim(APP, IMMEDIATE)]).unwrap();
    create(cluster, NAMESPACE, &[download(APP, &upload)]);
    wait_phase(cluster, "datadownload.velero.io", APP, "Completed");
    let volume = csi::bound(plane, APP, "data").unwrap();
    assert_same(&kept, &csi::folder(&volume).unwrap());
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete", "{volume:#}");
    assert_eq!(volume["metadata"]["labels"][RESTORED], APP, "{volume:#}");
    wait_cleared(cluster, APP);

    // Who deletes the backup has the data forgotten.
    let snapshots = s3.file("restic/bank/snapshots");
    let count = || std::fs::read_dir(&snapshots).map_or(0, Iterator::count);
    assert_eq!(count(), 1);
    let deletion = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest", "metadata": {"name": "bank-1"},
        "spec": {"backupName": APP},
    });
    create(cluster, NAMESPACE, &[deletion]);
    wait_for("the backup to be deleted", PATIENCE, || {
        let path = "jsonpath={.items[*].status.errors}";
        let errors = cluster.kubectl().run(&["get", "deletebackuprequests", "-n", NAMESPACE, "-o", path])?;
        anyhow::ensure!(errors.is_empty(), "{errors}");
        Ok((!cluster.kubectl().backups(NAMESPACE)?.contains_key(APP)).then_some(()))
    })
    .unwrap();
    assert_eq!(count(), 0);
}

/// Uses the claim from the second node, and writes into it where there is nothing yet.
fn writer(app: &str, text: &str) -> Value {
    let script = format!("[[ -e /data/file ]] || echo {text} >/data/file; coproc read; wait");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "writer", "namespace": app},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "node-b"}, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "bash", "image": BASH, "args": ["-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    })
}

#[test]
fn data_is_moved_where_its_volume_is_and_comes_back_where_its_pod_is() {
    const APP: &str = "zoned";
    let Site { cluster, .. } = site();
    let plane = cluster.plane();
    let text = || {
        let volume = csi::bound(plane, APP, "data")?;
        anyhow::Ok(std::fs::read_to_string(csi::folder(&volume)?.join("file")).unwrap_or_default())
    };
    plane.apply(vec![namespace(APP), csi::claim(APP, "data", ZONAL), writer(APP, "first")]).unwrap();
    wait_for("the pod to have written", PATIENCE, || Ok((text()? == "first\n").then_some(()))).unwrap();

    let upload = moved(cluster, APP);
    let name = upload["metadata"]["name"].as_str().unwrap();
    let pods = cluster.pods_ever(NAMESPACE, "velero.io/data-upload");
    let pod = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).unwrap();
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("node-b"));
    wait_cleared(cluster, APP);

    cluster.kubectl().run(&["delete", "namespace", APP]).unwrap();
    plane.apply(vec![namespace(APP), waiting_claim(APP, ZONAL), writer(APP, "second")]).unwrap();
    create(cluster, NAMESPACE, &[download(APP, &upload)]);
    wait_phase(cluster, "datadownload.velero.io", APP, "Completed");
    let args = ["wait", "--for=condition=Ready", "pod/writer", "-n", APP, "--timeout=600s"];
    cluster.kubectl().run(&args).unwrap();
    assert_eq!(text().unwrap(), "first\n");
}
