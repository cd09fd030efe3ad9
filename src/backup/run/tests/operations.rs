//! Backups whose data is still moved when all objects are stored.

use std::collections::BTreeMap;

use flate2::read::MultiGzDecoder;

use super::*;
use crate::backup::operations::Attended;

mod forgotten;
mod late;

const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";

/// A cluster with DataUploads, and a Backup that is written as it is sent.
struct Moving {
    site: Site,
    backup: Arc<Mutex<Value>>,
    uploads: Arc<Mutex<BTreeMap<String, Value>>>,
}

fn upload(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": {
            "name": name, "namespace": "velero", "uid": format!("uid-of-{name}"),
            "creationTimestamp": jiff::Timestamp::now().to_string(),
            "labels": {"velero.io/backup-name": "one", "velero.io/backup-uid": "u", "velero.io/pvc-uid": format!("claim-of-{name}")},
            "ownerReferences": [{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "one", "uid": "u"}],
        },
        "spec": {
            "sourceNamespace": "app", "sourcePVC": name,
            "csiSnapshot": {"volumeSnapshot": format!("snapshot-of-{name}"), "driver": "csi.example.org"},
        },
        "status": {"phase": phase},
    })
}

impl Moving {
    /// The data of these claims is moved; the last page of the only list is what `last` says.
    fn new(names: &[&str], setting: AfterInterruption) -> Self {
        let site = Site { setting, ..Site::with_type_unread("ConfigMap") };
        let mut ready = backup("7", "ReadyToStart");
        ready["metadata"]["annotations"] = json!({});
        ready["spec"]["snapshotMoveData"] = json!(true);
        let backup = Arc::new(Mutex::new(ready));
        let (read, written) = (Arc::clone(&backup), Arc::clone(&backup));
        site.api.always(get(ONE).answers_with(move |_| read.lock().clone()));
        site.api.always(patch(ONE).answers_with(move |sent| {
            json_patch::merge(&mut written.lock(), sent);
            written.lock().clone()
        }));
        let uploads = names.iter().map(|name| ((*name).to_owned(), upload(name, "InProgress"))).collect();
        let uploads = Arc::new(Mutex::new(uploads));
        let moving = Self { site, backup, uploads };
        let all = Arc::clone(&moving.uploads);
        moving.site.api.always(get(UPLOADS).answers_with(move |_| {
            let all: Vec<Value> = all.lock().values().cloned().collect();
            let is_ours = |one: &Value| one["metadata"]["labels"]["velero.io/backup-uid"] == "u";
            list("9", &all.into_iter().filter(is_ours).collect::<Vec<_>>())
        }));
        for name in names {
            let (all, name) = (Arc::clone(&moving.uploads), (*name).to_owned());
            moving.site.api.always(patch(&format!("{UPLOADS}/{name}")).answers_with(move |sent| {
                let all = &mut *all.lock();
                let one = all.get_mut(&name).unwrap();
                json_patch::merge(one, sent);
                one.clone()
            }));
        }
        moving.site.api.always(get(MAPS).answers(list("5", &[map("a")])));
        moving
    }

    fn engine(&self) -> Engine {
        engine(&self.site.api, &self.site.folder, self.site.setting)
    }

    fn says(&self, name: &str, phase: &str) {
        let all = &mut *self.uploads.lock();
        let one = all.get_mut(name).unwrap();
        one["status"] = json!({"phase": phase, "snapshotID": format!("id-of-{name}"), "progress": {"totalBytes": 7, "bytesDone": 7}});
        if phase == "Failed" {
            one["status"]["message"] = json!("the disk is full");
        }
    }

