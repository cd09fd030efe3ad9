use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_core::queue::QueuePhase;
use berth_core::schedule::UnfinishedBackup;
use berth_test_scripted::{Scripted, Watch, get, list, patch, post, watch};
use k8s_openapi::api::core::v1::Secret;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::cached::LARGE;
use super::*;
use crate::lifecycle::velero_controllers::tests::lifecycle;

const SCHEDULES: &str = "/apis/velero.io/v1/namespaces/velero/schedules";
const SCHEDULE: &str = "/apis/velero.io/v1/namespaces/velero/schedules/daily";
const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";
const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/backups/daily-20260101000500";
/// Its second name: the digest of `s1` begins like this.
const SECOND: &str = "/apis/velero.io/v1/namespaces/velero/backups/daily-20260101000500-e8bc1";

/// Whence the key comes by which third names are made.
const SECRET: &str = "/api/v1/namespaces/velero/secrets/berth-webhook-certs";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/velero/events";
/// What is recorded of the time in the tests.
const TICK: &str = "2026-01-01T00:05:00Z";

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

/// Without the annotation, and with this owner: whoever creates Backups can make one.
fn owned(owner: &str) -> Value {
    let mut owned = backup("daily", "");
    owned["metadata"]["annotations"] = json!({});
    owned["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "velero.io/v1", "kind": "Schedule", "name": "daily", "uid": owner}]);
    owned
}

/// As it has become since it was created.
fn standing(mut backup: Value, phase: &str, generation: i64) -> Value {
    backup["status"] = json!({"phase": phase});
    backup["metadata"]["generation"] = json!(generation);
    backup
}

/// As a Velero brings it from a store, with all that somebody has written there.
fn brought() -> Value {
    standing(backup("daily", "s1"), "Completed", 1)
}

fn watched(api: &Scripted, schedule: Value) -> Scripted {
    api.next(get(SCHEDULES).answers(list("5", &[schedule]))).next(watch(SCHEDULES).never_answers())
}

/// Runs the scheduler for so long, on a clock that begins then.
async fn run_for(api: &Scripted, begin: &str, seconds: u64) {
    run_beside(api, &[], begin, seconds).await;
}

/// The same where these Backups are known.
async fn run_beside(api: &Scripted, there: &[Backup], begin: &str, seconds: u64) {
    let begin: Timestamp = begin.parse().unwrap();
    let started = Instant::now();
    let clock = move || begin + SignedDuration::try_from(started.elapsed()).unwrap();
    let lifecycle = lifecycle(&api.client("velero"));
    lifecycle.known.list(there);
    let scheduler = Scheduler::new(&lifecycle, Box::new(clock));
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
    let own = || backup("daily", "s1");
    // Somebody has taken the label off the second.
    for there in [own(), backup("other", "s1"), standing(own(), "Queued", 1), standing(own(), "Completed", 9)]
    {
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).already_exists())
            .next(get(BACKUP).answers(there))
            .next(patch(SCHEDULE).answers(done("3")));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        assert_eq!(api.writes()[1].body["status"], json!({"lastBackup": TICK}));
    }
}

