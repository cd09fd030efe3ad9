//! What lies in `manifests/` is what the code says.

mod image;
mod member;
mod pod_volumes;

use std::collections::BTreeMap;
use std::path::Path;

use berth::install::{InstallSettings, Reference, diff, render, sources};
use berth::settings::{Certificates, Executor};
use berth_core::mover::MoverKind;
use serde_json::{Value, json};

use crate::support::{binaries, project};

#[test]
fn the_definitions_on_disk_are_those_of_the_types() {
    for (folder, definitions) in [
        ("crd", berth_api::crd::velero()),
        ("garden/crd", berth_garden_api::crd::hub()),
        ("components/garden-member/crd", berth_garden_api::crd::member()),
        ("components/pod-volumes/crd", berth_api::crd::pod_volumes()),
    ] {
        for (name, text) in berth_api::crd::files(&definitions).unwrap() {
            let path = project().join("manifests").join(folder).join(&name);
            let found = std::fs::read_to_string(&path).unwrap();
            assert!(found == text, "{name} is out of date: run `make manifests`");
        }
    }
}

#[test]
fn no_definition_has_a_status_subresource_and_backups_can_be_queued() {
    for crd in [berth_api::crd::velero(), berth_api::crd::pod_volumes()].concat() {
        assert!(crd.spec.versions.iter().all(|version| version.subresources.is_none()));
    }
    let text = serde_json::to_string(&berth_api::crd::velero()).unwrap();
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
    for folder in ["base", "components", "crd", "garden", "manager", "rbac", "webhook"] {
        files(&below.join(folder), &below, &mut found);
    }
    found.sort();
    let mut carried: Vec<String> = sources::FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
    carried.sort();
    assert_eq!(found, carried, "src/install/sources.rs");
}

fn by_name(mut objects: Vec<Value>) -> BTreeMap<Reference, Value> {
    objects.iter_mut().for_each(whole);
    objects.into_iter().map(|object| (Reference::of(&object).unwrap(), object)).collect()
}

/// `0.0` is `0` to Go.
fn whole(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(whole),
        Value::Object(fields) => fields.values_mut().for_each(whole),
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0) {
                *value = json!(float as i64);
            }
        }
        _ => {}
    }
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

/// What kubectl's kustomize makes of `manifests/base`, further resources and components.
fn kustomized(resources: &[&str], components: &str) -> Vec<Value> {
    kustomized_with(resources, components, "")
}

/// The same with more lines of a kustomization.
fn kustomized_with(resources: &[&str], components: &str, more: &str) -> Vec<Value> {
    let [kubectl] = binaries::get(["kubectl"]).unwrap();
    // Cargo may build in another folder.
    std::fs::create_dir_all(project().join("target")).unwrap();
    let folder = tempfile::Builder::new().prefix("overlay-").tempdir_in(project().join("target")).unwrap();
    let manifests = "../../manifests";
    let mut text = format!("resources:\n- {manifests}/base\n");
    for resource in resources {
        text += &format!("- {manifests}/{resource}\n");
    }
    text += "components:\n";
    for component in components.split(' ') {
        text += &format!("- {manifests}/components/{component}\n");
    }
    text += more;
    std::fs::write(folder.path().join("kustomization.yaml"), text).unwrap();
    let output = std::process::Command::new(&kubectl).arg("kustomize").arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout).unwrap())
}

/// kubectl's kustomize and `berth install` make the same of the same files.
#[test]
fn kustomize_and_the_binary_agree() {
    for (executor, certificates, components) in [
        (Executor::Berth, Certificates::SelfManaged, "alone without-velero self-managed"),
        (Executor::Berth, Certificates::CertManager, "alone without-velero cert-manager"),
        (Executor::Velero, Certificates::SelfManaged, "beside-velero self-managed"),
        (Executor::Velero, Certificates::CertManager, "beside-velero cert-manager"),
    ] {
        let theirs = kustomized(&[], components);
        let alone = executor == Executor::Berth;
        let settings = InstallSettings {
            executor,
            certificates,
            bring_definitions: alone,
            bring_namespace: alone,
            ..InstallSettings::new("velero")
        };
        assert_same(theirs, render(&settings).unwrap(), components);
    }
}

