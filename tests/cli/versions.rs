//! What commands say of a berth in the cluster that has another version than theirs.

use std::process::{Command, Output, Stdio};

use serde_json::json;

use super::{common, without_proxies};
use crate::admission::program;

const NAMESPACE: &str = "cli-versions";

#[test]
fn another_version_of_the_berth_that_leads_is_told_once_and_not_where_objects_are_only_listed() {
    let berth = common();
    let created = |namespace: &str, object| {
        let answer = berth.kubectl().create(namespace, &[object]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
    };
    created("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}));
    // As the leader of another version writes it. Nobody else runs there.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "berth-controller", "annotations": {"berth.dev/version": "99.0.0"}},
        "spec": {
            "holderIdentity": "another", "leaseDurationSeconds": 15,
            "renewTime": format!("{:.6}", jiff::Timestamp::now()),
        },
    });
    created(NAMESPACE, lease);
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "l"},
        "spec": {"provider": "berth.dev/filesystem", "objectStorage": {"bucket": "b"}},
    });
    created(NAMESPACE, location);
    let run = |args: &[&str]| -> Output {
        let mut command = Command::new(program());
        command.args(args).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(berth.plane().kubeconfig());
        command.env("HOME", berth.plane().folder()).stdin(Stdio::null());
        without_proxies(&mut command);
        command.output().unwrap()
    };
    let paused = ["schedule", "create", "s", "--schedule", "@yearly", "--paused"];
    for (args, told) in [
        (&paused[..], 1),
        (&["schedule", "get"], 0),
        (&["backup", "get"], 0),
        (&["queue", "list"], 1),
        (&["queue", "movers"], 1),
        (&["queue", "hold", "--location", "l"], 1),
        (&["schedule", "create", "t", "--schedule", "@yearly", "-o", "yaml"], 0),
        (&["schedule", "delete", "s", "--confirm"], 1),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        let warning = "Warning: the server is berth 99.0.0, newer than this program";
        assert_eq!(said.matches(warning).count(), told, "{args:?}: {said}");
    }
}
