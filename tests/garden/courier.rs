//! Between hub and member, on two real control planes. The hub's decisions and the executor's
//! doings are played here, so that every state can be had; `life.rs` has the real ones.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::site::{
    BUCKETS, ENTRIES, HUB_BUCKETS, HUB_ENTRIES, LOCATIONS, PATIENCE, Played, apply, becomes, get, merge,
};
use crate::admission::program;
use crate::support::{Kubectl, wait_for};

pub const HUB_NS: &str = "garden-dev";
/// berth serves no such store, so its executor leaves such objects alone.
const PROVIDER: &str = "played";

fn secret(name: &str, id: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "garden"},
        "stringData": {"accessKeyID": id, "secretAccessKey": "secret"},
    })
}

/// A bucket of that name in the hub, given to a seed.
pub fn make_bucket(hub: &Kubectl, name: &str, seed: &str) {
    make_bucket_with(hub, name, seed, &json!({}));
}

/// The same with `more` in its configuration from its first moment: whoever is asked to look again
/// would wait for an executor, which is played once.
fn make_bucket_with(hub: &Kubectl, name: &str, seed: &str, more: &Value) {
    let mut config = json!({"endpoint": "http://127.0.0.1:1", "forcePathStyle": true});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    apply(hub, &secret(name, "id-1")).unwrap();
    apply(
        hub,
        &json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupBucket", "metadata": {"name": name},
            "spec": {
                "provider": PROVIDER, "region": "eu-west-1",
                "secretRef": {"name": name, "namespace": "garden"},
                "providerConfig": config,
            },
        }),
    )
    .unwrap();
    merge(hub, (HUB_BUCKETS, name, ""), &json!({"status": {"seed": seed}})).unwrap();
}

fn entry(name: &str, bucket: &str) -> Value {
    json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
        "metadata": {"name": name, "namespace": HUB_NS, "finalizers": ["garden.berth.dev/backup"]},
        "spec": {"seedName": "ship", "bucketName": bucket},
    })
}

fn make_entry(hub: &Kubectl, name: &str, bucket: &str) {
    apply(hub, &entry(name, bucket)).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": "ship"}})).unwrap();
}

