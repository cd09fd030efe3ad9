//! The member part of shared buckets: what is written, what is kept, what is refused, what is left.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{KINDS, apply, berth, finish_namespaces, names, said};
use crate::support::ControlPlane;

const SECRET: &str = "berth-garden-hub";
const AGENT: &str = "berth-garden-agent";

/// What a command said that has to fail, or not to.
fn run(admin: &Path, args: &[&str], succeeds: bool) -> String {
    let output = berth(admin, args);
    let text = said(&output);
    assert_eq!(output.status.success(), succeeds, "{args:?}: {text}");
    text
}

/// Nothing runs pods here: the wait is given up, what was applied is there.
fn install(admin: &Path, flags: &[&str]) -> String {
    let text = run(admin, &[&["install", "--timeout=1s"], flags].concat(), false);
    assert!(text.contains("not ready after 1 s"), "{text}");
    text
}

fn object(plane: &ControlPlane, kind: &str, name: &str) -> Value {
    let args = ["get", kind, name, "-n", "velero", "-o", "json", "--ignore-not-found"];
    serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap_or_default()
}

fn agent_args(plane: &ControlPlane) -> Value {
    object(plane, "deployment", AGENT)["spec"]["template"]["spec"]["containers"][0]["args"].clone()
}

fn definition(plane: &ControlPlane, name: &str) -> Value {
    object(plane, "crd", &format!("{name}.extensions.gardener.cloud"))
}

/// One control plane for all of these, one after another: what is installed is cluster-wide.
#[test]
fn the_member_part_is_installed_kept_and_removed() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    let admin = plane.kubeconfig();
    the_agent_alone_comes_with_its_definitions(&plane, &admin);
    the_way_to_the_hub_is_kept_in_a_secret_and_told_nobody(&plane, &admin);
    what_only_berth_lets_go_of_is_named(&plane, &admin);
    what_gardener_brought_stays(&plane, &admin);
    a_secret_of_somebody_elses_is_used_and_not_written(&plane, &admin);
}

