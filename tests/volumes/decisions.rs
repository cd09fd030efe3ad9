//! What becomes of the data of each volume with each setting. A table has what a stock Velero does
//! and what berth does; both are run on the same pods and claims.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::played::{csi, site, start, stored};
use super::player::DRIVER;
use crate::archive::side;
use crate::hooks::namespace;
use crate::support::peers::{self, S3, Velero};
use crate::support::{Kubectl, PATIENCE, backup, wait_for};

const TABLE: &str = include_str!("decisions.txt");
const SETTINGS: [&str; 4] = ["plain", "all", "unwanted", "policies"];
/// No kubelet is there: what it would say is written.
const NODE: &str = "table-node";
pub const NAMED: &str = "backup.velero.io/backup-volumes";
const EXCLUDED: &str = "backup.velero.io/backup-volumes-excludes";
pub const MOUNTS: &str = "volumeMounts";
const DEVICES: &str = "volumeDevices";
/// StorageClass of all claims but one.
const CLASS: &str = "table";
/// Kinds, each with the phase in which the work is done.
pub const FILES: (&str, &str) = ("podvolumebackups", "Completed");
pub const REPOSITORIES: (&str, &str) = ("backuprepositories", "Ready");
const POLICIES: &str = "\
version: v1
volumePolicies:
- conditions: {pvcLabels: {policy: skip}}
  action: {type: skip}
- conditions: {pvcLabels: {policy: files}}
  action: {type: fs-backup}
- conditions: {pvcLabels: {policy: snapshot}}
  action: {type: snapshot}
- conditions: {pvcLabels: {policy: custom}}
  action: {type: custom}
";

/// By volume and setting, what one of the two does: 0 is Velero, 1 is berth.
fn table(which: usize) -> BTreeMap<(String, String), String> {
    let mut all = BTreeMap::new();
    for line in TABLE.lines().filter(|line| !(line.is_empty() || line.starts_with('#'))) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.len(), 1 + SETTINGS.len(), "{line}");
        for (setting, cell) in SETTINGS.into_iter().zip(&words[1..]) {
            let word = cell.split('/').nth(which).unwrap_or(cell);
            all.insert((words[0].to_owned(), setting.to_owned()), word.to_owned());
        }
    }
    all
}

fn spec(setting: &str, space: &str) -> Value {
    let mut spec = json!({"includedNamespaces": [space]});
    match setting {
        "all" => spec["defaultVolumesToFsBackup"] = json!(true),
        "unwanted" => spec["snapshotVolumes"] = json!(false),
        "policies" => {
            spec["snapshotVolumes"] = json!(false);
            spec["resourcePolicy"] = json!({"kind": "configmap", "name": "policies"});
        }
        _ => {}
    }
    spec
}

/// A pod with one volume; `annotation` names it, and its container has it as `mount` says.
pub fn pod(space: &str, name: &str, source: &Value, annotation: &str, mount: &str) -> Value {
    let mut volume = source.clone();
    volume["name"] = json!("v");
    let mut container = json!({"name": "c", "image": "example.com/nothing"});
    match mount {
        MOUNTS => container[MOUNTS] = json!([{"name": "v", "mountPath": "/v"}]),
        DEVICES => container[DEVICES] = json!([{"name": "v", "devicePath": "/dev/v"}]),
        _ => {}
    }
    let mut annotations = json!({});
    if !annotation.is_empty() {
        annotations[annotation] = json!("v");
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "annotations": annotations},
        "spec": {"nodeName": NODE, "containers": [container], "volumes": [volume]},
    })
}

fn pods(space: &str) -> Vec<Value> {
    let (empty, path) = (json!({"emptyDir": {}}), json!({"hostPath": {"path": "/srv"}}));
    let projected = json!({"projected": {"sources": [{"configMap": {"name": "c"}}]}});
    let field = json!({"path": "name", "fieldRef": {"fieldPath": "metadata.name"}});
    let downward = json!({"downwardAPI": {"items": [field]}});
    let claim = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let pod = |name: &str, source: &Value, annotation: &str, mount: &str| {
        pod(space, name, source, annotation, mount)
    };
    let of_claim = |name: &str, annotation: &str, mount: &str| pod(name, &claim(name), annotation, mount);
    vec![
        pod("empty-named", &empty, NAMED, MOUNTS),
        pod("empty-unnamed", &empty, "", MOUNTS),
        pod("empty-excluded", &empty, EXCLUDED, MOUNTS),
        pod("empty-unmounted", &empty, NAMED, ""),
        pod("empty-pending", &empty, NAMED, MOUNTS),
        pod("empty-ended", &empty, NAMED, MOUNTS),
        pod("path-named", &path, NAMED, MOUNTS),
        pod("config-named", &json!({"configMap": {"name": "c"}}), NAMED, MOUNTS),
        pod("secret-named", &json!({"secret": {"secretName": "s"}}), NAMED, MOUNTS),
        pod("projected-named", &projected, NAMED, MOUNTS),
        pod("downward-named", &downward, NAMED, MOUNTS),
        of_claim("csi-mounted", "", MOUNTS),
        of_claim("csi-excluded", EXCLUDED, MOUNTS),
        of_claim("csi-named", NAMED, MOUNTS),
        of_claim("csi-unmounted", NAMED, ""),
        of_claim("csi-pending", NAMED, MOUNTS),
        of_claim("csi-ended", NAMED, MOUNTS),
        of_claim("csi-device", NAMED, DEVICES),
        pod("shared-a", &claim("shared"), NAMED, MOUNTS),
        pod("shared-b", &claim("shared"), NAMED, MOUNTS),
        of_claim("path-claim-named", NAMED, MOUNTS),
        of_claim("policy-skip", NAMED, MOUNTS),
        of_claim("policy-files", "", MOUNTS),
        of_claim("policy-snapshot", NAMED, MOUNTS),
    ]
}

