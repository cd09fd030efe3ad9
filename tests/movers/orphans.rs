//! Data movers whose node-agent is gone, of all kinds and in every phase in which they hold a
//! place: with stock node-agents, of which one is killed and does not come back, and pods that are
//! held on its node. Stock Velero leaves an Accepted data mover its place for half an hour, and a
//! Prepared one until a person cancels it hours later.
//!
//! The controller has less patience here than in a cluster; the tests of `berth_core` say how long
//! it waits.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{NAMESPACE, install, wait_for_gate};
use crate::cluster::images;
use crate::support::PATIENCE;
use crate::support::movers::{Burst, KINDS, Kind, Pace};
use crate::support::node_agent;
use crate::support::pods::{Cluster, many};
use crate::support::wait_for;

const PACE: Pace = Pace { start: Duration::from_millis(100), run: Duration::from_millis(100) };
/// Of the controller, in place of 25 s and two minutes.
const PATIENCE_OF_CONTROLLER: [&str; 2] = ["--mover-orphaned-after=5s", "--mover-given-up-after=10s"];
const LIMIT: usize = 4;
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// It has one data path. Who finds that taken asks again after five seconds.
const CROWDED: &str = "node-2";

struct Scene<'a> {
    cluster: &'a Cluster,
    burst: Burst<'a>,
}

impl<'a> Scene<'a> {
    /// Three nodes, on the first of which there is a node-agent.
    fn new(cluster: &'a Cluster) -> Self {
        let burst = Burst::new(cluster, NAMESPACE, PACE).unwrap();
        cluster.add_args("controller", &PATIENCE_OF_CONTROLLER);
        install(cluster);
        let crowded = json!({"matchLabels": {"kubernetes.io/hostname": CROWDED}});
        let config = json!({"loadConcurrency": {
            "globalConfig": 4,
            "perNodeConfig": [{"nodeSelector": crowded, "number": 1}],
            "prepareQueueLength": LIMIT,
        }});
        node_agent::begin_where_wanted(cluster, NAMESPACE, &config).unwrap();
        wait_for_gate(cluster.kubectl());
        node_agent::want(cluster, &NODES[..1]).unwrap();
        node_agent::wait_count(cluster, NAMESPACE, 1).unwrap();
        Self { cluster, burst }
    }

    fn kill_agent(&self, node: &str) {
        let agent = node_agent::pod_on(self.cluster, NAMESPACE, node).unwrap();
        self.cluster.signal(NAMESPACE, &agent, Signal::SIGKILL).unwrap();
        node_agent::want_none(self.cluster, &[node]).unwrap();
        // Its container may be started once more before it goes.
        node_agent::wait_gone(self.cluster, NAMESPACE, node).unwrap();
    }

    fn one(&self, kind: Kind, name: &str, node: &str) {
        self.burst.submit(kind, vec![self.burst.one(kind, name, node).unwrap()]).unwrap();
    }

    fn phase(&self, kind: Kind, name: &str) -> String {
        self.burst.history.phase(kind, name).unwrap()
    }

