//! A whole life, with nothing played: hub controllers, agents, an S3-protocol server, and a berth
//! that backs up.

use std::time::Duration;

use berth::install::member::AGENT;
use berth::leader::LEASE;
use berth_api::velero::BackupPhase;
use serde_json::{Value, json};

use super::site::{
    ENTRIES, HUB_BUCKETS, HUB_ENTRIES, LOCATIONS, QUICK, USUAL, apply, becomes, define_member, get,
    start_agent, start_hub, start_member,
};
use crate::admission::program;
use crate::queue::ended;
use crate::support::PATIENCE;
use crate::support::peers::S3;
use crate::support::process::in_own_session;
use crate::support::{Berth, ControlPlane, Kubectl, Options, Process, backup, port, wait_for};

const HUB_NS: &str = "garden-dev";
const SECRET: &str = "backup-operator-aws";

/// A hub with its controllers, and a store.
struct Hub {
    plane: ControlPlane,
    controller: Process,
    /// Its own, and that of its agents.
    pace: &'static str,
    s3: S3,
}

impl Hub {
    fn start(name: &str, pace: &'static str, flags: &[&str]) -> Self {
        let plane = start_hub().unwrap();
        let s3 = S3::start(&plane, name).unwrap();
        let mut command = in_own_session(&program());
        command.args(["controller", "--namespace=velero"]).args(flags).env("BERTH_PACE", pace);
        command.arg("--kubeconfig").arg(plane.kubeconfig());
        command.arg(format!("--health-address=127.0.0.1:{}", port::free().unwrap()));
        let log = plane.folder().join("hub-controller.log");
        let controller = Process::start("berth controller", command, &log).unwrap();
        let hub = Self { plane, controller, pace, s3 };
        hub.keys(&hub.s3.keys.id, &hub.s3.keys.secret);
        let profile = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "CloudProfile", "metadata": {"name": "packet"},
            "spec": {
                "provider": "packet", "constraints": {"regions": ["ewr1", "ams1"]},
                "backup": {
                    "provider": "aws", "region": "us-east-1",
                    "secretRef": {"name": SECRET, "namespace": "garden"},
                    "providerConfig": {"endpoint": hub.s3.url(), "forcePathStyle": true, "locationKeys": "shared"},
                },
            },
        });
        apply(hub.kubectl(), &profile).unwrap();
        hub
    }

    fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    fn keys(&self, id: &str, secret: &str) {
        let keys = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": "garden"},
            "stringData": {"accessKeyID": id, "secretAccessKey": secret},
        });
        apply(self.kubectl(), &keys).unwrap();
    }

    fn register(&self, seed: &str) {
        let seed = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": seed},
            "spec": {"cloudProfileName": "packet", "region": "ewr1"},
        });
        apply(self.kubectl(), &seed).unwrap();
    }

    fn enter(&self, entry: &str, seed: &str) {
        let entry = json!({
            "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry",
            "metadata": {"name": entry, "namespace": HUB_NS}, "spec": {"seedName": seed},
        });
        apply(self.kubectl(), &entry).unwrap();
    }

    fn entry(&self, entry: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let waited = wait_for(&format!("entry {entry}: {what}"), PATIENCE, || {
            last = get(self.kubectl(), HUB_ENTRIES, entry, HUB_NS)?.unwrap_or_default();
            Ok(is_so(&last).then(|| last.clone()))
        });
        waited.unwrap_or_else(|error| panic!("{error:#}; it is {last:#}"))
    }

    fn delete(&self, entry: &str) {
        self.kubectl().run(&["delete", HUB_ENTRIES, entry, "-n", HUB_NS, "--wait=false"]).unwrap();
    }

    /// From now on its grace is that of a cluster for testing.
    fn is_for_testing(&self, entry: &str) {
        let purpose = "garden.berth.dev/purpose=testing";
        self.kubectl().run(&["annotate", HUB_ENTRIES, entry, "-n", HUB_NS, purpose]).unwrap();
    }

    /// As people see it.
    fn shown(&self, what: &str) -> String {
        let mut command = std::process::Command::new(program());
        command.args(["garden", what, "--kubeconfig"]).arg(self.plane.kubeconfig());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let shown = String::from_utf8(output.stdout).unwrap();
        println!("{shown}");
        shown
    }

    fn tombstone(&self, entry: &str) -> Value {
        let args =
            ["get", "configmaps", "-n", "garden", "-l", "garden.berth.dev/tombstone=true", "-o", "json"];
        let found: Value = serde_json::from_str(&self.kubectl().run(&args).unwrap()).unwrap();
        let of = |map: &&Value| map["data"]["entry"] == entry;
        found["items"].as_array().unwrap().iter().find(of).unwrap()["data"].clone()
    }
}

