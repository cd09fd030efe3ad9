//! With berth: every alternative of `loadAffinity` counts. The examples are those of Velero's
//! design "Generic Data Path Load Affinity Enhancement", with its very JSON; the scheduler is a
//! real one.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, Node as KubeNode, Pod};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{NAMESPACE, install};
use crate::cluster::images;
use crate::support::PATIENCE;
use crate::support::csi::{claim, class};
use crate::support::movers::{KINDS, Kind};
use crate::support::node_agent::{CONFIG, NAME};
use crate::support::peers::install_definitions;
use crate::support::pods::{Cluster, Node};
use crate::support::wait_for;

const APP: &str = "app";
const BASH: &str = "bash:test";
/// More pods than this the scheduler cannot be ahead of what it hears of nodes.
const CLOSINGS_NOT_SEEN: usize = 100;
const KIBISHII: &str = "kibishii-storage-class";
const WORKER: &str = "worker-storagepolicy";
const OTHER: &str = "other";
const CONTROLLER: &str = "app.kubernetes.io/name=berth-controller";
const TYPE: &str = "beta.kubernetes.io/instance-type";
const OS: &str = "kubernetes.io/os";

const MULTIPLE: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
        {"nodeSelector": {"matchExpressions": [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-central1-a"]}
        ]}}
    ]
}"#;
const PER_CLASS: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}}},
        {"nodeSelector": {"matchExpressions": [
            {"key": "kubernetes.io/os", "values": ["linux"], "operator": "In"}
        ]}, "storageClass": "kibishii-storage-class"},
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B8ms"}},
         "storageClass": "kibishii-storage-class"}
    ]
}"#;
const BACKUP_PVC: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
         "storageClass": "kibishii-storage-class"},
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B2ms"}},
         "storageClass": "worker-storagepolicy"}
    ],
    "backupPVC": {"kibishii-storage-class": {"storageClass": "worker-storagepolicy"}}
}"#;
const RESTORE_PVC: &str = r#"{
    "loadAffinity": [
        {"nodeSelector": {"matchLabels": {"beta.kubernetes.io/instance-type": "Standard_B4ms"}},
         "storageClass": "kibishii-storage-class"}
    ],
    "restorePVC": {"ignoreDelayBinding": false}
}"#;

/// What Velero puts into every pod for Linux.
fn no_windows() -> Value {
    json!({"key": OS, "operator": "NotIn", "values": ["windows"]})
}

fn of_type(name: &str) -> Value {
    json!({"key": TYPE, "operator": "In", "values": [name]})
}

fn required(expressions: &[Value]) -> Value {
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": expressions}],
    }}})
}

/// A data movement, and the pod that stock Velero makes for it.
struct Case {
    kind: Kind,
    /// Of the source or of the target.
    class: &'static str,
    /// Of the claim that Velero made for a backup.
    claim_class: &'static str,
    /// What Velero takes of the configuration: the first element that applies.
    choice: Option<Value>,
    selected_node: Option<&'static str>,
}

impl Case {
    fn backup(class: &'static str, choice: Value) -> Self {
        Self { kind: Kind::DataUpload, class, claim_class: class, choice: Some(choice), selected_node: None }
    }

    fn restore(class: &'static str, choice: Value) -> Self {
        Self { kind: Kind::DataDownload, ..Self::backup(class, choice) }
    }
}

struct Stage {
    runtime: tokio::runtime::Runtime,
    /// For what is done hundreds of times: a process of kubectl takes longer than the API server.
    client: Client,
    cluster: Cluster,
    made: std::cell::Cell<usize>,
}

