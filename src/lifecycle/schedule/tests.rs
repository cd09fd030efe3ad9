use berth_test_scripted::{Scripted, Watch, get, list, patch, post, watch};
use tokio::time::Instant;

use super::*;
use crate::lifecycle::beside::tests::lifecycle;

const SCHEDULES: &str = "/apis/velero.io/v1/namespaces/velero/schedules";
const SCHEDULE: &str = "/apis/velero.io/v1/namespaces/velero/schedules/daily";
const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";
const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/backups/daily-20260101000500";
/// Its second name: the digest of `s1` begins like this.
const SECOND: &str = "/apis/velero.io/v1/namespaces/velero/backups/daily-20260101000500-e8bc1";

/// Five minutes after this it is due.
const BEGIN: &str = "2026-01-01T00:00:00Z";

fn schedule(version: &str, status: Value) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {
            "name": "daily", "namespace": "velero", "uid": "s1", "resourceVersion": version, "creationTimestamp": BEGIN,
        },
        "spec": {"schedule": "5 0 * * *", "template": {"includedNamespaces": ["a"]}},
        "status": status,
    })
}

fn enabled(version: &str) -> Value {
    schedule(version, json!({"phase": "Enabled"}))
}

fn done(version: &str) -> Value {
    schedule(version, json!({"phase": "Enabled", "lastBackup": "2026-01-01T00:05:00Z"}))
}

/// One with this label, made by the Schedule with this UID.
fn backup(label: &str, uid: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": "daily-20260101000500", "labels": {keys::SCHEDULE: label}, "annotations": {keys::SCHEDULE_UID: uid},
        },
        "spec": {},
    })
}

/// Without the annotation, and with this owner.
fn older(owner: &str) -> Value {
    let mut older = backup("daily", "");
    older["metadata"]["annotations"] = json!({});
    older["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "daily", "uid": owner}]);
    older
}

fn exists() -> Value {
    json!({
        "kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "already exists",
    })
}

fn watched(api: &Scripted, schedule: Value) -> Scripted {
    api.next(get(SCHEDULES).answers(list("5", &[schedule]))).next(watch(SCHEDULES).never_answers())
}

/// Runs the scheduler for so long, on a clock that begins then.
async fn run_for(api: &Scripted, begin: &str, seconds: u64) {
    let begin: Timestamp = begin.parse().unwrap();
    let started = Instant::now();
    let clock = move || begin + SignedDuration::try_from(started.elapsed()).unwrap();
    let scheduler = Scheduler::new(&lifecycle(&api.client("velero")), Box::new(clock));
    let running = async { tokio::join!(scheduler.follow(), scheduler.keep()) };
    assert!(timeout(Duration::from_secs(seconds), running).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_backup_is_created_on_its_second_and_then_recorded() {
    let api = watched(&Scripted::new(), schedule("1", json!({})))
        .next(get(SCHEDULE).answers(schedule("1", json!({}))))
        .next(patch(SCHEDULE).answers(enabled("2")));
    run_for(&api, BEGIN, 299).await;
    let early = api.writes();
    assert_eq!(early.len(), 1, "nothing but the phase: {early:?}");
    assert_eq!(early[0].body["status"], json!({"phase": "Enabled", "validationErrors": null}));
    assert_eq!(early[0].body["metadata"]["resourceVersion"], "1");

    let api = watched(&Scripted::new(), enabled("2"))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).answers(done("3")));
    // Then it waits for tomorrow.
    run_for(&api, "2026-01-01T00:04:30Z", 3600).await;
    let writes = api.writes();
    assert_eq!(writes[0].body["metadata"]["name"], "daily-20260101000500");
    assert_eq!(writes[0].body["metadata"]["labels"], json!({keys::SCHEDULE: "daily"}));
    assert_eq!(writes[0].body["metadata"]["annotations"], json!({keys::SCHEDULE_UID: "s1"}));
    assert_eq!(writes[1].body["status"], json!({"lastBackup": "2026-01-01T00:05:00Z"}));
    assert_eq!(writes[1].body["metadata"], json!({"uid": "s1", "resourceVersion": "2"}));
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_an_earlier_leader_created_is_recorded_and_not_created_again() {
    // The last is of an older berth or a Velero.
    for there in [backup("daily", "s1"), older("s1")] {
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).refuses_with(409, exists()))
            .next(get(BACKUP).answers(there))
            .next(patch(SCHEDULE).answers(done("3")));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        assert_eq!(api.writes()[1].body["status"], json!({"lastBackup": "2026-01-01T00:05:00Z"}));
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_backup_of_that_name_is_not_its_own_another_name_is_taken() {
    let mut of_nobody = older("s1");
    of_nobody["metadata"]["ownerReferences"] = json!([]);
    // A copy of another cluster's Backup is the first.
    for there in [backup("daily", "s2"), backup("other", "s1"), older("s2"), of_nobody] {
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).refuses_with(409, exists()))
            .next(get(BACKUP).answers(there))
            .next(post(BACKUPS).takes_as("9"))
            .next(patch(SCHEDULE).answers(done("3")));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        let writes = api.writes();
        assert_eq!(writes[1].body["metadata"]["name"], "daily-20260101000500-e8bc1");
        assert_eq!(writes[1].body["metadata"]["annotations"], json!({keys::SCHEDULE_UID: "s1"}));
        assert_eq!(writes[2].body["status"], json!({"lastBackup": "2026-01-01T00:05:00Z"}));
    }

    // That one is there as well: it is its own, or the time is recorded as skipped.
    let skipped = schedule("3", json!({"phase": "Enabled", "lastSkipped": "2026-01-01T00:05:00Z"}));
    for (uid, after, recorded) in [("s1", done("3"), "lastBackup"), ("s2", skipped, "lastSkipped")] {
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).refuses_with(409, exists()))
            .next(get(BACKUP).answers(backup("daily", "s2")))
            .next(post(BACKUPS).refuses_with(409, exists()))
            .next(get(SECOND).answers(backup("daily", uid)))
            .next(patch(SCHEDULE).answers(after));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        assert_eq!(api.writes()[2].body["status"], json!({recorded: "2026-01-01T00:05:00Z"}));
    }
}

