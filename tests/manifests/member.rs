//! The member part of shared buckets: by kustomize, by Helm, by the binary, as objects and as a
//! chart's files.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use berth::install::member::HubCredentialsSecret;
use berth::install::{InstallSettings, MemberParts, Reference, render};
use serde_json::{Value, json};

use super::{assert_same, documents, kustomized, printed, rendered_by_helm};
use crate::support::project;

const SECRET: &str = "berth-garden-hub";
const DEFINITIONS: &str = "components/garden-member/crd";

fn courier(secret: &str) -> MemberParts {
    MemberParts::Courier(HubCredentialsSecret { secret: secret.to_owned(), digest: None })
}

#[test]
fn kustomize_and_the_binary_agree_on_a_member() {
    for (member, components) in [
        (MemberParts::Agent, "alone without-velero self-managed garden-member"),
        (courier(SECRET), "alone without-velero self-managed garden-member garden-courier"),
    ] {
        let settings = InstallSettings { member: Some(member), ..InstallSettings::new("velero") };
        assert_same(kustomized(&[DEFINITIONS], components), render(&settings).unwrap(), components);
    }
}

/// Whatever comes before it: only berth's queue has an executor.
#[test]
fn the_agent_beside_velero_has_no_flag_of_the_queue() {
    let objects = kustomized(&[DEFINITIONS], "garden-member beside-velero self-managed");
    let is_agent = |object: &&Value| {
        object["kind"] == "Deployment" && object["metadata"]["name"] == "berth-garden-agent"
    };
    let agent = objects.iter().find(is_agent).unwrap();
    let args = &agent["spec"]["template"]["spec"]["containers"][0]["args"];
    assert_eq!(*args, json!(["garden", "agent", "--namespace=$(POD_NAMESPACE)"]));
}

#[test]
fn the_chart_and_the_binary_agree_on_a_member() {
    let enabled = "garden.member.enabled=true,veleroServiceAccount=velero";
    for (values, flag) in [
        (enabled.to_owned(), "--garden-member"),
        (format!("{enabled},garden.member.hub.existingSecret=of-mine"), "--hub-secret=of-mine"),
        (format!("{enabled},executor=velero,certificates=cert-manager"), "--garden-member"),
    ] {
        let (executor, certificates) = if values.contains("executor=velero") {
            ("velero", "cert-manager")
        } else {
            ("berth", "self-managed")
        };
        let mut ours = documents(&printed(executor, certificates, "elsewhere", &[flag]));
        ours.extend(berth_api::crd::velero().iter().map(|crd| json!(crd)));
        assert_same(rendered_by_helm(&values), ours, &values);
    }
    let without = rendered_by_helm(&format!("{enabled},garden.member.definitions=false"));
    let ours =
        documents(&printed("berth", "self-managed", "elsewhere", &["--garden-member", "--beside-gardener"]));
    let of_gardener = |objects: &[Value]| {
        objects.iter().filter(|one| one["spec"]["group"] == "extensions.gardener.cloud").count()
    };
    assert_eq!((of_gardener(&without), of_gardener(&ours)), (0, 0));
}

#[test]
fn what_the_chart_carries_of_a_member_is_up_to_date() {
    let names = |objects: &[Value]| objects.iter().filter_map(Reference::of).collect::<BTreeSet<_>>();
    let plain = names(&documents(&printed("berth", "self-managed", "release-namespace", &[])));
    for (file, flag) in
        [("garden-member", "--garden-member"), ("garden-courier", "--hub-secret=berth-garden-hub")]
    {
        let mut ours = documents(&printed("berth", "self-managed", "release-namespace", &[flag]));
        ours.retain(|object| {
            let is_new = Reference::of(object).is_some_and(|name| !plain.contains(&name));
            is_new && object["kind"] != "CustomResourceDefinition"
        });
        let path = project().join(format!("manifests/chart/objects/{file}.yaml"));
        let theirs = documents(&std::fs::read_to_string(&path).unwrap());
        assert_same(theirs, ours, &format!("run `make manifests`: {}", path.display()));
    }
}

fn install(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth")).arg("install").args(args).output().unwrap()
}

/// With a token that no other client has.
fn write_kubeconfig(path: &Path, token: &str) {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub",
        "clusters": [{"name": "hub", "cluster": {"server": "https://hub.example.com"}}],
        "users": [{"name": "ship", "user": {"token": token}}],
        "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "ship"}}],
    });
    std::fs::write(path, kubeconfig.to_string()).unwrap();
}

#[test]
fn what_is_printed_has_no_credential_and_says_how_to_make_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub");
    write_kubeconfig(&path, "a-token-of-the-hub");
    let flags = [&format!("--hub-kubeconfig={}", path.display()), "--seed=ship", "--output=yaml"];
    let output = install(&flags);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("a-token-of-the-hub"), "{text}");
    assert!(text.contains("# Secret berth-garden-hub is not among these"), "{text}");
    assert!(text.contains("kubectl create secret generic berth-garden-hub --namespace velero"), "{text}");
    let objects = documents(&text);
    assert!(objects.iter().all(|object| object["kind"] != "Secret"));
    let settings = InstallSettings { member: Some(courier(SECRET)), ..InstallSettings::new("velero") };
    let named: Vec<Value> = objects.into_iter().filter(|object| object["kind"].is_string()).collect();
    assert_same(named, render(&InstallSettings { image: None, ..settings }).unwrap(), "--output=yaml");
}

#[test]
fn a_kubeconfig_that_cannot_work_is_refused_before_anything_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub");
    let flag = format!("--hub-kubeconfig={}", path.display());
    let refused = |extra: &[&str], words: &str| {
        let output = install(&[&[flag.as_str(), "--seed=ship"], extra].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--hub-kubeconfig"), "{said}");
        assert!(said.contains(words) && !said.contains("a-token-of-the-hub"), "{words}: {said}");
    };
    // Not even a kubeconfig of this cluster is there.
    let nowhere = ["--kubeconfig=/nonexistent"];
    refused(&nowhere, "cannot be read");
    refused(&["--output=yaml"], "cannot be read");
    std::fs::write(&path, "token: [a-token-of-the-hub\n  x").unwrap();
    refused(&nowhere, "it is no kubeconfig");
    std::fs::write(&path, "apiVersion: v1\nkind: Config\n").unwrap();
    refused(&nowhere, "no current context");
    write_kubeconfig(&path, "a-token-of-the-hub");
    refused(&["--garden-member=false", nowhere[0]], "use only one of the two");
}
