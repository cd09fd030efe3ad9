//! Files of volumes where the node agents see nothing of their nodes (`--files-by-movers`): pods of
//! berth's, which see the volumes of one pod, read and restore them. The pods whose volumes these
//! are play along: the test makes their folders, as a kubelet would.

use std::path::PathBuf;
use std::process::Command;

use berth::install::pod_volumes::AGENT;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::alone::files_of;
use super::movements::{create, namespace, wait_phase};
use super::{assert_same, fill, pod_volume_backup, pod_volume_restore, read, waiting};
use crate::cluster::{NAMESPACE, images, make_location, run};
use crate::support::pods::{Cluster, Node};
use crate::support::{PATIENCE, backup, wait_for};

/// The node of the volumes; there is another one.
const AT: &str = "node-b";
/// Label of the pods that have the volumes.
const PLAYED: &str = "berth.test/played";
const BACKUPS: &str = "velero.io/pod-volume-backup";
const RESTORES: &str = "velero.io/pod-volume-restore";

/// Two nodes with berth and its node agents.
fn start() -> Cluster {
    let nodes = vec![Node::new("node-a", "zone-a"), Node::new(AT, "zone-b")];
    let cluster = Cluster::start_with_nodes(images(), nodes).unwrap();
    cluster.leave(PLAYED);
    // A node of the tests has its folder of pods elsewhere.
    std::fs::create_dir_all(cluster.pods_folder()).unwrap();
    cluster.add_args("controller", &[&format!("--host-pods-folder={}", cluster.pods_folder().display())]);
    run(&cluster, "berth install --pod-volumes --files-by-movers");
    wait_for("node agents on both nodes", PATIENCE, || {
        let agents = cluster.pods(NAMESPACE, &format!("app.kubernetes.io/name={AGENT}"))?;
        let runs =
            |pod: &&Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        Ok((agents.iter().filter(runs).count() == 2).then_some(()))
    })
    .unwrap();
    cluster
}

