//! What a manifest asks for is what a program gets. The programs are bash, with nothing but its own
//! commands.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::{Value, json};

use super::PATIENCE;
use crate::support::pods::Cluster;
use crate::support::wait_for;

const NAMESPACE: &str = "default";
const IMAGE: &str = "bash:here";
/// Does nothing until it gets the signal to end.
const WAIT: &str = "coproc read; wait";
/// Longer than anything here takes, in seconds.
const GRACE: u64 = 300;

fn pod(name: &str, script: &str, more: &Value, container: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"from": "the-test"}},
        "spec": {
            "terminationGracePeriodSeconds": GRACE,
            "containers": [{"name": "bash", "image": IMAGE, "args": ["-c", script]}],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    for (key, value) in container.as_object().unwrap() {
        pod["spec"]["containers"][0][key] = value.clone();
    }
    pod
}

fn create(cluster: &Cluster, objects: &[Value]) {
    let answer = cluster.kubectl().create(NAMESPACE, objects).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}

/// Waits until the container of a pod is as `is` wants it.
fn container(cluster: &Cluster, pod: &str, is: impl Fn(&ContainerStatus) -> bool) -> ContainerStatus {
    let mut seen = None;
    wait_for(&format!("the container of {pod}"), PATIENCE, || {
        let text = cluster.kubectl().run(&["get", "pod", pod, "--namespace", NAMESPACE, "-o", "json"])?;
        let pod: Pod = serde_json::from_str(&text)?;
        seen = pod.status.and_then(|status| status.container_statuses?.pop());
        Ok(seen.clone().filter(|status| is(status)))
    })
    .unwrap_or_else(|error| panic!("{error}: {seen:#?}"))
}

fn waits_for(reason: &str) -> impl Fn(&ContainerStatus) -> bool {
    move |status| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(reason))
    }
}

fn phase(cluster: &Cluster, pod: &str) -> String {
    let args = ["get", "pod", pod, "--namespace", NAMESPACE, "-o", "jsonpath={.status.phase}"];
    cluster.kubectl().run(&args).unwrap()
}

fn log(cluster: &Cluster, pod: &str) -> String {
    std::fs::read_to_string(cluster.log(NAMESPACE, pod, "bash")).unwrap()
}

fn delete(cluster: &Cluster, pod: &str) {
    cluster.kubectl().run(&["delete", "pod", pod, "--namespace", NAMESPACE]).unwrap();
}

#[test]
fn containers_get_what_their_manifests_ask_for_and_live_as_they_would_elsewhere() {
    let cluster = Cluster::start(BTreeMap::from([(IMAGE.to_owned(), PathBuf::from("/bin/bash"))])).unwrap();
    a_program_gets_its_files_its_environment_and_its_identity(&cluster);
    containers_wait_restart_and_end(&cluster);
}

