//! The guard in the API server says the same as the rules in `berth_core::guard`, case by case, with berth away; and
//! grants are given by berth alone.

use berth::movers::granting;
use berth_api::velero::Backup;
use berth_core::guard::{Change, Roles, judge};
use berth_core::mover::MoverKind;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::queue::{PATIENCE, start};
use crate::rights::movers::mover;
use crate::support::backup::backup_of;
use crate::support::peers::define_movers;
use crate::support::{ControlPlane, Kubectl, manifest, wait_until};

const PHASES: [&str; 7] = ["", "New", "Queued", "ReadyToStart", "InProgress", "Completed", "Deleting"];

async fn client_of(plane: &ControlPlane, user: &str) -> Client {
    let file = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

fn name_of(phase: &str) -> String {
    if phase.is_empty() { "none".to_owned() } else { phase.to_lowercase() }
}

/// A dry run of a merge patch: would it go through?
async fn goes_through(api: &Api<Backup>, phase: &str, patch: &Value) -> bool {
    passes("berth-guard", api.patch(&name_of(phase), &dry_run(), &Patch::Merge(patch)).await)
}

fn dry_run() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

/// Or has this policy refused it?
fn passes<T>(policy: &str, answer: Result<T, kube::Error>) -> bool {
    match answer {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(policy) => false,
        Err(error) => panic!("{error}"),
    }
}

/// As far as roles go.
fn let_do_everything(kubectl: &Kubectl, users: &[&str]) {
    let mut bind = vec!["create", "clusterrolebinding", "guard-everybody", "--clusterrole=cluster-admin"];
    let named: Vec<String> = users.iter().map(|user| format!("--user={user}")).collect();
    bind.extend(named.iter().map(String::as_str));
    kubectl.run(&bind).unwrap();
}

#[tokio::test]
async fn the_policy_and_the_rules_agree_case_by_case() {
    let mut berth = start("guard", 1);
    let ns = berth.namespace().to_owned();
    berth.controller.process.kill().unwrap();
    berth.webhook.process.kill().unwrap();
    let kubectl = berth.kubectl().clone();
    kubectl.run(&["delete", "validatingadmissionpolicybinding", "berth-guard-guard"]).unwrap();
    for phase in PHASES {
        let mut object = backup_of(&name_of(phase), &["a"]);
        if !phase.is_empty() {
            object["status"] = json!({"phase": phase});
        }
        wait_until("the guard to be off", PATIENCE, async || {
            Ok(kubectl.create(&ns, std::slice::from_ref(&object))?.status.success().then_some(()))
        })
        .await
        .unwrap();
    }
    let users =
        ["mallory", "system:serviceaccount:guard:berth-controller", "system:serviceaccount:guard:velero"];
    let_do_everything(&kubectl, &users);
    berth.plane().install(manifest::objects(&ns, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let nobody = Roles::default();
    let berth_itself = Roles { queue: true, executor: true, lifecycle: false };
    let velero = Roles { lifecycle: true, ..nobody };
    let mut judged = 0;
    for (user, roles) in users.into_iter().zip([nobody, berth_itself, velero]) {
        let api: Api<Backup> = Api::namespaced(client_of(berth.plane(), user).await, &ns);
        if user == "mallory" {
            wait_until("the guard to be on", PATIENCE, async || {
                let forged = json!({"status": {"phase": "Completed"}});
                Ok((!goes_through(&api, "Queued", &forged).await).then_some(()))
            })
            .await
            .unwrap();
        }
        for from in PHASES {
            for to in PHASES.into_iter().filter(|to| !to.is_empty()) {
                let patch = json!({"status": {"phase": to, "queuePosition": 7}});
                let change = Change {
                    from: Some(from),
                    to,
                    status_changed: true,
                    spec_changed: false,
                    marks_changed: false,
                };
                let expected = judge(roles, &change).is_ok();
                assert_eq!(goes_through(&api, from, &patch).await, expected, "{user}: {from:?} to {to:?}");
                judged += 1;
            }
            for (patch, spec_changed, marks_changed) in [
                (json!({"spec": {"includedNamespaces": ["b"]}}), true, false),
                (
                    json!({"metadata": {"annotations": {"berth.dev/enqueued-at": "2000-01-01T00:00:00Z"}}}),
                    false,
                    true,
                ),
                (json!({"metadata": {"annotations": {"berth.dev/resolved-namespaces": "x"}}}), false, true),
                (
                    json!({"metadata": {"annotations": {"berth.dev/hold": "true"}, "labels": {"a": "b"}}}),
                    false,
                    false,
                ),
            ] {
                let change =
                    Change { from: Some(from), to: from, status_changed: false, spec_changed, marks_changed };
                let expected = judge(roles, &change).is_ok();
                assert_eq!(goes_through(&api, from, &patch).await, expected, "{user}: {from:?}: {patch}");
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 3 * 7 * (6 + 4));
    // What a running backup holds is not for its creator to say; a finished one that is copied brings it along.
    for (phase, legal) in [("Queued", false), ("Completed", true)] {
        let mut forged = backup_of("forged", &["a"]);
        forged["metadata"]["annotations"] = json!({"berth.dev/resolved-namespaces": ""});
        forged["status"] = json!({"phase": phase});
        let answer = kubectl.create(&ns, &[forged]).unwrap();
        assert_eq!(answer.status.success(), legal, "{phase}: {}", answer.stderr);
    }
    // An update that only spells out that there is no status changes nothing.
    let api: Api<Backup> = Api::namespaced(client_of(berth.plane(), users[0]).await, &ns);
    assert!(goes_through(&api, "", &json!({"status": {}, "metadata": {"labels": {"a": "c"}}})).await);
}

fn born(kind: MoverKind, name: &str, namespace: &str, phase: &str, grant: Option<&str>) -> DynamicObject {
    let mut object = mover(kind, name, namespace, false);
    object["status"] = json!({"phase": phase});
    object["metadata"]["annotations"] = json!(grant.map(|grant| json!({"berth.dev/granted": grant})));
    serde_json::from_value(object).unwrap()
}

/// No webhook answers, and yet nobody gives himself a place, or takes one from others. Everything else is free.
#[tokio::test]
async fn grants_are_given_and_taken_by_the_controller_alone() {
    const NS: &str = "grants";
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    define_movers(&plane).unwrap();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let accounts = ["berth-controller", "berth-webhook", "velero"];
    let [controller, webhook, velero] = accounts.map(|name| format!("system:serviceaccount:{NS}:{name}"));
    let users = [controller.as_str(), &webhook, &velero, "mallory"];
    let_do_everything(plane.kubectl(), &users);
    let create = PostParams { dry_run: true, ..PostParams::default() };
    for user in users {
        let client = client_of(&plane, user).await;
        let is_controller = user == controller;
        for kind in MoverKind::ALL {
            let api = granting::api(&client, NS, kind);
            if is_controller {
                for (name, phase, grant) in
                    [("plain", "New", None), ("granted", "New", Some("x")), ("over", "Failed", Some("x"))]
                {
                    let object = born(kind, name, NS, phase, grant);
                    api.create(&PostParams::default(), &object).await.unwrap();
                }
            } else {
                wait_until("the policy to be on", PATIENCE, async || {
                    let forged = born(kind, "forged", NS, "New", Some("x"));
                    Ok((!passes("berth-grants", api.create(&create, &forged).await)).then_some(()))
                })
                .await
                .unwrap();
            }
            for (phase, grant, is_anybodys) in [
                ("New", None, true),
                ("Accepted", Some("x"), false),
                // Velero copies what has ended from a store, with all its annotations.
                ("Completed", Some("x"), true),
            ] {
                let answer = api.create(&create, &born(kind, "new", NS, phase, grant)).await;
                let passed = passes("berth-grants", answer);
                assert_eq!(passed, is_anybodys || is_controller, "{user}: {kind} {phase} {grant:?}");
            }
            let grant = |value: Value| json!({"metadata": {"annotations": {"berth.dev/granted": value}}});
            let free = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec": {"cancel": true}});
            let phase = |phase: &str| json!({"status": {"phase": phase}});
            for (name, patch, is_anybodys) in [
                ("plain", grant(json!("x")), false),
                ("plain", grant(json!("")), false),
                ("plain", free.clone(), true),
                ("plain", phase("Accepted"), true),
                ("granted", grant(json!("y")), false),
                ("granted", grant(json!(null)), false),
                ("granted", grant(json!("x")), true),
                ("granted", free.clone(), true),
                ("granted", phase("Accepted"), true),
                ("granted", phase("Completed"), true),
                ("over", grant(json!(null)), false),
                ("over", free.clone(), true),
                ("over", phase("Canceled"), true),
                // With a grant that nobody gave to this one.
                ("over", phase("New"), false),
                ("over", phase("Accepted"), false),
            ] {
                let answer = api.patch(name, &dry_run(), &Patch::Merge(&patch)).await;
                let passed = passes("berth-grants", answer);
                assert_eq!(passed, is_anybodys || is_controller, "{user}: {kind} {name} {patch}");
            }
        }
    }
}
