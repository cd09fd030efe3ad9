//! `berth garden agent`, driven by objects as a gardenlet writes them: on a real control plane,
//! under its own role, with a real S3-protocol server and with folders.

pub mod site;

use berth::storage::bucket::{Created, Version};
use berth_garden_core::fault::StoreFault;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use serde_json::{Value, json};

use crate::support::berth::SHORTEST_LEASE;
use crate::support::peers::Keys;
use crate::support::{Process, wait_for};
use site::{
    BUCKET_FINALIZER, BUCKETS, ENTRIES, ENTRY_FINALIZER, PATIENCE, Site, asked, finalizers, is_healthy,
    retain, runtime,
};

#[test]
fn a_bucket_and_an_entry_live_and_go_as_a_gardenlet_wants_it() {
    let site = Site::shared();
    site.make_bucket("life");
    let bucket = site.becomes(BUCKETS, "life", "Succeeded");
    assert!(is_healthy(&bucket), "{bucket:#}");
    assert_eq!(bucket["status"]["lastOperation"]["type"], "Create");
    assert_eq!(finalizers(&bucket), [BUCKET_FINALIZER]);
    assert!(finalizers(&site.secret("keys")).contains(&BUCKET_FINALIZER));
    // versitygw knows none of these calls; that is said, and is no fault.
    let said = bucket["status"]["lastOperation"]["description"].as_str().unwrap();
    assert!(said.contains("bucket life was made") && said.contains("does not support"), "{said}");

    site.make_entry("shoot--dev--a--12", "life");
    let entry = site.becomes(ENTRIES, "shoot--dev--a--12", "Succeeded");
    assert!(is_healthy(&entry), "{entry:#}");
    assert_eq!(entry["status"]["providerStatus"]["prefix"], "shoot--dev--a--12/");

    // Asked for again, with a clock that is a minute ahead.
    let ahead = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(60);
    let patch = json!({"metadata": {"annotations": {"gardener.cloud/operation": "reconcile", "gardener.cloud/timestamp": ahead.to_string()}}});
    site.kubectl().run(&["patch", BUCKETS, "life", "--type=merge", "-p", &patch.to_string()]).unwrap();
    let again =
        site.waits("to be healthy", BUCKETS, "life", |bucket| bucket.is_some_and(is_healthy)).unwrap();
    assert_eq!(again["status"]["lastOperation"]["type"], "Reconcile");

    site.fill("life", "shoot--dev--a--12/", 3);
    site.fill("life", "shoot--dev--a--123/", 2);
    site.fill("life", "_berth/shoot--dev--a--12/migration/", 2);
    site.delete(ENTRIES, "shoot--dev--a--12");
    site.is_gone(ENTRIES, "shoot--dev--a--12");
    assert_eq!(site.count("life", "shoot--dev--a--12"), 0);
    assert_eq!(site.count("life", "shoot--dev--a--123"), 2, "its name only begins alike");
    assert_eq!(site.count("life", "_berth"), 0, "what was noted of it goes, too");

    // Data that no entry owns is not lost with the bucket.
    site.delete(BUCKETS, "life");
    let full = site.becomes(BUCKETS, "life", "Error");
    let error = &full["status"]["lastError"];
    assert_eq!(error["codes"], json!(["ERR_CONFIGURATION_PROBLEM"]));
    let said = error["description"].as_str().unwrap();
    assert!(
        said.contains("2 objects with 14 bytes") && said.contains("garden.berth.dev/empty-bucket=life"),
        "{said}"
    );
    site.annotate(BUCKETS, "life", "garden.berth.dev/empty-bucket=wife");
    let refused = |bucket: Option<&Value>| {
        bucket.is_some_and(|b| {
            b["status"]["lastError"]["description"].as_str().is_some_and(|d| d.contains("wife"))
        })
    };
    site.waits("to refuse another name", BUCKETS, "life", refused);
    assert_eq!(site.count("life", ""), 2);
    site.annotate(BUCKETS, "life", "garden.berth.dev/empty-bucket=life");
    site.is_gone(BUCKETS, "life");
    let error =
        runtime().block_on(site.administer("life", &site.s3.keys, &json!({})).page("", None, 1)).unwrap_err();
    assert_eq!(error.fault, StoreFault::NoSuchBucket);
}