/// Whoever had taken the first name may have let it go since.
#[tokio::test(start_paused = true)]
async fn a_backup_of_another_name_that_an_earlier_leader_created_is_recorded_as_well() {
    let named = |name: &str, backup: Value| {
        let mut backup = standing(backup, "Completed", 9);
        backup["metadata"]["name"] = json!(name);
        serde_json::from_value::<Backup>(backup).unwrap()
    };
    for suffix in ["-e8bc1", "-0123456789abcdef0123"] {
        let there = [
            named("daily-20260101000400", backup("daily", "s1")),
            named("daily-20260101000500", owned("s1")),
            named(&format!("daily-20260101000500{suffix}"), backup("daily", "s1")),
        ];
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(patch(SCHEDULE).answers(done("3")));
        run_beside(&api, &there, "2026-01-01T00:06:00Z", 60).await;
        assert_eq!(api.writes()[0].body["status"], json!({"lastBackup": TICK}));
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).takes_as("9"))
            .next(patch(SCHEDULE).answers(done("3")));
        run_beside(&api, &there[..2], "2026-01-01T00:06:00Z", 60).await;
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_backup_of_that_name_is_not_its_own_another_name_is_taken() {
    let mut of_nobody = owned("s1");
    of_nobody["metadata"]["ownerReferences"] = json!([]);
    let deleted = standing(backup("daily", "s1"), "Deleting", 2);
    // A copy of another cluster's Backup is the first. The second says whose it is, as everybody
    // can.
    for there in [backup("daily", "s2"), owned("s1"), owned("s2"), of_nobody, brought(), deleted] {
        let api = watched(&Scripted::new(), enabled("2"))
            .next(get(SCHEDULE).answers(enabled("2")))
            .next(post(BACKUPS).already_exists())
            .next(get(BACKUP).answers(there))
            .next(post(BACKUPS).takes_as("9"))
            .next(patch(SCHEDULE).answers(done("3")));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        let writes = api.writes();
        assert_eq!(writes[1].body["metadata"]["name"], "daily-20260101000500-e8bc1");
        assert_eq!(writes[1].body["metadata"]["annotations"], json!({keys::SCHEDULE_UID: "s1"}));
        assert_eq!(writes[2].body["status"], json!({"lastBackup": TICK}));
    }
    // That one is there as well, and is its own.
    let api = watched(&Scripted::new(), enabled("2"))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).already_exists())
        .next(get(BACKUP).answers(backup("daily", "s2")))
        .next(post(BACKUPS).already_exists())
        .next(get(SECOND).answers(backup("daily", "s1")))
        .next(patch(SCHEDULE).answers(done("3")));
    run_for(&api, "2026-01-01T00:06:00Z", 60).await;
    assert_eq!(api.writes()[2].body["status"], json!({"lastBackup": TICK}));
}

/// A leader whose clock was a day ahead has created it.
#[tokio::test(start_paused = true)]
async fn a_backup_that_was_created_long_before_its_time_is_not_that_of_its_time() {
    let mut early = standing(backup("daily", "s1"), "Completed", 9);
    early["metadata"]["creationTimestamp"] = json!("2025-12-31T10:00:00Z");
    let known: Backup = serde_json::from_value(early.clone()).unwrap();
    let api = watched(&Scripted::new(), enabled("2"))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).already_exists())
        .next(get(BACKUP).answers(early))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).answers(done("3")));
    run_beside(&api, &[known], "2026-01-01T00:06:00Z", 60).await;
    let writes = api.writes();
    assert_eq!(writes[1].body["metadata"]["name"], "daily-20260101000500-e8bc1");
    assert_eq!(writes[2].body["status"], json!({"lastBackup": TICK}));
}

/// Where both names are taken that everybody can foretell.
fn taken_twice() -> Scripted {
    watched(&Scripted::new(), enabled("2"))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).already_exists())
        .next(get(BACKUP).answers(owned("s1")))
        .next(post(BACKUPS).already_exists())
        .next(get(SECOND).answers(brought()))
}

fn certificate(key: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "berth-webhook-certs"},
        "data": {"tls.key": STANDARD.encode(key)},
    })
}

#[tokio::test(start_paused = true)]
async fn who_takes_both_names_of_a_time_keeps_no_backup_from_it() {
    let mut names = BTreeSet::new();
    for key in ["a", "a", "b"] {
        let api = taken_twice()
            .next(get(SECRET).answers(certificate(key)))
            .next(post(BACKUPS).takes_as("9"))
            .next(patch(SCHEDULE).answers(done("3")));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        let writes = api.writes();
        let name = writes[2].body["metadata"]["name"].as_str().unwrap().to_owned();
        let tag = name.strip_prefix("daily-20260101000500-").unwrap();
        assert_eq!(tag.len(), 20, "{name}");
        assert_eq!(writes[2].body["metadata"]["annotations"], json!({keys::SCHEDULE_UID: "s1"}));
        assert_eq!(writes[3].body["status"], json!({"lastBackup": TICK}));
        names.insert(name);
    }
    // Two leaders take the same, and it follows from the key.
    assert_eq!(names.len(), 2, "{names:?}");

    // Another leader has made it: then it is recorded. A stranger's is not believed.
    let third = format!("{BACKUPS}/{}", names.first().unwrap());
    let key = if third.ends_with(&name_by("a")) { "a" } else { "b" };
    let skipped = schedule("3", json!({"phase": "Enabled", "lastSkipped": TICK}));
    for (there, after, recorded) in
        [(backup("daily", "s1"), done("3"), "lastBackup"), (owned("s1"), skipped, "lastSkipped")]
    {
        let api = taken_twice()
            .next(get(SECRET).answers(certificate(key)))
            .next(post(BACKUPS).already_exists())
            .next(get(&third).answers(there))
            .next(patch(SCHEDULE).answers(after));
        run_for(&api, "2026-01-01T00:06:00Z", 60).await;
        assert_eq!(api.writes()[3].body["status"], json!({recorded: TICK}));
    }

    // Without the key the time waits, and is not skipped.
    let api = taken_twice()
        .next(get(SECRET).refuses(404))
        .next(get(SCHEDULE).answers(enabled("2")))
        .next(post(BACKUPS).takes_as("9"))
        .next(patch(SCHEDULE).answers(done("3")));
    run_for(&api, "2026-01-01T00:06:00Z", 60).await;
    assert_eq!(api.writes()[2].body["metadata"]["name"], "daily-20260101000500");
}

