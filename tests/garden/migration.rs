//! From a bucket of a cluster's own into its directory of a shared one, with a real S3-protocol
//! server.

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Stdio;
use std::sync::Arc;

use berth_api::velero::BackupPhase;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{DynObjectStore, ObjectStoreExt, PutPayload};
use serde_json::{Value, json};

use crate::admission::program;
use crate::queue::{ended, start};
use crate::support::PATIENCE;
use crate::support::peers::S3;
use crate::support::process::in_own_session;
use crate::support::{Berth, backup, wait_for};

const ENTRY: &str = "ship--1";
/// As fast as time passes for runs that wait until another one's mark is dead: seven seconds and a
/// half, then.
const QUICK: &str = "2";
/// Requests to the store at the same time.
const AT_ONCE: usize = 16;

/// A berth with a location of its own bucket, `old`, and one of an entry in a shared bucket, as the
/// courier makes it. Both in one S3 server.
struct Site {
    berth: Berth,
    s3: S3,
    /// Of runs.
    pace: &'static str,
}

impl Site {
    fn start(namespace: &str) -> Self {
        let berth = start(namespace, 2);
        let s3 = S3::start(berth.plane(), namespace).unwrap();
        let site = Self { berth, s3, pace: "1" };
        site.apply(&site.s3.keys.secret_object(namespace));
        site.apply(&site.s3.location("old", ""));
        site
    }

    /// The directory of the entry, in a folder of the same server that stands for the shared
    /// bucket.
    fn share(&self) {
        std::fs::create_dir_all(self.s3.sibling("shared")).unwrap();
        let mut location = self.s3.location(ENTRY, &format!("{ENTRY}/velero"));
        location["spec"]["objectStorage"]["bucket"] = json!("shared");
        location["metadata"]["labels"] = json!({"garden.berth.dev/backup-entry": ENTRY});
        self.apply(&location);
    }

    /// What an admin does who wants backups at the old place again.
    fn lead_back(&self) {
        let mut location = self.s3.location("old", "");
        location["spec"]["accessMode"] = json!("ReadWrite");
        let change = json!({"metadata": {"labels": {"garden.berth.dev/backup-entry": null}}, "spec": location["spec"]});
        let args = ["patch", "backupstoragelocations", "old", "-n", self.berth.namespace(), "--type=merge"];
        let change = change.to_string();
        let args = [&args[..], &["-p", &change]].concat();
        self.berth.kubectl().run(&args).unwrap();
    }

    /// The entry goes, with its directory; not what is noted of it. And another one comes, of the
    /// same name.
    fn replace_entry(&self) {
        let args = ["delete", "backupstoragelocations", ENTRY, "-n", self.berth.namespace()];
        self.berth.kubectl().run(&args).unwrap();
        std::fs::remove_dir_all(self.s3.sibling("shared").join(ENTRY)).unwrap();
        self.share();
        self.available(ENTRY);
    }

    fn apply(&self, object: &Value) {
        let args = ["apply", "--server-side", "-n", self.berth.namespace(), "-f", "-"];
        self.berth.kubectl().run_with(&args, &object.to_string()).unwrap();
    }

    fn available(&self, location: &str) -> Value {
        let mut seen = Value::Null;
        let waited = wait_for(&format!("location {location}"), PATIENCE, || {
            seen = self.location(location);
            Ok((seen["status"]["phase"] == "Available").then_some(()))
        });
        waited.unwrap_or_else(|error| panic!("{error}; it is {seen:#}"));
        seen
    }

    fn location(&self, name: &str) -> Value {
        let args = ["get", "backupstoragelocations", name, "-n", self.berth.namespace(), "-o", "json"];
        serde_json::from_str(&self.berth.kubectl().run(&args).unwrap()).unwrap()
    }

    fn command(&self, more: &[&str]) -> std::process::Command {
        let mut command = in_own_session(&program());
        command.args(["garden", "migrate", "--from=old", &format!("--to-entry={ENTRY}"), "--timeout=600s"]);
        command.arg("--namespace").arg(self.berth.namespace());
        command.arg("--kubeconfig").arg(self.berth.plane().kubeconfig());
        command.args(more).env("BERTH_PACE", self.pace).stdin(Stdio::null());
        command
    }