/// That its location can be used is said to be so.
fn availability_is(entry: &Value, status: &str) -> bool {
    let mut all = entry["status"]["conditions"].as_array().into_iter().flatten();
    all.any(|one| one["type"] == "LocationAvailable" && one["status"] == status)
}

/// Its location can be used.
fn is_usable(entry: &Value) -> bool {
    availability_is(entry, "True")
}

fn has_succeeded(entry: &Value) -> bool {
    entry["status"]["lastOperation"]["state"] == "Succeeded"
}

/// A hub, a member cluster with a berth that backs up, which is Seed ship, and its agent. Both
/// clusters start side by side.
fn hub_and_member(name: &str, pace: &'static str, flags: &[&str]) -> (Hub, Berth, Process) {
    let (hub, berth) = std::thread::scope(|scope| {
        let member = scope.spawn(|| {
            let plane = ControlPlane::start().unwrap();
            let berth = Berth::start(plane, Options::new(program(), "velero")).unwrap();
            define_member(berth.plane()).unwrap();
            berth
        });
        (Hub::start(name, pace, flags), member.join().unwrap())
    });
    hub.register("ship");
    let agent = start_agent(&hub.plane, berth.plane(), "ship", hub.pace).unwrap();
    (hub, berth, agent)
}

fn back_up(berth: &Berth, name: &str, location: &str) {
    let spec = json!({"includedNamespaces": ["default"], "storageLocation": location});
    let answer = berth.kubectl().create("velero", &[backup(name, spec)]).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let done = ended(berth, &[name]).remove(name).unwrap();
    assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
}

