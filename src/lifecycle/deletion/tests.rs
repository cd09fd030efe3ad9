//! A deletion against a scripted API server and a folder: what is written, and in which order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use berth_test_scripted::{Ask, Scripted, delete as deleting, get, list, patch as patching, post};
use serde_json::{Value, json};
use tokio::time::{Instant, advance};

use super::carry::DeletionEnd;
use super::carrying::Carrying;
use super::{DeletionRequests, kept, others};
use crate::lifecycle::Lifecycle;
use crate::storage::{Opener, Roots};
use crate::watch::WatchEvent;

mod repositories;
mod snapshots;

const VELERO: &str = "/apis/velero.io/v1/namespaces/velero";

fn path(kind: &str, name: &str) -> String {
    format!("{VELERO}/{kind}/{name}")
}

fn lifecycle(api: &Scripted, root: &Path) -> Lifecycle {
    let client = api.client("velero");
    let roots = Roots::from(vec![root.to_path_buf()]);
    Lifecycle { opener: Opener::new(client.clone(), "velero", roots), ..crate::lifecycle::fake(&client) }
}

fn request(version: &str, phase: &str) -> Value {
    let (labels, annotations) = match phase {
        "New" => (json!({}), json!({})),
        _ => (json!({"velero.io/backup-uid": "u"}), json!({"berth.dev/deletes-in": "l"})),
    };
    json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {
            "name": "r", "namespace": "velero", "uid": "ru", "resourceVersion": version,
            "labels": labels, "annotations": annotations,
        },
        "spec": {"backupName": "b"}, "status": {"phase": phase},
    })
}

fn backup(version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": "b", "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {"storageLocation": "l"},
        "status": {"phase": phase},
    })
}

fn location(root: &Path) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "l", "namespace": "velero"},
        "spec": {
            "provider": "berth.dev/filesystem", "objectStorage": {"bucket": "bucket"}, "config": {"path": root},
        },
        "status": {"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"},
    })
}