    fn wait_phase(&self, kind: Kind, name: &str, phase: &str, patience: Duration) {
        wait_for(&format!("{name} to be {phase}"), patience, || {
            self.burst.ensure_plays()?;
            Ok((self.burst.history.phase(kind, name)? == phase).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error}: it is {}", self.object(kind, name)));
    }

    fn object(&self, kind: Kind, name: &str) -> Value {
        let resource = format!("{}.velero.io", kind.plural());
        let text = self.cluster.kubectl().run(&["get", &resource, name, "-n", NAMESPACE, "-o", "json"]);
        serde_json::from_str(&text.unwrap()).unwrap()
    }

    /// Is there such an object in Velero's namespace?
    fn is_there(&self, resource: &str, name: &str) -> bool {
        let args = ["get", resource, name, "-n", NAMESPACE, "--ignore-not-found", "-o", "name"];
        !self.cluster.kubectl().run(&args).unwrap().trim().is_empty()
    }

    /// The node of the pod that was made for it, once it has one.
    fn node_of(&self, name: &str) -> String {
        wait_for(&format!("the pod of {name} to have a node"), PATIENCE, || {
            let args = [
                "get",
                "pod",
                name,
                "-n",
                NAMESPACE,
                "--ignore-not-found",
                "-o",
                "jsonpath={.spec.nodeName}",
            ];
            Ok(Some(self.cluster.kubectl().run(&args)?).filter(|node| !node.is_empty()))
        })
        .unwrap()
    }
}

#[test]
fn whoever_is_left_by_a_node_agent_gives_its_place_up() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let scene = Scene::new(&cluster);
    accepted_ones_begin_anew_or_fail(&scene);
    a_pod_on_a_node_without_an_agent_is_made_anew(&scene);
    a_prepared_upload_begins_without_its_agent(&scene);
    what_a_dead_agent_accepted_and_did_not_begin_with_begins_anew_elsewhere(&scene);
    what_is_bound_to_the_node_begins_when_its_agent_is_back(&scene);
    let most = scene.burst.history.most_preparing().unwrap();
    println!("{most} at most, {LIMIT} wanted");
    assert_eq!(most, LIMIT);
}

fn name(kind: Kind) -> String {
    format!("orphan-{}", kind.plural())
}

/// One of each kind on a node that goes down: node-agent and pods. Two more wait for a place.
fn accepted_ones_begin_anew_or_fail(scene: &Scene<'_>) {
    let [dead, others @ ..] = NODES;
    scene.burst.open(&[dead]).unwrap();
    scene.burst.hold(dead);
    for kind in [Kind::DataUpload, Kind::DataDownload] {
        scene.burst.create(kind, &name(kind), 1).unwrap();
    }
    for kind in [Kind::PodVolumeBackup, Kind::PodVolumeRestore] {
        scene.one(kind, &format!("{}-1", name(kind)), dead);
    }
    for kind in KINDS {
        let name = format!("{}-1", name(kind));
        assert_eq!(scene.node_of(&name), dead);
        scene.wait_phase(kind, &name, "Accepted", PATIENCE);
    }
    let waiting = scene.burst.create(Kind::DataUpload, "waiting", 2).unwrap();
    scene.burst.open(&others).unwrap();
    node_agent::want(scene.cluster, &others).unwrap();
    node_agent::wait_count(scene.cluster, NAMESPACE, 3).unwrap();
    waiting.iter().for_each(|name| assert_eq!(scene.phase(Kind::DataUpload, name), ""));

    scene.kill_agent(dead);
    let killed = Instant::now();
    let upload = format!("{}-1", name(Kind::DataUpload));
    for kind in &KINDS[1..] {
        wait_for(&format!("{kind:?} to begin anew"), PATIENCE, || {
            let steps = scene.burst.history.steps()?;
            let own = || steps.iter().filter(|step| step.kind == *kind);
            let accepted = own().position(|step| step.phase == "Accepted");
            Ok(own().skip(accepted.unwrap_or(usize::MAX)).find(|step| step.phase == "New").map(drop))
        })
        .unwrap();
    }
    println!("a node died: all that could begin anew gave its place up after {:?}", killed.elapsed());
    // Velero has moved its snapshot: no node-agent would find it, but for this one, had it come
    // back.
    scene.wait_phase(Kind::DataUpload, &upload, "Failed", PATIENCE);
    let steps = scene.burst.history.steps().unwrap();
    let of_upload = steps.iter().filter(|step| step.kind == Kind::DataUpload && step.name == upload);
    let mut after = of_upload.skip_while(|step| step.phase != "Accepted");
    assert!(after.all(|step| ["Accepted", "Failed"].contains(&step.phase.as_str())), "it began anew");

    let failed = scene.object(Kind::DataUpload, &upload);
    let message = failed["status"]["message"].as_str().unwrap_or_default();
    for told in ["node-agent", "back the volume up once more", &upload] {
        assert!(message.contains(told), "{told:?} is not in {message:?}");
    }
    // By this label stock node-agents count who holds a place.
    assert_eq!(failed["metadata"]["labels"]["velero.io/expose-on-going"], Value::Null);
    assert!(scene.is_there("volumesnapshot", &upload), "the data that Velero had is gone");
    wait_for("what was made for it to go", PATIENCE, || {
        Ok((!scene.is_there("pod", &upload) && !scene.is_there("pvc", &upload)).then_some(()))
    })
    .unwrap();

    let download = format!("{}-1", name(Kind::DataDownload));
    scene.wait_phase(Kind::DataDownload, &download, "Completed", PATIENCE);
    assert_eq!(
        scene.object(Kind::DataDownload, &download)["metadata"]["annotations"]["berth.dev/begun-anew"],
        "1"
    );
    waiting.iter().for_each(|name| scene.wait_phase(Kind::DataUpload, name, "Completed", PATIENCE));
    // Only the node-agent that is away could carry them.
    for kind in [Kind::PodVolumeBackup, Kind::PodVolumeRestore] {
        let one = scene.object(kind, &format!("{}-1", name(kind)));
        assert_eq!(one["status"]["phase"], "New");
        assert_eq!(
            one["metadata"]["annotations"]["berth.dev/granted"],
            Value::Null,
            "it holds a place: {one}"
        );
    }
}

/// The one that accepted it lives, and has done its part.
fn a_pod_on_a_node_without_an_agent_is_made_anew(scene: &Scene<'_>) {
    let [dead, others @ ..] = NODES;
    scene.burst.open(&[dead]).unwrap();
    let astray = scene.burst.create(Kind::DataDownload, "astray", 1).unwrap().remove(0);
    assert_eq!(scene.node_of(&astray), dead);
    scene.burst.open(&others).unwrap();
    let placed = Instant::now();
    wait_for("its pod to be elsewhere", PATIENCE, || {
        Ok((others.contains(&scene.node_of(&astray).as_str())).then_some(()))
    })
    .unwrap();
    println!("a pod was on a node without a node-agent: it was made anew after {:?}", placed.elapsed());
    scene.wait_phase(Kind::DataDownload, &astray, "Completed", PATIENCE);
}

/// The data path of the node is taken by another one when the node-agent dies.
fn a_prepared_upload_begins_without_its_agent(scene: &Scene<'_>) {
    let node = CROWDED;
    scene.burst.open(&[node]).unwrap();
    scene.burst.hold_ends(node);
    let uploads = scene.burst.create(Kind::DataUpload, "prepared", 2).unwrap();
    let phases = || {
        let mut phases: Vec<String> =
            uploads.iter().map(|name| scene.phase(Kind::DataUpload, name)).collect();
        phases.sort();
        phases
    };
    wait_for("one to run and the other to wait for it", PATIENCE, || {
        Ok((phases() == ["InProgress", "Prepared"]).then_some(()))
    })
    .unwrap();
    scene.kill_agent(node);
    let killed = Instant::now();
    wait_for("the other to begin", PATIENCE, || Ok((phases() == ["InProgress", "InProgress"]).then_some(())))
        .unwrap();
    println!("a node-agent died: what it had prepared gave its place up after {:?}", killed.elapsed());
    // Their pods move the data by themselves, and the node-agent finds them so when it is back.
    scene.burst.release(node);
    node_agent::want(scene.cluster, &[node]).unwrap();
    uploads.iter().for_each(|name| scene.wait_phase(Kind::DataUpload, name, "Completed", PATIENCE));
}

/// Their snapshots are where they were.
fn what_a_dead_agent_accepted_and_did_not_begin_with_begins_anew_elsewhere(scene: &Scene<'_>) {
    let [_, dead, other] = NODES;
    // No agent would carry a pod that another agent creates there, which is not tested here.
    scene.burst.open(&[other]).unwrap();
    // Each node-agent waits with the first that it has accepted: of three both have one.
    let uploads = scene.burst.create_unready("unready", 3).unwrap();
    let accepted_by = |node: &str| {
        let now = scene.burst.history.now()?;
        let of_node = |name: &&String| {
            let step = now.get(&(Kind::DataUpload, (*name).clone()));
            step.is_some_and(|step| step.phase == "Accepted" && step.accepted_by == node)
        };
        anyhow::Ok(uploads.iter().filter(of_node).cloned().collect::<Vec<_>>())
    };
    let orphans = wait_for("both node-agents to have accepted one", PATIENCE, || {
        let is_with_other = !accepted_by(other)?.is_empty();
        Ok(Some(accepted_by(dead)?).filter(|orphans| is_with_other && !orphans.is_empty()))
    })
    .unwrap();
    scene.kill_agent(dead);
    let killed = Instant::now();
    scene.burst.set_ready(&uploads).unwrap();
    wait_for("the orphans to begin anew", PATIENCE, || {
        let left = accepted_by(dead)?;
        Ok((!orphans.iter().any(|name| left.contains(name))).then_some(()))
    })
    .unwrap();
    println!("a node-agent died, and what it had accepted began anew after {:?}", killed.elapsed());
    uploads.iter().for_each(|name| scene.wait_phase(Kind::DataUpload, name, "Completed", PATIENCE));
    for name in orphans {
        let orphan = scene.object(Kind::DataUpload, &name);
        assert_eq!(orphan["metadata"]["annotations"]["berth.dev/begun-anew"], "1", "{orphan}");
        assert_eq!(orphan["status"]["acceptedByNode"], other, "{orphan}");
    }
}

fn what_is_bound_to_the_node_begins_when_its_agent_is_back(scene: &Scene<'_>) {
    let back = NODES[0];
    scene.burst.open(&NODES).unwrap();
    scene.burst.release(back);
    node_agent::want(scene.cluster, &[back]).unwrap();
    for kind in [Kind::PodVolumeBackup, Kind::PodVolumeRestore] {
        scene.wait_phase(kind, &format!("{}-1", name(kind)), "Completed", PATIENCE);
    }
}
