//! What the hub decides, on a real API server. Couriers are played: no store is touched.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context as _;
use berth_garden_api::{BackupBucket, BackupEntry};
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::site::{QUICK, USUAL};
use crate::admission::program;
use crate::support::PATIENCE;
use crate::support::courier::Couriers;
use crate::support::moto::Moto;
use crate::support::shared::Shared;
use crate::support::{Berth, ControlPlane, Kubectl, Options, manifest, wait_for};

/// These stores are never opened: they differ in their limits and grace periods.
const FLAGS: [&str; 4] = [
    "--bucket-quota=limited=8",
    "--bucket-quota=tight=1",
    "--deletion-grace-period=graceful=1h,graceful/testing=3s",
    "--bucket-idle-delay=3s",
];

/// A hub with couriers, and what people do there.
struct Garden {
    berth: Berth,
    couriers: Couriers,
}

/// One hub for all tests that do not disturb the leader.
fn garden() -> Arc<Garden> {
    static GARDEN: Shared<Garden> = Shared::unstarted();
    GARDEN.get(|| Garden::start(&FLAGS)).unwrap()
}

impl Garden {
    fn start(flags: &[&str]) -> anyhow::Result<Self> {
        Self::start_at(USUAL, flags)
    }

    /// One for which time passes faster.
    fn start_at(pace: &str, flags: &[&str]) -> anyhow::Result<Self> {
        let mut options = Options::new(program(), "hub");
        options.garden = true;
        options.env = vec![("BERTH_PACE".to_owned(), pace.to_owned())];
        options.controller_args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let berth = Berth::start(ControlPlane::start()?, options)?;
        let couriers = Couriers::start(&berth.plane().kubeconfig())?;
        Ok(Self { berth, couriers })
    }

    fn kubectl(&self) -> &Kubectl {
        self.berth.kubectl()
    }

