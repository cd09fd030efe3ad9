//! Velero's service account where there is no Velero: any user who may create service accounts
//! could have it.

use serde_json::json;

use super::{annotation, may, with_movers};
use crate::queue::PATIENCE;
use crate::support::backup::backup_of;
use crate::support::{manifest, wait_for};

const NS: &str = "no-velero";

#[test]
fn a_service_account_of_veleros_name_gains_nothing_where_no_velero_is() {
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects_without_velero(NS, "https://127.0.0.1:1").unwrap()).unwrap();
    let kubectl = plane.kubectl();
    let user = format!("system:serviceaccount:{NS}:velero");
    let rules =
        json!([{"apiGroups": ["velero.io"], "resources": ["backups"], "verbs": ["get", "create", "patch"]}]);
    may(kubectl, &user, &rules);
    let user = format!("--as={user}");
    for rest in [json!({"status": {"phase": "Completed"}}), annotation("first", "2026-01-01T00:00:00Z")] {
        let mut object = backup_of("made-up", &["a"]);
        json_patch::merge(&mut object, &rest);
        let args = ["create", "-n", NS, &user, "--dry-run=server", "-f", "-"];
        // The API server takes policies up a moment after they were made.
        wait_for(&format!("berth-guard to refuse {rest}"), PATIENCE, || {
            let said = kubectl.answer(&args, &object.to_string())?.stderr;
            Ok((said.contains("berth-guard") && !said.contains("resulted in error")).then_some(()))
        })
        .unwrap();
    }
    let args = ["create", "-n", NS, &user, "--dry-run=server", "-f", "-"];
    let plain = kubectl.answer(&args, &backup_of("plain", &["a"]).to_string()).unwrap();
    assert!(plain.status.success(), "{}", plain.stderr);
}
