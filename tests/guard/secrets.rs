//! Secrets of namespaces that others use, too: the agent of a member may write them all, as far as
//! its roles go.

use berth_api::keys;
use serde_json::{Value, json};

use super::{let_do_everything, with_movers};
use crate::queue::PATIENCE;
use crate::support::{manifest, wait_for};

const NS: &str = "carried-secrets";
const SEED: &str = "garden.berth.dev/seed";
/// Another controller's finalizer.
const KEPT: &str = "a.example/kept";

fn secret(name: &str, labels: Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NS, "labels": labels, "finalizers": [KEPT]},
        "data": {"cloud": "YQ=="},
    })
    .to_string()
}

#[test]
fn the_agent_writes_those_secrets_alone_that_it_carries() {
    let plane = with_movers();
    let _report = plane.report_on_panic();
    plane.install(manifest::objects(NS, "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    let agent = format!("system:serviceaccount:{NS}:berth-garden-agent");
    let_do_everything(kubectl, &[&agent]);
    let agent = format!("--as={agent}");
    for object in [secret("theirs", json!({"a": "b"})), secret("carried", json!({SEED: "ship"}))] {
        kubectl.run_with(&["create", "-f", "-"], &object).unwrap();
    }
    let answer = |args: &[&str], object: &str| {
        kubectl.answer(&[args, &["-n", NS, "--dry-run=server", &agent]].concat(), object).unwrap()
    };
    // The API server takes a policy up a moment after it was made.
    wait_for("the policy to be on", PATIENCE, || {
        let said = answer(&["delete", "secret", "theirs", "--wait=false"], "").stderr;
        Ok((said.contains("berth-secrets") && !said.contains("resulted in error")).then_some(()))
    })
    .unwrap();
    let may = |name: &str, change: Value| {
        let patch = change.to_string();
        let said = answer(&["patch", "secret", name, "--type=merge", "-p", &patch], "");
        assert!(said.status.success() || said.stderr.contains("berth-secrets"), "{change}: {}", said.stderr);
        said.status.success()
    };
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
    for (change, is_harmless) in [
        (json!({"metadata": {"finalizers": [KEPT, keys::EXTENSION_BUCKET_FINALIZER]}}), true),
        (json!({"metadata": {"finalizers": [keys::EXTENSION_ENTRY_FINALIZER, KEPT]}}), true),
        (json!({"metadata": {"finalizers": [keys::EXTENSION_BUCKET_FINALIZER]}}), false),
        (json!({"metadata": {"finalizers": [KEPT, "a.example/other"]}}), false),
        (json!({"metadata": {"finalizers": null}}), false),
        (json!({"metadata": {"annotations": {"e": "f"}}}), false),
        (json!({"data": {"cloud": "Yg=="}}), false),
        (json!({"stringData": {"cloud": "b"}}), false),
        (json!({"metadata": {"labels": {"c": "d"}}}), false),
        (json!({"metadata": {"ownerReferences": [owner]}}), false),
        (json!({"immutable": true}), false),
    ] {
        assert_eq!(may("theirs", change.clone()), is_harmless, "{change}");
        assert!(may("carried", change.clone()), "{change}");
    }
    // As a first step to whatever is done to those that are carried.
    assert!(!may("theirs", json!({"metadata": {"labels": {SEED: "ship"}}})));
    assert!(answer(&["delete", "secret", "carried", "--wait=false"], "").status.success());
    for (labels, is_made) in [(json!({"a": "b"}), false), (json!({SEED: "ship"}), true)] {
        let made = answer(&["create", "-f", "-"], &secret("new", labels));
        assert_eq!(made.status.success(), is_made, "{}", made.stderr);
    }
}