/// Claims, and the volumes to which all but one are bound.
fn claims(space: &str) -> Vec<Value> {
    let (ours, path) = (csi(DRIVER), json!({"hostPath": {"path": "/srv"}}));
    let classless = csi("classless.example.com");
    let mut all = Vec::new();
    for (name, source, policy) in [
        ("csi", Some(&ours), ""),
        ("csi-mounted", Some(&ours), ""),
        ("csi-excluded", Some(&ours), ""),
        ("csi-named", Some(&ours), ""),
        ("csi-unmounted", Some(&ours), ""),
        ("csi-pending", Some(&ours), ""),
        ("csi-ended", Some(&ours), ""),
        ("csi-device", Some(&ours), ""),
        ("shared", Some(&ours), ""),
        ("path-claim", Some(&path), ""),
        ("path-claim-named", Some(&path), ""),
        ("classless", Some(&classless), ""),
        ("unbound", None, ""),
        ("policy-skip", Some(&ours), "skip"),
        ("policy-files", Some(&ours), "files"),
        ("policy-files-alone", Some(&ours), "files"),
        ("policy-snapshot", Some(&ours), "snapshot"),
        ("policy-custom", Some(&ours), "custom"),
    ] {
        let volume = format!("pv-{space}-{name}");
        let mode = if name == "csi-device" { "Block" } else { "Filesystem" };
        let class = if name == "classless" { "table-classless" } else { CLASS };
        let labels = if policy.is_empty() { json!({}) } else { json!({"policy": policy}) };
        let mut claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": space, "labels": labels},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": class, "volumeMode": mode,
            },
        });
        if let Some(source) = source {
            claim["spec"]["volumeName"] = json!(volume);
            let mut spec = json!({
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete", "storageClassName": class, "volumeMode": mode,
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": space, "name": name,
                },
            });
            spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            all.push(json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": spec,
            }));
        }
        all.push(claim);
    }
    all
}

pub fn set_status(kubectl: &Kubectl, kind: &str, (space, name): (&str, &str), status: &Value) {
    let patch = json!({"status": status}).to_string();
    let args = ["patch", kind, name, "-n", space, "--subresource=status", "--type=merge", "-p", &patch];
    kubectl.run(&args).unwrap();
}

/// Makes everything in a namespace `space`, and what a backup in the namespace `at` needs. Returns
/// the names of all volumes: those of claims, and of pods whose volume has none.
fn populate(kubectl: &Kubectl, at: &str, space: &str) -> BTreeSet<String> {
    let mut agent = pod(at, "node-agent", &json!({"emptyDir": {}}), "", "");
    agent["metadata"]["labels"] = json!({"role": "node-agent"});
    let policies = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "policies", "namespace": at},
        "data": {"policies": POLICIES},
    });
    let (claims, pods) = (claims(space), pods(space));
    let objects = [vec![namespace(space), agent, policies], claims.clone(), pods.clone()].concat();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    kubectl.run_with(&["create", "-f", "-"], &list.to_string()).unwrap();
    let running = json!({"phase": "Running"});
    set_status(kubectl, "pod", (at, "node-agent"), &running);
    let mut names = BTreeSet::new();
    for claim in claims.iter().filter(|object| object["kind"] == "PersistentVolumeClaim") {
        let name = claim["metadata"]["name"].as_str().unwrap();
        names.insert(name.to_owned());
        if !claim["spec"]["volumeName"].is_null() {
            let bound = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
            set_status(kubectl, "pvc", (space, name), &bound);
        }
    }
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap();
        if pod["spec"]["volumes"][0]["persistentVolumeClaim"].is_null() {
            names.insert(name.to_owned());
        }
        if name.ends_with("-ended") {
            set_status(kubectl, "pod", (space, name), &json!({"phase": "Succeeded"}));
        } else if !name.ends_with("-pending") {
            set_status(kubectl, "pod", (space, name), &running);
        }
    }
    names
}

