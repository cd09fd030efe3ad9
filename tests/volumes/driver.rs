//! The whole way: a CSI driver, stock node-agents and their data movers, an S3 server, and a stock
//! Velero that restores.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::cluster::{NAMESPACE, images, run};
use crate::support::PATIENCE;
use crate::support::csi::{self, Csi, IMMEDIATE};
use crate::support::kwok::Kwok;
use crate::support::peers::{self, S3, Velero};
use crate::support::pods::{Cluster, Node};
use crate::support::{backup, node_agent, wait_for};

const BASH: &str = "bash:test";
/// Label of the pod that is played when it comes back.
const PLAYED: &str = "berth.test/played";
/// Of the server. It looks every three seconds, in place of ten, whether the data is there.
const FLAGS: [&str; 2] = ["--features=EnableCSI", "--item-operation-sync-frequency=3s"];
const CONTROLLERS: [&str; 2] = ["backup-queue", "backup"];

struct Site {
    cluster: Cluster,
    _csi: Csi,
    kwok: Kwok,
    s3: S3,
}

/// berth runs the backups, and a stock Velero with node-agents does everything else.
fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let mut programs: BTreeMap<String, PathBuf> = images();
        programs.insert(BASH.to_owned(), PathBuf::from("/bin/bash"));
        let nodes = vec![Node::new("node-a", "zone-a"), Node::new("node-b", "zone-b")];
        let cluster = Cluster::start_with_nodes(programs, nodes).unwrap();
        let plane = cluster.plane();
        peers::install_definitions(plane).unwrap();
        let csi = Csi::start(&cluster).unwrap();
        let kwok = Kwok::start(plane, "hooked").unwrap();
        let s3 = S3::start(plane, "volumes").unwrap();
        peers::prepare(plane, NAMESPACE, &s3, "").unwrap();
        run(&cluster, "berth install --adjust-velero");
        Site { cluster, _csi: csi, kwok, s3 }
    })
}

fn wait_phase(cluster: &Cluster, kind: &str, name: &str, wanted: &str) -> Value {
    let args = ["get", kind, name, "--namespace", NAMESPACE, "-o", "json"];
    wait_for(&format!("{kind} {name} to be {wanted}"), PATIENCE, || {
        let object: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        assert!(!phase.contains("Failed"), "{:#}", object["status"]);
        Ok((phase == wanted).then_some(object))
    })
    .unwrap()
}

fn text(cluster: &Cluster, app: &str, claim: &str, file: &str) -> String {
    let volume = csi::bound(cluster.plane(), app, claim).unwrap();
    std::fs::read_to_string(csi::folder(&volume).unwrap().join(file)).unwrap()
}

fn create(cluster: &Cluster, objects: &[Value]) {
    let made = cluster.kubectl().create(NAMESPACE, objects).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
}

fn restore(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Restore",
        "metadata": {"name": name}, "spec": {"backupName": name},
    })
}

/// A pod that keeps a volume without a claim, whose files a node-agent reads.
fn keeper(app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "keeper", "namespace": app, "labels": {PLAYED: "no"},
            "annotations": {"backup.velero.io/backup-volumes": "kept"},
        },
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "node-a"},
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "bash", "image": BASH,
                "args": ["-c", "coproc read; wait"],
                "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
            }],
            "volumes": [{"name": "kept", "emptyDir": {}}],
        },
    })
}

/// The folder of the keeper's volume.
fn kept(cluster: &Cluster, app: &str) -> PathBuf {
    let args = ["get", "pod", "keeper", "-n", app, "-o", "jsonpath={.metadata.uid}"];
    let uid = cluster.kubectl().run(&args).unwrap();
    cluster.pods_folder().join(uid).join("volumes/kubernetes.io~empty-dir/kept")
}