/// Of all pods only those of data movers are reviewed, and nothing that berth itself or kube-system
/// needs: a berth that does not answer keeps no pod from starting. Cluster-scoped are only shared
/// buckets, and only their deletion waits for an answer.
#[test]
fn the_webhooks_are_asked_about_backups_of_one_namespace_and_shared_buckets_and_about_nothing_else() {
    let mut asked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in render(&InstallSettings::new("elsewhere")).unwrap() {
        for webhook in object["webhooks"].as_array().into_iter().flatten() {
            let name = webhook["name"].as_str().unwrap();
            let is_anywhere = ["garden", "extensions"].iter().any(|of| name.starts_with(of));
            for rule in webhook["rules"].as_array().unwrap() {
                assert_eq!(rule["scope"], if is_anywhere { "*" } else { "Namespaced" }, "{name}");
                asked.entry(name.to_owned()).or_default().extend(resources(rule));
            }
            let selector = &webhook["namespaceSelector"]["matchExpressions"];
            assert_eq!(*selector, if is_anywhere { Value::Null } else { only("elsewhere") }, "{name}");
            let deletes = name == "garden-deletions.validate.berth.dev";
            assert_eq!(webhook["failurePolicy"], if deletes { "Fail" } else { "Ignore" }, "{name}");
            assert_eq!(webhook["timeoutSeconds"], 2, "{name}");
            let conditions = webhook["matchConditions"].to_string();
            if name.starts_with("pods.") {
                assert!(
                    MoverKind::ALL.iter().all(|kind| conditions.contains(kind.pod_label())),
                    "{conditions}"
                );
            } else if name != "backups.mutate.berth.dev" {
                // What the controller writes costs no call.
                assert!(conditions.contains(":berth-controller"), "{name}");
            }
        }
    }
    let expected = [
        ("backups.mutate.berth.dev", vec!["backups.v1.velero.io CREATE".to_owned()]),
        ("queues.guard.berth.dev", vec!["backups.v1.velero.io UPDATE".to_owned()]),
        ("pods.mutate.berth.dev", vec!["pods.v1. CREATE".to_owned()]),
        ("backups.validate.berth.dev", vec!["backups.v1.velero.io CREATE,UPDATE".to_owned()]),
        ("schedules.validate.berth.dev", vec!["schedules.v1.velero.io CREATE,UPDATE".to_owned()]),
        ("movers.validate.berth.dev", movers()),
        ("configmaps.validate.berth.dev", vec!["configmaps.v1. CREATE,UPDATE".to_owned()]),
        ("garden.guard.berth.dev", hub("CREATE,UPDATE", &HUB)),
        (
            "garden.validate.berth.dev",
            [hub("CREATE,UPDATE", &HUB), hub("DELETE", &["seeds", "backupentries"])].concat(),
        ),
        ("garden-deletions.validate.berth.dev", hub("DELETE", &["cloudprofiles", "backupbuckets"])),
        ("extensions.validate.berth.dev", member("CREATE,UPDATE,DELETE")),
        (
            "locations.validate.berth.dev",
            vec!["backupstoragelocations.v1.velero.io CREATE,UPDATE".to_owned()],
        ),
    ];
    assert_eq!(asked, expected.map(|(name, resources)| (name.to_owned(), resources)).into());
}

const HUB: [&str; 4] = ["cloudprofiles", "seeds", "backupbuckets", "backupentries"];

fn hub(operations: &str, resources: &[&str]) -> Vec<String> {
    resources.iter().map(|one| format!("{one}.v1alpha1.garden.berth.dev {operations}")).collect()
}