    fn migrate(&self, more: &[&str]) -> (bool, String, String) {
        let mut lost = 0;
        loop {
            let output = self.command(more).output().unwrap();
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            let (ok, stdout, stderr) = (output.status.success(), text(output.stdout), text(output.stderr));
            // At the quick pace a run gives up after five seconds without an answer, which a busy
            // machine may take. It is to be run again, as it says.
            if self.pace == QUICK && lost < 5 && !ok && stderr.contains("run it again when no other does") {
                eprintln!("{stderr}");
                lost += 1;
                continue;
            }
            return (ok, stdout, stderr);
        }
    }

    fn back_up(&self, name: &str) {
        let spec = json!({"includedNamespaces": ["default"], "storageLocation": "old"});
        let answer = self.berth.kubectl().create(self.berth.namespace(), &[backup(name, spec)]).unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
        let done = ended(&self.berth, &[name]).remove(name).unwrap();
        assert_eq!(done.phase(), BackupPhase::Completed, "{:?}", done.status);
    }

    fn shared(&self) -> Arc<DynObjectStore> {
        self.s3.store_of("shared").unwrap()
    }
}

/// Keys and contents below a prefix.
async fn contents(store: &Arc<DynObjectStore>, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    let at = Path::from(prefix);
    let found: Vec<_> =
        store.list((!prefix.is_empty()).then_some(&at)).map_ok(|o| o.location).try_collect().await.unwrap();
    let reads = found.into_iter().map(|path| async move {
        let bytes = store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        let key = path.as_ref().strip_prefix(prefix).unwrap_or_default().trim_start_matches('/').to_owned();
        (key, bytes)
    });
    stream::iter(reads).buffer_unordered(AT_ONCE).collect().await
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Objects as a file-level repository has them: many and small.
async fn fill(store: &Arc<DynObjectStore>, count: usize) {
    fill_more(store, 0..count).await;
}

async fn fill_more(store: &Arc<DynObjectStore>, which: Range<usize>) {
    let writes = which.map(|i| async move {
        let path = Path::from(format!("kopia/default/p{i:05}"));
        store.put(&path, PutPayload::from(format!("contents of {i}"))).await.map(|_| ())
    });
    stream::iter(writes).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await.unwrap();
}

#[test]
fn backups_move_and_their_location_keeps_its_name() {
    let site = Site::start("migrate-whole");
    site.available("old");
    site.back_up("before");
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    runtime.block_on(fill(&own, 20));
    // More than one part.
    let large = Path::from("kopia/default/large");
    runtime.block_on(own.put(&large, PutPayload::from(vec![7_u8; 20_000_000]))).unwrap();
    let before = runtime.block_on(contents(&own, ""));

    let (ok, _, stderr) = site.migrate(&[]);
    assert!(!ok && stderr.contains("make the entry in the hub first"), "{stderr}");
    site.share();
    site.available(ENTRY);
    let label = |value: &str| {
        let args = ["label", "backupstoragelocations", "old", "-n", site.berth.namespace(), value];
        site.berth.kubectl().run(&args).unwrap();
    };
    label("garden.berth.dev/seed=ship");
    for how in ["--retire", "--dry-run"] {
        let (ok, _, stderr) = site.migrate(&[how]);
        assert!(!ok && stderr.contains("location old is kept for the hub"), "{stderr}");
    }
    label("garden.berth.dev/seed-");
    let (ok, stdout, stderr) = site.migrate(&["--dry-run"]);
    assert!(ok, "{stderr}");
    assert!(stdout.contains(&format!("to copy         {}\n", before.len())), "{stdout}");
    let shared = site.shared();
    assert_eq!(runtime.block_on(contents(&shared, "")), BTreeMap::new(), "nothing is written");

    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok, "{stdout}{stderr}");
    assert!(stdout.contains("its old place is as it was"), "{stdout}");
    let prefix = format!("{ENTRY}/velero");
    assert!(runtime.block_on(contents(&shared, &prefix)) == before, "every byte, and no more");
    assert!(runtime.block_on(contents(&own, "")) == before, "the source is as it was");
    let led = site.available("old");
    assert_eq!(led["spec"]["objectStorage"], json!({"bucket": "shared", "prefix": prefix}));
    assert_eq!(led["spec"]["accessMode"], "ReadWrite");
    assert!(led["metadata"]["annotations"]["berth.dev/hold"].is_null(), "{led:#}");
    // What is on record is not in Velero's way.
    let record = runtime.block_on(contents(&shared, &format!("_berth/{ENTRY}/migration")));
    let head: Value = serde_json::from_slice(&record["migration.json"]).unwrap();
    assert_eq!((&head["phase"], &head["location"]), (&json!("CutOver"), &json!("old")));
    let items: Value = serde_json::from_slice(&record["items-00000.json"]).unwrap();
    assert!(items.as_object().unwrap().values().all(|item| item["status"] == "Copied"), "{items:#}");

    // Backups go to the new place, and a second run does nothing.
    site.back_up("after");
    assert!(runtime.block_on(contents(&shared, &format!("{prefix}/backups/after"))).len() > 1);
    let (ok, _, stderr) = site.migrate(&[]);
    assert!(ok, "{stderr}");
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(ok, "{stderr}");
    assert!(stdout.contains("its old place is empty"), "{stdout}");
    assert_eq!(runtime.block_on(contents(&own, "")), BTreeMap::new());
    assert!(runtime.block_on(contents(&shared, &format!("{prefix}/backups/before"))).len() > 1);
}

