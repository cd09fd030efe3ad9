//! Policies that ask for rights to an object by its name: the object has a name when they are
//! evaluated, even if the API server generates it (`generateName`).

use berth_core::mover::MoverKind;
use serde_json::{Value, json};

use super::{annotation, born, hooks, let_do_everything, may, with_movers};
use crate::queue::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::{manifest, wait_for};

const NS: &str = "generated";

fn unnamed(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("name");
    }
    object["metadata"]["namespace"] = json!(NS);
    object["metadata"]["generateName"] = json!("generated-");
    object
}

fn backup(rest: &Value) -> Value {
    let mut object = backup_of("", &["a"]);
    json_patch::merge(&mut object, rest);
    unnamed(object)
}

/// A user without the right is refused for that reason, and a user with the right is not refused
/// because the name is missing.
#[test]
fn who_leaves_the_name_to_the_api_server_is_judged_by_the_same_rights() {
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    let_do_everything(kubectl, &["generated-editor"]);
    // Not subresources, one of which is what operators have.
    let mut resources = vec!["backups", "backupstoragelocations"];
    resources.extend(MoverKind::ALL.into_iter().map(MoverKind::plural));
    let verbs = json!(["get", "create", "patch"]);
    may(
        kubectl,
        "generated-maker",
        &json!([{"apiGroups": ["velero.io"], "resources": resources, "verbs": verbs}]),
    );
    let create = |user: &str, object: &Value| {
        let user = format!("--as={user}");
        let args = ["create", &user, "--dry-run=server", "-f", "-"];
        kubectl.answer(&args, &object.to_string()).unwrap()
    };
    let mut cases = vec![
        ("berth-guard", backup(&annotation("first", "2026-01-01T00:00:00Z"))),
        ("berth-guard", backup(&json!({"spec": {"hooks": hooks()}}))),
        ("berth-guard", backup(&json!({"status": {"phase": "Completed"}}))),
    ];
    for kind in MoverKind::ALL {
        let object = born(kind, "new", NS, "Accepted", None);
        cases.push(("berth-grants", unnamed(serde_json::to_value(object).unwrap())));
    }
    for (policy, object) in &cases {
        // The API server takes policies up a moment after they were made.
        wait_for(&format!("{policy} to refuse {object}"), PATIENCE, || {
            let said = create("generated-maker", object).stderr;
            Ok((said.contains(policy) && !said.contains("resulted in error")).then_some(()))
        })
        .unwrap();
        let created = create("generated-editor", object);
        assert!(created.status.success(), "{object}: {}", created.stderr);
    }
    // Only a user who may create locations decides where backups go.
    let location = unnamed(json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}},
    }));
    let created = create("generated-maker", &location);
    assert!(created.status.success(), "{}", created.stderr);
}
