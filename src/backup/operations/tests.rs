//! How DataUploads are asked for, and that no crash leads to two of them.

use berth_test_scripted::{Scripted, get, list, patch, post};
use serde_json::{Value, json};

use super::*;

const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";
const PODS: &str = "/api/v1/namespaces/velero/pods";

fn backup() -> Backup {
    let backup = json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": "nightly", "namespace": "velero", "uid": "u"},
        "spec": {
            "storageLocation": "default", "snapshotMoveData": true, "csiSnapshotTimeout": "20m",
            "uploaderConfig": {"parallelFilesUpload": 4},
        },
    });
    serde_json::from_value(backup).unwrap()
}

fn moved() -> Moved {
    let [namespace, claim, claim_uid, volume, snapshot, content, storage_class, snapshot_class, driver] =
        ["app", "data", "c", "pv", "snap", "content", "fast", "snaps", "csi.example.org"].map(str::to_owned);
    Moved { namespace, claim, claim_uid, volume, snapshot, content, storage_class, snapshot_class, driver }
}

fn first() -> String {
    name_of("nightly", "u", "c", 0)
}

/// A pod of a node-agent.
fn agent(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "velero"},
        "spec": {"nodeName": "n1", "containers": []}, "status": {"phase": "Running"},
    })
}

/// Without node-agents, unless the script has some.
async fn moves(api: &Scripted) -> (Result<(), String>, Movements) {
    api.always(get(PODS).answers(list("5", &[])));
    let (movements, log) = (Movements::default(), BackupLog::new("velero/nightly".into()));
    let moved_well = {
        let mover = DataUploadCreator::new(&api.client("velero"), "velero", &backup(), &movements, &log);
        mover.move_data(moved()).await.map(drop)
    };
    (moved_well, movements)
}

#[tokio::test(start_paused = true)]
async fn a_data_upload_is_asked_for_as_velero_does() {
    let api = Scripted::new().next(post(UPLOADS).answers_with(Value::clone));
    let (done, movements) = moves(&api).await;
    assert_eq!((done, movements.len()), (Ok(()), 1));
    let sent = api.writes()[0].body.clone();
    assert_eq!(
        sent["spec"],
        json!({
            "snapshotType": "CSI", "sourcePVC": "data", "sourceNamespace": "app", "backupStorageLocation": "default",
            "csiSnapshot": {
                "volumeSnapshot": "snap", "storageClass": "fast", "snapshotClass": "snaps", "driver": "csi.example.org",
            },
            "operationTimeout": "20m0s", "dataMoverConfig": {"ParallelFilesUpload": "4"},
        })
    );
    let labels = json!({
        "velero.io/backup-name": "nightly", "velero.io/backup-uid": "u", "velero.io/pvc-uid": "c",
        "velero.io/async-operation-id": "du-u.c",
    });
    assert_eq!(sent["metadata"]["labels"], labels);
    let owner = json!([{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "nightly", "uid": "u", "controller": true}]);
    assert_eq!(sent["metadata"]["ownerReferences"], owner);
    assert_eq!(sent["metadata"]["name"], first());
}

#[tokio::test(start_paused = true)]
async fn berth_moves_the_data_where_only_its_own_agents_run() {
    let pods = |names: &[&str]| {
        let pods: Vec<Value> = names.iter().map(|name| agent(name)).collect();
        get(PODS).answers(list("5", &pods))
    };
    // Velero's are listed first.
    for (of_velero, of_berth, wanted) in [
        (&[][..], &["b"][..], json!("berth")),
        (&["v"], &["b"], Value::Null),
        (&["v"], &[], Value::Null),
        (&[], &[], Value::Null),
    ] {
        let api = Scripted::new()
            .next(pods(of_velero))
            .next(pods(of_berth))
            .next(post(UPLOADS).answers_with(Value::clone));
        assert_eq!(moves(&api).await.0, Ok(()));
        let sent = &api.writes()[0].body;
        assert_eq!(sent["spec"]["datamover"], wanted, "{of_velero:?} {of_berth:?}");
        // Nobody would remove it from one that another data mover carries.
        let held = if wanted.is_null() { Value::Null } else { json!(["berth.dev/data-mover"]) };
        assert_eq!(sent["metadata"]["finalizers"], held);
    }
    let api = Scripted::new().next(get(PODS).refuses(403));
    let (refused, movements) = moves(&api).await;
    assert!(refused.unwrap_err().contains("the node-agents cannot be listed") && movements.is_empty());
}