/// The restored keeper waits for its files in an init container, as a kubelet would say.
fn play_keeper(cluster: &Cluster, app: &str) {
    let pod = ["get", "pod", "keeper", "-n", app, "--ignore-not-found", "-o", "jsonpath={.spec.nodeName}"];
    wait_for("the restored pod to be on a node", PATIENCE, || {
        Ok((!cluster.kubectl().run(&pod)?.is_empty()).then_some(()))
    })
    .unwrap();
    std::fs::create_dir_all(kept(cluster, app)).unwrap();
    let waiting = json!({
        "name": "restore-wait", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    });
    let status = json!({"status": {"phase": "Pending", "initContainerStatuses": [waiting]}}).to_string();
    let args = ["patch", "pod", "keeper", "-n", app, "--subresource=status", "--type=merge", "-p", &status];
    cluster.kubectl().run(&args).unwrap();
}

/// Objects, hooks, two volumes of a CSI driver and one whose files node-agents read.
#[test]
fn an_application_with_claims_and_files_comes_back_as_it_was_between_its_hooks() {
    const APP: &str = "bank";
    let Site { cluster, kwok, s3, .. } = site();
    let plane = cluster.plane();
    node_agent::start(cluster, NAMESPACE, &json!({}), &[]).unwrap();
    // It connects to the repository of the files.
    let velero = Velero::start(plane, NAMESPACE, s3, &CONTROLLERS, &FLAGS).unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}});
    let settings = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": APP},
        "data": {"currency": "groat"},
    });
    let claims = ["accounts", "journal"];
    let [accounts, journal] = claims.map(|claim| csi::claim(APP, claim, IMMEDIATE));
    plane.apply(vec![namespace, settings, accounts, journal, keeper(APP)]).unwrap();
    let folders = claims.map(|claim| csi::folder(&csi::bound(plane, APP, claim).unwrap()).unwrap());
    let write = |word: &str| {
        let each = folders.iter().map(|folder| format!("echo {word} >> {}/file", folder.display()));
        let script = each.collect::<Vec<_>>().join(" && ");
        json!(["/bin/sh", "-c", script]).to_string()
    };
    let annotations = json!({
        "pre.hook.backup.velero.io/command": write("frozen"),
        "post.hook.backup.velero.io/command": write("thawed"),
    });
    let mut pod = kwok.pod(APP, "db", &annotations);
    let volume = |claim: &str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    pod["spec"]["volumes"] = json!([volume(claims[0]), volume(claims[1])]);
    plane.apply(vec![pod]).unwrap();
    let wait = ["wait", "--for=condition=Ready", "pod/keeper", "--namespace", APP, "--timeout=600s"];
    cluster.kubectl().run(&wait).unwrap();
    let bytes: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(kept(cluster, APP).join("file"), &bytes).unwrap();

    create(cluster, &[backup("bank", json!({"includedNamespaces": [APP]}))]);
    let done = wait_phase(cluster, "backup.velero.io", "bank", "Completed");
    let status = &done["status"];
    assert_eq!(status["csiVolumeSnapshotsAttempted"], 2, "{status:#}");
    assert_eq!(status["csiVolumeSnapshotsCompleted"], 2, "{status:#}");
    assert_eq!(status["hookStatus"], json!({"hooksAttempted": 2}), "{status:#}");
    for claim in claims {
        assert_eq!(text(cluster, APP, claim, "file"), "frozen\nthawed\n");
    }
    let label = format!("velero.io/backup-uid={}", done["metadata"]["uid"].as_str().unwrap());
    let args =
        ["get", "podvolumebackups", "-n", NAMESPACE, "-l", &label, "-o", "jsonpath={.items[*].status.phase}"];
    assert_eq!(cluster.kubectl().run(&args).unwrap(), "Completed");
    // Other tests have snapshots, too.
    let left = |kind: &str| cluster.kubectl().run(&["get", kind, "-n", APP, "-o", "name"]).unwrap();
    wait_for("the snapshots' objects to be gone", PATIENCE, || {
        Ok((left("volumesnapshots").trim().is_empty()).then_some(()))
    })
    .unwrap();

    // Nobody ends the pods of that node.
    cluster.kubectl().run(&["delete", "pod", "db", "-n", APP, "--force", "--grace-period=0"]).unwrap();
    cluster.kubectl().run(&["delete", "pod", "keeper", "-n", APP]).unwrap();
    // And the claims: a namespace in which something is left is looked at again after eight
    // seconds.
    cluster.kubectl().run(&["delete", "pvc", claims[0], claims[1], "-n", APP]).unwrap();
    cluster.kubectl().run(&["delete", "namespace", APP]).unwrap();
    let described = velero.run(&["backup", "describe", "bank", "--details", "--colorized=false"]).unwrap();
    for said in ["CSI Snapshots:", "bank/accounts", "Pod Volume Backups - kopia:", "bank/keeper: kept"] {
        assert!(described.contains(said), "{said}: {described}");
    }
    // It comes back with an init container that waits for its files, which is played here.
    cluster.leave(PLAYED);
    create(cluster, &[restore("bank")]);
    play_keeper(cluster, APP);
    wait_phase(cluster, "restore.velero.io", "bank", "Completed");
    for claim in claims {
        assert_eq!(text(cluster, APP, claim, "file"), "frozen\n", "{claim} as it was between the hooks");
    }
    assert_eq!(std::fs::read(kept(cluster, APP).join("file")).unwrap(), bytes);
    let currency = ["get", "configmap", "settings", "-n", APP, "-o", "jsonpath={.data.currency}"];
    assert_eq!(cluster.kubectl().run(&currency).unwrap(), "groat");
    drop(velero);
}