    /// The webhook may see what they refer to a moment later, and refuses them until then.
    fn create(&self, objects: &[Value]) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let mut said = String::new();
        let taken = wait_for("the objects to be taken", PATIENCE, || {
            let answer = self.kubectl().answer(&["apply", "--server-side", "-f", "-"], &list)?;
            said = answer.stderr;
            Ok(answer.status.success().then_some(()))
        });
        taken.unwrap_or_else(|error| panic!("{error}: {said}"));
    }

    /// A profile of infrastructure `name`, with backups at `store` in `eu`, and the Secret for
    /// that.
    fn profile(&self, name: &str, store: &str) {
        self.create(&[secret(name), profile(name, store)]);
    }

    /// A seed with a courier, which reaches this store and no other, because any reporting seed may
    /// act on a bucket, and seeds of other tests report.
    fn seed(&self, name: &str, of: &str, store: &str) {
        self.create(&[seed(name, of, store)]);
        self.couriers.serve(name);
    }

    fn list<K: DeserializeOwned>(&self, kind: &str) -> anyhow::Result<Vec<K>> {
        let text = self.kubectl().run(&["get", kind, "--all-namespaces", "-o", "json"])?;
        let mut list: Value = serde_json::from_str(&text)?;
        Ok(serde_json::from_value(list["items"].take())?)
    }

    /// Buckets that were made for a profile, by name.
    fn buckets(&self, profile: &str) -> anyhow::Result<Vec<BackupBucket>> {
        let mut all: Vec<BackupBucket> = self.list("bbc")?;
        all.retain(|one| {
            one.annotations().get("garden.berth.dev/cloud-profile").is_some_and(|p| p == profile)
        });
        Ok(all)
    }

    fn entry(&self, name: &str) -> anyhow::Result<BackupEntry> {
        let all: Vec<BackupEntry> = self.list("bec")?;
        all.into_iter().find(|one| one.name_any() == name).with_context(|| format!("no entry {name}"))
    }

    fn wait<T>(&self, what: &str, mut condition: impl FnMut() -> anyhow::Result<Option<T>>) -> T {
        match wait_for(what, PATIENCE, &mut condition) {
            Ok(value) => value,
            Err(error) => {
                panic!("{error:#}\n{}", self.kubectl().run(&["get", "bbc,bec", "-A", "-o", "yaml"]).unwrap())
            }
        }
    }

    /// Waits until these entries have their places and their couriers know of it; gives their
    /// buckets.
    fn placed(&self, names: &[String]) -> BTreeMap<String, usize> {
        let names: BTreeSet<&String> = names.iter().collect();
        self.wait("the entries to be placed", || {
            let all: Vec<BackupEntry> = self.list("bec")?;
            let mine: Vec<&BackupEntry> = all.iter().filter(|one| names.contains(&one.name_any())).collect();
            let mut buckets: BTreeMap<String, usize> = BTreeMap::new();
            for entry in &mine {
                let state =
                    entry.status.as_ref().and_then(|status| Some(status.last_operation.as_ref()?.state));
                let Some(bucket) = &entry.spec.bucket_name else { return Ok(None) };
                if state.is_none_or(|state| state.as_str() != "Succeeded") {
                    return Ok(None);
                }
                *buckets.entry(bucket.clone()).or_default() += 1;
            }
            Ok((mine.len() == names.len()).then_some(buckets))
        })
    }

    /// Why an entry waits, once that has `part` in it: what it refers to may be seen a moment after
    /// it.
    fn waits_for(&self, name: &str, part: &str) -> String {
        self.wait(&format!("entry {name} to wait: {part}"), || {
            let status = self.entry(name)?.status.unwrap_or_default();
            let last = status.last_operation.filter(|last| last.state.as_str() == "Pending");
            Ok(last.map(|last| last.description).filter(|why| why.contains(part)))
        })
    }

    fn delete(&self, kind: &str, name: &str) {
        self.kubectl().run(&["delete", kind, name, "--wait=false", "-n", "default"]).unwrap();
    }

    fn is_gone(&self, kind: &str, name: &str) -> anyhow::Result<Option<()>> {
        let found =
            self.kubectl().run(&["get", kind, name, "-n", "default", "--ignore-not-found", "-o", "name"])?;
        Ok(found.is_empty().then_some(()))
    }

    fn finalizers(&self, secret: &str) -> String {
        let path = "jsonpath={.metadata.finalizers}";
        self.kubectl().run(&["get", "secret", secret, "-n", "garden", "-o", path]).unwrap()
    }

    fn tombstone(&self, entry: &BackupEntry) -> anyhow::Result<Value> {
        let uid = entry.uid().unwrap_or_default();
        let name = format!("tombstone-{}-{uid}", entry.name_any());
        let text = self.kubectl().run(&["get", "configmap", &name, "-n", "garden", "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }
}

fn secret(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "garden"},
        "stringData": {"accessKeyID": "a", "secretAccessKey": "s"},
    })
}

fn profile(name: &str, store: &str) -> Value {
    json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "CloudProfile", "metadata": {"name": name},
        "spec": {
            "provider": name,
            "constraints": {"regions": ["here"]},
            "backup": {
                "provider": store,
                "region": "eu",
                "secretRef": {"name": name, "namespace": "garden"},
                "providerConfig": {"locationKeys": "shared"},
            },
        },
    })
}

fn seed(name: &str, profile: &str, store: &str) -> Value {
    json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "Seed", "metadata": {"name": name},
        "spec": {"cloudProfileName": profile, "region": "here", "reaches": [store]},
    })
}

fn entry(name: &str, seed: &str) -> Value {
    json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "BackupEntry", "metadata": {"name": name},
        "spec": {"seedName": seed},
    })
}

fn entries(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}-{i}")).collect()
}

