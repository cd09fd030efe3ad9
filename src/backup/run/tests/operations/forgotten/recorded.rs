//! What is on record of Backups that are deleted, and what is forgotten by that.

use super::*;

impl Moving {
    /// What was sent to create requests.
    fn asked_for(&self) -> Vec<Value> {
        let writes = self.site.api.writes();
        writes.into_iter().filter(|write| write.method == "POST").map(|write| write.body).collect()
    }
}

/// Its process may end before anything of it is removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_finds_its_backup_deleted_puts_on_record_what_is_left_of_it() {
    for is_gone in [true, false] {
        let moving = Moving::new(&["data"], AfterInterruption::Resume);
        drop(moving.waits().await);
        moving.backup.lock()["status"]["phase"] = json!("InProgress");
        let (next, signals, begins) = (moving.engine(), Signals::default(), Hold::new());
        let _carries_out = next.removals.carry_out();
        let api = &moving.site.api;
        api.once(get("/readyz").never_answers().held(&begins));
        if is_gone {
            api.once(post(REQUESTS).takes_as("9"));
        }
        let story = async {
            begins.asked().await;
            if is_gone {
                api.once(get(ONE).refuses(404));
            }
            signals.deleted.cancel();
        };
        let all = async { tokio::join!(next.recover("one", "u", signals.clone(), |_| {}), story) };
        tokio::time::timeout(LONG, all).await.unwrap().0.unwrap_err();
        let names: Vec<Value> =
            moving.asked_for().iter().map(|sent| sent["metadata"]["name"].clone()).collect();
        // One that somebody else has ended is there, and nobody has asked for its deletion.
        assert_eq!(names, if is_gone { vec![json!("removal-u")] } else { Vec::new() });
        assert_eq!(next.removals.has_begun("u"), is_gone, "the engine removes it at once");
    }
}

/// The run could not write another checkpoint, which would have named them.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_records_the_namespaces_that_no_file_tells() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let api = &moving.site.api;
    for is_there in [false, true] {
        let next = moving.engine();
        let _carries_out = next.removals.carry_out();
        next.data_of_deleted.lock().insert("u".to_owned(), ["app".to_owned()].into());
        api.once(get(&format!("{SECRET}app")).refuses(500));
        if is_there {
            let mut earlier = moving.asked_for().swap_remove(0);
            earlier["metadata"]["annotations"] = json!({keys::DELETES_IN: "default"});
            let request = format!("{REQUESTS}/removal-u");
            api.once(post(REQUESTS).already_exists()).once(get(&request).answers(earlier.clone()));
            api.once(patch(&request).answers(earlier));
        } else {
            api.once(post(REQUESTS).takes_as("9"));
        }
        assert!(next.forget("one", "u", "default").await, "it is on record");
        assert!(next.data_of_deleted.lock().is_empty());
    }
    let recorded = |sent: &Value| sent["metadata"]["annotations"][keys::DATA_IN].clone();
    assert_eq!(recorded(&moving.asked_for()[0]), "app");
    let writes = api.writes();
    let patched = writes.iter().rfind(|write| write.path.ends_with("/removal-u")).unwrap();
    assert_eq!(recorded(&patched.body), "app");
}

/// Where a Velero carries out requests there is none.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_forgotten_and_is_on_no_record_is_kept_in_mind() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let next = moving.engine();
    next.data_of_deleted.lock().insert("u".to_owned(), ["app".to_owned()].into());
    moving.site.api.once(get(&format!("{SECRET}app")).refuses(500));
    assert!(!next.forget("one", "u", "default").await);
    assert!(next.data_of_deleted.lock().contains_key("u"));
    assert!(next.forget("one", "u", "default").await);
    assert!(next.data_of_deleted.lock().is_empty());
    assert_eq!(moving.snapshots("app"), 0);
    assert_eq!(left(&moving), 0, "files of its folder");
}