/// Without hooks, so only the group snapshot makes them of one moment.
#[test]
fn claims_of_a_group_are_cut_together_and_a_stock_velero_brings_them_back() {
    const APP: &str = "ledger";
    let Site { cluster, s3, .. } = site();
    let plane = cluster.plane();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}});
    let names = ["entries", "index"];
    let claims = names.map(|name| {
        let mut claim = csi::claim(APP, name, IMMEDIATE);
        claim["metadata"]["labels"] = json!({"velero.io/volume-group": APP});
        claim
    });
    plane.apply([vec![namespace], claims.to_vec()].concat()).unwrap();
    for name in names {
        csi::write(&csi::bound(plane, APP, name).unwrap(), "file", name).unwrap();
    }
    let kept = plane.folder().join("csi/kept");
    let groups = || std::fs::read_dir(kept.join("groups")).unwrap().count();
    let before = groups();
    create(cluster, &[backup("ledger", json!({"includedNamespaces": [APP]}))]);
    // Claims that are not taken with their group are an error, and the backup PartiallyFailed.
    let done = wait_phase(cluster, "backup.velero.io", "ledger", "Completed");
    assert_eq!(done["status"]["csiVolumeSnapshotsCompleted"], 2, "{:#}", done["status"]);
    let kinds = "volumesnapshots,volumesnapshotcontents,volumegroupsnapshots,volumegroupsnapshotcontents";
    let args = ["get", kinds, "-A", "-o", "json"];
    wait_for("the objects of the group to be gone", PATIENCE, || {
        let all: Value = serde_json::from_str(&cluster.kubectl().run(&args)?)?;
        // Other tests have snapshots, too.
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let left = all.iter().any(|object| {
            let of = &object["spec"]["volumeSnapshotRef"]["namespace"];
            let group = &object["spec"]["volumeGroupSnapshotRef"]["namespace"];
            [of, group, &object["metadata"]["namespace"]].iter().any(|namespace| **namespace == APP)
        });
        Ok((!left).then_some(()))
    })
    .unwrap();
    assert_eq!(groups(), before + 1, "the group stays in the storage");

    cluster.kubectl().run(&["delete", "namespace", APP]).unwrap();
    let velero = Velero::start(plane, NAMESPACE, s3, &CONTROLLERS, &FLAGS).unwrap();
    create(cluster, &[restore("ledger")]);
    wait_phase(cluster, "restore.velero.io", "ledger", "Completed");
    for name in names {
        assert_eq!(text(cluster, APP, name, "file"), name);
    }
    drop(velero);
}
