use berth_test_scripted::{Scripted, get, patch};

use super::*;

const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";
const PATIENCE: Duration = Duration::from_secs(30);

fn backup(uid: &str, version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": "one", "namespace": "velero", "uid": uid, "resourceVersion": version},
        "spec": {"unknown": "kept"}, "status": {"phase": phase},
    })
}

/// InProgress at version 7. Adds the answers to what it asks for.
async fn record(api: &Scripted) -> BackupWriter {
    let api = api.always(get(ONE).answers(backup("u", "7", "InProgress")));
    BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap()
}

async fn ends(record: &mut BackupWriter) -> Result<(), WriteError> {
    record.merge(&json!({"status": {"phase": "Completed"}}), BackupPhase::InProgress, PATIENCE).await
}

fn versions(api: &Scripted) -> Vec<Value> {
    api.writes().iter().map(|write| write.body["metadata"]["resourceVersion"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn another_object_of_the_name_is_not_ours() {
    let api = Scripted::new()
        .next(get(ONE).answers(backup("of a later one", "7", "ReadyToStart")))
        .next(get(ONE).refuses(404));
    for _ in 0..2 {
        let read = BackupWriter::read(api.client("velero"), "velero", "one", "u").await;
        assert!(matches!(read, Err(WriteError::Gone)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_clock_that_a_backup_began_by_counts_until_it_expires() {
    for (started, expired, lasts) in [
        ("2026-01-01T10:00:05Z", "2026-01-01T11:00:05Z", "2026-01-01T11:00:04Z"),
        // Ten minutes behind, as the object was created before.
        ("2026-01-01T09:50:00Z", "2026-01-01T11:10:05Z", "2026-01-01T11:10:04Z"),
    ] {
        let mut found = backup("u", "7", "WaitingForPluginOperations");
        found["metadata"]["creationTimestamp"] = json!("2026-01-01T10:00:00Z");
        found["status"]["startTimestamp"] = json!(started);
        found["status"]["expiration"] = json!("2026-01-01T11:00:05Z");
        let api = Scripted::new().next(get(ONE).answers(found));
        let record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
        let is_expired = |at: &str| record.is_expired(at.parse().unwrap());
        assert!(is_expired(expired) && !is_expired(lasts), "{started}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_it_is_written_on_the_version_that_stands_now() {
    let api = Scripted::new().next(get(ONE).answers(backup("u", "7", "InProgress")));
    let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
    api.next(patch(ONE).refuses(409))
        .next(get(ONE).answers(backup("u", "8", "InProgress")))
        .next(patch(ONE).answers(backup("u", "9", "Completed")));
    ends(&mut record).await.unwrap();
    assert_eq!(versions(&api), ["7", "8"]);
    assert_eq!(api.writes()[0].body["metadata"]["uid"], "u");
    assert_eq!((record.phase(), record.object().resource_version().as_deref()), ("Completed", Some("9")));
}

/// Somebody patches the Backup ten times a second. Its end was never written, so it kept its slot
/// until the write was given up.
#[tokio::test(start_paused = true)]
async fn a_backup_that_is_patched_without_a_pause_is_written_nonetheless() {
    let server = Server::new("InProgress");
    server.write()(&json!({"metadata": {"annotations": {keys::RUN: "run"}}}));
    let api = Scripted::new();
    let mut record = server.record(&api).await;
    for _ in 0..CONFLICTS {
        api.next(patch(ONE).refuses(409));
    }
    // The run mark was changed between the read and the write, and then it was not.
    api.next(patch(ONE).refuses(422)).next(patch(ONE).answers(backup("u", "99", "Completed")));
    let begun = Instant::now();
    ends(&mut record).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let writes = api.writes();
    assert_eq!(
        writes.last().unwrap().body,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/status/phase", "value": "InProgress"},
            {"op": "test", "path": "/metadata/annotations/berth.dev~1run", "value": "run"},
            {"op": "replace", "path": "/status/phase", "value": "Completed"},
        ])
    );
    assert_eq!(writes.len(), CONFLICTS as usize + 2);
}

/// What is invalid does not become valid: it is told, and not tried for as long as a conflict is.
#[tokio::test(start_paused = true)]
async fn an_object_that_would_be_invalid_is_refused_behind_conflicts_too() {
    let server = Server::new("InProgress");
    let api = Scripted::new();
    let mut record = server.record(&api).await;
    for _ in 0..CONFLICTS {
        api.next(patch(ONE).refuses(409));
    }
    for _ in 0..=UNPROCESSABLE {
        api.next(patch(ONE).refuses(422));
    }
    assert!(matches!(ends(&mut record).await, Err(WriteError::Refused(_))));
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_ended_or_made_anew_meanwhile_is_not_written() {
    for (meanwhile, gone) in
        [(backup("u", "8", "Deleting"), false), (backup("of a later one", "8", "InProgress"), true)]
    {
        let api = Scripted::new().next(get(ONE).answers(backup("u", "7", "InProgress")));
        let mut record = BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap();
        api.next(patch(ONE).refuses(409)).next(get(ONE).answers(meanwhile));
        let refused = ends(&mut record).await.unwrap_err();
        assert_eq!(matches!(refused, WriteError::Gone), gone, "{refused}");
        assert_eq!(api.writes().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_passes_is_tried_again_and_a_no_is_not() {
    let api = Scripted::new()
        .next(patch(ONE).refuses(500))
        .next(patch(ONE).breaks())
        .next(patch(ONE).never_answers())
        .next(patch(ONE).answers(backup("u", "8", "Completed")));
    let mut passing = record(&api).await;
    let begun = Instant::now();
    ends(&mut passing).await.unwrap();
    let took = begun.elapsed().as_secs_f64();
    assert!((10.7..=11.5).contains(&took), "{took}: pauses that grow, and ten seconds for the silent one");
    for code in [400, 403, 422] {
        let api = Scripted::new().next(patch(ONE).refuses(code));
        let refused = ends(&mut record(&api).await).await.unwrap_err();
        assert!(matches!(refused, WriteError::Refused(_)), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_for_as_long_as_was_asked_and_no_longer() {
    let api = Scripted::new().always(patch(ONE).refuses(503));
    let mut record = record(&api).await;
    let begun = Instant::now();
    assert!(matches!(ends(&mut record).await, Err(WriteError::Time(Some(_)))));
    assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
    assert_eq!(record.phase(), "InProgress");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_refused_is_written_smaller_with_the_same_phase() {
    for (phase, code, refusals) in [("Completed", 413, 2), ("Failed", 403, 1)] {
        let api = Scripted::new();
        for _ in 0..refusals {
            api.next(patch(ONE).refuses(code));
        }
        api.next(patch(ONE).answers(backup("u", "8", phase)));
        let mut record = record(&api).await;
        let status = json!({"phase": phase, "completionTimestamp": "2026-01-01T00:00:00Z"});
        record.end(&json!({"status": status}), BackupPhase::InProgress, PATIENCE).await.unwrap();
        let smaller = &api.writes()[refusals].body;
        assert_eq!(smaller["status"], json!({"phase": phase, "queuePosition": null, "progress": null}));
        assert_eq!(smaller["metadata"]["managedFields"], json!([{}]));
    }
}

/// Who takes it up writes all of it, from what is stored.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_stored_backup_that_is_refused_for_another_reason_loses_nothing_of_its_status() {
    let api = Scripted::new().next(patch(ONE).refuses(403));
    let mut record = record(&api).await;
    let ended = json!({"status": {"phase": "PartiallyFailed"}});
    let refused = record.end(&ended, BackupPhase::InProgress, PATIENCE).await;
    assert!(matches!(refused, Err(WriteError::Refused(_))) && api.writes().len() == 1);
}

/// What the API server has, and how it takes a merge patch: enough for what is written here.
#[derive(Clone)]
struct Server(std::sync::Arc<parking_lot::Mutex<Value>>);

impl Server {
    fn new(phase: &str) -> Self {
        Self(std::sync::Arc::new(parking_lot::Mutex::new(backup("u", "7", phase))))
    }

    fn read(&self) -> impl Fn(&Value) -> Value + Send + Sync + 'static + use<> {
        let object = self.0.clone();
        move |_| object.lock().clone()
    }

    fn write(&self) -> impl Fn(&Value) -> Value + Send + Sync + 'static + use<> {
        let object = self.0.clone();
        move |patch| {
            let mut object = object.lock();
            json_patch::merge(&mut object, patch);
            let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u32>().unwrap() + 1;
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            object.clone()
        }
    }

    async fn record(&self, api: &Scripted) -> BackupWriter {
        let api = api.always(get(ONE).answers_with(self.read()));
        BackupWriter::read(api.client("velero"), "velero", "one", "u").await.unwrap()
    }
}

/// It is the controller's own write that it meets there: the backup has begun, and nobody else has
/// it.
#[tokio::test(start_paused = true)]
async fn a_beginning_or_an_end_whose_answer_is_lost_stands() {
    for (from, to) in [("ReadyToStart", "InProgress"), ("InProgress", "Completed")] {
        let (api, server) = (Scripted::new(), Server::new("ReadyToStart"));
        let mut record = server.record(&api).await;
        let begins = json!({"status": {"phase": "InProgress"}});
        if from == "InProgress" {
            api.next(patch(ONE).answers_with(server.write()));
            record.begin(&begins, "run", None, PATIENCE).await.unwrap();
        }
        // It is written, and the answer never comes.
        api.next(patch(ONE).never_answers()).next(patch(ONE).refuses(409));
        let moved = json!({"status": {"phase": to}});
        let story = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            server.write()(&json!({"metadata": {"annotations": {keys::RUN: "run"}}}));
            server.write()(&moved);
        };
        let write = async {
            if from == "InProgress" {
                record.end(&moved, BackupPhase::InProgress, PATIENCE).await
            } else {
                record.begin(&begins, "run", None, PATIENCE).await
            }
        };
        let (written, ()) = tokio::join!(write, story);
        written.unwrap();
        assert_eq!(record.phase(), to);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_taken_over_gets_no_leave_to_publish_and_writes_nothing_more() {
    let (api, server) = (Scripted::new(), Server::new("ReadyToStart"));
    let mut slow = server.record(&api).await;
    api.next(patch(ONE).answers_with(server.write()));
    slow.begin(&json!({"status": {"phase": "InProgress"}}), "slow", None, PATIENCE).await.unwrap();
    let mut settling = server.record(&api).await;
    api.next(patch(ONE).answers_with(server.write()));
    settling.take_over("settling", PATIENCE).await.unwrap();
    // What it knows is older than what stands there.
    api.next(patch(ONE).refuses(409));
    let refused = slow.may_publish(&json!({"errors": 1}), PATIENCE).await;
    assert!(matches!(refused, Err(WriteError::Taken)), "{refused:?}");
    let refused = slow.end(&json!({"status": {"phase": "Failed"}}), BackupPhase::InProgress, PATIENCE).await;
    assert!(matches!(refused, Err(WriteError::Taken)), "{refused:?}");
    assert!(!settling.is_publishing());
    assert_eq!(api.writes().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn leave_to_publish_comes_with_all_of_the_status_but_its_phase() {
    let (api, server) = (Scripted::new(), Server::new("ReadyToStart"));
    let mut record = server.record(&api).await;
    api.next(patch(ONE).answers_with(server.write())).next(patch(ONE).answers_with(server.write()));
    record.begin(&json!({"status": {"phase": "InProgress"}}), "run", None, PATIENCE).await.unwrap();
    assert!(!record.is_publishing());
    let status = json!({"completionTimestamp": "2026-01-01T00:00:00Z", "errors": 1});
    record.may_publish(&status, PATIENCE).await.unwrap();
    assert!(record.is_publishing());
    let stands = server.read()(&Value::Null);
    let expected = json!({"phase": "InProgress", "completionTimestamp": "2026-01-01T00:00:00Z", "errors": 1});
    assert_eq!(stands["status"], expected);
}

/// A webhook that does not know the controller says so with the code of a conflict. Nothing is
/// different on a second look.
#[tokio::test(start_paused = true)]
async fn a_denial_is_no_conflict_and_conflicts_are_not_tried_in_a_hurry() {
    let denied = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict",
        "message": "admission webhook \"backups.validate.berth.dev\" denied the request: status: leave it out",
    });
    let api = Scripted::new().next(patch(ONE).refuses_with(409, denied));
    let refused = ends(&mut record(&api).await).await.unwrap_err();
    assert!(matches!(refused, WriteError::Refused(_)), "{refused}");
    let api = Scripted::new().always(patch(ONE).refuses(409));
    let refused = ends(&mut record(&api).await).await.unwrap_err();
    assert!(matches!(refused, WriteError::Time(_)), "{refused}");
    let tries = api.writes().len();
    assert!((8..20).contains(&tries), "{tries} tries within {} s", PATIENCE.as_secs());
}