/// Only what the checkpoint named tells where the data of the earlier one is.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_a_folder_over_puts_on_record_where_the_earlier_backup_has_data() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    // There is no repository yet, but an agent may make it at any time.
    drop(moving.waits().await);
    let mut next = backup("9", "ReadyToStart");
    next["metadata"]["uid"] = json!("v");
    next["metadata"]["annotations"] = json!({});
    moving.backup.lock().clone_from(&next);
    let engine = moving.engine();
    let _carries_out = engine.removals.carry_out();
    moving.site.api.once(post(REQUESTS).takes_as("9"));
    let ran = tokio::time::timeout(LONG, engine.run("one", "v", Signals::default())).await.unwrap();
    assert_eq!(ran.unwrap().unwrap().phase(), BackupPhase::Completed);
    let asked = moving.asked_for();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0]["metadata"]["name"], "removal-u");
    assert_eq!(asked[0]["metadata"]["annotations"][keys::DATA_IN], "app");
}

#[tokio::test(flavor = "multi_thread")]
async fn noted_data_is_forgotten_though_another_backup_has_the_folder_unless_it_is_visible() {
    for is_visible in [false, true] {
        let moving = Moving::new(&["data"], AfterInterruption::Resume);
        let engine = moving.waits().await;
        let repository = moving.repository(&engine, "app").await;
        saves(&repository, ["backup=one", "backup-uid=u"]).await;
        let folder = moving.site.folder.path().join("bucket/backups/one");
        let claim = json!({"cluster": "here", "namespace": "velero", "backup": "v", "run": "r"}).to_string();
        std::fs::write(folder.join("berth-run.json"), &claim).unwrap();
        if is_visible {
            let shown = json!({"metadata": {"uid": "u"}, "status": {"phase": "Completed"}});
            std::fs::write(folder.join(METADATA), shown.to_string()).unwrap();
        }
        engine.data_of_deleted.lock().insert("u".to_owned(), ["app".to_owned()].into());
        assert!(engine.forget("one", "u", "default").await);
        assert_eq!(moving.snapshots("app"), usize::from(is_visible));
        assert_eq!(std::fs::read_to_string(folder.join("berth-run.json")).unwrap(), claim);
        assert!(folder.join("berth-checkpoint").exists(), "it is the other one's");
    }
}

/// An agent of berth was just saving its snapshot when the Backup was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_stores_when_it_is_canceled_is_forgotten_too() {
    const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    let reads = |name: &str, uploader: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
            "metadata": {
                "name": name, "namespace": "velero", "uid": name,
                "labels": {"velero.io/backup-name": "one", "velero.io/backup-uid": "u"},
            },
            "spec": {"uploaderType": uploader}, "status": {"phase": "InProgress"},
        })
    };
    let (own, look) = (reads("own", "restic"), Hold::new());
    let api = &moving.site.api;
    api.once(get(FILES).answers(list("1", &[own.clone(), reads("veleros", "kopia")])));
    api.once(patch(&format!("{FILES}/own")).answers(own));
    api.once(get(FILES).answers(list("2", &[])).held(&look));
    let story = async {
        look.asked().await;
        saves(&repository, ["backup=one", "backup-uid=u"]).await;
        look.let_go();
    };
    let forgotten = async { tokio::join!(engine.forget("one", "u", "default"), story) };
    tokio::time::timeout(LONG, forgotten).await.unwrap();
    assert_eq!(moving.snapshots("app"), 0);
    let canceled = api.writes().into_iter().rfind(|write| write.path.ends_with("/own")).unwrap().body;
    assert_eq!(canceled["spec"]["cancel"], json!(true));
}

/// What it has stored may be somebody else's by then, so that is no success.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_another_claims_while_the_engine_removes_it_is_not_taken_for_removed() {
    const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let look = Hold::new();
    moving.site.api.once(get(FILES).answers(list("1", &[])).held(&look));
    let path = moving.site.folder.path().join("bucket/backups/one/berth-run.json");
    let claim = json!({"cluster": "here", "namespace": "velero", "backup": "v", "run": "r"}).to_string();
    let story = async {
        look.asked().await;
        std::fs::write(&path, &claim).unwrap();
        look.let_go();
    };
    let forgotten = async { tokio::join!(engine.forget("one", "u", "default"), story) };
    let (is_settled, ()) = tokio::time::timeout(LONG, forgotten).await.unwrap();
    assert!(!is_settled);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), claim);
}
