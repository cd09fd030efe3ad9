//! `backup create --dry-run=plan`, beside what the same Backup then stores.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::{Value, json};

use super::{common, said, without_proxies};
use crate::admission::program;
use crate::queue::ended;
use crate::support::{Berth, ControlPlane, Options};

const APP: &str = "cli-plan-app";

fn planned(berth: &Berth, args: &[&str]) -> Value {
    let args = [&["backup", "create"], args, &["--dry-run=plan", "-o", "json"]].concat();
    serde_json::from_str(&said(berth, &args)).unwrap()
}

fn created(berth: &Berth, objects: &[Value]) {
    let answer = berth.kubectl().create(APP, objects).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// How many objects of each type an archive has, without the copies by version.
fn stored(berth: &Berth, name: &str) -> BTreeMap<String, u64> {
    let file = std::fs::File::open(berth.archive(name)).unwrap();
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(file));
    let mut counts = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let path = entry.unwrap().path().unwrap().into_owned();
        let parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
        if let ["resources", kind, "cluster" | "namespaces", ..] = parts.as_slice() {
            *counts.entry((*kind).to_owned()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_plan_counts_what_the_backup_then_stores_and_creates_nothing() {
    let berth = Berth::start(ControlPlane::shared().unwrap(), Options::new(program(), "cli-plan")).unwrap();
    let kubectl = berth.kubectl();
    kubectl
        .create("", &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APP}})])
        .unwrap();
    let configuration = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}});
    created(
        &berth,
        &[
            configuration("one", json!({})),
            configuration("two", json!({})),
            configuration("left-out", json!({"velero.io/exclude-from-backup": "true"})),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}}),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }),
        ],
    );
    let only = ["--include-namespaces", APP];
    let plan = planned(&berth, &[&["first"][..], &only].concat());
    assert_eq!(plan["isComplete"], true, "{plan:#}");
    assert_eq!(plan["admission"], json!({"accepted": true}));
    assert_eq!(plan["queue"]["reason"], "Next", "{plan:#}");
    assert_eq!(plan["lastLikeIt"], Value::Null);
    let volumes = plan["volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 1, "{plan:#}");
    assert_eq!((&volumes[0]["claim"], &volumes[0]["data"]), (&json!(format!("{APP}/data")), &json!("none")));
    assert!(kubectl.backups(berth.namespace()).unwrap().is_empty(), "a plan creates no Backup");
    // The same Backup in earnest.
    said(&berth, &[&["backup", "create", "first"][..], &only].concat());
    ended(&berth, &["first"]);
    let types = plan["types"].as_array().unwrap();
    let counts: BTreeMap<String, u64> = types
        .iter()
        .map(|one| (one["type"].as_str().unwrap().to_owned(), one["objects"].as_u64().unwrap()))
        .collect();
    assert_eq!(counts, stored(&berth, "first"));
    // From then on there is one like it; it is in the way of nobody, and its name is taken.
    let plan = planned(&berth, &[&["first"][..], &only].concat());
    assert_eq!(plan["admission"]["accepted"], false);
    assert!(plan["admission"]["why"].as_str().unwrap().contains("already exists"), "{plan:#}");
    let plan = planned(&berth, &[&["second"][..], &only].concat());
    assert_eq!(plan["lastLikeIt"]["name"], "first");
    assert_eq!(plan["lastLikeIt"]["items"], plan["objects"]);
    // What waits is told.
    let held = ["--annotations", "berth.dev/hold=true"];
    said(&berth, &[&["backup", "create", "held"][..], &only, &held].concat());
    let plan = planned(&berth, &[&["third"][..], &only, &held].concat());
    assert_eq!(plan["queue"]["position"], 2, "{plan:#}");
    let text =
        said(&berth, &[&["backup", "create", "third"][..], &only, &held, &["--dry-run=plan"]].concat());
    assert!(text.contains("third is at position 2 and waits for"), "{text}");
    // A pod's hooks and volumes: nothing runs.
    created(
        &berth,
        &[json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "db", "annotations": {
                "pre.hook.backup.velero.io/command": "[\"/bin/freeze\"]",
                "backup.velero.io/backup-volumes": "scratch,missing",
            }},
            "spec": {
                "nodeName": "nowhere",
                "containers": [{"name": "main", "image": "db", "volumeMounts": [{"name": "scratch", "mountPath": "/s"}]}],
                "volumes": [{"name": "scratch", "emptyDir": {}}],
            },
        })],
    );
    kubectl
        .run(&[
            "patch",
            "pod",
            "db",
            "-n",
            APP,
            "--subresource=status",
            "--type=merge",
            "-p",
            r#"{"status":{"phase":"Running"}}"#,
        ])
        .unwrap();
    let plan = planned(&berth, &[&["fourth"][..], &only].concat());
    let hook = &plan["hooks"][0];
    assert_eq!((&hook["pod"], &hook["when"]), (&json!(format!("{APP}/db")), &json!("pre")), "{plan:#}");
    assert_eq!(hook["container"], "main");
    let files = plan["volumes"].as_array().unwrap().iter().find(|one| one["data"] == "files").unwrap();
    assert_eq!((&files["pod"], &files["volume"]), (&json!(format!("{APP}/db")), &json!("scratch")));
    let warnings = plan["warnings"].to_string();
    assert!(warnings.contains("has no volume missing"), "{plan:#}");
    // What is not valid is refused with each fault.
    let text = super::refused(
        &berth,
        &[
            "backup",
            "create",
            "x",
            "--include-namespaces",
            "a,b",
            "--exclude-namespaces",
            "a",
            "--dry-run=plan",
        ],
    );
    assert!(text.contains("a"), "{text}");
    let text = super::refused(&berth, &["schedule", "create", "x", "--schedule", "@daily", "--dry-run=plan"]);
    assert!(text.contains("--dry-run=server"), "{text}");
}