/// The end of the third name by this private key.
fn name_by(private: &str) -> String {
    let secret: Secret = serde_json::from_value(certificate(private)).unwrap();
    let key = certificates::derived_key(&secret, "s", PURPOSE).unwrap();
    let tag = hmac::sign(&key, b"s1\ndaily-20260101000500");
    tag.as_ref().iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}

/// Whoever reads Events could take the name before the next try.
#[tokio::test(start_paused = true)]
async fn nobody_learns_the_third_name_before_its_backup_is_there() {
    let said = format!("quota of daily-20260101000500-{} exceeded", name_by("a"));
    let refused = json!({
        "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": said,
    });
    let api = taken_twice()
        .next(get(SECRET).answers(certificate("a")))
        .next(post(BACKUPS).refuses_with(403, refused))
        .next(get(SCHEDULE).refuses(404))
        .always(post(EVENTS).takes_as("9"));
    run_with_events(&api, 60, |_| ()).await;
    let notes = api.writes().iter().map(|write| write.body["note"].to_string()).collect::<String>();
    assert!(
        notes.contains("Backups daily-20260101000500 and daily-20260101000500-e8bc1 are there"),
        "{notes}"
    );
    assert!(notes.contains("exceeded") && !notes.contains(&name_by("a")), "{notes}");
}

#[tokio::test]
async fn of_backups_that_have_not_ended_those_count_that_the_schedule_made() {
    let api = Scripted::new();
    let scheduler = Scheduler::new(&lifecycle(&api.client("velero")), Box::new(Timestamp::now));
    let mut unlabeled = backup("daily", "s1");
    unlabeled["metadata"]["labels"] = json!({});
    let all = [backup("daily", "s1"), backup("daily", "s2"), owned("s1"), unlabeled];
    let named = all.into_iter().enumerate().map(|(i, mut one)| {
        one["metadata"]["name"] = json!(format!("b{i}"));
        one["metadata"]["uid"] = json!(format!("b{i}"));
        serde_json::from_value::<Backup>(one).unwrap()
    });
    scheduler.store.observe(WatchEvent::Replaced(named.collect()));
    let one = |name: &str| {
        let (name, phase) = (name.to_owned(), QueuePhase::New);
        vec![UnfinishedBackup { name, phase, is_stored: false, is_given_up: false }]
    };
    let mut expected = HashMap::from([("s1".to_owned(), one("b0")), ("s2".to_owned(), one("b1"))]);
    assert_eq!(scheduler.unfinished(), expected);
    // Those that have left the queue are known by another watch.
    let later = ["WaitingForPluginOperations", "Finalizing", "Completed"].into_iter().map(|phase| {
        let mut one = standing(backup("daily", "s2"), phase, 7);
        one["metadata"]["name"] = json!(phase.to_lowercase());
        serde_json::from_value::<Backup>(one).unwrap()
    });
    scheduler.lifecycle.known.list(&later.collect::<Vec<_>>());
    let moved = UnfinishedBackup {
        name: "waitingforpluginoperations".to_owned(),
        phase: QueuePhase::InProgress,
        is_stored: true,
        is_given_up: false,
    };
    expected.get_mut("s2").unwrap().push(moved);
    assert_eq!(scheduler.unfinished(), expected);
}