#[test]
fn a_bucket_comes_with_the_first_seed_and_goes_long_after_the_last() {
    let garden = garden();
    garden.profile("lazy", "anything");
    garden.create(&[json!({
        "apiVersion": "garden.berth.dev/v1alpha1", "kind": "CloudProfile", "metadata": {"name": "lazy-marker"},
        "spec": {"provider": "lazy-marker"},
    })]);
    garden.seed("lazy-a", "lazy", "anything");
    garden.create(&[entry("lazy-entry", "lazy-a")]);
    let buckets = garden.placed(&["lazy-entry".to_owned()]);
    let made = garden.buckets("lazy").unwrap();
    let [bucket] = &made[..] else { panic!("{made:?}") };
    let (name, status) = (bucket.name_any(), bucket.status.clone().unwrap());
    assert_eq!(buckets, [(name.clone(), 1)].into());
    assert!(name.starts_with("lazy-eu-") && name.len() == "lazy-eu-".len() + 5, "{name}");
    assert_eq!(
        (status.ordinal, status.entries, status.limit, status.seed.as_deref()),
        (Some(1), Some(1), None, Some("lazy-a"))
    );
    let owner = &bucket.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str(), owner.block_owner_deletion),
        ("CloudProfile", "lazy", Some(false))
    );
    assert_eq!(bucket.finalizers(), ["garden.berth.dev/backup"]);
    garden.wait("the Secret to be guarded", || {
        Ok(garden.finalizers("lazy").contains("garden.berth.dev/backupbucket").then_some(()))
    });
    let ready = garden.kubectl().run(&[
        "wait",
        "seed/lazy-a",
        "cloudprofile/lazy",
        "--for=condition=BackupBucketsReady",
        "--timeout=600s",
    ]);
    assert!(ready.is_ok(), "{ready:?}");
    // Another seed has use for the same one.
    garden.seed("lazy-b", "lazy", "anything");
    garden.create(&[entry("lazy-other", "lazy-b")]);
    assert_eq!(
        garden.placed(&["lazy-entry".to_owned(), "lazy-other".to_owned()]),
        [(name.clone(), 2)].into()
    );

    garden.delete("bec", "lazy-other");
    garden.wait("the entry to go", || garden.is_gone("bec", "lazy-other"));
    garden.kubectl().run(&["delete", "bec", "lazy-entry", "-n", "default"]).unwrap();
    garden.delete("seed", "lazy-a");
    garden.delete("seed", "lazy-b");
    garden.seed("executor", "lazy-marker", "anything");
    garden.wait("the idle bucket to go", || garden.is_gone("bbc", &name));
    garden.wait("the Secret to be let go", || Ok(garden.finalizers("lazy").is_empty().then_some(())));
    garden.seed("lazy-a", "lazy", "anything");
    let next =
        garden.wait("the next bucket", || Ok(garden.buckets("lazy")?.first().map(ResourceExt::name_any)));
    assert_eq!(next, format!("{name}-2"), "no name is given twice");
    // Of all that nothing is worth a warning; what takes long on a busy machine is, and is retried.
    let log = garden.berth.controller.process.log_text().unwrap();
    let is_slow = |line: &&str| {
        let signs = ["too long", "its clock is", "in time", "elapsed", "could not be deleted"];
        signs.iter().any(|sign| line.contains(sign))
    };
    let warned = log.lines().filter(|line| line.contains("WARN") && line.contains("garden"));
    let warned: Vec<&str> =
        warned.filter(|line| line.contains("lazy")).filter(|line| !is_slow(line)).collect();
    assert_eq!(warned, [""; 0]);
}

#[test]
fn twenty_at_once_fill_the_fullest_bucket_and_never_pass_a_limit() {
    let garden = garden();
    garden.profile("race", "limited");
    garden.seed("race-a", "race", "limited");
    garden.wait("the first bucket", || {
        let buckets = garden.buckets("race")?;
        let is_made = |one: &BackupBucket| {
            json!(one.status).pointer("/lastOperation/state") == Some(&json!("Succeeded"))
        };
        Ok(buckets.first().is_some_and(is_made).then_some(()))
    });
    let names = entries("race", 20);
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| garden.create(&[entry(name, "race-a")]));
        }
    });
    let placed = garden.placed(&names);
    let mut counts: Vec<usize> = placed.values().copied().collect();
    counts.sort_unstable();
    assert_eq!(counts, [4, 8, 8]);
    let most = garden.couriers.most();
    assert!(placed.keys().all(|name| most[name] <= 8), "{most:?}");
    // The fullest one with room, not the emptiest.
    garden.create(&[entry("race-late", "race-a")]);
    let late = garden.placed(&["race-late".to_owned()]);
    let third = placed.iter().find(|(_, count)| **count == 4).unwrap().0;
    assert_eq!(late.keys().next(), Some(third));
    // Counted by the next plan.
    let counts = [("entries", 5), ("limit", 8)]
        .map(|(what, count)| format!("berth_garden_bucket_{what}{{bucket=\"{third}\"}} {count}"));
    garden.wait(&format!("{counts:?} in the metrics"), || {
        let metrics = garden.berth.controller.metrics().unwrap_or_default();
        Ok(counts.iter().all(|count| metrics.contains(count)).then_some(()))
    });
}

