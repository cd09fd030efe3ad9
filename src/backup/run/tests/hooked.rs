//! Runs whose pods have hooks: what stands on the Backup meanwhile, and what becomes of the pods
//! when the run ends early.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use berth_core::claim::FolderClaim;
use berth_core::hook::PodId;
use tokio::time::sleep;

use super::again::{CHECKPOINT, SMALL, noise};
use super::dead::{ALL, Dead};
use super::*;
use crate::backup::exec::HookError;
use crate::backup::frozen::FrozenPods;
use crate::backup::ledger::ObjectLedger;
use crate::backup::list::ListError;
use crate::backup::progress::{Counters, PROGRESS, keep_record};

mod block;
mod deleted;

const PODS: &str = "/api/v1/namespaces/app/pods";
const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";

/// A pod with hooks; a command says what the played hook does.
fn pod(name: &str, uid: &str, pre: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "app", "uid": uid, "labels": {"app": name},
            "annotations": {
                "pre.hook.backup.velero.io/command": pre,
                "post.hook.backup.velero.io/command": "ok",
                "post.hook.backup.velero.io/container": "side",
            },
        },
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": {"phase": "Running"},
    })
}

const FREEZES: &str = "pre.hook.backup.velero.io/command in db/main";
const THAWS: &str = "post.hook.backup.velero.io/command in db/side";

/// The Backup as the API server keeps it.
fn keep(api: &Scripted, object: Value) -> Arc<Mutex<Value>> {
    let stands = Arc::new(Mutex::new(object));
    let (read, written) = (Arc::clone(&stands), Arc::clone(&stands));
    api.always(get(ONE).answers_with(move |_| read.lock().clone()));
    api.always(patch(ONE).answers_with(move |sent| {
        let mut object = written.lock();
        json_patch::merge(&mut object, sent);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u32>().unwrap() + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        object.clone()
    }));
    stands
}

/// A cluster whose only type is Pods, and a Backup of them.
struct Hooked {
    site: Site,
    played: Played,
    stands: Arc<Mutex<Value>>,
}

impl Hooked {
    fn new(pre: &str) -> Self {
        let ready = backup("7", "ReadyToStart");
        let site = Site::with_type(ready.clone(), "Pod");
        let db = pod("db", "u", pre);
        site.api.always(get(&format!("{PODS}/db")).answers(db.clone()));
        site.api.always(get(PODS).answers(page("5", "more", &[db])));
        let stands = keep(&site.api, ready);
        Self { site, played: Played::default(), stands }
    }

    async fn run(&self, signals: Signals) -> Option<Backup> {
        let exec: Arc<dyn Exec> = Arc::new(self.played.clone());
        let engine = Engine { exec, ..engine(&self.site.api, &self.site.folder, self.site.setting) };
        tokio::time::timeout(LONG, engine.run("one", "u", signals)).await.unwrap().ok().flatten()
    }

    async fn begins(&self) {
        while !self.played.happened().iter().any(|line| line == FREEZES) {
            tokio::task::yield_now().await;
        }
    }

    /// What stood on record after each write that said something of it.
    fn recorded(&self) -> Vec<Value> {
        let writes = self.site.api.writes();
        let annotations = writes.iter().map(|write| &write.body["metadata"]["annotations"]);
        annotations.filter_map(|annotations| annotations.get(keys::FROZEN)).cloned().collect()
    }
}

