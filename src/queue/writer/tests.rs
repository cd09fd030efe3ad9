use berth_api::keys::FIELD_MANAGER;
use berth_test_scripted::{Scripted, get, patch};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::super::QueueSettings;
use super::*;
use crate::watch::WatchEvent;

const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";

fn backup(version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {}, "status": {"phase": phase},
    })
}

struct Queue {
    store: Arc<BackupCache>,
    writer: QueueWriter,
    metrics: QueueMetrics,
}

impl Queue {
    /// The watch has shown version 7.
    fn new(api: &Scripted, phase: &str) -> Self {
        let store = Arc::new(BackupCache::new(QueueSettings::default()));
        store.observe(WatchEvent::Replaced(vec![serde_json::from_value(backup("7", phase)).unwrap()]));
        let metrics = QueueMetrics::new(&mut Registry::default());
        let client = api.client("velero");
        let (events, _) = Events::new(client.clone(), "velero", Counter::default());
        let keeping = EndedBackupSettings { default_ttl: Duration::from_secs(3600), writes_spec: true };
        let writer = QueueWriter::new(client, "velero", keeping, Arc::clone(&store), metrics.clone(), events);
        Self { store, writer, metrics }
    }

    fn entry(&self) -> Arc<QueueEntry> {
        self.store.get("one").unwrap().entry
    }

