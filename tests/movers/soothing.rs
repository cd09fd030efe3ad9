//! With berth: never more than `prepareQueueLength` at a time, in the order in which they were created.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{NAMESPACE, ensure_in_order, install, wait_for_gate};
use crate::cluster::images;
use crate::support::PATIENCE;
use crate::support::movers::{Burst, Kind, Pace, SOURCE};
use crate::support::node_agent;
use crate::support::pods::{Cluster, many};
use crate::support::wait_for;

/// Half a second until a pod runs, half a second of data.
const PACE: Pace = Pace { start: Duration::from_millis(500), run: Duration::from_millis(500) };
/// What `prepareQueueLength` asks for.
const LIMIT: usize = 2;

fn config(limit: usize) -> serde_json::Value {
    json!({"loadConcurrency": {"globalConfig": 1, "prepareQueueLength": limit}})
}

fn names(cluster: &Cluster) -> Vec<&str> {
    cluster.nodes().iter().map(|node| node.name.as_str()).collect()
}

/// The pod of the controller that leads.
fn leader(cluster: &Cluster) -> String {
    let args = ["get", "lease", "berth-controller", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"];
    let holder = cluster.kubectl().run(&args).unwrap();
    let pods = cluster.pods(NAMESPACE, "app.kubernetes.io/name=berth-controller").unwrap();
    let mut names = pods.into_iter().filter_map(|pod| pod.metadata.name);
    names.find(|name| holder.starts_with(name.as_str())).unwrap_or_else(|| panic!("{holder} is no pod"))
}

/// All kinds share one limit, which holds at every resourceVersion, also when the one that counts is killed.
#[test]
fn thirty_of_all_kinds_keep_to_the_limit_and_the_order() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    install(&cluster);
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config(LIMIT)).unwrap();
    wait_for_gate(cluster.kubectl());
    burst.create(Kind::PodVolumeBackup, "backup", 6).unwrap();
    burst.create(Kind::DataUpload, "upload", 12).unwrap();
    burst.create(Kind::PodVolumeRestore, "restore", 6).unwrap();
    burst.create(Kind::DataDownload, "download", 6).unwrap();
    node_agent::want(&cluster, &names(&cluster)).unwrap();
    burst.history.wait_ended(8, PATIENCE).unwrap();
    let killed = leader(&cluster);
    cluster.signal(NAMESPACE, &killed, Signal::SIGKILL).unwrap();
    burst.wait_completed(30, PATIENCE).unwrap();
    let most = burst.history.most_preparing().unwrap();
    println!("3 agents, berth, {LIMIT} wanted: {most} at most, in {:?}", burst.history.work().unwrap());
    assert_eq!(most, LIMIT);
    ensure_in_order(&burst.history, LIMIT, Duration::ZERO);
}

/// The node-agents were started without a limit, and are not started again.
#[test]
fn a_limit_that_is_changed_counts_at_once() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    let unlimited = json!({"loadConcurrency": {"globalConfig": 8}});
    node_agent::start(&cluster, NAMESPACE, &unlimited, &[]).unwrap();
    install(&cluster);
    let ended = |count| burst.history.wait_ended(count, PATIENCE).unwrap();
    node_agent::write_config(&cluster, NAMESPACE, &config(2)).unwrap();
    wait_for_gate(cluster.kubectl());
    burst.create(Kind::DataUpload, "upload", 26).unwrap();
    ended(6);
    assert_eq!(burst.history.most_preparing().unwrap(), 2);

    let from = burst.history.version().unwrap();
    node_agent::write_config(&cluster, NAMESPACE, &config(4)).unwrap();
    let most = || burst.history.most_preparing_from(from);
    wait_for("four at a time", PATIENCE, || Ok((most()? == 4).then_some(()))).unwrap();
    ended(12);
    assert_eq!(most().unwrap(), 4);

    let from = burst.history.version().unwrap();
    node_agent::write_config(&cluster, NAMESPACE, &unlimited).unwrap();
    let most = || burst.history.most_preparing_from(from);
    wait_for("more than four at a time", PATIENCE, || Ok((most()? > 4).then_some(()))).unwrap();
    burst.wait_completed(26, PATIENCE).unwrap();
}