fn the_agent_alone_comes_with_its_definitions(plane: &ControlPlane, admin: &Path) {
    let text = run(admin, &["install", "--garden-member", "--dry-run"], true);
    for line in [
        "customresourcedefinition/backupbuckets.extensions.gardener.cloud created (dry run)",
        "deployment/berth-garden-agent in velero created (dry run)",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
    let text = install(admin, &["--garden-member"]);
    assert!(text.contains("berth-garden-agent 0 of 2 ready"), "{text}");
    assert_eq!(agent_args(plane), json!(["garden", "agent", "--namespace=$(POD_NAMESPACE)"]));
    assert_eq!(
        definition(plane, "backupentries")["metadata"]["labels"]["app.kubernetes.io/part-of"],
        "berth"
    );
    // And stays, with what is said besides.
    let text = install(admin, &["--image=mirror/berth:next"]);
    assert!(text.contains("deployment/berth-garden-agent in velero changed"), "{text}");
    let template = &object(plane, "deployment", AGENT)["spec"]["template"];
    assert_eq!(template["spec"]["containers"][0]["image"], "mirror/berth:next");
    let text = install(admin, &["--image=mirror/berth:next"]);
    assert!(text.contains("deployment/berth-garden-agent in velero unchanged"), "{text}");
    let text = run(admin, &["install", "--garden-member=false", "--dry-run"], true);
    for line in ["deployment/berth-garden-agent in velero removed", "clusterrole/berth-garden-agent removed"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    run(admin, &["uninstall"], true);
    finish_namespaces(plane);
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
}

fn the_way_to_the_hub_is_kept_in_a_secret_and_told_nobody(plane: &ControlPlane, admin: &Path) {
    plane.kubectl().run(&["create", "serviceaccount", "ship", "-n", "default"]).unwrap();
    let seeds = plane.service_account_kubeconfig("default", "ship").unwrap();
    let file: Value = serde_json::from_str(&std::fs::read_to_string(&seeds).unwrap()).unwrap();
    let token = file["users"][0]["user"]["token"].as_str().unwrap().to_owned();
    let hub = format!("--hub-kubeconfig={}", seeds.display());
    let flags = [hub.as_str(), "--seed=ship"];
    let mut told = vec![run(admin, &[&["install", "--diff"], &flags[..]].concat(), true)];
    assert!(told[0].contains("secret/berth-garden-hub in velero"), "{}", told[0]);
    told.push(install(admin, &flags));
    assert!(told[1].contains("secret/berth-garden-hub in velero created"), "{}", told[1]);
    let args = agent_args(plane);
    assert_eq!(args[3], "--hub-kubeconfig=/var/run/berth/hub/kubeconfig");
    assert_eq!(args[4], "--seed=$(SEED)");
    let secret = object(plane, "secret", SECRET);
    let value = |key: &str| {
        let text = secret["data"][key].as_str().unwrap();
        String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
    };
    assert_eq!(value("seed"), "ship");
    let kept: Value = serde_json::from_str(&value("kubeconfig")).unwrap();
    assert_eq!(kept["users"][0]["user"]["token"], token.as_str());
    // Of this machine it has no file.
    let cluster = &kept["clusters"][0]["cluster"];
    assert!(cluster["certificate-authority"].is_null(), "{cluster}");
    assert!(cluster["certificate-authority-data"].as_str().is_some_and(|data| !data.is_empty()), "{cluster}");

    // Without the flags it stays as it is, new version included.
    let digest = |plane: &ControlPlane| {
        let agent = object(plane, "deployment", AGENT);
        agent["spec"]["template"]["metadata"]["annotations"]["garden.berth.dev/hub-digest"].clone()
    };
    let before = digest(plane);
    assert!(before.is_string(), "{before}");
    told.push(install(admin, &["--image=mirror/berth:next"]));
    assert!(!told[2].contains("secret/berth-garden-hub"), "{}", told[2]);
    assert_eq!((agent_args(plane), digest(plane)), (args.clone(), before.clone()));
    told.push(install(admin, &["--garden-member", "--image=mirror/berth:next"]));
    assert!(told[3].contains("deployment/berth-garden-agent in velero unchanged"), "{}", told[3]);
    // Another way of installing takes new pods, and is reported as another one.
    let other = [hub.as_str(), "--seed=other"];
    told.push(run(admin, &[&["install", "--diff"], &other[..]].concat(), true));
    let line = |sign: char, mark: &str| {
        told[4].lines().any(|line| line.starts_with(sign) && line.contains("seed:") && line.contains(mark))
    };
    assert!(line('-', "*** (before)") && line('+', "*** (after)"), "{}", told[4]);
    told.push(install(admin, &other));
    assert!(told[5].contains("secret/berth-garden-hub in velero changed"), "{}", told[5]);
    assert_ne!(digest(plane), before);
    for text in &told {
        assert!(!text.contains(&token) && !text.contains(&STANDARD.encode(&token)), "{text}");
    }
    // What pods could not start without is missed before anything is written.
    plane.kubectl().run(&["delete", "secret", SECRET, "-n", "velero"]).unwrap();
    let text = run(admin, &["install"], false);
    assert!(
        text.contains("there is no Secret berth-garden-hub in velero")
            && text.contains("Nothing was changed"),
        "{text}"
    );
    let text = said(&berth(admin, &["check"]));
    assert!(text.contains("there is no Secret berth-garden-hub in velero"), "{text}");
    install(admin, &flags);
    let text = run(admin, &["install", "--garden-member=false", "--dry-run"], true);
    assert!(text.contains("secret/berth-garden-hub in velero removed (dry run)"), "{text}");
}

/// With what the last one installed.
fn what_only_berth_lets_go_of_is_named(plane: &ControlPlane, admin: &Path) {
    let member = |kind: &str, name: &str, provider: &str| {
        let finalizer = format!("extensions.gardener.cloud/{}", kind.to_lowercase());
        let mut object = json!({
            "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": kind,
            "metadata": {"name": name, "finalizers": [finalizer]},
            "spec": {"type": provider, "region": "eu", "secretRef": {"name": "keys", "namespace": "garden"}},
        });
        if kind == "BackupEntry" {
            object["spec"]["bucketName"] = json!("shared");
        }
        object
    };
    let entry = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
        "metadata": {"name": "ship--1", "namespace": "default", "finalizers": ["garden.berth.dev/backup"]},
        "spec": {"seedName": "ship"},
    });
    let objects = [
        member("BackupBucket", "shared", "aws"),
        member("BackupEntry", "one", "aws"),
        member("BackupEntry", "two", "aws"),
        // Another extension acts on it.
        member("BackupEntry", "three", "openstack"),
        entry,
    ];
    apply(plane, &objects);
    let entries = "backupentries.extensions.gardener.cloud";
    plane.kubectl().run(&["delete", entries, "two", "--wait=false"]).unwrap();
    let note = [
        "1 backupentries.garden.berth.dev",
        "2 backupentries.extensions.gardener.cloud, 1 deleted already",
        "1 backupbuckets.extensions.gardener.cloud",
        "--garden-member`",
    ];
    for command in [&["uninstall", "--dry-run"][..], &["uninstall"]] {
        let text = run(admin, command, true);
        for line in note.iter().chain(&["secret/berth-garden-hub in velero", "kubectl patch KIND NAME"]) {
            assert!(text.contains(line), "{command:?}: {line}: {text}");
        }
    }
    assert_eq!(object(plane, "secret", SECRET), Value::Null);
    finish_namespaces(plane);
    let left = names(plane, KINDS);
    assert!(left.iter().all(|name| name.starts_with("customresourcedefinition")), "{left:?}");
    assert_eq!(left.len(), 3, "{left:?}");
    // The way out.
    let patch = "--patch={\"metadata\":{\"finalizers\":null}}";
    for (kind, name, namespace) in [
        ("backupbuckets.extensions.gardener.cloud", "shared", ""),
        (entries, "one", ""),
        (entries, "two", ""),
        (entries, "three", ""),
        ("backupentries.garden.berth.dev", "ship--1", "default"),
    ] {
        let namespace = format!("--namespace={namespace}");
        plane.kubectl().run(&["patch", kind, name, &namespace, "--type=merge", patch]).unwrap();
        plane.kubectl().run(&["delete", kind, name, &namespace, "--ignore-not-found"]).unwrap();
    }
    let text = run(admin, &["uninstall"], true);
    assert!(!text.contains("finalizers"), "{text}");
    finish_namespaces(plane);
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
}