#[tokio::test(start_paused = true)]
async fn one_without_the_annotation_is_its_own_only_in_the_location_of_the_template() {
    let at = |location: &str, mut object: Value, pointer: &str| {
        object.pointer_mut(pointer).unwrap()["storageLocation"] = json!(location);
        object
    };
    let (found, there) = (at("a", enabled("2"), "/spec/template"), at("b", older("s1"), "/spec"));
    let api = watched(&Scripted::new(), found.clone())
        .next(get(SCHEDULE).answers(found))
        .next(post(BACKUPS).refuses_with(409, exists()))
        .next(get(BACKUP).answers(there.clone()))
        .next(get(BACKUP).answers(there))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).answers(at("a", done("3"), "/spec/template")));
    run_for(&api, "2026-01-01T00:06:00Z", 60).await;
    assert_eq!(api.writes()[1].body["metadata"]["name"], "daily-20260101000500-e8bc1");
}

#[tokio::test]
async fn of_backups_that_have_not_ended_those_count_that_the_schedule_made() {
    let api = Scripted::new();
    let scheduler = Scheduler::new(&lifecycle(&api.client("velero")), Box::new(Timestamp::now));
    let mut unlabeled = backup("daily", "s1");
    unlabeled["metadata"]["labels"] = json!({});
    let all = [backup("daily", "s1"), backup("daily", "s2"), older("s1"), unlabeled];
    let named = all.into_iter().enumerate().map(|(i, mut one)| {
        one["metadata"]["name"] = json!(format!("b{i}"));
        one["metadata"]["uid"] = json!(format!("b{i}"));
        serde_json::from_value::<Backup>(one).unwrap()
    });
    scheduler.store.observe(WatchEvent::Replaced(named.collect()));
    let one = |name: &str| vec![(name.to_owned(), QueuePhase::New)];
    let expected = HashMap::from([("s1".to_owned(), one("b0")), ("s2".to_owned(), one("b1"))]);
    assert_eq!(scheduler.unfinished(), expected);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_created_is_tried_again_less_and_less_often() {
    let api = watched(&Scripted::new(), enabled("2"))
        .always(get(SCHEDULE).answers(enabled("2")))
        .always(post(BACKUPS).refuses(403));
    run_for(&api, "2026-01-01T00:06:00Z", 600).await;
    // After 0.5, 1, 2, 4 … 32 s, and then once a minute.
    let tries = api.writes().len();
    assert!((13..=18).contains(&tries), "{tries}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_meets_a_newer_schedule_is_decided_again() {
    let events = Watch::new();
    let mut paused = enabled("7");
    paused["spec"]["paused"] = json!(true);
    let api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &[enabled("2")])))
        .next(watch(SCHEDULES).streams(&events))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).refuses(409))
        .next(get(SCHEDULE).answers(paused));
    // It was paused at that moment; the watch is late.
    run_for(&api, "2026-01-01T00:06:00Z", 60).await;
    drop(events);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_silent_does_not_stop_it_for_ever() {
    let api = watched(&Scripted::new(), enabled("2"))
        .next(get(SCHEDULE).never_answers())
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).never_answers())
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).breaks())
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).answers(done("3")));
    run_for(&api, "2026-01-01T00:06:00Z", 60).await;
}

/// All are created at the same moment of the test's clock, for which a server takes 20 ms each.
#[tokio::test(start_paused = true)]
async fn a_thousand_schedules_of_one_time_are_created_within_a_second() {
    let name = |i: usize| format!("s{i:04}");
    let one = |i: usize| {
        let mut one = enabled("2");
        one["metadata"]["name"] = json!(name(i));
        one["metadata"]["uid"] = json!(name(i));
        one
    };
    let all: Vec<Value> = (0..1000).map(one).collect();
    let late = Duration::from_millis(20);
    let mut api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &all)))
        .next(watch(SCHEDULES).never_answers())
        .always(post(BACKUPS).takes_as("9").after(late));
    for (i, one) in all.into_iter().enumerate() {
        let path = format!("{SCHEDULES}/{}", name(i));
        let mut done = one.clone();
        done["metadata"]["resourceVersion"] = json!("3");
        done["status"]["lastBackup"] = json!("2026-01-01T00:05:00Z");
        api = api.always(get(&path).answers(one).after(late)).always(patch(&path).answers(done).after(late));
    }
    run_for(&api, "2026-01-01T00:05:00Z", 1).await;
    let created = api.writes().iter().filter(|write| write.method == "POST").count();
    assert_eq!(created, 1000);
}
