//! What is refused of shared buckets, by the real API server: dry and real, each answer as it is written down; by the
//! webhook while berth is there, and by the policies in the same words while it is away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use berth_api::{extensions, garden};
use berth_core::garden::view::{Bucket, Entry, Extension};
use berth_core::garden::{Profile, Seed, check};
use berth_core::violation::Violations;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::admission::program;
use crate::support::kubectl::Answer;
use crate::support::{Berth, ControlPlane, Kubectl, Options, manifest, project, wait_for};

const PATIENCE: Duration = Duration::from_secs(30);
const HUB: &str = "garden.berth.dev/v1alpha1";
const MEMBER: &str = "extensions.gardener.cloud/v1alpha1";
const CROSS: &str = "garden.berth.dev/allow-cross-provider";
const FORCE: &str = "garden.berth.dev/force-deletion";
const FORGET: &str = "garden.berth.dev/forget-data";
const OWNER: &str = "garden.berth.dev/cloud-profile";
const CONFIRM: &str = "confirmation.gardener.cloud/deletion";

fn object(api: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"][key] = json!(value);
    object
}

fn secret(name: &str) -> Value {
    json!({"name": name, "namespace": "garden"})
}

/// Of clusters at `packet`.
fn profile(name: &str, backup: Value) -> Value {
    let mut spec = json!({"provider": "packet", "constraints": {"regions": ["ewr1", "ams1"]}});
    if !backup.is_null() {
        spec["backup"] = backup;
    }
    object(HUB, "CloudProfile", name, spec)
}

/// Of clusters at `aws`, each backed up in its own region.
fn aws(name: &str, regions: &[&str]) -> Value {
    let spec = json!({
        "provider": "aws",
        "constraints": {"regions": regions},
        "backup": {"secretRef": secret("operator")},
    });
    object(HUB, "CloudProfile", name, spec)
}

fn seed(name: &str, profile: &str, region: &str) -> Value {
    object(HUB, "Seed", name, json!({"cloudProfileName": profile, "region": region}))
}

fn bucket(name: &str, region: &str) -> Value {
    let spec = json!({"provider": "aws", "region": region, "secretRef": secret("operator")});
    object(HUB, "BackupBucket", name, spec)
}

fn entry(name: &str, seed: &str, bucket: &str) -> Value {
    let mut spec = json!({"seedName": seed});
    if !bucket.is_empty() {
        spec["bucketName"] = json!(bucket);
    }
    let mut entry = object(HUB, "BackupEntry", name, spec);
    entry["metadata"]["namespace"] = json!("garden-dev");
    entry
}

fn member_bucket(name: &str, provider: &str, region: &str) -> Value {
    let spec = json!({"type": provider, "region": region, "secretRef": secret("bucket-x")});
    object(MEMBER, "BackupBucket", name, spec)
}

fn member_entry(name: &str, region: &str, bucket: &str) -> Value {
    let spec = json!({"type": "aws", "region": region, "bucketName": bucket, "secretRef": secret("entry-x")});
    object(MEMBER, "BackupEntry", name, spec)
}

fn location(name: &str, bucket: &str, prefix: &str, region: &str) -> Value {
    let spec = json!({
        "provider": "aws",
        "objectStorage": {"bucket": bucket, "prefix": prefix},
        "config": {"region": region},
    });
    let mut location = object("velero.io/v1", "BackupStorageLocation", name, spec);
    location["metadata"]["namespace"] = json!("velero");
    location
}

/// Warnings, and who refused it with which words.
fn said(answer: &Answer) -> String {
    let mut said = String::new();
    for warning in answer.warnings() {
        let _ = writeln!(said, "  warning: {warning}");
    }
    let refused = answer.stderr.lines().find_map(|line| {
        let (who, what) =
            line.split_once(" denied the request: ").or_else(|| line.split_once(" denied request: "))?;
        let name = who.split(['"', '\'']).rev().nth(if who.ends_with('"') { 1 } else { 3 }).unwrap_or(who);
        Some(format!("  refused by {name}: {what}\n"))
    });
    match refused {
        Some(refused) => said + &refused,
        None if answer.status.success() => said + "  accepted\n",
        None => said + &format!("  failed: {}\n", answer.stderr.trim_end()),
    }
}

fn apply(kubectl: &Kubectl, object: &Value, dry_run: bool) -> Answer {
    let mut args = vec!["apply", "-f", "-"];
    if dry_run {
        args.push("--dry-run=server");
    }
    kubectl.answer(&args, &object.to_string()).unwrap()
}

/// What is said to each of these, in a list that people can read.
struct Minutes<'k> {
    kubectl: &'k Kubectl,
    text: String,
}

