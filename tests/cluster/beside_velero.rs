//! A stock Velero that runs as a Deployment: found, adjusted, and put back.

use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use crate::install::{berth, said};
use crate::support::peers::{self, S3};
use crate::support::pods::Cluster;
use crate::support::{backup::backup_of, binaries, wait_for};

use super::{NAMESPACE, PATIENCE, images, run, uninstall};

const VELERO: &str = "velero/velero:v1.18.3";

/// As `velero install` makes it, as far as it matters here.
fn deployment(plugins: &str) -> Value {
    let empty = |name: &str| json!({"name": name, "emptyDir": {}});
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "velero", "namespace": NAMESPACE, "labels": {"component": "velero"}},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"deploy": "velero"}},
            "template": {
                "metadata": {"labels": {"deploy": "velero", "component": "velero"}},
                "spec": {
                    "serviceAccountName": "velero",
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{
                        "name": "velero",
                        "image": VELERO,
                        "args": ["server", "--plugin-dir=/plugins"],
                        "env": [
                            {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/credentials/cloud"},
                            {"name": "VELERO_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                            {"name": "HOME", "value": "/scratch"},
                            {"name": "TMPDIR", "value": "/scratch"},
                            {"name": "VELERO_SCRATCH_DIR", "value": "/scratch"},
                        ],
                        "volumeMounts": [
                            mount("plugins", "/plugins"), mount("scratch", "/scratch"), mount("tmp", "/tmp"),
                            mount("credentials", "/credentials"),
                        ],
                    }],
                    "volumes": [
                        empty("scratch"), empty("tmp"),
                        {"name": "plugins", "hostPath": {"path": plugins}},
                        {"name": "credentials", "secret": {"secretName": "cloud-credentials"}},
                    ],
                },
            },
        },
    })
}

fn args(cluster: &Cluster) -> Vec<String> {
    let text =
        cluster.kubectl().run(&["get", "deployment", "velero", "-n", NAMESPACE, "-o", "json"]).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(found["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap()
}

/// Waits until there is one Velero, because another one that is about to end might begin a backup
/// and abandon it.
fn rolled_out(cluster: &Cluster) {
    let args = ["rollout", "status", "deployment/velero", "-n", NAMESPACE, "--timeout=600s"];
    cluster.kubectl().run(&args).unwrap();
    wait_for("one Velero to be there", PATIENCE, || {
        Ok((cluster.pods(NAMESPACE, "deploy=velero")?.len() == 1).then_some(()))
    })
    .unwrap();
}

/// Until Velero has looked at its location, it refuses Backups.
fn available(cluster: &Cluster) {
    let args = ["get", "bsl", "default", "-n", NAMESPACE, "-o", "jsonpath={.status.phase}"];
    let is_available = || Ok((cluster.kubectl().run(&args)? == "Available").then_some(()));
    wait_for("the location to be Available", PATIENCE, is_available).unwrap();
}

fn completes(cluster: &Cluster, name: &str) {
    let made = cluster.kubectl().create(NAMESPACE, &[backup_of(name, &["default"])]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_for(name, PATIENCE, || {
        let phase = cluster.kubectl().phase(NAMESPACE, name)?;
        assert!(!phase.is_final() || phase == BackupPhase::Completed, "{phase:?}");
        Ok((phase == BackupPhase::Completed).then_some(()))
    })
    .unwrap();
}

fn well(admin: &std::path::Path) {
    wait_for("nothing to be wrong", PATIENCE, || Ok(berth(admin, &["check"]).status.success().then_some(())))
        .unwrap_or_else(|error| panic!("{error}: {}", said(&berth(admin, &["check"]))));
}

#[test]
fn a_velero_that_is_there_is_adjusted_runs_what_is_queued_and_is_put_back() {
    let [program, plugin] = binaries::get(["velero", "velero-plugin-for-aws"]).unwrap();
    let cluster = Cluster::start(images()).unwrap();
    cluster.set_image(VELERO, program);
    let (plane, kubectl) = (cluster.plane(), cluster.kubectl());
    let admin = plane.kubeconfig();
    let plugins = plane.folder().join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    std::fs::copy(&plugin, plugins.join("velero-plugin-for-aws")).unwrap();
    peers::install_definitions(plane).unwrap();
    let s3 = S3::start(plane, "beside").unwrap();
    peers::prepare(plane, NAMESPACE, &s3, "").unwrap();
    kubectl.run(&["delete", "deployment", "velero", "-n", NAMESPACE]).unwrap();
    plane.apply(vec![deployment(plugins.to_str().unwrap())]).unwrap();
    rolled_out(&cluster);
    available(&cluster);
    completes(&cluster, "before");
    let before = args(&cluster);

    let text = run(&cluster, "berth install --executor=velero");
    assert!(text.contains("found Velero (Deployment velero)"), "{text}");
    assert!(text.contains("Velero still runs what berth takes the place of (backup-queue)"), "{text}");
    assert!(!text.contains(".velero.io") && !text.contains("namespace/velero"), "{text}");
    assert_eq!(args(&cluster), before);
    let check = berth(&admin, &["check"]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
    assert!(
        said(&check).contains("berth install --namespace velero --executor=velero --adjust-velero"),
        "{}",
        said(&check)
    );

    let text = run(&cluster, "berth install --executor=velero --adjust-velero");
    assert!(text.contains("+--disable-controllers=backup-queue"), "{text}");
    rolled_out(&cluster);
    well(&admin);
    completes(&cluster, "queued");
    let queued = kubectl.backup(NAMESPACE, "queued").unwrap();
    assert!(queued.metadata.annotations.unwrap().contains_key("berth.dev/enqueued-at"));

    // Who runs them changes, and Velero lets go first.
    let refused = berth(&admin, &["install", "--executor=berth"]);
    assert!(said(&refused).contains("two must not; nothing was changed"), "{}", said(&refused));
    assert_eq!(refused.status.code(), Some(1));
    let text = run(&cluster, "berth install --executor=berth --adjust-velero");
    assert!(text.contains("+--disable-controllers=") && text.contains("waiting:"), "{text}");
    well(&admin);
    completes(&cluster, "by-berth");
    let velero_runs = || !args(&cluster).iter().any(|arg| arg.contains("=backup,backup-"));
    assert!(!velero_runs(), "{:?}", args(&cluster));
    run(&cluster, "berth install --executor=velero --adjust-velero");
    rolled_out(&cluster);
    well(&admin);
    completes(&cluster, "by-velero");
    assert!(velero_runs(), "{:?}", args(&cluster));

    let text = uninstall(&cluster);
    assert!(text.contains("Velero runs backups by itself again"), "{text}");
    assert_eq!(args(&cluster), before);
    rolled_out(&cluster);
    completes(&cluster, "after");
    let left = kubectl.run(&["get", "deployments", "-n", NAMESPACE, "-o", "name"]).unwrap();
    assert_eq!(left.trim(), "deployment.apps/velero");
    wait_for("berth's pods to go", PATIENCE, || {
        let pods = kubectl.run(&["get", "pods", "-n", NAMESPACE, "-o", "name"])?;
        Ok((!pods.contains("berth")).then_some(()))
    })
    .unwrap();
}