#[tokio::test(start_paused = true)]
async fn what_lists_volumes_is_read_again_only_where_it_has_changed() {
    use std::io::Write as _;

    use crate::storage::BackupLayout;
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"}));
    let api = script(root);
    let (lifecycle, requests) = (lifecycle(&api, root), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
    let mut carrying = Carrying::new(&lifecycle, &requests, request);
    let opened = carrying.open(&serde_json::from_value(location(root)).unwrap()).await.unwrap();
    let layout = BackupLayout::new(opened, None, "b");
    let native = json!([{
        "spec": {"backupName": "b", "backupUID": "u", "location": "default", "providerVolumeID": "vol-0123456789"},
        "status": {"providerSnapshotID": "snap-0123456789", "phase": "Completed"},
    }]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(native.to_string().as_bytes()).unwrap();
    let (gzip, none) = (gzip.finish().unwrap(), std::collections::BTreeSet::new());
    // Each time: is there a native snapshot now, for which Backup, and how many lists are asked
    // for?
    for (is_there, uid, asked) in
        [(false, "u", 2), (false, "u", 0), (true, "u", 2), (true, "u", 0), (true, "v", 2), (false, "v", 2)]
    {
        let list = root.join("bucket/backups/b/b-volumesnapshots.json.gz");
        match is_there {
            true if !list.exists() => std::fs::write(list, &gzip).unwrap(),
            false if list.exists() => std::fs::remove_file(list).unwrap(),
            _ => {}
        }
        let (survey, before) = (layout.survey().await.unwrap(), api.asked().len());
        let found = carrying.look_at_volumes_again(Some(&layout), Some(&survey), uid, &none).await;
        let out_of_reach = found.unwrap().out_of_reach;
        assert_eq!(out_of_reach.len(), usize::from(is_there), "{out_of_reach:?}");
        assert_eq!(api.asked().len() - before, asked, "{is_there} {uid}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_bucket_are_read_once_and_a_folder_is_looked_for_each_time() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root = tempfile::tempdir().unwrap();
    let (folder, mut bucket) = (location(root.path()), location(root.path()));
    bucket["spec"] = json!({"provider": "aws", "objectStorage": {"bucket": "b"}, "config": {}});
    // [default], aws_access_key_id=id, aws_secret_access_key=s
    let keys = "W2RlZmF1bHRdCmF3c19hY2Nlc3Nfa2V5X2lkPWlkCmF3c19zZWNyZXRfYWNjZXNzX2tleT1zCg==";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cloud-credentials"}, "data": {"cloud": keys},
    });
    let api =
        Scripted::new().always(get("/api/v1/namespaces/velero/secrets/cloud-credentials").answers(secret));
    let (lifecycle, requests) = (lifecycle(&api, root.path()), DeletionRequests::default());
    let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
    let mut carrying = Carrying::new(&lifecycle, &requests, request);
    for (region, reads) in [("a", 1), ("a", 1), ("b", 2), ("b", 2)] {
        bucket["spec"]["config"]["region"] = json!(region);
        carrying.open(&serde_json::from_value(bucket.clone()).unwrap()).await.unwrap();
        assert_eq!(api.asked().len(), reads, "{region}");
    }
    let folder = serde_json::from_value(folder).unwrap();
    std::fs::create_dir(root.path().join("bucket")).unwrap();
    assert!(carrying.open(&folder).await.is_ok());
    std::fs::remove_dir(root.path().join("bucket")).unwrap();
    assert!(carrying.open(&folder).await.is_err(), "its volume is gone");
}

/// What every deletion may ask for, whatever step it is at.
fn script(root: &Path) -> Scripted {
    with_location(Scripted::new(), root)
}

/// A script with that behind the lines that it has.
fn with_location(api: Scripted, root: &Path) -> Scripted {
    let namespace = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "kube-system", "uid": "c"},
    });
    let api = api
        .always(get(&path("backupstoragelocations", "l")).answers(location(root)))
        .always(get("/api/v1/namespaces/kube-system").answers(namespace));
    [
        format!("{VELERO}/restores"),
        format!("{VELERO}/podvolumebackups"),
        "/apis/velero.io/v2alpha1/namespaces/velero/datauploads".to_owned(),
    ]
    .iter()
    .fold(api, |api, kind| api.always(get(kind).answers(list("1", &[]))))
}

fn reads(api: &Scripted, version: &str, phase: &str, found: Option<Value>) {
    api.next(get(&path("deletebackuprequests", "r")).answers(request(version, phase)));
    let ask: Ask = get(&path("backups", "b"));
    match found {
        Some(found) => api.next(ask.answers(found)),
        None => api.next(ask.refuses(404)),
    };
}

async fn carry(api: &Scripted, root: &Path) -> DeletionEnd {
    carry_since(api, root, Instant::now()).await
}

async fn carry_since(api: &Scripted, root: &Path, since: Instant) -> DeletionEnd {
    let lifecycle = lifecycle(api, root);
    let requests = DeletionRequests::default();
    let request = serde_json::from_value(request("1", "New")).unwrap();
    Carrying::new(&lifecycle, &requests, Arc::new(request)).run(since).await
}