impl Minutes<'_> {
    /// Dry and real: the same is said.
    fn apply(&mut self, title: &str, object: &Value) {
        let (dry, real) =
            (said(&apply(self.kubectl, object, true)), said(&apply(self.kubectl, object, false)));
        assert_eq!(dry, real, "{title}: a dry run is answered alike");
        let kind = object["kind"].as_str().unwrap();
        let _ = write!(self.text, "{kind}: {title}\n{real}");
    }

    fn kubectl(&mut self, title: &str, args: &[&str]) {
        let answer = self.kubectl.answer(args, "").unwrap();
        let _ = write!(self.text, "{title}\n{}", said(&answer));
    }

    fn ensure_as_written(&self, file: &str) {
        let path = project().join("tests/garden").join(file);
        if std::env::var_os("BERTH_WRITE_DOWN").is_some() {
            std::fs::write(&path, &self.text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let difference = berth::install::diff::texts(file, &written, &self.text);
        assert!(
            written == self.text,
            "{file} is not what is said (BERTH_WRITE_DOWN=1 writes it down):\n{difference}"
        );
    }
}

fn prepare(kubectl: &Kubectl) {
    for namespace in ["garden-dev", "garden-prod"] {
        kubectl.run(&["create", "namespace", namespace]).unwrap();
    }
    let keys = ["--from-literal=accessKeyID=a", "--from-literal=secretAccessKey=b"];
    for (name, keys) in [("operator", &keys[..]), ("half", &keys[..1])] {
        let args = ["create", "secret", "generic", name, "-n", "garden"];
        kubectl.run(&[&args[..], keys].concat()).unwrap();
    }
}

/// No hub acts on what is created here: it stays as it is written.
fn judge(namespace: &str) -> Berth {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    let member = berth_api::crd::member().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    plane.apply(member).unwrap();
    let mut berth =
        Berth::start(plane, Options { garden: true, ..Options::new(program(), namespace) }).unwrap();
    berth.controller.process.kill().unwrap();
    berth
}

#[test]
fn every_answer_is_as_it_is_written_down() {
    let mut berth = judge("velero");
    let kubectl = berth.kubectl().clone();
    prepare(&kubectl);
    let mut minutes = Minutes { kubectl: &kubectl, text: String::new() };
    profiles(&mut minutes);
    seeds(&mut minutes);
    buckets(&mut minutes);
    entries(&mut minutes);
    members(&mut minutes);
    locations(&mut minutes);
    updates(&mut minutes);
    deletions(&mut minutes);
    minutes.ensure_as_written("answers.txt");
    samples(&kubectl);
    every_way_is_the_same_way(&kubectl);
    // While berth is away what is wrong by itself is refused, statuses are written, and nothing that is needed goes.
    berth.webhook.process.kill().unwrap();
    let mut minutes = Minutes { kubectl: &kubectl, text: String::new() };
    minutes.apply(
        "another provider without a region, no credentials",
        &profile("no", json!({"provider": "aws"})),
    );
    minutes.apply("of a profile that does not exist", &seed("late", "later", "eu-west-1"));
    minutes.kubectl("$ kubectl delete seed late", &["delete", "seeds.garden.berth.dev", "late"]);
    minutes.ensure_as_written("answers-while-away.txt");
    let status = json!({"status": {"seed": "eu-1"}}).to_string();
    let patch =
        ["patch", "backupbuckets.garden.berth.dev", "main-eu", "--subresource=status", "--type=merge", "-p"];
    kubectl.run(&[&patch[..], &[&status]].concat()).unwrap();
    for kind in ["backupbuckets.garden.berth.dev", "cloudprofiles.garden.berth.dev"] {
        let answer = kubectl.answer(&["delete", kind, "--all"], "").unwrap();
        assert!(!answer.status.success(), "{kind}");
        let failed = answer.stderr.lines().all(|line| line.contains("failed calling webhook"));
        assert!(failed && !answer.stderr.is_empty(), "{}", answer.stderr);
    }
}

fn profiles(minutes: &mut Minutes<'_>) {
    let with = |provider: &str, region: &str| json!({"provider": provider, "region": region, "secretRef": secret("operator")});
    minutes.apply("no backup", &profile("no-backup", Value::Null));
    minutes.apply("its own provider, a region", &profile("same-region", with("packet", "ewr1")));
    minutes.apply("another provider, a region", &profile("other-region", with("aws", "eu-west-1")));
    let no_provider = json!({"region": "ewr1", "secretRef": secret("operator")});
    minutes.apply("no provider, a region", &profile("default-region", no_provider));
    minutes.apply("its own provider, no region", &profile("same-lazy", with("packet", "")));
    minutes.apply("neither provider nor region", &profile("lazy", json!({"secretRef": secret("operator")})));
    minutes.apply("another provider, no region", &profile("other-lazy", with("aws", "")));
    let no_secret = json!({"provider": "packet", "region": "ewr1"});
    minutes.apply("no credentials", &profile("no-secret", no_secret));
    minutes.apply(
        "another provider, neither region nor credentials",
        &profile("two", json!({"provider": "aws"})),
    );
    minutes.apply(
        "half a reference",
        &profile("half", json!({"region": "ewr1", "secretRef": {"name": "operator"}})),
    );
    minutes.apply("no regions", &aws("empty", &[]));
    minutes.apply("a region that is none of its own", &profile("own", with("packet", "sjc1")));
    minutes.apply("a provider that berth does not serve", &profile("swift", with("openstack", "region-1")));
    let odd = annotated(profile("odd", with("aws", "")), CROSS, "true");
    minutes.apply("another provider, no region, and it is meant", &odd);
    let mut missing = with("packet", "");
    missing["secretRef"] = secret("missing");
    minutes.apply("credentials that do not exist", &profile("dangling", missing.clone()));
    missing["secretRef"] = json!({"name": "operator", "namespace": "elsewhere"});
    minutes.apply("credentials that nobody may read", &profile("elsewhere", missing.clone()));
    missing["secretRef"] = secret("half");
    missing["provider"] = json!("aws");
    missing["region"] = json!("eu-west-1");
    minutes.apply("credentials that lack a key", &profile("lacking", missing));
    let mut wrong = with("aws", "");
    wrong["secretRef"] = secret("missing");
    wrong["providerConfig"] = json!({
        "endpoint": "https://s3.example.com/path",
        "path": "/archives",
        "caCert": "none",
        "objectLock": {"mode": "compliance", "retentionDays": 0},
    });
    let mut wrong = profile("everything", wrong);
    wrong["spec"]["constraints"]["regions"] = json!(["ewr1", "", "ewr1"]);
    minutes.apply("everything at once", &wrong);
    minutes.apply("the one of what follows", &aws("main", &["eu-west-1", "us-east-1"]));
    minutes.apply("the other of what follows", &aws("other", &["eu-west-1"]));
}

fn seeds(minutes: &mut Minutes<'_>) {
    for (name, profile, region) in [
        ("eu-1", "main", "eu-west-1"),
        ("eu-2", "main", "eu-west-1"),
        ("us-1", "main", "us-east-1"),
        ("far", "main", "ap-south-1"),
        ("foreign", "other", "eu-west-1"),
        ("bare", "no-backup", "ewr1"),
        ("lost", "nothing", "ewr1"),
        ("empty", "", ""),
    ] {
        minutes.apply(&format!("{name} of profile {profile:?} in {region:?}"), &seed(name, profile, region));
    }
    let mut short = seed("short", "main", "eu-west-1");
    short["spec"]["reaches"] = json!(["aws/us-east-1"]);
    minutes.apply("reaches another store than its own", &short);
    short["spec"]["reaches"] = json!(["", "a store"]);
    minutes.apply("reaches what is no store", &short);
}

fn buckets(minutes: &mut Minutes<'_>) {
    let owned = |name: &str, region: &str| annotated(bucket(name, region), OWNER, "main");
    for (title, object) in [
        ("in eu-west-1", owned("main-eu", "eu-west-1")),
        ("another one there", owned("main-eu-2", "eu-west-1")),
        ("one that failed", owned("main-eu-3", "eu-west-1")),
        ("made by hand", bucket("by-hand", "eu-west-1")),
        ("for a profile that does not exist", annotated(bucket("nobodys", "eu-west-1"), OWNER, "nothing")),
        ("for a profile without backups", annotated(bucket("nobodys", "eu-west-1"), OWNER, "no-backup")),
        ("for a profile with another store", annotated(bucket("nobodys", "ewr1"), OWNER, "same-region")),
        ("a name with dots", bucket("a.b.c", "eu-west-1")),
        ("a short name", bucket("ab", "eu-west-1")),
        ("a long name", bucket(&"a".repeat(64), "eu-west-1")),
        ("nothing in it", object(HUB, "BackupBucket", "hollow", json!({"provider": "", "region": ""}))),
    ] {
        minutes.apply(title, &object);
    }
    let mut folder = bucket("folder", "here");
    folder["spec"]["provider"] = json!("berth.dev/filesystem");
    folder["spec"]["secretRef"] = secret("missing");
    minutes.apply("a folder without a path, credentials that do not exist", &folder);
    let mut locked = owned("locked", "eu-west-1");
    locked["spec"]["providerConfig"] = json!({"objectLock": {"mode": "compliance", "retentionDays": 30}});
    minutes.apply("with a lock", &locked);
    for (name, status) in [
        ("main-eu-2", json!({"limit": 1, "allocated": ["somebody"]})),
        (
            "main-eu-3",
            json!({"lastOperation": {"type": "Create", "state": "Failed", "description": "name taken", "progress": 0,
                "lastUpdateTime": "2026-01-01T00:00:00Z"}}),
        ),
    ] {
        let patch = json!({"status": status}).to_string();
        let args =
            ["patch", "backupbuckets.garden.berth.dev", name, "--subresource=status", "--type=merge", "-p"];
        minutes.kubectl.run(&[&args[..], &[&patch]].concat()).unwrap();
    }
}

fn entries(minutes: &mut Minutes<'_>) {
    for (title, object) in [
        ("placed by the hub", entry("unplaced", "eu-1", "")),
        ("in a bucket", entry("a", "eu-1", "main-eu")),
        ("in a bucket with a lock", entry("sealed", "eu-1", "locked")),
        ("in a bucket that was made by hand", entry("b", "eu-2", "by-hand")),
        ("of no seed", entry("x", "nobody", "")),
        ("of a seed that has nowhere to back up", entry("waiting", "far", "")),
        ("of such a seed, in a bucket", entry("x", "bare", "main-eu")),
        ("in a bucket that does not exist", entry("x", "eu-1", "nothing")),
        ("in a full bucket", entry("x", "eu-1", "main-eu-2")),
        ("in a bucket that failed", entry("x", "eu-1", "main-eu-3")),
        ("in a bucket of another region", entry("x", "us-1", "main-eu")),
        ("in a bucket of another profile", entry("x", "foreign", "main-eu")),
        ("a name for entries that are moved", entry("source-x", "eu-1", "")),
        ("a long name", entry(&"a".repeat(64), "eu-1", "")),
        ("nothing in it", entry("x", "", "")),
    ] {
        minutes.apply(title, &object);
    }
    let mut same = entry("a", "eu-1", "");
    same["metadata"]["namespace"] = json!("garden-prod");
    minutes.apply("a name that another namespace has", &same);
}

fn members(minutes: &mut Minutes<'_>) {
    for (title, object) in [
        ("of a member", member_bucket("shared", "aws", "eu-west-1")),
        ("of a member, served by others", member_bucket("theirs", "openstack", "")),
        ("of a member, without a region", member_bucket("hollow", "aws", "")),
        ("of a member", member_entry("c", "eu-west-1", "shared")),
        ("of a member, without region and bucket", member_entry("hollow", "", "")),
    ] {
        minutes.apply(title, &object);
    }
    let mut bare = member_entry("bare", "eu-west-1", "shared");
    bare["spec"]["secretRef"] = json!({});
    minutes.apply("of a member, without credentials", &bare);
}

fn locations(minutes: &mut Minutes<'_>) {
    for (title, object) in [
        ("in a bucket of its own", location("own", "private", "", "")),
        ("of an entry of the hub", location("a", "main-eu", "a/velero", "eu-west-1")),
        ("of an entry of this member", location("c", "shared", "c/velero", "eu-west-1")),
        ("without a prefix", location("whole", "main-eu", "", "eu-west-1")),
        ("in another entry's directory", location("thief", "main-eu", "a/velero", "eu-west-1")),
        ("in a directory that is nobody's", location("stray", "main-eu", "stray/velero", "eu-west-1")),
        ("with a way out", location("a", "main-eu", "a/../b", "eu-west-1")),
        ("another region, another's directory", location("thief", "shared", "c", "us-east-1")),
    ] {
        minutes.apply(title, &object);
    }
    let mut reader = location("reader", "main-eu", "a/velero", "eu-west-1");
    reader["spec"]["accessMode"] = json!("ReadOnly");
    minutes.apply("in another entry's directory, to read", &reader);
    let mut elsewhere = location("a", "main-eu", "a/velero", "");
    elsewhere["spec"]["provider"] = json!("azure");
    minutes.apply("another provider", &elsewhere);
}

fn updates(minutes: &mut Minutes<'_>) {
    let without_region = profile("other-region", json!({"provider": "aws", "secretRef": secret("operator")}));
    minutes.apply("loses its region", &without_region);
    let main = |change: &dyn Fn(&mut Value)| {
        let mut main = aws("main", &["eu-west-1", "us-east-1"]);
        change(&mut main["spec"]);
        main
    };
    for (title, change) in [
        (
            "loses its backup, with entries",
            &(|spec: &mut Value| drop(spec.as_object_mut().unwrap().remove("backup"))) as &dyn Fn(&mut Value),
        ),
        ("another region, with entries", &|spec| spec["backup"]["region"] = json!("us-east-1")),
        ("another provider, with entries", &|spec| {
            spec["backup"]["provider"] = json!("packet");
            spec["backup"]["region"] = json!("ewr1");
        }),
        ("loses a region, with entries", &|spec| spec["constraints"]["regions"] = json!(["us-east-1"])),
        ("loses a region without entries", &|spec| spec["constraints"]["regions"] = json!(["eu-west-1"])),
        ("the same in words", &|spec| {
            spec["backup"]["provider"] = json!("aws");
            spec["backup"]["region"] = json!("eu-west-1");
        }),
    ] {
        minutes.apply(title, &main(change));
    }
    minutes.apply("as before", &main(&|_| {}));
    minutes.apply("to a region of another store, with entries", &seed("eu-1", "main", "us-east-1"));
    let moved = annotated(bucket("main-eu", "us-east-1"), OWNER, "other");
    minutes.apply("another region, another owner", &moved);
    let mut weaker = annotated(bucket("locked", "eu-west-1"), OWNER, "main");
    weaker["spec"]["providerConfig"] = json!({"objectLock": {"mode": "governance", "retentionDays": 7}});
    minutes.apply("a weaker lock", &weaker);
    minutes.apply("to a seed with the same store", &entry("a", "eu-2", "main-eu"));
    minutes.apply("to a seed with another store", &entry("a", "us-1", "main-eu"));
    minutes.apply("to another bucket", &entry("a", "eu-2", "by-hand"));
    minutes.apply("forced, without a reason", &annotated(entry("a", "eu-2", "main-eu"), FORCE, "true"));
    minutes.apply("forced", &annotated(entry("sealed", "eu-1", "locked"), FORCE, "the customer left"));
    minutes.apply("forgotten, without a reason", &annotated(entry("a", "eu-2", "main-eu"), FORGET, "true"));
    let forgotten = annotated(bucket("main-eu-2", "eu-west-1"), OWNER, "main");
    minutes.apply("forgotten, without a reason", &annotated(forgotten, FORGET, ""));
    minutes.apply("another type, another region", &member_bucket("shared", "berth.dev/filesystem", "here"));
    minutes.apply("another region", &member_entry("c", "us-east-1", "shared"));
}

fn deletions(minutes: &mut Minutes<'_>) {
    for args in [
        &["delete", "cloudprofiles.garden.berth.dev", "main", "--dry-run=server"][..],
        &["delete", "cloudprofiles.garden.berth.dev", "main"],
        &["delete", "cloudprofiles.garden.berth.dev", "lazy"],
        &["delete", "backupbuckets.garden.berth.dev", "main-eu"],
        &["delete", "seeds.garden.berth.dev", "eu-2"],
        &["delete", "backupbuckets.extensions.gardener.cloud", "shared"],
        &["delete", "backupbuckets.extensions.gardener.cloud", "theirs"],
        &["delete", "backupentries.extensions.gardener.cloud", "c"],
        &["delete", "backupentries.garden.berth.dev", "unplaced", "-n", "garden-dev"],
        &["delete", "backupentries.garden.berth.dev", "sealed", "-n", "garden-dev"],
    ] {
        minutes.kubectl(&format!("$ kubectl {}", args.join(" ")), args);
    }
    let kubectl = minutes.kubectl;
    kubectl
        .run(&["annotate", "backupentries.extensions.gardener.cloud", "c", &format!("{CONFIRM}=true")])
        .unwrap();
    let confirmed = ["delete", "backupentries.extensions.gardener.cloud", "c"];
    minutes.kubectl("$ kubectl delete backupentries.extensions.gardener.cloud c   # confirmed", &confirmed);
    // One by one, whatever way they are asked for: what nobody needs goes, the rest stays.
    let raw = ["delete", "--raw", "/apis/garden.berth.dev/v1alpha1/backupbuckets"];
    let answer = kubectl.answer(&raw, "").unwrap();
    assert!(
        answer.stderr.contains("in this bucket") || answer.stderr.contains("holds 1 entry"),
        "{}",
        answer.stderr
    );
    let left = kubectl.run(&["get", "backupbuckets.garden.berth.dev", "-o", "name"]).unwrap();
    for name in ["main-eu", "by-hand", "locked"] {
        assert!(left.contains(&format!("/{name}\n")), "{left}");
    }
    // Credentials that the hub has marked.
    let finalizer = json!({"metadata": {"finalizers": ["garden.berth.dev/backupbucket"]}}).to_string();
    kubectl.run(&["patch", "secret", "operator", "-n", "garden", "--type=merge", "-p", &finalizer]).unwrap();
    minutes.kubectl(
        "$ kubectl delete secret operator -n garden",
        &["delete", "secret", "operator", "-n", "garden"],
    );
    minutes.kubectl("$ kubectl delete secret half -n garden", &["delete", "secret", "half", "-n", "garden"]);
}

/// What the samples are called is what becomes of them.
fn samples(kubectl: &Kubectl) {
    for kind in ["cloudprofile", "seed", "backupbucket", "backupentry"] {
        for (what, accepted) in [("accepted", true), ("refused", false)] {
            let path = project().join(format!("manifests/samples/{kind}-{what}.yaml"));
            let answer = kubectl.answer(&["apply", "-f", path.to_str().unwrap()], "").unwrap();
            assert_eq!(answer.status.success(), accepted, "{}: {}", path.display(), answer.stderr);
        }
    }
}

fn every_way_is_the_same_way(kubectl: &Kubectl) {
    let faults = "spec.backup.region: required";
    let wrong = profile("way", json!({"provider": "aws", "secretRef": secret("operator")}));
    let mut generated = wrong.clone();
    generated["metadata"] = json!({"generateName": "way-"});
    for (args, object) in [
        (&["create", "-f", "-"][..], &wrong),
        (&["create", "--dry-run=server", "-f", "-"], &wrong),
        (&["create", "-f", "-"], &generated),
        (&["apply", "--server-side", "-f", "-"], &wrong),
        (&["apply", "--server-side", "--dry-run=server", "-f", "-"], &wrong),
    ] {
        let answer = kubectl.answer(args, &object.to_string()).unwrap();
        assert!(!answer.status.success() && answer.stderr.contains(faults), "{args:?}: {}", answer.stderr);
    }
    let patch = json!({"spec": {"backup": {"region": null}}}).to_string();
    let args = ["patch", "cloudprofiles.garden.berth.dev", "other-region", "--type=merge", "-p", &patch];
    let answer = kubectl.answer(&args, "").unwrap();
    assert!(!answer.status.success() && answer.stderr.contains(faults), "{}", answer.stderr);
    // What was let in may be labelled, whatever it is like by now.
    kubectl.run(&["label", "cloudprofiles.garden.berth.dev", "main", "a=b"]).unwrap();
}

/// An object before and after, and what core says to that; `None`: it is created.
struct Case {
    old: Option<Value>,
    new: Value,
}

fn read<W: DeserializeOwned, T: for<'w> From<&'w W>>(object: &Value) -> T {
    T::from(&serde_json::from_value::<W>(object.clone()).unwrap())
}

fn by_core(case: &Case) -> Violations {
    let Case { old, new } = case;
    let changed = old.as_ref().is_none_or(|old| old["spec"] != new["spec"]);
    let api = new["apiVersion"].as_str().unwrap();
    match (api, new["kind"].as_str().unwrap()) {
        (HUB, "CloudProfile") => read::<garden::CloudProfile, Profile>(new).faults(),
        (HUB, "Seed") => check::seed::faults(&read::<garden::Seed, Seed>(new)),
        (HUB, "BackupBucket") => {
            let read = read::<garden::BackupBucket, Bucket>;
            check::bucket::faults(old.as_ref().map(read).as_ref(), &read(new))
        }
        (HUB, "BackupEntry") => {
            let read = read::<garden::BackupEntry, Entry>;
            check::entry::faults(old.as_ref().map(read).as_ref(), &read(new), false)
        }
        (_, "BackupBucket") => {
            let read = read::<extensions::BackupBucket, Extension>;
            check::extension::faults(old.as_ref().map(read).as_ref(), &read(new), changed)
        }
        _ => {
            let read = read::<extensions::BackupEntry, Extension>;
            check::extension::faults(old.as_ref().map(read).as_ref(), &read(new), changed)
        }
    }
}

/// Every combination of what matters to the policies.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut created = |new: Value| cases.push(Case { old: None, new });
    for provider in [json!(null), json!(""), json!("packet"), json!("aws")] {
        for region in [json!(null), json!(""), json!("r")] {
            for secret in [json!(null), json!({}), json!({"name": "n"}), secret("n")] {
                for opt_out in [None, Some("false"), Some("true"), Some("")] {
                    let fields = [("provider", &provider), ("region", &region), ("secretRef", &secret)];
                    let said = fields.into_iter().filter(|(_, value)| !value.is_null());
                    let backup: BTreeMap<&str, &Value> = said.collect();
                    let new = profile("case", json!(backup));
                    created(opt_out.map_or(new.clone(), |value| annotated(new, CROSS, value)));
                }
            }
        }
    }
    let mut nameless = profile("case", json!({"provider": "aws"}));
    nameless["spec"]["provider"] = json!("");
    created(nameless);
    created(seed("case", "", ""));
    created(seed("case", "p", ""));
    created(seed("case", "p", "r"));
    for name in ["abc", "ab", "a-b", "a.b", "0ab", &"a".repeat(63), &"a".repeat(64)] {
        created(bucket(name, "r"));
        created(entry(name, "s", ""));
    }
    for provider in ["aws", "azure", "gcp"] {
        for name in ["a--b", "a-b", "goog-a", "a-goog", "a-google", "ab"] {
            let mut one = bucket(name, "r");
            one["spec"]["provider"] = json!(provider);
            created(one);
        }
    }
    created(object(
        HUB,
        "BackupBucket",
        "x",
        json!({"provider": "", "region": "", "secretRef": {"namespace": "g"}}),
    ));
    created(object(HUB, "BackupBucket", "hollow", json!({"provider": "aws", "region": ""})));
    created(entry("source-a", "", ""));
    for reason in ["", " ", "true", "false", "because"] {
        created(annotated(entry("case", "s", ""), FORCE, reason));
        created(annotated(entry("case", "", ""), FORGET, reason));
        created(annotated(annotated(entry("case", "s", ""), FORCE, reason), FORGET, reason));
        created(annotated(bucket("case", ""), FORGET, reason));
    }
    for (provider, region) in
        [("aws", ""), ("aws", "r"), ("gcp", ""), ("azure", ""), ("swift", ""), ("berth.dev/filesystem", "")]
    {
        created(member_bucket("case", provider, region));
    }
    created(member_entry("case", "", ""));
    created(member_entry("case", "r", "b"));
    let mut bare = member_entry("case", "r", "b");
    bare["spec"]["secretRef"] = json!({"namespace": "g"});
    created(bare);
    cases
}