#[test]
fn a_bucket_is_not_removed_before_its_entries() {
    let site = Site::shared();
    site.make_bucket("first");
    site.make_entry("last", "first");
    site.fill("first", "last/", 1);
    site.annotate(BUCKETS, "first", "garden.berth.dev/empty-bucket=first");
    site.delete(BUCKETS, "first");
    let waiting = site.becomes(BUCKETS, "first", "Pending");
    assert!(
        waiting["status"]["lastOperation"]["description"].as_str().unwrap().contains("last"),
        "{waiting:#}"
    );
    assert!(waiting["status"]["lastError"].is_null(), "{waiting:#}");
    assert_eq!(site.count("first", "last/"), 1);
    site.delete(ENTRIES, "last");
    site.is_gone(ENTRIES, "last");
    site.is_gone(BUCKETS, "first");
}

#[test]
fn directories_of_any_size_are_removed_whole() {
    let site = Site::shared();
    site.make_bucket("sizes");
    for count in [0, 1, 1_001, 2_500] {
        let name = format!("entry-{count}");
        site.make_entry(&name, "sizes");
        site.fill("sizes", &format!("{name}/"), count);
        assert_eq!(site.count("sizes", &name), count);
        // Another controller's finalizer keeps it until the record is read.
        let patch = json!({"metadata": {"finalizers": [ENTRY_FINALIZER, "example.com/reader"]}}).to_string();
        site.kubectl().run(&["patch", ENTRIES, &name, "--type=merge", "-p", &patch]).unwrap();
        site.delete(ENTRIES, &name);
        let is_let_go =
            |entry: Option<&Value>| entry.is_some_and(|e| finalizers(e) == ["example.com/reader"]);
        let entry = site.waits("to be let go", ENTRIES, &name, is_let_go).unwrap();
        assert_eq!(entry["status"]["lastOperation"]["state"], "Succeeded");
        assert_eq!(entry["status"]["lastOperation"]["progress"], 100);
        assert_eq!(entry["status"]["providerStatus"]["objects"], count, "{entry:#}");
        assert_eq!(entry["status"]["providerStatus"]["bytes"], 7 * count, "{entry:#}");
        assert_eq!(site.count("sizes", &name), 0);
        let patch = json!({"metadata": {"finalizers": null}}).to_string();
        site.kubectl().run(&["patch", ENTRIES, &name, "--type=merge", "-p", &patch]).unwrap();
        site.is_gone(ENTRIES, &name);
    }
    assert!(!site.s3.file("../sizes/entry-2500").exists(), "not even a folder is left");
}

#[test]
fn events_tell_what_was_done_and_each_failure_once() {
    let site = Site::shared();
    site.make_bucket("told");
    site.make_entry("teller", "told");
    let made = site.event(BUCKETS, "told", "Created");
    assert!(made.starts_with("bucket told was made"), "{made}");
    assert_eq!(site.event(ENTRIES, "teller", "Created"), "directory teller/ of bucket told");
    site.fill("told", "teller/", 3);
    site.fill("told", "stray/", 2);
    site.delete(ENTRIES, "teller");
    site.is_gone(ENTRIES, "teller");
    assert_eq!(site.event(ENTRIES, "teller", "Removed"), "3 objects with 21 bytes were removed");

    site.delete(BUCKETS, "told");
    let refused = site.becomes(BUCKETS, "told", "Error");
    let told = site.event(BUCKETS, "told", "Failed");
    let why = refused["status"]["lastError"]["description"].as_str().unwrap();
    assert_eq!(told, format!("ERR_CONFIGURATION_PROBLEM: {why}"));
    // It is tried again and again.
    let at = |bucket: &Value| bucket["status"]["lastError"]["lastUpdateTime"].clone();
    let mut last = at(&refused);
    for _ in 0..2 {
        let again = site.waits("to fail again", BUCKETS, "told", |bucket| {
            bucket.is_some_and(|bucket| {
                at(bucket) != last && bucket["status"]["lastOperation"]["state"] == "Error"
            })
        });
        last = at(&again.unwrap());
    }
    site.annotate(BUCKETS, "told", "garden.berth.dev/empty-bucket=told");
    site.is_gone(BUCKETS, "told");
    let removed = "bucket told was removed, after 2 objects with 14 bytes in it";
    assert_eq!(site.event(BUCKETS, "told", "Removed"), removed);
    // They arrive in their order.
    assert_eq!(site.events(BUCKETS, "told", "Failed"), [told]);
}

