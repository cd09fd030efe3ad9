//! Runs that end before their backup does, and what the next leader makes of it. Objects are large
//! and parts small here, so that what one run has stored is more than nothing.

use std::collections::BTreeMap;

use berth_core::run::Runs;
use flate2::read::MultiGzDecoder;

use super::*;

mod checkpoints;
mod counted;
mod filters;
mod late;
mod older;
mod ordered;
mod parts;
mod turns;
mod unread;

/// Bytes of a part.
pub(super) const SMALL: usize = 64 * 1024;
pub(super) const CHECKPOINT: &str = "berth-checkpoint";
/// What lies in the folder of a backup that has ended well.
const WHOLE: [&str; 11] = [
    "berth-run.json",
    "one-index.json.gz",
    "one-itemoperations.json.gz",
    "one-logs.gz",
    "one-podvolumebackups.json.gz",
    "one-resource-list.json.gz",
    "one-results.gz",
    "one-volumeinfo.json.gz",
    "one-volumesnapshots.json.gz",
    "one.tar.gz",
    "velero-backup.json",
];

/// Makes a gzip member of its own, of many parts.
pub(super) fn large(name: &str) -> Value {
    let mut map = map(name);
    map["data"] = json!({"noise": noise(name)});
    map
}

/// What cannot be compressed.
pub(super) fn noise(name: &str) -> String {
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15_u64, |state, byte| state ^ u64::from(byte));
    let mut noise = String::with_capacity(600_000);
    while noise.len() < 600_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push_str(&format!("{state:016x}"));
    }
    noise
}

/// What a JSON merge patch makes of an object.
fn merge(into: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key], value);
        }
    }
}

/// A Backup that is written as it is sent.
#[derive(Clone)]
struct Standing(Arc<Mutex<Value>>);

impl Standing {
    fn serve(site: &Site) -> Self {
        let mut begun = backup("7", "ReadyToStart");
        begun["metadata"]["annotations"] = json!({});
        let standing = Self(Arc::new(Mutex::new(begun)));
        let (read, written) = (standing.clone(), standing.clone());
        site.api.always(get(ONE).answers_with(move |_| read.now()));
        site.api.always(patch(ONE).answers_with(move |sent| written.write(sent)));
        standing
    }

    fn write(&self, sent: &Value) -> Value {
        merge(&mut self.0.lock(), sent);
        self.now()
    }

    fn now(&self) -> Value {
        self.0.lock().clone()
    }

    /// How many runs are counted.
    fn runs(&self) -> u32 {
        self.counted().all
    }

    fn counted(&self) -> Runs {
        self.annotation(keys::RUNS).as_str().unwrap().parse().unwrap()
    }

    fn annotation(&self, key: &str) -> Value {
        self.now()["metadata"]["annotations"][key].clone()
    }