#[test]
fn data_stays_for_its_grace_and_everybody_sees_how_long() {
    let garden = garden();
    garden.profile("grace", "graceful");
    garden.seed("grace-a", "grace", "graceful");
    let mut tested = entry("grace-tested", "grace-a");
    tested["metadata"]["annotations"] = json!({"garden.berth.dev/purpose": "testing"});
    garden.create(&[entry("grace-kept", "grace-a"), tested]);
    garden.placed(&["grace-kept".to_owned(), "grace-tested".to_owned()]);
    let known = garden.entry("grace-tested").unwrap();
    garden.delete("bec", "grace-kept");
    garden.delete("bec", "grace-tested");
    let pending = |name: &str| garden.kubectl().run(&["get", "bec", name, "-n", "default"]);
    let row = garden.wait("the wait to be shown", || {
        Ok(Some(pending("grace-kept")?).filter(|row| row.contains("Pending")))
    });
    let at = |entry: &BackupEntry| {
        let deleted = entry.metadata.deletion_timestamp.as_ref().unwrap().0;
        let earliest = entry.status.as_ref().unwrap().earliest_deletion_time.as_ref().unwrap().0;
        (earliest.duration_since(deleted).as_secs(), earliest.to_string())
    };
    let kept = garden.entry("grace-kept").unwrap();
    let (seconds, earliest) = at(&kept);
    assert_eq!(seconds, 3600);
    assert!(row.contains(&earliest), "{row}");

    garden.wait("the tested one to go", || garden.is_gone("bec", "grace-tested"));
    let record = garden.tombstone(&known).unwrap();
    let data = &record["data"];
    assert_eq!(
        (&data["objects"], &data["bytes"], &data["who"]),
        (&json!("3"), &json!("42"), &json!("grace-a"))
    );
    assert_eq!((&data["prefix"], &data["data"]), (&json!("grace-tested/"), &json!("removed")));
    let times = |key: &str| data[key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(times("when").duration_since(times("deleted")).as_secs() >= 3, "{data}");

    let reason = "garden.berth.dev/force-deletion=the customer asked for it";
    garden.kubectl().run(&["annotate", "bec", "grace-kept", "-n", "default", reason]).unwrap();
    garden.wait("the forced one to go", || garden.is_gone("bec", "grace-kept"));
    let record = garden.tombstone(&kept).unwrap();
    assert_eq!(record["data"]["reason"], "its grace was skipped: the customer asked for it");
    garden.wait("their places to be free", || {
        let buckets = garden.buckets("grace")?;
        Ok(buckets.iter().all(|one| one.status.as_ref().unwrap().allocated.is_empty()).then_some(()))
    });
    assert_eq!(garden.couriers.faults(), [""; 0]);
}

#[test]
fn a_name_whose_data_was_left_waits_for_another_namespace() {
    let garden = garden();
    garden.profile("left", "elsewhere");
    garden.seed("left-a", "left", "elsewhere");
    let name = "left-behind";
    garden.create(&[entry(name, "left-a")]);
    garden.placed(&[name.to_owned()]);
    let known = garden.entry(name).unwrap();
    let reason = "garden.berth.dev/forget-data=it is read from elsewhere";
    garden.kubectl().run(&["annotate", "bec", name, "-n", "default", reason]).unwrap();
    garden.delete("bec", name);
    garden.wait("the entry to go", || garden.is_gone("bec", name));
    let record = garden.tombstone(&known).unwrap();
    assert_eq!(record["data"]["data"], "left");

    garden.kubectl().run(&["create", "namespace", "left-other"]).unwrap();
    let mut other = entry(name, "left-a");
    other["metadata"]["namespace"] = json!("left-other");
    garden.wait("the webhook to know that the first one is gone", || {
        let answer = garden.kubectl().answer(&["create", "-f", "-"], &other.to_string())?;
        Ok(answer.status.success().then_some(()))
    });
    let why = garden.waits_for(name, "of namespace default, was left");
    let tombstone = record["metadata"]["name"].as_str().unwrap();
    assert!(why.contains(tombstone), "{why}");
    garden.kubectl().run(&["delete", "configmap", tombstone, "-n", "garden"]).unwrap();
    garden.placed(&[name.to_owned()]);
}

#[test]
fn an_entry_moves_when_its_writer_has_stopped_or_somebody_has_spoken() {
    // Of its own, for what is silent here is silent soon.
    let garden = Garden::start_at(QUICK, &[]).unwrap();
    garden.profile("move", "anywhere");
    for seed in ["move-a", "move-b", "move-c"] {
        garden.seed(seed, "move", "anywhere");
    }
    let name = "moving";
    garden.create(&[entry(name, "move-a")]);
    garden.placed(&[name.to_owned()]);
    let to = |seed: &str| {
        let patch = json!({"spec": {"seedName": seed}}).to_string();
        let args = ["patch", "bec", name, "-n", "default", "--type=merge", "-p", &patch];
        garden.wait("the webhook to know the Seed", || {
            Ok(garden.kubectl().answer(&args, "")?.status.success().then_some(()))
        });
    };
    let is_said = |what: &str| {
        garden.wait(what, || {
            let status = garden.entry(name)?.status.unwrap_or_default();
            let last = status.last_operation.filter(|last| last.description.contains(what));
            Ok(last.map(|last| {
                (json!([last.kind.as_str(), last.state.as_str()]), status.seed.unwrap_or_default())
            }))
        })
    };
    let is_held_by = |seed: &str| {
        garden.wait(&format!("Seed {seed} to have it"), || {
            let found = garden.entry(name)?;
            let noted =
                found.annotations().get("garden.berth.dev/writer").is_some_and(|writer| writer == seed);
            let holder = found.status.clone().and_then(|status| status.seed);
            Ok((holder.as_deref() == Some(seed) && noted).then_some(found))
        })
    };
    // Its backups run.
    garden.couriers.keep_busy(name, true);
    to("move-b");
    let (operation, holder) = is_said("Seed move-a is to write no more first");
    assert_eq!((operation, holder.as_str()), (json!(["Migrate", "Pending"]), "move-a"));
    garden.couriers.keep_busy(name, false);
    is_held_by("move-b");
    garden.placed(&[name.to_owned()]);

    // It is silent, and a person has said why.
    garden.couriers.stop("move-b");
    to("move-a");
    let (operation, holder) = is_said("may be writing there still");
    assert_eq!((operation, holder.as_str()), (json!(["Migrate", "Pending"]), "move-b"));
    let reason = "garden.berth.dev/take-over=it burned down";
    let answer = garden.kubectl().answer(&["annotate", "bec", name, "-n", "default", reason], "").unwrap();
    assert!(answer.stderr.contains("two write into one directory"), "{}", answer.stderr);
    let found = is_held_by("move-a");
    assert_eq!(found.annotations().get("garden.berth.dev/take-over"), None, "that was for one move");
    garden.wait("the Event", || {
        let selector = "--field-selector=reason=TakenOver";
        let args = ["get", "events.events.k8s.io", "-n", "default", selector, "-o", "json"];
        Ok(garden.kubectl().run(&args)?.contains("it burned down").then_some(()))
    });

    // Its cluster is gone, and its Seed with it.
    garden.placed(&[name.to_owned()]);
    garden.couriers.stop("move-a");
    to("move-c");
    garden.delete("seed", "move-a");
    is_held_by("move-c");
    assert_eq!(garden.couriers.faults(), [""; 0]);
}

#[test]
fn who_waits_is_told_for_what() {
    let garden = garden();
    garden.profile("why", "tight");
    garden.seed("why-a", "why", "tight");
    garden.create(&[entry("why-first", "why-a")]);
    let first = garden.placed(&["why-first".to_owned()]).into_keys().next().unwrap();
    garden.couriers.refuse(&format!("{first}-2"), "Error", &["ERR_INFRA_QUOTA_EXCEEDED"]);
    garden.create(&[entry("why-second", "why-a")]);
    garden.waits_for("why-second", "gives no more buckets");
    assert_eq!(garden.buckets("why").unwrap().len(), 2, "a store that is full is not asked again and again");
    garden.wait("the Event", || {
        let args = [
            "get",
            "events.events.k8s.io",
            "-n",
            "default",
            "--field-selector",
            "reason=NotPlaced",
            "-o",
            "json",
        ];
        let told = garden.kubectl().run(&args)?;
        Ok((told.contains("why-second") && told.contains("gives no more buckets")).then_some(()))
    });
}

/// Of two hubs the one that leads is killed, again and again, while entries come and go.
#[test]
fn a_hub_that_is_killed_leaves_no_place_taken_twice_or_lost() {
    let mut garden = Garden::start(&["--bucket-quota=limited=5"]).unwrap();
    let (kubectl, ns) = (garden.kubectl().clone(), garden.berth.namespace().to_owned());
    garden.profile("crash", "limited");
    garden.seed("crash-a", "crash", "limited");
    // Its clock is an hour late; it reports all the same.
    garden.couriers.serve_by("crash-a", jiff::SignedDuration::from_hours(-1));
    let mut second = garden.berth.start_another_controller("second").unwrap();
    let mut all = Vec::new();
    for round in 0..6 {
        let names = entries(&format!("crash-{round}"), 10);
        let objects: Vec<Value> = names.iter().map(|name| entry(name, "crash-a")).collect();
        garden.create(&objects);
        let is_begun = |count| {
            let all: Vec<BackupEntry> = garden.list("bec")?;
            let placed = all.iter().filter(|one| one.spec.bucket_name.is_some()).count();
            Ok((placed >= count).then_some(()))
        };
        // In the middle of a round, at another point in each.
        garden.wait("some places", || is_begun(round * 10 + round + 1));
        all.extend(names);
        let (leader, other) = if second.leads(&kubectl, &ns).unwrap() {
            (&mut second, &garden.berth.controller)
        } else {
            (&mut garden.berth.controller, &second)
        };
        leader.kill(&kubectl, &ns).unwrap();
        wait_for("the other one to lead", PATIENCE, || Ok(other.leads(&kubectl, &ns)?.then_some(())))
            .unwrap();
        leader.process.restart().unwrap();
    }
    let placed = garden.placed(&all);
    assert_eq!(placed.values().copied().collect::<Vec<_>>(), [5; 12], "{placed:?}");
    let most = garden.couriers.most();
    assert!(most.values().all(|most| *most <= 5), "{most:?}");
    for name in all.iter().step_by(2) {
        garden.delete("bec", name);
    }
    second.kill(&kubectl, &ns).unwrap();
    garden.wait("half of them to go", || Ok((garden.list::<BackupEntry>("bec")?.len() == 30).then_some(())));
    garden.wait("their places to be free", || {
        let buckets = garden.buckets("crash")?;
        let used: usize = buckets.iter().map(|one| one.status.as_ref().unwrap().allocated.len()).sum();
        Ok((used == 30).then_some(()))
    });
    assert_eq!(garden.couriers.faults(), [""; 0]);
    let records = garden.kubectl().run(&[
        "get",
        "cm",
        "-n",
        "garden",
        "-l",
        "garden.berth.dev/tombstone=true",
        "-o",
        "name",
    ]);
    assert_eq!(records.unwrap().lines().count(), 30);
    let logs = [&garden.berth.controller.process, &second.process].map(|one| one.log_text().unwrap());
    assert!(logs.iter().any(|log| log.contains("behind the hub's")), "{logs:?}");
}

/// As a restore makes them: without finalizers, owners and statuses, and with other UIDs.
fn restored(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| ["name", "namespace", "labels", "annotations"].contains(&key.as_str()));
    object.as_object_mut().unwrap().remove("status");
    object
}