#[test]
fn it_goes_on_where_it_was_killed() {
    let site = Site { pace: QUICK, ..Site::start("migrate-killed") };
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    let mut filled = 600;
    runtime.block_on(fill(&own, filled));
    let mut before = runtime.block_on(contents(&own, ""));
    let shared = site.shared();
    let prefix = format!("{ENTRY}/velero");
    let copied = || {
        let listing = shared.list(Some(&Path::from(prefix.as_str())));
        runtime.block_on(listing.try_collect::<Vec<_>>()).map(|all| all.len())
    };
    // Killed three times, each time a little further.
    let (mut kills, further) = (0, [50, 150, 200]);
    for _ in 0..20 {
        let Some(further) = further.get(kills) else { break };
        let goal = copied().unwrap() + further;
        let mut child = site.command(&["--at-once=2"]).stdout(Stdio::null()).spawn().unwrap();
        wait_for("some objects to be copied", PATIENCE, || {
            let is_over = child.try_wait()?.is_some();
            Ok((is_over || copied()? >= goal).then_some(()))
        })
        .unwrap();
        child.kill().unwrap();
        let status = child.wait().unwrap();
        // By a signal there is no code.
        assert!(matches!(status.code(), None | Some(0)), "{status}");
        if status.code().is_none() && copied().unwrap() < filled {
            kills += 1;
            continue;
        }
        // It was at its end before anybody looked: there is more to do.
        site.lead_back();
        runtime.block_on(fill_more(&own, filled..filled + 600));
        filled += 600;
        before = runtime.block_on(contents(&own, ""));
    }
    assert_eq!(kills, 3, "in the middle");
    // Meanwhile some go, and some come.
    let gone = format!("kopia/default/p{:05}", filled - 1);
    runtime.block_on(own.delete(&Path::from(gone.as_str()))).unwrap();
    runtime.block_on(own.put(&Path::from("kopia/default/new"), PutPayload::from("new"))).unwrap();
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok, "{stdout}{stderr}");
    let mut wanted = before;
    wanted.remove(&gone);
    wanted.insert("kopia/default/new".to_owned(), b"new".to_vec());
    assert!(runtime.block_on(contents(&shared, &prefix)) == wanted);
}

