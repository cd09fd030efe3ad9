//! The guard in the API server says the same as the rules in `berth_core::guard`, case by case, with berth away.

use berth_api::velero::Backup;
use berth_core::guard::{Change, Roles, judge};
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use crate::queue::{PATIENCE, start};
use crate::support::backup::backup_of;
use crate::support::{Berth, manifest, wait_until};

const PHASES: [&str; 7] = ["", "New", "Queued", "ReadyToStart", "InProgress", "Completed", "Deleting"];

async fn client_of(berth: &Berth, user: &str) -> Client {
    let file = Kubeconfig::read_from(berth.plane().kubeconfig()).unwrap();
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    config.auth_info.impersonate = Some(user.to_owned());
    Client::try_from(config).unwrap()
}

fn name_of(phase: &str) -> String {
    if phase.is_empty() { "none".to_owned() } else { phase.to_lowercase() }
}

/// A dry run of a merge patch: would it go through?
async fn goes_through(api: &Api<Backup>, phase: &str, patch: &Value) -> bool {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    match api.patch(&name_of(phase), &params, &Patch::Merge(patch)).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("berth-guard") => {
            false
        }
        Err(error) => panic!("{phase}: {patch}: {error}"),
    }
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
    // Everybody may do everything, as far as roles go.
    let bind = [
        "create",
        "clusterrolebinding",
        "guard-everybody",
        "--clusterrole=cluster-admin",
        "--group=system:authenticated",
    ];
    let users =
        ["mallory", "system:serviceaccount:guard:berth-controller", "system:serviceaccount:guard:velero"];
    let mut bind = bind.to_vec();
    let named: Vec<String> = users.iter().map(|user| format!("--user={user}")).collect();
    bind.extend(named.iter().map(String::as_str));
    kubectl.run(&bind).unwrap();
    berth.plane().install(manifest::objects(&ns, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let nobody = Roles::default();
    let berth_itself = Roles { queue: true, executor: true, lifecycle: false };
    let velero = Roles { lifecycle: true, ..nobody };
    let mut judged = 0;
    for (user, roles) in users.into_iter().zip([nobody, berth_itself, velero]) {
        let api: Api<Backup> = Api::namespaced(client_of(&berth, user).await, &ns);
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
    let api: Api<Backup> = Api::namespaced(client_of(&berth, users[0]).await, &ns);
    assert!(goes_through(&api, "", &json!({"status": {}, "metadata": {"labels": {"a": "c"}}})).await);
}