impl Stage {
    fn start() -> Self {
        let node = |name: &str, os: &str, kind: &str, zone: &str| {
            Node::new(name, zone).with_label(OS, os).with_label(TYPE, kind)
        };
        let nodes = vec![
            node("b2", "linux", "Standard_B2ms", "us-west1-b"),
            node("b4", "linux", "Standard_B4ms", "us-west1-b"),
            node("b8", "plan9", "Standard_B8ms", "us-west1-b"),
            node("central", "linux", "Standard_B1ms", "us-central1-a"),
            // Allowed by nothing but a rule for everything.
            node("none", "plan9", "Standard_B1ms", "us-west1-b"),
        ];
        let mut programs = images();
        programs.insert(BASH.to_owned(), PathBuf::from("/bin/bash"));
        let cluster = Cluster::start_with_nodes(programs, nodes).unwrap();
        let plane = cluster.plane();
        install_definitions(plane).unwrap();
        KINDS.iter().for_each(|kind| cluster.leave(kind.label()));
        let namespace =
            |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "velero", "namespace": NAMESPACE}});
        let classes = [KIBISHII, WORKER, OTHER].map(|name| storage_class(name, "WaitForFirstConsumer"));
        let objects = [namespace(NAMESPACE), namespace(APP), account].into_iter().chain(classes);
        plane.apply(objects.collect()).unwrap();
        install(&cluster);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(plane.client()).unwrap();
        Self { runtime, client, cluster, made: std::cell::Cell::new(0) }
    }

    fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl().run(args).unwrap()
    }

    /// Node-agents that were started with this configuration, as far as anybody can see.
    fn configure(&self, config: &str) {
        self.write_config(config).unwrap();
        let args = ["-c", "coproc read; wait", "--node-agent-configmap=node-agent-config"];
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME, "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": {"name": NAME}},
                "updateStrategy": {"rollingUpdate": {"maxUnavailable": "100%"}},
                "template": {
                    "metadata": {
                        "labels": {"name": NAME, "role": NAME},
                        "annotations": {"berth.test/config": config},
                    },
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "tolerations": [{"operator": "Exists"}],
                        "containers": [{"name": NAME, "image": BASH, "args": args}],
                    },
                },
            },
        });
        self.cluster.plane().apply(vec![set]).unwrap();
        let name = format!("daemonset/{NAME}");
        self.kubectl(&["rollout", "status", &name, "-n", NAMESPACE, "--timeout=600s"]);
        self.wait_seen();
    }

    /// As `kubectl apply --server-side` puts it, and the answer if it is refused.
    fn write_config(&self, config: &str) -> Result<(), String> {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG, "namespace": NAMESPACE},
            "data": {"node-agent-config.json": config},
        });
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let answer = self.cluster.kubectl().answer(&apply, &map.to_string()).unwrap();
        if answer.status.success() { Ok(()) } else { Err(answer.stderr) }
    }

    /// This and nothing else, as somebody writes it who may not want to be stopped.
    fn replace_config(&self, data: &Value, unchecked: bool) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": CONFIG, "namespace": NAMESPACE,
                "annotations": {"berth.dev/unchecked": unchecked.to_string()},
            },
            "data": data,
        });
        self.cluster.kubectl().run_with(&["replace", "-f", "-"], &map.to_string()).unwrap();
    }

    /// Both replicas of the webhook have seen which ConfigMap it is.
    fn wait_seen(&self) {
        wait_for("a faulty configuration to be refused", PATIENCE, || {
            let faulty = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG, "namespace": NAMESPACE},
                "data": {"node-agent-config.json": "{"},
            });
            let faulty: ConfigMap = serde_json::from_value(faulty)?;
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), NAMESPACE);
            for _ in 0..4 {
                match self.runtime.block_on(maps.replace(CONFIG, &dry_run(), &faulty)) {
                    Ok(_) => return Ok(None),
                    Err(kube::Error::Api(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(Some(()))
        })
        .unwrap();
    }

    /// The object that a pod works for, and its claims; name and uid.
    fn own(&self, case: &Case) -> (String, String) {
        self.made.set(self.made.get() + 1);
        let name = format!("mover-{}", self.made.get());
        let (kind, plane) = (case.kind, self.cluster.plane());
        let spec = if kind == Kind::DataUpload {
            plane.apply(vec![claim(NAMESPACE, &name, case.claim_class)]).unwrap();
            json!({
                "snapshotType": "CSI", "csiSnapshot": {"volumeSnapshot": name, "storageClass": case.class},
                "sourceNamespace": APP, "sourcePVC": name, "operationTimeout": "1m",
                "backupStorageLocation": "default",
            })
        } else {
            plane.apply(vec![claim(APP, &name, case.class)]).unwrap();
            json!({
                "targetVolume": {"namespace": APP, "pvc": name, "pv": ""}, "snapshotID": "none",
                "sourceNamespace": APP, "operationTimeout": "1m", "backupStorageLocation": "default",
            })
        };
        let owner: DynamicObject = serde_json::from_value(json!({
            "apiVersion": kind.api_version(), "kind": kind.name(), "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec, "status": {"phase": "Accepted"},
        }))
        .unwrap();
        let owners = kind.api(&self.client, NAMESPACE);
        let owner = self.runtime.block_on(owners.create(&PostParams::default(), &owner)).unwrap();
        (name, owner.metadata.uid.unwrap())
    }

    /// The pod as stock Velero makes it; name, and what became of it.
    fn make(&self, case: &Case) -> (String, Value) {
        let (name, uid) = self.own(case);
        let pod = self.create(&self.pod(case, &name, &uid));
        (name, pod)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Until every replica of the webhook places such a pod by a configuration that names this.
    fn wait_placed_by(&self, case: &Case, word: &str) {
        let (name, uid) = self.own(case);
        let pod: Pod = serde_json::from_value(self.pod(case, &name, &uid)).unwrap();
        wait_for(&format!("pods to be placed by {word}"), PATIENCE, || {
            for _ in 0..4 {
                let made = self.runtime.block_on(self.pods().create(&dry_run(), &pod))?;
                if !serde_json::to_string(&made)?.contains(word) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .unwrap();
    }

    fn pod(&self, case: &Case, name: &str, uid: &str) -> Value {
        let group =
            if case.kind == Kind::DataUpload { "snapshot-exposer" } else { "generic-restore-exposer" };
        let mut expressions: Vec<Value> = case.choice.iter().cloned().collect();
        expressions.push(no_windows());
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": NAMESPACE,
                "labels": {case.kind.label(): name, "velero.io/exposer-pod-group": group},
                "ownerReferences": [{
                    "apiVersion": case.kind.api_version(), "kind": case.kind.name(), "name": name, "uid": uid, "controller": true,
                }],
            },
            "spec": {
                "affinity": required(&expressions),
                "containers": [{"name": uid, "image": "none"}],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
            },
        });
        if let Some(node) = case.selected_node {
            pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        }
        pod
    }

    /// As a node-agent does. A webhook that could not read in time what the pod is for leaves it as
    /// it is, and says so: then it is made once more.
    fn create(&self, pod: &Value) -> Value {
        wait_for("a pod to be placed", PATIENCE, || {
            let answer =
                self.cluster.kubectl().answer(&["create", "-o", "json", "-f", "-"], &pod.to_string())?;
            anyhow::ensure!(answer.status.success(), "{}", answer.stderr);
            if answer.stderr.contains("could not be read in time") {
                self.delete(pod["metadata"]["name"].as_str().unwrap_or_default());
                return Ok(None);
            }
            Ok(Some(serde_json::from_str(&answer.stdout)?))
        })
        .unwrap()
    }

    fn get(&self, pod: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "pod", pod, "-n", NAMESPACE, "-o", "json"])).unwrap()
    }

    fn delete(&self, pod: &str) {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.runtime.block_on(self.pods().delete(pod, &at_once)).unwrap();
    }

    /// May the scheduler put pods on these nodes?
    fn open(&self, nodes: &[&str], is_open: bool) {
        let all: Api<KubeNode> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"unschedulable": (!is_open).then_some(true)}}));
        for node in nodes {
            self.runtime.block_on(all.patch(node, &PatchParams::default(), &patch)).unwrap();
        }
    }

    /// Until it is on that node.
    fn wait_on(&self, pod: &str, node: &str) {
        let is_there = || {
            let found = self.get(pod)["spec"]["nodeName"].as_str().map(str::to_owned);
            assert!(
                found.is_none() || found.as_deref() == Some(node),
                "{pod} is on {found:?}, not on {node}"
            );
            Ok(found.map(drop))
        };
        wait_for(&format!("{pod} to be on {node}"), PATIENCE, is_there).unwrap();
    }

    /// With each of these nodes alone open the pod lands there; with all others open but these it
    /// stays Pending.
    fn lands_on(&self, case: &Case, allowed: &[&str]) {
        self.open(allowed, false);
        for node in allowed.iter().copied() {
            let name = self.made_for_none(case, allowed);
            self.open(&[node], true);
            self.wait_on(&name, node);
            self.open(&[node], false);
            self.delete(&name);
        }
        self.open(allowed, true);
    }

    /// A pod for which the scheduler has found no node, now that these are closed.
    fn made_for_none(&self, case: &Case, closed: &[&str]) -> String {
        for _ in 0..CLOSINGS_NOT_SEEN {
            let (name, _) = self.make(case);
            let is_pending = wait_for(&format!("the scheduler to look at {name}"), PATIENCE, || {
                let pod = self.get(&name);
                if let Some(node) = pod["spec"]["nodeName"].as_str() {
                    assert!(closed.contains(&node), "on {node}: {:#}", pod["spec"]["affinity"]);
                    return Ok(Some(false));
                }
                let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
                Ok(conditions.iter().any(|c| c["reason"] == "Unschedulable").then_some(true))
            });
            if is_pending.unwrap() {
                return name;
            }
            // The scheduler hears of nodes and of pods by two watches: it had not heard yet that
            // this one is closed.
            self.delete(&name);
        }
        panic!("pods land on nodes that are closed: {closed:?}")
    }

    fn wait_event(&self, reason: &str, about: &str) {
        self.wait_event_note(reason, about, "");
    }

    /// Until there is an Event with this in its note.
    fn wait_event_note(&self, reason: &str, about: &str, note: &str) {
        wait_for(&format!("the Event {reason} of {about}: {note}"), PATIENCE, || {
            let args = ["get", "events.events.k8s.io", "-n", NAMESPACE, "-o", "json"];
            let events: Value = serde_json::from_str(&self.cluster.kubectl().run(&args)?)?;
            let is_it = |event: &&Value| {
                event["reason"] == reason
                    && event["regarding"]["name"] == about
                    && event["note"].as_str().is_some_and(|found| found.contains(note))
            };
            Ok(events["items"].as_array().into_iter().flatten().find(is_it).map(drop))
        })
        .unwrap();
    }
}

fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..PostParams::default() }
}

fn storage_class(name: &str, mode: &str) -> Value {
    class(name, "nobody.berth.test", mode, &json!({}))
}

#[test]
fn pods_of_data_movers_land_where_any_alternative_allows() {
    let stage = Stage::start();
    let b4 = || of_type("Standard_B4ms");
    let linux = || json!({"key": OS, "operator": "In", "values": ["linux"]});

    stage.configure(MULTIPLE);
    stage.lands_on(&Case::backup(OTHER, b4()), &["b4", "central"]);

    stage.configure(PER_CLASS);
    stage.lands_on(&Case::backup(KIBISHII, linux()), &["b2", "b4", "b8", "central"]);
    stage.lands_on(&Case::backup(OTHER, b4()), &["b4"]);

    stage.configure(BACKUP_PVC);
    let mapped = Case { claim_class: WORKER, ..Case::backup(KIBISHII, of_type("Standard_B2ms")) };
    stage.lands_on(&mapped, &["b2"]);

    // The volume waits for its consumer, so the consumer's node is chosen.
    stage.configure(RESTORE_PVC);
    let selected = Case { choice: None, selected_node: Some("central"), ..Case::restore(KIBISHII, b4()) };
    stage.lands_on(&selected, &["central"]);
    // It waits, and does not have to.
    let mut two: Value = serde_json::from_str(RESTORE_PVC).unwrap();
    two["restorePVC"]["ignoreDelayBinding"] = json!(true);
    two["loadAffinity"].as_array_mut().unwrap().push(json!({
        "storageClass": KIBISHII, "nodeSelector": {"matchLabels": {TYPE: "Standard_B2ms"}},
    }));
    stage.configure(&two.to_string());
    stage.lands_on(&Case::restore(KIBISHII, b4()), &["b4", "b2"]);
    // It has no consumer to wait for.
    let replaced = storage_class(KIBISHII, "Immediate").to_string();
    let args = ["replace", "--force", "-f", "-"];
    stage.cluster.kubectl().run_with(&args, &replaced).unwrap();
    stage.configure(RESTORE_PVC);
    stage.lands_on(&Case::restore(KIBISHII, b4()), &["b4"]);

    // Node-agents that run go on choosing as they did. What counts is what the configuration says
    // now.
    two["loadAffinity"][0]["nodeSelector"]["matchLabels"][TYPE] = json!("Standard_B8ms");
    stage.write_config(&two.to_string()).unwrap();
    stage.wait_placed_by(&Case::restore(KIBISHII, b4()), "Standard_B8ms");
    stage.lands_on(&Case::restore(KIBISHII, b4()), &["b8", "b2"]);

    // What is no data mover's.
    let case = Case::restore(KIBISHII, b4());
    for owner in [None, Some("00000000-0000-0000-0000-000000000000")] {
        let (name, _) = stage.own(&case);
        let mut pod = stage.pod(&case, &name, owner.unwrap_or_default());
        if owner.is_none() {
            pod["metadata"].as_object_mut().unwrap().remove("ownerReferences");
            pod["spec"]["containers"][0]["name"] = json!("mover");
        }
        let made = stage.create(&pod);
        assert_eq!(made["spec"]["affinity"], pod["spec"]["affinity"], "{owner:?}");
    }

    for (faulty, path) in [
        (r#"{"prepareQueueLength": 2}"#.to_owned(), "prepareQueueLength"),
        (
            MULTIPLE.replacen("\"In\"", "\"Near\"", 1),
            "loadAffinity[1].nodeSelector.matchExpressions[0].operator",
        ),
        (RESTORE_PVC.replace(KIBISHII, "unknown"), "loadAffinity[0].storageClass"),
        ("{".to_owned(), "node-agent-config.json"),
    ] {
        let refused = stage.write_config(&faulty).unwrap_err();
        assert!(refused.contains(path), "{faulty}: {refused}");
    }

    // What is written nevertheless, or goes, leaves the last good one in use.
    let good = two.to_string();
    let rejected = || stage.cluster.metric(NAMESPACE, CONTROLLER, "berth_movers_configuration_rejected");
    for (data, fault) in [
        (Some(json!({})), "there is none"),
        (Some(json!({"a": &good, "b": &good})), "must have one key"),
        (Some(json!({"node-agent-config.json": "{"})), "node-agent-config.json"),
        (None, "does not exist"),
    ] {
        match &data {
            Some(data) => stage.replace_config(data, true),
            None => drop(stage.kubectl(&["delete", "configmap", CONFIG, "-n", NAMESPACE])),
        }
        stage.wait_event_note("ConfigurationRejected", CONFIG, fault);
        wait_for("the metric to tell of it", PATIENCE, || Ok((rejected()? == 1).then_some(()))).unwrap();
        stage.lands_on(&Case::restore(KIBISHII, b4()), &["b8", "b2"]);
        match &data {
            Some(_) => stage.replace_config(&json!({"node-agent-config.json": &good}), false),
            None => stage.write_config(&good).unwrap(),
        }
        wait_for("it to be in order", PATIENCE, || Ok((rejected()? == 0).then_some(()))).unwrap();
    }

    stage.kubectl(&["scale", "deployment/berth-webhook", "-n", NAMESPACE, "--replicas=0"]);
    let webhooks = "app.kubernetes.io/name=berth-webhook";
    wait_for("no webhook to be there", PATIENCE, || {
        let pods = stage.cluster.pods(NAMESPACE, webhooks)?;
        // They would go on answering until every API server must have noticed. These crash.
        for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            // It may have ended by now.
            let _ = stage.cluster.signal(NAMESPACE, name, Signal::SIGKILL);
        }
        Ok(pods.is_empty().then_some(()))
    })
    .unwrap();
    let (name, made) = stage.make(&case);
    assert_eq!(made["spec"]["affinity"], required(&[b4(), no_windows()]));
    stage.wait_event("MissedAffinity", &name);
}