/// Where Events are sent, on a clock that begins six minutes after midnight.
async fn run_with_events(api: &Scripted, seconds: u64, prepare: impl FnOnce(&Scheduler)) {
    let begin: Timestamp = "2026-01-01T00:06:00Z".parse().unwrap();
    let started = Instant::now();
    let clock = move || begin + SignedDuration::try_from(started.elapsed()).unwrap();
    let (events, sending) = Events::new(api.client("velero"), "velero", Counter::default());
    let lifecycle = Lifecycle { events, ..lifecycle(&api.client("velero")) };
    lifecycle.known.list(&[]);
    let scheduler = Scheduler::new(&lifecycle, Box::new(clock));
    prepare(&scheduler);
    let running = async { tokio::join!(scheduler.follow(), scheduler.keep(), sending) };
    assert!(timeout(Duration::from_secs(seconds), running).await.is_err());
}

/// Somebody has filled it up to what the API server takes, or a policy refuses every write.
#[tokio::test(start_paused = true)]
async fn a_schedule_is_told_of_a_backup_that_cannot_be_written_and_goes_on_without_it() {
    let mut stuck = standing(backup("daily", "s1"), "InProgress", 3);
    stuck["metadata"]["name"] = json!("daily-20251231000500");
    stuck["metadata"]["uid"] = json!("b0");
    let stuck: Backup = serde_json::from_value(stuck).unwrap();
    for (seconds, goes_on) in [(590, false), (620, true)] {
        let mut api = watched(&Scripted::new(), enabled("2")).always(post(EVENTS).takes_as("9"));
        if goes_on {
            api = api
                .next(get(SCHEDULE).answers(enabled("2")))
                .next(post(BACKUPS).takes_as("9"))
                .next(patch(SCHEDULE).answers(done("3")));
        }
        let prepare = |scheduler: &Scheduler| {
            scheduler.store.observe(WatchEvent::Replaced(vec![stuck.clone()]));
            for _ in 0..3 {
                scheduler.store.refusals.refused("b0");
            }
        };
        run_with_events(&api, seconds, prepare).await;
        let writes = api.writes();
        let told: Vec<_> = writes.iter().filter(|write| write.body["reason"] == "Unwritable").collect();
        assert_eq!(told.len(), 1, "{writes:?}");
        assert_eq!(told[0].body["regarding"]["kind"], "Schedule");
        assert_eq!(told[0].body["regarding"]["name"], "daily");
        assert!(told[0].body["note"].to_string().contains("daily-20251231000500"), "{:?}", told[0]);
        let created = writes.iter().filter(|write| write.path == BACKUPS).count();
        assert_eq!(created, usize::from(goes_on), "{writes:?}");
    }
}

/// As while a quota is full: whoever looks an hour later is told as well.
#[tokio::test(start_paused = true)]
async fn what_keeps_backups_from_being_created_is_told_again_while_it_lasts() {
    let api = watched(&Scripted::new(), enabled("2"))
        .always(get(SCHEDULE).answers(enabled("2")))
        .always(post(BACKUPS).refuses(403))
        .always(post(EVENTS).takes_as("9"));
    run_with_events(&api, 3600, |_| ()).await;
    let told = api.writes().iter().filter(|write| write.body["reason"] == "NotScheduled").count();
    assert!((2..=4).contains(&told), "{told}");
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

/// A Schedule of many, as a list shows it.
fn numbered(i: usize) -> Value {
    let mut one = enabled("2");
    one["metadata"]["name"] = json!(format!("s{i:04}"));
    one["metadata"]["uid"] = json!(format!("s{i:04}"));
    one
}

fn path_of(schedule: &Value) -> String {
    format!("{SCHEDULES}/{}", schedule["metadata"]["name"].as_str().unwrap())
}

/// The same Schedule when its Backup is recorded.
fn recorded(schedule: &Value) -> Value {
    let mut done = schedule.clone();
    done["metadata"]["resourceVersion"] = json!("3");
    done["status"]["lastBackup"] = json!(TICK);
    done
}

/// How many requests of this method had a path that begins so.
fn count(api: &Scripted, method: &str, path: &str) -> usize {
    let wanted = format!("{method} {path}");
    api.asked().iter().filter(|asked| asked.starts_with(&wanted)).count()
}

/// All are created at the same moment of the test's clock, for which a server takes 20 ms each.
#[tokio::test(start_paused = true)]
async fn a_thousand_schedules_of_one_time_are_created_within_a_second_by_two_requests_each() {
    let all: Vec<Value> = (0..1000).map(numbered).collect();
    let late = Duration::from_millis(20);
    let api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &all)))
        .next(watch(SCHEDULES).never_answers())
        .once(get(SCHEDULES).answers(list("6", &all)).after(late))
        .always(post(BACKUPS).takes_as("9").after(late));
    for one in &all {
        api.always(patch(&path_of(one)).answers(recorded(one)).after(late));
    }
    run_for(&api, "2026-01-01T00:05:00Z", 1).await;
    assert_eq!(count(&api, "POST", BACKUPS), 1000);
    assert_eq!(count(&api, "PATCH", SCHEDULES), 1000);
    assert_eq!(api.asked().len(), 2003, "two for each, two lists and a watch");
}