/// Changes of one object, which is there.
fn changes() -> Vec<Case> {
    let owned = annotated(bucket("there", "r"), OWNER, "p");
    let mut known = entry("there", "s", "b");
    known["spec"]["shootUID"] = json!("u");
    let forced = annotated(known.clone(), FORCE, "because");
    let (member, of_member) = (member_bucket("there", "aws", "r"), member_entry("there", "r", "b"));
    let mut all = Vec::new();
    let mut change = |old: &Value, change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        all.push(Case { old: Some(old.clone()), new });
    };
    change(&owned, &|b| b["spec"]["region"] = json!("other"));
    change(&owned, &|b| b["spec"]["provider"] = json!(""));
    change(&owned, &|b| b["spec"]["secretRef"]["name"] = json!("other"));
    change(&owned, &|b| b["metadata"]["annotations"][OWNER] = json!("q"));
    change(&owned, &|b| b["metadata"]["annotations"] = json!({}));
    change(&owned, &|b| b["metadata"]["annotations"][FORGET] = json!("true"));
    change(&owned, &|b| b["metadata"]["annotations"][FORGET] = json!("because"));
    change(&owned, &|b| b["metadata"]["labels"] = json!({"a": "b"}));
    change(&known, &|e| e["spec"]["bucketName"] = json!("c"));
    change(&known, &|e| drop(e["spec"].as_object_mut().unwrap().remove("bucketName")));
    change(&known, &|e| e["spec"]["shootUID"] = json!("v"));
    change(&known, &|e| e["spec"]["seedName"] = json!("t"));
    change(&known, &|e| e["metadata"]["annotations"] = json!({FORCE: "true"}));
    change(&forced, &|e| e["metadata"]["annotations"][FORCE] = json!("otherwise"));
    change(&forced, &|e| e["metadata"]["annotations"][FORGET] = json!(""));
    change(&forced, &|e| e["metadata"]["annotations"] = json!({FORCE: "", FORGET: "true"}));
    change(&forced, &|e| e["metadata"]["labels"] = json!({"a": "b"}));
    change(&member, &|b| b["spec"]["type"] = json!("openstack"));
    change(&member, &|b| b["spec"]["region"] = json!("other"));
    change(&member, &|b| b["spec"]["secretRef"]["name"] = json!("other"));
    change(&of_member, &|e| e["spec"]["region"] = json!("other"));
    change(&of_member, &|e| e["spec"]["bucketName"] = json!(""));
    all
}

