//! Many at once, with played pods: how many a stock Velero prepares at a time if it has a limit.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::NAMESPACE;
use crate::support::PATIENCE;
use crate::support::movers::{Burst, Kind, Pace};
use crate::support::node_agent;
use crate::support::pods::{Cluster, many};

/// Half a second until a pod runs, half a second of data.
const PACE: Pace = Pace { start: Duration::from_millis(500), run: Duration::from_millis(500) };
/// What `prepareQueueLength` asks for.
const LIMIT: usize = 2;

fn config() -> serde_json::Value {
    json!({"loadConcurrency": {"globalConfig": 1, "prepareQueueLength": LIMIT}})
}

#[test]
#[ignore = "says what the pinned Velero does, which is nothing of berth's: make test-large"]
fn thirty_uploads_go_through_three_agents() {
    let cluster = Cluster::start_with_nodes(BTreeMap::new(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    node_agent::start(&cluster, NAMESPACE, &config(), &[]).unwrap();
    burst.create(Kind::DataUpload, "upload", 30).unwrap();
    burst.wait_completed(30, PATIENCE).unwrap();
    let most = burst.history.most_preparing().unwrap();
    println!("3 agents, {LIMIT} wanted: {most} at most, in {:?}", burst.history.length().unwrap());
    assert!(most >= LIMIT, "the watch saw only {most}");
}

/// The other kinds can be driven in the same way.
#[test]
#[ignore = "says what the pinned Velero does, which is nothing of berth's: make test-large"]
fn every_kind_goes_through_a_stock_agent() {
    let cluster = Cluster::start_with_nodes(BTreeMap::new(), many(2)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    node_agent::start(&cluster, NAMESPACE, &config(), &[]).unwrap();
    burst.create(Kind::PodVolumeBackup, "backup", 2).unwrap();
    burst.create(Kind::PodVolumeRestore, "restore", 2).unwrap();
    burst.create(Kind::DataDownload, "download", 2).unwrap();
    burst.create(Kind::DataUpload, "upload", 2).unwrap();
    burst.wait_completed(8, PATIENCE).unwrap();
    println!("2 agents, {LIMIT} wanted of all kinds: {} at most", burst.history.most_preparing().unwrap());
}

#[test]
#[ignore = "takes ten node-agents and minutes: make test-large"]
fn ten_agents_that_start_prepare_more_than_they_are_told() {
    let cluster = Cluster::start_with_nodes(BTreeMap::new(), many(10)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    burst.create(Kind::DataUpload, "upload", 30).unwrap();
    node_agent::start(&cluster, NAMESPACE, &config(), &[]).unwrap();
    burst.wait_completed(30, PATIENCE).unwrap();
    let (most, over) = (burst.history.most_preparing().unwrap(), burst.history.time_over(LIMIT).unwrap());
    let length = burst.history.length().unwrap();
    println!(
        "10 agents that start, {LIMIT} wanted: {most} at most, more than wanted for {over:?} of {length:?}"
    );
    assert!(most > LIMIT, "stock Velero keeps to its limit now: {most}");
}