/// Plays the executor: the last operation of a member's object, as it stands when that is written.
fn executed(member: &Kubectl, kind: &str, name: &str, operation: &str, state: &str, more: Value) {
    let what = format!("{kind}/{name} to stand still");
    let written = wait_for(&what, PATIENCE, || {
        // As berth's does: what was asked for is taken up.
        let asked = json!({"metadata": {"annotations": {"gardener.cloud/operation": null}}});
        merge(member, (kind, name, ""), &asked)?;
        let generation = |object: &Value| object["metadata"]["generation"].clone();
        let Some(found) = get(member, kind, name, "")? else { return Ok(None) };
        let mut status = json!({
            "observedGeneration": generation(&found),
            "lastOperation": {
                "type": operation, "state": state, "progress": 100, "description": format!("{operation} {state}"),
                "lastUpdateTime": Timestamp::now(),
            },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            status[key] = value.clone();
        }
        merge(member, (kind, name, ""), &json!({"status": status}))?;
        // The agent may have written it meanwhile: what it asks for now is done, too.
        let is_still = get(member, kind, name, "")?.is_none_or(|now| generation(&now) == generation(&found));
        Ok(is_still.then_some(()))
    });
    written.unwrap();
}

/// Plays the executor letting go of an object: only the courier's finalizer stays.
fn let_go(member: &Kubectl, kind: &str, name: &str) {
    let finalizers = json!({"metadata": {"finalizers": ["garden.berth.dev/backup"]}});
    merge(member, (kind, name, ""), &finalizers).unwrap();
}

fn is_there(object: &Value) -> bool {
    !object.is_null()
}

/// Bucket, entry and location as they are in good days.
pub fn in_good_days(hub: &Kubectl, member: &Kubectl, name: &str) {
    make_bucket(hub, name, "ship");
    becomes(member, (BUCKETS, name, ""), "made", is_there).unwrap();
    executed(member, BUCKETS, name, "Create", "Succeeded", json!({}));
    make_entry(hub, name, name);
    becomes(member, (ENTRIES, name, ""), "made", is_there).unwrap();
    executed(member, ENTRIES, name, "Create", "Succeeded", json!({}));
    becomes(member, (LOCATIONS, name, "velero"), "made", is_there).unwrap();
}

/// Keys for the directory of an entry, as the hub makes them.
fn scoped_keys(entry: &Value, id: &str) -> Value {
    let (name, uid) = (&entry["metadata"]["name"], &entry["metadata"]["uid"]);
    let name = format!("location-keys-{}-{}", name.as_str().unwrap(), &uid.as_str().unwrap()[..5]);
    let mut keys = secret(&name, id);
    keys["stringData"]["sessionToken"] = json!("token");
    keys
}

#[test]
fn where_locations_have_keys_of_their_own_an_entry_never_gets_the_buckets() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-scoped";
    make_bucket_with(hub, name, "ship", &json!({"locationKeys": "scoped"}));
    becomes(member, (BUCKETS, name, ""), "made", is_there).unwrap();
    executed(member, BUCKETS, name, "Create", "Succeeded", json!({}));
    make_entry(hub, name, name);
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "told that its keys are to come", |object| {
        object["status"]["lastOperation"]["state"] == "Error"
    })
    .unwrap();
    let why = told["status"]["lastError"]["description"].as_str().unwrap();
    assert!(why.starts_with("the hub has not made the keys of this directory"), "{why}");
    assert!(get(member, "secret", &format!("entry-{name}"), "garden").unwrap().is_none());

    apply(hub, &scoped_keys(&told, "own-1")).unwrap();
    becomes(member, (ENTRIES, name, ""), "made", is_there).unwrap();
    executed(member, ENTRIES, name, "Create", "Succeeded", json!({}));
    becomes(member, (LOCATIONS, name, "velero"), "made", is_there).unwrap();
    for id in ["own-1", "own-2"] {
        apply(hub, &scoped_keys(&told, id)).unwrap();
        becomes(member, ("secret", &format!("entry-{name}"), "garden"), "its own keys", |secret| {
            decoded(secret, "accessKeyID") == id
        })
        .unwrap();
        let file = format!(
            "[default]\naws_access_key_id={id}\naws_secret_access_key=secret\naws_session_token=token\n"
        );
        becomes(member, ("secret", &format!("{name}-credentials"), "velero"), "its own keys", |secret| {
            decoded(secret, "cloud") == file
        })
        .unwrap();
    }
    // Who acts on the bucket has those of the store.
    let bucket = get(member, "secret", &format!("bucket-{name}"), "garden").unwrap().unwrap();
    assert_eq!(decoded(&bucket, "accessKeyID"), "id-1");
}

/// The line of `berth garden entries` about that one.
fn entries_shown(name: &str) -> String {
    let mut command = std::process::Command::new(program());
    command.args(["garden", "entries", "--kubeconfig"]).arg(Played::shared().unwrap().hub.kubeconfig());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).unwrap();
    shown.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned()
}

/// `Value::Null`: it has none of that type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let all = object["status"]["conditions"].as_array().into_iter().flatten();
    all.into_iter().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}

