//! `berth install`, `uninstall` and `check` against an API server that runs no pods: what is
//! written, what is refused, what is left. Whether it works once installed: `cluster.rs`.

mod kept;
mod member;
mod pod_volumes;
mod running;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::admission::program;
use crate::support::control_plane::Scope;
use crate::support::times::Wait;
use crate::support::{ControlPlane, PATIENCE, wait_for};

/// What a command said on both streams.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn berth(kubeconfig: &Path, args: &[&str]) -> Output {
    let _wait = Wait::start(&format!("berth {}", args.first().unwrap_or(&"")));
    Command::new(program()).args(args).arg("--kubeconfig").arg(kubeconfig).output().unwrap()
}

fn apply(plane: &ControlPlane, objects: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    plane.kubectl().run_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &list).unwrap();
}

/// Everything of an installation, applied as GitOps would.
fn apply_printed(plane: &ControlPlane, args: &[&str]) {
    let output = Command::new(program()).args(["install", "--output=yaml"]).args(args).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let (definitions, others): (Vec<Value>, Vec<Value>) = serde_saphyr::from_multiple::<Value>(&text)
        .unwrap()
        .into_iter()
        .partition(|o| o["kind"] == "CustomResourceDefinition");
    apply(plane, &definitions);
    plane.kubectl().await_definitions().unwrap();
    apply(plane, &others);
}

/// Waits until no definition is on its way out: what is applied to one goes with it.
fn await_gone(plane: &ControlPlane) {
    wait_for("definitions that were removed to be gone", PATIENCE, || {
        let found: Value = serde_json::from_str(&plane.kubectl().run(&["get", "crd", "-o", "json"])?)?;
        let mut definitions = found["items"].as_array().into_iter().flatten();
        Ok(definitions.all(|one| one["metadata"]["deletionTimestamp"].is_null()).then_some(()))
    })
    .unwrap();
}

fn names(plane: &ControlPlane, kinds: &str) -> Vec<String> {
    await_gone(plane);
    let args = ["get", kinds, "--all-namespaces", "-l", "app.kubernetes.io/part-of=berth", "-o", "name"];
    plane.kubectl().run(&args).unwrap().lines().map(str::to_owned).collect()
}

const KINDS: &str = "daemonsets,deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets,networkpolicies,priorityclasses,mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,customresourcedefinitions,namespaces";

fn velero_deployment(args: &[&str]) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "velero", "namespace": "velero", "labels": {"component": "velero"}},
        "spec": {
            "selector": {"matchLabels": {"deploy": "velero"}},
            "template": {
                "metadata": {"labels": {"deploy": "velero"}},
                "spec": {"containers": [{"name": "velero", "image": "velero/velero:v1.18.3", "command": ["/velero"], "args": args}]},
            },
        },
    })
}

/// One control plane for all of these, one after another: what is installed is cluster-wide.
#[test]
fn installation_and_removal_without_pods() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    let admin = plane.kubeconfig();
    a_dry_run_writes_nothing(&plane, &admin);
    missing_rights_are_named(&plane);
    a_stranger_is_left_alone(&plane, &admin);
    the_engine_reads_what_is_listed_and_what_comes_later_is_named(&plane, &admin);
    kept::what_somebody_added_stays_until_he_takes_it_out(&plane, &admin);
    pod_volumes::node_agents_come_stay_and_go(&plane, &admin);
    running::what_berth_runs_ends_before_a_velero_is_to_run_backups(&plane, &admin);
    what_is_half_gone_is_removed(&plane, &admin);
    backups_and_what_holds_them_stay(&plane, &admin);
    shared_buckets_and_somebody_elses_garden_stay(&plane, &admin);
    an_old_definition_is_named(&plane, &admin);
    velero_is_found_and_adjusted_and_put_back(&plane, &admin);
}

