//! What is written about expired Backups, against a scripted API server.

use berth_test_scripted::{Scripted, get, list as listed, page, patch as patching, post};
use serde_json::Value;

use super::*;

const VELERO: &str = "/apis/velero.io/v1/namespaces/velero";

fn backup(name: &str, location: &str, expiration: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": name, "namespace": "velero", "uid": format!("uid-{name}")},
        "spec": {"storageLocation": location},
        "status": {"phase": "Completed", "expiration": expiration},
    })
}

fn location(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": name, "namespace": "velero"},
        "spec": {"provider": "aws", "objectStorage": {"bucket": "b"}, "accessMode": mode},
    })
}

/// The Backups whose deletion was asked for, once the time was.
fn deleted(api: &Scripted) -> Vec<String> {
    let name =
        |write: &berth_test_scripted::Write| write.body["spec"]["backupName"].as_str().map(str::to_owned);
    let mut names: Vec<String> = api.writes().iter().skip(1).filter_map(name).collect();
    names.sort_unstable();
    names
}

fn lifecycle(api: &Scripted) -> Lifecycle {
    crate::lifecycle::fake(&api.client("velero"))
}

fn clock(time: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": "c", "namespace": "velero", "creationTimestamp": time},
        "spec": {"backupName": CLOCK},
    })
}

#[tokio::test(start_paused = true)]
async fn expired_backups_are_asked_for_once_and_failures_are_labelled() {
    let (past, future) = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z");
    let asked = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": "asked-x", "namespace": "velero"}, "spec": {"backupName": "asked"},
    });
    let mut failed = asked.clone();
    failed["metadata"] = json!({"name": "f", "creationTimestamp": "2026-01-02T23:00:00Z"});
    failed["spec"]["backupName"] = json!("failed");
    failed["status"] = json!({"phase": "Processed", "errors": ["why"]});
    let of = |name: &str, location: &str| backup(name, location, past);
    let first = page(
        "1",
        "more",
        &[of("asked", "rw"), of("failed", "rw"), of("old", "rw"), backup("young", "rw", future)],
    );
    let second = listed("1", &[of("gone", "none"), of("read", "ro")]);
    let backups = format!("{VELERO}/backups");
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite"), location("ro", "ReadOnly")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &[asked.clone(), failed])))
        .next(get(&backups).answers(first))
        .next(get(&backups).page("more").answers(second))
        .once(patching(&format!("{backups}/gone")).answers(of("gone", "none")))
        .once(patching(&format!("{backups}/read")).answers(of("read", "ro")))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock("2026-01-02T23:55:00Z")))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(asked));
    let now = "2026-01-02T23:55:00Z".parse().unwrap();
    let again = look(&lifecycle(&api), now).await.unwrap();
    assert_eq!(again, Some(future.parse().unwrap()), "when the next one expires");
    let writes = api.writes();
    let labels: Vec<&str> = writes
        .iter()
        .filter_map(|write| write.body["metadata"]["labels"][keys::GC_FAILURE].as_str())
        .collect();
    assert_eq!(labels, ["BSLNotFound", "BSLReadOnly"]);
    let [request] =
        writes.iter().filter(|write| write.method == "POST").skip(1).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(request.body["spec"]["backupName"], "old");
    assert_eq!(request.body["metadata"]["generateName"], "old-");
    let labels = json!({"velero.io/backup-name": "old", "velero.io/backup-uid": "uid-old"});
    assert_eq!(request.body["metadata"]["labels"], labels);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_fails_for_ever_is_not_asked_for_each_hour() {
    let failed = |backup: &str, created: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
            "metadata": {"name": format!("{backup}-{created}"), "creationTimestamp": created},
            "spec": {"backupName": backup}, "status": {"phase": "Processed", "errors": ["why"]},
        })
    };
    let now = "2026-01-03T12:00:00Z";
    let requests = format!("{VELERO}/deletebackuprequests");
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&requests).answers(listed(
            "1",
            &[
                failed("copy", "2026-01-03T08:00:00Z"),
                failed("copy", "2026-01-02T00:00:00Z"),
                failed("young", "2026-01-03T11:00:00Z"),
            ],
        )))
        .next(get(&format!("{VELERO}/backups")).answers(listed(
            "1",
            &[backup("copy", "rw", "2026-01-01T00:00:00Z"), backup("young", "rw", "2026-01-03T10:00:00Z")],
        )))
        .next(post(&requests).answers(clock(now)))
        .next(post(&requests).answers(clock(now)));
    look(&lifecycle(&api), now.parse().unwrap()).await.unwrap();
    assert_eq!(deleted(&api), ["young"]);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_is_more_than_its_schedule_keeps_is_asked_for() {
    let of_schedule = |name: &str, uid: &str, ended: &str| {
        let mut backup = backup(name, "rw", "2027-01-01T00:00:00Z");
        backup["metadata"]["annotations"] = json!({keys::SCHEDULE_UID: uid});
        backup["status"]["completionTimestamp"] = json!(ended);
        backup
    };
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "daily", "uid": "s", "annotations": {keys::SUCCESSFUL_HISTORY_LIMIT: "1"}},
        "spec": {"schedule": "@daily", "template": {}},
    });
    // As a Velero brings it from a store: it pushes out nothing.
    let mut brought = of_schedule("brought", "s", "2026-01-03T00:00:00Z");
    brought["metadata"]["generation"] = json!(1);
    let now = "2026-01-04T00:00:00Z";
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &[])))
        .next(get(&format!("{VELERO}/backups")).answers(listed(
            "1",
            &[
                of_schedule("old", "s", "2026-01-01T00:00:00Z"),
                of_schedule("new", "s", "2026-01-02T00:00:00Z"),
                brought,
                of_schedule("other", "of-a-schedule-that-is-gone", "2026-01-01T00:00:00Z"),
                of_schedule("other-too", "of-a-schedule-that-is-gone", "2026-01-02T00:00:00Z"),
            ],
        )))
        .next(get(&format!("{VELERO}/schedules")).answers(listed("1", &[schedule])))
        .next(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .next(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)));
    look(&lifecycle(&api), now.parse().unwrap()).await.unwrap();
    let asked: Vec<Value> =
        api.writes().iter().skip(1).map(|write| write.body["spec"]["backupName"].clone()).collect();
    assert_eq!(asked, ["old"]);
    api.finish();
}