/// Empty where there is none.
fn decoded(secret: &Value, key: &str) -> String {
    let text = secret["data"][key].as_str().unwrap_or_default();
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

#[test]
fn what_the_hub_gives_goes_down_and_comes_back_up() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-life";
    in_good_days(hub, member, name);

    let bucket = get(member, BUCKETS, name, "").unwrap().unwrap();
    let wanted = json!({
        "type": PROVIDER, "region": "eu-west-1",
        "secretRef": {"name": format!("bucket-{name}"), "namespace": "garden"},
        "providerConfig": {
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig",
            "endpoint": "http://127.0.0.1:1", "forcePathStyle": true,
        },
    });
    assert_eq!(bucket["spec"], wanted);
    let entry = get(member, ENTRIES, name, "").unwrap().unwrap();
    assert_eq!(entry["spec"]["bucketName"], name);
    assert_eq!(entry["spec"]["secretRef"]["name"], format!("entry-{name}"));
    let copy = get(member, "secret", &format!("entry-{name}"), "garden").unwrap().unwrap();
    assert_eq!(decoded(&copy, "accessKeyID"), "id-1");

    let location = get(member, LOCATIONS, name, "velero").unwrap().unwrap();
    let wanted = json!({
        "provider": PROVIDER, "accessMode": "ReadWrite",
        "objectStorage": {"bucket": name, "prefix": format!("{name}/velero")},
        "credential": {"name": format!("{name}-credentials"), "key": "cloud"},
        "config": {"region": "eu-west-1", "s3Url": "http://127.0.0.1:1", "s3ForcePathStyle": "true"},
    });
    assert_eq!(location["spec"], wanted);
    let cloud = get(member, "secret", &format!("{name}-credentials"), "velero").unwrap().unwrap();
    let file = "[default]\naws_access_key_id=id-1\naws_secret_access_key=secret\n";
    assert_eq!(decoded(&cloud, "cloud"), file);
    // The keys to a bucket are in none of the archives that it holds.
    for secret in [&copy, &cloud] {
        assert_eq!(secret["metadata"]["labels"]["velero.io/exclude-from-backup"], "true", "{secret}");
    }

    let seen = |object: &Value| {
        object["status"]["lastOperation"]["state"] == "Succeeded"
            && object["status"]["observedGeneration"] == object["metadata"]["generation"]
    };
    becomes(hub, (HUB_BUCKETS, name, ""), "Succeeded", seen).unwrap();
    becomes(hub, (HUB_ENTRIES, name, HUB_NS), "Succeeded", seen).unwrap();
    // What the controller that checks locations would write.
    let checked = json!({"status": {"phase": "Available", "lastValidationTime": Timestamp::now()}});
    merge(member, (LOCATIONS, name, "velero"), &checked).unwrap();
    let available = |object: &Value| condition(object, "LocationAvailable")["status"] == "True";
    becomes(hub, (HUB_ENTRIES, name, HUB_NS), "its location available", available).unwrap();

    // A fault, with its codes.
    let error = json!({"lastError": {"description": "no", "codes": ["ERR_INFRA_UNAUTHORIZED"]}});
    executed(member, BUCKETS, name, "Reconcile", "Error", error);
    let told = becomes(hub, (HUB_BUCKETS, name, ""), "in Error", |object| {
        object["status"]["lastOperation"]["state"] == "Error"
    });
    assert_eq!(told.unwrap()["status"]["lastError"]["codes"], json!(["ERR_INFRA_UNAUTHORIZED"]));
    executed(member, BUCKETS, name, "Reconcile", "Succeeded", json!({"lastError": null}));
    becomes(hub, (HUB_BUCKETS, name, ""), "without its error", |object| {
        seen(object) && object["status"]["lastError"].is_null()
    })
    .unwrap();

    let seed = get(hub, "seeds.garden.berth.dev", "ship", "").unwrap().unwrap();
    assert!(seed["status"]["lastHeartbeatTime"].is_string(), "{seed:#}");
}