#[tokio::test]
async fn what_may_be_frozen_stands_on_the_backup_until_it_may_be_published() {
    let hooked = Hooked::new("ok");
    hooked.site.api.once(get(PODS).page("more").answers(list("5", &[])));
    let ended = hooked.run(Signals::default()).await.unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed);
    assert_eq!(hooked.played.happened(), [FREEZES, THAWS]);
    // At the beginning, for the pod, with leave to publish, and at the end.
    let recorded = hooked.recorded();
    assert_eq!((&recorded[0], recorded.last()), (&Value::Null, Some(&Value::Null)));
    assert!(recorded.contains(&json!("app/db/u")), "{recorded:?}");
    assert!(hooked.stands.lock()["metadata"]["annotations"].get(keys::FROZEN).is_none());
    let status = ended.status.unwrap();
    let hooks = status.hook_status.unwrap();
    assert_eq!((hooks.hooks_attempted, hooks.hooks_failed), (Some(2), None));
    let folder = hooked.site.folder.path().join("bucket/backups/one");
    let metadata: Value = serde_json::from_slice(&std::fs::read(folder.join(METADATA)).unwrap()).unwrap();
    assert_eq!(metadata["status"]["hookStatus"], json!({"hooksAttempted": 2}));
    assert!(metadata["metadata"]["annotations"].get(keys::FROZEN).is_none(), "{metadata}");
}

#[tokio::test]
async fn a_pod_that_is_left_out_stands_in_no_list_and_no_count() {
    let hooked = Hooked::new("fail");
    let mut lone = pod("web", "v", "ok");
    lone["metadata"]["annotations"] = json!({});
    hooked.site.api.once(get(PODS).page("more").answers(list("5", &[lone])));
    let mut db = pod("db", "u", "fail");
    db["metadata"]["annotations"]["pre.hook.backup.velero.io/on-error"] = json!("Fail");
    hooked.site.api.once(get(PODS).answers(page("5", "more", &[db])));
    let ended = hooked.run(Signals::default()).await.unwrap();
    assert_eq!(ended.phase(), BackupPhase::PartiallyFailed);
    let status = ended.status.unwrap();
    let progress = status.progress.unwrap();
    assert_eq!((progress.total_items, progress.items_backed_up, status.errors), (Some(1), Some(1), Some(1)));
    assert_eq!(status.hook_status.unwrap().hooks_failed, Some(1));
    assert_eq!(hooked.played.happened(), [FREEZES, THAWS]);
    let told = hooked.site.told();
    assert!(told.contains("exit code 1: no; the pod is not stored"), "{told}");
    let list = std::fs::read(hooked.site.folder.path().join("bucket/backups/one/one-resource-list.json.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&list.unwrap()[..]).read_to_string(&mut text).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"v1/Pod": ["app/web"]}));
}

#[tokio::test]
async fn pods_that_are_to_go_first_have_their_hooks_one_after_the_other() {
    let mut ready = backup("7", "ReadyToStart");
    ready["spec"]["orderedResources"] = json!({"pods": "app/web,app/db"});
    let site = Site::with_type(ready.clone(), "Pod");
    let pods = ["db", "web"].map(|name| pod(name, "u", "wait 50"));
    for pod in &pods {
        let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap());
        site.api.always(get(&path).answers(pod.clone()));
    }
    site.api.always(get(PODS).answers(list("5", &pods)));
    keep(&site.api, ready);
    let played = Played::default();
    let exec: Arc<dyn Exec> = Arc::new(played.clone());
    let engine = Engine { exec, workers: 2, ..engine(&site.api, &site.folder, AfterInterruption::Fail) };
    let run = engine.run("one", "u", Signals::default());
    let ended = tokio::time::timeout(LONG, run).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed);
    let web = [FREEZES, THAWS].map(|line| line.replace("db", "web"));
    assert_eq!(played.happened(), [web[0].as_str(), web[1].as_str(), FREEZES, THAWS]);
}

#[tokio::test]
async fn a_run_that_is_canceled_or_stopped_between_the_hooks_of_a_pod_undoes_them_first() {
    for i in 0..3 {
        let never = Hold::new();
        let hooked = Hooked::new("wait 50");
        hooked.site.api.once(get(PODS).page("more").never_answers().held(&never));
        let signals = Signals::default();
        let story = async {
            never.asked().await;
            hooked.begins().await;
            [&signals.canceled, &signals.stop, &signals.deleted][i].cancel();
        };
        let (ran, ()) = tokio::join!(hooked.run(signals.clone()), story);
        assert_eq!(ran.is_some(), i < 2);
        assert_eq!(hooked.played.happened(), [FREEZES, THAWS]);
        let frozen = hooked.stands.lock()["metadata"]["annotations"].get(keys::FROZEN).cloned();
        assert_eq!(frozen.is_some(), i == 2, "an end takes it off, and what is deleted needs none");
    }
}

