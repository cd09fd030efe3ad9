//! Which pods the webhook is asked about: the API server counts its calls itself.

use serde_json::{Value, json};

use super::NAMESPACE;
use crate::support::PATIENCE;
use crate::support::movers::{KINDS, Kind};
use crate::support::{Berth, wait_for};

const WEBHOOK: &str = "pods.mutate.berth.dev";
const ORDINARY: usize = 200;

fn pod(name: &str, namespace: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "none"}]},
    })
}

fn mover_pod(kind: Kind) -> Value {
    let name = format!("mover-{}", kind.plural());
    let mut pod = pod(&name, NAMESPACE, &json!({kind.label(): name}));
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": name, "uid": "u", "controller": true,
    }]);
    pod
}

/// How often the API server has called the webhook, whatever came of it.
fn calls(berth: &Berth) -> anyhow::Result<usize> {
    let metrics = berth.kubectl().run(&["get", "--raw", "/metrics"])?;
    let is_ours = |line: &&str| {
        line.starts_with("apiserver_admission_webhook_admission_duration_seconds_count{")
            && line.contains(&format!("name=\"{WEBHOOK}\""))
    };
    let counts =
        metrics.lines().filter(is_ours).filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    Ok(counts.sum())
}

/// Of a berth that has its control plane to itself, because counters are of the whole API server.
pub fn pods_that_are_no_data_movers_never_reach_the_webhook(berth: &Berth) {
    let create = |object: &Value| berth.kubectl().run_with(&["create", "-f", "-"], &object.to_string());
    // The API server learns of a webhook through a watch.
    wait_for("the webhook to be called", PATIENCE, || {
        let probe = mover_pod(Kind::DataUpload);
        berth.kubectl().run_with(&["create", "--dry-run=server", "-f", "-"], &probe.to_string())?;
        Ok((calls(berth)? > 0).then_some(()))
    })
    .unwrap();
    let before = calls(berth).unwrap();
    let labels = |i: usize| match i % 3 {
        0 => json!({"app": "web"}),
        1 => json!({"velero.io/backup-name": "b", "component": "velero"}),
        _ => json!(null),
    };
    let ordinary = |i: usize| {
        let namespace = if i.is_multiple_of(2) { NAMESPACE } else { "default" };
        pod(&format!("ordinary-{i}"), namespace, &labels(i))
    };
    let many: Vec<Value> = (0..ORDINARY).map(ordinary).collect();
    create(&json!({"apiVersion": "v1", "kind": "List", "items": many})).unwrap();
    // In another namespace berth ignores even a data mover's pod.
    let mut elsewhere = mover_pod(Kind::DataUpload);
    elsewhere["metadata"]["namespace"] = json!("default");
    create(&elsewhere).unwrap();
    assert_eq!(calls(berth).unwrap(), before);

    let movers: Vec<Value> = KINDS.map(mover_pod).into();
    create(&json!({"apiVersion": "v1", "kind": "List", "items": movers})).unwrap();
    let asked = calls(berth).unwrap() - before;
    println!("{ORDINARY} ordinary pods: 0 calls; {} pods of data movers: {asked}", KINDS.len());
    assert_eq!(asked, KINDS.len());
}
