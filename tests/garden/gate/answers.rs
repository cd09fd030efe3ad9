//! What berth says to each of these, as `answers.txt` has it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{
    CONFIRM, CROSS, FORCE, FORGET, HUB, OWNER, annotated, apply, aws, bucket, entry, location, member_bucket,
    member_entry, object, prepare, profile, said, secret, seed,
};
use crate::admission::program;
use crate::support::{Berth, ControlPlane, Kubectl, Options, project, wait_for};

/// A busy machine's watches are seconds late. What is said otherwise is waited for once.
const SHOWN_WITHIN: Duration = Duration::from_secs(120);
/// What is said where a Secret could not be read in time. Nothing is refused for that.
const LATE: &str = "could not be found out";

/// What is said to each of these, in a list that people can read.
struct Minutes<'k> {
    kubectl: &'k Kubectl,
    file: &'static str,
    written: String,
    text: String,
}

impl<'k> Minutes<'k> {
    fn new(kubectl: &'k Kubectl, file: &'static str) -> Self {
        let written = std::fs::read_to_string(Self::path(file)).unwrap_or_default();
        Self { kubectl, file, written, text: String::new() }
    }

    fn path(file: &str) -> PathBuf {
        project().join("tests/garden").join(file)
    }

    /// Asks without effect until the answer is the written one: the webhook judges by watches,
    /// which show what was written before a moment later. An answer that stays another one is found
    /// by [`Minutes::ensure_as_written`].
    fn settle(&self, title: &str, ask: impl Fn() -> String) -> String {
        let begun = Instant::now();
        // After a first answer that is another one, nothing is waited for.
        let as_written = self.written.starts_with(&self.text);
        loop {
            let said = ask();
            let is_written = self.written.starts_with(&format!("{}{title}\n{said}", self.text));
            if !as_written || is_written || begun.elapsed() > SHOWN_WITHIN {
                return said;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Dry and real: the same is said.
    fn apply(&mut self, title: &str, object: &Value) {
        let title = format!("{}: {title}", object["kind"].as_str().unwrap());
        let dry = self.settle(&title, || said(&apply(self.kubectl, object, true)));
        let begun = Instant::now();
        let real = loop {
            let real = said(&apply(self.kubectl, object, false));
            let is_late = real.contains(LATE) && !dry.contains(LATE);
            if !is_late || begun.elapsed() > SHOWN_WITHIN {
                break real;
            }
            let is_let_in = |said: &str| said.ends_with("  accepted\n");
            match (is_let_in(&real), is_let_in(&dry)) {
                // As it should be, but for a warning.
                (true, true) => break dry.clone(),
                // It should not have been.
                (true, false) => {
                    self.kubectl.run_with(&["delete", "-f", "-"], &object.to_string()).unwrap();
                }
                (false, _) => {}
            }
        };
        assert_eq!(dry, real, "{title}: a dry run is answered alike");
        let _ = write!(self.text, "{title}\n{real}");
    }

    fn delete(&mut self, title: &str, args: &[&str]) {
        self.settle(title, || {
            said(&self.kubectl.answer(&[args, &["--dry-run=server"]].concat(), "").unwrap())
        });
        let answer = self.kubectl.answer(args, "").unwrap();
        let _ = write!(self.text, "{title}\n{}", said(&answer));
    }

    fn ensure_as_written(&self) {
        if std::env::var_os("BERTH_WRITE_DOWN").is_some() {
            std::fs::write(Self::path(self.file), &self.text).unwrap();
            return;
        }
        let difference = berth::install::diff::texts(self.file, &self.written, &self.text);
        assert!(
            self.written == self.text,
            "{} is not what is said (BERTH_WRITE_DOWN=1 writes it down):\n{difference}",
            self.file
        );
    }
}

/// No hub acts on what is created here: it stays as it is written.
fn judge(namespace: &str) -> Berth {
    let plane = ControlPlane::start().unwrap();
    plane.define().unwrap();
    let member =
        berth_garden_api::crd::member().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
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
    let mut minutes = Minutes::new(&kubectl, "answers.txt");
    profiles(&mut minutes);
    seeds(&mut minutes);
    buckets(&mut minutes);
    entries(&mut minutes);
    members(&mut minutes);
    locations(&mut minutes);
    updates(&mut minutes);
    deletions(&mut minutes);
    minutes.ensure_as_written();
    samples(&kubectl);
    every_way_is_the_same_way(&kubectl);
    // While berth is away what is wrong by itself is refused, statuses are written, and nothing
    // that is needed goes.
    berth.webhook.process.kill().unwrap();
    let mut minutes = Minutes::new(&kubectl, "answers-while-away.txt");
    minutes.apply(
        "another provider without a region, no credentials",
        &profile("no", json!({"provider": "aws"})),
    );
    minutes.apply("of a profile that does not exist", &seed("late", "later", "eu-west-1"));
    minutes.delete("$ kubectl delete seed late", &["delete", "seeds.garden.berth.dev", "late"]);
    minutes.ensure_as_written();
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
    let mut unsaid = with("aws", "eu-west-1");
    unsaid["providerConfig"] = json!({});
    minutes.apply("nothing said of the locations' keys", &profile("unsaid", unsaid.clone()));
    unsaid["providerConfig"] = json!({"endpoint": "https://store.example.com"});
    minutes.apply("the same at a store that is none of Amazon's", &profile("unsaid-elsewhere", unsaid));
    let mut scoped = with("aws", "eu-west-1");
    scoped["providerConfig"] = json!({"locationKeys": "scoped", "roleArn": "arn:aws:iam::1:role/backups"});
    minutes.apply("keys for one directory each", &profile("scoped", scoped));
    let mut scoped = with("packet", "ewr1");
    scoped["providerConfig"] = json!({"locationKeys": "scoped", "keyMinutes": 5});
    minutes.apply("the same where nobody makes such", &profile("unscoped", scoped));
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
        minutes.delete(&format!("$ kubectl {}", args.join(" ")), args);
    }
    let kubectl = minutes.kubectl;
    kubectl
        .run(&["annotate", "backupentries.extensions.gardener.cloud", "c", &format!("{CONFIRM}=true")])
        .unwrap();
    let confirmed = ["delete", "backupentries.extensions.gardener.cloud", "c"];
    minutes.delete("$ kubectl delete backupentries.extensions.gardener.cloud c   # confirmed", &confirmed);
    // One by one, whichever way is asked for: what is not needed is deleted, the rest stays.
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
    minutes.delete(
        "$ kubectl delete secret operator -n garden",
        &["delete", "secret", "operator", "-n", "garden"],
    );
    minutes.delete("$ kubectl delete secret half -n garden", &["delete", "secret", "half", "-n", "garden"]);
}

/// What the samples are called is what becomes of them.
fn samples(kubectl: &Kubectl) {
    for kind in ["cloudprofile", "seed", "backupbucket", "backupentry"] {
        for (what, accepted) in [("accepted", true), ("refused", false)] {
            let path = project().join(format!("manifests/samples/{kind}-{what}.yaml"));
            let mut said = String::new();
            // What it refers to the webhook may see a moment later.
            let is_so = wait_for(&format!("sample {kind} to be {what}"), SHOWN_WITHIN, || {
                let answer = kubectl.answer(&["apply", "-f", path.to_str().unwrap()], "")?;
                said = answer.stderr;
                Ok((answer.status.success() == accepted).then_some(()))
            });
            is_so.unwrap_or_else(|error| panic!("{error}: {said}"));
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
        (&["apply", "-f", "-"], &wrong),
        (&["apply", "--dry-run=server", "-f", "-"], &wrong),
        (&["apply", "--server-side", "-f", "-"], &wrong),
        (&["apply", "--server-side", "--dry-run=server", "-f", "-"], &wrong),
    ] {
        let answer = kubectl.answer_by_process(args, &object.to_string()).unwrap();
        assert!(!answer.status.success() && answer.stderr.contains(faults), "{args:?}: {}", answer.stderr);
    }
    // What kubectl applied once, it changes by a patch of its own making.
    let mut changed = wrong.clone();
    changed["metadata"]["name"] = json!("way-changed");
    changed["spec"]["backup"]["region"] = json!("eu-west-1");
    let answer = kubectl.answer_by_process(&["apply", "-f", "-"], &changed.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    changed["spec"]["backup"]["region"] = Value::Null;
    for args in [&["apply", "-f", "-"][..], &["apply", "--dry-run=server", "-f", "-"]] {
        let answer = kubectl.answer_by_process(args, &changed.to_string()).unwrap();
        assert!(!answer.status.success() && answer.stderr.contains(faults), "{args:?}: {}", answer.stderr);
    }
    let patch = json!({"spec": {"backup": {"region": null}}}).to_string();
    let args = ["patch", "cloudprofiles.garden.berth.dev", "other-region", "--type=merge", "-p", &patch];
    let answer = kubectl.answer(&args, "").unwrap();
    assert!(!answer.status.success() && answer.stderr.contains(faults), "{}", answer.stderr);
    // A missing name is no fault if the API server generates it.
    let mut unnamed = bucket("", "eu-west-1");
    unnamed["metadata"] = json!({"generateName": "way-"});
    let args = ["create", "--dry-run=server", "-f", "-"];
    let answer = kubectl.answer(&args, &unnamed.to_string()).unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    // An admitted object may be labelled, whatever faults it has by now.
    kubectl.run(&["label", "cloudprofiles.garden.berth.dev", "main", "a=b"]).unwrap();
}