/// The list takes almost a second.
#[tokio::test(start_paused = true)]
async fn many_that_are_due_soon_are_listed_before_their_time() {
    let all: Vec<Value> = (0..2 * listed::MANY).map(numbered).collect();
    let late = Duration::from_millis(900);
    for answer in [get(SCHEDULES).answers(list("6", &all)).after(late), get(SCHEDULES).refuses(500)] {
        let api = Scripted::new()
            .next(get(SCHEDULES).answers(list("5", &all)))
            .next(watch(SCHEDULES).never_answers())
            .once(answer)
            .always(post(BACKUPS).takes_as("9"));
        for one in &all {
            let path = path_of(one);
            api.always(get(&path).answers(one.clone())).always(patch(&path).answers(recorded(one)));
        }
        // They are due half a second before the end.
        run_for(&api, "2026-01-01T00:04:29.500Z", 31).await;
        assert_eq!(count(&api, "POST", BACKUPS), all.len());
        assert_eq!(count(&api, "PATCH", SCHEDULES), all.len());
    }
}

/// The watch may be late.
#[tokio::test(start_paused = true)]
async fn of_many_that_are_due_each_is_decided_as_the_list_shows_it_and_what_it_lacks_is_read() {
    let all: Vec<Value> = (0..2 * listed::MANY).map(numbered).collect();
    let mut now = all.clone();
    now[0]["metadata"]["resourceVersion"] = json!("7");
    now[0]["spec"]["paused"] = json!(true);
    now.remove(1);
    for (answer, reads) in [
        (get(SCHEDULES).answers(list("8", &now)), 1),
        (get(SCHEDULES).refuses(500), all.len()),
        (get(SCHEDULES).never_answers(), all.len()),
    ] {
        let api = Scripted::new()
            .next(get(SCHEDULES).answers(list("5", &all)))
            .next(watch(SCHEDULES).never_answers())
            .once(answer)
            .always(post(BACKUPS).takes_as("9"))
            .always(get(&path_of(&all[0])).answers(now[0].clone()))
            .always(get(&path_of(&all[1])).refuses(404));
        for one in &all[2..] {
            let path = path_of(one);
            api.always(get(&path).answers(one.clone())).always(patch(&path).answers(recorded(one)));
        }
        run_for(&api, TICK, 60).await;
        assert_eq!(count(&api, "GET", &format!("{SCHEDULES}/")), reads);
        assert_eq!(count(&api, "POST", BACKUPS), all.len() - 2, "one is paused, and one is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_listed_is_not_decided_on_after_a_while() {
    let slow = Duration::from_secs(4);
    let all: Vec<Value> = (0..3 * AT_ONCE).map(numbered).collect();
    let api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &all)))
        .next(watch(SCHEDULES).never_answers())
        .once(get(SCHEDULES).answers(list("6", &all)))
        .always(post(BACKUPS).takes_as("9").after(slow));
    for one in &all {
        let path = path_of(one);
        api.always(get(&path).answers(one.clone())).always(patch(&path).answers(recorded(one)));
    }
    run_for(&api, TICK, 60).await;
    assert_eq!(count(&api, "POST", BACKUPS), all.len());
    assert_eq!(count(&api, "GET", &format!("{SCHEDULES}/")), AT_ONCE, "the last ones begin after 8 s");
}

