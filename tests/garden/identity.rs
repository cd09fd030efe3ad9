//! A Seed is one cluster: who comes with its name and is another one is turned away.

use serde_json::{Value, json};

use super::courier::make_bucket;
use super::site::{BUCKETS, LOCATIONS, Member, Played, apply, becomes, get, merge, user_of};

const SEEDS: &str = "seeds.garden.berth.dev";

fn conflict(seed: &Value) -> Option<&Value> {
    let conditions = seed["status"]["conditions"].as_array()?;
    conditions.iter().find(|one| one["type"] == "ClusterConflict" && one["status"] == "True")
}

#[test]
fn a_copy_of_a_cluster_carries_nothing_until_somebody_says_that_it_is_the_seed() {
    let site = Played::shared().unwrap();
    let hub = site.hub.kubectl();
    let seed = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": "twin"},
        "spec": {"cloudProfileName": "packet", "region": "ewr1"},
    });
    apply(hub, &seed).unwrap();
    merge(hub, (SEEDS, "twin", ""), &json!({"status": {"clusterUID": "the-original"}})).unwrap();
    let (user, _) = user_of("twin");
    let of = format!("--user={user}");
    hub.run(&["create", "rolebinding", "played-twin", "-n", "garden", "--role=played", &of]).unwrap();
    make_bucket(hub, "identity-1", "twin");
    let copy = Member::start(&site.hub, "twin").unwrap();
    let own = get(copy.kubectl(), "namespace", "kube-system", "").unwrap().unwrap();
    let own = own["metadata"]["uid"].as_str().unwrap();

    let told = becomes(hub, (SEEDS, "twin", ""), "in conflict", |seed| conflict(seed).is_some()).unwrap();
    let message = conflict(&told).unwrap()["message"].as_str().unwrap();
    for part in [own, "the-original", "garden.berth.dev/cluster"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    // Reported again: it has had time to do more than that.
    let at = |seed: &Value| conflict(seed).map(|one| one["lastUpdateTime"].clone());
    let again = becomes(hub, (SEEDS, "twin", ""), "told again", |seed| at(seed) != at(&told)).unwrap();
    assert_eq!(again["status"]["clusterUID"], "the-original");
    assert!(again["status"]["lastHeartbeatTime"].is_null(), "{again:#}");
    assert!(get(copy.kubectl(), BUCKETS, "identity-1", "").unwrap().is_none());

    let said = format!("garden.berth.dev/cluster={own}");
    hub.run(&["annotate", SEEDS, "twin", &said]).unwrap();
    let known = becomes(hub, (SEEDS, "twin", ""), "this cluster", |seed| seed["status"]["clusterUID"] == own);
    assert!(known.unwrap()["status"]["lastHeartbeatTime"].is_string());
    becomes(copy.kubectl(), (BUCKETS, "identity-1", ""), "made", |bucket| !bucket.is_null()).unwrap();

    // A person sets the annotation to a third cluster, which writes there from now on.
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "identity-1", "namespace": "velero", "labels": {"garden.berth.dev/seed": "twin"}},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "identity-1", "prefix": "identity-1/velero"}},
    });
    apply(copy.kubectl(), &location).unwrap();
    hub.run(&["annotate", "--overwrite", SEEDS, "twin", "garden.berth.dev/cluster=another"]).unwrap();
    let told = becomes(hub, (SEEDS, "twin", ""), "in conflict again", |seed| {
        conflict(seed)
            .is_some_and(|one| one["message"].as_str().unwrap_or_default().contains("with UID another"))
    });
    told.unwrap();
    becomes(copy.kubectl(), (LOCATIONS, "identity-1", "velero"), "closed", |location| {
        location["spec"]["accessMode"] == "ReadOnly"
    })
    .unwrap();
    make_bucket(hub, "identity-2", "twin");
    let before = get(hub, SEEDS, "twin", "").unwrap().unwrap();
    becomes(hub, (SEEDS, "twin", ""), "told again", |seed| at(seed) != at(&before)).unwrap();
    assert!(get(copy.kubectl(), BUCKETS, "identity-2", "").unwrap().is_none());
}