    fn phase(&self) -> String {
        self.backup.lock()["status"]["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn counts(&self) -> [Value; 3] {
        let status = self.backup.lock()["status"].clone();
        ["Attempted", "Completed", "Failed"].map(|word| status[format!("backupItemOperations{word}")].clone())
    }

    /// Runs it until it waits.
    async fn waits(&self) -> Engine {
        let engine = self.engine();
        let ran = tokio::time::timeout(LONG, engine.run("one", "u", Signals::default())).await.unwrap();
        assert_eq!(ran.unwrap().unwrap().phase().as_str(), self.phase());
        assert!(self.phase().starts_with("WaitingForPluginOperations"), "{}", self.backup.lock());
        assert!(!self.site.stored().contains(&METADATA.to_owned()), "visible before it is whole");
        engine
    }

    async fn attend(&self, engine: &Engine) -> Attended {
        tokio::time::timeout(LONG, engine.attend("one", "u", Signals::default())).await.unwrap().unwrap()
    }

    fn file(&self, name: &str) -> Value {
        let path = self.site.folder.path().join("bucket/backups/one").join(name);
        serde_json::from_reader(MultiGzDecoder::new(&std::fs::read(path).unwrap()[..])).unwrap()
    }

    /// Objects of the archive by path, the later of two.
    fn archive(&self) -> BTreeMap<String, Value> {
        let path = self.site.folder.path().join("bucket/backups/one/one.tar.gz");
        let archive = std::fs::read(path).unwrap();
        let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
        let mut found = BTreeMap::new();
        for entry in tar.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if !path.contains("preferredversion") && path != "metadata/version" {
                found.insert(path, serde_json::from_slice(&content).unwrap());
            }
        }
        found
    }
}

