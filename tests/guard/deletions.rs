//! Who asks for a deletion says which Backup, and nothing of how far it is.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PostParams};
use serde_json::{Value, json};

use berth_api::velero::DeleteBackupRequest;

use super::{client_of, dry_run, let_do_everything, passes, with_movers};
use crate::queue::PATIENCE;
use crate::support::{manifest, wait_until};

const NS: &str = "deletions-guard";
const POLICY: &str = "berth-deletions";

fn api(client: Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, NS, &ApiResource::erase::<DeleteBackupRequest>(&()))
}

fn request(name: &str, rest: &Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": name, "namespace": NS, "labels": {"velero.io/backup-uid": "u"}},
        "spec": {"backupName": "b"},
    });
    json_patch::merge(&mut object, rest);
    serde_json::from_value(object).unwrap()
}

fn mark(value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {"berth.dev/deletes-in": value.into()}}})
}

fn data(namespaces: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {"berth.dev/data-in": namespaces.into()}}})
}

#[tokio::test]
async fn who_asks_for_a_deletion_does_not_say_how_far_it_is() {
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let [controller, velero, webhook] = ["berth-controller", "velero", "berth-webhook"]
        .map(|name| format!("system:serviceaccount:{NS}:{name}"));
    let users = [controller.as_str(), &velero, &webhook, "del"];
    let_do_everything(plane.kubectl(), &users);
    let create = PostParams { dry_run: true, ..PostParams::default() };
    let asker = api(client_of(plane, "del").await);
    wait_until("the policy to be on", PATIENCE, async || {
        Ok((!passes(POLICY, asker.create(&create, &request("forged", &mark("l"))).await)).then_some(()))
    })
    .await
    .unwrap();
    let berth = api(client_of(plane, &controller).await);
    let mut begun = mark("l");
    json_patch::merge(&mut begun, &data("app"));
    for (name, rest) in [("new", json!({})), ("begun", begun)] {
        let mut object = request(name, &rest);
        object.data["status"] = json!({"phase": if name == "new" { "New" } else { "InProgress" }});
        berth.create(&PostParams::default(), &object).await.unwrap();
    }
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    for (user, is_served) in users.into_iter().zip([true, true, false, false]) {
        let api = api(client_of(plane, user).await);
        for (rest, is_anybodys) in [
            (json!({}), true),
            (json!({"status": {}}), true),
            (phase("New"), true),
            (phase("InProgress"), false),
            (phase("Processed"), false),
            (mark("l"), false),
            (mark(""), false),
            (data("app"), false),
            (data(""), false),
        ] {
            let passed = passes(POLICY, api.create(&create, &request("asked", &rest)).await);
            assert_eq!(passed, is_served || is_anybodys, "{user} creates {rest}");
        }
        for (name, patch, is_anybodys) in [
            ("new", phase("InProgress"), false),
            ("new", phase("Processed"), false),
            ("new", json!({"status": {"errors": ["x"]}}), false),
            ("new", mark("l"), false),
            ("new", data("app"), false),
            ("new", json!({"spec": {"backupName": "c"}}), false),
            ("new", json!({"metadata": {"labels": {"velero.io/backup-uid": "v"}}}), false),
            ("new", json!({"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}}), true),
            ("begun", phase("New"), false),
            ("begun", phase("Processed"), false),
            ("begun", phase("InProgress"), true),
            ("begun", mark("m"), false),
            ("begun", mark(Value::Null), false),
            ("begun", data("app,shop"), false),
            ("begun", data(Value::Null), false),
            ("begun", json!({"metadata": {"labels": {"velero.io/backup-uid": null}}}), false),
            ("begun", json!({"spec": {"backupName": "c"}}), false),
            ("begun", json!({"metadata": {"labels": {"a": "b"}}}), true),
        ] {
            let passed = passes(POLICY, api.patch(name, &dry_run(), &Patch::Merge(&patch)).await);
            assert_eq!(passed, is_served || is_anybodys, "{user}: {name} {patch}");
        }
    }
}
