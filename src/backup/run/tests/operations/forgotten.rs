//! Backups that are deleted while they wait.

use berth_pod_volumes::{Repository, Source, Watched, descend};

use super::*;
use crate::backup::checkpoint::Checkpoint;
use crate::backup::volumes::outcomes::VolumeOutcomes;

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

/// No movement is in the namespace whose files were read.
#[tokio::test(flavor = "multi_thread")]
async fn what_node_agents_have_stored_of_files_for_a_deleted_backup_is_forgotten() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    let path = moving.site.folder.path().join("bucket/backups/one/berth-checkpoint");
    let mut checkpoint = Checkpoint::read(std::fs::read(&path).unwrap().into()).unwrap();
    checkpoint.remembered.volumes =
        VolumeOutcomes { file_namespaces: ["files".to_owned()].into(), ..VolumeOutcomes::default() };
    let content: bytes::Bytes = checkpoint.content().unwrap().into();
    std::fs::write(&path, content).unwrap();
    let repository = moving.repository(&engine, "files").await;
    saves(&repository, ["backup=one", "backup-uid=u"]).await;
    engine.forget("one", "u", "default").await;
    assert_eq!(moving.snapshots("files"), 0);
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