#[test]
fn data_goes_only_when_its_removal_is_confirmed() {
    let site = Site::shared();
    site.make_bucket("confirmed");
    site.make_entry("sure", "confirmed");
    site.fill("confirmed", "sure/", 2);
    site.kubectl().run(&["delete", ENTRIES, "sure", "--wait=false"]).unwrap();
    let waiting = site.becomes(ENTRIES, "sure", "Pending");
    let said = waiting["status"]["lastOperation"]["description"].as_str().unwrap();
    assert!(said.contains("confirmation.gardener.cloud/deletion=true"), "{said}");
    assert_eq!(site.count("confirmed", "sure"), 2);
    site.annotate(ENTRIES, "sure", "confirmation.gardener.cloud/deletion=true");
    site.is_gone(ENTRIES, "sure");
    assert_eq!(site.count("confirmed", "sure"), 0);
}

#[test]
fn a_directory_that_is_somebody_elses_is_neither_given_away_nor_removed() {
    let site = Site::shared();
    site.make_bucket("owned");
    // People had it before berth knew the bucket; and a hub's entry, which this cluster knows
    // nothing of.
    site.fill("owned", "theirs/", 2);
    site.fill("owned", "marked/", 2);
    let store = site.store("owned", &site.s3.keys);
    let mark = r#"{"entry":"marked","namespace":"garden-dev","uid":"0123","seed":"tug"}"#;
    runtime().block_on(store.put(&Path::from("_berth/marked/owner.json"), mark.into())).unwrap();
    for (name, part) in [
        ("theirs", "annotate it with garden.berth.dev/own-directory=theirs"),
        ("marked", "the directory of BackupEntry garden-dev/marked of a hub (UID 0123, Seed tug)"),
    ] {
        site.apply(&site.entry(name, "owned"));
        let refused = site.becomes(ENTRIES, name, "Error");
        let error = &refused["status"]["lastError"];
        assert_eq!(error["codes"], json!(["ERR_CONFIGURATION_PROBLEM"]));
        assert!(error["description"].as_str().unwrap().contains(part), "{error}");
        assert!(site.event(ENTRIES, name, "Failed").contains(part));
        site.delete(ENTRIES, name);
        site.is_gone(ENTRIES, name);
        assert!(site.event(ENTRIES, name, "DataLeft").contains("was left alone"));
        assert_eq!(site.count("owned", name), 2, "{name}");
    }
    assert_eq!(site.count("owned", "_berth"), 1, "the mark of the one, and none of the other");

    // Its annotation says that the directory is its own.
    let mut entry = site.entry("theirs", "owned");
    entry["metadata"]["annotations"]["garden.berth.dev/own-directory"] = json!("theirs");
    site.apply(&entry);
    site.becomes(ENTRIES, "theirs", "Succeeded");
    assert_eq!(site.count("owned", "_berth/theirs"), 1);
    site.delete(ENTRIES, "theirs");
    site.is_gone(ENTRIES, "theirs");
    assert_eq!(site.count("owned", "theirs"), 0);
    assert_eq!(site.count("owned", "marked"), 2);
}