#[test]
fn a_plan_says_which_lists_were_refused_to_the_user() {
    let berth = common();
    let ns = berth.namespace();
    let group = "rbac.authorization.k8s.io";
    let rule = |groups: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [groups], "resources": resources, "verbs": verbs});
    let answer = berth.kubectl().create(
        ns,
        &[
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "few"}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}}),
            json!({
                "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": {"name": "few"},
                "rules": [
                    rule("", &["configmaps"], &["get", "list"]),
                    rule("velero.io", &["backups", "backupstoragelocations"], &["get", "list"]),
                ],
            }),
            json!({
                "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "few"},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "few"},
                "subjects": [{"kind": "ServiceAccount", "name": "few", "namespace": ns}],
            }),
        ],
    );
    assert!(answer.unwrap().status.success());
    berth
        .kubectl()
        .await_right(&format!("system:serviceaccount:{ns}:few"), ns, "list", "configmaps")
        .unwrap();
    let kubeconfig = berth.plane().service_account_kubeconfig(ns, "few").unwrap();
    let run = |include: &str| {
        let mut command = Command::new(program());
        command
            .args(["backup", "create", "x", "--include-namespaces", include, "--dry-run=plan", "-o", "json"])
            .args(["--namespace", ns, "--kubeconfig"])
            .arg(&kubeconfig);
        without_proxies(&mut command);
        command.output().unwrap()
    };
    let output = run(ns);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["isComplete"], false);
    let refused: Vec<&str> = plan["refused"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(refused.contains(&"secrets") && refused.contains(&"namespaces"), "{plan:#}");
    assert!(!refused.contains(&"configmaps"), "{plan:#}");
    let configmaps =
        plan["types"].as_array().unwrap().iter().find(|one| one["type"] == "configmaps").unwrap();
    assert!(configmaps["namespaces"][ns].as_u64().unwrap() >= 1);
    assert!(plan["admission"]["why"].as_str().unwrap().contains("--role berth-user"), "{plan:#}");
    let output = run("*");
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--include-namespaces"), "{text}");
}
