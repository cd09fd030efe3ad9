//! The whole way, without berth and with it: stock Velero, its node-agents and its data movers, a
//! CSI driver, an S3 server.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::NAMESPACE;
use crate::cluster::{images, run};
use crate::support::PATIENCE;
use crate::support::csi::{self, Csi, IMMEDIATE, ZONAL};
use crate::support::movers::Kind;
use crate::support::peers::{self, S3, Velero};
use crate::support::pods::{Cluster, Node};
use crate::support::{backup, node_agent, wait_for};

/// Where the application is.
const APP: &str = "app";
/// Of an application without claims.
const KEPT: &str = "kept";
const BASH: &str = "bash:test";
/// Of the server. It looks every three seconds, in place of ten, whether the data has been moved:
/// each look starts a plugin.
const FLAGS: [&str; 2] = ["--features=EnableCSI", "--item-operation-sync-frequency=3s"];

/// Writes into a folder of its own on the first node, and stays.
fn keeper() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "keeper", "namespace": KEPT},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "node-a"},
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "bash", "image": BASH,
                "args": ["-c", "echo kept >/kept/file; coproc read; wait"],
                "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
            }],
            "volumes": [{"name": "kept", "emptyDir": {}}],
        },
    })
}

/// Writes into a claim of the zonal class from the second node, and stays.
fn writer() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "writer", "namespace": APP},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "node-b"},
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "bash", "image": BASH,
                "args": ["-c", "[[ -e /data/file ]] || echo from the pod >/data/file; coproc read; wait"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "zonal"}}],
        },
    })
}

/// The pod that moves the data of this claim, once it is there.
fn mover(cluster: &Cluster, claim: &str) -> Pod {
    let kubectl = cluster.kubectl();
    let name = wait_for(&format!("the upload of {claim}"), PATIENCE, || {
        let list = kubectl.run(&["get", "datauploads", "--namespace", NAMESPACE, "-o", "json"])?;
        let list: Value = serde_json::from_str(&list)?;
        let found =
            list["items"].as_array().into_iter().flatten().find(|du| du["spec"]["sourcePVC"] == claim);
        Ok(found.and_then(|du| du["metadata"]["name"].as_str()).map(str::to_owned))
    })
    .unwrap();
    wait_for(&format!("the pod of {name}"), PATIENCE, || {
        let pods = cluster.pods_ever(NAMESPACE, Kind::DataUpload.label());
        Ok(pods.into_iter().find(|pod| pod.metadata.name.as_deref() == Some(&name)))
    })
    .unwrap()
}

/// Keys, operators and values of each required term.
fn terms(pod: &Pod) -> Vec<Vec<String>> {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required =
        affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let expressions = terms.map(|term| {
        let expressions = term.match_expressions.iter().flatten();
        let mut texts: Vec<String> = expressions
            .map(|e| format!("{} {} {}", e.key, e.operator, e.values.clone().unwrap_or_default().join(",")))
            .collect();
        texts.sort();
        texts
    });
    expressions.collect()
}

fn wait_phase(cluster: &Cluster, kind: &str, name: &str, wanted: &str) {
    let args = ["get", kind, name, "--namespace", NAMESPACE, "-o", "json"];
    wait_for(&format!("{kind} {name} to be {wanted}"), PATIENCE, || {
        let object: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        assert!(!phase.contains("Failed"), "{:#}", object["status"]);
        Ok((phase == wanted).then_some(()))
    })
    .unwrap();
}

fn text(cluster: &Cluster, claim: &str) -> String {
    let volume = csi::bound(cluster.plane(), APP, claim).unwrap();
    std::fs::read_to_string(csi::folder(&volume).unwrap().join("file")).unwrap()
}