/// This agent has no hub that it could ask.
#[test]
fn what_was_made_for_a_hub_is_not_removed_without_its_word() {
    let site = Site::shared();
    site.make_bucket("carried");
    site.make_entry("old", "carried");
    site.fill("carried", "old/", 2);
    for label in ["garden.berth.dev/seed=ship", "garden.berth.dev/hub-uid=0123"] {
        site.kubectl().run(&["label", ENTRIES, "old", label]).unwrap();
    }
    site.delete(ENTRIES, "old");
    let waiting = site.becomes(ENTRIES, "old", "Pending");
    let said = waiting["status"]["lastOperation"]["description"].as_str().unwrap();
    assert!(said.contains("as Seed ship") && said.contains("--hub-kubeconfig"), "{said}");
    assert_eq!(site.count("carried", "old"), 2);
    // It can be given up all the same.
    site.annotate(ENTRIES, "old", "gardener.cloud/operation=migrate");
    site.is_gone(ENTRIES, "old");
    assert_eq!(site.count("carried", "old"), 2);
}

#[test]
fn what_another_cluster_takes_over_is_let_go_and_taken_up_untouched() {
    let site = Site::shared();
    site.make_bucket("moving");
    site.make_entry("mover", "moving");
    site.fill("moving", "mover/", 4);
    site.annotate(ENTRIES, "mover", "gardener.cloud/operation=migrate");
    let is_let_go = |entry: Option<&Value>| {
        entry.is_some_and(|e| e["status"]["lastOperation"]["type"] == "Migrate" && finalizers(e).is_empty())
    };
    let left = site.waits("to be let go", ENTRIES, "mover", is_let_go).unwrap();
    assert!(is_healthy(&left), "{left:#}");
    site.delete(ENTRIES, "mover");
    site.is_gone(ENTRIES, "mover");
    assert_eq!(site.count("moving", "mover"), 4);

    // The other one: nothing before its state is there.
    let mut entry = site.entry("mover", "moving");
    entry["metadata"]["annotations"] = asked("wait-for-state");
    site.apply(&entry);
    site.make_entry("witness", "moving");
    assert!(site.get(ENTRIES, "mover").unwrap()["status"].is_null(), "the one after it was taken up");
    site.annotate(ENTRIES, "mover", "gardener.cloud/operation=restore");
    let restored =
        site.waits("to be healthy", ENTRIES, "mover", |entry| entry.is_some_and(is_healthy)).unwrap();
    assert_eq!(restored["status"]["lastOperation"]["type"], "Restore");
    assert_eq!(finalizers(&restored), [ENTRY_FINALIZER]);

    // The source of a copy names the data of the original.
    site.make_entry("source-mover", "moving");
    site.delete(ENTRIES, "source-mover");
    site.is_gone(ENTRIES, "source-mover");
    assert_eq!(site.count("moving", "mover"), 0);
}

#[test]
fn somebody_elses_bucket_is_left_alone() {
    let site = Site::shared();
    // The server's own account may do anything, so here the others' keys are ours.
    let other = site.administer("taken", &site.s3.keys, &json!({}));
    runtime().block_on(other.create()).unwrap();
    site.keep_secret("strangers-keys", &site.s3.stranger);
    let mut bucket = site.bucket("taken");
    bucket["spec"]["secretRef"]["name"] = json!("strangers-keys");
    site.apply(&bucket);
    let failed = site.becomes(BUCKETS, "taken", "Failed");
    let error = &failed["status"]["lastError"];
    assert_eq!(error["codes"], json!(["ERR_CONFIGURATION_PROBLEM"]));
    assert!(error["description"].as_str().unwrap().contains("belongs to somebody else"), "{error}");
    site.annotate(BUCKETS, "taken", "garden.berth.dev/empty-bucket=taken");
    site.delete(BUCKETS, "taken");
    site.is_gone(BUCKETS, "taken");
    assert!(runtime().block_on(other.exists()).unwrap(), "it is still theirs");
    runtime().block_on(other.delete()).unwrap();
    assert_eq!(runtime().block_on(other.create()), Ok(Created::New));
    assert_eq!(runtime().block_on(other.create()), Ok(Created::Already));
    runtime().block_on(other.delete()).unwrap();
}