/// Files below a folder of the store.
fn files(folder: &std::path::Path) -> usize {
    let Ok(found) = std::fs::read_dir(folder) else { return 0 };
    found.flatten().map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

#[test]
fn from_a_profile_to_a_backup_and_to_nothing_again() {
    // Long enough to see everything that the test wants to see.
    let grace = "--deletion-grace-period=aws=1h,aws/testing=1s";
    let flags = [grace, "--bucket-idle-delay=1s"];
    let (hub, berth, mut agent) = hub_and_member("life", QUICK, &flags);
    let _report = hub.plane.report_on_panic();
    for entry in ["ship--1", "ship--2"] {
        hub.enter(entry, "ship");
    }
    let entry = hub.entry("ship--1", "usable", is_usable);
    hub.entry("ship--2", "usable", is_usable);
    let bucket = entry["spec"]["bucketName"].as_str().unwrap().to_owned();
    assert!(bucket.starts_with("packet-us-east-1-"), "{bucket}");
    // The first backup of a new cluster needs no knowledge of buckets.
    back_up(&berth, "first", "ship--1");
    back_up(&berth, "other", "ship--2");
    let shown = hub.shown("buckets");
    let line = shown.lines().find(|line| line.starts_with(&bucket)).unwrap();
    assert!(line.contains(" 2 ") && line.contains("Create Succeeded"), "{shown}");
    let folder = hub.s3.sibling(&bucket);
    assert!(files(&folder.join("ship--1/velero/backups/first")) > 1);
    let others = files(&folder.join("ship--2"));

    // Wrong keys are reported with a code, and the right ones mend it.
    hub.keys(&hub.s3.keys.id, "wrong");
    for entry in ["ship--1", "ship--2"] {
        let told = hub.entry(entry, "unusable for its keys", |entry| {
            availability_is(entry, "False") && entry.to_string().contains("ERR_INFRA_UNAUTH")
        });
        assert!(!told.to_string().contains("wrong"), "{told:#}");
    }
    hub.keys(&hub.s3.keys.id, &hub.s3.keys.secret);
    for entry in ["ship--1", "ship--2"] {
        hub.entry(entry, "usable", |entry| is_usable(entry) && has_succeeded(entry));
    }

    hub.delete("ship--1");
    let pending = hub.entry("ship--1", "Pending", |e| e["status"]["lastOperation"]["state"] == "Pending");
    assert!(pending["status"]["earliestDeletionTime"].is_string(), "{pending:#}");
    becomes(berth.kubectl(), (LOCATIONS, "ship--1", "velero"), "read-only", |location| {
        location["spec"]["accessMode"] == "ReadOnly"
    })
    .unwrap();
    hub.entry("ship--1", "read-only", |entry| entry.to_string().contains("ReadOnly"));
    let shown = hub.shown("entries");
    let line = |entry: &str| shown.lines().find(|line| line.contains(entry)).unwrap();
    for (entry, part) in [
        ("ship--1", "Delete Pending"),
        ("ship--1", "ReadOnly"),
        ("ship--2", "Succeeded"),
        // Its own default location, which every berth of the tests has.
        ("ship--2", "Available, LegacyLocation"),
    ] {
        assert!(line(entry).contains(part), "{entry} is not {part}:\n{shown}");
    }
    assert!(files(&folder.join("ship--1")) > 1, "in grace");
    hub.is_for_testing("ship--1");
    hub.entry("ship--1", "gone", Value::is_null);
    assert_eq!(files(&folder.join("ship--1")), 0);
    assert_eq!(files(&folder.join("ship--2")), others, "nothing else is touched");
    for (kind, namespace) in [(LOCATIONS, "velero"), ("backups.velero.io", "velero"), (ENTRIES, "")] {
        let name = if kind.starts_with("backups.") { "first" } else { "ship--1" };
        becomes(berth.kubectl(), (kind, name, namespace), "gone", Value::is_null).unwrap();
    }
    let record = hub.tombstone("ship--1");
    assert_eq!(
        (&record["bucket"], &record["prefix"], &record["who"]),
        (&json!(bucket), &json!("ship--1/"), &json!("ship"))
    );
    assert!(record["objects"].as_str().unwrap().parse::<u64>().unwrap() > 1, "{record:#}");

    // Its seed and the last entry are deleted: the bucket is not needed any more.
    hub.is_for_testing("ship--2");
    hub.delete("ship--2");
    hub.entry("ship--2", "gone", Value::is_null);
    hub.kubectl().run(&["delete", "seeds.garden.berth.dev", "ship"]).unwrap();
    let mut last = Value::Null;
    wait_for("the bucket to be gone", PATIENCE, || {
        last = get(hub.kubectl(), HUB_BUCKETS, &bucket, "")?.unwrap_or_default();
        Ok(last.is_null().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}; it is {last:#}"));
    assert!(!folder.exists(), "{}", folder.display());
    agent.ensure_runs().unwrap();
}

/// Three clusters for all of it: each takes its time to start.
#[test]
fn another_seed_removes_the_data_of_one_that_is_away_and_who_comes_back_late_removes_nothing() {
    let other = std::thread::spawn(start_member);
    let flags = ["--deletion-grace-period=1s"];
    let (hub, berth, mut agent) = hub_and_member("away", QUICK, &flags);
    let _report = hub.plane.report_on_panic();
    hub.enter("ship--1", "ship");
    hub.entry("ship--1", "usable", is_usable);
    back_up(&berth, "first", "ship--1");
    let other = other.join().unwrap().unwrap();
    hub.register("tug");
    let mut tug = start_agent(&hub.plane, &other, "tug", hub.pace).unwrap();

    // One that moves takes its data with it, and is written to by one cluster at any time.
    hub.enter("moving--1", "ship");
    let entry = hub.entry("moving--1", "usable", is_usable);
    back_up(&berth, "moved", "moving--1");
    let folder = hub.s3.sibling(entry["spec"]["bucketName"].as_str().unwrap()).join("moving--1");
    let before = files(&folder);
    let is = |mode: &'static str| move |location: &Value| location["spec"]["accessMode"] == mode;
    let mode = |plane: &Kubectl| get(plane, LOCATIONS, "moving--1", "velero").unwrap().unwrap_or_default();
    let on = |(from, to): (&Kubectl, &Kubectl), seed: &str| {
        let patch = json!({"spec": {"seedName": seed}}).to_string();
        let args = ["patch", HUB_ENTRIES, "moving--1", "-n", HUB_NS, "--type=merge", "-p", &patch];
        hub.kubectl().run(&args).unwrap();
        becomes(to, (LOCATIONS, "moving--1", "velero"), "written to", is("ReadWrite")).unwrap();
        assert_eq!(mode(from)["spec"]["accessMode"], "ReadOnly", "the one before writes no more");
        hub.entry("moving--1", seed, |entry| entry["status"]["seed"] == seed && has_succeeded(entry));
    };
    on((berth.kubectl(), other.kubectl()), "tug");
    assert_eq!(files(&folder), before);
    on((other.kubectl(), berth.kubectl()), "ship");
    back_up(&berth, "back-again", "moving--1");

    agent.kill().unwrap();
    hub.delete("ship--1");
    hub.entry("ship--1", "gone", Value::is_null);
    let record = hub.tombstone("ship--1");
    assert_eq!(record["who"], "tug", "{record:#}");
    let bucket = record["bucket"].as_str().unwrap();
    assert_eq!(files(&hub.s3.sibling(bucket).join("ship--1")), 0);
    tug.ensure_runs().unwrap();
    // Who was away lets go of what is no more.
    come_back(&berth, &mut agent);
    for (kind, namespace) in [(LOCATIONS, "velero"), (ENTRIES, "")] {
        becomes(berth.kubectl(), (kind, "ship--1", namespace), "gone", Value::is_null).unwrap();
    }
    who_comes_back_late_removes_nothing_of_a_new_entry(&hub, &berth, &mut agent);
    tug.ensure_runs().unwrap();
}

/// Starts an agent that was killed. Its Lease is taken away, as time would.
fn come_back(berth: &Berth, agent: &mut Process) {
    berth.kubectl().run(&["delete", "lease", AGENT, "-n", "velero"]).unwrap();
    agent.restart().unwrap();
}

/// An old deletion in a member cluster does not apply to what is in that directory by now.
fn who_comes_back_late_removes_nothing_of_a_new_entry(hub: &Hub, berth: &Berth, agent: &mut Process) {
    hub.enter("late--1", "ship");
    hub.entry("late--1", "usable", is_usable);
    back_up(berth, "late", "late--1");

    // As it was asked to: it comes to nothing of it.
    agent.kill().unwrap();
    berth
        .kubectl()
        .run(&["annotate", ENTRIES, "late--1", "confirmation.gardener.cloud/deletion=true"])
        .unwrap();
    berth.kubectl().run(&["delete", ENTRIES, "late--1", "--wait=false"]).unwrap();
    hub.delete("late--1");
    hub.entry("late--1", "gone", Value::is_null);
    let record = hub.tombstone("late--1");
    assert_eq!(record["who"], "tug", "{record:#}");

    // The directory is another cluster's by now.
    hub.enter("late--1", "tug");
    let again = hub.entry("late--1", "placed", has_succeeded);
    assert_eq!(again["spec"]["bucketName"], record["bucket"]);
    let folder = hub.s3.sibling(record["bucket"].as_str().unwrap()).join("late--1/velero/backups/new");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("velero-backup.json"), "{}").unwrap();
    come_back(berth, agent);
    for (kind, namespace) in [(ENTRIES, ""), (LOCATIONS, "velero")] {
        becomes(berth.kubectl(), (kind, "late--1", namespace), "gone", Value::is_null).unwrap();
    }
    assert_eq!(files(&folder), 1, "it is not its own");
}

#[test]
fn killed_again_and_again_nothing_is_lost_and_nothing_is_left() {
    let flags = ["--deletion-grace-period=2s", "--bucket-quota=aws=3"];
    let (mut hub, berth, mut agent) = hub_and_member("killed", USUAL, &flags);
    let _report = hub.plane.report_on_panic();
    hub.enter("bystander", "ship");
    hub.entry("bystander", "usable", is_usable);
    back_up(&berth, "kept", "bystander");
    let bucket =
        hub.entry("bystander", "there", |e| !e.is_null())["spec"]["bucketName"].as_str().unwrap().to_owned();
    let kept = files(&hub.s3.sibling(&bucket).join("bystander"));
    let entries: Vec<String> = (0..5).map(|i| format!("ship--{i}")).collect();
    // Random enough, and the same at every run: somewhere in the way up, and in the way down.
    let mut dice = 20_261_122_u64;
    let mut kill = |hub: &mut Hub, agent: &mut Process| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((dice >> 33) % 1500));
        // Without its Lease the next one is at it at once, and is killed in the midst of it as
        // well.
        let (victim, kubectl, lease) = if (dice >> 40).is_multiple_of(2) {
            (&mut hub.controller, hub.plane.kubectl(), LEASE)
        } else {
            (agent, berth.kubectl(), AGENT)
        };
        victim.kill().unwrap();
        kubectl.run(&["delete", "lease", lease, "-n", "velero", "--ignore-not-found"]).unwrap();
        victim.restart().unwrap();
    };
    for entry in &entries {
        hub.enter(entry, "ship");
        kill(&mut hub, &mut agent);
    }
    for entry in &entries {
        hub.entry(entry, "usable", is_usable);
        back_up(&berth, &format!("of-{entry}"), entry);
    }
    for entry in &entries {
        hub.delete(entry);
        kill(&mut hub, &mut agent);
    }
    for _ in 0..5 {
        kill(&mut hub, &mut agent);
    }
    for entry in &entries {
        hub.entry(entry, "gone", Value::is_null);
        let record = hub.tombstone(entry);
        let bucket = record["bucket"].as_str().unwrap();
        assert_eq!(files(&hub.s3.sibling(bucket).join(entry)), 0, "{record:#}");
        assert!(record["objects"].as_str().unwrap().parse::<u64>().unwrap() > 1, "{record:#}");
    }
    assert_eq!(files(&hub.s3.sibling(&bucket).join("bystander")), kept);
    back_up(&berth, "again", "bystander");
}