fn what_gardener_brought_stays(plane: &ControlPlane, admin: &Path) {
    let mut theirs: Vec<Value> = berth_garden_api::crd::member().iter().map(|crd| json!(crd)).collect();
    for definition in &mut theirs {
        definition["metadata"]["labels"] = json!({"gardener.cloud/deletion-protected": "true"});
    }
    apply(plane, &theirs[..1]);
    let text = install(admin, &["--garden-member"]);
    let (first, second) =
        ("backupbuckets.extensions.gardener.cloud", "backupentries.extensions.gardener.cloud");
    assert!(!text.contains(first), "{text}");
    assert!(text.contains(&format!("customresourcedefinition/{second} created")), "{text}");
    let text = run(admin, &["uninstall"], true);
    assert!(!text.contains(first) && text.contains(&format!("{second} removed")), "{text}");
    assert_eq!(
        definition(plane, "backupbuckets")["metadata"]["labels"],
        json!({"gardener.cloud/deletion-protected": "true"})
    );
    plane.kubectl().run(&["delete", "crd", first]).unwrap();
    finish_namespaces(plane);
}

fn a_secret_of_somebody_elses_is_used_and_not_written(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "namespace", "velero"]).unwrap();
    let missing = run(admin, &["install", "--hub-secret=of-mine"], false);
    assert!(missing.contains("kubectl create secret generic of-mine --namespace velero"), "{missing}");
    for name in ["of-mine", SECRET] {
        kubectl
            .run(&["create", "secret", "generic", name, "-n", "velero", "--from-literal=seed=ship"])
            .unwrap();
    }
    let lacks = run(admin, &["install", "--hub-secret=of-mine"], false);
    assert!(lacks.contains("Secret of-mine in velero lacks kubeconfig"), "{lacks}");
    let hub = format!("--hub-kubeconfig={}", admin.display());
    let refused = run(admin, &["install", &hub, "--seed=ship"], false);
    assert!(
        refused.contains("berth did not make it") && refused.contains("--hub-secret=berth-garden-hub"),
        "{refused}"
    );
    let data = json!({"stringData": {"kubeconfig": "x"}}).to_string();
    kubectl.run(&["patch", "secret", "of-mine", "-n", "velero", "--type=merge", "-p", &data]).unwrap();
    install(admin, &["--hub-secret=of-mine"]);
    let named = |plane: &ControlPlane| {
        let agent = object(plane, "deployment", AGENT);
        agent["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"].clone()
    };
    assert_eq!(named(plane), "of-mine");
    install(admin, &[]);
    assert_eq!(named(plane), "of-mine");
    let text = run(admin, &["uninstall"], true);
    assert!(!text.contains("secret/"), "{text}");
    for name in ["of-mine", SECRET] {
        assert_eq!(object(plane, "secret", name)["metadata"]["name"], name);
    }
}

/// The hub's leader writes them, and an installation brings others.
pub fn a_seeds_rights_are_no_left_over(plane: &ControlPlane, admin: &Path) {
    let labels = json!({"app.kubernetes.io/part-of": "berth", "garden.berth.dev/seed-access": "true"});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": [],
        "metadata": {"name": "berth-garden-seed:ship", "namespace": "garden", "labels": labels},
    });
    let mut old = role.clone();
    old["metadata"] =
        json!({"name": "berth-old", "namespace": "garden", "labels": {"app.kubernetes.io/part-of": "berth"}});
    apply(plane, &[role, old]);
    let text = said(&berth(admin, &["install", "--dry-run"]));
    assert!(text.contains("role/berth-old in garden removed (dry run)"), "{text}");
    assert!(!text.contains("berth-garden-seed:ship"), "{text}");
    // With berth itself they go.
    let text = said(&berth(admin, &["uninstall", "--dry-run"]));
    assert!(text.contains("role/berth-garden-seed:ship in garden would be removed"), "{text}");
}
