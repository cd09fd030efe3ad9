//! Backups that are deleted while they run or wait.

use berth_pod_volumes::{Repository, Source, Watched, descend};
use berth_test_scripted::{Hold, delete, post, watch};
use prometheus_client::metrics::counter::Counter;

use super::*;
use crate::backup::checkpoint::Checkpoint;
use crate::backup::operations::shown::UploadCache;
use crate::backup::runner::Runner;
use crate::backup::volumes::outcomes::VolumeOutcomes;
use crate::events::Events;
use crate::queue::{BackupCache, QueueSettings};
use crate::watch::WatchEvent;

mod recorded;

const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/deletebackuprequests";
const SECRET: &str = "/api/v1/namespaces/velero/secrets/berth-repository-default.";

fn secret() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
        "data": {"repository-password": "c2VjcmV0"},
    })
}

impl Moving {
    /// The repository of a namespace, which is made.
    async fn repository(&self, engine: &Engine, namespace: &str) -> Repository {
        self.site.api.always(get(&format!("{SECRET}{namespace}")).answers(secret()));
        engine.repositories.get("default", namespace, true).await.unwrap()
    }

    /// How many snapshots the repository of a namespace has. A folder goes with its last file.
    fn snapshots(&self, namespace: &str) -> usize {
        let repository = self.site.folder.path().join("bucket/restic").join(namespace);
        assert!(repository.join("config").exists());
        std::fs::read_dir(repository.join("snapshots")).map_or(0, Iterator::count)
    }

    /// Waits until somebody has asked again for its DataUploads.
    async fn is_listed_again(&self) {
        let get = format!("GET {UPLOADS}");
        let count = || self.site.api.asked().iter().filter(|asked| asked.starts_with(&get)).count();
        let before = count();
        while count() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn saves(repository: &Repository, tags: [&str; 2]) {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("volume")).unwrap();
    let source = Source {
        data: descend(root.path(), Path::new("volume")).unwrap().into(),
        host: "app".to_owned(),
        tags: tags.map(str::to_owned).to_vec(),
        reader: "n1".to_owned(),
        same: "same=claim/c".to_owned(),
    };
    repository.backup(source, &Watched::default()).await.unwrap();
}

#[tokio::test]
async fn what_was_stored_of_a_deleted_backup_is_removed_and_its_movements_are_canceled() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    engine.forget("one", "another", "default").await;
    assert!(moving.site.stored().contains(&"berth-checkpoint".to_owned()));
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.uploads.lock()["data"]["spec"]["cancel"], json!(true));
    assert_eq!(moving.site.stored(), [""; 0]);
}

/// The UID alone could be from a claim that somebody has forged.
#[tokio::test]
async fn a_movement_whose_label_or_owner_names_another_backup_goes_on() {
    let changes: [fn(&mut Value); 2] = [
        |one| one["metadata"]["labels"][keys::BACKUP_NAME] = json!("two"),
        |one| one["metadata"]["ownerReferences"][0]["name"] = json!("two"),
    ];
    for change in changes {
        let moving = Moving::new(&["data"], AfterInterruption::Resume);
        let engine = moving.waits().await;
        change(moving.uploads.lock().get_mut("data").unwrap());
        engine.forget("one", "u", "default").await;
        assert_eq!(moving.uploads.lock()["data"]["spec"]["cancel"], Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_movements_of_a_deleted_backup_have_stored_is_forgotten() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    for tags in
        [["backup=one", "backup-uid=u"], ["backup=one", "backup-uid=v"], ["backup=two", "backup-uid=u"]]
    {
        saves(&repository, tags).await;
    }
    engine.forget("one", "another", "default").await;
    assert_eq!(moving.snapshots("app"), 3, "another Backup of that name has no folder there");
    // No run is counted for it, so no more than the beginning of the checkpoint is read.
    let path = moving.site.folder.path().join("bucket/backups/one/berth-checkpoint");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("app"), 2, "the others are of other Backups");
    assert!(!moving.site.stored().contains(&"berth-checkpoint".to_owned()), "it tells of which namespaces");
}

/// A run had taken it up, and has not read the checkpoint yet.
#[tokio::test(flavor = "multi_thread")]
async fn what_movements_have_stored_of_a_backup_that_is_deleted_while_it_runs_is_forgotten() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    moving.backup.lock()["status"]["phase"] = json!("InProgress");
    let (next, signals, begins) = (moving.engine(), Signals::default(), Hold::new());
    moving.site.api.once(get("/readyz").never_answers().held(&begins));
    let story = async {
        begins.asked().await;
        signals.deleted.cancel();
    };
    let all = async { tokio::join!(next.recover("one", "u", signals.clone(), |_| {}), story) };
    let (ended, ()) = tokio::time::timeout(LONG, all).await.unwrap();
    assert!(matches!(ended, Err(WriteError::Gone)), "{ended:?}");
    assert!(moving.site.stored().contains(&"berth-checkpoint".to_owned()), "it tells of which namespaces");
    next.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("app"), 0);
    assert_eq!(left(&moving), 0, "files of its folder");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_forgotten_now_is_asked_for_until_it_is() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let done = json!({"kind": "Status", "status": "Success"});
    let api = &moving.site.api;
    api.always(post(REQUESTS).takes_as("9"));
    api.always(delete(&format!("{REQUESTS}/removal-u")).answers(done));
    let asked = |what: &str| api.asked().iter().filter(|asked| asked.starts_with(what)).count();
    let path = moving.site.folder.path().join("bucket/backups/one/berth-checkpoint");
    let checkpoint = std::fs::read(&path).unwrap();
    for is_unreadable in [false, true] {
        // The next leader, which has no repository open.
        let next = moving.engine();
        let _carries_out = next.removals.carry_out();
        if is_unreadable {
            std::fs::write(&path, "no checkpoint").unwrap();
        } else {
            api.once(get(&format!("{SECRET}app")).refuses(500));
        }
        next.forget("one", "u", "default").await;
        assert_eq!(moving.snapshots("app"), 1);
        assert!(
            moving.site.stored().contains(&"berth-checkpoint".to_owned()),
            "it tells of which namespaces"
        );
        assert_eq!(asked("DELETE"), 0);
        assert!(!next.removals.has_begun("u"), "whoever carries out the request may go on");
    }
    let request = api.writes().into_iter().find(|write| write.method == "POST").unwrap().body;
    assert_eq!(request["spec"]["backupName"], "one");
    assert_eq!(request["status"]["phase"], "InProgress");
    assert_eq!(request["metadata"]["labels"][keys::BACKUP_UID], "u");
    assert_eq!(request["metadata"]["annotations"][keys::DELETES_IN], "default");
    std::fs::write(&path, checkpoint).unwrap();
    let _carries_out = engine.removals.carry_out();
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("app"), 0);
    assert_eq!(left(&moving), 0, "files of its folder");
    assert_eq!((asked("POST"), asked("DELETE")), (3, 1));
}