#[test]
fn missing_keys_never_mean_that_the_data_is_gone() {
    let site = Site::shared();
    site.make_bucket("lost-keys");
    site.keep_secret("mislaid", &site.s3.keys);
    let mut entry = site.entry("keyless", "lost-keys");
    entry["spec"]["secretRef"]["name"] = json!("mislaid");
    site.apply(&entry);
    site.becomes(ENTRIES, "keyless", "Succeeded");
    site.fill("lost-keys", "keyless/", 3);
    assert_eq!(finalizers(&site.secret("mislaid")), [ENTRY_FINALIZER]);
    // An administrator removes them by force.
    let patch = json!({"metadata": {"finalizers": null}}).to_string();
    site.kubectl()
        .run(&["patch", "secret", "mislaid", "-n", "garden", "--type=merge", "-p", &patch])
        .unwrap();
    site.kubectl().run(&["delete", "secret", "mislaid", "-n", "garden"]).unwrap();
    site.delete(ENTRIES, "keyless");
    let stuck = site.becomes(ENTRIES, "keyless", "Error");
    let error = &stuck["status"]["lastError"];
    assert_eq!(error["codes"], json!(["ERR_CONFIGURATION_PROBLEM"]));
    let said = error["description"].as_str().unwrap();
    assert!(said.contains("garden/mislaid") && said.contains("garden.berth.dev/forget-data"), "{said}");
    assert_eq!(site.count("lost-keys", "keyless"), 3);

    site.annotate(ENTRIES, "keyless", "garden.berth.dev/forget-data=the store is being given up");
    site.is_gone(ENTRIES, "keyless");
    assert_eq!(site.count("lost-keys", "keyless"), 3, "it stays");
    let uid = stuck["metadata"]["uid"].as_str().unwrap();
    let name = format!("tombstone-keyless-{uid}");
    let text = site.kubectl().run(&["get", "configmap", &name, "-n", "garden", "-o", "json"]).unwrap();
    let tombstone: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(tombstone["data"]["prefix"], "keyless/");
    assert_eq!(tombstone["data"]["reason"], "the store is being given up");
    assert_eq!(tombstone["metadata"]["labels"]["garden.berth.dev/tombstone"], "true");
}

#[test]
fn wrong_keys_are_told_and_right_ones_are_used_at_once() {
    let site = Site::shared();
    let wrong = |id: &str, secret: &str| Keys { id: id.to_owned(), secret: secret.to_owned() };
    site.keep_secret("rotated", &wrong(&site.s3.keys.id, "not-the-word-of-this-store"));
    let mut bucket = site.bucket("rotating");
    bucket["spec"]["secretRef"]["name"] = json!("rotated");
    site.apply(&bucket);
    let code = |code: &'static str| {
        move |bucket: Option<&Value>| {
            bucket.is_some_and(|b| b["status"]["lastError"]["codes"] == json!([code]))
        }
    };
    let failed = site.waits("to say so", BUCKETS, "rotating", code("ERR_INFRA_UNAUTHENTICATED")).unwrap();
    assert_eq!(failed["status"]["lastOperation"]["state"], "Error");
    assert!(!failed.to_string().contains("not-the-word"), "{failed:#}");
    site.keep_secret("rotated", &wrong("nobody", "nothing"));
    site.waits("to say so", BUCKETS, "rotating", code("ERR_INFRA_UNAUTHENTICATED"));
    // A Secret that lacks them.
    let lacking = json!({"data": {"accessKeyID": null}}).to_string();
    site.kubectl()
        .run(&["patch", "secret", "rotated", "-n", "garden", "--type=merge", "-p", &lacking])
        .unwrap();
    let failed = site.waits("to say so", BUCKETS, "rotating", code("ERR_CONFIGURATION_PROBLEM")).unwrap();
    let said = failed["status"]["lastError"]["description"].as_str().unwrap();
    assert_eq!(said, "Secret garden/rotated lacks accessKeyID");
    site.keep_secret("rotated", &site.s3.keys);
    let well =
        site.waits("to be healthy", BUCKETS, "rotating", |bucket| bucket.is_some_and(is_healthy)).unwrap();
    assert_eq!(well["status"]["lastOperation"]["type"], "Create", "what was begun was ended");
    // A Secret that is none of ours to read.
    let mut bucket = site.bucket("far");
    bucket["spec"]["secretRef"]["namespace"] = json!("elsewhere");
    site.apply(&bucket);
    let failed = site.becomes(BUCKETS, "far", "Error");
    assert!(
        failed["status"]["lastError"]["description"].as_str().unwrap().contains("elsewhere/keys"),
        "{failed:#}"
    );
}