    /// What the next plan will see.
    fn known(&self) -> Option<(QueuePhase, String)> {
        self.store.get("one").map(|item| (item.entry.phase, item.resource_version))
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_is_written_on_the_version_it_was_decided_on_and_known_before_the_watch_shows_it() {
    let api = Scripted::new().next(patch(ONE).answers(backup("8", "ReadyToStart")));
    let queue = Queue::new(&api, "Queued");
    let decided_on = queue.entry();
    assert!(queue.writer.start(&decided_on).await);
    let writes = api.writes();
    let status = json!({"phase": "ReadyToStart", "queuePosition": null});
    assert_eq!(writes[0].body, json!({"metadata": {"resourceVersion": "7", "uid": "u"}, "status": status}));
    assert!(writes[0].query.contains(&format!("fieldManager={FIELD_MANAGER}")), "{}", writes[0].query);
    assert_eq!(queue.known(), Some((QueuePhase::ReadyToStart, "8".to_owned())));
    // What was decided on is no more: nothing is sent.
    assert!(!queue.writer.start(&decided_on).await);
    api.finish();
}

/// A Backup that somebody patches without a pause has another version whenever it is written. It
/// was never started.
#[tokio::test(start_paused = true)]
async fn after_a_conflict_about_something_else_the_decision_is_written_on_what_it_depended_on() {
    let mut patched = backup("8", "Queued");
    patched["metadata"]["annotations"] = json!({"somebody": "else"});
    let api = Scripted::new()
        .next(patch(ONE).refuses(409))
        .next(get(ONE).answers(patched))
        .next(patch(ONE).answers(backup("10", "ReadyToStart")));
    let queue = Queue::new(&api, "Queued");
    assert!(queue.writer.start(&queue.entry()).await);
    let again = &api.writes()[1].body;
    let absent = |key: &str| json!({"op": "test", "path": format!("/metadata/annotations/berth.dev~1{key}"), "value": null});
    assert_eq!(
        *again,
        json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "test", "path": "/status/phase", "value": "Queued"},
            absent("hold"), absent("cancel"), absent("first"),
            {"op": "replace", "path": "/status/phase", "value": "ReadyToStart"},
        ])
    );
    assert_eq!(queue.known(), Some((QueuePhase::ReadyToStart, "10".to_owned())));
    assert_eq!(queue.metrics.conflicts.get(), 1);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn after_a_conflict_about_what_was_decided_on_nothing_is_written_or_assumed() {
    let mut held = backup("8", "Queued");
    held["metadata"]["annotations"] = json!({keys::HOLD: "true"});
    let mut another = backup("8", "Queued");
    another["metadata"]["uid"] = json!("of a later one");
    for meanwhile in [held, another, backup("8", "Completed")] {
        let api = Scripted::new().next(patch(ONE).refuses(409)).next(get(ONE).answers(meanwhile));
        let queue = Queue::new(&api, "Queued");
        assert!(!queue.writer.start(&queue.entry()).await);
        assert_eq!(queue.known(), Some((QueuePhase::Queued, "7".to_owned())));
        api.finish();
    }
    // It changes between the read and the write.
    let api = Scripted::new()
        .next(patch(ONE).refuses(409))
        .next(get(ONE).answers(backup("8", "Queued")))
        .next(patch(ONE).refuses(422));
    let queue = Queue::new(&api, "Queued");
    assert!(!queue.writer.start(&queue.entry()).await);
    assert_eq!(queue.known(), Some((QueuePhase::Queued, "7".to_owned())));
    assert!(queue.store.refusals.failures().is_empty(), "nobody refused this Backup");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_is_not_found_is_forgotten_before_the_watch_shows_its_end() {
    let api = Scripted::new().next(patch(ONE).refuses(404));
    let queue = Queue::new(&api, "Queued");
    assert!(!queue.writer.start(&queue.entry()).await);
    assert_eq!(queue.known(), None);
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_waited_for_longer_than_ten_seconds_and_nothing_is_assumed() {
    let api = Scripted::new().next(patch(ONE).never_answers()).next(patch(ONE).breaks());
    let queue = Queue::new(&api, "Queued");
    let begun = Instant::now();
    assert!(!queue.writer.start(&queue.entry()).await);
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert_eq!(queue.known(), Some((QueuePhase::Queued, "7".to_owned())), "it may have been written, or not");
    assert!(!queue.writer.start(&queue.entry()).await);
    assert_eq!(queue.known(), Some((QueuePhase::Queued, "7".to_owned())));
    assert_eq!(queue.metrics.conflicts.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_what_the_webhook_had_not_seen_gets_a_time_mark_and_an_heir_that_of_another() {
    let since: Timestamp = "2026-01-02T03:04:05.000006Z".parse().unwrap();
    for (phase, inherits, annotations) in [
        // Created in that second, whenever it is placed.
        ("New", None, json!({keys::ENQUEUED_AT: "1970-01-01T00:00:01.000000Z"})),
        ("Queued", None, Value::Null),
        ("Queued", Some(since), json!({keys::WAITS_SINCE: "2026-01-02T03:04:05.000006Z"})),
    ] {
        let api = Scripted::new().next(patch(ONE).answers(backup("8", "Queued")));
        let queue = Queue::new(&api, phase);
        queue.writer.place(&queue.entry(), 3, inherits).await;
        let written = &api.writes()[0].body;
        assert_eq!(written["metadata"]["annotations"], annotations);
        assert_eq!(written["metadata"]["resourceVersion"], "7");
        assert_eq!(written["status"], json!({"phase": "Queued", "queuePosition": 3}));
        assert_eq!(queue.metrics.positions_written.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_refused_is_not_counted() {
    let api = Scripted::new().next(patch(ONE).refuses(403));
    let queue = Queue::new(&api, "Queued");
    queue.writer.place(&queue.entry(), 3, None).await;
    assert_eq!(queue.metrics.positions_written.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_without_having_run_says_why_and_until_when_it_is_kept_and_leaves_the_line() {
    for writes_spec in [true, false] {
        let api = Scripted::new()
            .next(get(ONE).answers(backup("7", "Queued")))
            .next(patch(ONE).answers(backup("8", "Failed")));
        let mut queue = Queue::new(&api, "Queued");
        queue.writer.keeping.writes_spec = writes_spec;
        let before = Timestamp::now();
        assert!(queue.writer.end(&queue.entry(), "Canceled").await);
        let written = &api.writes()[0].body;
        let labels = json!({keys::STORAGE_LOCATION: "default"});
        assert_eq!(written["metadata"], json!({"resourceVersion": "7", "uid": "u", "labels": labels}));
        let status = &written["status"];
        assert_eq!((&status["phase"], &status["failureReason"]), (&json!("Failed"), &json!("Canceled")));
        assert_eq!((&status["version"], &status["formatVersion"]), (&json!(1), &json!(keys::FORMAT_VERSION)));
        let expiration: Timestamp = status["expiration"].as_str().unwrap().parse().unwrap();
        let life = expiration.duration_since(before).as_secs();
        assert!((3590..=3601).contains(&life), "{life}");
        assert!(status["queuePosition"].is_null() && status["completionTimestamp"].is_string(), "{status}");
        // Whoever deletes what has expired asks the spec where it is. Where a Velero runs backups,
        // specs are that one's to write.
        let spec = if writes_spec { json!({"storageLocation": "default"}) } else { Value::Null };
        assert_eq!(written["spec"], spec);
        assert_eq!(queue.known(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_the_same_name_is_not_ended_in_place_of_another() {
    let mut another = backup("9", "Queued");
    another["metadata"]["uid"] = json!("of a later one");
    let api = Scripted::new().next(get(ONE).answers(another));
    let queue = Queue::new(&api, "Queued");
    assert!(!queue.writer.end(&queue.entry(), "Canceled").await);
    assert_eq!((api.writes().len(), queue.known()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn what_is_too_large_is_written_without_the_record_of_who_wrote_which_field() {
    let too_large = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "",
        "message": "etcdserver: request is too large",
    });
    let api = Scripted::new()
        .next(patch(ONE).refuses_with(500, too_large))
        .next(patch(ONE).answers(backup("8", "ReadyToStart")));
    let queue = Queue::new(&api, "Queued");
    assert!(queue.writer.start(&queue.entry()).await);
    assert_eq!(api.writes()[1].body["metadata"]["managedFields"], json!([{}]));
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_again_and_again_is_out_of_the_line() {
    let api = Scripted::new().always(patch(ONE).refuses(422));
    let queue = Queue::new(&api, "Queued");
    for _ in 0..3 {
        assert!(queue.store.view(None, Timestamp::now()).unwritable.is_empty());
        assert!(!queue.writer.start(&queue.entry()).await);
    }
    assert!(queue.store.view(None, Timestamp::now()).unwritable.contains("u"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_even_be_read_to_be_ended_is_out_of_the_line_as_well() {
    let api = Scripted::new().always(get(ONE).refuses(500));
    let queue = Queue::new(&api, "Queued");
    for _ in 0..3 {
        assert!(queue.store.view(None, Timestamp::now()).unwritable.is_empty());
        assert!(!queue.writer.end(&queue.entry(), "Canceled").await);
    }
    assert!(queue.store.view(None, Timestamp::now()).unwritable.contains("u"));
}

#[tokio::test(start_paused = true)]
async fn one_that_could_not_be_said_to_run_keeps_no_slot_while_it_is_out_of_the_line() {
    let api = Scripted::new();
    let queue = Queue::new(&api, "ReadyToStart");
    assert_eq!(queue.store.view(None, Timestamp::now()).backups.len(), 1);
    for _ in 0..3 {
        queue.store.refusals.refused("u");
    }
    assert_eq!(queue.store.view(None, Timestamp::now()).backups.len(), 0);
}