/// With no berth at all: what the policies refuse is what core calls a fault, word for word.
#[test]
fn the_policies_and_the_checks_agree_case_by_case() {
    let plane = ControlPlane::start().unwrap();
    let _report = plane.report_on_panic();
    plane.define().unwrap();
    let member = berth_api::crd::member().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    plane.apply(member).unwrap();
    plane.install(manifest::objects_with_garden("velero", "https://127.0.0.1:1", false).unwrap()).unwrap();
    let kubectl = plane.kubectl();
    prepare(kubectl);
    let judge = |object: &Value| said(&apply(kubectl, object, true));
    wait_for("the policies to be on", PATIENCE, || {
        let wrong = [
            profile("x", json!({})),
            seed("x", "", ""),
            bucket("x", "r"),
            entry("x", "", ""),
            member_bucket("x", "aws", ""),
        ];
        Ok(wrong.iter().all(|wrong| judge(wrong).contains("refused by berth-")).then_some(()))
    })
    .unwrap();
    let (created, changed) = (cases(), changes());
    assert!(created.len() > 200 && changed.len() > 15);
    let mut there = Value::Null;
    for case in created.iter().chain(&changed) {
        if let Some(old) = case.old.as_ref().filter(|old| **old != there) {
            let answer = apply(kubectl, old, false);
            assert!(answer.status.success(), "{}", answer.stderr);
            there.clone_from(old);
        }
        let is_served = case.new["apiVersion"] != MEMBER
            || [&case.new, case.old.as_ref().unwrap_or(&Value::Null)].into_iter().any(|one| {
                ["aws", "azure", "gcp", "berth.dev/filesystem"]
                    .iter()
                    .any(|served| one["spec"]["type"] == *served)
            });
        let matters = case.old.as_ref().is_none_or(|old| {
            old["spec"] != case.new["spec"]
                || old["metadata"]["annotations"] != case.new["metadata"]["annotations"]
        });
        let faults = if is_served && matters { by_core(case) } else { Violations::default() };
        let answer = judge(&case.new);
        let expected = if faults.is_empty() { "  accepted\n".to_owned() } else { format!(": {faults}\n") };
        assert!(answer.ends_with(&expected), "{}\nby core: {faults}\nby the policy: {answer}", case.new);
        assert!(faults.is_empty() || answer.contains("refused by berth-"), "{answer}");
    }
    only_what_is_on_record_is_deleted(kubectl);
    only_who_may_delete_lets_go(&plane);
}