#[test]
fn rotated_keys_arrive_everywhere() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-keys";
    in_good_days(hub, member, name);
    let checked = json!({"status": {"phase": "Available", "lastValidationTime": Timestamp::now()}});
    merge(member, (LOCATIONS, name, "velero"), &checked).unwrap();
    // The courier has seen that.
    let available = |object: &Value| condition(object, "LocationAvailable")["status"] == "True";
    becomes(hub, (HUB_ENTRIES, name, HUB_NS), "its location available", available).unwrap();
    let was = get(member, LOCATIONS, name, "velero").unwrap().unwrap();

    apply(hub, &secret(name, "id-2")).unwrap();
    for copy in ["bucket", "entry"] {
        becomes(member, ("secret", &format!("{copy}-{name}"), "garden"), "the new keys", |secret| {
            decoded(secret, "accessKeyID") == "id-2"
        })
        .unwrap();
    }
    becomes(member, ("secret", &format!("{name}-credentials"), "velero"), "the new keys", |secret| {
        decoded(secret, "cloud").contains("aws_access_key_id=id-2\n")
    })
    .unwrap();
    // The location must be checked again, and the executors must reconcile again.
    let digest =
        |object: &Value| object["metadata"]["annotations"]["garden.berth.dev/credentials-digest"].clone();
    becomes(member, (LOCATIONS, name, "velero"), "to be checked again", |location| {
        digest(location) != digest(&was) && location["status"]["lastValidationTime"].is_null()
    })
    .unwrap();
    for kind in [BUCKETS, ENTRIES] {
        becomes(member, (kind, name, ""), "asked to look again", |object| {
            object["metadata"]["annotations"]["gardener.cloud/operation"] == "reconcile"
        })
        .unwrap();
    }

    // Gone from the hub: this is reported, and the copies stay.
    hub.run(&["delete", "secret", name, "--namespace", "garden"]).unwrap();
    // Until the hub is asked again what it said last holds: those before go by that.
    let mut number = 0;
    let (late, told) = wait_for("an entry that lacks its keys", PATIENCE, || {
        number += 1;
        let late = format!("courier-keys-late-{number}");
        make_entry(hub, &late, name);
        let told = becomes(hub, (HUB_ENTRIES, &late, HUB_NS), "told of", |object| {
            object["status"]["lastOperation"]["state"] == "Error"
                || get(member, ENTRIES, &late, "").unwrap().is_some()
        })?;
        Ok((told["status"]["lastOperation"]["state"] == "Error").then_some((late, told)))
    })
    .unwrap();
    let error = &told["status"]["lastError"];
    assert_eq!(error["codes"], json!(["ERR_CONFIGURATION_PROBLEM"]));
    let description = error["description"].as_str().unwrap();
    assert!(description.contains("garden/courier-keys in the hub: create it again"), "{description}");
    let copy = get(member, "secret", &format!("entry-{name}"), "garden").unwrap().unwrap();
    assert_eq!(decoded(&copy, "accessKeyID"), "id-2");
    apply(hub, &secret(name, "id-3")).unwrap();
    becomes(member, (ENTRIES, &late, ""), "made", is_there).unwrap();
}

#[test]
fn an_entry_goes_in_the_right_order_and_its_counts_arrive() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-end";
    in_good_days(hub, member, name);
    let labelled = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": name, "namespace": "velero", "labels": {"velero.io/storage-location": name},
        },
        "spec": {"storageLocation": name},
    });
    apply(member, &labelled).unwrap();

    // In grace nothing is written there, and nothing goes.
    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS, "--wait=false"]).unwrap();
    becomes(member, (LOCATIONS, name, "velero"), "read-only", |location| {
        location["spec"]["accessMode"] == "ReadOnly"
    })
    .unwrap();
    let kept = get(member, ENTRIES, name, "").unwrap().unwrap();
    assert!(kept["metadata"]["deletionTimestamp"].is_null(), "{kept:#}");

    let now = Timestamp::now();
    let released = json!({"status": {
        "releasedAt": now,
        "lastOperation": {
            "type": "Delete", "state": "Processing", "progress": 0, "description": "", "lastUpdateTime": now,
        },
    }});
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &released).unwrap();
    let going = becomes(member, (ENTRIES, name, ""), "going", |object| {
        object["metadata"]["deletionTimestamp"].is_string()
    })
    .unwrap();
    assert_eq!(going["metadata"]["annotations"]["confirmation.gardener.cloud/deletion"], "true");
    // By then no cluster reads or writes there any more.
    assert!(get(member, LOCATIONS, name, "velero").unwrap().is_none());
    assert!(get(member, "backups.velero.io", name, "velero").unwrap().is_none());

    // Locked in the store: that needs time only.
    executed(
        member,
        ENTRIES,
        name,
        "Delete",
        "Pending",
        json!({"providerStatus": {"objects": 1, "bytes": 2, "retainedUntil": "2030-01-02T03:04:05Z"}}),
    );
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "Pending", |object| {
        object["status"]["lastOperation"]["state"] == "Pending"
    })
    .unwrap();
    assert_eq!(told["status"]["removed"], json!({"objects": 1, "bytes": 2}));
    assert_eq!(told["status"]["lockedUntil"], "2030-01-02T03:04:05Z");
    assert!(entries_shown(name).contains("2030-01-02T03:04:05Z"));
    assert!(told["status"]["lastError"].is_null());

    executed(
        member,
        ENTRIES,
        name,
        "Delete",
        "Succeeded",
        json!({"providerStatus": {"objects": 3, "bytes": 4, "retainedUntil": null}}),
    );
    let told = get(hub, HUB_ENTRIES, name, HUB_NS).unwrap().unwrap();
    assert_ne!(told["status"]["lastOperation"]["state"], "Succeeded", "whoever executes is not done");
    let_go(member, ENTRIES, name);
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "gone", |object| {
        object["status"]["lastOperation"]["state"] == "Succeeded"
            && object["status"]["lastOperation"]["type"] == "Delete"
    })
    .unwrap();
    assert_eq!(told["status"]["removed"], json!({"objects": 3, "bytes": 4}));
    assert!(told["status"]["lockedUntil"].is_null(), "{told:#}");
    becomes(member, (ENTRIES, name, ""), "gone", Value::is_null).unwrap();
    becomes(member, ("secret", &format!("entry-{name}"), "garden"), "gone", Value::is_null).unwrap();
    becomes(member, ("secret", &format!("{name}-credentials"), "velero"), "gone", Value::is_null).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
}

