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
