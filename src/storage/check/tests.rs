use std::net::TcpListener;
use std::sync::Arc;

use base64::Engine as _;
use berth_api::keys::FILESYSTEM_PROVIDER;
use berth_test_scripted::{Scripted, get, list, patch, post};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde_json::Value;
use tokio::time::Instant;

use super::*;
use crate::storage::Roots;

const LOCATIONS: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations";

fn location(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": name, "namespace": "velero", "uid": name, "resourceVersion": "1"}, "spec": spec,
    })
}

/// It takes connections and never answers.
#[tokio::test(start_paused = true)]
async fn a_location_that_hangs_delays_no_other_for_longer_than_a_check_may_take() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (folder, hanging) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let here = location(
        "here",
        &json!({
            "provider": FILESYSTEM_PROVIDER, "config": {"path": folder.path()}, "objectStorage": {"bucket": "b"},
        }),
    );
    let away = location(
        "away",
        &json!({
            "provider": "aws", "objectStorage": {"bucket": "b"}, "credential": {"name": "keys", "key": "cloud"},
            "config": {"s3Url": format!("http://{}", hanging.local_addr().unwrap())},
        }),
    );
    let file = "[default]\naws_access_key_id=id\naws_secret_access_key=s\n";
    let data = json!({"cloud": base64::engine::general_purpose::STANDARD.encode(file)});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
    let told = Arc::new(Mutex::new(Vec::<(&str, String, u64)>::new()));
    let begun = Instant::now();
    let tells = |name: &'static str, location: &Value| {
        let (told, location) = (Arc::clone(&told), location.clone());
        patch(&format!("{LOCATIONS}/{name}")).answers_with(move |sent| {
            let phase = sent["status"]["phase"].as_str().unwrap_or_default().to_owned();
            told.lock().push((name, phase, begun.elapsed().as_secs()));
            location.clone()
        })
    };
    let api = Scripted::new()
        .always(get(LOCATIONS).answers(list("1", &[away.clone(), here.clone()])))
        .always(get("/api/v1/namespaces/velero/secrets/keys").answers(secret))
        .always(tells("here", &here))
        .always(tells("away", &away));
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::from(vec![folder.path().to_owned()]));
    // What nobody has written is due in each round.
    let checker = LocationChecker::new(client, "velero", opener, Duration::from_secs(60));
    let rounds = tokio::time::timeout(Duration::from_secs(50), checker.run()).await;
    assert!(rounds.is_err(), "it runs for ever");
    let told = told.lock().clone();
    let at = |name: &str, phase: &str| -> Vec<u64> {
        told.iter().filter(|one| one.0 == name && one.1 == phase).map(|one| one.2).collect()
    };
    let (here, away) = (at("here", "Available"), at("away", "Unavailable"));
    // In the same round, and in the next one.
    let next = PATIENCE.as_secs() + TICK.as_secs();
    assert!(
        matches!(here[..], [first, second] if first <= 5 && (next..=next + 5).contains(&second)),
        "{told:?}"
    );
    assert!(matches!(away[..], [at] if (PATIENCE.as_secs()..=next).contains(&at)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_location_is_due_by_its_period_and_at_once_where_its_last_check_is_in_the_future() {
    let client = Scripted::new().client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::default());
    let checker = LocationChecker::new(client, "velero", opener, Duration::from_secs(60));
    let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
    for (last, is_due) in [
        ("2026-01-01T23:59:01Z", false),
        ("2026-01-01T23:59:00Z", true),
        // By a clock that was ahead by a day: for so long nobody would know how the location is.
        ("2026-01-03T00:00:00Z", true),
    ] {
        let mut checked = location("here", &json!({"provider": "aws", "objectStorage": {"bucket": "b"}}));
        checked["status"] = json!({"phase": "Available", "lastValidationTime": last});
        let checked: BackupStorageLocation = serde_json::from_value(checked).unwrap();
        assert_eq!(checker.is_due(&checked, now), is_due, "{last}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_location_tells_once_when_it_can_be_used_no_longer_and_when_it_can_again() {
    let folder = tempfile::tempdir().unwrap();
    let spec = json!({
        "provider": FILESYSTEM_PROVIDER, "config": {"path": folder.path()}, "objectStorage": {"bucket": "b"},
    });
    let of = |phase: &str| -> BackupStorageLocation {
        let mut of = location("here", &spec);
        of["status"] = json!({"phase": phase, "lastValidationTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(of).unwrap()
    };
    let events = "/apis/events.k8s.io/v1/namespaces/velero/events";
    let api = Scripted::new()
        .always(patch(&format!("{LOCATIONS}/here")).answers(location("here", &spec)))
        .always(post(events).takes_as("9"));
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::from(vec![folder.path().to_owned()]));
    let (events, sending) = Events::new(client.clone(), "velero", Counter::default());
    let checker = LocationChecker::new(client, "velero", opener, Duration::from_secs(60));
    let checker = checker.keeping_one_default(events);
    let checking = async {
        // Its volume is not mounted.
        checker.check(&of("Available"), false).await;
        checker.check(&of("Unavailable"), false).await;
        std::fs::create_dir(folder.path().join("b")).unwrap();
        checker.check(&of("Unavailable"), false).await;
        checker.check(&of("Available"), false).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    };
    tokio::select! {
        () = sending => {}
        () = checking => {}
    }
    let writes = api.writes();
    let told: Vec<&str> = writes.iter().filter_map(|write| write.body["reason"].as_str()).collect();
    assert_eq!(told, ["LocationUnavailable", "LocationAvailable"]);
    let note = writes.iter().find_map(|write| write.body["note"].as_str()).unwrap();
    assert!(note.contains("does not exist: mount its volume"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn of_two_default_locations_the_later_one_stays_the_default_and_the_other_one_is_told_of() {
    let of = |name: &str, created: &str| -> BackupStorageLocation {
        let spec = json!({"provider": "aws", "default": true, "objectStorage": {"bucket": "b"}});
        let mut of = location(name, &spec);
        of["metadata"]["creationTimestamp"] = json!(created);
        serde_json::from_value(of).unwrap()
    };
    let two = [of("early", "2026-01-01T00:00:00Z"), of("late", "2026-01-02T00:00:00Z")];
    let api = Scripted::new()
        .once(patch(&format!("{LOCATIONS}/early")).answers(serde_json::to_value(&two[0]).unwrap()))
        .always(post("/apis/events.k8s.io/v1/namespaces/velero/events").takes_as("9"));
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::default());
    let (events, sending) = Events::new(client.clone(), "velero", Counter::default());
    let checker = LocationChecker::new(client, "velero", opener, Duration::from_secs(60));
    let checker = checker.keeping_one_default(events);
    let keeping = async {
        checker.keep_one_default(&two).await;
        checker.keep_one_default(&two[1..]).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    };
    tokio::select! {
        () = sending => {}
        () = keeping => {}
    }
    let writes = api.writes();
    assert_eq!(writes[0].body["spec"], json!({"default": false}));
    assert_eq!(writes[0].body["metadata"], json!({"uid": "early", "resourceVersion": "1"}));
    let told: Vec<&Value> = writes[1..].iter().map(|write| &write.body["reason"]).collect();
    assert_eq!(told, ["DefaultChanged"]);
    let note = writes[1].body["note"].as_str().unwrap();
    assert!(note.contains("because late is"), "{note}");
}

/// The API server would not take it, and the location would stay Available.
#[test]
fn the_status_quotes_so_much_of_a_stores_answer_and_no_more() {
    let here = serde_json::from_value(location(
        "here",
        &json!({"provider": "aws", "objectStorage": {"bucket": "b"}}),
    ));
    let error = anyhow::anyhow!("400 Bad Request: {}", "x".repeat(2 << 20));
    let told = told(&error, &here.unwrap());
    assert!(told.starts_with("400 Bad Request: xxx") && told.len() < 1100, "{}", told.len());
}

#[tokio::test]
async fn a_place_where_something_else_lives_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let of = json!({
        "provider": FILESYSTEM_PROVIDER, "config": {"path": folder.path()}, "objectStorage": {"bucket": "b"},
    });
    let here: BackupStorageLocation = serde_json::from_value(location("here", &of)).unwrap();
    let api = Scripted::new().always(patch(&format!("{LOCATIONS}/here")).answers(location("here", &of)));
    let client = api.client("velero");
    let opener = Opener::new(client.clone(), "velero", Roots::from(vec![folder.path().to_owned()]));
    let checker = LocationChecker::new(client, "velero", opener, Duration::from_secs(60));
    for own in ["backups", "restores", "restic", "kopia"] {
        std::fs::create_dir_all(folder.path().join("b").join(own)).unwrap();
    }
    checker.check(&here, false).await;
    std::fs::create_dir(folder.path().join("b/photos")).unwrap();
    checker.check(&here, false).await;
    let writes = api.writes();
    let phases: Vec<&Value> = writes.iter().map(|write| &write.body["status"]["phase"]).collect();
    assert_eq!(phases, ["Available", "Unavailable"]);
    let message = writes[1].body["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("something else lives in this place: photos"), "{message}");
}