    /// Until so many objects are packed, by what the run says.
    async fn has_packed(&self, count: usize) {
        while self.now()["status"]["progress"]["itemsBackedUp"] != json!(count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Three pages, of which a test has the last one.
fn three_pages() -> (Site, Standing) {
    let site = Site::new();
    let standing = Standing::serve(&site);
    site.api.always(get(MAPS).answers(page("5", "second", &[large("a")])));
    site.api.always(get(MAPS).page("second").answers(page("5", "third", &[large("b")])));
    (site, standing)
}

fn third() -> berth_test_scripted::Ask {
    get(MAPS).page("third")
}

impl Site {
    fn engine_of_small_parts(&self) -> Engine {
        Engine { part_size: SMALL, ..engine(&self.api, &self.folder, self.setting) }
    }

    /// Its process is gone once `story` is over.
    async fn is_killed_after(&self, story: impl Future<Output = ()>) {
        let engine = self.engine_of_small_parts();
        tokio::select! {
            ended = engine.run("one", "u", Signals::default()) => panic!("it has ended: {ended:?}"),
            told = tokio::time::timeout(LONG, story) => assert!(told.is_ok(), "it has asked for {:?}", self.api.asked()),
        }
    }

    /// It is asked to go once `story` is over.
    async fn is_drained_after(&self, story: impl Future<Output = ()>) {
        let (engine, signals) = (self.engine_of_small_parts(), Signals::default());
        let story = async {
            story.await;
            signals.stop.cancel();
        };
        let both = async { tokio::join!(engine.run("one", "u", signals.clone()), story) };
        let Ok((ended, ())) = tokio::time::timeout(LONG, both).await else {
            panic!("it has asked for {:?}", self.api.asked());
        };
        assert_eq!(ended.unwrap().unwrap().phase(), BackupPhase::InProgress);
    }

    async fn has(&self, file: &str) {
        while !self.stored().contains(&file.to_owned()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// By the next leader. Gives what it told, and what it asked for.
    async fn recovers(&self, phase: BackupPhase) -> (String, Vec<String>) {
        let (mut told, asked) = (String::new(), self.api.asked().len());
        let engine = self.engine_of_small_parts();
        let recovered = engine.recover("one", "u", Signals::default(), |note| told.push_str(note));
        let recovered = tokio::time::timeout(LONG, recovered).await.unwrap().unwrap().unwrap();
        assert_eq!(recovered.phase(), phase, "{:?}", recovered.status);
        (told, self.api.asked().split_off(asked))
    }

    /// The items of the archive, which stand there once, and those of the resource list.
    pub(super) fn items(&self) -> (Vec<String>, Value) {
        let folder = self.folder.path().join("bucket/backups/one");
        let archive = std::fs::read(folder.join("one.tar.gz")).unwrap();
        let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
        let mut found = BTreeMap::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            assert!(found.insert(path.clone(), content).is_none(), "{path} stands there twice");
        }
        assert_eq!(found.remove("metadata/version").unwrap(), b"1.1.0\n");
        for (path, content) in &found {
            let object: Value = serde_json::from_slice(content).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            assert!(object == large(name) && path.ends_with(&format!("/{name}.json")), "{path}");
        }
        let list = std::fs::read(folder.join("one-resource-list.json.gz")).unwrap();
        let list = serde_json::from_reader(MultiGzDecoder::new(&list[..])).unwrap();
        (found.into_keys().filter(|path| !path.contains("preferredversion")).collect(), list)
    }

    fn holds(&self, names: &[&str]) {
        let (items, list) = self.items();
        let paths = names.iter().map(|name| format!("resources/configmaps/namespaces/app/{name}.json"));
        assert_eq!(items, paths.collect::<Vec<_>>());
        let listed: Vec<String> = names.iter().map(|name| format!("app/{name}")).collect();
        assert_eq!(list["v1/ConfigMap"], json!(listed));
        assert_eq!(self.stored(), WHOLE);
    }
}

/// Its run was killed when it had written a checkpoint.
async fn killed_with_a_checkpoint() -> (Site, Standing) {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    (site, standing)
}

fn first_page() -> String {
    format!("GET {MAPS}")
}

/// Was the list begun, be it as of whichever revision?
fn lists_anew(asked: &[String]) -> bool {
    let as_of = format!("{} resourceVersion=", first_page());
    asked.iter().any(|line| *line == first_page() || line.starts_with(&as_of))
}

#[tokio::test]
async fn a_run_whose_process_is_gone_is_gone_on_with_and_each_object_is_stored_once() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    assert_eq!(standing.now()["status"]["phase"], "InProgress");
    assert!(!site.stored().contains(&"one.tar.gz".to_owned()), "visible before it is whole");
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint, with"), "{told}");
    assert!(!lists_anew(&asked), "what is stored is not listed again: {asked:?}");
    site.holds(&["a", "b", "c"]);
    assert_eq!(standing.runs(), 2);
    assert_eq!(standing.now()["status"]["progress"], json!({"totalItems": 3, "itemsBackedUp": 3}));
}

/// Its objects went, others came, and the API server that is asked now knows nothing of where the
/// one before had come to.
#[tokio::test]
async fn what_is_stored_and_deleted_meanwhile_stays_and_what_comes_again_is_stored_once() {
    let never = Hold::new();
    let site = Site::new();
    let standing = Standing::serve(&site);
    site.api.once(get(MAPS).answers(page("5", "second", &[large("a"), large("b")])));
    site.api.once(get(MAPS).page("second").never_answers().held(&never));
    let story = async {
        never.asked().await;
        standing.has_packed(2).await;
    };
    site.is_drained_after(story).await;
    site.api.once(get(MAPS).page("second").refuses(400));
    site.api.once(get(MAPS).answers(page("9", "new", &[large("b"), large("c")])));
    site.api.once(get(MAPS).page("new").answers(list("9", &[large("d")])));
    site.recovers(BackupPhase::Completed).await;
    site.holds(&["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_run_that_is_handed_over_counts_for_nothing_and_is_gone_on_with() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        standing.has_packed(2).await;
    };
    site.is_drained_after(story).await;
    assert_eq!(standing.runs(), 0);
    // What was on its way is stored, and known.
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("with 2 objects stored already (run 1 of 3)"), "{told}");
    assert!(!asked.contains(&format!("{} continue=second", first_page())), "{asked:?}");
    site.holds(&["a", "b", "c"]);
    assert_eq!(standing.runs(), 1);
}

#[tokio::test]
async fn one_that_is_handed_over_before_anything_is_stored_begins_anew() {
    let never = Hold::new();
    let site = Site::new();
    let standing = Standing::serve(&site);
    site.api.once(get(MAPS).never_answers().held(&never));
    site.is_drained_after(never.asked()).await;
    assert_eq!(site.stored(), ["berth-run.json"]);
    let begun = standing.now()["status"]["startTimestamp"].clone();
    site.api.once(get(MAPS).answers(list("5", &[large("a")])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it begins anew (run 1 of 3)"), "{told}");
    site.holds(&["a"]);
    assert_eq!(standing.now()["status"]["startTimestamp"], begun);
}

/// By this a backup that takes long and is interrupted often is told from one that ends each of its
/// runs.
#[tokio::test]
async fn a_run_says_how_far_its_checkpoint_is_once_that_stands() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
        while standing.counted().furthest == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    site.is_killed_after(story).await;
    let counted = standing.counted();
    assert!(counted.all == 1 && counted.in_vain == 1 && counted.furthest <= 2, "{counted:?}");
}

#[tokio::test]
async fn where_people_want_it_a_run_that_died_begins_anew_whatever_is_stored() {
    let never = Hold::new();
    let (mut site, _standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    site.setting = AfterInterruption::Restart;
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it begins anew (run 2 of 3)") && lists_anew(&asked), "{told}");
    site.holds(&["a", "b", "c"]);
}

/// The last requests of a run are many, and its archive is stored by then.
#[tokio::test]
async fn an_archive_that_is_stored_is_not_made_again() {
    let (site, standing) = three_pages();
    site.api.once(third().answers(list("5", &[large("c")])));
    // The store takes everything but the log.
    let in_the_way = site.folder.path().join("bucket/backups/one/one-logs.gz");
    std::fs::create_dir_all(&in_the_way).unwrap();
    let engine = site.engine_of_small_parts();
    let ended = tokio::time::timeout(LONG, engine.run("one", "u", Signals::default())).await.unwrap();
    assert_eq!(ended.unwrap().unwrap().phase(), BackupPhase::InProgress);
    std::fs::remove_dir(&in_the_way).unwrap();
    let archive = site.folder.path().join("bucket/backups/one/one.tar.gz");
    let before = std::fs::metadata(&archive).unwrap().modified().unwrap();
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("with 3 objects stored already (run 2 of 3)"), "{told}");
    assert!(!asked.iter().any(|asked| asked.contains(MAPS)), "{asked:?}");
    assert_eq!(std::fs::metadata(&archive).unwrap().modified().unwrap(), before);
    site.holds(&["a", "b", "c"]);
    assert_eq!(standing.now()["status"]["progress"], json!({"totalItems": 3, "itemsBackedUp": 3}));
}

#[tokio::test]
async fn one_that_ended_each_of_its_runs_and_one_that_is_canceled_are_run_no_more() {
    let often = "each of its runs ended before the backup did";
    for (change, reason, left) in [
        (json!({"annotations": {keys::RUNS: "3"}}), often, &LOG[..]),
        (json!({"annotations": {keys::CANCEL: "true"}}), CANCELED, &LOG[..0]),
        (json!({"finalizers": ["a/b"], "deletionTimestamp": "2026-01-01T00:00:00Z"}), CANCELED, &LOG[..0]),
    ] {
        let never = Hold::new();
        let (site, standing) = three_pages();
        site.api.once(third().never_answers().held(&never));
        let story = async {
            never.asked().await;
            site.has(CHECKPOINT).await;
        };
        site.is_killed_after(story).await;
        json_patch::merge(&mut standing.0.lock()["metadata"], &change);
        let (told, _) = site.recovers(BackupPhase::Failed).await;
        assert_eq!(told, "");
        let status = standing.now()["status"].clone();
        assert!(status["failureReason"].as_str().unwrap().starts_with(reason), "{status}");
        assert_eq!(site.stored(), left);
    }
}