fn store(root: &Path, claim: &Value) {
    let folder = root.join("bucket/backups/b");
    std::fs::create_dir_all(&folder).unwrap();
    let metadata = json!({"metadata": {"uid": "u"}, "status": {}});
    for (name, text) in [
        ("velero-backup.json", metadata.to_string()),
        ("b.tar.gz", "x".into()),
        ("berth-run.json", claim.to_string()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn each_step_is_written_before_the_next_one_is_done() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"}));
    let api = script(root);
    let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
    let gone = json!({"kind": "Status", "status": "Success"});
    let mut recorded = backup("7", "Deleting");
    recorded["metadata"]["annotations"] = json!({"berth.dev/files-go": "true"});
    // Between the first two is the claim, which a store may refuse. Nobody holds the Backup by
    // then.
    reads(&api, "1", "New", Some(backup("5", "Completed")));
    api.next(patching(&request_path).answers(request("2", "InProgress")))
        .next(get(&backup_path).answers(backup("5", "Completed")))
        .next(patching(&backup_path).answers(recorded.clone()));
    // The files go. Nothing is left in the whole location.
    reads(&api, "2", "InProgress", Some(recorded));
    api.next(deleting(&backup_path).answers(gone.clone())).next(deleting(&request_path).answers(gone));
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    assert!(!root.join("bucket/backups/b").exists());
    let writes = api.writes();
    let begun = &writes[0].body;
    assert_eq!(begun["metadata"]["resourceVersion"], "1");
    assert_eq!(
        begun["metadata"]["labels"],
        json!({"velero.io/backup-name": "b", "velero.io/backup-uid": "u"})
    );
    assert_eq!(begun["metadata"]["annotations"], json!({"berth.dev/deletes-in": "l"}));
    assert_eq!(begun["status"]["phase"], "InProgress");
    assert_eq!(writes[1].body["metadata"]["resourceVersion"], "5");
    assert_eq!(writes[1].body["status"]["phase"], "Deleting");
    assert_eq!(writes[1].body["metadata"]["annotations"], json!({"berth.dev/files-go": "true"}));
    assert_eq!(writes[2].body["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
    assert_eq!(writes[3].body["preconditions"], json!({"uid": "ru"}));
    // Each of two looks reads three objects and lists the Restores, and the first one two kinds of
    // data. The cluster's UID is read once, the Backup once more before the claim, and the Restores
    // once more after the files.
    assert_eq!(api.asked().len(), 2 * 4 + 2 + 3 + writes.len(), "{:#?}", api.asked());
    api.finish();
}

/// As after its snapshots have gone, or where another process has made it Deleting.
#[tokio::test(start_paused = true)]
async fn a_backup_that_is_deleting_already_records_that_its_files_go_before_they_do() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "deletion-ru"}));
    let api = script(root);
    let gone = json!({"kind": "Status", "status": "Success"});
    let mut recorded = backup("7", "Deleting");
    recorded["metadata"]["annotations"] = json!({"berth.dev/files-go": "true"});
    reads(&api, "2", "InProgress", Some(backup("6", "Deleting")));
    api.next(patching(&path("backups", "b")).answers(recorded.clone()));
    reads(&api, "2", "InProgress", Some(recorded));
    api.next(deleting(&path("backups", "b")).answers(gone.clone()))
        .next(deleting(&path("deletebackuprequests", "r")).answers(gone));
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    let first = &api.writes()[0].body;
    assert_eq!(first["metadata"]["resourceVersion"], "6");
    assert_eq!(first["metadata"]["annotations"], json!({"berth.dev/files-go": "true"}));
    assert!(first["status"].is_null(), "{first}");
    assert!(!root.join("bucket/backups/b").exists());
    api.finish();
}