#[test]
fn a_secret_is_kept_as_long_as_somebody_needs_it() {
    let site = Site::shared();
    site.make_bucket("sharing");
    site.keep_secret("common", &site.s3.keys);
    for name in ["one", "two", "three"] {
        let mut entry = site.entry(name, "sharing");
        entry["spec"]["secretRef"]["name"] = json!("common");
        site.apply(&entry);
        site.becomes(ENTRIES, name, "Succeeded");
    }
    site.delete(ENTRIES, "one");
    site.is_gone(ENTRIES, "one");
    assert_eq!(finalizers(&site.secret("common")), [ENTRY_FINALIZER], "two need it");
    // Both at once: one of them is the last.
    for name in ["two", "three"] {
        site.annotate(ENTRIES, name, "confirmation.gardener.cloud/deletion=true");
    }
    site.kubectl().run(&["delete", ENTRIES, "two", "three", "--wait=false"]).unwrap();
    site.is_gone(ENTRIES, "two");
    site.is_gone(ENTRIES, "three");
    assert!(finalizers(&site.secret("common")).is_empty());
}

#[test]
fn versions_and_markers_go_and_what_is_locked_waits_with_a_date() {
    let site = Site::shared();
    let lock = json!({"objectLock": {"mode": "governance", "retentionDays": 2}});
    let mut bucket = site.bucket("locked");
    bucket["spec"]["providerConfig"]["objectLock"] = lock["objectLock"].clone();
    site.apply(&bucket);
    site.becomes(BUCKETS, "locked", "Succeeded");
    site.make_entry("vault", "locked");
    let store = site.store("locked", &site.s3.keys);
    let path = Path::from("vault/object");
    runtime().block_on(async {
        store.put(&path, "first".into()).await.unwrap();
        store.put(&path, "second".into()).await.unwrap();
        store.delete(&path).await.unwrap();
    });
    let admin = site.administer("locked", &site.s3.keys, &lock);
    let versions: Vec<Version> = runtime().block_on(admin.page("vault/", None, 10)).unwrap().versions;
    assert_eq!(versions.len(), 3, "two versions and a marker: {versions:?}");

    site.delete(ENTRIES, "vault");
    let waiting = site.becomes(ENTRIES, "vault", "Pending");
    assert!(waiting["status"]["lastError"].is_null(), "time is no fault: {waiting:#}");
    let until = waiting["status"]["providerStatus"]["retainedUntil"].as_str().unwrap();
    let until: jiff::Timestamp = until.parse().unwrap();
    let in_two_days = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(48);
    assert!(until.duration_since(in_two_days).abs() < jiff::SignedDuration::from_hours(1), "{until}");
    let said = waiting["status"]["lastOperation"]["description"].as_str().unwrap();
    assert!(said.contains("2 locked objects"), "{said}");
    let left = runtime().block_on(admin.page("vault/", None, 10)).unwrap().versions;
    assert_eq!(
        left.iter().map(|version| version.bytes).sum::<u64>(),
        11,
        "both versions, no marker: {left:?}"
    );

    // Its admin shortens it, to some seconds: then it goes by itself. The mark of its owner has a
    // lock, too.
    let noted = runtime().block_on(admin.page("_berth/vault/", None, 10)).unwrap().versions;
    assert_eq!(noted.len(), 1, "{noted:?}");
    let mut soon = until;
    for version in left.iter().chain(&noted) {
        // A time that is over when it is asked for is refused.
        soon = wait_for("the lock to be shortened", PATIENCE, || {
            // A store keeps whole seconds.
            let soon = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second() + 10)?;
            let retained = runtime().block_on(retain(site, "locked", version, soon));
            match retained {
                Ok(()) => Ok(Some(soon)),
                Err(_) if jiff::Timestamp::now() >= soon => Ok(None),
                Err(error) => Err(error),
            }
        })
        .unwrap();
    }
    site.annotate(ENTRIES, "vault", "gardener.cloud/operation=reconcile");
    let is_sooner = |entry: Option<&Value>| {
        let until = entry.and_then(|entry| entry["status"]["providerStatus"]["retainedUntil"].as_str());
        let is_today = |until: &str| {
            in_two_days.duration_since(until.parse().unwrap()) > jiff::SignedDuration::from_hours(24)
        };
        entry.is_none() || until.is_some_and(is_today)
    };
    site.waits("to wait for seconds only", ENTRIES, "vault", is_sooner);
    site.is_gone(ENTRIES, "vault");
    assert!(jiff::Timestamp::now() >= soon, "not a moment earlier");
    assert!(runtime().block_on(admin.page("", None, 10)).unwrap().versions.is_empty());
    site.delete(BUCKETS, "locked");
    site.is_gone(BUCKETS, "locked");
}