/// Deletions, dry: the policy refuses what core calls a fault, word for word.
fn only_what_is_on_record_is_deleted(kubectl: &Kubectl) {
    const OURS: &str = "garden.berth.dev/backup";
    const THEIRS: &str = "example.com/other";
    let mut entries = Vec::new();
    for bucket in ["", "b"] {
        for finalizers in [json!([]), json!([THEIRS]), json!([THEIRS, OURS])] {
            for forgotten in [None, Some("false"), Some("the store is given up")] {
                let mut one = entry(&format!("end-{}", entries.len()), "s", bucket);
                one["metadata"]["finalizers"] = finalizers.clone();
                entries.push(forgotten.map_or(one.clone(), |why| annotated(one, FORGET, why)));
            }
        }
    }
    let mut going = entry("going", "s", "b");
    going["metadata"]["finalizers"] = json!([THEIRS, OURS]);
    entries.push(going);
    for one in &entries {
        let answer = apply(kubectl, one, false);
        assert!(answer.status.success(), "{}", answer.stderr);
    }
    const ENTRIES: &str = "backupentries.garden.berth.dev";
    kubectl.run(&["delete", ENTRIES, "going", "-n", "garden-dev", "--wait=false"]).unwrap();
    let let_go = json!({"metadata": {"finalizers": [THEIRS]}}).to_string();
    kubectl.run(&["patch", ENTRIES, "going", "-n", "garden-dev", "--type=merge", "-p", &let_go]).unwrap();
    let delete = |name: &str| {
        let args = ["delete", ENTRIES, name, "-n", "garden-dev", "--wait=false", "--dry-run=server"];
        said(&kubectl.answer(&args, "").unwrap())
    };
    wait_for("the policy of deletions to be on", PATIENCE, || {
        Ok(delete("end-9").contains("refused by berth-backupentry-deletions").then_some(()))
    })
    .unwrap();
    let mut refused = 0;
    for one in &entries {
        let name = one["metadata"]["name"].as_str().unwrap();
        let there = kubectl.run(&["get", ENTRIES, name, "-n", "garden-dev", "-o", "json"]).unwrap();
        let there = read::<garden::BackupEntry, Entry>(&serde_json::from_str(&there).unwrap());
        let faults = check::entry::check_delete(&there);
        let answer = delete(name);
        let expected = if faults.is_empty() { "  accepted\n".to_owned() } else { format!(": {faults}\n") };
        assert!(answer.ends_with(&expected), "{one}\nby core: {faults}\nby the policy: {answer}");
        refused += usize::from(!faults.is_empty());
    }
    assert_eq!(refused, 4, "with a bucket, without our finalizer, and not meant");
}