/// Somebody has annotated it, or a restore of it has begun.
#[tokio::test(start_paused = true)]
async fn what_comes_while_the_files_go_is_seen_before_the_backup_goes() {
    let gone = json!({"kind": "Status", "status": "Success"});
    for is_restored in [false, true] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "deletion-ru"}));
        let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
        let mut recorded = backup("7", "Deleting");
        recorded["metadata"]["annotations"] = json!({"berth.dev/files-go": "true"});
        let restores = format!("{VELERO}/restores");
        let restore = json!({
            "apiVersion": "velero.io/v1", "kind": "Restore", "metadata": {"name": "back", "uid": "back"},
            "spec": {"backupName": "b"}, "status": {"phase": "InProgress"},
        });
        let api = Scripted::new();
        reads(&api, "2", "InProgress", Some(recorded.clone()));
        let none = || get(&restores).answers(list("1", &[]));
        api.next(none());
        if is_restored {
            api.next(get(&restores).answers(list("1", &[restore])));
        } else {
            api.next(none()).next(deleting(&backup_path).refuses(409));
            recorded["metadata"]["resourceVersion"] = json!("8");
            reads(&api, "2", "InProgress", Some(recorded));
            api.next(deleting(&backup_path).answers(gone.clone()))
                .next(deleting(&request_path).answers(gone.clone()));
        }
        let api = with_location(api, root);
        let ended = carry(&api, root).await;
        assert_eq!(ended, if is_restored { DeletionEnd::Not } else { DeletionEnd::Yes });
        assert!(!root.join("bucket/backups/b").exists());
        let versions: Vec<Value> =
            api.writes().iter().map(|write| write.body["preconditions"]["resourceVersion"].clone()).collect();
        let wanted = if is_restored { vec![] } else { vec![json!("7"), json!("8"), Value::Null] };
        assert_eq!(versions, wanted);
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_comes_meanwhile_is_seen_before_anything_goes() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"}));
    let api = script(root);
    let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
    let mut held = backup("6", "Completed");
    held["metadata"]["annotations"] = json!({"berth.dev/keep": "a court asks for it"});
    reads(&api, "1", "New", Some(backup("5", "Completed")));
    api.next(patching(&request_path).answers(request("2", "InProgress")))
        .next(get(&backup_path).answers(backup("5", "Completed")))
        .next(patching(&backup_path).refuses(409));
    reads(&api, "2", "InProgress", Some(held));
    api.next(patching(&request_path).answers(request("3", "Processed")));
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    let writes = api.writes();
    assert_eq!(writes[1].body["metadata"]["resourceVersion"], "5");
    assert!(writes[2].body["status"]["errors"][0].to_string().contains("a court asks for it"));
    for file in ["velero-backup.json", "b.tar.gz"] {
        assert!(root.join("bucket/backups/b").join(file).exists(), "{file}");
    }
    api.finish();
}

/// No cluster would bring it back from its store, as after the loss of this one.
#[tokio::test(start_paused = true)]
async fn a_backup_that_is_held_or_gone_before_its_folder_is_claimed_stays_as_it_was() {
    let mut held = backup("6", "Completed");
    held["metadata"]["annotations"] = json!({"berth.dev/keep": "a court asks for it"});
    for now in [Some(held), None] {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let claim = json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"});
        store(root, &claim);
        let api = script(root);
        let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
        reads(&api, "1", "New", Some(backup("5", "Completed")));
        let read = get(&backup_path);
        api.next(patching(&request_path).answers(request("2", "InProgress"))).next(match &now {
            Some(held) => read.answers(held.clone()),
            None => read.refuses(404),
        });
        let is_held = now.is_some();
        reads(&api, "2", "InProgress", now);
        api.next(if is_held {
            patching(&request_path).answers(request("3", "Processed"))
        } else {
            // Somebody has removed the Backup, which leaves its files.
            deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"}))
        });
        assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
        let stored = std::fs::read_to_string(root.join("bucket/backups/b/berth-run.json")).unwrap();
        assert_eq!(stored, claim.to_string());
        api.finish();
    }
}