#[test]
fn what_is_there_already_is_not_overwritten() {
    let site = Site::start("migrate-taken");
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    runtime.block_on(fill(&own, 3));
    let shared = site.shared();
    let there = Path::from(format!("{ENTRY}/velero/kopia/default/p00001"));
    runtime.block_on(shared.put(&there, PutPayload::from("somebody else's"))).unwrap();
    let (ok, _, stderr) = site.migrate(&[]);
    assert!(!ok);
    assert!(stderr.contains("kopia/default/p00001: something else is there already: SHA-256"), "{stderr}");
    let kept = runtime.block_on(async { shared.get(&there).await.unwrap().bytes().await.unwrap() });
    assert_eq!(&kept[..], b"somebody else's");
    let location = site.location("old");
    assert_ne!(location["spec"]["accessMode"], "ReadOnly", "backups go on");
    // A person decides: away with it.
    runtime.block_on(shared.delete(&there)).unwrap();
    let (ok, _, stderr) = site.migrate(&[]);
    assert!(ok, "{stderr}");
}

/// To a process of this machine.
fn signal(child: &std::process::Child, name: &str) {
    let sent = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success(), "{name}");
}

#[test]
fn a_run_that_slept_while_another_ended_removes_nothing() {
    const MANY: usize = 1500;
    let site = Site { pace: QUICK, ..Site::start("migrate-slept") };
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    let shared = site.shared();
    let prefix = format!("{ENTRY}/velero");
    let mut filled = 0;
    let asleep = wait_for("a run to sleep in the midst of it", PATIENCE, || {
        // So many that it is still at it when another one has looked twice.
        runtime.block_on(fill_more(&own, filled..filled + MANY));
        let goal = filled + 50;
        filled += MANY;
        let mut sleeper =
            site.command(&["--at-once=1"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        wait_for("some objects to be copied", PATIENCE, || {
            let is_over = sleeper.try_wait()?.is_some();
            let listing = shared.list(Some(&Path::from(prefix.as_str())));
            let copied = runtime.block_on(listing.try_collect::<Vec<_>>())?.len();
            Ok((is_over || copied >= goal).then_some(()))
        })?;
        // Once awake, the migration is its own again.
        let (ok, _, stderr) = site.migrate(&[]);
        if sleeper.try_wait()?.is_none() {
            signal(&sleeper, "-STOP");
        }
        if sleeper.try_wait()?.is_none() {
            assert!(!ok && stderr.contains("is migrating from location old already"), "{stderr}");
            return Ok(Some(sleeper));
        }
        // It was at its end before anybody looked: there is more to do.
        site.lead_back();
        Ok(None)
    });
    let sleeper = asleep.unwrap();
    let before = runtime.block_on(contents(&own, ""));
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(ok, "{stdout}{stderr}");
    assert!(runtime.block_on(contents(&own, "")).is_empty());
    signal(&sleeper, "-CONT");
    let output = sleeper.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("no longer held") || stderr.contains("somebody else is migrating"), "{stderr}");
    assert!(runtime.block_on(contents(&shared, &prefix)) == before, "all of it is where it was moved to");
    let location = site.location("old");
    assert!(location["metadata"]["annotations"]["garden.berth.dev/migrated-by"].is_null(), "{location:#}");
}

#[test]
fn nothing_is_removed_on_the_word_of_an_earlier_entrys_record() {
    let site = Site::start("migrate-earlier");
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    runtime.block_on(fill(&own, 5));
    let before = runtime.block_on(contents(&own, ""));
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok, "{stdout}{stderr}");
    site.replace_entry();
    let shared = site.shared();
    let prefix = format!("{ENTRY}/velero");
    assert!(
        !runtime.block_on(contents(&shared, &format!("_berth/{ENTRY}"))).is_empty(),
        "the record is there"
    );
    // It leads to what is gone: the only copy is at the old place.
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(!ok && stderr.contains("is where the entry's is already"), "{stdout}{stderr}");
    assert!(stdout.contains("nothing is removed on its word"), "{stdout}");
    assert!(runtime.block_on(contents(&own, "")) == before);
    // Led back, all of it is copied again before anything goes.
    site.lead_back();
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(ok, "{stdout}{stderr}");
    assert!(stdout.contains("5 objects with"), "{stdout}");
    assert!(runtime.block_on(contents(&shared, &prefix)) == before);
    assert!(runtime.block_on(contents(&own, "")).is_empty());
    // That is over. A location that leads elsewhere again is moved again.
    site.lead_back();
    runtime.block_on(own.put(&Path::from("kopia/default/late"), PutPayload::from("late"))).unwrap();
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok && stdout.contains("of a migration that is over"), "{stdout}{stderr}");
    assert!(runtime.block_on(contents(&shared, &prefix)).contains_key("kopia/default/late"));
}