fn member(operations: &str) -> Vec<String> {
    let of = |one| format!("{one}.v1alpha1.extensions.gardener.cloud {operations}");
    ["backupbuckets", "backupentries"].map(of).into()
}

/// The policies hold whatever becomes of the webhooks: in one namespace, but for shared buckets.
#[test]
fn the_policies_judge_backups_and_data_movers_of_one_namespace_and_shared_buckets() {
    let objects = render(&InstallSettings::new("elsewhere")).unwrap();
    let of = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let mut judged: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for policy in of("ValidatingAdmissionPolicy") {
        assert_eq!(policy["spec"]["failurePolicy"], "Fail");
        let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
        let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
        judged.insert(name, rules.iter().flat_map(resources).collect());
    }
    let backups = vec!["backups.v1.velero.io CREATE,UPDATE".to_owned()];
    let expected = [
        ("berth-guard", backups),
        ("berth-schedules", vec!["schedules.v1.velero.io CREATE,UPDATE".to_owned()]),
        ("berth-deletions", vec!["deletebackuprequests.v1.velero.io CREATE,UPDATE".to_owned()]),
        ("berth-grants", movers()),
        ("berth-locations", vec!["backupstoragelocations.v1.velero.io CREATE,UPDATE".to_owned()]),
        (
            "berth-connect",
            ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "services/proxy", "nodes/proxy"]
                .map(|resource| format!("{resource}.v1. CONNECT"))
                .to_vec(),
        ),
        ("berth-tokens", vec!["secrets.v1. CREATE,UPDATE".to_owned()]),
        ("berth-secrets", vec!["secrets.v1. CREATE,UPDATE,DELETE".to_owned()]),
        ("berth-cloudprofiles", hub("CREATE,UPDATE", &["cloudprofiles"])),
        ("berth-seeds", hub("CREATE,UPDATE", &["seeds"])),
        ("berth-backupbuckets", hub("CREATE,UPDATE", &["backupbuckets"])),
        ("berth-backupentries", hub("CREATE,UPDATE", &["backupentries"])),
        ("berth-places", hub("CREATE,UPDATE", &["backupentries"])),
        ("berth-finalizers", hub("UPDATE", &["backupbuckets", "backupentries"])),
        ("berth-backupentry-deletions", hub("DELETE", &["backupentries"])),
        (
            "berth-letting-go",
            [hub("CREATE,UPDATE", &["backupbuckets", "backupentries"]), member("CREATE,UPDATE")].concat(),
        ),
        ("berth-extensions", member("CREATE,UPDATE")),
        ("berth-extension-deletions", member("DELETE")),
        ("berth-credentials", vec!["secrets.v1. DELETE".to_owned()]),
        (
            "berth-seed-reports",
            hub("UPDATE", &["backupbuckets/status", "backupentries/status", "seeds/status"]),
        ),
    ];
    assert_eq!(judged, expected.map(|(name, resources)| (name.to_owned(), resources)).into());
    let bindings = of("ValidatingAdmissionPolicyBinding");
    assert_eq!(bindings.len(), judged.len());
    for binding in bindings {
        assert_eq!(binding["spec"]["policyName"], binding["metadata"]["name"]);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
        let selector = &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
        let expected = match binding["metadata"]["name"].as_str().unwrap() {
            "berth-guard" | "berth-schedules" | "berth-deletions" | "berth-grants" | "berth-locations" => {
                only("elsewhere")
            }
            "berth-credentials" => only("garden"),
            _ => Value::Null,
        };
        assert_eq!(*selector, expected);
    }
}