#[tokio::test]
async fn a_run_whose_lists_fail_for_good_undoes_what_it_has_begun() {
    let late = Hold::new();
    let hooked = Hooked::new("wait 50");
    hooked.site.api.once(get(PODS).page("more").refuses(401).held(&late)).once(get(NAMESPACES).refuses(401));
    let story = async {
        late.asked().await;
        hooked.begins().await;
        late.let_go();
    };
    let (ran, ()) = tokio::join!(hooked.run(Signals::default()), story);
    assert_eq!(ran.unwrap().phase(), BackupPhase::Failed);
    assert_eq!(hooked.played.happened(), [FREEZES, THAWS]);
    assert!(hooked.stands.lock()["metadata"]["annotations"].get(keys::FROZEN).is_none());
}

/// A Backup that a dead run left with these pods on record.
struct Left {
    dead: Dead,
    played: Played,
    stands: Arc<Mutex<Value>>,
    engine: Engine,
}

impl Left {
    fn new(pods: &[Value]) -> Self {
        let dead = Dead::new(&ALL[7..]).claimed("here", "u");
        let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap());
        let record = names.clone().map(|name| format!("app/{name}/u")).collect::<Vec<_>>().join(",");
        for (name, pod) in names.zip(pods) {
            dead.api.always(get(&format!("{PODS}/{name}")).answers(pod.clone()));
        }
        let mut stands = backup("7", "InProgress");
        stands["metadata"]["annotations"] = json!({keys::RUN: "dead", keys::FROZEN: record});
        let stands = keep(&dead.api, stands);
        let played = Played::default();
        let exec: Arc<dyn Exec> = Arc::new(played.clone());
        let engine = Engine { exec, ..engine(&dead.api, &dead.folder, AfterInterruption::Fail) };
        Self { dead, played, stands, engine }
    }

    async fn settle(&self, stop: &CancellationToken) -> Result<(), WriteError> {
        let signals = Signals { stop: stop.clone(), ..Signals::default() };
        self.engine.recover("one", "u", signals, |_| {}).await.map(drop)
    }

    /// What stands on record.
    fn frozen(&self) -> Option<Value> {
        self.stands.lock()["metadata"]["annotations"].get(keys::FROZEN).cloned()
    }
}