#[test]
fn a_hub_that_comes_back_from_its_own_backup_touches_nothing_and_a_dead_seed_hinders_nobody() {
    let mut garden = Garden::start(&["--bucket-quota=limited=2"]).unwrap();
    garden.profile("back", "limited");
    garden.seed("back-a", "back", "limited");
    let names = entries("back", 5);
    garden.create(&names.iter().map(|name| entry(name, "back-a")).collect::<Vec<_>>());
    let before = garden.placed(&names);
    garden.berth.controller.stop().unwrap();
    garden.couriers.stop("back-a");
    let kinds = ["bec", "bbc", "seed", "cloudprofile"];
    let objects: Vec<Vec<Value>> = kinds.iter().map(|kind| garden.list(kind).unwrap()).collect();
    // No webhook may keep anything here: the hub is lost.
    garden.berth.webhook.process.kill().unwrap();
    garden.kubectl().run(&["delete", "validatingwebhookconfiguration", "--all"]).unwrap();
    let finalizers = manifest::suffixed("berth-finalizers", garden.berth.namespace());
    garden.kubectl().run(&["delete", "validatingadmissionpolicybinding", &finalizers]).unwrap();
    for kind in kinds {
        garden.wait("the API server to ask no webhook any more", || {
            let args = ["delete", kind, "--all", "-n", "default", "--wait=false"];
            Ok(garden.kubectl().answer(&args, "")?.status.success().then_some(()))
        });
        garden.wait("the kind to be empty", || {
            let left: Vec<Value> = garden.list(kind)?;
            for object in &left {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let patch = json!({"metadata": {"finalizers": null}}).to_string();
                let args = ["patch", kind, name, "-n", "default", "--type=merge", "-p", &patch];
                // Those without a finalizer are gone already.
                let _ = garden.kubectl().answer(&args, "")?;
            }
            Ok(left.is_empty().then_some(()))
        });
    }
    let all: Vec<Value> = objects.into_iter().flatten().map(restored).collect();
    garden.create(&all);
    garden.berth.controller.process.restart().unwrap();
    garden.couriers.serve("back-a");
    assert_eq!(garden.placed(&names), before);
    let buckets = garden.buckets("back").unwrap();
    assert_eq!(buckets.len(), 3, "no bucket was made, and none removed");
    garden.wait("all places to be known again", || {
        let buckets = garden.buckets("back")?;
        let used = buckets.iter().map(|one| one.status.as_ref().map_or(0, |status| status.allocated.len()));
        Ok((used.sum::<usize>() == 5 && buckets.iter().all(|one| !one.owner_references().is_empty()))
            .then_some(()))
    });

    // Its seed is lost for good, and another one has to remove what it left.
    let known = garden.entry(&names[0]).unwrap();
    garden.seed("back-b", "back", "limited");
    garden.couriers.stop("back-a");
    garden.delete("seed", "back-a");
    garden.delete("bec", &names[0]);
    garden.wait("somebody else to remove it", || garden.is_gone("bec", &names[0]));
    assert_eq!(garden.tombstone(&known).unwrap()["data"]["who"], "back-b");

    // A bucket of other clusters is not refused.
    garden.profile("back-other", "unlimited");
    garden.seed("back-other", "back-other", "unlimited");
    let mut stray = entry("back-stray", "back-other");
    stray["spec"]["bucketName"] = json!(buckets[0].name_any());
    garden.create(&[stray]);
    garden.waits_for("back-stray", "is at limited eu, and backups of Seed back-other go to unlimited eu");
    assert_eq!(garden.couriers.faults(), [""; 0]);
}

