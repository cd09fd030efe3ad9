//! When a Schedule has run is for those to say who run it. The policy and the rules agree case by
//! case.

use berth_api::velero::Schedule;
use berth_core::guard::{Roles, ScheduleChange, judge_schedule};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PostParams};
use serde_json::{Value, json};

use super::{client_of, dry_run, let_do_everything, may, passes, with_movers};
use crate::queue::PATIENCE;
use crate::support::{manifest, wait_until};

const NS: &str = "schedules-guard";
const POLICY: &str = "berth-schedules";

fn api(client: Client) -> Api<DynamicObject> {
    Api::namespaced_with(client, NS, &ApiResource::erase::<Schedule>(&()))
}

fn schedule(name: &str, rest: &Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": name, "namespace": NS},
        "spec": {"schedule": "@yearly", "template": {"includedNamespaces": ["a"]}},
    });
    json_patch::merge(&mut object, rest);
    serde_json::from_value(object).unwrap()
}

fn status(status: impl Into<Value>) -> Value {
    json!({"status": status.into()})
}

fn owns(value: impl Into<Value>) -> Value {
    json!({"spec": {"useOwnerReferencesInBackup": value.into()}})
}

const NOTHING: ScheduleChange =
    ScheduleChange { is_create: false, status_changed: false, status_lost: false, owns_now: false };
const STATUS: ScheduleChange = ScheduleChange { status_changed: true, ..NOTHING };
const LOST: ScheduleChange = ScheduleChange { status_lost: true, ..STATUS };
const OWNS: ScheduleChange = ScheduleChange { owns_now: true, ..NOTHING };

#[tokio::test]
async fn when_a_schedule_has_run_is_for_those_to_say_who_run_it() {
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let [controller, velero, webhook] = ["berth-controller", "velero", "berth-webhook"]
        .map(|name| format!("system:serviceaccount:{NS}:{name}"));
    let everything = [controller.as_str(), &velero, &webhook, "guard-schedules-admin"];
    let_do_everything(plane.kubectl(), &everything);
    let rules = json!([
        {"apiGroups": ["velero.io"], "resources": ["schedules", "backups"], "verbs": ["get", "create", "patch"]},
    ]);
    may(plane.kubectl(), "guard-scheduler", &rules);
    let create = PostParams { dry_run: true, ..PostParams::default() };
    let nobody = Roles::default();
    let scheduler = api(client_of(plane, "guard-scheduler").await);
    let forged = schedule("forged", &status(json!({"lastBackup": "2026-01-01T00:00:00Z"})));
    wait_until("the policy to be on", PATIENCE, async || {
        Ok((!passes(POLICY, scheduler.create(&create, &forged).await)).then_some(()))
    })
    .await
    .unwrap();
    let berth = api(client_of(plane, &controller).await);
    let run = json!({"phase": "Enabled", "lastBackup": "2026-01-01T00:00:00Z"});
    for (name, rest) in [("new", json!({})), ("run", status(run.clone())), ("owner", owns(true))] {
        berth.create(&PostParams::default(), &schedule(name, &rest)).await.unwrap();
    }
    let admin = Roles { deleter: true, ..nobody };
    let served = Roles { queue: true, ..admin };
    for (user, roles) in [
        (controller.as_str(), served),
        (velero.as_str(), Roles { lifecycle: true, ..admin }),
        (webhook.as_str(), admin),
        ("guard-schedules-admin", admin),
        ("guard-scheduler", nobody),
    ] {
        let api = api(client_of(plane, user).await);
        for (rest, change) in [
            (json!({}), NOTHING),
            // As Velero's command line writes it.
            (status(json!({})), NOTHING),
            (status(Value::Null), NOTHING),
            (status(json!({"phase": "New"})), NOTHING),
            (status(json!({"phase": "Enabled"})), STATUS),
            (status(json!({"lastBackup": "2026-01-01T00:00:00Z"})), STATUS),
            (status(json!({"phase": "New", "lastSkipped": "2026-01-01T00:00:00Z"})), STATUS),
            (owns(true), OWNS),
        ] {
            let change = ScheduleChange { is_create: true, ..change };
            let mut object = schedule("made", &json!({}));
            if let (Some(rest), Value::Object(data)) = (rest.get("status"), &mut object.data) {
                data.insert("status".to_owned(), rest.clone());
            } else {
                object = schedule("made", &rest);
            }
            let passed = passes(POLICY, api.create(&create, &object).await);
            assert_eq!(passed, judge_schedule(roles, &change).is_ok(), "{user} creates {rest}");
        }
        for (name, patch, change) in [
            ("new", status(json!({"phase": "Enabled"})), STATUS),
            ("new", status(json!({"lastBackup": "2026-01-01T00:00:00Z"})), STATUS),
            ("new", status(json!({})), NOTHING),
            ("run", status(json!({"lastBackup": "2025-01-01T00:00:00Z"})), STATUS),
            ("run", status(json!({"lastSkipped": "2026-01-02T00:00:00Z"})), STATUS),
            ("run", status(json!({"phase": "FailedValidation"})), STATUS),
            ("run", status(run.clone()), NOTHING),
            ("run", status(Value::Null), LOST),
            ("run", json!({"spec": {"paused": true}, "metadata": {"labels": {"a": "b"}}}), NOTHING),
            ("run", owns(true), OWNS),
            ("run", owns(false), NOTHING),
            ("owner", owns(true), NOTHING),
            ("owner", owns(false), NOTHING),
            ("owner", owns(Value::Null), NOTHING),
        ] {
            let passed = passes(POLICY, api.patch(name, &dry_run(), &Patch::Merge(&patch)).await);
            assert_eq!(passed, judge_schedule(roles, &change).is_ok(), "{user}: {name} {patch}");
        }
    }
    // Each refusal names the way out.
    for (patch, told) in [
        (status(json!({"lastBackup": "2025-01-01T00:00:00Z"})), "leave status out"),
        (status(Value::Null), "use kubectl apply"),
        (owns(true), "the verb delete on backups.velero.io"),
    ] {
        let refused =
            scheduler.patch("run", &dry_run(), &Patch::Merge(&patch)).await.unwrap_err().to_string();
        assert!(refused.contains(told), "{patch}: {refused}");
    }
}