#[test]
fn a_hub_that_lost_everything_finds_it_again() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-lost";
    // An earlier entry of this name has ended; entries that end differ by more than their names.
    apply(hub, &record_of_end(name, "01234567-0000-0000-0000-000000000000")).unwrap();
    in_good_days(hub, member, name);
    let before = get(member, ENTRIES, name, "").unwrap().unwrap();
    let (bucket, entry_then) = (
        get(hub, HUB_BUCKETS, name, "").unwrap().unwrap(),
        get(hub, HUB_ENTRIES, name, HUB_NS).unwrap().unwrap(),
    );

    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS]).unwrap();
    hub.run(&["delete", HUB_BUCKETS, name]).unwrap();
    hub.run(&["delete", "secret", name, "--namespace", "garden"]).unwrap();
    // Something else is carried after all that, so all that was seen.
    in_good_days(hub, member, "courier-lost-beacon");
    let untouched = |what: &str| {
        let now = get(member, ENTRIES, name, "").unwrap().unwrap();
        assert_eq!(now["metadata"]["uid"], before["metadata"]["uid"], "{what}");
        assert_eq!(now["metadata"]["finalizers"], before["metadata"]["finalizers"], "{what}");
        assert!(now["metadata"]["deletionTimestamp"].is_null(), "{what}: {now:#}");
        let location = get(member, LOCATIONS, name, "velero").unwrap().unwrap();
        assert_eq!(location["spec"]["accessMode"], "ReadWrite", "{what}");
    };
    untouched("a hub without any");

    // Restored: other UIDs, no status, then one.
    make_bucket(hub, name, "ship");
    make_entry(hub, name, name);
    // The same objects are for the new ones from now on.
    for (here, there, namespace) in [(BUCKETS, HUB_BUCKETS, ""), (ENTRIES, HUB_ENTRIES, HUB_NS)] {
        let uid = get(hub, there, name, namespace).unwrap().unwrap()["metadata"]["uid"].clone();
        becomes(member, (here, name, ""), "for the new one", |object| {
            object["metadata"]["labels"]["garden.berth.dev/hub-uid"] == uid
        })
        .unwrap();
        executed(member, here, name, "Reconcile", "Succeeded", json!({}));
    }
    let seen = |object: &Value| object["status"]["lastOperation"]["state"] == "Succeeded";
    let bucket_now = becomes(hub, (HUB_BUCKETS, name, ""), "adopted", seen).unwrap();
    let entry_now = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "adopted", seen).unwrap();
    assert_ne!(bucket_now["metadata"]["uid"], bucket["metadata"]["uid"]);
    assert_ne!(entry_now["metadata"]["uid"], entry_then["metadata"]["uid"]);
    untouched("a hub that came back");
}