fn a_program_gets_its_files_its_environment_and_its_identity(cluster: &Cluster) {
    let script = r#"
        echo "env: $HOSTNAME $NODE $SECRET $MAP $SUM ${HOME-none} ${PATH_OF_HOST-none}"
        echo "args: $0 $1"
        for file in /*; do echo "root: $file"; done
        for file in /secret/* /map/* /pod/*; do read -r line <"$file"; echo "$file: $line"; done
        read -r token </var/run/secrets/kubernetes.io/serviceaccount/token; echo "token: ${token:0:2}"
        read -r ca </var/run/secrets/kubernetes.io/serviceaccount/ca.crt && echo "ca: $ca"
        echo mine >/scratch/file && read -r line </scratch/file && echo "scratch: $line"
        for folder in / /secret /usr/lib /kept; do : 2>&- >"$folder/new" || echo "not written: $folder"; done
        : >"/dev/tcp/$KUBERNETES_SERVICE_HOST/$KUBERNETES_SERVICE_PORT" && echo "api server: reached"
        trap 'echo asked to end; exit 3' TERM
        coproc read
        wait
    "#;
    let volumes = json!([
        {"name": "scratch", "emptyDir": {}},
        {"name": "secret", "secret": {"secretName": "kept", "items": [{"key": "a", "path": "b", "mode": 0o440}]}},
        {"name": "map", "configMap": {"name": "said"}},
        {"name": "pod", "downwardAPI": {"items": [{
            "path": "label", "fieldRef": {"fieldPath": "metadata.labels['from']"},
        }]}},
        {"name": "kept", "hostPath": {"path": "/tmp", "type": "Directory"}},
    ]);
    let mounts = ["scratch", "secret", "map", "pod", "kept"]
        .map(|name| json!({"name": name, "mountPath": format!("/{name}"), "readOnly": name == "kept"}));
    let env = json!([
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "kept", "key": "a"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "said", "key": "x"}}},
        {"name": "SUM", "value": "$(SECRET)+$(MAP)=$(NOBODY)$$(MAP)"},
    ]);
    let context = json!({"runAsUser": 1234, "runAsGroup": 5678, "fsGroup": 91011, "runAsNonRoot": true});
    create(
        cluster,
        &[
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kept"}, "stringData": {"a": "one"}}),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "said"}, "data": {"x": "two"}}),
            pod(
                "asks",
                script,
                &json!({"volumes": volumes, "securityContext": context, "nodeName": "node-b"}),
                &json!({
                    "command": ["/berth"],
                    "args": ["-c", script, "$(NODE)", "$(MAP)"],
                    "env": env,
                    "volumeMounts": mounts,
                    "securityContext": {"readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}},
                }),
            ),
        ],
    );
    container(cluster, "asks", |status| status.ready);
    let lines = wait_for("its last word", PATIENCE, || {
        let log = log(cluster, "asks");
        Ok(log.contains("api server").then_some(log))
    })
    .unwrap();
    let roots = [
        "berth", "dev", "etc", "kept", "lib", "lib64", "map", "pod", "proc", "scratch", "secret", "usr",
        "var",
    ];
    let roots = roots.map(|name| format!("root: /{name}\n"));
    for line in [
        "env: asks node-b one two one+two=$(NOBODY)$(MAP) none none",
        "args: node-b two",
        &roots.concat(),
        "/secret/b: one",
        "/map/x: two",
        "/pod/label: the-test",
        "token: ey",
        "ca: -----BEGIN CERTIFICATE-----",
        "scratch: mine",
        "not written: /\n",
        "not written: /secret\n",
        "not written: /usr/lib\n",
        "not written: /kept\n",
        "api server: reached",
    ] {
        assert!(lines.contains(line), "{line:?} in\n{lines}");
    }
    let pid = cluster.pid(NAMESPACE, "asks").unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in
        ["Uid:\t1234\t", "Gid:\t5678\t", "Groups:\t91011", "NoNewPrivs:\t0", "CapBnd:\t0000000000000000"]
    {
        assert!(status.contains(line), "{line:?} in\n{status}");
    }
    delete(cluster, "asks");
    assert!(log(cluster, "asks").ends_with("asked to end\n"));
}

fn containers_wait_restart_and_end(cluster: &Cluster) {
    let none = json!({});
    let policy = json!({"restartPolicy": "Never"});
    let absent = json!({"volumes": [{"name": "absent", "secret": {"secretName": "absent"}}]});
    let check =
        json!({"livenessProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 1, "failureThreshold": 1}});
    create(
        cluster,
        &[
            pod("root", WAIT, &json!({"securityContext": {"runAsNonRoot": true}}), &none),
            pod("later", WAIT, &none, &json!({"image": "later:here"})),
            pod("absent", WAIT, &absent, &none),
            pod("crashes", "exit 7", &none, &none),
            pod("done", "exit 0", &policy, &none),
            pod("failed", "echo so it is >/dev/termination-log; exit 1", &policy, &none),
            pod("sick", WAIT, &none, &check),
            pod(
                "stubborn",
                "trap '' TERM; coproc read; wait",
                &json!({"terminationGracePeriodSeconds": 2}),
                &none,
            ),
            pod("asking-too-much", WAIT, &json!({"hostNetwork": true}), &none),
        ],
    );
    container(cluster, "root", waits_for("CreateContainerConfigError"));
    container(cluster, "later", waits_for("ErrImageNeverPull"));
    cluster.set_image("later:here", "/bin/bash");
    container(cluster, "later", |status| status.ready);

    let waiting = container(cluster, "absent", waits_for("ContainerCreating"));
    let why = |status: ContainerStatus| status.state.unwrap().waiting.unwrap().message.unwrap_or_default();
    assert!(["", "volume absent: no Secret absent"].contains(&why(waiting).as_str()));
    create(cluster, &[json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "absent"}})]);
    container(cluster, "absent", |status| status.ready);

    let crashed = container(cluster, "crashes", |status| status.restart_count > 1);
    let ended = |status: &ContainerStatus| status.last_state.clone().and_then(|state| state.terminated);
    assert_eq!(ended(&crashed).unwrap().exit_code, 7);
    let has_ended = |status: &ContainerStatus| status.state.as_ref().is_some_and(|s| s.terminated.is_some());
    container(cluster, "done", |status| has_ended(status) && phase(cluster, "done") == "Succeeded");
    let failed =
        container(cluster, "failed", |status| has_ended(status) && phase(cluster, "failed") == "Failed");
    let message = failed.state.and_then(|state| state.terminated?.message);
    assert_eq!(message.as_deref(), Some("so it is\n"));
    let sick = container(cluster, "sick", |status| status.restart_count > 0);
    assert_eq!(ended(&sick).unwrap().exit_code, 128 + 15);
    container(cluster, "asking-too-much", |status| {
        waits_for("ContainerCreating")(status) && why(status.clone()).ends_with("namespaces of the host")
    });

    container(cluster, "stubborn", |status| status.ready);
    let began = Instant::now();
    delete(cluster, "stubborn");
    assert!(began.elapsed().as_secs_f64() >= 2.0);
    let began = Instant::now();
    cluster.kubectl().run(&["delete", "pods", "--all", "--namespace", NAMESPACE]).unwrap();
    assert!(began.elapsed().as_secs() < GRACE, "nobody was waited for");
}
