use berth_test_scripted::{Scripted, Watch, get, list, watch};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::leader::LEASE;
use crate::queue::cycle::CANCELED;

const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";
const LOCATIONS: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations";

fn backup(uid: &str, version: &str, status: Value) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {
            "name": "b", "namespace": "velero", "uid": uid, "resourceVersion": version,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {}, "status": status,
    })
}

fn at(phase: &str, version: &str) -> Value {
    backup("u", version, json!({"phase": phase}))
}

fn queued(version: &str) -> Value {
    backup("u", version, json!({"phase": "Queued", "queuePosition": 1}))
}

/// How it ended, and what was shown where there is no terminal.
async fn followed(api: &Scripted, made: Value) -> (anyhow::Result<WaitOutcome>, String) {
    let client = api.client("velero");
    let (person, backups) = (Person::of(client.clone()), Api::namespaced(client, "velero"));
    let made: Backup = serde_json::from_value(made).unwrap();
    let mut display = WaitDisplay::new(false, Vec::new());
    let ended = follow(&person, backups, &made, &mut display).await;
    (ended.map(|(_, outcome)| outcome), String::from_utf8(display.out).unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_end_that_a_watch_shows_has_its_outcome() {
    let canceled = backup("u", "7", json!({"phase": "Failed", "failureReason": CANCELED}));
    let mut removed = at("InProgress", "7");
    removed["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    for (last, outcome) in [
        (at("Completed", "7"), WaitOutcome::Completed),
        (at("PartiallyFailed", "7"), WaitOutcome::PartiallyFailed),
        (at("Failed", "7"), WaitOutcome::Failed),
        (at("FailedValidation", "7"), WaitOutcome::FailedValidation),
        (canceled, WaitOutcome::Canceled),
        (at("Deleting", "7"), WaitOutcome::Deleted),
        (removed, WaitOutcome::Deleted),
        // Another one of that name.
        (backup("other", "7", json!({"phase": "Completed"})), WaitOutcome::Deleted),
    ] {
        let events = Watch::new();
        let api = Scripted::new()
            .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
            .next(watch(BACKUPS).from("5").streams(&events));
        events.modified(&at("Finalizing", "6"));
        events.modified(&last);
        let (ended, shown) = followed(&api, at("ReadyToStart", "3")).await;
        assert_eq!(ended.unwrap(), outcome, "{last}");
        assert!(shown.contains("b runs\nb is finalized\n"), "{shown}");
    }
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
        .next(watch(BACKUPS).from("5").streams(&events));
    events.deleted(&at("InProgress", "6"));
    assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), WaitOutcome::Deleted);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_for_a_minute_hides_no_end() {
    let (first, second) = (Watch::new(), Watch::new());
    let api = Scripted::new()
        .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
        .next(watch(BACKUPS).from("5").streams(&first));
    for _ in 0..6 {
        api.next(watch(BACKUPS).from("6").breaks());
    }
    api.next(watch(BACKUPS).from("6").streams(&second));
    first.modified(&at("InProgress", "6"));
    first.breaks();
    second.modified(&at("PartiallyFailed", "8"));
    let begun = Instant::now();
    assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), WaitOutcome::PartiallyFailed);
    assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_nobody_could_tell_is_seen_in_the_next_list() {
    for (listed, outcome) in [
        (vec![at("Completed", "7")], WaitOutcome::Completed),
        (vec![], WaitOutcome::Deleted),
        (vec![backup("other", "7", json!({"phase": "Queued"}))], WaitOutcome::Deleted),
    ] {
        let events = Watch::new();
        let api = Scripted::new()
            .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
            .next(watch(BACKUPS).from("5").streams(&events))
            .next(get(BACKUPS).answers(list("900", &listed)));
        events.gone();
        assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), outcome, "{listed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_without_a_word_is_noticed_in_a_minute() {
    let (silent, second) = (Watch::new(), Watch::new());
    let api = Scripted::new()
        .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
        .next(watch(BACKUPS).from("5").streams(&silent))
        .next(watch(BACKUPS).from("5").streams(&second));
    second.modified(&at("Completed", "7"));
    let begun = Instant::now();
    assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), WaitOutcome::Completed);
    assert!(begun.elapsed() < Duration::from_secs(70), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_right_that_lacks_is_an_error_and_a_definition_that_is_gone_an_end() {
    let api = Scripted::new().next(get(BACKUPS).refuses(403));
    let said = followed(&api, at("InProgress", "3")).await.0.unwrap_err();
    assert!(said.to_string().contains("cannot be watched"), "{said}");
    let api = Scripted::new().next(get(BACKUPS).refuses(404));
    assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), WaitOutcome::Deleted);
    let api = Scripted::new()
        .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
        .next(watch(BACKUPS).from("5").refuses(404));
    assert_eq!(followed(&api, at("InProgress", "3")).await.0.unwrap(), WaitOutcome::Deleted);
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_does_not_come_hides_no_end() {
    let events = Watch::new();
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/velero/leases/{LEASE}");
    let api = Scripted::new()
        .next(get(BACKUPS).answers(list("5", &[queued("5")])))
        .next(watch(BACKUPS).from("5").streams(&events))
        .always(get(&lease).never_answers());
    events.modified(&at("Completed", "7"));
    let begun = Instant::now();
    assert_eq!(followed(&api, queued("3")).await.0.unwrap(), WaitOutcome::Completed);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_reason_is_worked_out_less_often_the_longer_it_takes() {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/velero/leases/{LEASE}");
    // The watch lists them once.
    for (takes, reads) in [(0, 11..=14), (2, 2..=4)] {
        let events = Watch::new();
        let all = list("5", &[queued("5")]);
        let api = Scripted::new()
            .next(watch(BACKUPS).from("5").streams(&events))
            .always(get(&lease).refuses(404))
            .always(get(BACKUPS).answers(all).after(Duration::from_secs(takes)))
            .always(get(LOCATIONS).answers(list("5", &[])));
        let end = async {
            sleep(Duration::from_secs(58)).await;
            events.modified(&at("Completed", "7"));
        };
        let ((ended, shown), ()) = tokio::join!(followed(&api, queued("3")), end);
        assert_eq!(ended.unwrap(), WaitOutcome::Completed);
        assert!(shown.contains("b waits at position 1, for "), "{shown}");
        let count = api.asked().iter().filter(|asked| **asked == format!("GET {BACKUPS}")).count();
        assert!(reads.contains(&count), "{count} reads, each of which takes {takes} s");
    }
}

/// A pipe whose reader is gone, or a full disk.
struct Unwritable(std::io::ErrorKind);

impl Write for Unwritable {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(self.0.into())
    }
}