/// Whoever works on these kinds is done at once.
pub fn play(kubectl: &Kubectl, at: &str, kinds: &[(&str, &str)]) -> anyhow::Result<()> {
    for &(kind, phase) in kinds {
        let all: Value = serde_json::from_str(&kubectl.run(&["get", kind, "-n", at, "-o", "json"])?)?;
        let all = all["items"].as_array().cloned().unwrap_or_default();
        for one in all.iter().filter(|one| one["status"]["phase"] != phase) {
            let name = one["metadata"]["name"].as_str().unwrap_or_default();
            let patch = json!({"status": {"phase": phase}}).to_string();
            kubectl.run(&["patch", kind, name, "-n", at, "--type=merge", "-p", &patch])?;
        }
    }
    Ok(())
}

/// What becomes of each volume of a new namespace `space` by Backups with each setting, which are
/// created in the namespace `at` and stored in `folder`. Compares it with the table. One is created
/// when the one before it has ended, because a stock Velero stores the VolumeSnapshots that it
/// finds as any other object, and removes those of the backup that it completes meanwhile.
fn compare(
    kubectl: &Kubectl,
    (at, space): (&str, &str),
    played: &[(&str, &str)],
    folder: impl Fn(&str) -> PathBuf,
    expected: &BTreeMap<(String, String), String>,
) {
    let names = populate(kubectl, at, space);
    let in_table: BTreeSet<String> = expected.keys().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, in_table, "the table has other volumes than were made");
    for setting in SETTINGS {
        let made = kubectl.create(at, &[backup(setting, spec(setting, space))]).unwrap();
        assert!(made.status.success(), "{}", made.stderr);
        wait_for(&format!("backup {setting} to end"), PATIENCE, || {
            play(kubectl, at, played)?;
            Ok(kubectl.phase(at, setting)?.is_final().then_some(()))
        })
        .unwrap();
    }
    let mut found = BTreeMap::new();
    for setting in SETTINGS {
        let infos = side(&folder(setting), &format!("{setting}-volumeinfo.json.gz"));
        for info in infos.as_array().into_iter().flatten() {
            let name = info["pvcName"].as_str().or(info["pvbInfo"]["podName"].as_str()).unwrap();
            let word = match info["backupMethod"].as_str() {
                _ if info["skipped"] == true => "skipped",
                Some("PodVolumeBackup") => "files",
                Some("CSISnapshot") => "snapshot",
                _ => panic!("{info:#}"),
            };
            let before = found.insert((name.to_owned(), setting.to_owned()), word.to_owned());
            assert_eq!(before, None, "{name} has two entries with {setting}: {infos:#}");
        }
    }
    let wrong: Vec<String> = expected
        .iter()
        .filter_map(|((name, setting), word)| {
            let is = found.remove(&(name.clone(), setting.clone())).unwrap_or_else(|| "none".to_owned());
            (is != *word).then(|| format!("{name} with {setting}: {is}; the table says {word}"))
        })
        .collect();
    assert!(wrong.is_empty() && found.is_empty(), "{wrong:#?}, and beside the table {found:#?}");
}

#[test]
fn berth_decides_about_each_volume_as_the_table_says() {
    let (berth, _) = start("vol-table", &[]);
    let folder = |name: &str| stored(&berth, name);
    // No Velero is there that would connect to the repositories.
    let played = [FILES, REPOSITORIES];
    compare(berth.kubectl(), (berth.namespace(), "table"), &played, folder, &table(1));
}

#[test]
#[ignore = "says what the pinned Velero does, which is nothing of berth's: make test-large"]
fn a_stock_velero_decides_about_each_volume_as_the_table_says() {
    const AT: &str = "table-velero";
    let (plane, _) = site();
    let s3 = S3::start(plane, "table").unwrap();
    peers::prepare(plane, AT, &s3, "").unwrap();
    // By its provisioner Velero finds the snapshot class.
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS}, "provisioner": DRIVER,
    });
    plane.apply(vec![class]).unwrap();
    let flags = ["--features=EnableCSI", "--item-operation-sync-frequency=3s"];
    let velero = Velero::start(plane, AT, &s3, &[], &flags).unwrap();
    let folder = |name: &str| s3.file(&format!("backups/{name}"));
    compare(plane.kubectl(), (AT, "table-stock"), &[FILES], folder, &table(0));
    drop(velero);
}