#[test]
#[ignore = "says what the pinned Velero does, which is nothing of berth's: make test-large"]
fn stock_velero_moves_data_out_and_in() {
    let nodes = vec![
        Node::new("node-a", "zone-a").with_label("pool", "one"),
        Node::new("node-b", "zone-b").with_label("pool", "two"),
    ];
    let images = BTreeMap::from([(BASH.to_owned(), PathBuf::from("/bin/bash"))]);
    let cluster = Cluster::start_with_nodes(images, nodes).unwrap();
    let plane = cluster.plane();
    peers::install_definitions(plane).unwrap();
    let mut csi = Csi::start(&cluster).unwrap();
    let s3 = S3::start(plane, "movers").unwrap();
    peers::prepare(plane, NAMESPACE, &s3, "").unwrap();
    let pool =
        |name: &str| json!({"storageClass": IMMEDIATE, "nodeSelector": {"matchLabels": {"pool": name}}});
    let config = json!({
        "loadConcurrency": {"globalConfig": 2},
        "loadAffinity": [pool("one"), pool("two")],
    });
    node_agent::start(&cluster, NAMESPACE, &config, &[]).unwrap();
    let velero = Velero::start(plane, NAMESPACE, &s3, &[], &FLAGS).unwrap();

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}});
    let claims = [csi::claim(APP, "data", IMMEDIATE), csi::claim(APP, "zonal", ZONAL)];
    plane.apply([namespace].into_iter().chain(claims).chain([writer()]).collect()).unwrap();
    csi::write(&csi::bound(plane, APP, "data").unwrap(), "file", "from the machine\n").unwrap();
    wait_for("the pod to have written", PATIENCE, || {
        csi.ensure_run()?;
        let volume = csi::bound(plane, APP, "zonal")?;
        Ok(csi::folder(&volume)?.join("file").exists().then_some(()))
    })
    .unwrap();

    let spec = json!({"includedNamespaces": [APP], "snapshotMoveData": true});
    let made = cluster.kubectl().create(NAMESPACE, &[backup("moved", spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let pod = mover(&cluster, "data");
    // Of two alternatives for a class only the first counts.
    assert_eq!(terms(&pod), [["kubernetes.io/os NotIn windows", "pool In one"]]);
    let container = pod.spec.as_ref().unwrap().containers.first().unwrap();
    assert_eq!(container.command.as_deref().unwrap(), ["/velero", "data-mover", "backup"]);
    assert_eq!(container.image.as_deref(), Some(node_agent::IMAGE));
    let pod = mover(&cluster, "zonal");
    let zone = "topology.kubernetes.io/zone In zone-b";
    assert_eq!(terms(&pod), [["kubernetes.io/os NotIn windows", zone]]);
    wait_phase(&cluster, "backup.velero.io", "moved", "Completed");
    let uploads = ["get", "datauploads", "-n", NAMESPACE, "-o", "jsonpath={.items[*].status.phase}"];
    assert_eq!(cluster.kubectl().run(&uploads).unwrap(), "Completed Completed");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KEPT}});
    plane.apply(vec![namespace, keeper()]).unwrap();
    let args = ["wait", "--for=condition=Ready", "pod/keeper", "--namespace", KEPT, "--timeout=600s"];
    cluster.kubectl().run(&args).unwrap();
    let spec = json!({"includedNamespaces": [KEPT], "defaultVolumesToFsBackup": true});
    let made = cluster.kubectl().create(NAMESPACE, &[backup("kept", spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_phase(&cluster, "backup.velero.io", "kept", "Completed");
    let backups = ["get", "podvolumebackups", "-n", NAMESPACE];
    let found = [&backups[..], &["-o", "jsonpath={.items[*].status.phase} {.items[*].spec.node}"]].concat();
    assert_eq!(cluster.kubectl().run(&found).unwrap(), "Completed node-a");

    cluster.kubectl().run(&["delete", "namespace", APP]).unwrap();
    let restore = json!({
        "apiVersion": "velero.io/v1",
        "kind": "Restore",
        "metadata": {"name": "moved"},
        "spec": {"backupName": "moved"},
    });
    let made = cluster.kubectl().create(NAMESPACE, &[restore]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    wait_phase(&cluster, "restore.velero.io", "moved", "Completed");
    assert_eq!(text(&cluster, "data"), "from the machine\n");
    assert_eq!(text(&cluster, "zonal"), "from the pod\n");
    drop(velero);
}

/// Backs up an application of its own, whose claim is of [`IMMEDIATE`], moving its data. Until it
/// is Completed; gives the pod that did it.
fn moved(cluster: &Cluster, csi: &mut Csi, app: &str) -> Pod {
    let plane = cluster.plane();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": app}});
    plane.apply(vec![namespace, csi::claim(app, app, IMMEDIATE)]).unwrap();
    csi::write(&csi::bound(plane, app, app).unwrap(), "file", "from the machine\n").unwrap();
    let spec = json!({"includedNamespaces": [app], "snapshotMoveData": true});
    let made = cluster.kubectl().create(NAMESPACE, &[backup(app, spec)]).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let pod = mover(cluster, app);
    wait_phase(cluster, "backup.velero.io", app, "Completed");
    csi.ensure_run().unwrap();
    pod
}

/// Alternatives of which only the second leads anywhere: Velero alone would take the first, and
/// wait there for half an hour. Two of them are the documented examples, as they stand.
#[test]
fn with_berth_the_second_alternative_will_do() {
    const SIZE: &str = "beta.kubernetes.io/instance-type";
    let nodes = vec![
        Node::new("node-a", "zone-a").with_label("pool", "one").with_label(SIZE, "Standard_B4ms"),
        Node::new("node-b", "us-central1-a")
            .with_label("pool", "two")
            .with_label(SIZE, "Standard_B8ms")
            .with_label("kubernetes.io/os", "another"),
    ];
    let cluster = Cluster::start_with_nodes(images(), nodes).unwrap();
    let plane = cluster.plane();
    peers::install_definitions(plane).unwrap();
    let mut csi = Csi::start(&cluster).unwrap();
    let s3 = S3::start(plane, "alternatives").unwrap();
    peers::prepare(plane, NAMESPACE, &s3, "").unwrap();
    let config = json!({"loadAffinity": [
        {"storageClass": IMMEDIATE, "nodeSelector": {"matchLabels": {"pool": "one"}}},
        {"storageClass": IMMEDIATE, "nodeSelector": {"matchLabels": {"pool": "two"}}},
    ]});
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config).unwrap();
    node_agent::want(&cluster, &["node-b"]).unwrap();
    let velero = Velero::start(plane, NAMESPACE, &s3, &["backup-queue"], &FLAGS).unwrap();
    run(&cluster, "berth install --beside-velero --executor=velero");
    node_agent::wait_count(&cluster, NAMESPACE, 1).unwrap();

    let any = "kubernetes.io/os NotIn windows";
    let pod = moved(&cluster, &mut csi, "without-agent");
    // What leads only to a node without a node-agent is left out.
    assert_eq!(terms(&pod), [[any, "pool In two"]]);
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-b"));

    // From now on both lead to a node-agent, and the first one's node takes no pods.
    node_agent::want(&cluster, &["node-a"]).unwrap();
    node_agent::wait_count(&cluster, NAMESPACE, 2).unwrap();
    let either = json!({"loadAffinity": [
        {"nodeSelector": {"matchLabels": {SIZE: "Standard_B4ms"}}},
        {"nodeSelector": {"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-central1-a"]},
        ]}},
    ]});
    node_agent::reconfigure(&cluster, NAMESPACE, &either).unwrap();
    cluster.kubectl().run(&["cordon", "node-a"]).unwrap();
    let pod = moved(&cluster, &mut csi, "either");
    let (size, zone) = (format!("{SIZE} In Standard_B4ms"), "topology.kubernetes.io/zone In us-central1-a");
    assert_eq!(terms(&pod), [[&*size, any], [any, zone]]);
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-b"));

    let of_class = json!({"loadAffinity": [
        {"nodeSelector": {"matchLabels": {SIZE: "Standard_B4ms"}}},
        {"storageClass": IMMEDIATE, "nodeSelector": {"matchExpressions": [
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        ]}},
        {"storageClass": IMMEDIATE, "nodeSelector": {"matchLabels": {SIZE: "Standard_B8ms"}}},
    ]});
    cluster.kubectl().run(&["uncordon", "node-a"]).unwrap();
    node_agent::reconfigure(&cluster, NAMESPACE, &of_class).unwrap();
    cluster.kubectl().run(&["cordon", "node-a"]).unwrap();
    let pod = moved(&cluster, &mut csi, "of-class");
    let size = format!("{SIZE} In Standard_B8ms");
    assert_eq!(terms(&pod), [["kubernetes.io/os In linux", any], [&*size, any]]);
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-b"));
    let uploads = ["get", "datauploads", "-n", NAMESPACE];
    let found = [&uploads[..], &["-o", "jsonpath={.items[*].status.phase} {.items[*].status.node}"]].concat();
    assert_eq!(cluster.kubectl().run(&found).unwrap(), "Completed Completed Completed node-b node-b node-b");
    drop(velero);
}
