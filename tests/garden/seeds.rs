//! Seeds in a hub: each tells of what it was given, reads what it needs for that, and nothing else.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::site::{HUB_BUCKETS, HUB_ENTRIES, Played, apply, get, merge, user_of};
use crate::support::kubectl::Answer;
use crate::support::{Kubectl, PATIENCE, wait_for};

const HUB_NS: &str = "garden-dev";
const SEEDS: &str = "seeds.garden.berth.dev";

/// Who asks: a user, and its groups.
struct User {
    name: String,
    group: &'static str,
}

impl User {
    fn of_seed(seed: &str) -> [Self; 2] {
        let (name, group) = user_of(seed);
        let certificate =
            Self { name: format!("garden.berth.dev:seed:{seed}"), group: "garden.berth.dev:seeds" };
        [Self { name, group }, certificate]
    }

    /// Merges into the status; nothing is stored.
    fn tells(&self, hub: &Kubectl, (kind, name, namespace): (&str, &str, &str), status: &Value) -> Answer {
        let (user, group) = (format!("--as={}", self.name), format!("--as-group={}", self.group));
        let patch = json!({"status": status}).to_string();
        let mut args = vec!["patch", kind, name, "--type=merge", "--subresource=status", "-p", &patch];
        args.extend([user.as_str(), &group, "--as-group=system:authenticated", "--dry-run=server"]);
        if !namespace.is_empty() {
            args.extend(["--namespace", namespace]);
        }
        hub.answer(&args, "").unwrap()
    }
}

fn operation() -> Value {
    json!({
        "type": "Reconcile", "state": "Succeeded", "progress": 100, "description": "d",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
    })
}

fn conditions() -> Value {
    json!([{
        "type": "LocationAvailable", "status": "True", "reason": "R", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:00Z",
    }])
}

#[test]
fn a_seed_tells_of_what_it_was_given_and_of_nothing_else() {
    let site = Played::shared().unwrap();
    let hub = site.hub.kubectl();
    let bucket = json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupBucket", "metadata": {"name": "told-1"},
        "spec": {"provider": "played", "region": "r", "secretRef": {"name": "told", "namespace": "garden"}},
    });
    apply(hub, &bucket).unwrap();
    merge(hub, (HUB_BUCKETS, "told-1", ""), &json!({"status": {"seed": "tug", "allocated": ["a"]}})).unwrap();
    // Whose it is, and who acts on it.
    for (name, owner, acts) in
        [("told--1", "barge", "tug"), ("told--2", "tug", "tug"), ("told--3", "tug", "barge")]
    {
        let entry = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
            "metadata": {"name": name, "namespace": HUB_NS},
            "spec": {"seedName": owner, "bucketName": "told-1"},
        });
        apply(hub, &entry).unwrap();
        merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": acts}})).unwrap();
    }
    for name in ["tug", "barge"] {
        let seed = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": name},
            "spec": {"cloudProfileName": "packet", "region": "ewr1"},
        });
        apply(hub, &seed).unwrap();
    }
    let bucket = (HUB_BUCKETS, "told-1", "");
    let entry = |name| (HUB_ENTRIES, name, HUB_NS);
    let report = json!({"lastOperation": operation(), "lastError": null, "observedGeneration": 1});
    let located = json!({"conditions": conditions()});
    let beat = json!({"lastHeartbeatTime": "2026-01-01T00:00:00Z"});
    let identified = json!({"clusterUID": "u", "conditions": conditions()});
    let allowed = [
        ("tug", bucket, &report),
        ("tug", bucket, &located),
        ("tug", entry("told--1"), &report),
        ("tug", entry("told--1"), &located),
        ("tug", entry("told--3"), &located),
        ("barge", entry("told--1"), &located),
        ("barge", entry("told--3"), &report),
        ("tug", (SEEDS, "tug", ""), &beat),
        ("tug", (SEEDS, "tug", ""), &identified),
    ];
    let taken = json!({"seed": "barge"});
    wait_for("right and policy of Seeds to be known", PATIENCE, || {
        let answers = User::of_seed("tug").map(|user| {
            let may = user.tells(hub, bucket, &report).status.success();
            may && user.tells(hub, bucket, &taken).stderr.contains("does not write")
        });
        Ok((answers == [true, true]).then_some(()))
    })
    .unwrap();
    for (seed, object, status) in allowed {
        for user in User::of_seed(seed) {
            let answer = user.tells(hub, object, status);
            assert!(answer.status.success(), "{} {object:?} {status}: {}", user.name, answer.stderr);
        }
    }
    let released = json!({"releasedAt": "2026-01-01T00:00:00Z"});
    let placed = json!({"allocated": ["a", "b"]});
    let both = json!({"conditions": conditions(), "seed": "barge"});
    let refused = [
        ("barge", bucket, &report, "lastOperation, observedGeneration"),
        ("barge", bucket, &located, "conditions"),
        ("tug", bucket, &taken, "seed"),
        ("tug", bucket, &both, "seed"),
        ("tug", bucket, &placed, "allocated"),
        ("tug", bucket, &json!({"allocated": null}), "allocated"),
        ("tug", bucket, &released, "releasedAt"),
        ("tug", entry("told--2"), &taken, "seed"),
        ("tug", entry("told--2"), &released, "releasedAt"),
        ("barge", entry("told--1"), &report, "lastOperation, observedGeneration"),
        ("barge", entry("told--2"), &located, "conditions"),
        ("tug", entry("told--3"), &report, "lastOperation, observedGeneration"),
        ("tug", (SEEDS, "barge", ""), &beat, "lastHeartbeatTime"),
    ];
    for (seed, object, status, fields) in refused {
        for user in User::of_seed(seed) {
            let Answer { stderr, status: exit, .. } = user.tells(hub, object, status);
            assert!(!exit.success(), "{} {object:?} {status} was let in", user.name);
            let (_, told) = stderr.split_once(&format!("is Seed {seed}'s and does not write ")).unwrap();
            // In no order.
            let told: BTreeSet<&str> = told.split_once(" here: ").unwrap().0.split(", ").collect();
            assert_eq!(told, fields.split(", ").collect(), "{stderr}");
        }
    }
    let (_, group) = user_of("tug");
    for name in ["system:serviceaccount:default:tug", "tug", "garden.berth.dev:seed:"] {
        let stranger = User { name: name.to_owned(), group };
        let answer = stranger.tells(hub, bucket, &report);
        assert!(
            !answer.status.success() && answer.stderr.contains("is no Seed's"),
            "{name}: {}",
            answer.stderr
        );
    }
    // Other holders of the right to write statuses are not checked.
    merge(hub, bucket, &json!({"status": {"seed": "barge"}})).unwrap();
    assert_eq!(get(hub, HUB_BUCKETS, "told-1", "").unwrap().unwrap()["status"]["seed"], "barge");
}
