//! What lies in `manifests/` is what the code says.

use std::collections::BTreeMap;
use std::path::Path;

use berth::args::Executor;
use berth::install::{Certificates, Reference, Settings, diff, render, sources};
use serde_json::Value;

use crate::support::{binaries, project};

#[test]
fn the_definitions_on_disk_are_those_of_the_types() {
    for (name, text) in berth_api::crd::files().unwrap() {
        let path = project().join("manifests/crd").join(&name);
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{name} is out of date: run `make manifests`");
    }
}

#[test]
fn no_definition_has_a_status_subresource_and_backups_can_be_queued() {
    for crd in berth_api::crd::all() {
        assert!(crd.spec.versions.iter().all(|version| version.subresources.is_none()));
    }
    let text = serde_json::to_string(&berth_api::crd::all()).unwrap();
    for word in ["\"Queued\"", "\"ReadyToStart\"", "\"queuePosition\""] {
        assert!(text.contains(word), "{word}");
    }
}

/// Every YAML file below a folder of `manifests/`, as its path below that.
fn files(folder: &Path, below: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, below, found);
        } else {
            found.push(path.strip_prefix(below).unwrap().to_str().unwrap().to_owned());
        }
    }
}

#[test]
fn the_binary_carries_every_manifest() {
    let below = project().join("manifests");
    let mut found = Vec::new();
    for folder in ["base", "components", "crd", "manager", "rbac", "webhook"] {
        files(&below.join(folder), &below, &mut found);
    }
    found.sort();
    let mut carried: Vec<String> = sources::FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    carried.sort();
    assert_eq!(found, carried, "src/install/sources.rs");
}

fn by_name(objects: Vec<Value>) -> BTreeMap<Reference, Value> {
    objects.into_iter().map(|object| (Reference::of(&object).unwrap(), object)).collect()
}

fn assert_same(theirs: Vec<Value>, ours: Vec<Value>, what: &str) {
    let (theirs, ours) = (by_name(theirs), by_name(ours));
    let names = |objects: &BTreeMap<Reference, Value>| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&theirs), names(&ours), "{what}");
    for (name, one) in &ours {
        let difference = diff::objects(&name.to_string(), theirs.get(name), one).unwrap();
        assert!(difference.is_empty(), "{what}: {difference}");
    }
}

/// kubectl's kustomize and `berth install` make the same of the same files.
#[test]
fn kustomize_and_the_binary_agree() {
    let [kubectl] = binaries::get(["kubectl"]).unwrap();
    for (executor, certificates, components) in [
        (Executor::Berth, Certificates::SelfManaged, "alone self-managed"),
        (Executor::Berth, Certificates::CertManager, "alone cert-manager"),
        (Executor::Velero, Certificates::SelfManaged, "beside-velero self-managed"),
        (Executor::Velero, Certificates::CertManager, "beside-velero cert-manager"),
    ] {
        let folder =
            tempfile::Builder::new().prefix("overlay-").tempdir_in(project().join("target")).unwrap();
        let manifests = "../../manifests";
        let mut text = format!("resources:\n- {manifests}/base\ncomponents:\n");
        for component in components.split(' ') {
            text += &format!("- {manifests}/components/{component}\n");
        }
        std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
        let output =
            std::process::Command::new(&kubectl).arg("kustomize").arg(folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let theirs: Vec<Value> =
            serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
        let alone = executor == Executor::Berth;
        let settings = Settings {
            executor,
            certificates,
            bring_definitions: alone,
            bring_namespace: alone,
            ..Settings::new("velero")
        };
        assert_same(theirs, render(&settings).unwrap(), components);
    }
}

/// Neither pods nor anything else that berth itself, or kube-system, lives from: a berth that does not answer keeps nobody
/// from coming up.
#[test]
fn the_webhooks_are_asked_about_backups_of_one_namespace_and_about_nothing_else() {
    for object in render(&Settings::new("elsewhere")).unwrap() {
        for webhook in object["webhooks"].as_array().into_iter().flatten() {
            let name = &webhook["name"];
            for rule in webhook["rules"].as_array().unwrap() {
                assert_eq!(rule["apiGroups"], serde_json::json!(["velero.io"]), "{name}");
                assert_eq!(rule["resources"], serde_json::json!(["backups"]), "{name}");
            }
            let selector = &webhook["namespaceSelector"]["matchExpressions"];
            let one = serde_json::json!([
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["elsewhere"]}
            ]);
            assert_eq!(*selector, one, "{name}");
            assert_eq!(webhook["failurePolicy"], "Ignore", "{name}");
        }
    }
}

const COMBINATIONS: [(&str, &str); 4] = [
    ("berth", "self-managed"),
    ("berth", "cert-manager"),
    ("velero", "self-managed"),
    ("velero", "cert-manager"),
];