/// The node on which it ran has asked for the time only after it had begun.
#[tokio::test(start_paused = true)]
async fn a_clock_that_was_behind_while_a_backup_ran_makes_it_neither_expire_nor_the_oldest_one() {
    let of = |name: &str, generation: i64, created: &str, [began, ended, expires]: [&str; 3]| {
        let mut of = backup(name, "rw", expires);
        of["metadata"]["creationTimestamp"] = json!(created);
        of["metadata"]["generation"] = json!(generation);
        of["metadata"]["annotations"] = json!({keys::SCHEDULE_UID: "s"});
        of["status"]["startTimestamp"] = json!(began);
        of["status"]["completionTimestamp"] = json!(ended);
        of
    };
    let behind = ["2025-01-01T00:00:00Z", "2025-01-01T01:00:00Z", "2025-01-31T00:00:00Z"];
    let right = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", "2026-01-31T00:00:00Z"];
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "daily", "uid": "s", "annotations": {keys::SUCCESSFUL_HISTORY_LIMIT: "1"}},
        "spec": {"schedule": "@daily", "template": {}},
    });
    let now = "2026-01-03T00:00:00Z";
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &[])))
        .next(get(&format!("{VELERO}/backups")).answers(listed(
            "1",
            &[
                of("newest", 5, "2026-01-02T00:00:00Z", behind),
                of("older", 5, "2026-01-01T00:00:00Z", right),
                // From a store, where it has been for so long.
                of("brought", 1, "2026-01-02T00:00:00Z", behind),
            ],
        )))
        .next(get(&format!("{VELERO}/schedules")).answers(listed("1", &[schedule])))
        .next(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)));
    look(&lifecycle(&api), now.parse().unwrap()).await.unwrap();
    assert_eq!(deleted(&api), ["brought", "older"]);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_schedule_says_how_many_of_its_last_backups_stay_before_any_of_them_does() {
    let of = |name: &str, mark: Option<&str>, keep_last: Option<&str>, ended: &str| {
        let mut of = backup(name, "rw", "2026-01-03T00:00:00Z");
        of["metadata"]["labels"] = json!({keys::SCHEDULE: "daily"});
        for (key, value) in [(keys::SCHEDULE_UID, mark), (keys::KEEP_LAST, keep_last)] {
            if let Some(value) = value {
                of["metadata"]["annotations"][key] = json!(value);
            }
        }
        of["status"]["completionTimestamp"] = json!(ended);
        of
    };
    let schedule = json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule",
        "metadata": {"name": "daily", "uid": "s", "annotations": {keys::KEEP_LAST: "1"}},
        "spec": {"schedule": "@daily", "template": {}},
    });
    let now = "2026-01-04T00:00:00Z";
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &[])))
        .next(get(&format!("{VELERO}/backups")).answers(listed(
            "1",
            &[
                of("a-run", Some("s"), None, "2026-01-01T00:00:00Z"),
                of("last-run", Some("s"), None, "2026-01-02T00:00:00Z"),
                // Whoever creates Backups has created this one.
                of("forged", None, Some("9"), "2026-01-02T12:00:00Z"),
                of("labelled", None, None, "2025-12-01T00:00:00Z"),
            ],
        )))
        .next(get(&format!("{VELERO}/schedules")).answers(listed("1", &[schedule])))
        .next(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)));
    look(&lifecycle(&api), now.parse().unwrap()).await.unwrap();
    assert_eq!(deleted(&api), ["a-run", "labelled"]);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_bounded_number_is_asked_for_at_a_time() {
    let expired: Vec<Value> =
        (0..150).map(|i| backup(&format!("b{i}"), "rw", "2026-01-01T00:00:00Z")).collect();
    let asked = json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": "x", "namespace": "velero", "creationTimestamp": "2026-01-02T00:00:00Z"},
        "spec": {"backupName": "x"},
    });
    let requests = format!("{VELERO}/deletebackuprequests");
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&requests).answers(listed("1", &[])))
        .next(get(&format!("{VELERO}/backups")).answers(listed("1", &expired)))
        .always(post(&requests).answers(asked));
    let now = "2026-01-02T00:00:00Z".parse().unwrap();
    assert_eq!(look(&lifecycle(&api), now).await.unwrap(), None, "there is more to do");
    assert_eq!(api.writes().len(), UNDER_WAY + 1, "and the time is asked for");
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn what_the_store_keeps_is_asked_for_again_when_its_lock_has_ended() {
    let now = "2026-01-02T12:00:00Z";
    let failed = |backup: &str, created: &str, until: &str| {
        json!({
            "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
            "metadata": {
                "name": format!("of-{backup}"), "namespace": "velero", "creationTimestamp": created,
                "annotations": {keys::LOCKED_UNTIL: until},
            },
            "spec": {"backupName": backup}, "status": {"phase": "Processed", "errors": ["why"]},
        })
    };
    // Of those at 00:00 the pause after a failure has ended, too.
    let requests = [
        failed("locked", "2026-01-02T00:00:00Z", "2026-01-02T12:00:01Z"),
        failed("free", "2026-01-02T00:00:00Z", "2026-01-02T12:00:00Z"),
        failed("paused", "2026-01-02T11:59:00Z", "2026-01-02T12:00:00Z"),
        failed("unreadable", "2026-01-02T11:59:00Z", "soon"),
    ];
    let expired =
        ["locked", "free", "paused", "unreadable"].map(|name| backup(name, "rw", "2026-01-01T23:00:00Z"));
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &requests)))
        .next(get(&format!("{VELERO}/backups")).answers(listed("1", &expired)))
        .next(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)))
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock(now)));
    look(&lifecycle(&api), now.parse().unwrap()).await.unwrap();
    assert_eq!(deleted(&api), ["free"]);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_ahead_deletes_nothing() {
    let api = Scripted::new()
        .next(
            get(&format!("{VELERO}/backupstoragelocations"))
                .answers(listed("1", &[location("rw", "ReadWrite")])),
        )
        .next(get(&format!("{VELERO}/deletebackuprequests")).answers(listed("1", &[])))
        .next(
            get(&format!("{VELERO}/backups"))
                .answers(listed("1", &[backup("young", "rw", "2026-01-03T00:00:00Z")])),
        )
        .once(post(&format!("{VELERO}/deletebackuprequests")).answers(clock("2026-01-01T00:00:00Z")));
    let now = "2027-01-01T00:00:00Z".parse().unwrap();
    look(&lifecycle(&api), now).await.unwrap();
    assert_eq!(api.writes().len(), 1, "the time is asked for, and nothing else");
    api.finish();
}

/// A look holds all Backups at one time, and whoever creates them chooses how large they are.
#[test]
fn a_backup_takes_little_memory_whatever_is_in_it() {
    let large = "x".repeat(100_000);
    let mut made = backup("b", "rw", "2026-01-03T00:00:00Z");
    made["metadata"]["annotations"] = json!({keys::KEEP_LAST: "3", keys::SCHEDULE_UID: large});
    made["metadata"]["generation"] = json!(2);
    made["spec"]["storageLocation"] = json!(large);
    let made: Backup = serde_json::from_value(made).unwrap();
    let kept = keep(&made);
    assert!(kept.keep_last == 3 && kept.proven.is_some());
    let texts = [Some(&kept.name), Some(&kept.location), kept.proven.as_ref(), kept.schedule.as_ref()];
    for text in texts.into_iter().flatten() {
        assert!(text.len() < 300, "{}", text.len());
    }
}
