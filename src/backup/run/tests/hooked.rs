//! Runs whose pods have hooks: what stands on the Backup meanwhile, and what becomes of the pods when the run ends early.

use std::collections::BTreeSet;

use berth_core::hook::PodId;

use super::*;
use crate::backup::exec::HookError;

const PODS: &str = "/api/v1/namespaces/app/pods";

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
        let engine = Engine { exec, ..engine(&self.site.api, &self.site.folder) };
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

/// People may have filled its annotations.
#[tokio::test(start_paused = true)]
async fn where_a_record_is_refused_no_hook_waits_for_it_and_the_progress_is_written_without_it() {
    let api = Scripted::new().next(get(ONE).answers(backup("7", "InProgress"))).next(patch(ONE).refuses(422));
    api.next(patch(ONE).answers(backup("8", "InProgress")));
    let mut record = Record::read(api.client("velero"), "velero", "one", "u").await.unwrap();
    let counters =
        Counters { total: AtomicU64::new(3), done: Arc::new(AtomicU64::new(2)), asked: Asked::default() };
    let frozen = Frozen::default();
    let [db, web] = ["db", "web"].map(|name| PodId { name: name.to_owned(), ..PodId::default() });
    let story = async {
        for pod in [&db, &web] {
            let added = tokio::time::timeout(PROGRESS / 2, frozen.add(pod)).await.unwrap();
            assert!(matches!(added, Err(HookError::NotOnRecord)), "{added:?}");
        }
        api.played().await;
    };
    tokio::select! {
        lost = keep_record(&mut record, &counters, &frozen) => panic!("{lost}"),
        () = story => {}
    }
    let writes = api.writes();
    assert_eq!(writes[0].body["metadata"]["annotations"][keys::FROZEN], "/db/");
    assert_eq!(writes[1].body["metadata"].get("annotations"), None);
    assert_eq!(writes[1].body["status"]["progress"], json!({"totalItems": 3, "itemsBackedUp": 2}));
}

#[tokio::test(start_paused = true)]
async fn whoever_settles_a_dead_run_undoes_what_is_on_record_in_the_pods_that_are_still_the_same() {
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
    let played = Played::default();
    let exec: Arc<dyn Exec> = Arc::new(played.clone());
    let engine = Engine { exec, ..engine(&dead.api, &dead.folder) };
    engine.settle("one", "u", &CancellationToken::new()).await.unwrap();
    let happened: BTreeSet<String> = played.happened().into_iter().collect();
    assert_eq!(happened, [THAWS, "thaw in web/main"].map(str::to_owned).into());
    assert_eq!(stands.lock()["status"]["phase"], "Failed");
    assert!(stands.lock()["metadata"]["annotations"].get(keys::FROZEN).is_none());
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