#[tokio::test(start_paused = true)]
async fn an_output_that_cannot_be_written_hides_no_end() {
    for kind in [std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::StorageFull] {
        let events = Watch::new();
        let api = Scripted::new()
            .next(get(BACKUPS).answers(list("5", &[at("InProgress", "5")])))
            .next(watch(BACKUPS).from("5").streams(&events));
        events.modified(&at("PartiallyFailed", "6"));
        let client = api.client("velero");
        let (person, backups) = (Person::of(client.clone()), Api::namespaced(client, "velero"));
        let made: Backup = serde_json::from_value(at("InProgress", "3")).unwrap();
        let mut display = WaitDisplay::new(true, Unwritable(kind));
        let (seen, outcome) = follow(&person, backups, &made, &mut display).await.unwrap();
        assert_eq!((outcome, seen.phase()), (WaitOutcome::PartiallyFailed, BackupPhase::PartiallyFailed));
    }
}

#[tokio::test]
async fn a_terminal_keeps_one_line_for_each_phase() {
    let mut display = WaitDisplay::new(true, Vec::new());
    for made in [queued("1"), at("ReadyToStart", "2")] {
        display.show(&serde_json::from_value(made).unwrap());
    }
    display.end();
    let shown = String::from_utf8(display.out).unwrap();
    let wanted = "\r\x1b[K\x1b[?7lb waits at position 1\x1b[?7h\n\x1b[?7lb starts\x1b[?7h\n";
    assert_eq!(shown, wanted);
}
