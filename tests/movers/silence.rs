//! No leader grants any more, or the ledger is gone: no data mover waits for ever, and the limit
//! holds as long as a leader grants.

use std::time::Duration;

use serde_json::{Value, json};

use super::{NAMESPACE, reach, wait_for_gate};
use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::movers::{Agents, Kind, Work, spec};
use crate::support::peers::define_movers;
use crate::support::{Berth, ControlPlane, Kubectl, Options, wait_for};

const NODE: &str = "node-1";
const CONFIG: &str = "config";
const LEDGER: &str = "berth-mover-grants";

fn config(text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG, "namespace": NAMESPACE, "annotations": {"berth.dev/unchecked": "true"}},
        "data": {"config.json": text},
    })
}

fn create(kubectl: &Kubectl, name: &str) {
    let object = json!({
        "apiVersion": Kind::DataDownload.api_version(), "kind": Kind::DataDownload.name(),
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec(Kind::DataDownload, name, NODE, &Value::Null),
    });
    kubectl.run_with(&["create", "-f", "-"], &object.to_string()).unwrap();
}

fn annotation(kubectl: &Kubectl, name: &str, key: &str) -> anyhow::Result<String> {
    let path = format!(r"jsonpath={{.metadata.annotations.berth\.dev/{key}}}");
    kubectl.run(&["get", "datadownloads", name, "-n", NAMESPACE, "-o", &path])
}

fn ledger(kubectl: &Kubectl, path: &str) -> anyhow::Result<String> {
    let path = format!("jsonpath={path}");
    kubectl.run(&["get", "configmap", LEDGER, "-n", NAMESPACE, "--ignore-not-found", "-o", &path])
}

/// As a node-agent does; the answer where it is refused.
fn accept(kubectl: &Kubectl, name: &str) -> Result<(), String> {
    let patch = json!({"status": {"phase": "Accepted"}}).to_string();
    let args = ["patch", "datadownloads", name, "-n", NAMESPACE, "--type=merge", "-p", &patch];
    let answer = kubectl.answer(&args, "").unwrap();
    if answer.status.success() { Ok(()) } else { Err(answer.stderr) }
}

/// The API server's counters are of all that it calls, so this berth has one of its own.
#[test]
fn only_pods_of_data_movers_are_asked_about_and_nobody_waits_for_one_who_does_not_grant_any_more() {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    define_movers(&plane).unwrap();
    // The granting leader then writes to the ledger every two seconds. The webhook waits for such a
    // write as long as in a cluster, because nothing here is so slow that it would miss one.
    let options = Options {
        controller_args: vec!["--mover-grants-silent-after=6s".to_owned()],
        ..Options::new(program(), NAMESPACE)
    };
    let mut berth = Berth::start(plane, options).unwrap();
    reach::pods_that_are_no_data_movers_never_reach_the_webhook(&berth);
    nobody_waits_for_one_who_does_not_grant_any_more(&mut berth);
}

fn nobody_waits_for_one_who_does_not_grant_any_more(berth: &mut Berth) {
    let labels = json!({"name": "node-agent"});
    let container =
        json!({"name": "node-agent", "image": "none", "args": ["--node-agent-configmap", CONFIG]});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "node-agent", "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [container]},
        }},
    });
    let limit = config(r#"{"loadConcurrency": {"prepareQueueLength": 1}}"#);
    berth.plane().apply(vec![limit, set]).unwrap();
    // It accepts what it may, and takes its time.
    let slow = Duration::from_secs(3600);
    let work = Work { data_paths: 1, expose: slow, start: slow, run: slow };
    let agents = Agents::start(berth.plane(), NAMESPACE, &[NODE], work).unwrap();
    wait_for_gate(berth.kubectl());
    create(berth.kubectl(), "first");
    wait_for("the first to get a place", PATIENCE, || {
        Ok((!annotation(berth.kubectl(), "first", "granted")?.is_empty()).then_some(()))
    })
    .unwrap();
    create(berth.kubectl(), "second");
    assert!(accept(berth.kubectl(), "second").unwrap_err().contains("waits for a place"));

    // The leader notices that its ledger is gone; no data mover passes meanwhile.
    berth.kubectl().run(&["delete", "configmap", LEDGER, "-n", NAMESPACE]).unwrap();
    wait_for("the ledger to be written again", PATIENCE, || {
        assert!(accept(berth.kubectl(), "second").unwrap_err().contains("waits for a place"));
        Ok((ledger(berth.kubectl(), "{.data.inForce}")? == "true").then_some(()))
    })
    .unwrap();
    assert!(accept(berth.kubectl(), "second").unwrap_err().contains("waits for a place"));

    // A leader that begins with a configuration that cannot be read goes by the last one's limit.
    berth.kubectl().run_with(&["replace", "-f", "-"], &config("{").to_string()).unwrap();
    berth.controller.stop().unwrap();
    let version = ledger(berth.kubectl(), "{.metadata.resourceVersion}").unwrap();
    berth.controller.process.restart().unwrap();
    wait_for("the next leader to write the ledger", PATIENCE, || {
        let now = ledger(
            berth.kubectl(),
            "{.metadata.annotations.berth\\.dev/written-at} {.metadata.resourceVersion}",
        )?;
        let is_new = !now.ends_with(&version);
        Ok((is_new && berth.controller.metrics()?.contains("berth_movers_configuration_rejected 1"))
            .then_some(()))
    })
    .unwrap();
    assert_eq!(ledger(berth.kubectl(), "{.data.inForce} {.data.limit}").unwrap(), "true 1");
    assert_eq!(annotation(berth.kubectl(), "second", "granted").unwrap(), "");
    assert!(accept(berth.kubectl(), "second").unwrap_err().contains("waits for a place"));

    // No leader grants: refused data movers are nudged, and may pass. `src/movers/ledger/tests.rs`
    // says how long a webhook waits for a write of the ledger; this one waits for less, because no
    // leader is left that could be late.
    berth.controller.process.kill().unwrap();
    assert!(accept(berth.kubectl(), "second").unwrap_err().contains("waits for a place"));
    berth.replace_webhook(&["--mover-grants-silent-after=2s"]).unwrap();
    wait_for("the second to be woken", PATIENCE, || {
        Ok((!annotation(berth.kubectl(), "second", "nudged-at")?.is_empty()).then_some(()))
    })
    .unwrap();
    accept(berth.kubectl(), "second").unwrap();
    agents.ensure_work().unwrap();
}
