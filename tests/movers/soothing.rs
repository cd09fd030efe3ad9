//! With berth: never more than `prepareQueueLength` at a time, in the order in which they were
//! created.

use std::time::Duration;

use anyhow::Context as _;
use berth::leader::LEASE;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{NAMESPACE, ensure_in_order, install, seen, wait_for_gate};
use crate::cluster::images;
use crate::support::PATIENCE;
use crate::support::berth::holder;
use crate::support::movers::{Burst, Kind, Pace};
use crate::support::node_agent;
use crate::support::pods::{Cluster, many};
use crate::support::wait_for;

const PACE: Pace = Pace { start: Duration::from_millis(100), run: Duration::from_millis(100) };
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
    let holder = holder(cluster.kubectl(), NAMESPACE).unwrap();
    let pods = cluster.pods(NAMESPACE, "app.kubernetes.io/name=berth-controller").unwrap();
    let mut names = pods.into_iter().filter_map(|pod| pod.metadata.name);
    names.find(|name| holder.starts_with(name.as_str())).unwrap_or_else(|| panic!("{holder} is no pod"))
}

/// Stories of one scene, one after the other: all that they need takes longer than they do. A stock
/// node-agent asks the API server five times a second, so that each movement takes more than a
/// second, whatever the pace is.
#[test]
fn all_kinds_keep_to_the_limit_and_the_order_people_see_it_and_another_limit_counts_at_once() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    cluster.plane().apply(vec![seen::far()]).unwrap();
    install(&cluster);
    let mut config = config(LIMIT);
    // Who finds all data paths of a node taken asks again after five seconds.
    config["loadConcurrency"]["globalConfig"] = json!(8);
    config["loadAffinity"] = seen::rules();
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config).unwrap();
    wait_for_gate(cluster.kubectl());
    let first = seen::people_see_who_has_a_place_and_where_movers_may_run(&cluster, &burst);
    all_kinds_keep_to_the_limit_and_the_order(&cluster, &burst, &first);
    seen::people_see_that_all_is_done_and_how_it_would_be_with_another_configuration(&cluster);
    a_limit_that_is_changed_counts_at_once(&cluster, &burst);
}

/// All kinds share one limit, which holds at every resourceVersion, also when the one that counts
/// is killed. `first`: DataUploads that have all places until their snapshots are ready, and two
/// that wait; a PodVolumeBackup waits beside them.
fn all_kinds_keep_to_the_limit_and_the_order(cluster: &Cluster, burst: &Burst<'_>, first: &[String]) {
    burst.create(Kind::PodVolumeBackup, "backup", 3).unwrap();
    burst.create(Kind::DataUpload, "later", 4).unwrap();
    burst.create(Kind::PodVolumeRestore, "restore", 4).unwrap();
    burst.create(Kind::DataDownload, "download", 4).unwrap();
    node_agent::want(cluster, &["node-3"]).unwrap();
    node_agent::wait_count(cluster, NAMESPACE, 3).unwrap();
    burst.set_ready(first).unwrap();
    burst.history.wait_ended(6, PATIENCE).unwrap();
    let killed = leader(cluster);
    cluster.signal(NAMESPACE, &killed, Signal::SIGKILL).unwrap();
    // As time would take it.
    cluster.kubectl().run(&["delete", "lease", LEASE, "-n", NAMESPACE]).unwrap();
    burst.wait_completed(20, PATIENCE).unwrap();
    let most = burst.history.most_preparing().unwrap();
    println!("3 agents, berth, {LIMIT} wanted: {most} at most, in {:?}", burst.history.work().unwrap());
    assert_eq!(most, LIMIT);
    ensure_in_order(&burst.history, LIMIT, Duration::ZERO);
}

/// The node-agents were started without a limit, and are not started again.
fn a_limit_that_is_changed_counts_at_once(cluster: &Cluster, burst: &Burst<'_>) {
    let unlimited = json!({"loadConcurrency": {"globalConfig": 8}});
    node_agent::reconfigure(cluster, NAMESPACE, &unlimited).unwrap();
    node_agent::write_config(cluster, NAMESPACE, &config(2)).unwrap();
    wait_for_gate(cluster.kubectl());
    let before = burst.history.now().unwrap().len();
    let since = || burst.history.version().unwrap();
    let most = |from: u64| burst.history.most_preparing_from(from).unwrap();
    let wait_most = |from: u64, wanted: usize| {
        wait_for(&format!("{wanted} at a time"), PATIENCE, || {
            burst.ensure_plays()?;
            Ok((most(from) >= wanted).then_some(()))
        })
        .with_context(|| burst.history.told())
        .unwrap();
    };
    // What begins to be prepared stays so: as many as there may be are so at a time.
    let hold = || names(cluster).into_iter().for_each(|node| burst.hold(node));
    let release = || names(cluster).into_iter().for_each(|node| burst.release(node));

    hold();
    let two = since();
    burst.create(Kind::DataUpload, "two", 5).unwrap();
    wait_most(two, 2);
    release();
    burst.history.wait_ended(before + 3, PATIENCE).unwrap();
    assert_eq!(most(two), 2);

    hold();
    burst.create(Kind::DataUpload, "four", 4).unwrap();
    let four = since();
    node_agent::write_config(cluster, NAMESPACE, &config(4)).unwrap();
    wait_most(four, 4);
    release();
    burst.history.wait_ended(before + 7, PATIENCE).unwrap();
    assert_eq!(most(four), 4);

    hold();
    burst.create(Kind::DataUpload, "many", 5).unwrap();
    node_agent::write_config(cluster, NAMESPACE, &unlimited).unwrap();
    wait_most(since(), 5);
    release();
    burst.wait_completed(before + 14, PATIENCE).unwrap();
}

struct Drained {
    most: usize,
    over: Duration,
    took: Duration,
}

/// Thirty uploads that are there when ten node-agents start. Half a second until a pod runs, half a
/// second of data.
fn drain(with_berth: bool) -> Drained {
    let cluster = Cluster::start_with_nodes(images(), many(10)).unwrap();
    let pace = Pace { start: Duration::from_millis(500), run: Duration::from_millis(500) };
    let burst = Burst::new(&cluster, NAMESPACE, pace).unwrap();
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