/// Each create takes a second, and the last Schedules wait for it.
#[tokio::test(start_paused = true)]
async fn a_schedule_that_is_paused_after_the_list_makes_no_backup() {
    let all: Vec<Value> = (0..2 * AT_ONCE).map(numbered).collect();
    let events = Watch::new();
    let mut paused = all[2 * AT_ONCE - 1].clone();
    paused["metadata"]["resourceVersion"] = json!("7");
    paused["spec"]["paused"] = json!(true);
    let api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &all)))
        .next(watch(SCHEDULES).streams(&events))
        .once(get(SCHEDULES).answers(list("6", &all)))
        .always(post(BACKUPS).takes_as("9").after(Duration::from_secs(1)))
        .always(get(&path_of(&paused)).answers(paused.clone()));
    for one in &all {
        api.always(patch(&path_of(one)).answers(recorded(one)));
    }
    let pauses = async {
        while count(&api, "POST", BACKUPS) == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        events.modified(&paused);
    };
    tokio::join!(run_for(&api, TICK, 4), pauses);
    assert_eq!(count(&api, "POST", BACKUPS), all.len() - 1);
    assert_eq!(count(&api, "GET", &format!("{SCHEDULES}/")), 1, "only what has changed is read again");
}

/// Who may write Schedules chooses how large they are: a hundred of a MiB at the same time would
/// take more memory than the leader has, and again after each restart.
#[tokio::test(start_paused = true)]
async fn large_schedules_are_acted_on_after_the_others_and_few_at_a_time() {
    let one = |i: usize| {
        let mut one = enabled("2");
        one["metadata"]["name"] = json!(format!("s{i}"));
        one["metadata"]["uid"] = json!(format!("s{i}"));
        if i < 8 {
            one["metadata"]["annotations"] = json!({"note": "x".repeat(LARGE)});
        }
        one
    };
    let all: Vec<Value> = (0..9).map(one).collect();
    let late = Duration::from_millis(20);
    let mut api = Scripted::new()
        .next(get(SCHEDULES).answers(list("5", &all)))
        .next(watch(SCHEDULES).never_answers())
        .always(post(BACKUPS).takes_as("9").after(late));
    for one in all {
        let path = format!("{SCHEDULES}/{}", one["metadata"]["name"].as_str().unwrap());
        let mut done = one.clone();
        done["metadata"]["resourceVersion"] = json!("3");
        done["status"]["lastBackup"] = json!(TICK);
        api = api.always(get(&path).answers(one).after(late)).always(patch(&path).answers(done).after(late));
    }
    run_for(&api, TICK, 1).await;
    let asked = api.asked();
    let at = |method: &str, path: &str| -> Vec<usize> {
        let is_it = |one: &String| one.starts_with(method) && one.contains(path);
        asked.iter().enumerate().filter(|(_, one)| is_it(one)).map(|(i, _)| i).collect()
    };
    let (reads, creates) = (at("GET", "/schedules/s"), at("POST", "/backups"));
    assert_eq!((reads.len(), creates.len()), (9, 9), "{asked:?}");
    assert!(asked[reads[0]].contains("/schedules/s8"), "{asked:?}");
    assert!(reads[4] < creates[1] && creates[1] < reads[5], "four at a time: {asked:?}");
}

#[tokio::test]
async fn when_a_schedule_is_due_is_searched_for_once_and_not_in_each_pass() {
    let scheduler = Scheduler::new(&lifecycle(&Scripted::new().client("velero")), Box::new(Timestamp::now));
    let known = CachedSchedule::of(&serde_json::from_value(enabled("2")).unwrap());
    assert_eq!(known.first, Some(TICK.parse().unwrap()));
    assert_eq!(known.interval, Some(SignedDuration::from_hours(24)));
    // What was found is believed, long after the real time.
    let found: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
    let now = "2026-06-01T00:00:00Z".parse().unwrap();
    let step = scheduler.decide(&known.schedule, Some(found), &UnfinishedBackups::new(), now);
    assert_eq!(step, ScheduleStep::Wait(Some(found)));
}