#[test]
fn another_seed_takes_over_and_no_data_is_touched() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-over";
    in_good_days(hub, member, name);
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": "other"}})).unwrap();
    becomes(member, (ENTRIES, name, ""), "to be given up", |object| {
        object["metadata"]["annotations"]["gardener.cloud/operation"] == "migrate"
    })
    .unwrap();
    executed(member, ENTRIES, name, "Migrate", "Succeeded", json!({}));
    let_go(member, ENTRIES, name);
    becomes(member, (ENTRIES, name, ""), "gone", Value::is_null).unwrap();
    // By the hub's word it is the other one that may write.
    becomes(member, (LOCATIONS, name, "velero"), "read-only", |location| {
        location["spec"]["accessMode"] == "ReadOnly"
    })
    .unwrap();
    // Its entry has ended elsewhere, and that is on record.
    let uid = get(hub, HUB_ENTRIES, name, HUB_NS).unwrap().unwrap()["metadata"]["uid"].clone();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
    apply(hub, &record_of_end(name, uid.as_str().unwrap())).unwrap();
    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS]).unwrap();
    becomes(member, (LOCATIONS, name, "velero"), "gone", Value::is_null).unwrap();
    becomes(member, ("secret", &format!("{name}-credentials"), "velero"), "gone", Value::is_null).unwrap();
}

/// What a hub keeps of an entry that is no more.
fn record_of_end(entry: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": format!("tombstone-{entry}-{uid}"), "namespace": "garden",
            "labels": {"garden.berth.dev/tombstone": "true"},
        },
        "data": {"entry": entry, "uid": uid},
    })
}

#[test]
fn what_is_somebody_elses_is_left_alone_and_told() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-foreign";
    let foreign = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": name, "namespace": "velero"},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "theirs"}},
    });
    apply(member, &foreign).unwrap();
    make_bucket(hub, name, "ship");
    becomes(member, (BUCKETS, name, ""), "made", is_there).unwrap();
    executed(member, BUCKETS, name, "Create", "Succeeded", json!({}));
    make_entry(hub, name, name);
    becomes(member, (ENTRIES, name, ""), "made", is_there).unwrap();
    executed(member, ENTRIES, name, "Create", "Succeeded", json!({}));
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "told", |object| {
        condition(object, "LocationAvailable")["reason"] == "NameTaken"
    })
    .unwrap();
    let message = condition(&told, "LocationAvailable")["message"].as_str().unwrap();
    assert!(message.contains("rename or delete it"), "{message}");
    let left = get(member, LOCATIONS, name, "velero").unwrap().unwrap();
    assert_eq!(left["spec"]["objectStorage"], json!({"bucket": "theirs"}));

    // A bucket that a gardenlet made.
    let other = "courier-gardenlet";
    let theirs = json!({
        "apiVersion": "extensions.gardener.cloud/v1alpha1", "kind": "BackupBucket", "metadata": {"name": other},
        "spec": {"type": PROVIDER, "region": "x", "secretRef": {"name": "s", "namespace": "garden"}},
    });
    apply(member, &theirs).unwrap();
    make_bucket(hub, other, "ship");
    let told = becomes(hub, (HUB_BUCKETS, other, ""), "in Error", |object| {
        object["status"]["lastOperation"]["state"] == "Error"
    })
    .unwrap();
    let description = told["status"]["lastError"]["description"].as_str().unwrap();
    assert!(description.contains("was not made for a hub"), "{description}");
    let left = get(member, BUCKETS, other, "").unwrap().unwrap();
    assert_eq!(left["spec"]["region"], "x");
}