/// A pod with one volume. Its UID, and the folder of its volume.
fn play(cluster: &Cluster, namespace: &str, status: &Value) -> (String, PathBuf) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-0", "namespace": namespace, "labels": {PLAYED: "yes"},
            "annotations": {"backup.velero.io/backup-volumes": "data"},
        },
        "spec": {
            "nodeName": AT, "automountServiceAccountToken": false,
            "initContainers": [{"name": "restore-wait", "image": "w"}],
            "containers": [{
                "name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    });
    create(cluster, namespace, &[pod]);
    let status = json!({"status": status}).to_string();
    let args = ["patch", "pod", "web-0", "-n", namespace, "--subresource=status", "--type=merge", "--patch"];
    cluster.kubectl().run(&[&args[..], &[&status]].concat()).unwrap();
    let pod = read(cluster.plane(), namespace, "pod", "web-0");
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    let folder = cluster.pods_folder().join(&uid).join("volumes/kubernetes.io~empty-dir/data");
    std::fs::create_dir_all(&folder).unwrap();
    (uid, folder)
}

/// The one data mover pod with this label that there ever was.
fn mover(cluster: &Cluster, label: &str) -> Value {
    let pods = cluster.pods_ever(NAMESPACE, label);
    let [pod] = pods.as_slice() else { panic!("{pods:#?}") };
    json!(pod)
}

fn wait_cleared(cluster: &Cluster) {
    wait_for("no data mover pod to be left", PATIENCE, || {
        let args = ["get", "pods", "-n", NAMESPACE, "-l", "berth.dev/made-for", "-o", "name"];
        Ok(cluster.kubectl().run(&args)?.trim().is_empty().then_some(()))
    })
    .unwrap();
}

#[test]
fn pods_that_see_the_volumes_of_one_pod_read_and_restore_files_for_agents_that_see_nothing() {
    let cluster = start();
    let s3 = make_location(&cluster);
    let plane = cluster.plane();
    let _report = plane.report_on_panic();
    plane.apply(vec![namespace("shop"), namespace("elsewhere")]).unwrap();
    let agents = read(plane, NAMESPACE, "daemonset", AGENT).to_string();
    assert!(!agents.contains("hostPath") && !agents.contains("DAC_OVERRIDE"), "{agents}");
    let (uid, source) = play(&cluster, "shop", &json!({"phase": "Running"}));
    fill(&source);
    let kept = plane.folder().join("kept-files");
    assert!(Command::new("cp").arg("--archive").arg(&source).arg(&kept).status().unwrap().success());

    create(&cluster, NAMESPACE, &[backup("files", json!({"includedNamespaces": ["shop"]}))]);
    wait_phase(&cluster, "backup.velero.io", "files", "Completed");
    let found = files_of(plane, "files");
    let [files] = found.as_slice() else { panic!("{found:#?}") };
    let status = &files["status"];
    assert_eq!(status["phase"], "Completed", "{files:#}");
    assert_eq!(status["path"], format!("/host_pods/{uid}/volumes/kubernetes.io~empty-dir/data"));
    assert!(status["progress"]["bytesDone"].as_i64().unwrap() > 9_000_000, "{files:#}");
    assert!(s3.file("restic/shop/config").exists());
    let pod = mover(&cluster, BACKUPS);
    assert_eq!(pod["spec"]["nodeName"], AT);
    let seen = format!("{}/{uid}/volumes", cluster.pods_folder().display());
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let of_node: Vec<&Value> = volumes.iter().filter_map(|volume| volume.get("hostPath")).collect();
    assert_eq!(of_node, [&json!({"path": seen, "type": "Directory"})]);
    let added = |pod: &Value| pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"].clone();
    assert_eq!(added(&pod), json!(["DAC_OVERRIDE"]));
    wait_cleared(&cluster);

    let (uid_of_target, target) = play(&cluster, "elsewhere", &waiting());
    let snapshot = status["snapshotID"].as_str().unwrap();
    let mut back = pod_volume_restore("back", &uid_of_target, "default", snapshot);
    // There is no Restore, without which the garbage collector would remove what it owns.
    back["metadata"] = json!({"name": "back", "labels": {"velero.io/restore-uid": "by-hand"}});
    create(&cluster, NAMESPACE, &[back]);
    wait_phase(&cluster, "podvolumerestore", "back", "Completed");
    assert_same(&kept, &target);
    assert!(target.join(".velero/by-hand").exists(), "the pod would wait for ever");
    let pod = mover(&cluster, RESTORES);
    assert_eq!((&pod["spec"]["nodeName"], added(&pod)[0].as_str()), (&json!(AT), Some("CHOWN")));
    wait_cleared(&cluster);

    // Its pod never runs.
    cluster.leave(BACKUPS);
    let asked = |name: &str| pod_volume_backup(name, &uid, "default", &json!({"node": AT}));
    create(&cluster, NAMESPACE, &[asked("held")]);
    wait_phase(&cluster, "podvolumebackup", "held", "Accepted");
    wait_for("its pod to be bound to the node", PATIENCE, || {
        let label = "velero.io/pod-volume-backup=held";
        let path = "jsonpath={.items[*].spec.nodeName}";
        let args = ["get", "pods", "-n", NAMESPACE, "-l", label, "-o", path];
        Ok((cluster.kubectl().run(&args)? == AT).then_some(()))
    })
    .unwrap();
    create(&cluster, NAMESPACE, &[asked("next")]);
    wait_for("the agent to hand the next one over", PATIENCE, || {
        let next = read(plane, NAMESPACE, "podvolumebackup", "next");
        Ok((next["metadata"]["annotations"]["berth.dev/by-mover"] == "true").then_some(()))
    })
    .unwrap();
    let cancel = json!({"spec": {"cancel": true}}).to_string();
    let args = ["patch", "podvolumebackup", "held", "-n", NAMESPACE, "--type=merge", "--patch", &cancel];
    cluster.kubectl().run(&args).unwrap();
    let held = wait_phase(&cluster, "podvolumebackup", "held", "Canceled");
    wait_for("its pod to be told to end", PATIENCE, || {
        let pod = read(plane, NAMESPACE, "pod", "held");
        Ok(pod["metadata"]["deletionTimestamp"].is_string().then_some(()))
    })
    .unwrap();
    cluster.kubectl().run(&["delete", "pod", "held", "-n", NAMESPACE, "--force"]).unwrap();
    let next = wait_phase(&cluster, "podvolumebackup", "next", "Accepted");
    let time = |text: &Value| text.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let (freed, accepted) = (&held["status"]["completionTimestamp"], &next["status"]["acceptedTimestamp"]);
    assert!(time(accepted) >= time(freed), "its node has one data path: {held:#} {next:#}");
    wait_for("nothing of what was canceled to be left", PATIENCE, || {
        let held = read(plane, NAMESPACE, "podvolumebackup", "held");
        Ok(held["metadata"]["annotations"]["berth.dev/made"].is_null().then_some(()))
    })
    .unwrap();
}