/// Whoever may create requests could take the name.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_somebody_else_has_made_is_not_taken_for_its_own() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let api = &moving.site.api;
    let taken = format!("{REQUESTS}/removal-u");
    let strange = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": "removal-u", "namespace": "velero", "uid": "theirs"},
        "spec": {"backupName": "one"}, "status": {"phase": "Processed"},
    });
    api.once(post(REQUESTS).already_exists()).once(get(&taken).answers(strange));
    api.once(post(REQUESTS).takes_as("9")).once(get(&format!("{SECRET}app")).refuses(500));
    let next = moving.engine();
    let _carries_out = next.removals.carry_out();
    next.forget("one", "u", "default").await;
    let writes = api.writes();
    let made: Vec<_> = writes.iter().filter(|write| write.method == "POST").collect();
    let names: Vec<_> = made.iter().filter_map(|write| write.body["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0], "removal-u");
    assert!(names[1].starts_with("removal-u-"), "{names:?}");
    assert!(writes.iter().all(|write| write.method != "DELETE"), "it is theirs");
}

/// How many files the Backup's folder has. It goes with the last one.
fn left(moving: &Moving) -> usize {
    std::fs::read_dir(moving.site.folder.path().join("bucket/backups/one")).map_or(0, Iterator::count)
}

impl Moving {
    /// The checkpoint of its Backup names these namespaces, besides those of movements.
    fn names(&self, namespaces: impl IntoIterator<Item = String>) {
        let path = self.site.folder.path().join("bucket/backups/one/berth-checkpoint");
        let mut checkpoint = Checkpoint::read(std::fs::read(&path).unwrap().into()).unwrap();
        let file_namespaces = namespaces.into_iter().collect();
        checkpoint.remembered.volumes = VolumeOutcomes { file_namespaces, ..VolumeOutcomes::default() };
        let content: bytes::Bytes = checkpoint.content().unwrap().into();
        std::fs::write(&path, content).unwrap();
    }
}

/// No movement is in the namespace whose files were read.
#[tokio::test(flavor = "multi_thread")]
async fn what_node_agents_have_stored_of_files_for_a_deleted_backup_is_forgotten() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    moving.names(["files".to_owned()]);
    let repository = moving.repository(&engine, "files").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("files"), 0);
}

/// Whoever may write to the store may have written them.
#[tokio::test(flavor = "multi_thread")]
async fn namespaces_without_a_repository_cost_nothing_however_many_a_checkpoint_names() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    moving.names((0..1000).map(|i| format!("forged-{i}")).chain(["files".to_owned()]));
    let repository = moving.repository(&engine, "files").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let before = moving.site.api.asked().len();
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("files"), 0);
    assert_eq!(left(&moving), 0, "files of its folder");
    let asked = moving.site.api.asked().split_off(before);
    assert!(
        asked.len() < 20,
        "{} requests, of which the last are {:?}",
        asked.len(),
        asked.iter().rev().take(9).collect::<Vec<_>>()
    );
}

