//! Data movers: how long the review of one pod takes with many nodes and StorageClasses, and how
//! fast places are given.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_test_support::{Berth, ControlPlane, Options, peers, wait_for};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::client::{Connector, authority, request};
use crate::report::{Aim, Report, quantile};

const NAMESPACE: &str = "velero";
const NODES: usize = 5_000;
const CLASSES: usize = 1_000;
const AGENTS: usize = 50;
const REVIEWS: usize = 3_000;
const GRANTS: usize = 1_000;
const AT_ONCE: usize = 32;
/// As the leader does it.
const GRANTS_AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(120);

pub fn measure(runtime: &Runtime, berth: &Path, report: &mut Report) -> anyhow::Result<()> {
    eprintln!("Data movers:");
    let plane = ControlPlane::start()?;
    plane.define()?;
    peers::define_movers(&plane)?;
    let berth = Berth::start(plane, Options::new(berth, NAMESPACE))?;
    let client = runtime.block_on(berth.plane().client())?;
    runtime.block_on(fill(&client))?;
    place(&berth, report)?;
    runtime.block_on(async { create(&client, (0..GRANTS).map(|i| upload(&format!("waits-{i}")))).await })?;
    let plain = runtime.block_on(annotate(&client))?;
    grant(&berth, plain, report)
}

fn api(client: &Client, object: &Value) -> anyhow::Result<Api<DynamicObject>> {
    let text = |field: &str| object[field].as_str().context("no object");
    let (group, version) = text("apiVersion")?.split_once('/').unwrap_or(("", text("apiVersion")?));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")?));
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

async fn create(client: &Client, objects: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    stream::iter(objects)
        .map(async |object: Value| {
            let made = api(client, &object)?
                .create(&PostParams::default(), &serde_json::from_value(object)?)
                .await?;
            anyhow::Ok(made)
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await
}

fn configuration(limit: usize) -> String {
    let rule = |class: usize, zone: usize| {
        let zone = json!([{"key": "zone", "operator": "In", "values": [format!("zone-{zone}")]}]);
        json!({"storageClass": format!("class-{class}"), "nodeSelector": {"matchExpressions": zone}})
    };
    // Ten classes of ten alternatives each.
    let rules: Vec<Value> = (0..100).map(|i| rule(i / 10, i)).collect();
    json!({"loadAffinity": rules, "loadConcurrency": {"prepareQueueLength": limit}}).to_string()
}

fn upload(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1",
        "kind": "DataUpload",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "backupStorageLocation": "default", "operationTimeout": "10m", "snapshotType": "CSI",
            "sourceNamespace": "default", "sourcePVC": "p",
            "csiSnapshot": {"storageClass": "class-3", "volumeSnapshot": "v"},
        },
    })
}