struct Drained {
    most: usize,
    over: Duration,
    took: Duration,
}

/// Thirty uploads that are there when ten node-agents start.
fn drain(with_berth: bool) -> Drained {
    let cluster = Cluster::start_with_nodes(images(), many(10)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    if with_berth {
        install(&cluster);
    }
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config(LIMIT)).unwrap();
    if with_berth {
        wait_for_gate(cluster.kubectl());
    }
    burst.create(Kind::DataUpload, "upload", 30).unwrap();
    node_agent::want(&cluster, &names(&cluster)).unwrap();
    burst.wait_completed(30, PATIENCE).unwrap();
    if with_berth {
        ensure_in_order(&burst.history, LIMIT, Duration::ZERO);
    }
    Drained {
        most: burst.history.most_preparing().unwrap(),
        over: burst.history.time_over(LIMIT).unwrap(),
        took: burst.history.work().unwrap(),
    }
}

#[test]
#[ignore = "takes ten node-agents and minutes: make test-large"]
fn ten_agents_that_start_keep_to_the_limit_with_berth() {
    for (name, with_berth) in [("stock Velero", false), ("berth", true)] {
        let Drained { most, over, took } = drain(with_berth);
        println!(
            "10 agents that start, {name}, {LIMIT} wanted: {most} at most, too many for {over:?} of {took:?}"
        );
        assert_eq!(most > LIMIT, !with_berth, "{name}: {most}");
    }
}

/// Stock Velero lets such a one have its place for half an hour.
#[test]
fn what_a_dead_agent_accepted_begins_anew_elsewhere() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    install(&cluster);
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config(LIMIT)).unwrap();
    wait_for_gate(cluster.kubectl());
    let uploads = burst.create(Kind::DataUpload, "upload", 6).unwrap();
    // A node-agent waits for them.
    uploads.iter().for_each(|name| set_ready(&cluster, name, false));
    let (dead, others) = ("node-1", ["node-2", "node-3"]);
    node_agent::want(&cluster, &[dead]).unwrap();
    let phase = |name: &str| burst.history.phase(Kind::DataUpload, name).unwrap();
    let accepted = || uploads.iter().filter(|name| phase(name) == "Accepted").cloned().collect::<Vec<_>>();
    // An agent waits for one snapshot at a time.
    wait_for("an acceptance", PATIENCE, || Ok((!accepted().is_empty()).then_some(()))).unwrap();
    let orphans = accepted();
    // A pod that another agent makes there would be nobody's to carry: that is not what is tested.
    cluster.kubectl().run(&["cordon", dead]).unwrap();
    node_agent::want(&cluster, &others).unwrap();
    node_agent::wait_count(&cluster, NAMESPACE, 3).unwrap();

    let agent = node_agent::pod_on(&cluster, NAMESPACE, dead).unwrap();
    cluster.signal(NAMESPACE, &agent, Signal::SIGKILL).unwrap();
    let killed = Instant::now();
    node_agent::want_none(&cluster, &[dead]).unwrap();
    uploads.iter().for_each(|name| set_ready(&cluster, name, true));
    let is_carried = |name: &String| {
        let now = burst.history.now().unwrap();
        let step = now.get(&(Kind::DataUpload, name.clone())).unwrap();
        ["", "New"].contains(&step.phase.as_str()) || step.accepted_by != dead
    };
    wait_for("the orphans to begin anew", PATIENCE, || Ok(orphans.iter().all(is_carried).then_some(())))
        .unwrap();
    println!("an agent died, and what it had accepted began anew after {:?}", killed.elapsed());
    burst.wait_completed(6, PATIENCE).unwrap();
    assert_eq!(burst.history.most_preparing().unwrap(), LIMIT);
}

pub fn set_ready(cluster: &Cluster, snapshot: &str, is_ready: bool) {
    let patch = json!({"status": {"readyToUse": is_ready}}).to_string();
    let args = [
        "patch",
        "volumesnapshot",
        snapshot,
        "-n",
        SOURCE,
        "--type=merge",
        "--subresource=status",
        "-p",
        &patch,
    ];
    cluster.kubectl().run(&args).unwrap();
}