/// As where a webhook takes the phase back: what was written is believed in the next look only.
#[tokio::test(start_paused = true)]
async fn what_was_written_and_did_not_stay_is_written_again_after_another_look() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "deletion-ru"}));
    let api = script(root);
    let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
    for version in ["5", "6"] {
        reads(&api, "2", "InProgress", Some(backup(version, "Completed")));
        api.next(patching(&backup_path).answers(backup("6", "Completed")));
    }
    // Somebody has removed the Backup by now: what the deletion has claimed goes.
    reads(&api, "2", "InProgress", None);
    reads(&api, "2", "InProgress", None);
    api.next(deleting(&request_path).answers(json!({"kind": "Status", "status": "Success"})));
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    assert!(!root.join("bucket/backups/b").exists());
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_mounted_is_not_taken_for_a_backup_that_is_gone() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let bucket = root.join("bucket");
    std::fs::create_dir_all(&bucket).unwrap();
    let ends = patching(&path("deletebackuprequests", "r")).answers(request("2", "Processed"));
    let api = script(root);
    reads(&api, "1", "New", Some(backup("5", "Completed")));
    api.next(ends);
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    let [write] = api.writes().try_into().unwrap();
    let said = write.body["status"]["errors"][0].as_str().unwrap();
    assert!(said.contains("neither this backup nor any other"), "{said}");
    api.finish();

    // With another backup beside it, the folder is known to be empty.
    std::fs::create_dir_all(bucket.join("backups/other")).unwrap();
    std::fs::write(bucket.join("backups/other/velero-backup.json"), "{}").unwrap();
    let api = script(root);
    reads(&api, "1", "New", Some(backup("5", "Completed")));
    api.next(patching(&path("deletebackuprequests", "r")).answers(request("2", "InProgress")));
    api.next(patching(&path("backups", "b")).answers(backup("6", "Deleting")));
    reads(&api, "2", "InProgress", Some(backup("6", "Deleting")));
    api.next(deleting(&path("backups", "b")).answers(json!({"kind": "Status", "status": "Success"})));
    api.next(
        deleting(&path("deletebackuprequests", "r")).answers(json!({"kind": "Status", "status": "Success"})),
    );
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn the_location_that_a_backup_names_leads_to_no_other_object() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path());
    let mut odd = backup("5", "FailedValidation");
    odd["spec"]["storageLocation"] = json!("../secrets/s");
    reads(&api, "1", "New", Some(odd));
    api.next(patching(&path("deletebackuprequests", "r")).answers(request("2", "Processed")));
    assert_eq!(carry(&api, root.path()).await, DeletionEnd::Yes);
    let said = api.writes()[0].body["status"]["errors"][0].to_string();
    assert!(said.contains("backup storage location ../secrets/s is not found"), "{said}");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_strangers_folder_ends_the_request_and_nothing_else_is_written() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    store(root, &json!({"cluster": "away", "namespace": "velero", "backup": "a", "run": "r"}));
    let api = script(root);
    reads(&api, "1", "New", Some(backup("5", "Completed")));
    api.next(patching(&path("deletebackuprequests", "r")).answers(request("2", "Processed")));
    assert_eq!(carry(&api, root).await, DeletionEnd::Yes);
    let [write] = api.writes().try_into().unwrap();
    assert_eq!(write.body["status"]["phase"], "Processed");
    let said = write.body["status"]["errors"][0].as_str().unwrap();
    assert!(said.contains("the cluster with UID away"), "{said}");
    assert!(root.join("bucket/backups/b/velero-backup.json").exists());
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_starts_meanwhile_is_not_taken_out_of_the_queue() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path());
    let (request_path, backup_path) = (path("deletebackuprequests", "r"), path("backups", "b"));
    reads(&api, "1", "New", Some(backup("5", "Queued")));
    api.next(deleting(&backup_path).refuses(409));
    reads(&api, "1", "New", Some(backup("6", "InProgress")));
    api.next(patching(&request_path).answers(request("2", "Processed")));
    assert_eq!(carry(&api, root.path()).await, DeletionEnd::Yes);
    let writes = api.writes();
    assert_eq!(writes[0].body["preconditions"], json!({"uid": "u", "resourceVersion": "5"}));
    assert!(writes[1].body["status"]["errors"][0].as_str().unwrap().contains("still in progress"));
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_gives_its_place_up_and_ends_with_the_reason() {
    let root = tempfile::tempdir().unwrap();
    for (phase, left) in
        [("Deleting", "what is left of the backup is removed"), ("Completed", "the backup is as it was")]
    {
        let unmounted = location(&root.path().join("unmounted"));
        let api = Scripted::new()
            .always(get(&path("deletebackuprequests", "r")).answers(request("2", "InProgress")))
            .always(get(&path("backups", "b")).answers(backup("6", phase)))
            .always(get(&path("backupstoragelocations", "l")).answers(unmounted));
        let since = Instant::now();
        assert_eq!(carry_since(&api, root.path(), since).await, DeletionEnd::Failed);
        let turn = since.elapsed();
        assert!(turn > Duration::from_secs(25) && turn < Duration::from_secs(40), "others wait: {turn:?}");
        let again = Instant::now();
        assert_eq!(carry_since(&api, root.path(), since).await, DeletionEnd::Failed);
        assert!(again.elapsed() < Duration::from_secs(1), "it has had its turn: {:?}", again.elapsed());
        assert!(api.writes().is_empty());
        advance(Duration::from_secs(600)).await;
        api.next(patching(&path("deletebackuprequests", "r")).answers(request("3", "Processed")));
        assert_eq!(carry_since(&api, root.path(), since).await, DeletionEnd::Yes);
        let [write] = api.writes().try_into().unwrap();
        let said = write.body["status"]["errors"][0].as_str().unwrap();
        assert!(said.starts_with("given up after 10 minutes: ") && said.contains(left), "{said}");
        api.finish();
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_waits_for_its_store_gives_its_place_up_until_its_time_is_over() {
    let root = tempfile::tempdir().unwrap();
    let mut unavailable = location(root.path());
    unavailable["status"]["phase"] = json!("Unavailable");
    let api = Scripted::new()
        .always(get(&path("deletebackuprequests", "r")).answers(request("2", "InProgress")))
        .always(get(&path("backups", "b")).answers(backup("6", "Deleting")))
        .always(get(&path("backupstoragelocations", "l")).answers(unavailable));
    let since = Instant::now();
    assert_eq!(carry_since(&api, root.path(), since).await, DeletionEnd::Not);
    assert!(since.elapsed() < Duration::from_secs(1), "it waits elsewhere");
    assert!(api.writes().is_empty());
    advance(Duration::from_secs(600)).await;
    api.next(patching(&path("deletebackuprequests", "r")).answers(request("3", "Processed")));
    assert_eq!(carry_since(&api, root.path(), since).await, DeletionEnd::Yes);
    let [write] = api.writes().try_into().unwrap();
    let said = write.body["status"]["errors"][0].as_str().unwrap();
    assert!(said.contains("given up after 10 minutes: ") && said.contains("unavailable"), "{said}");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_stand_still_while_requests_change() {
    let root = tempfile::tempdir().unwrap();
    let api = script(root.path());
    reads(&api, "1", "New", Some(backup("5", "Queued")));
    let gone = json!({"kind": "Status", "status": "Success"});
    api.next(deleting(&path("backups", "b")).answers(gone.clone()))
        .next(deleting(&path("deletebackuprequests", "r")).answers(gone));
    let lifecycle = lifecycle(&api, root.path());
    let requests = DeletionRequests::default();
    let made = |name: &str| -> berth_api::velero::DeleteBackupRequest {
        let mut made = request("1", if name == "r" { "New" } else { "Processed" });
        made["metadata"]["name"] = json!(name);
        made["spec"]["backupName"] = json!(if name == "r" { "b" } else { name });
        made["metadata"]["uid"] = json!(format!("{name}u"));
        made["metadata"]["creationTimestamp"] = json!(jiff::Timestamp::now().to_string());
        serde_json::from_value(made).unwrap()
    };
    let all = vec![("r".to_owned(), Arc::new(made("r")))];
    requests.write(|cache| cache.observe(WatchEvent::Replaced(all)));
    // Somebody else's requests change all the time.
    let changing = async {
        for i in 0_u32.. {
            let name = format!("other-{}", i % 3);
            let event = WatchEvent::Applied((name.clone(), Arc::new(made(&name))));
            requests.write(|cache| cache.observe(event));
            tokio::task::yield_now().await;
            if i % 100 == 99 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let begun = Instant::now();
    tokio::select! {
        () = super::work(&lifecycle, &requests) => {}
        () = changing => {}
        () = api.played() => {}
    }
    assert!(begun.elapsed() < super::SETTLE, "{:?}", begun.elapsed());
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn restores_go_with_their_files_and_what_was_refused_has_none() {
    use kube::api::DynamicObject;
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt as _, path::Path as StorePath};

    use crate::storage::BackupLayout;
    let root = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now().to_string();
    let restore = |name: &str, backup: &str, phase: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "Restore",
            "metadata": {
                "name": name, "namespace": "velero", "uid": name, "resourceVersion": "1",
                "finalizers": ["restores.velero.io/external-resources-finalizer", "example.com/own"],
            },
            "spec": {"backupName": backup},
            "status": {"phase": phase, "startTimestamp": now, "completionTimestamp": now},
        })
    };
    // Another cluster has one of the same name in the same place.
    let mut earlier = restore("shared", "b", "Completed");
    earlier["status"]["startTimestamp"] = json!("2026-01-01T00:00:00Z");
    earlier["status"]["completionTimestamp"] = json!("2026-01-01T00:01:00Z");
    // Nobody knows when this one stopped.
    let mut cut = restore("cut", "b", "InProgress");
    cut["metadata"]["deletionTimestamp"] = json!("2100-01-01T00:00:00Z");
    cut["status"] = json!({"phase": "InProgress", "startTimestamp": "2026-01-01T00:00:00Z"});
    let all = [
        restore("good", "b", "Completed"),
        restore("refused", "b", "FailedValidation"),
        earlier,
        cut,
        restore("running", "b", "InProgress"),
        restore("other", "c", "Completed"),
    ];
    let kind = format!("{VELERO}/restores");
    let api = Scripted::new().next(get(&kind).answers(list("1", &all)));
    let lifecycle = lifecycle(&api, root.path());
    let requests = DeletionRequests::default();
    let request = Arc::new(serde_json::from_value(request("1", "New")).unwrap());
    let carrying = Carrying::new(&lifecycle, &requests, request);
    let (ended, running) = carrying.look_at_restores().await.unwrap();
    let names = |found: &[DynamicObject]| -> Vec<String> {
        found.iter().filter_map(|restore| restore.metadata.name.clone()).collect()
    };
    assert_eq!(names(&ended), ["good", "refused", "shared", "cut"]);
    assert_eq!(names(&running), ["running"]);

    let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
    let file = |restore: &str| StorePath::from(format!("restores/{restore}/restore-{restore}-logs.gz"));
    for restore in ["good", "refused", "shared", "cut"] {
        layout.store().put(&file(restore), "x".into()).await.unwrap();
        let one = format!("{kind}/{restore}");
        api.next(patching(&one).answers(all[0].clone()))
            .next(deleting(&one).answers(json!({"kind": "Status", "status": "Success"})));
    }
    carrying.remove_restores(Some(&layout), &ended).await.unwrap();
    assert_eq!(api.writes()[0].body["metadata"]["finalizers"], json!(["example.com/own"]));
    assert!(layout.store().head(&file("good")).await.is_err());
    for others in ["refused", "shared", "cut"] {
        assert!(layout.store().head(&file(others)).await.is_ok(), "it is not provably this one's");
    }
    api.finish();
}

#[test]
fn requests_for_another_backup_of_the_same_name_are_left() {
    let requests = DeletionRequests::default();
    let of = |name: &str, uid: Option<&str>, phase: &str| {
        let mut made = request("1", phase);
        made["metadata"] = json!({"name": name, "uid": name, "labels": {}});
        if let Some(uid) = uid {
            made["metadata"]["labels"] = json!({"velero.io/backup-uid": uid});
        }
        let made: berth_api::velero::DeleteBackupRequest = serde_json::from_value(made).unwrap();
        (name.to_owned(), Arc::new(made))
    };
    let all = vec![
        of("this", Some("u"), "New"),
        of("same", Some("u"), "New"),
        of("any", None, "New"),
        of("later", Some("v"), "New"),
        of("done", Some("v"), "Processed"),
    ];
    let this = Arc::clone(&all[0].1);
    requests.write(|cache| cache.observe(WatchEvent::Replaced(all)));
    let found = others(&requests, &this, Some("u"));
    let names: Vec<&str> = found.iter().filter_map(|one| one.metadata.name.as_deref()).collect();
    assert_eq!(names, ["any", "done", "same"]);
}

/// Whoever asks for deletions chooses how large the requests are, and how many there are.
#[test]
fn a_request_takes_little_memory_whatever_is_in_it() {
    let large = "x".repeat(1000);
    let mut made = request("1", "InProgress");
    for i in 0..1000 {
        made["metadata"]["annotations"][format!("berth.dev/{i}")] = json!(large);
        made["metadata"]["labels"][format!("velero.io/{i}")] = json!(large);
    }
    made["metadata"]["finalizers"] = json!(vec![&large; 1000]);
    made["status"]["errors"] = json!(vec![&large; 1000]);
    made["spec"]["backupName"] = json!("b".repeat(1_000_000));
    let found = kept(serde_json::from_value(made).unwrap());
    assert!(crate::patch::json_size(&found) < 2000, "{found:?}");
    assert!(!berth_core::sync::is_name(&found.spec.backup_name));
    let found = kept(serde_json::from_value(request("1", "InProgress")).unwrap());
    let wanted: berth_api::velero::DeleteBackupRequest =
        serde_json::from_value(request("1", "InProgress")).unwrap();
    assert_eq!(found, wanted, "what is read stays");
}

/// The engine could not remove it before its process ended.
#[tokio::test(start_paused = true)]
async fn what_a_deleted_backup_has_left_goes_and_stays_while_nobody_can_tell_where_its_data_is() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let folder = root.join("bucket/backups/b");
    std::fs::create_dir_all(&folder).unwrap();
    let claim = json!({"cluster": "c", "namespace": "velero", "backup": "u", "run": "r"}).to_string();
    for (name, text) in
        [("b.tar.gz", "x"), ("berth-checkpoint", "unreadable"), ("berth-run.json", claim.as_str())]
    {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let (request_path, gone) =
        (path("deletebackuprequests", "r"), json!({"kind": "Status", "status": "Success"}));
    let api = script(root)
        .always(get(&request_path).answers(request("2", "InProgress")))
        .always(get(&path("backups", "b")).refuses(404));
    let since = Instant::now();
    assert_eq!(carry_since(&api, root, since).await, DeletionEnd::Failed);
    advance(Duration::from_secs(600)).await;
    assert_eq!(carry_since(&api, root, since).await, DeletionEnd::Failed, "nobody can ask for it again");
    assert!(api.writes().is_empty());
    advance(Duration::from_secs(3600)).await;
    api.next(patching(&request_path).answers(request("3", "Processed")));
    assert_eq!(carry_since(&api, root, since).await, DeletionEnd::Yes);
    let said = api.writes()[0].body["status"]["errors"][0].as_str().unwrap().to_owned();
    assert!(said.starts_with("given up after 60 minutes: ") && said.contains("backup-uid"), "{said}");
    assert!(folder.join("berth-checkpoint").exists());
    // Another one finds that there is none.
    std::fs::remove_file(folder.join("berth-checkpoint")).unwrap();
    api.next(deleting(&request_path).answers(gone));
    assert_eq!(carry_since(&api, root, Instant::now()).await, DeletionEnd::Yes);
    assert!(!folder.exists());
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_the_engine_still_removes_is_left_to_it() {
    let root = tempfile::tempdir().unwrap();
    let api = Scripted::new();
    let lifecycle = lifecycle(&api, root.path());
    let requests = DeletionRequests::default();
    let mut made = request("1", "InProgress");
    made["metadata"]["creationTimestamp"] = json!(jiff::Timestamp::now().to_string());
    let all = vec![("r".to_owned(), Arc::new(serde_json::from_value(made).unwrap()))];
    requests.write(|cache| cache.observe(WatchEvent::Replaced(all)));
    let working = || async {
        let work = super::work(&lifecycle, &requests);
        assert!(tokio::time::timeout(super::PERIOD, work).await.is_err(), "it works for ever");
    };
    let begun = lifecycle.removals.begin("u");
    working().await;
    assert!(api.asked().is_empty());
    drop(begun);
    let api = api.once(get(&path("deletebackuprequests", "r")).refuses(404));
    working().await;
    api.finish();
}