#[tokio::test(start_paused = true)]
async fn data_is_left_to_the_data_mover_that_the_backup_names_whoever_runs_here() {
    let mut asked = backup();
    asked.spec.datamover = Some("vendor".to_owned());
    let api = Scripted::new().next(post(UPLOADS).answers_with(Value::clone));
    let (movements, log) = (Movements::default(), BackupLog::new("velero/nightly".into()));
    let mover = DataUploadCreator::new(&api.client("velero"), "velero", &asked, &movements, &log);
    mover.move_data(moved()).await.unwrap();
    let sent = api.writes()[0].body.clone();
    assert_eq!(sent["spec"]["datamover"], "vendor");
    // Nobody here would remove it.
    assert!(sent["metadata"]["finalizers"].is_null(), "{sent}");
    assert_eq!((movements.len(), api.asked().len()), (1, 1), "no node-agent is looked for");
}

/// As an earlier run has left it.
fn found(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut found = json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataUpload",
        "metadata": {
            "name": name, "uid": "x", "labels": {"velero.io/backup-uid": "u"},
            "ownerReferences": [{"apiVersion": "velero.io/v1", "kind": "Backup", "name": "nightly", "uid": "u"}],
        },
        "spec": {}, "status": {"phase": "InProgress"},
    });
    change(&mut found);
    found
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_run_has_begun_is_found_and_what_was_given_up_is_begun_again() {
    let exists = || post(UPLOADS).already_exists();
    let api = Scripted::new()
        .next(exists())
        .next(get(&format!("{UPLOADS}/{}", first())).answers(found(&first(), |_| {})));
    let (done, movements) = moves(&api).await;
    assert_eq!((done, movements.all()[0].upload.clone()), (Ok(()), first()));
    let given_up: [fn(&mut Value); 4] = [
        |one| one["spec"]["cancel"] = json!(true),
        |one| one["status"]["phase"] = json!("Canceled"),
        |one| one["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        |one| one["metadata"]["ownerReferences"][0]["uid"] = json!("another"),
    ];
    for change in given_up {
        let api = Scripted::new()
            .next(exists())
            .next(get(&format!("{UPLOADS}/{}", first())).answers(found(&first(), change)))
            .next(post(UPLOADS).answers_with(Value::clone));
        let (done, movements) = moves(&api).await;
        assert_eq!((done, movements.all()[0].upload.clone()), (Ok(()), name_of("nightly", "u", "c", 1)));
    }
}

/// Its data mover writes its progress meanwhile.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_meets_another_write_is_repeated_until_it_stands() {
    let path = format!("{UPLOADS}/one");
    let upload = || found("one", |_| {});
    let another = found("one", |one| one["metadata"]["uid"] = json!("another"));
    for script in [
        vec![
            patch(&path).refuses(409),
            get(&path).answers(upload()),
            patch(&path).refuses(409),
            get(&path).answers(upload()),
            patch(&path).answers(upload()),
        ],
        // It is gone, or another one has its name by now.
        vec![patch(&path).refuses(409), get(&path).refuses(404)],
        vec![patch(&path).refuses(409), get(&path).answers(another)],
        // What cannot be read or written now may be later.
        vec![patch(&path).refuses(409), get(&path).refuses(500), patch(&path).answers(upload())],
        vec![patch(&path).refuses(500), patch(&path).answers(upload())],
        // No other try would change that.
        vec![patch(&path).refuses(403)],
    ] {
        let api = Scripted::new();
        for line in script {
            api.next(line);
        }
        let seen = DataUploadObject::read(serde_json::from_value(upload()).unwrap());
        uploads::cancel(&api.client("velero"), "velero", &[seen], false).await;
        let wanted = json!({"metadata": {"uid": "x"}, "spec": {"cancel": true}});
        assert!(api.writes().iter().all(|write| write.body == wanted), "{:?}", api.writes());
        api.finish();
    }
}

#[test]
fn names_are_those_of_labels_and_no_two_claims_share_one() {
    let long = "n".repeat(250);
    let names =
        [("nightly", "c", 0), ("nightly", "d", 0), ("nightly", "c", 1), (&*long, "c", 0), ("a.", "c", 0)]
            .map(|(backup, claim, try_count)| name_of(backup, "u", claim, try_count));
    for name in &names {
        assert!(name.len() <= 63 && !name.contains(".-"), "{name}");
    }
    let all: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(all.len(), names.len());
}