#[test]
fn a_seed_reads_the_credentials_of_its_buckets_and_no_others() {
    let garden = garden();
    let may = |seed: &str, verb: &str, secret: &str| {
        let user = format!("--as=system:serviceaccount:garden-seeds:{seed}");
        let what = format!("secrets/{secret}");
        let what = what.trim_end_matches('/');
        let groups = ["--as-group=system:serviceaccounts:garden-seeds", "--as-group=system:authenticated"];
        let args = [&["auth", "can-i", verb, what, "-n", "garden", &user][..], &groups].concat();
        let answer = garden.kubectl().answer(&args, "").unwrap();
        answer.stdout.trim() == "yes"
    };
    let becomes = |seed: &str, secret: &str, wanted: bool| {
        garden.wait(&format!("{seed} to read {secret}: {wanted}"), || {
            Ok((may(seed, "get", secret) == wanted).then_some(()))
        });
    };
    for name in ["read-a", "read-b"] {
        garden.profile(name, name);
        garden.seed(name, name, name);
        garden.create(&[entry(name, name)]);
    }
    garden.placed(&["read-a", "read-b"].map(str::to_owned));
    becomes("read-a", "read-a", true);
    becomes("read-b", "read-b", true);
    assert!(!may("read-a", "get", "read-b") && !may("read-b", "get", "read-a"));
    for verb in ["get", "list", "watch"] {
        assert!(!may("read-a", verb, ""), "{verb} of all");
    }
    // If another writer adds rules, the hub removes them.
    let role = "berth-garden-seed:read-a";
    let more = json!([{"op": "add", "path": "/rules/0/resourceNames/-", "value": "read-b"}]).to_string();
    garden.kubectl().run(&["patch", "role", role, "-n", "garden", "--type=json", "-p", &more]).unwrap();
    becomes("read-a", "read-b", false);
    garden.kubectl().run(&["delete", "rolebinding", role, "-n", "garden"]).unwrap();
    becomes("read-a", "read-a", true);
    // It is no more.
    garden.couriers.stop("read-b");
    garden.kubectl().run(&["delete", "seed", "read-b", "--wait=false"]).unwrap();
    becomes("read-b", "read-b", false);
    garden.wait("its Role to go", || {
        let args =
            ["get", "role", "berth-garden-seed:read-b", "-n", "garden", "--ignore-not-found", "-o", "name"];
        Ok(garden.kubectl().run(&args)?.is_empty().then_some(()))
    });
}