async fn fill(client: &Client) -> anyhow::Result<()> {
    let nodes = (0..NODES).map(|i| {
        let labels = json!({"zone": format!("zone-{}", i % 100), "kubernetes.io/os": "linux", "pool": "a"});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{i}"), "labels": labels}})
    });
    let classes = (0..CLASSES).map(|i| {
        let name = format!("class-{i}");
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": "x"})
    });
    let agents = (0..AGENTS).map(|i| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("agent-{i}"), "namespace": NAMESPACE, "labels": {"role": "node-agent"}},
            "spec": {"nodeName": format!("node-{i}"), "containers": [{"name": "node-agent", "image": "x"}]},
        })
    });
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{
        "name": "node-agent", "image": "x", "args": ["node-agent", "server", "--node-agent-configmap=config"],
    }]}});
    let others = [
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "node-agent", "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "placed", "namespace": NAMESPACE},
            "spec": {"storageClassName": "class-3", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config", "namespace": NAMESPACE},
            "data": {"config.json": configuration(1)}}),
        upload("placed"),
    ];
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE}});
    create(client, [account].into_iter()).await?;
    create(client, nodes.chain(classes).chain(agents).chain(others)).await?;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), NAMESPACE);
    for i in 0..AGENTS {
        let patch = Patch::Strategic(&ready);
        pods.patch_status(&format!("agent-{i}"), &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

fn place(berth: &Berth, report: &mut Report) -> anyhow::Result<()> {
    let args = ["get", "dataupload", "placed", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"];
    let uid = berth.kubectl().run(&args)?;
    let os = json!({"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]});
    let zone = json!({"key": "zone", "operator": "In", "values": ["zone-30"]});
    let terms = json!([{"matchExpressions": [zone, os]}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "placed", "namespace": NAMESPACE, "labels": {"velero.io/data-upload": "placed"},
            "ownerReferences": [{"apiVersion": "velero.io/v2alpha1", "kind": "DataUpload", "name": "placed", "uid": uid, "controller": true}],
        },
        "spec": {"containers": [{"name": "c", "image": "x"}], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}},
    });
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": NAMESPACE, "name": "placed", "dryRun": true, "object": pod}});
    let connector = Connector::new(berth.webhook_address(), &authority(berth)?)?;
    let request = request(connector.address(), "/mutate/pods", &body.to_string());
    let mut connection = connector.connect()?;
    let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    wait_for("a mover's pod to be placed", PATIENCE, || {
        let placed: Value = serde_json::from_str(&berth.kubectl().run_with(&create, &pod.to_string())?)?;
        let terms =
            &placed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        Ok((terms["nodeSelectorTerms"].as_array().is_some_and(|terms| terms.len() > 1)).then_some(()))
    })?;
    let mut times = Vec::with_capacity(REVIEWS);
    for _ in 0..REVIEWS {
        let started = Instant::now();
        connection.ask(&request)?;
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    let part = format!("mover pod, {NODES} nodes, {CLASSES} classes");
    report.add(&part, "one review, p50", quantile(&times, 0.5), "ms", Aim::None);
    report.add(&part, "one review, p99", quantile(&times, 0.99), "ms", Aim::AtMost(2.0));
    Ok(())
}

fn granted(berth: &Berth) -> anyhow::Result<usize> {
    let metrics = berth.controller.metrics()?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("berth_movers_granted_total "));
    Ok(line.context("no berth_movers_granted_total")?.parse()?)
}

/// What the API server and etcd can do at most: as many plain patches of the same objects, as many
/// at once. Per second.
async fn annotate(client: &Client) -> anyhow::Result<f64> {
    let api = api(client, &upload("any"))?;
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"bench": "x"}}}));
    let started = Instant::now();
    stream::iter(0..GRANTS)
        .map(Ok)
        .try_for_each_concurrent(GRANTS_AT_ONCE, async |i| {
            api.patch_metadata(&format!("waits-{i}"), &params, &patch).await.map(drop)
        })
        .await?;
    #[allow(clippy::cast_precision_loss)]
    Ok(GRANTS as f64 / started.elapsed().as_secs_f64())
}

fn grant(berth: &Berth, plain: f64, report: &mut Report) -> anyhow::Result<()> {
    wait_for("the first grant", PATIENCE, || Ok((granted(berth)? == 1).then_some(())))?;
    let patch = json!({"data": {"config.json": configuration(2 * GRANTS)}}).to_string();
    let started = Instant::now();
    berth.kubectl().run(&["patch", "configmap", "config", "-n", NAMESPACE, "--type=merge", "-p", &patch])?;
    let mut seen = 0;
    wait_for("every grant", PATIENCE, || {
        seen = granted(berth)?;
        Ok((seen > GRANTS).then_some(()))
    })?;
    ensure!(seen == GRANTS + 1, "{seen} grants for {} objects", GRANTS + 1);
    let whole = started.elapsed().as_secs_f64();
    #[allow(clippy::cast_precision_loss)]
    let rate = GRANTS as f64 / whole;
    let part = format!("{GRANTS} data movers");
    report.add(&part, "granted, from the edit of the limit to the last", whole, "s", Aim::None);
    report.add(&part, "granted", rate, "/s", Aim::AtLeast(500.0));
    report.add(&part, "plain patches of the same objects", plain, "/s", Aim::None);
    Ok(())
}
