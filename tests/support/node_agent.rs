//! Stock Velero's node-agent as people install it: a DaemonSet, a pod on every node.

use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::pods::Cluster;
use super::{binaries, wait_for};
use crate::wait::PATIENCE;

/// That of node-agent, and so of the pods it makes.
pub const IMAGE: &str = "velero/velero:v1.18.3";
pub const NAME: &str = "node-agent";
/// Its configuration, which it reads when it starts.
pub const CONFIG: &str = "node-agent-config";
/// What one logs after it has read its configuration.
const CONFIGURED: &str = "Controllers starting...";
/// Label of the nodes that get one: see [`begin_where_wanted`].
pub const WANTED: &str = "berth.test/node-agent";

/// Starts one on every node, with this configuration (see `NodeAgentConfigs` of Velero), and waits
/// until they are ready. The namespace and its service account `velero` must be there.
///
/// # Errors
/// When the program is missing, the API server refuses something, or they do not become ready.
pub fn start(cluster: &Cluster, namespace: &str, config: &Value, more: &[&str]) -> anyhow::Result<()> {
    begin(cluster, namespace, config, more)?;
    wait_ready(cluster, namespace)
}

/// [`start`] without the wait.
///
/// # Errors
/// As [`start`].
pub fn begin(cluster: &Cluster, namespace: &str, config: &Value, more: &[&str]) -> anyhow::Result<()> {
    let [program] = binaries::get(["velero"])?;
    cluster.set_image(IMAGE, program);
    std::fs::create_dir_all(cluster.pods_folder())?;
    let mut objects = vec![config_map(namespace, config)];
    objects.push(daemon_set(cluster, namespace, more));
    cluster.plane().apply(objects)
}

/// [`begin`] on those nodes only that have the label [`WANTED`], as soon as they have it, and for
/// as long.
///
/// # Errors
/// As [`start`].
pub fn begin_where_wanted(cluster: &Cluster, namespace: &str, config: &Value) -> anyhow::Result<()> {
    let [program] = binaries::get(["velero"])?;
    cluster.set_image(IMAGE, program);
    std::fs::create_dir_all(cluster.pods_folder())?;
    let mut set = daemon_set(cluster, namespace, &[]);
    set["spec"]["template"]["spec"]["nodeSelector"] = json!({WANTED: "yes"});
    cluster.plane().apply(vec![config_map(namespace, config), set])
}

/// From now on one is wanted on each of these.
///
/// # Errors
/// When the API server refuses it.
pub fn want(cluster: &Cluster, nodes: &[&str]) -> anyhow::Result<()> {
    label(cluster, nodes, &format!("{WANTED}=yes"))
}

/// From now on none is wanted on these: those that run are ended.
///
/// # Errors
/// When the API server refuses it.
pub fn want_none(cluster: &Cluster, nodes: &[&str]) -> anyhow::Result<()> {
    label(cluster, nodes, &format!("{WANTED}-"))
}

fn label(cluster: &Cluster, nodes: &[&str], change: &str) -> anyhow::Result<()> {
    cluster.kubectl().run(&[&["label", "nodes"], nodes, &[change]].concat()).map(drop)
}

/// Their configuration is another one, and they are left as they are: they read it when they start.
///
/// # Errors
/// When the API server refuses it.
pub fn write_config(cluster: &Cluster, namespace: &str, config: &Value) -> anyhow::Result<()> {
    cluster.plane().apply(vec![config_map(namespace, config)])
}

/// Another configuration for those that run: all start again.
///
/// # Errors
/// When the API server refuses something, or they do not become ready again.
pub fn reconfigure(cluster: &Cluster, namespace: &str, config: &Value) -> anyhow::Result<()> {
    cluster.plane().apply(vec![config_map(namespace, config)])?;
    restart(cluster, namespace)
}

/// # Errors
/// When they do not become ready again.
pub fn restart(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    cluster.kubectl().run(&["rollout", "restart", "daemonset", NAME, "--namespace", namespace])?;
    wait_ready(cluster, namespace)
}

/// # Errors
/// When they do not become ready.
pub fn wait_ready(cluster: &Cluster, namespace: &str) -> anyhow::Result<()> {
    wait_count(cluster, namespace, cluster.nodes().len())
}