/// Before 1.30 there were none: berth comes without its guard, and says so.
#[test]
fn an_api_server_without_policies_gets_everything_else() {
    let plane = ControlPlane::start_with(Scope::ObjectsWithoutPolicies).unwrap();
    let admin = plane.kubeconfig();
    let output = berth(&admin, &["install", "--timeout=1s"]);
    let text = said(&output);
    assert!(text.contains("knows no ValidatingAdmissionPolicy: installed without"), "{text}");
    assert!(
        text.contains("clusterrole/berth-engine created") && !text.contains("validatingadmissionpolicy"),
        "{text}"
    );
    let given = plane.kubectl().run(&[
        "get",
        "clusterroles,clusterrolebindings,roles,rolebindings",
        "-A",
        "-o",
        "name",
    ]);
    let given = given.unwrap();
    assert!(!given.contains("berth-garden-seeds"), "nothing would fence what Seeds write");
    assert!(!given.contains("berth-hooks"), "nothing would fence whose Backups run commands in pods");
    // It would have gone on to the webhooks, had its pods come up.
    assert!(text.contains("not ready after 1 s"), "{text}");
    assert!(said(&berth(&admin, &["check"])).contains("knows no ValidatingAdmissionPolicy"));
    let output = berth(&admin, &["uninstall"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn a_dry_run_writes_nothing(plane: &ControlPlane, admin: &Path) {
    let before = berth(admin, &["check"]);
    assert!(before.status.success(), "{}", said(&before));
    assert!(said(&before).contains("berth is not installed in namespace velero"), "{}", said(&before));
    let output = berth(admin, &["install", "--dry-run"]);
    assert!(output.status.success(), "{}", said(&output));
    for line in ["namespace/velero created (dry run)", "deployment/berth-webhook in velero created (dry run)"]
    {
        assert!(said(&output).contains(line), "{}", said(&output));
    }
    let output = berth(admin, &["install", "--diff", "--concurrent-backups=3"]);
    let is_added = |line: &str| line.starts_with('+') && line.contains("--concurrent-backups=3");
    assert!(said(&output).lines().any(is_added), "{}", said(&output));
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
    let refused = berth(admin, &["install", "--certificates=cert-manager"]);
    assert!(
        !refused.status.success() && said(&refused).contains("cert-manager is not installed"),
        "{}",
        said(&refused)
    );
    let refused = berth(admin, &["install", "--beside-velero"]);
    assert!(
        !refused.status.success() && said(&refused).contains("there is no Velero here"),
        "{}",
        said(&refused)
    );
}

fn missing_rights_are_named(plane: &ControlPlane) {
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "serviceaccount", "reader", "-n", "default"]).unwrap();
    let (role, account) = ("--clusterrole=reader", "--serviceaccount=default:reader");
    kubectl.run(&["create", "clusterrole", "reader", "--verb=get,list", "--resource=*.*"]).unwrap();
    kubectl.run(&["create", "clusterrolebinding", "reader", role, account]).unwrap();
    kubectl.await_right("system:serviceaccount:default:reader", "default", "list", "secrets").unwrap();
    let reader = plane.service_account_kubeconfig("default", "reader").unwrap();
    let output = berth(&reader, &["install"]);
    let text = said(&output);
    assert!(!output.status.success(), "{text}");
    for right in [
        "nothing was changed",
        "patch customresourcedefinitions.apiextensions.k8s.io",
        "create deployments.apps in velero",
        "patch mutatingwebhookconfigurations.admissionregistration.k8s.io",
    ] {
        assert!(text.contains(right), "{right}: {text}");
    }
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
    let output = berth(&reader, &["check"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("you lack rights to install"), "{}", said(&output));
    let nobody = berth(Path::new("/nonexistent"), &["check"]);
    assert_eq!(nobody.status.code(), Some(2), "{}", said(&nobody));
    kubectl.run(&["delete", "clusterrolebinding,clusterrole", "reader"]).unwrap();
}

fn a_stranger_is_left_alone(plane: &ControlPlane, admin: &Path) {
    let webhook = |service_namespace: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "berth", "labels": {}, "annotations": {}},
            "webhooks": [{
                "name": "backups.mutate.berth.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"service": {"name": "berth-webhook", "namespace": service_namespace}},
            }],
        })
    };
    apply(plane, &[webhook("elsewhere")]);
    for command in ["install", "uninstall"] {
        let output = berth(admin, &[command]);
        assert!(
            !output.status.success() && said(&output).contains("--namespace elsewhere"),
            "{}",
            said(&output)
        );
    }
    let mut of_helm = webhook("velero");
    of_helm["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "Helm"});
    of_helm["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "berth"});
    apply(plane, &[of_helm]);
    let output = berth(admin, &["install"]);
    assert!(!output.status.success() && said(&output).contains("helm upgrade berth"), "{}", said(&output));
    let kubectl = plane.kubectl();
    kubectl.run(&["delete", "mutatingwebhookconfiguration", "berth"]).unwrap();
    // A user's own role, which happens to have one of berth's names.
    const ROLE: &str = "berth-operator";
    kubectl.run(&["create", "clusterrole", ROLE, "--verb=get", "--resource=pods"]).unwrap();
    let read = || kubectl.run(&["get", "clusterrole", ROLE, "-o", "json"]).unwrap();
    let before = read();
    let is_refused = || {
        for flags in [&["install"][..], &["install", "--dry-run"]] {
            let output = berth(admin, flags);
            let text = said(&output);
            assert!(!output.status.success() && text.contains("clusterrole/berth-operator"), "{text}");
            assert!(text.contains("--adopt") && !text.contains("created"), "{text}");
        }
    };
    is_refused();
    let output = berth(admin, &["install", "--adopt", "--dry-run"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("clusterrole/berth-operator is taken over"), "{text}");
    assert!(text.contains("clusterrole/berth-operator changed (dry run)"), "{text}");
    assert_eq!(read(), before, "nothing of it was written");
    // Anybody may have given it that label.
    kubectl.run(&["label", "clusterrole", ROLE, "app.kubernetes.io/part-of=berth"]).unwrap();
    is_refused();
    kubectl.run(&["delete", "clusterrole", ROLE]).unwrap();
}

fn what_is_half_gone_is_removed(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    for missing in [
        "deployment/berth-webhook",
        "clusterrole/berth-engine",
        "role/berth-controller",
        "crd/backups.velero.io",
    ] {
        apply_printed(plane, &[]);
        assert!(names(plane, KINDS).len() > 25);
        kubectl.run(&["delete", missing, "-n", "velero"]).unwrap();
        let output = berth(admin, &["uninstall"]);
        assert!(output.status.success(), "{}", said(&output));
        let left: Vec<String> =
            names(plane, KINDS).into_iter().filter(|name| !name.starts_with("namespace/")).collect();
        assert_eq!(left, Vec::<String>::new(), "{missing}: {}", said(&output));
        // No controller finishes the deletion of a namespace here.
        kubectl
            .run(&["get", "namespace", "velero", "-o", "jsonpath={.metadata.deletionTimestamp}"])
            .map(|at| assert!(!at.is_empty()))
            .unwrap();
        finish_namespaces(plane);
    }
    let again = berth(admin, &["uninstall"]);
    assert!(again.status.success(), "{}", said(&again));
}

/// What kube-controller-manager would do, for each namespace that is on its way out. Definitions go
/// by themselves.
fn finish_namespaces(plane: &ControlPlane) {
    await_gone(plane);
    for name in ["velero", "garden", "garden-seeds"] {
        let found =
            plane.kubectl().run(&["get", "namespace", name, "--ignore-not-found", "-o", "json"]).unwrap();
        let Ok(mut namespace) = serde_json::from_str::<Value>(&found) else { continue };
        if namespace["metadata"]["deletionTimestamp"].is_null() {
            continue;
        }
        namespace["spec"]["finalizers"] = json!([]);
        put(plane, &format!("/api/v1/namespaces/{name}/finalize"), &namespace);
    }
}

/// Writes there as the admin: dozens of times, for which `kubectl replace --raw` takes a process.
fn put(plane: &ControlPlane, path: &str, object: &Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let request = http::Request::put(path).header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(object.to_string().into_bytes()).unwrap();
    runtime
        .block_on(async { plane.client().await?.request_text(request).await.map_err(anyhow::Error::from) })
        .unwrap();
}

fn backups_and_what_holds_them_stay(plane: &ControlPlane, admin: &Path) {
    apply_printed(plane, &[]);
    let kubectl = plane.kubectl();
    let samples = crate::support::project().join("manifests/samples");
    let sample = |name: &str| samples.join(name).to_str().unwrap().to_owned();
    kubectl.run(&["create", "-f", &sample("backupstoragelocation-accepted.yaml")]).unwrap();
    kubectl.run(&["create", "-f", &sample("backup-accepted.yaml")]).unwrap();
    kubectl
        .run(&["annotate", "backup.velero.io", "sample-accepted", "-n", "velero", "berth.dev/hold=true"])
        .unwrap();
    kubectl.run(&["annotate", "bsl", "sample-accepted", "-n", "velero", "berth.dev/hold=true"]).unwrap();
    kubectl.run(&["create", "--dry-run=server", "-f", &sample("resourcequota-accepted.yaml")]).unwrap();
    let refused =
        kubectl.answer(&["create", "-f", &sample("backupstoragelocation-refused.yaml")], "").unwrap();
    assert!(!refused.status.success() && refused.stderr.contains("accessMode"), "{}", refused.stderr);
    // What a controller writes while it grants places to data movers.
    let ledger = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "berth-mover-grants", "namespace": "velero", "labels": {"app.kubernetes.io/part-of": "berth"}},
    });
    apply(plane, &[ledger]);
    let output = berth(admin, &["uninstall"]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for line in [
        "configmap/berth-mover-grants in velero removed",
        "customresourcedefinition/backups.velero.io kept",
        "customresourcedefinition/backupstoragelocations.velero.io kept",
        "namespace/velero kept: there are backup",
        "backup sample-accepted released",
        "backupstoragelocation sample-accepted released",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    finish_namespaces(plane);
    let left = names(plane, KINDS);
    assert_eq!(left.len(), 3, "{left:?}");
    kubectl.run(&["delete", "backup.velero.io,bsl", "sample-accepted", "-n", "velero"]).unwrap();
    let output = berth(admin, &["uninstall"]);
    assert!(said(&output).contains("namespace/velero removed"), "{}", said(&output));
    finish_namespaces(plane);
}

fn shared_buckets_and_somebody_elses_garden_stay(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    let uninstall = || {
        let output = berth(admin, &["uninstall"]);
        assert!(output.status.success(), "{}", said(&output));
        finish_namespaces(plane);
        said(&output)
    };
    // Ours: stays as long as something is in it, and so do the kinds.
    apply_printed(plane, &[]);
    kubectl.run(&["delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "berth"]).unwrap();
    kubectl
        .run(&["create", "secret", "generic", "operator", "-n", "garden", "--from-literal=accessKeyID=a"])
        .unwrap();
    let seed = json!({
        "apiVersion": "garden.berth.dev/v1alpha1",
        "kind": "Seed",
        "metadata": {"name": "one"},
        "spec": {"cloudProfileName": "p", "region": "r"},
    });
    apply(plane, &[seed]);
    let text = uninstall();
    for line in [
        "role/berth-webhook-garden in garden removed",
        "namespace/garden kept: there are secret/operator",
        "customresourcedefinition/seeds.garden.berth.dev kept: there are objects of it (1)",
        "customresourcedefinition/cloudprofiles.garden.berth.dev removed",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    kubectl.run(&["delete", "seeds.garden.berth.dev", "one"]).unwrap();
    kubectl.run(&["delete", "secret", "operator", "-n", "garden"]).unwrap();
    assert!(uninstall().contains("namespace/garden removed"));
    // Another owner's: used, and neither marked as berth's nor removed.
    kubectl.run(&["create", "namespace", "garden"]).unwrap();
    let output = berth(admin, &["install", "--timeout=1s"]);
    let text = said(&output);
    assert!(
        text.contains("role/berth-webhook-garden in garden created") && !text.contains("namespace/garden "),
        "{text}"
    );
    member::a_seeds_rights_are_no_left_over(plane, admin);
    let text = uninstall();
    assert!(
        text.contains("role/berth-webhook-garden in garden removed") && !text.contains("namespace/garden "),
        "{text}"
    );
    kubectl.run(&["get", "namespace", "garden"]).unwrap();
    kubectl.run(&["delete", "namespace", "garden", "--wait=false"]).unwrap();
    finish_namespaces(plane);
}

fn an_old_definition_is_named(plane: &ControlPlane, admin: &Path) {
    let mut old = serde_json::to_value(&berth_api::crd::velero()[0]).unwrap();
    old["metadata"]["labels"] = json!({"component": "velero"});
    let phases = old
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/phase/enum")
        .unwrap();
    phases.as_array_mut().unwrap().retain(|phase| phase != "Queued" && phase != "ReadyToStart");
    apply(plane, &[old]);
    let output = berth(admin, &["install"]);
    let text = said(&output);
    assert!(
        !output.status.success() && text.contains("no phase Queued") && text.contains("--crds-only"),
        "{text}"
    );
    let output = berth(admin, &["check"]);
    assert!(output.status.code() == Some(1) && said(&output).contains("--crds-only"), "{}", said(&output));
    plane.kubectl().run(&["delete", "crd", "backups.velero.io"]).unwrap();
}

fn velero_is_found_and_adjusted_and_put_back(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "namespace", "velero"]).unwrap();
    let mut definitions: Vec<Value> =
        berth_api::crd::velero().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    for definition in &mut definitions {
        definition["metadata"]["labels"] = json!({"component": "velero"});
    }
    apply(plane, &definitions);
    apply(plane, &[velero_deployment(&["server", "--features=", "--disable-controllers=gc"])]);
    let args = || -> Value {
        let text = kubectl.run(&["get", "deployment", "velero", "-n", "velero", "-o", "json"]).unwrap();
        let found: Value = serde_json::from_str(&text).unwrap();
        found["spec"]["template"]["spec"]["containers"][0]["args"].clone()
    };
    let plain = json!(["server", "--features=", "--disable-controllers=gc"]);
    let output = berth(admin, &["install", "--dry-run"]);
    let text = said(&output);
    assert!(
        text.contains("found Velero (Deployment velero)") && text.contains("backup-queue, backup"),
        "{text}"
    );
    assert!(!text.contains("namespace/velero") && !text.contains(".velero.io"), "{text}");
    let output = berth(admin, &["install", "--dry-run", "--adjust-velero", "--executor=velero"]);
    assert!(said(&output).contains("+--disable-controllers=gc,backup-queue"), "{}", said(&output));
    assert_eq!(args(), plain);
    let refused = berth(admin, &["install"]);
    assert!(
        !refused.status.success() && said(&refused).contains("two must not; nothing was changed"),
        "{}",
        said(&refused)
    );
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
    // Nothing runs pods here: the wait is given up, what was applied is there.
    let output = berth(admin, &["install", "--executor=velero", "--adjust-velero", "--timeout=1s"]);
    assert!(
        !output.status.success() && said(&output).contains("berth-webhook 0 of 2 ready"),
        "{}",
        said(&output)
    );
    assert_eq!(args(), plain, "an installation that fails changes nothing of Velero");
    // As an earlier one that went through would have left it.
    kubectl
        .run(&[
            "annotate",
            "deployment",
            "velero",
            "-n",
            "velero",
            "berth.dev/disabled-controllers=backup,backup-queue",
        ])
        .unwrap();
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "velero", "args": ["server", "--features=", "--disable-controllers=gc,backup,backup-queue"]}]}}}});
    kubectl.run(&["patch", "deployment", "velero", "-n", "velero", "-p", &patch.to_string()]).unwrap();
    let output = berth(admin, &["uninstall"]);
    let text = said(&output);
    assert!(output.status.success() && text.contains("Velero runs backups by itself again"), "{text}");
    assert_eq!(args(), plain);
    finish_namespaces(plane);
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
    kubectl.run(&["get", "crd", "backups.velero.io"]).unwrap();
    kubectl.run(&["get", "namespace", "velero"]).unwrap();
}