#[test]
fn a_bucket_that_is_gone_is_gone() {
    let site = Site::shared();
    site.make_bucket("vanishing");
    site.make_entry("orphan", "vanishing");
    let admin = site.administer("vanishing", &site.s3.keys, &json!({}));
    runtime().block_on(async {
        // The mark of the directory's owner.
        let found = admin.page("", None, 10).await.unwrap().versions;
        assert_eq!(
            found.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(),
            ["_berth/orphan/owner.json"]
        );
        admin.remove(found).await.unwrap();
        admin.delete().await.unwrap();
    });
    site.delete(ENTRIES, "orphan");
    site.is_gone(ENTRIES, "orphan");
    // Perhaps only its address is wrong: an empty bucket is created if a person asks for it, and
    // the status says so.
    site.annotate(BUCKETS, "vanishing", "gardener.cloud/operation=reconcile");
    let refused = site.becomes(BUCKETS, "vanishing", "Error");
    let said = refused["status"]["lastError"]["description"].as_str().unwrap();
    assert!(said.contains("annotate garden.berth.dev/make-anew=vanishing"), "{said}");
    // In one write, because a retry in between would also create the bucket, and the next
    // reconciliation would not report it.
    let annotations = ["garden.berth.dev/make-anew=vanishing", "gardener.cloud/operation=reconcile"];
    site.kubectl()
        .run(&[&["annotate", "--overwrite", BUCKETS, "vanishing"][..], &annotations].concat())
        .unwrap();
    let is_told = |bucket: Option<&Value>| {
        let said = bucket.and_then(|b| b["status"]["lastOperation"]["description"].as_str());
        said.is_some_and(|said| said.contains("made anew"))
    };
    site.waits("to say that it was gone", BUCKETS, "vanishing", is_told);
    runtime().block_on(admin.delete()).unwrap();
    site.delete(BUCKETS, "vanishing");
    site.is_gone(BUCKETS, "vanishing");
}