#[test]
fn an_entry_is_let_go_when_no_backup_writes_there_and_written_to_by_the_hubs_word_alone() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-moved";
    in_good_days(hub, member, name);
    let backup = |phase: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": name, "namespace": "velero"},
            "spec": {"storageLocation": name}, "status": {"phase": phase},
        })
    };
    apply(member, &backup("InProgress")).unwrap();
    let is = |mode: &'static str| move |location: &Value| location["spec"]["accessMode"] == mode;
    let says = |state: &'static str| {
        move |entry: &Value| {
            let last = &entry["status"]["lastOperation"];
            last["type"] == "Migrate" && last["state"] == state
        }
    };
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"spec": {"seedName": "other"}})).unwrap();
    becomes(member, (LOCATIONS, name, "velero"), "read-only", is("ReadOnly")).unwrap();
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "told of backups", says("Processing")).unwrap();
    let description = told["status"]["lastOperation"]["description"].as_str().unwrap();
    assert!(description.contains("1 backup still runs"), "{description}");
    apply(member, &backup("Completed")).unwrap();
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "let go", says("Succeeded")).unwrap();
    assert_eq!(told["status"]["observedGeneration"], told["metadata"]["generation"]);
    assert_eq!(told["status"]["seed"], "ship", "that is the hub's to say");

    let handed = json!({"status": {"seed": "other", "lastOperation": null}});
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &handed).unwrap();
    becomes(member, (ENTRIES, name, ""), "to be given up", |object| {
        object["metadata"]["annotations"]["gardener.cloud/operation"] == "migrate"
    })
    .unwrap();
    executed(member, ENTRIES, name, "Migrate", "Succeeded", json!({}));
    let_go(member, ENTRIES, name);
    becomes(member, (ENTRIES, name, ""), "gone", Value::is_null).unwrap();
    let checked = json!({"status": {"phase": "Available", "lastValidationTime": Timestamp::now()}});
    merge(member, (LOCATIONS, name, "velero"), &checked).unwrap();

    // It comes back: nothing was copied, nothing was lost, and another one may be writing.
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"spec": {"seedName": "ship"}})).unwrap();
    becomes(hub, (HUB_ENTRIES, name, HUB_NS), "seen to come", |entry| {
        condition(entry, "LocationAvailable")["reason"] == "ReadOnly"
    })
    .unwrap();
    let location = get(member, LOCATIONS, name, "velero").unwrap().unwrap();
    assert_eq!(location["spec"]["accessMode"], "ReadOnly");
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": "ship"}})).unwrap();
    becomes(member, (LOCATIONS, name, "velero"), "written to again", is("ReadWrite")).unwrap();
}

/// Nothing was there before.
#[test]
fn a_location_is_not_made_while_another_cluster_may_write_there() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let (name, beacon) = ("courier-coming", "courier-coming-beacon");
    make_bucket(hub, name, "other");
    apply(hub, &entry(name, name)).unwrap();
    let made = json!({"status": {"seed": "other", "observedGeneration": 1}});
    merge(hub, (HUB_BUCKETS, name, ""), &json!({"status": {"observedGeneration": 1}})).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &made).unwrap();
    // Something else is carried after that, so that was seen.
    in_good_days(hub, member, beacon);
    assert!(get(member, LOCATIONS, name, "velero").unwrap().is_none());
    assert!(get(member, ENTRIES, name, "").unwrap().is_none());
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": "ship"}})).unwrap();
    let made = becomes(member, (LOCATIONS, name, "velero"), "made", is_there).unwrap();
    assert_eq!(made["spec"]["accessMode"], "ReadWrite");
}