#[test]
fn what_is_not_at_the_new_place_stays_at_the_old_one() {
    let site = Site::start("migrate-retire");
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    runtime.block_on(fill(&own, 5));
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok, "{stdout}{stderr}");
    let gone = Path::from(format!("{ENTRY}/velero/kopia/default/p00003"));
    runtime.block_on(site.shared().delete(&gone)).unwrap();
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(!ok, "{stdout}");
    assert!(stderr.contains("1 objects that are not at the new place as they were copied"), "{stderr}");
    let left: Vec<String> = runtime.block_on(contents(&own, "")).into_keys().collect();
    assert_eq!(left, ["kopia/default/p00003"]);
}

#[test]
fn a_location_that_was_led_back_is_looked_at_again_and_an_empty_source_is_no_order() {
    let site = Site::start("migrate-back");
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (own, runtime) = (site.s3.store().unwrap(), runtime());
    runtime.block_on(fill(&own, 5));
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok, "{stdout}{stderr}");
    site.lead_back();
    let before = runtime.block_on(contents(&own, ""));
    let late = Path::from("kopia/default/late");
    runtime.block_on(own.put(&late, PutPayload::from("late"))).unwrap();
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(ok && stdout.contains("1 more objects since"), "{stdout}{stderr}");
    let shared = site.shared();
    let prefix = format!("{ENTRY}/velero");
    let moved = runtime.block_on(contents(&shared, &prefix));
    assert_eq!(moved.len(), before.len() + 1);

    site.lead_back();
    for key in runtime.block_on(contents(&own, "")).into_keys() {
        runtime.block_on(own.delete(&Path::from(key))).unwrap();
    }
    let (ok, stdout, stderr) = site.migrate(&[]);
    assert!(!ok && stderr.contains("nothing is left at the source"), "{stdout}{stderr}");
    assert_eq!(site.location("old")["spec"]["accessMode"], "ReadOnly", "nobody writes while it is looked at");
    assert!(runtime.block_on(contents(&shared, &prefix)) == moved);
}

/// Everybody's directories are below the root of a shared bucket.
#[test]
fn the_shared_bucket_itself_is_not_moved_into_a_directory_of_it() {
    let site = Site::start("migrate-inside");
    site.available("old");
    site.share();
    site.available(ENTRY);
    let (shared, runtime) = (site.shared(), runtime());
    let theirs = Path::from("ship--2/velero/backups/x/velero-backup.json");
    runtime.block_on(shared.put(&theirs, PutPayload::from("theirs"))).unwrap();
    let change = json!({"spec": {"objectStorage": {"bucket": "shared"}}}).to_string();
    let args = [
        "patch",
        "backupstoragelocations",
        "old",
        "-n",
        site.berth.namespace(),
        "--type=merge",
        "-p",
        &change,
    ];
    site.berth.kubectl().run(&args).unwrap();
    let (ok, stdout, stderr) = site.migrate(&["--retire"]);
    assert!(!ok && stderr.contains("location old is in the entry's bucket already"), "{stdout}{stderr}");
    assert!(runtime.block_on(contents(&shared, &format!("{ENTRY}/velero"))).is_empty());
    assert!(runtime.block_on(shared.head(&theirs)).is_ok());
}
