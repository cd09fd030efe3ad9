//! What people see: `berth queue movers` and `berth node-agent check`, beside stock node-agents.

use std::time::Duration;

use serde_json::{Value, json};

use super::soothing::set_ready;
use super::{NAMESPACE, install, wait_for_gate};
use crate::cluster::{images, run};
use crate::support::PATIENCE;
use crate::support::csi::class;
use crate::support::movers::{Burst, Kind, Pace};
use crate::support::node_agent;
use crate::support::pods::{Cluster, many};
use crate::support::wait_for;

const PACE: Pace = Pace { start: Duration::from_millis(500), run: Duration::from_millis(500) };

fn rule(class: &str, zone: &str) -> Value {
    json!({"storageClass": class, "nodeSelector": {"matchLabels": {"topology.kubernetes.io/zone": zone}}})
}

/// The words of a line, without the blanks between columns.
fn line<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let found = table.lines().find(|line| line.split_whitespace().any(|word| word == name));
    found.unwrap_or_else(|| panic!("no {name} in\n{table}")).split_whitespace().collect()
}

#[test]
fn people_see_who_has_a_place_and_where_movers_may_run() {
    let cluster = Cluster::start_with_nodes(images(), many(3)).unwrap();
    let burst = Burst::new(&cluster, NAMESPACE, PACE).unwrap();
    cluster.plane().apply(vec![class("far", "none.berth.test", "WaitForFirstConsumer", &json!({}))]).unwrap();
    install(&cluster);
    let config = json!({
        "loadConcurrency": {"globalConfig": 1, "prepareQueueLength": 2},
        "loadAffinity": [rule("played", "zone-a"), rule("played", "zone-b"), rule("far", "zone-c")],
    });
    node_agent::begin_where_wanted(&cluster, NAMESPACE, &config).unwrap();
    wait_for_gate(cluster.kubectl());
    let uploads = burst.create(Kind::DataUpload, "upload", 4).unwrap();
    // A node-agent waits for them: what it has accepted stays so.
    uploads.iter().for_each(|name| set_ready(&cluster, name, false));
    let bound = burst.one(Kind::PodVolumeBackup, "bound", "node-3").unwrap();
    burst.submit(Kind::PodVolumeBackup, vec![bound]).unwrap();
    node_agent::want(&cluster, &["node-1", "node-2"]).unwrap();
    node_agent::wait_count(&cluster, NAMESPACE, 2).unwrap();

    let report = || serde_json::from_str::<Value>(&run(&cluster, "berth queue movers -o json")).unwrap();
    let accepted = |report: &Value| {
        let movers = report["movers"].as_array().unwrap();
        movers.iter().filter(|mover| mover["granted"] == true && mover["phase"] == "Accepted").count()
    };
    let seen =
        wait_for(
            "two to be accepted",
            PATIENCE,
            || Ok(Some(report()).filter(|report| accepted(report) == 2)),
        )
        .unwrap();
    let counts = ["limit", "taken", "waiting"].map(|key| seen[key].as_u64());
    assert_eq!(counts, [Some(2), Some(2), Some(3)], "{seen:#}");
    let table = run(&cluster, "berth queue movers");
    println!("{table}");
    let head = "2 of 2 places are taken (prepareQueueLength of ConfigMap node-agent-config), 3 wait\n";
    assert!(table.starts_with(head), "{table}");
    let [granted, others] = [true, false].map(|granted| {
        let movers = seen["movers"].as_array().unwrap().iter();
        let alike = movers.filter(|mover| mover["granted"] == granted && mover["kind"] == "DataUpload");
        alike.filter_map(|mover| mover["name"].as_str()).collect::<Vec<_>>()
    });
    assert_eq!(line(&table, granted[0])[..4], ["granted", "DataUpload", granted[0], "Accepted"]);
    let waits = format!("2 of 2 places are taken by {}", granted.join(", "));
    for name in others {
        assert!(line(&table, name).join(" ").ends_with(&waits), "{table}");
    }
    let bound = line(&table, "bound").join(" ");
    assert!(bound.ends_with("node node-3 has no ready node-agent"), "{table}");

    let table = run(&cluster, "! berth node-agent check");
    println!("{table}");
    for (words, nodes) in [
        ("played backup", "node-1, node-2 any of the 2 rules of StorageClass played"),
        ("played restore", "node-1, node-2 any of the 2 rules"),
        (
            "far backup",
            "NONE the rule of StorageClass far; no node-agent runs on a node that matches: node-3",
        ),
        ("far restore", "node-1, node-2 no rules: StorageClass far waits for the volume's consumer"),
        ("(any) pod volume", "node-1, node-2 no rules"),
    ] {
        let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        let expected = format!("{words} {nodes}");
        assert!(lines.into_iter().any(|line| line.starts_with(&expected)), "{expected:?} is not in\n{table}");
    }

    // What was missing comes.
    node_agent::want(&cluster, &["node-3"]).unwrap();
    uploads.iter().for_each(|name| set_ready(&cluster, name, true));
    burst.wait_completed(5, PATIENCE).unwrap();
    assert!(run(&cluster, "berth queue movers").ends_with("No data mover waits and none runs.\n"));
    let checked: Value = serde_json::from_str(&run(&cluster, "berth node-agent check -o json")).unwrap();
    assert_eq!((&checked["usable"], &checked["withAgent"]), (&json!(true), &json!(3)));

    // As it would be with another ConfigMap, and with one that is not there.
    let odd = json!({"prepareQueueLength": 2, "loadAffinity": [rule("gone", "zone-a")]}).to_string();
    let odd = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd", "namespace": NAMESPACE},
        "data": {"config.json": odd},
    });
    cluster.plane().apply(vec![odd]).unwrap();
    let table = run(&cluster, "berth node-agent check --node-agent-configmap=odd");
    for fault in [
        "warning  data[config.json].prepareQueueLength: does not belong here",
        "warning  data[config.json].loadAffinity[0].storageClass: there is no StorageClass \"gone\"",
    ] {
        assert!(table.contains(fault), "{table}");
    }
    let table = run(&cluster, "! berth node-agent check --node-agent-configmap=none");
    assert!(table.contains("FAULT    ConfigMap: none does not exist"), "{table}");
}