/// A pod whose hook after it is this one.
fn pod_after(name: &str, post: &str) -> Value {
    let mut pod = pod(name, "u", "ok");
    pod["metadata"]["annotations"]["post.hook.backup.velero.io/command"] = json!(post);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_reached_is_tried_again_for_a_while_however_long_its_leader_leads() {
    let left = Left::new(&[pod_after("db", "busy 3"), pod_after("web", "ok")]);
    left.dead.api.once(get(&format!("{PODS}/web")).refuses(403));
    let never = CancellationToken::new();
    left.settle(&never).await.unwrap();
    let web = THAWS.replace("db", "web");
    let mut happened = left.played.happened();
    happened.sort_unstable();
    assert_eq!(happened, [THAWS, THAWS, THAWS, THAWS, web.as_str()]);
    assert_eq!((left.frozen(), left.stands.lock()["status"]["phase"].clone()), (None, json!("Failed")));

    let left = Left::new(&[pod_after("db", "busy 1000000")]);
    // A run of this leader has panicked.
    tokio::time::advance(Duration::from_secs(7200)).await;
    let begun = Instant::now();
    left.settle(&never).await.unwrap();
    let (took, tries) = (begun.elapsed().as_secs(), left.played.happened().len());
    assert!((590..700).contains(&took) && tries > 50, "{tries} in {took} s");
    assert_eq!((left.frozen(), left.stands.lock()["status"]["phase"].clone()), (None, json!("Failed")));
}

/// Whatever the run has ended by: with the end of its Backup the record goes by which the next
/// leader finds what is frozen.
#[tokio::test(start_paused = true)]
async fn a_run_that_leaves_pods_frozen_to_the_next_leader_neither_ends_its_backup_nor_clears_the_record() {
    let lasting = || RunFailure::List(ListError::Astray);
    let passing = || RunFailure::List(ListError::Gone(Box::new(ListError::Astray)));
    for (failure, leaves_frozen) in [
        (RunFailure::Stopped, true),
        (RunFailure::Canceled, true),
        (lasting(), true),
        (passing(), true),
        (lasting(), false),
        (RunFailure::Stopped, false),
    ] {
        let left = Left::new(&[pod_after("db", "ok")]);
        let mut record =
            BackupWriter::read(left.dead.api.client("velero"), "velero", "one", "u").await.unwrap();
        record.take_over("ours", OPENING).await.unwrap();
        let location = serde_json::from_value(location(left.dead.folder.path())).unwrap();
        let Opened { store, parts } = left.engine.open(&location).await.unwrap();
        let layout = BackupLayout::new(store, None, "one");
        let site = RunSite { leaves_frozen, ..RunSite::new(location, layout, parts, FolderClaim::default()) };
        let told = failure.to_string();
        let log = BackupLog::new(String::new());
        left.engine.conclude(&mut record, &site, &log, failure).await.unwrap();
        let phase = if leaves_frozen { "InProgress" } else { "Failed" };
        assert_eq!(left.stands.lock()["status"]["phase"], phase, "{told}");
        assert_eq!(left.frozen(), leaves_frozen.then(|| json!("app/db/u")), "{told}");
    }
}

/// With the object goes the record of what is frozen.
#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_reached_is_tried_on_though_its_backup_is_deleted_meanwhile() {
    let left = Left::new(&[pod_after("db", "busy 20")]);
    let signals = Signals::default();
    let story = async {
        sleep(Duration::from_secs(30)).await;
        left.dead.api.once(patch(ONE).refuses(404));
        signals.deleted.cancel();
    };
    let (settled, ()) = tokio::join!(left.engine.recover("one", "u", signals.clone(), |_| {}), story);
    assert!(matches!(settled, Err(WriteError::Gone)), "{settled:?}");
    assert_eq!(left.played.happened(), [THAWS; 21]);
}

