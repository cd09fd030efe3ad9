//! Legacy mode: a cluster that keeps a default location of its own, as the hub sees it.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::courier::{HUB_NS, condition, in_good_days};
use super::site::{HUB_ENTRIES, LOCATIONS, Played, apply, becomes, merge};
use crate::admission::program;

const LEGACY: &str = "LegacyLocation";

/// What `berth garden entries` says.
fn shown(output: &str) -> String {
    let mut command = std::process::Command::new(program());
    command.args(["garden", "entries", "--output", output, "--kubeconfig"]);
    let output = command.arg(Played::shared().unwrap().hub.kubeconfig()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_cluster_with_a_default_location_of_its_own_is_told_until_that_is_led_into_the_directory() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let (name, own) = ("legacy-entry", "legacy-default");
    in_good_days(hub, member, name);
    let checked = json!({"status": {"phase": "Available", "lastValidationTime": Timestamp::now()}});
    merge(member, (LOCATIONS, name, "velero"), &checked).unwrap();
    let at = (HUB_ENTRIES, name, HUB_NS);
    let is_alone = |entry: &Value| {
        condition(entry, "LocationAvailable")["status"] == "True" && condition(entry, LEGACY).is_null()
    };
    let before = becomes(hub, at, "available, and nothing else", is_alone).unwrap();

    let theirs = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": own, "namespace": "velero"},
        "spec": {"provider": "aws", "default": true, "objectStorage": {"bucket": "a-cluster-s-own"}},
    });
    apply(member, &theirs).unwrap();
    let told = becomes(hub, at, "in legacy mode", |entry| !condition(entry, LEGACY).is_null()).unwrap();
    let legacy = condition(&told, LEGACY);
    assert_eq!((&legacy["status"], &legacy["reason"]), (&json!("True"), &json!("OwnDefault")));
    let message = legacy["message"].as_str().unwrap();
    let way_out = format!("berth garden migrate --from {own} --to-entry {name}");
    for part in [own, "bucket a-cluster-s-own", &way_out] {
        assert!(message.contains(part), "{message}");
    }
    let available = |entry: &Value| condition(entry, "LocationAvailable").clone();
    assert_eq!(available(&told), available(&before), "none displaces another");
    let line = || shown("table").lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line().contains("Available, LegacyLocation"), "{}", line());
    let listed: Value = serde_json::from_str(&shown("json")).unwrap();
    let listed = listed.as_array().unwrap().iter().find(|one| one["name"] == name).unwrap();
    assert_eq!((&listed["location"], &listed["legacyLocation"]), (&json!("Available"), &json!(message)));

    // As `berth garden migrate` leads it there.
    let led = json!({
        "metadata": {"labels": {"garden.berth.dev/backup-entry": name}},
        "spec": {"objectStorage": {"bucket": name, "prefix": format!("{name}/velero")}},
    });
    merge(member, (LOCATIONS, own, "velero"), &led).unwrap();
    let left = becomes(hub, at, "out of legacy mode", is_alone).unwrap();
    assert_eq!(available(&left), available(&before));
    assert!(!line().contains(LEGACY), "{}", line());

    // Back to where it was; then it is the default no more.
    let back = json!({
        "metadata": {"labels": {"garden.berth.dev/backup-entry": null}},
        "spec": {"objectStorage": {"bucket": "a-cluster-s-own", "prefix": null}},
    });
    merge(member, (LOCATIONS, own, "velero"), &back).unwrap();
    becomes(hub, at, "in legacy mode again", |entry| !condition(entry, LEGACY).is_null()).unwrap();
    merge(member, (LOCATIONS, own, "velero"), &json!({"spec": {"default": false}})).unwrap();
    becomes(hub, at, "out of legacy mode again", is_alone).unwrap();
    member.run(&["delete", LOCATIONS, own, "--namespace", "velero"]).unwrap();
}
