//! `berth install --pod-volumes`: berth's node agents come when they are asked for, stay, and go.

use std::path::Path;

use serde_json::Value;

use super::{KINDS, berth, finish_namespaces, names, said};
use crate::support::ControlPlane;

const AGENT: &str = "berth-node-agent";

fn run(admin: &Path, args: &[&str], succeeds: bool) -> String {
    let output = berth(admin, args);
    assert_eq!(output.status.success(), succeeds, "{args:?}: {}", said(&output));
    said(&output)
}

/// It would go on to the webhooks, did its pods run.
fn install(admin: &Path, args: &[&str]) -> String {
    let text = run(admin, &[&["install", "--timeout=1s"], args].concat(), false);
    assert!(text.contains("not ready after 1 s"), "{text}");
    text
}

fn agents(plane: &ControlPlane) -> Value {
    let args = ["get", "daemonset", AGENT, "-n", "velero", "-o", "json"];
    serde_json::from_str(&plane.kubectl().run(&args).unwrap()).unwrap()
}

fn args_of(agents: &Value) -> Vec<String> {
    serde_json::from_value(agents["spec"]["template"]["spec"]["containers"][0]["args"].clone()).unwrap()
}

fn level(plane: &ControlPlane) -> String {
    let path = r"jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}";
    plane.kubectl().run(&["get", "namespace", "velero", "-o", path]).unwrap()
}

pub fn node_agents_come_stay_and_go(plane: &ControlPlane, admin: &Path) {
    let kubectl = plane.kubectl();
    let refused = run(admin, &["install", "--pod-volumes", "--executor=velero"], false);
    assert!(refused.contains("--pod-volumes=false") && refused.contains("Nothing was changed"), "{refused}");
    let text = install(admin, &["--pod-volumes"]);
    for line in [
        "daemonset/berth-node-agent in velero created",
        "clusterrole/berth-node-agent created",
        "customresourcedefinition/podvolumebackups.velero.io created",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(level(plane), "privileged", "or no pod of them would be let in");

    // Later installations keep them, with what somebody added to them.
    let add = r#"[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--pod-volume-concurrency=4"}]"#;
    kubectl.run(&["patch", "daemonset", AGENT, "-n", "velero", "--type=json", "-p", add]).unwrap();
    let text = install(admin, &["--concurrent-backups=2", "--image=mirror/berth:next"]);
    assert!(text.contains("keeps what somebody added: --pod-volume-concurrency=4"), "{text}");
    let found = agents(plane);
    assert_eq!(
        args_of(&found),
        [
            "node-agent",
            "--namespace=$(POD_NAMESPACE)",
            "--node-name=$(NODE_NAME)",
            "--pod-volume-concurrency=4"
        ]
    );
    assert_eq!(found["spec"]["template"]["spec"]["containers"][0]["image"], "mirror/berth:next");
    assert_eq!(level(plane), "privileged");
    // They see nothing of their nodes, until somebody takes that back.
    for (flags, by_movers) in
        [(&["--files-by-movers"][..], true), (&[], true), (&["--files-by-movers=false"], false)]
    {
        install(admin, flags);
        let found = agents(plane);
        assert_eq!(args_of(&found).contains(&"--files-by-movers".to_owned()), by_movers, "{flags:?}");
        assert!(args_of(&found).contains(&"--pod-volume-concurrency=4".to_owned()), "{flags:?}");
        assert_eq!(found["spec"].to_string().contains("hostPath"), !by_movers, "{flags:?}");
    }
    let checked = said(&berth(admin, &["check"]));
    assert!(checked.contains(AGENT) && checked.contains("node agents are being started"), "{checked}");

    // The password of a repository is nobody's to remove.
    let secret = ["create", "secret", "generic", "berth-repository-default.shop", "-n", "velero"];
    kubectl.run(&secret).unwrap();
    let text = run(admin, &["install", "--pod-volumes=false", "--dry-run"], true);
    for line in ["daemonset/berth-node-agent in velero removed", "clusterrole/berth-node-agent removed"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = run(admin, &["uninstall"], true);
    assert!(text.contains("daemonset/berth-node-agent in velero removed"), "{text}");
    assert!(text.contains("namespace/velero kept: there are secret/berth-repository-default.shop"), "{text}");
    kubectl.run(&["delete", "secret", "berth-repository-default.shop", "-n", "velero"]).unwrap();
    run(admin, &["uninstall"], true);
    finish_namespaces(plane);
    assert_eq!(names(plane, KINDS), Vec::<String>::new());
}