fn the_engine_reads_what_is_listed_and_what_comes_later_is_named(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    // No pod comes up here.
    let install = |flags: &[&str]| said(&berth(admin, &[&["install", "--timeout=1s"][..], flags].concat()));
    let rules = || {
        let text = kubectl.run(&["get", "clusterrole", "berth-engine", "-o", "json"]).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["rules"].to_string()
    };
    let text = install(&["--engine-rights=listed"]);
    assert!(text.contains("clusterrole/berth-engine created"), "{text}");
    for one in ["\"secrets\"", "\"deployments\"", "\"backups\"", "[\"get\",\"list\"]"] {
        assert!(rules().contains(one), "{one}: {}", rules());
    }
    assert!(!rules().contains('*') && !rules().contains('/'), "{}", rules());
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.test"},
        "spec": {
            "group": "example.test", "scope": "Namespaced",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets", "singular": "widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    });
    apply(plane, &[definition]);
    let checked = |wanted: &str| {
        wait_for(&format!("berth check to say {wanted:?}"), PATIENCE, || {
            Ok(said(&berth(admin, &["check"])).contains(wanted).then_some(()))
        })
        .unwrap();
    };
    checked("and they are missing in backups: widgets.example.test");
    checked("berth install --namespace velero --engine-rights=listed");
    let printed = said(&berth(admin, &["install", "--output=yaml", "--engine-rights=listed"]));
    assert!(printed.contains("- widgets"), "{printed}");
    // As it is installed.
    install(&[]);
    assert!(rules().contains("widgets"), "{}", rules());
    checked("to read each of the ");
    install(&["--engine-rights=all"]);
    assert!(rules().contains("[\"*\"]"), "{}", rules());
    kubectl.run(&["delete", "crd", "widgets.example.test"]).unwrap();
    let output = berth(admin, &["uninstall"]);
    assert!(output.status.success(), "{}", said(&output));
    finish_namespaces(plane);
}

/// kube takes a proxy of the environment whatever NO_PROXY says.
#[test]
fn a_proxy_of_the_environment_is_used_for_nothing_and_the_way_out_is_told() {
    let plane = ControlPlane::shared().unwrap();
    let asked = |exempt: &str| {
        let mut command = Command::new(program());
        command.args(["check", "--kubeconfig"]).arg(plane.kubeconfig());
        // No server listens there.
        command.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", exempt).output().unwrap()
    };
    let refused = asked("example.com");
    assert!(
        !refused.status.success() && said(&refused).contains("add 127.0.0.1 to NO_PROXY"),
        "{}",
        said(&refused)
    );
    let direct = asked("example.com,127.0.0.1");
    assert!(said(&direct).contains("Kubernetes v1"), "{}", said(&direct));
}