/// A former leader had the permission to publish before the Backup was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_that_is_published_while_it_is_forgotten_keeps_its_data() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let folder = moving.site.folder.path().join("bucket/backups/one");
    let claim = std::fs::read(folder.join("berth-run.json")).unwrap();
    // The next leader, which has no repository open.
    let next = moving.engine();
    let publishes = folder.clone();
    let former = claim.clone();
    moving.site.api.once(get(&format!("{SECRET}app")).answers_with(move |_| {
        assert_ne!(
            std::fs::read(publishes.join("berth-run.json")).unwrap(),
            former,
            "it would find its claim"
        );
        std::fs::write(publishes.join(METADATA), "{}").unwrap();
        secret()
    }));
    next.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("app"), 1, "a visible backup without its data");
    let stored = moving.site.stored();
    assert!(stored.contains(&METADATA.to_owned()), "{stored:?}");
    assert!(stored.contains(&"berth-checkpoint".to_owned()), "{stored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_claimed_anew_while_it_is_forgotten_is_left_to_its_claim() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    let path = moving.site.folder.path().join("bucket/backups/one/berth-run.json");
    let claim = std::fs::read(&path).unwrap();
    let next = moving.engine();
    let (anew, claims) = (claim.clone(), path.clone());
    moving.site.api.once(get(&format!("{SECRET}app")).answers_with(move |_| {
        std::fs::write(&claims, &anew).unwrap();
        secret()
    }));
    next.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("app"), 1);
    assert_eq!(std::fs::read(&path).unwrap(), claim);
}

/// Its pod was just saving its snapshot when the Backup was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_movement_stores_when_it_is_canceled_is_forgotten_too() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let repository = moving.repository(&engine, "app").await;
    {
        let mut uploads = moving.uploads.lock();
        let upload = uploads.get_mut("data").unwrap();
        upload["spec"]["datamover"] = json!("berth");
        upload["metadata"]["finalizers"] = json!(["berth.dev/data-mover"]);
    }
    let story = async {
        while moving.uploads.lock()["data"]["spec"]["cancel"] != json!(true) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        moving.is_listed_again().await;
        // The pod hangs, so that the leader ends the movement, and removes the pod after that.
        moving.uploads.lock().get_mut("data").unwrap()["status"]["phase"] = json!("Canceled");
        moving.is_listed_again().await;
        saves(&repository, ["backup=one", "backup-uid=u"]).await;
        moving.uploads.lock().remove("data");
    };
    let forgotten = async { tokio::join!(engine.forget("one", "u", "default"), story) };
    tokio::time::timeout(LONG, forgotten).await.unwrap();
    assert_eq!(moving.snapshots("app"), 0);
}

/// It was looked at when it was deleted, and the next one was due before that look had ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_begins_only_when_what_is_left_of_a_deleted_one_of_its_name_is_forgotten() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    drop(moving.waits().await);
    let waiting = moving.backup.lock().clone();
    let (api, client) = (&moving.site.api, moving.site.api.client("velero"));
    let (look, found) = (Hold::new(), Arc::new(Mutex::new(None)));
    let (at_begin, folder) = (Arc::clone(&found), moving.site.folder.path().to_owned());
    api.always(watch(UPLOADS).never_answers());
    api.once(get(ONE).answers(waiting.clone()).held(&look));
    // What each run asks for first, besides its Backup.
    api.once(get("/readyz").answers_with(move |_| {
        *at_begin.lock() = Some(stored(&folder));
        json!("ok")
    }));
    let store = Arc::new(BackupCache::new(QueueSettings { slots: 1, ..QueueSettings::default() }));
    store.observe(WatchEvent::Replaced(vec![serde_json::from_value(waiting).unwrap()]));
    let uploads = Arc::new(UploadCache::default());
    let runner = Runner {
        engine: moving.engine(),
        store: Arc::clone(&store),
        uploads: Arc::clone(&uploads),
        events: Events::new(client.clone(), "velero", Counter::default()).0,
        stop: CancellationToken::new(),
        drain: Duration::ZERO,
    };
    let story = async {
        look.asked().await;
        let mut next = backup("9", "ReadyToStart");
        next["metadata"]["uid"] = json!("v");
        moving.backup.lock().clone_from(&next);
        store.observe(WatchEvent::Deleted("one".to_owned()));
        store.observe(WatchEvent::Applied(serde_json::from_value(next).unwrap()));
        look.let_go();
        while found.lock().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = async {
        tokio::select! {
            () = runner.run() => unreachable!("nobody stops it"),
            () = uploads.follow(&client, "velero") => unreachable!("it watches for ever"),
            () = story => {}
        }
    };
    tokio::time::timeout(LONG, all).await.unwrap();
    assert_eq!(found.lock().take(), Some(Vec::new()));
}
