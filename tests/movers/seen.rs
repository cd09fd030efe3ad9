//! What people see: `berth queue movers` and `berth node-agent check`, beside stock node-agents.
//! See [`super::soothing`] for the scene.

use serde_json::{Value, json};

use super::NAMESPACE;
use crate::cluster::run;
use crate::support::PATIENCE;
use crate::support::csi::class;
use crate::support::movers::{Burst, Kind};
use crate::support::node_agent;
use crate::support::pods::Cluster;
use crate::support::wait_for;

fn rule(class: &str, zone: &str) -> Value {
    json!({"storageClass": class, "nodeSelector": {"matchLabels": {"topology.kubernetes.io/zone": zone}}})
}

/// `loadAffinity` of the node-agents' configuration.
pub fn rules() -> Value {
    json!([rule("played", "zone-a"), rule("played", "zone-b"), rule("far", "zone-c")])
}

/// The StorageClass whose volumes can be reached where no node-agent is.
pub fn far() -> Value {
    class("far", "none.berth.test", "WaitForFirstConsumer", &json!({}))
}

/// The words of a line, without the blanks between columns.
fn line<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let found = table.lines().find(|line| line.split_whitespace().any(|word| word == name));
    found.unwrap_or_else(|| panic!("no {name} in\n{table}")).split_whitespace().collect()
}

/// Two of five have a place, and keep it until what this gives is ready. There are node-agents on
/// the first two of three nodes.
pub fn people_see_who_has_a_place_and_where_movers_may_run(
    cluster: &Cluster,
    burst: &Burst<'_>,
) -> Vec<String> {
    // A node-agent waits for their snapshots: what it has accepted stays so.
    let uploads = burst.create_unready("upload", 4).unwrap();
    let bound = burst.one(Kind::PodVolumeBackup, "bound", "node-3").unwrap();
    burst.submit(Kind::PodVolumeBackup, vec![bound]).unwrap();
    node_agent::want(cluster, &["node-1", "node-2"]).unwrap();
    node_agent::wait_count(cluster, NAMESPACE, 2).unwrap();

    let report = || serde_json::from_str::<Value>(&run(cluster, "berth queue movers -o json")).unwrap();
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
    let table = run(cluster, "berth queue movers");
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

    let table = run(cluster, "! berth node-agent check");
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

    uploads
}

/// There is a node-agent on each of three nodes.
pub fn people_see_that_all_is_done_and_how_it_would_be_with_another_configuration(cluster: &Cluster) {
    assert!(run(cluster, "berth queue movers").ends_with("No data mover waits and none runs.\n"));
    let checked: Value = serde_json::from_str(&run(cluster, "berth node-agent check -o json")).unwrap();
    assert_eq!((&checked["usable"], &checked["withAgent"]), (&json!(true), &json!(3)));

    // As it would be with another ConfigMap, and with one that is not there.
    let odd = json!({"prepareQueueLength": 2, "loadAffinity": [rule("gone", "zone-a")]}).to_string();
    let odd = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "odd", "namespace": NAMESPACE},
        "data": {"config.json": odd},
    });
    cluster.plane().apply(vec![odd]).unwrap();
    let table = run(cluster, "berth node-agent check --node-agent-configmap=odd");
    for fault in [
        "warning  data[config.json].prepareQueueLength: does not belong here",
        "warning  data[config.json].loadAffinity[0].storageClass: there is no StorageClass \"gone\"",
    ] {
        assert!(table.contains(fault), "{table}");
    }
    let table = run(cluster, "! berth node-agent check --node-agent-configmap=none");
    assert!(table.contains("FAULT    ConfigMap: none does not exist"), "{table}");
}