fn printed(executor: &str, certificates: &str, namespace: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["install", "--output=yaml", "--beside-velero", "--namespace", namespace])
        .args(["--executor", executor, "--certificates", certificates])
        .args(["--concurrent-backups=1", "--item-block-worker-count=1"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

fn helm(args: &[&str]) -> std::process::Output {
    let [helm] = binaries::get(["helm"]).unwrap();
    let chart = project().join("manifests/chart");
    std::process::Command::new(helm).arg("template").arg("berth").arg(chart).args(args).output().unwrap()
}

/// Helm renders what `berth install` applies.
#[test]
fn the_chart_and_the_binary_agree() {
    for (executor, certificates) in COMBINATIONS {
        let (executor_is, certificates_are) =
            (format!("executor={executor}"), format!("certificates={certificates}"));
        let output = helm(&["--namespace=elsewhere", "--set", &executor_is, "--set", &certificates_are]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut theirs = documents(&String::from_utf8(output.stdout).unwrap());
        for object in &mut theirs {
            if object["kind"] == "CustomResourceDefinition" {
                assert_eq!(object["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
                object["metadata"].as_object_mut().unwrap().remove("annotations");
            }
            if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0") {
                // Helm's users choose these by values, where others change the manifests.
                container.as_object_mut().unwrap().remove("imagePullPolicy");
                let is_log = |arg: &Value| arg.as_str().unwrap().starts_with("--log-");
                container["args"].as_array_mut().unwrap().retain(|arg| !is_log(arg));
            }
        }
        let mut ours = documents(&printed(executor, certificates, "elsewhere"));
        for crd in berth_api::crd::all() {
            ours.push(serde_json::to_value(crd).unwrap());
        }
        assert_same(theirs, ours, &format!("{executor} {certificates}"));
    }
}

#[test]
fn what_the_chart_carries_is_up_to_date() {
    for (executor, certificates) in COMBINATIONS {
        let path = project().join(format!("manifests/chart/objects/{executor}-{certificates}.yaml"));
        let mut ours = documents(&printed(executor, certificates, "release-namespace"));
        for object in &mut ours {
            if let Some(args) = object.pointer_mut("/spec/template/spec/containers/0/args") {
                let settings = ["--concurrent-backups=1", "--item-block-worker-count=1"];
                args.as_array_mut().unwrap().retain(|arg| !settings.contains(&arg.as_str().unwrap()));
            }
        }
        let theirs = documents(&std::fs::read_to_string(&path).unwrap());
        assert_same(theirs, ours, &format!("run `make manifests`: {}", path.display()));
    }
    let definitions =
        std::fs::read_to_string(project().join("manifests/chart/objects/definitions.yaml")).unwrap();
    let ours = berth_api::crd::all().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    assert_same(documents(&definitions), ours, "run `make manifests`");
}

/// A Velero that its own chart installed goes by another service account.
#[test]
fn the_chart_and_the_binary_know_velero_by_its_service_account() {
    let output = helm(&["--namespace=velero", "--set", "executor=velero,veleroServiceAccount=velero-server"]);
    let theirs = String::from_utf8(output.stdout).unwrap();
    let ours = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["install", "--output=yaml", "--executor=velero", "--velero-service-account=velero-server"])
        .output()
        .unwrap();
    let ours = String::from_utf8(ours.stdout).unwrap();
    for text in [theirs, ours] {
        let objects = documents(&text);
        let policy = objects.iter().find(|object| object["kind"] == "ValidatingAdmissionPolicy").unwrap();
        let judged = policy.to_string();
        assert_eq!(judged.matches("request.namespace + ':velero-server'").count(), 2, "{judged}");
        assert!(!judged.contains("':velero'"), "{judged}");
        for flag in ["lifecycle", "executor"] {
            let wanted = format!("--{flag}-identity=system:serviceaccount:velero:velero-server");
            assert!(text.contains(&wanted), "{wanted}: {text}");
        }
    }
}

/// Values that cannot work are refused before anything reaches a cluster.
#[test]
fn the_chart_refuses_values_that_cannot_work() {
    for (value, field) in [
        ("executor=helm", "executor"),
        ("certificates=letsencrypt", "certificates"),
        ("concurrentBackups=0", "concurrentBackups"),
        ("itemBlockWorkerCount=257", "itemBlockWorkerCount"),
        ("webhook.replicas=0", "replicas"),
        ("image.repository=", "repository"),
        ("image.repository=berth:1", "repository"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("logFormat=xml", "logFormat"),
        ("definitions=perhaps", "definitions"),
        ("webhook.extraArgs={-x}", "extraArgs"),
        ("replicas=2", "replicas"),
        ("veleroServiceAccount=No Name", "veleroServiceAccount"),
        ("image.tag=@sha256:0", "tag"),
    ] {
        let output = helm(&["--set", value]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(field), "{value}: {said}");
    }
}
