//! Deployments on the nodes that the tests play: the webhook is called through its Service, and
//! pods come and go.

mod containers;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use berth::install::{InstallSettings, render};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::pods::Cluster;
use crate::support::{backup, wait_for};

const NAMESPACE: &str = "velero";
const IMAGE: &str = "berth:test";
const WEBHOOK: &str = "app.kubernetes.io/name=berth-webhook";
const CONTROLLER: &str = "app.kubernetes.io/name=berth-controller";

/// All that an installation consists of, but the definitions; and a place for archives, without
/// which nothing is queued.
fn objects() -> Vec<Value> {
    let settings = InstallSettings {
        image: Some(IMAGE.to_owned()),
        bring_definitions: false,
        ..InstallSettings::new(NAMESPACE)
    };
    let text = Value::from(render(&settings).unwrap()).to_string();
    // No component here is that slow to notice that a replica goes.
    let text = text.replace("--shutdown-delay=10s", "--shutdown-delay=1s");
    let mut objects: Vec<Value> = serde_json::from_str(&text).unwrap();
    objects.push(json!({
        "apiVersion": "velero.io/v1",
        "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": NAMESPACE},
        "spec": {
            "provider": "berth.dev/filesystem",
            "default": true,
            "objectStorage": {"bucket": "none"},
            "config": {"path": "/none"},
        },
    }));
    objects
}

fn rolled_out(cluster: &Cluster, deployment: &str) {
    let name = format!("deployment/{deployment}");
    let args = ["rollout", "status", &name, "--namespace", NAMESPACE, "--timeout=600s"];
    cluster.kubectl().run(&args).unwrap();
}

fn name(pod: &Pod) -> String {
    pod.metadata.name.clone().unwrap()
}

/// Since when a pod has a condition, in seconds after its creation.
fn seconds_to(pod: &Pod, condition: &str) -> i64 {
    let conditions = pod.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let condition = conditions.iter().find(|c| c.type_ == condition && c.status == "True").unwrap();
    let created = pod.metadata.creation_timestamp.as_ref().unwrap().0.as_second();
    condition.last_transition_time.as_ref().unwrap().0.as_second() - created
}

/// Waits until a new Backup is queued. The caBundle and the endpoints reach the API server through
/// watches, as the location reaches the webhook; that no Backup is lost meanwhile is what
/// `cluster::rotation` is about.
fn is_queued(cluster: &Cluster, when: &str) {
    let args = ["create", "--namespace", NAMESPACE, "-o", "json", "-f", "-"];
    let mut count = 0;
    wait_for(&format!("a Backup to be queued {when}"), PATIENCE, || {
        count += 1;
        let new = backup(&format!("{when}-{count}"), json!({})).to_string();
        let answer = cluster.kubectl().answer(&args, &new)?;
        let created: Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        Ok((created["status"]["phase"] == "Queued").then_some(()))
    })
    .unwrap();
}

/// Lines of `/proc/PID/status`.
fn process_status(cluster: &Cluster, pod: &str) -> BTreeMap<String, String> {
    let pid = cluster.pid(NAMESPACE, pod).unwrap();
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(key, value)| (key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")))
        .collect()
}

/// Network namespaces of this cluster's pods.
fn places(folder: &Path) -> BTreeSet<String> {
    let tag = format!("{}-", folder.file_name().unwrap().display());
    let files = std::fs::read_dir("/run/netns").into_iter().flatten();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(&tag)).collect()
}

fn bridge(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap().display().to_string();
    Path::new("/sys/class/net").join(name.replace("berth-", "br"))
}

#[test]
fn deployments_run_and_the_api_server_calls_the_webhook_through_its_service() {
    let cluster = Cluster::start(BTreeMap::from([(IMAGE.to_owned(), program())])).unwrap();
    let plane = cluster.plane();
    plane.define().unwrap();
    plane.apply(objects()).unwrap();
    rolled_out(&cluster, "berth-controller");
    rolled_out(&cluster, "berth-webhook");

    let pods = cluster.pods(NAMESPACE, WEBHOOK).unwrap();
    let nodes: BTreeSet<_> = pods.iter().map(|pod| pod.spec.as_ref().unwrap().node_name.clone()).collect();
    assert_eq!((pods.len(), nodes.len()), (2, 2), "{pods:#?}");
    let status = process_status(&cluster, &name(&pods[0]));
    assert_eq!(status["Uid"], "65532 65532 65532 65532");
    assert_eq!(status["Gid"], "65532 65532 65532 65532");
    assert_eq!(status["NoNewPrivs"], "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], "0000000000000000", "{set}");
    }

    is_queued(&cluster, "at-first");

    // A program that dies comes back in the same pod.
    let victim = name(&pods[0]);
    cluster.signal(NAMESPACE, &victim, Signal::SIGKILL).unwrap();
    wait_for("the restart", PATIENCE, || {
        let pods = cluster.pods(NAMESPACE, WEBHOOK)?;
        let pod = pods.iter().find(|pod| name(pod) == victim).unwrap();
        let container = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        Ok((container.restart_count > 0 && container.ready).then_some(()))
    })
    .unwrap();

    // A pod that is deleted is replaced, and the webhook is still called.
    let pid = cluster.pid(NAMESPACE, &victim).unwrap();
    cluster.kubectl().run(&["delete", "pod", &victim, "--namespace", NAMESPACE]).unwrap();
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "a pod is gone before its program");
    rolled_out(&cluster, "berth-webhook");
    let replaced = cluster.pods(NAMESPACE, WEBHOOK).unwrap();
    assert!(replaced.iter().all(|pod| name(pod) != victim), "{replaced:#?}");
    // What its startup probe gives it.
    assert!(replaced.iter().all(|pod| seconds_to(pod, "Ready") < 60), "{replaced:#?}");
    is_queued(&cluster, "after-the-deletion");

    let restart = ["rollout", "restart", "deployment/berth-webhook", "--namespace", NAMESPACE];
    cluster.kubectl().run(&restart).unwrap();
    rolled_out(&cluster, "berth-webhook");
    is_queued(&cluster, "after-the-update");

    let scale = [
        "scale",
        "deployment",
        "berth-webhook",
        "berth-controller",
        "--replicas=0",
        "--namespace",
        NAMESPACE,
    ];
    cluster.kubectl().run(&scale).unwrap();
    wait_for("all pods to go", PATIENCE, || {
        let left = [cluster.pods(NAMESPACE, WEBHOOK)?, cluster.pods(NAMESPACE, CONTROLLER)?].concat();
        Ok(left.is_empty().then_some(()))
    })
    .unwrap();
    let folder = plane.folder().to_owned();
    wait_for("their network namespaces to go", PATIENCE, || Ok(places(&folder).is_empty().then_some(())))
        .unwrap();

    let scale = ["scale", "deployment", "berth-controller", "--replicas=1", "--namespace", NAMESPACE];
    cluster.kubectl().run(&scale).unwrap();
    rolled_out(&cluster, "berth-controller");
    let pods = cluster.pods(NAMESPACE, CONTROLLER).unwrap();
    let pid = cluster.pid(NAMESPACE, &name(&pods[0])).unwrap();
    assert_eq!(places(&folder).len(), 1);
    assert!(bridge(&folder).exists());
    drop(cluster);
    assert_eq!(places(&folder), BTreeSet::new());
    assert!(!bridge(&folder).exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!folder.exists());
}