fn only(namespace: &str) -> Value {
    json!([{"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}])
}

/// Writes of all four kinds of data movers, as the code names them.
fn movers() -> Vec<String> {
    let of = |kind: &MoverKind| format!("{}.{}.velero.io CREATE,UPDATE", kind.plural(), kind.version());
    MoverKind::ALL.iter().map(of).collect()
}

/// What a rule is about: resource, version and group, and operations.
fn resources(rule: &Value) -> Vec<String> {
    let list = |field: &str| -> Vec<&str> {
        rule[field].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (groups, versions, operations) = (list("apiGroups"), list("apiVersions"), list("operations"));
    assert_eq!((groups.len(), versions.len()), (1, 1), "{rule}");
    let of = |resource: &&str| format!("{resource}.{}.{} {}", versions[0], groups[0], operations.join(","));
    list("resources").iter().map(of).collect()
}

const COMBINATIONS: [(&str, &str); 4] = [
    ("berth", "self-managed"),
    ("berth", "cert-manager"),
    ("velero", "self-managed"),
    ("velero", "cert-manager"),
];

fn printed(executor: &str, certificates: &str, namespace: &str, more: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["install", "--output=yaml", "--beside-velero", "--namespace", namespace])
        .args(["--executor", executor, "--certificates", certificates])
        .args(["--concurrent-backups=1", "--item-block-worker-count=1"])
        .args(more)
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

/// What Helm renders in namespace `elsewhere` with these values, but for what only its users
/// choose.
fn rendered_by_helm(values: &str) -> Vec<Value> {
    let output = helm(&["--namespace=elsewhere", "--set", values]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut objects = documents(&String::from_utf8(output.stdout).unwrap());
    for object in &mut objects {
        if object["kind"] == "CustomResourceDefinition" || object["kind"] == "Namespace" {
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
    objects
}

/// Helm renders what `berth install` applies.
#[test]
fn the_chart_and_the_binary_agree() {
    for (executor, certificates) in COMBINATIONS {
        let values = format!("executor={executor},certificates={certificates},veleroServiceAccount=velero");
        let theirs = rendered_by_helm(&values);
        let mut ours = documents(&printed(executor, certificates, "elsewhere", &[]));
        ours.extend(berth_api::crd::velero().iter().map(|crd| serde_json::to_value(crd).unwrap()));
        assert_same(theirs, ours, &format!("{executor} {certificates}"));
    }
    let said = "webhook.timeoutSeconds=5,webhook.reviewsFrom={10.0.0.0/28},webhook.clientCAConfigMap=callers";
    let theirs = rendered_by_helm(&format!("veleroServiceAccount=velero,{said}"));
    let flags = ["--webhook-timeout=5s", "--reviews-from=10.0.0.0/28", "--client-ca-configmap=callers"];
    let mut ours = documents(&printed("berth", "self-managed", "elsewhere", &flags));
    assert!(ours.iter().any(|o| o["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"] == "10.0.0.0/28"));
    ours.extend(berth_api::crd::velero().iter().map(|crd| serde_json::to_value(crd).unwrap()));
    assert_same(theirs, ours, said);
}

#[test]
fn the_chart_gives_the_controller_as_long_to_end_as_is_said() {
    let objects = rendered_by_helm("controller.terminationGracePeriodSeconds=3420");
    let grace = |name: &str| {
        let is_it = |one: &&Value| one["kind"] == "Deployment" && one["metadata"]["name"] == name;
        let found = objects.iter().find(is_it).unwrap();
        found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone()
    };
    assert_eq!(grace("berth-controller"), 3420);
    assert_ne!(grace("berth-webhook"), 3420);
}

#[test]
fn what_the_chart_carries_is_up_to_date() {
    for (executor, certificates) in COMBINATIONS {
        let path = project().join(format!("manifests/chart/objects/{executor}-{certificates}.yaml"));
        let mut ours = documents(&printed(executor, certificates, "release-namespace", &[]));
        ours.retain(|object| object["kind"] != "CustomResourceDefinition");
        for object in &mut ours {
            if let Some(args) = object.pointer_mut("/spec/template/spec/containers/0/args") {
                let settings = ["--concurrent-backups=1", "--item-block-worker-count=1"];
                args.as_array_mut().unwrap().retain(|arg| !settings.contains(&arg.as_str().unwrap()));
            }
        }
        let theirs = documents(&std::fs::read_to_string(&path).unwrap());
        assert_same(theirs, ours, &format!("run `make manifests`: {}", path.display()));
    }
    for (file, ours) in [
        ("definitions", berth_api::crd::velero()),
        ("garden-definitions", berth_garden_api::crd::hub()),
        ("garden-member-definitions", berth_garden_api::crd::member()),
        ("pod-volumes-definitions", berth_api::crd::pod_volumes()),
    ] {
        let path = project().join(format!("manifests/chart/objects/{file}.yaml"));
        let theirs = documents(&std::fs::read_to_string(path).unwrap());
        let ours = ours.iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
        assert_same(theirs, ours, "run `make manifests`");
    }
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
        let is_guard = |object: &&Value| {
            object["kind"] == "ValidatingAdmissionPolicy" && object["metadata"]["name"] == "berth-guard"
        };
        let policy = objects.iter().find(is_guard).unwrap();
        let judged = policy.to_string();
        assert_eq!(judged.matches("request.namespace + ':velero-server'").count(), 2, "{judged}");
        assert!(!judged.contains("':velero'"), "{judged}");
        for flag in ["lifecycle", "executor"] {
            let wanted = format!("--{flag}-identity=system:serviceaccount:velero:velero-server");
            assert!(text.contains(&wanted), "{wanted}: {text}");
        }
    }
}

/// A user who may create service accounts gains nothing by one of Velero's name where there is no
/// Velero.
#[test]
fn velero_is_trusted_where_it_is_installed_and_nowhere_else() {
    let printed = |flags: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["install", "--output=yaml", "--namespace=elsewhere"])
            .args(["--concurrent-backups=1", "--item-block-worker-count=1"])
            .args(flags)
            .output()
            .unwrap();
        documents(&String::from_utf8(output.stdout).unwrap())
    };
    let judges = |mut objects: Vec<Value>| {
        objects.retain(|one| one["kind"] == "Deployment" || one["kind"] == "ValidatingAdmissionPolicy");
        objects
    };
    for (flags, values, is_trusted) in [
        (&["--beside-velero"][..], "definitions=false", true),
        (&[], "definitions=true", false),
        (&["--velero-service-account=velero"], "veleroServiceAccount=velero", true),
        (&["--executor=velero"], "executor=velero", true),
    ] {
        let (theirs, ours) = (judges(rendered_by_helm(values)), judges(printed(flags)));
        let text = json!(ours).to_string();
        assert_eq!(text.contains(":velero'"), is_trusted, "{flags:?}");
        assert_eq!(text.contains("--without-velero"), !is_trusted, "{flags:?}");
        assert_same(theirs, ours, values);
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
        ("webhook.timeoutSeconds=31", "timeoutSeconds"),
        ("webhook.reviewsFrom={10.0.0.1}", "reviewsFrom"),
        ("webhook.clientCAConfigMap=No Name", "clientCAConfigMap"),
        ("controller.terminationGracePeriodSeconds=0", "terminationGracePeriodSeconds"),
        ("webhook.terminationGracePeriodSeconds=300", "terminationGracePeriodSeconds"),
        ("replicas=2", "replicas"),
        ("veleroServiceAccount=No Name", "veleroServiceAccount"),
        ("image.tag=@sha256:0", "tag"),
        ("image.digest=sha256:0", "digest"),
        ("podVolumes.enabled=perhaps", "enabled"),
        ("podVolumes.enabled=true,executor=velero", "podVolumes.enabled"),
        ("podVolumes.filesByMovers=true", "podVolumes.enabled=true"),
        ("garden.member.enabled=perhaps", "enabled"),
        ("garden.member.replicas=0", "replicas"),
        ("garden.member.hub.existingSecret=No Name", "existingSecret"),
        ("garden.member.hub.kubeconfig=text", "kubeconfig"),
        ("garden.member.hub.existingSecret=hub", "garden.member.enabled=true"),
    ] {
        let output = helm(&["--set", value]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(field), "{value}: {said}");
    }
}