#[test]
fn a_bucket_that_is_ill_does_not_keep_an_entry() {
    let site = Site::shared();
    site.make_bucket("ill");
    site.make_entry("patient", "ill");
    site.fill("ill", "patient/", 2);
    site.kubectl()
        .run(&["patch", BUCKETS, "ill", "--type=merge", "-p", r#"{"spec": {"secretRef": {"name": "none"}}}"#])
        .unwrap();
    site.becomes(BUCKETS, "ill", "Error");
    site.delete(ENTRIES, "patient");
    site.is_gone(ENTRIES, "patient");
    assert_eq!(site.count("ill", "patient"), 0);
}

#[test]
fn folders_are_buckets_too_and_other_providers_are_not_touched() {
    let site = Site::shared();
    let root = site.plane.folder().join("folders");
    std::fs::create_dir_all(&root).unwrap();
    let in_folder = |mut object: Value| {
        object["spec"]["type"] = json!("berth.dev/filesystem");
        object["spec"]["providerConfig"] =
            json!({"apiVersion": "garden.berth.dev/v1alpha1", "kind": "StoreConfig", "path": root});
        object
    };
    let mut foreign = site.bucket("foreign");
    foreign["spec"]["type"] = json!("local");
    site.apply(&foreign);
    site.apply(&in_folder(site.bucket("shelf")));
    site.becomes(BUCKETS, "shelf", "Succeeded");
    let mut entry = in_folder(site.entry("book", "shelf"));
    // What an entry does not say its bucket does.
    entry["spec"].as_object_mut().unwrap().remove("providerConfig");
    site.apply(&entry);
    site.becomes(ENTRIES, "book", "Succeeded");
    for i in 0..2_500 {
        let page = root.join(format!("shelf/book/chapter-{}/page-{i}", i % 40));
        std::fs::create_dir_all(page.parent().unwrap()).unwrap();
        std::fs::write(page, "x").unwrap();
    }
    std::fs::create_dir_all(root.join("shelf/booklet")).unwrap();
    site.delete(ENTRIES, "book");
    site.is_gone(ENTRIES, "book");
    assert!(!root.join("shelf/book").exists() && root.join("shelf/booklet").exists());
    std::fs::write(root.join("shelf/booklet/note"), "x").unwrap();
    site.delete(BUCKETS, "shelf");
    site.becomes(BUCKETS, "shelf", "Error");
    std::fs::remove_file(root.join("shelf/booklet/note")).unwrap();
    site.is_gone(BUCKETS, "shelf");
    assert!(!root.join("shelf").exists());
    let foreign = site.get(BUCKETS, "foreign").unwrap();
    assert!(foreign["status"].is_null() && finalizers(&foreign).is_empty(), "{foreign:#}");
}

#[test]
fn a_killed_agents_removal_is_ended_by_another_and_counted_right() {
    let site = Site::start().unwrap();
    let _report = site.plane.report_on_panic();
    let mut agents = ["one", "two"].map(|name| site.start_agent(name, &[SHORTEST_LEASE]).unwrap());
    site.make_bucket("crashing");
    // An object that is gone before the watch shows it says nothing.
    let mut crashes = (0..5).map(|round| crash(&site, &mut agents, &format!("survivor-{round}")));
    assert!(crashes.any(|crashes| crashes > 0), "none was caught in the midst of it");
}

/// How often the agents were killed while they removed an entry.
fn crash(site: &Site, agents: &mut [Process; 2], name: &str) -> usize {
    const COUNT: usize = 6_000;
    site.make_entry(name, "crashing");
    site.fill("crashing", &format!("{name}/"), COUNT);
    let patch = json!({"metadata": {"finalizers": [ENTRY_FINALIZER, "example.com/reader"]}}).to_string();
    site.kubectl().run(&["patch", ENTRIES, name, "--type=merge", "-p", &patch]).unwrap();
    site.delete(ENTRIES, name);
    let folder = site.s3.file(&format!("../crashing/{name}"));
    let files = || {
        let parts = std::fs::read_dir(folder.join("etcd-main")).into_iter().flatten().flatten();
        parts.map(|part| std::fs::read_dir(part.path()).into_iter().flatten().count()).sum::<usize>()
    };
    let mut crashes = 0;
    let mut last = COUNT;
    while crashes < 3 {
        let left = wait_for("some more to be removed", PATIENCE, || {
            let left = files();
            Ok((left < last).then_some(left))
        })
        .unwrap();
        if left == 0 {
            break;
        }
        last = left;
        agents[crashes % 2].restart().unwrap();
        agents[(crashes + 1) % 2].restart().unwrap();
        crashes += 1;
    }
    let is_let_go = |entry: Option<&Value>| entry.is_some_and(|e| finalizers(e) == ["example.com/reader"]);
    let entry = site.waits("to be let go", ENTRIES, name, is_let_go).unwrap();
    assert_eq!(entry["status"]["providerStatus"]["objects"], COUNT, "after {crashes} crashes: {entry:#}");
    assert_eq!(entry["status"]["providerStatus"]["bytes"], 7 * COUNT);
    assert_eq!(site.count("crashing", name), 0);
    crashes
}