/// What freezes may be on its way in its container when its run dies.
#[tokio::test(start_paused = true)]
async fn a_hook_that_comes_before_what_it_undoes_is_run_once_more_later() {
    let left = Left::new(&[pod_after("db", "fail 1")]);
    let begun = Instant::now();
    left.settle(&CancellationToken::new()).await.unwrap();
    assert_eq!(left.played.happened(), [THAWS; 2]);
    assert!((30..35).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_hook_takes_long_holds_up_no_other_one_and_stop_waits_for_none() {
    let pods = ["a", "b", "c", "d", "e"].map(|name| pod_after(name, "wait 20000"));
    let left = Left::new(&pods);
    left.settle(&CancellationToken::new()).await.unwrap();
    assert_eq!((left.engine.workers, left.played.most_running()), (1, 5));

    let left = Left::new(&[pod_after("db", "wait 20000"), pod_after("web", "ok")]);
    let (begun, stop) = (Instant::now(), CancellationToken::new());
    let story = async {
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
    };
    let (settled, ()) = tokio::join!(left.settle(&stop), story);
    assert!(matches!(settled, Err(WriteError::Frozen(1))), "{settled:?}");
    assert!(begun.elapsed().as_secs() < 2, "{:?}", begun.elapsed());
    assert_eq!(left.frozen(), Some(json!("app/db/u")), "the next leader goes on from there");
}

/// People may have filled its annotations.
#[tokio::test(start_paused = true)]
async fn where_a_record_is_refused_no_hook_waits_for_it_and_the_progress_is_written_without_it() {
    let api = Scripted::new().next(get(ONE).answers(backup("7", "InProgress"))).next(patch(ONE).refuses(422));
    api.next(patch(ONE).answers(backup("8", "InProgress")));
    let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
    let counters = Counters { total: AtomicU64::new(3), done: Arc::new(AtomicU64::new(2)) };
    let ledger = ObjectLedger::new(&[]);
    let frozen = FrozenPods::default();
    let [db, web] = ["db", "web"].map(|name| PodId { name: name.to_owned(), ..PodId::default() });
    let story = async {
        for pod in [&db, &web] {
            let added = tokio::time::timeout(PROGRESS / 2, frozen.add(pod)).await.unwrap();
            assert!(matches!(added, Err(HookError::NotOnRecord)), "{added:?}");
        }
        api.played().await;
    };
    tokio::select! {
        lost = keep_record(&mut record, &counters, &ledger, &frozen) => panic!("{lost}"),
        () = story => {}
    }
    let writes = api.writes();
    assert_eq!(writes[0].body["metadata"]["annotations"][keys::FROZEN], "/db/");
    assert_eq!(writes[1].body["metadata"].get("annotations"), None);
    assert_eq!(writes[1].body["status"]["progress"], json!({"totalItems": 3, "itemsBackedUp": 2}));
}

#[tokio::test(start_paused = true)]
async fn whoever_takes_up_a_dead_run_undoes_what_is_on_record_in_the_pods_that_are_still_the_same() {
    let dead = Dead::new(&ALL[7..]).claimed("here", "u");
    let mut stands = backup("7", "InProgress");
    stands["metadata"]["annotations"] =
        json!({keys::RUN: "dead", keys::FROZEN: "app/db/u,app/gone/u,app/anew/u,app/web/u,odd,../x/u"});
    let exec = json!({"exec": {"command": ["ok"]}});
    stands["spec"]["hooks"] = json!({"resources": [
        {"name": "thaw", "labelSelector": {"matchLabels": {"app": "web"}}, "pre": [exec], "post": [exec]},
    ]});
    let stands = keep(&dead.api, stands);
    let mut web = pod("web", "u", "ok");
    web["metadata"]["annotations"] = Value::Null;
    let at = |name: &str| get(&format!("{PODS}/{name}"));
    dead.api.once(at("db").answers(pod("db", "u", "ok"))).once(at("web").answers(web));
    dead.api.once(at("anew").answers(pod("anew", "of another", "ok"))).once(at("gone").refuses(404));
    // Of the files that are still read, those of a pod that is thawed are read anew: nobody may
    // patch another one.
    let files = |name: &str, pod: &str, phase: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {"name": name, "namespace": "velero", "uid": name},
            "spec": {"pod": {"namespace": "app", "name": "db", "uid": pod}}, "status": {"phase": phase},
        })
    };
    let all = [("reads", "u", "InProgress"), ("done", "u", "Completed"), ("other", "v", "InProgress")];
    let all = all.map(|(name, pod, phase)| files(name, pod, phase));
    dead.api.once(get(FILES).answers(list("1", &all)));
    dead.api.once(patch(&format!("{FILES}/reads")).answers(files("reads", "u", "InProgress")));
    let played = Played::default();
    let exec: Arc<dyn Exec> = Arc::new(played.clone());
    let engine = Engine { exec, ..engine(&dead.api, &dead.folder, AfterInterruption::Fail) };
    engine.recover("one", "u", Signals::default(), |_| {}).await.unwrap();
    let happened: BTreeSet<String> = played.happened().into_iter().collect();
    assert_eq!(happened, [THAWS, "thaw in web/main"].map(str::to_owned).into());
    assert_eq!(stands.lock()["status"]["phase"], "Failed");
    assert!(stands.lock()["metadata"]["annotations"].get(keys::FROZEN).is_none());
    let canceled = dead.api.writes().into_iter().any(|write| write.body["spec"]["cancel"] == true);
    assert!(canceled, "files that were begun while the pod was still go on while it changes");
    let log = std::fs::read(dead.folder.path().join("bucket/backups/one/one-logs.gz")).unwrap();
    let mut told = String::new();
    flate2::read::MultiGzDecoder::new(&log[..]).read_to_string(&mut told).unwrap();
    for words in [
        "between the hooks of pod app/db",
        "of pod app/db went well",
        "pod app/gone is gone",
        "pod app/anew is gone",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

/// One pod is stored, with its hooks, and one is left out by its own.
#[tokio::test]
async fn a_run_that_goes_on_tries_no_hooks_again_of_pods_that_are_stored_or_left_out() {
    let never = Hold::new();
    let hooked = Hooked::new("ok");
    let api = &hooked.site.api;
    let mut db = pod("db", "u", "ok");
    // Of many parts.
    db["noise"] = json!(noise("db"));
    let mut out = pod("out", "v", "fail");
    out["metadata"]["annotations"]["pre.hook.backup.velero.io/on-error"] = json!("Fail");
    let mut web = pod("web", "w", "ok");
    web["metadata"]["annotations"] = json!({});
    api.always(get(&format!("{PODS}/out")).answers(out.clone()));
    let first = page("5", "more", &[db, out]);
    api.once(get(PODS).answers(first.clone())).once(get(PODS).page("more").never_answers().held(&never));
    let exec: Arc<dyn Exec> = Arc::new(hooked.played.clone());
    let engine = engine(api, &hooked.site.folder, AfterInterruption::Resume);
    let engine = Engine { exec, part_size: SMALL, ..engine };
    let signals = Signals::default();
    let story = async {
        never.asked().await;
        let has_checkpoint = || hooked.site.stored().contains(&CHECKPOINT.to_owned());
        while hooked.played.happened().len() < 4 || !has_checkpoint() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        signals.stop.cancel();
    };
    let (ran, ()) = tokio::join!(engine.run("one", "u", signals.clone()), story);
    assert_eq!(ran.unwrap().unwrap().phase(), BackupPhase::InProgress);
    let annotations = hooked.stands.lock()["metadata"]["annotations"].clone();
    assert!(
        annotations[keys::RUNS].as_str().unwrap().starts_with("0") && annotations.get(keys::FROZEN).is_none(),
        "{annotations}"
    );
    api.once(get(PODS).answers(first)).once(get(PODS).page("more").answers(list("5", &[web])));
    let mut told = String::new();
    let recovered = engine.recover("one", "u", Signals::default(), |note| told.push_str(note));
    let ended = tokio::time::timeout(LONG, recovered).await.unwrap().unwrap().unwrap();
    assert!(told.contains("with 1 objects stored already (run 1 of 3)"), "{told}");
    assert_eq!(ended.phase(), BackupPhase::PartiallyFailed, "{:?}", ended.status);
    assert_eq!(hooked.played.happened().len(), 4, "{:?}", hooked.played.happened());
    let status = ended.status.unwrap();
    let (hooks, progress) = (status.hook_status.unwrap(), status.progress.unwrap());
    assert_eq!((hooks.hooks_attempted, hooks.hooks_failed, status.errors), (Some(4), Some(1), Some(1)));
    assert_eq!((progress.total_items, progress.items_backed_up), (Some(2), Some(2)));
    assert!(hooked.site.told().contains("the pod is not stored"), "{}", hooked.site.told());
    let list = std::fs::read(hooked.site.folder.path().join("bucket/backups/one/one-resource-list.json.gz"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&list.unwrap()[..]).read_to_string(&mut text).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"v1/Pod": ["app/db", "app/web"]}));
}