/// To let go of data is to delete it: whoever may write an object and not delete it may not say so.
fn only_who_may_delete_lets_go(plane: &ControlPlane) {
    let kubectl = plane.kubectl();
    kubectl.run(&["create", "serviceaccount", "writer", "-n", "garden-dev"]).unwrap();
    let account = "--serviceaccount=garden-dev:writer";
    let of_cluster = "--resource=backupbuckets.garden.berth.dev,backupbuckets.extensions.gardener.cloud,backupentries.extensions.gardener.cloud";
    let may = |verbs: &str, name: &str| {
        let (verbs, role) = (format!("--verb={verbs}"), format!("--role={name}"));
        let resource = "--resource=backupentries.garden.berth.dev";
        kubectl.run(&["create", "role", name, "-n", "garden-dev", &verbs, resource]).unwrap();
        kubectl.run(&["create", "rolebinding", name, "-n", "garden-dev", &role, account]).unwrap();
        let role = format!("--clusterrole={name}");
        kubectl.run(&["create", "clusterrole", name, &verbs, of_cluster]).unwrap();
        kubectl.run(&["create", "clusterrolebinding", name, &role, account]).unwrap();
    };
    may("get,create,patch", "write-entries-and-buckets");
    let writer = kubectl.with_kubeconfig(plane.service_account_kubeconfig("garden-dev", "writer").unwrap());
    let asked = [
        (FORCE, entry("let-go", "s", "")),
        (FORGET, entry("let-go", "s", "")),
        (FORGET, bucket("let-go", "r")),
        (FORGET, member_entry("let-go", "r", "b")),
        (FORGET, member_bucket("let-go", "aws", "r")),
    ]
    .map(|(key, object)| (key, annotated(object, key, "because")));
    wait_for("the right to write", PATIENCE, || {
        let plain = [entry("let-go", "s", ""), bucket("let-go", "r"), member_entry("let-go", "r", "b")];
        Ok(plain.iter().all(|one| said(&apply(&writer, one, true)) == "  accepted\n").then_some(()))
    })
    .unwrap();
    for (key, object) in &asked {
        let answer = said(&apply(&writer, object, true));
        let refused =
            format!("refused by berth-letting-go: metadata.annotations[{key}]: only who may delete");
        assert!(answer.contains(&refused), "{object}: {answer}");
    }
    let both = annotated(asked[0].1.clone(), FORGET, "because");
    let answer = said(&apply(&writer, &both, true));
    assert!(
        answer.contains(&format!("[{FORCE}]: ")) && answer.contains(&format!("[{FORGET}]: ")),
        "{answer}"
    );
    may("delete", "delete-entries-and-buckets");
    for (_, object) in &asked {
        wait_for("the right to delete", PATIENCE, || {
            Ok((said(&apply(&writer, object, true)) == "  accepted\n").then_some(()))
        })
        .unwrap();
    }
    // The API server has not named it yet.
    let mut generated = both;
    generated["metadata"].as_object_mut().unwrap().remove("name");
    generated["metadata"]["generateName"] = json!("let-go-");
    let answer = writer.answer(&["create", "--dry-run=server", "-f", "-"], &generated.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
}