/// Until so many are ready, and no others are wanted. A pod of theirs is ready as soon as its
/// process runs, which reads its configuration later: what is configured after this call, they do
/// not read.
///
/// # Errors
/// When they do not become ready.
pub fn wait_count(cluster: &Cluster, namespace: &str, nodes: usize) -> anyhow::Result<()> {
    wait_for(&format!("{nodes} node-agents to be ready"), PATIENCE, || {
        let args = ["get", "daemonset", NAME, "--namespace", namespace, "-o", "json"];
        let set: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        let status = &set["status"];
        let is_seen = status["observedGeneration"] == set["metadata"]["generation"];
        let counts = ["updatedNumberScheduled", "numberReady", "currentNumberScheduled"];
        let are_ready = is_seen && counts.iter().all(|count| status[*count] == nodes);
        Ok((are_ready && have_read(cluster, namespace)? >= nodes).then_some(()))
    })
}

/// How many have read their configuration.
fn have_read(cluster: &Cluster, namespace: &str) -> anyhow::Result<usize> {
    let mut pods = cluster.pods(namespace, &format!("name={NAME}"))?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    let logs =
        pods.iter().filter_map(|pod| Some(cluster.log(namespace, pod.metadata.name.as_deref()?, NAME)));
    let says = |log: &PathBuf| std::fs::read_to_string(log).is_ok_and(|text| text.contains(CONFIGURED));
    Ok(logs.filter(says).count())
}

/// The pod on a node.
///
/// # Errors
/// When there is none.
pub fn pod_on(cluster: &Cluster, namespace: &str, node: &str) -> anyhow::Result<String> {
    let mut pods = pods_on(cluster, namespace, node)?;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    pods.pop().and_then(|pod| pod.metadata.name).with_context(|| format!("no node-agent on {node}"))
}

/// Until there is none on that node, on which none is wanted.
///
/// # Errors
/// When it does not go.
pub fn wait_gone(cluster: &Cluster, namespace: &str, node: &str) -> anyhow::Result<()> {
    wait_for(&format!("the node-agent of {node} to be gone"), PATIENCE, || {
        Ok(pods_on(cluster, namespace, node)?.is_empty().then_some(()))
    })
}

fn pods_on(cluster: &Cluster, namespace: &str, node: &str) -> anyhow::Result<Vec<Pod>> {
    let mut pods = cluster.pods(namespace, &format!("name={NAME}"))?;
    pods.retain(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node));
    Ok(pods)
}

/// What those that run now have written.
///
/// # Errors
/// When they cannot be listed.
pub fn logs(cluster: &Cluster, namespace: &str) -> anyhow::Result<Vec<PathBuf>> {
    let pods = cluster.pods(namespace, &format!("name={NAME}"))?;
    Ok(pods
        .iter()
        .map(|pod| cluster.log(namespace, pod.metadata.name.as_deref().unwrap_or_default(), NAME))
        .collect())
}

fn config_map(namespace: &str, config: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG, "namespace": namespace},
        "data": {"node-agent-config.json": config.to_string()},
    })
}

/// As `velero install --use-node-agent` makes it. What it mounts and knows is handed on to every
/// data-mover pod.
fn daemon_set(cluster: &Cluster, namespace: &str, more: &[&str]) -> Value {
    let config = format!("--node-agent-configmap={CONFIG}");
    let args: Vec<&str> = ["node-agent", "server", &config].into_iter().chain(more.iter().copied()).collect();
    let labels = json!({"name": NAME, "role": NAME, "component": "velero"});
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let empty = |name: &str| json!({"name": name, "emptyDir": {}});
    let env = json!([
        {"name": "NODE_NAME", "valueFrom": field("spec.nodeName")},
        {"name": "POD_NAME", "valueFrom": field("metadata.name")},
        {"name": "VELERO_NAMESPACE", "valueFrom": field("metadata.namespace")},
        {"name": "VELERO_SCRATCH_DIR", "value": "/scratch"},
        // In the image it is there. A repository's settings and cache go below it.
        {"name": "HOME", "value": "/scratch"},
        {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/credentials/cloud"},
    ]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"component": "velero"}},
        "spec": {
            "selector": {"matchLabels": {"name": NAME}},
            "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "velero",
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": {"runAsUser": 0},
                    "containers": [{
                        "name": NAME,
                        "image": IMAGE,
                        "command": ["/velero"],
                        "args": args,
                        "env": env,
                        "volumeMounts": [
                            {"name": "host-pods", "mountPath": "/host_pods", "mountPropagation": "HostToContainer"},
                            mount("scratch", "/scratch"), mount("tmp", "/tmp"), mount("credentials", "/credentials"),
                        ],
                    }],
                    "volumes": [
                        {"name": "host-pods", "hostPath": {"path": cluster.pods_folder()}},
                        empty("scratch"), empty("tmp"),
                        {"name": "credentials", "secret": {"secretName": "cloud-credentials", "optional": true}},
                    ],
                },
            },
        },
    })
}