/// Moto issues keys as Amazon does, but enforces no policy, so the test cannot show what the keys
/// may do.
#[test]
fn an_entry_has_keys_of_its_own_where_the_profile_wants_such() {
    let garden = garden();
    let Some(moto) = Moto::start(garden.berth.plane(), "scoped").unwrap() else { return };
    let mut scoped = profile("scoped", "aws");
    scoped["spec"]["backup"]["region"] = json!("eu-west-1");
    scoped["spec"]["backup"]["providerConfig"] = json!({
        "locationKeys": "scoped", "roleArn": "arn:aws:iam::123456789012:role/backups",
        "endpoint": moto.url(), "stsEndpoint": moto.url(), "caCert": moto.ca,
    });
    garden.create(&[secret("scoped"), scoped]);
    for name in ["scoped-a", "scoped-b"] {
        garden.seed(name, "scoped", "aws");
        garden.create(&[entry(name, name)]);
    }
    garden.placed(&["scoped-a", "scoped-b"].map(str::to_owned));
    let made = garden.buckets("scoped").unwrap();
    let [bucket] = &made[..] else { panic!("{made:?}") };
    let acts = bucket.status.as_ref().and_then(|status| status.seed.clone()).unwrap_or_default();
    let get = |kind: &str, name: &str| -> anyhow::Result<Option<Value>> {
        let args = ["get", kind, name, "-n", "garden", "--ignore-not-found", "-o", "json"];
        let text = garden.kubectl().run(&args)?;
        Ok(if text.trim().is_empty() { None } else { Some(serde_json::from_str(&text)?) })
    };
    let mut ids = BTreeSet::new();
    for name in ["scoped-a", "scoped-b"] {
        let uid = garden.entry(name).unwrap().uid().unwrap();
        let own = format!("location-keys-{name}-{}", &uid[..5]);
        let keys = garden.wait("its keys", || get("secret", &own));
        assert_eq!(keys["metadata"]["labels"]["velero.io/exclude-from-backup"], "true");
        assert!(keys["data"]["sessionToken"].is_string(), "they end by themselves");
        ids.insert(keys["data"]["accessKeyID"].to_string());
        let role = get("role", &format!("berth-garden-seed:{name}")).unwrap().unwrap();
        let mut wanted = vec![own];
        wanted.extend((acts == name).then(|| "scoped".to_owned()));
        assert_eq!(
            role["rules"][0]["resourceNames"],
            json!(wanted),
            "those of the store are for {acts} alone"
        );
    }
    assert_eq!(ids.len(), 2, "each has its own");
    assert_eq!(garden.couriers.faults(), [""; 0]);
}