/// The name alone proves nothing: what was made for the earlier entry is removed, and the new entry
/// is of another cluster.
#[test]
fn what_was_made_for_an_earlier_entry_of_that_name_goes_with_it() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let name = "courier-again";
    in_good_days(hub, member, name);
    let uid = get(hub, HUB_ENTRIES, name, HUB_NS).unwrap().unwrap()["metadata"]["uid"].clone();
    apply(hub, &record_of_end(name, uid.as_str().unwrap())).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS]).unwrap();
    let mut again = entry(name, name);
    again["spec"]["seedName"] = json!("other");
    apply(hub, &again).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"status": {"seed": "other"}})).unwrap();

    becomes(member, (LOCATIONS, name, "velero"), "gone", Value::is_null).unwrap();
    becomes(member, ("secret", &format!("{name}-credentials"), "velero"), "gone", Value::is_null).unwrap();
    becomes(member, (ENTRIES, name, ""), "to be given up", |object| {
        object["metadata"]["annotations"]["gardener.cloud/operation"] == "migrate"
    })
    .unwrap();
    executed(member, ENTRIES, name, "Migrate", "Succeeded", json!({}));
    let_go(member, ENTRIES, name);
    becomes(member, (ENTRIES, name, ""), "gone", Value::is_null).unwrap();
}

#[test]
fn an_entry_that_is_placed_elsewhere_does_not_lead_its_cluster_away_from_its_data() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let (name, other) = ("courier-stray", "courier-stray-2");
    in_good_days(hub, member, name);
    let before = get(member, ENTRIES, name, "").unwrap().unwrap();
    // A hub that was restored to a time before the entry existed; then the entry is created again.
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS]).unwrap();
    make_bucket(hub, other, "ship");
    make_entry(hub, name, other);
    let told = becomes(hub, (HUB_ENTRIES, name, HUB_NS), "in Error", |object| {
        object["status"]["lastOperation"]["state"] == "Error"
    })
    .unwrap();
    let description = told["status"]["lastError"]["description"].as_str().unwrap();
    assert!(description.contains("again with spec.bucketName: courier-stray"), "{description}");
    let now = get(member, ENTRIES, name, "").unwrap().unwrap();
    assert_eq!((&now["metadata"]["uid"], &now["spec"]), (&before["metadata"]["uid"], &before["spec"]));
    let location = get(member, LOCATIONS, name, "velero").unwrap().unwrap();
    assert_eq!(location["spec"]["objectStorage"]["bucket"], name);
    assert_eq!(location["spec"]["accessMode"], "ReadWrite");
}

#[test]
fn a_location_that_was_led_into_a_directory_shares_its_life() {
    let site = Played::shared().unwrap();
    let (hub, member) = site.clusters();
    let (name, led) = ("courier-led", "courier-led-default");
    in_good_days(hub, member, name);
    let location = json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {
            "name": led, "namespace": "velero", "labels": {"garden.berth.dev/backup-entry": name},
        },
        "spec": {
            "provider": "aws", "config": {"region": "theirs"},
            "objectStorage": {"bucket": name, "prefix": format!("{name}/velero")},
        },
    });
    apply(member, &location).unwrap();
    let of_it = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": led, "namespace": "velero", "labels": {"velero.io/storage-location": led}},
        "spec": {"storageLocation": led},
    });
    apply(member, &of_it).unwrap();
    let is = |mode: &'static str| {
        move |location: &Value| location["spec"]["accessMode"].as_str().unwrap_or("ReadWrite") == mode
    };
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"spec": {"seedName": "other"}})).unwrap();
    becomes(member, (LOCATIONS, led, "velero"), "read-only", is("ReadOnly")).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"spec": {"seedName": "ship"}})).unwrap();
    let back = becomes(member, (LOCATIONS, led, "velero"), "written to again", is("ReadWrite")).unwrap();
    assert_eq!(back["spec"]["config"], json!({"region": "theirs"}), "that is its own");

    hub.run(&["delete", HUB_ENTRIES, name, "--namespace", HUB_NS, "--wait=false"]).unwrap();
    becomes(member, (LOCATIONS, led, "velero"), "read-only", is("ReadOnly")).unwrap();
    let released = json!({"status": {"releasedAt": Timestamp::now()}});
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &released).unwrap();
    becomes(member, (LOCATIONS, led, "velero"), "gone", Value::is_null).unwrap();
    becomes(member, ("backups.velero.io", led, "velero"), "gone", Value::is_null).unwrap();
    merge(hub, (HUB_ENTRIES, name, HUB_NS), &json!({"metadata": {"finalizers": []}})).unwrap();
}