#[tokio::test]
async fn a_backup_waits_for_its_movements_and_is_completed_with_what_has_become_of_them() {
    let moving = Moving::new(&["data", "logs"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    assert_eq!(moving.phase(), "WaitingForPluginOperations");
    assert_eq!(moving.counts(), [json!(2), Value::Null, Value::Null]);
    assert!(matches!(moving.attend(&engine).await, Attended::Nothing));
    moving.says("data", "Completed");
    assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
    assert_eq!(moving.counts(), [json!(2), json!(1), Value::Null]);
    assert_eq!(moving.phase(), "WaitingForPluginOperations");
    moving.says("logs", "Completed");
    assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
    assert_eq!(moving.phase(), "Finalizing");
    assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
    assert_eq!(moving.phase(), "Completed", "{}", moving.site.told());
    assert_eq!(moving.counts(), [json!(2), json!(2), Value::Null]);
    let archive = moving.archive();
    assert_eq!(archive["resources/configmaps/namespaces/app/a.json"], map("a"));
    for name in ["data", "logs"] {
        let path = format!("resources/datauploads.velero.io/namespaces/velero/{name}.json");
        assert_eq!(archive[&path]["status"]["snapshotID"], format!("id-of-{name}"), "{archive:?}");
    }
    let operations = moving.file("one-itemoperations.json.gz");
    assert_eq!(operations[0]["spec"]["operationID"], "du-u.claim-of-data");
    assert_eq!(operations[1]["spec"]["postOperationItems"][0]["Name"], "logs");
    assert_eq!(operations[1]["status"]["phase"], "Completed");
    let listed = moving.file("one-resource-list.json.gz");
    let names = json!(["velero/data", "velero/logs"]);
    assert_eq!(listed, json!({"v1/ConfigMap": ["app/a"], "velero.io/v2alpha1/DataUpload": names}));
    assert!(!moving.site.stored().contains(&"berth-checkpoint".to_owned()));
}

/// Whatever people want of interrupted runs: nothing of a backup that waits would be done twice.
#[tokio::test]
async fn the_next_leader_completes_what_waits_and_what_was_being_completed() {
    for setting in [AfterInterruption::Resume, AfterInterruption::Restart] {
        let moving = Moving::new(&["data"], setting);
        drop(moving.waits().await);
        let next = moving.engine();
        assert!(matches!(moving.attend(&next).await, Attended::Nothing));
        moving.says("data", "Completed");
        assert!(matches!(moving.attend(&next).await, Attended::Written(_)));
        assert_eq!(moving.phase(), "Finalizing");
        let third = moving.engine();
        assert!(matches!(moving.attend(&third).await, Attended::Written(_)));
        assert_eq!(moving.phase(), "Completed", "{}", moving.site.told());
        let maps = moving.site.api.asked().iter().filter(|asked| asked.contains(MAPS)).count();
        assert_eq!(maps, 1, "{:?}", moving.site.api.asked());
    }
}

#[tokio::test]
async fn a_movement_that_fails_or_is_gone_is_an_error_of_the_backup_and_everything_else_is_stored() {
    let moving = Moving::new(&["data", "logs", "more"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    moving.says("data", "Completed");
    moving.says("logs", "Failed");
    moving.attend(&engine).await;
    assert_eq!(moving.phase(), "WaitingForPluginOperationsPartiallyFailed");
    moving.uploads.lock().remove("more");
    moving.attend(&engine).await;
    assert_eq!(moving.phase(), "FinalizingPartiallyFailed");
    moving.attend(&engine).await;
    assert_eq!(moving.phase(), "PartiallyFailed");
    assert_eq!(moving.counts(), [json!(3), json!(1), json!(2)]);
    let told = moving.site.told();
    assert!(
        told.contains("claim logs was not moved (DataUpload logs): its data mover failed: the disk is full"),
        "{told}"
    );
    assert!(told.contains("claim more was not moved"), "{told}");
    let operations = moving.file("one-itemoperations.json.gz");
    let phases: Vec<&Value> = (0..3).map(|i| &operations[i]["status"]["phase"]).collect();
    assert_eq!(phases, ["Completed", "Failed", "Failed"]);
}

#[tokio::test]
async fn what_is_canceled_while_it_waits_cancels_its_movements_and_leaves_nothing() {
    for (setting, is_canceled) in [(AfterInterruption::Resume, true), (AfterInterruption::Fail, false)] {
        let moving = Moving::new(&["data", "logs"], setting);
        let mut engine = moving.waits().await;
        moving.says("data", "Completed");
        if is_canceled {
            moving.backup.lock()["metadata"]["annotations"][keys::CANCEL] = json!("true");
        } else {
            assert!(
                matches!(moving.attend(&engine).await, Attended::Written(_)),
                "nothing has interrupted it"
            );
            engine = moving.engine();
        }
        assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
        assert_eq!(moving.phase(), "Failed");
        let uploads = moving.uploads.lock().clone();
        assert_eq!(
            (&uploads["data"]["spec"]["cancel"], &uploads["logs"]["spec"]["cancel"]),
            (&Value::Null, &json!(true))
        );
        let left: &[&str] = if is_canceled { &[] } else { &LOG };
        assert_eq!(moving.site.stored(), left);
    }
}

#[tokio::test]
async fn without_its_checkpoint_a_backup_that_waited_fails_and_says_why() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    std::fs::remove_file(moving.site.folder.path().join("bucket/backups/one/berth-checkpoint")).unwrap();
    moving.says("data", "Completed");
    moving.attend(&engine).await;
    moving.attend(&engine).await;
    assert_eq!(moving.phase(), "Failed");
    let reason = moving.backup.lock()["status"]["failureReason"].clone();
    assert!(reason.as_str().unwrap().contains("is not in the location any more"), "{reason}");
}

/// Its location is away, so it is tried again; nothing fails by that.
#[tokio::test]
async fn a_location_that_is_away_delays_the_end() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    moving.says("data", "Completed");
    moving.attend(&engine).await;
    let (signals, asked) = (Signals::default(), || {
        moving.site.api.asked().iter().filter(|asked| asked.contains(LOCATION)).count()
    });
    let before = asked();
    moving.site.api.once(get(LOCATION).refuses(503));
    let story = async {
        while asked() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        signals.stop.cancel();
    };
    let (looked, ()) = tokio::join!(engine.attend("one", "u", signals.clone()), story);
    assert!(matches!(looked, Ok(Attended::Later)), "{looked:?}");
    assert_eq!(moving.phase(), "Finalizing");
    assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
    assert_eq!(moving.phase(), "Completed");
}
