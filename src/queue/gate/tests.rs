use berth_test_scripted::{Scripted, delete, get, patch, post};
use prometheus_client::registry::Registry;

use super::super::QueueSettings;
use super::*;
use crate::watch::WatchEvent;

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/backups.velero.io";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/berth";
const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/serverstatusrequests";
const REQUEST: &str = "/apis/velero.io/v1/namespaces/velero/serverstatusrequests/berth-x";
const BACKUP: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";
const OTHER: &str = "/apis/velero.io/v1/namespaces/velero/backups/two";

#[test]
fn releases_are_compared_and_builds_without_one_pass() {
    assert_eq!(release("v1.18.3"), Some((1, 18)));
    assert_eq!(release("v1.9.0-rc.1"), Some((1, 9)));
    assert_eq!(release("main"), None);
}

fn gate(api: &Scripted, executor: Executor) -> Gate {
    Gate {
        client: api.client("velero"),
        namespace: "velero".to_owned(),
        executor,
        store: Arc::new(BackupCache::new(QueueSettings::default())),
        metrics: QueueMetrics::new(&mut Registry::default()),
        stopped: Arc::default(),
        notes: LeaseAnnotations::default(),
        configuration: "berth".to_owned(),
    }
}

/// A definition that lists no phases allows all.
fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "backups.velero.io"},
        "spec": {
            "group": "velero.io", "scope": "Namespaced", "names": {"kind": "Backup", "plural": "backups"},
            "versions": [],
        },
    })
}

fn webhooks_of(namespace: &str) -> Value {
    let service = json!({"name": "berth-webhook", "namespace": namespace});
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "berth"},
        "webhooks": [{
            "name": "backups.berth.dev", "clientConfig": {"service": service}, "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    })
}

fn request(version: Option<&str>) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "ServerStatusRequest",
        "metadata": {"name": "berth-x", "namespace": "velero"}, "status": {"serverVersion": version},
    })
}

/// Keeps the gate for so long, and gives whether it is shut then.
async fn kept(gate: Gate, seconds: u64) -> Option<Stopped> {
    let stopped = Arc::clone(&gate.stopped);
    let _ = timeout(Duration::from_secs(seconds), gate.keep()).await;
    stopped.borrow().clone()
}

/// How often this was asked for.
fn asked(api: &Scripted, request: &str) -> usize {
    api.asked().iter().filter(|one| *one == request).count()
}

#[tokio::test(start_paused = true)]
async fn while_all_is_well_only_the_webhooks_are_looked_at_more_than_once_a_minute() {
    let api = Scripted::new()
        .always(get(WEBHOOKS).answers(webhooks_of("velero")))
        .always(get(DEFINITION).answers(definition()));
    assert_eq!(kept(gate(&api, Executor::Berth), 58).await, None);
    assert_eq!(asked(&api, &format!("GET {WEBHOOKS}")), 12);
    assert_eq!(asked(&api, &format!("GET {DEFINITION}")), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_is_looked_for_every_few_seconds_and_then_the_gate_opens() {
    let api = Scripted::new()
        .always(get(WEBHOOKS).refuses(404))
        .next(get(DEFINITION).refuses(404))
        .next(get(DEFINITION).refuses(404))
        .next(get(DEFINITION).answers(definition()));
    let gate = gate(&api, Executor::Berth);
    let stopped = Arc::clone(&gate.stopped);
    let mut changes = stopped.subscribe();
    let story = async {
        let begun = Instant::now();
        changes.changed().await.unwrap();
        let why = changes.borrow_and_update().clone().unwrap();
        assert!(why.why.contains("is missing") && !why.can_queue, "{why:?}");
        changes.changed().await.unwrap();
        assert_eq!((changes.borrow_and_update().clone(), begun.elapsed().as_secs()), (None, 10));
    };
    tokio::select! {
        () = gate.keep() => unreachable!("it is kept for ever"),
        done = timeout(Duration::from_secs(60), story) => done.unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_not_called_by_the_webhooks_any_more_stops_within_seconds() {
    let api = Scripted::new()
        .next(get(WEBHOOKS).answers(webhooks_of("velero")))
        .always(get(DEFINITION).answers(definition()))
        .always(get(WEBHOOKS).answers(webhooks_of("other")));
    let why = kept(gate(&api, Executor::Berth), 6).await.unwrap();
    assert!(why.why.contains("another berth, in namespace other") && !why.can_queue, "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn a_velero_that_does_not_answer_lets_backups_queue_and_its_request_is_removed() {
    let api = Scripted::new()
        .always(get(WEBHOOKS).refuses(404))
        .always(get(DEFINITION).answers(definition()))
        .next(post(REQUESTS).answers(request(None)))
        .always(get(REQUEST).answers(request(None)))
        .next(delete(REQUEST).answers(json!({"kind": "Status", "status": "Success"})));
    let why = kept(gate(&api, Executor::Velero), 21).await.unwrap();
    assert_eq!(asked(&api, &format!("GET {REQUEST}")), 80, "four looks a second, for 20 s");
    assert!(why.why.contains("no Velero server answers") && why.can_queue, "{why:?}");
}

#[tokio::test(start_paused = true)]
async fn a_velero_without_a_queue_stops_everything_and_one_with_it_nothing() {
    for (version, fault) in [("v1.17.2", Some("does not know ReadyToStart")), ("v1.18.0", None)] {
        let api = Scripted::new()
            .always(get(WEBHOOKS).refuses(404))
            .always(get(DEFINITION).answers(definition()))
            .next(post(REQUESTS).answers(request(None)))
            .next(get(REQUEST).answers(request(None)))
            .next(get(REQUEST).answers(request(Some(version))))
            .next(delete(REQUEST).answers(json!({"kind": "Status", "status": "Success"})));
        let why = kept(gate(&api, Executor::Velero), 2).await.map(|stopped| stopped.why);
        assert_eq!(why.is_some(), fault.is_some(), "{why:?}");
        assert!(fault.is_none_or(|fault| why.is_some_and(|why| why.contains(fault))));
    }
}

fn ready(name: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": name, "namespace": "velero", "uid": name, "resourceVersion": "7"},
        "spec": {}, "status": {"phase": "ReadyToStart"},
    })
}

/// Velero is there, and nobody else is.
fn beside_velero() -> Scripted {
    Scripted::new()
        .always(get(WEBHOOKS).refuses(404))
        .always(get(DEFINITION).answers(definition()))
        .always(post(REQUESTS).answers(request(None)))
        .always(get(REQUEST).answers(request(Some("v1.18.0"))))
        .always(delete(REQUEST).answers(json!({"kind": "Status", "status": "Success"})))
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_velero_does_not_see_is_touched_after_half_a_minute_and_again() {
    let ready = ready("one");
    let api =
        beside_velero().next(patch(BACKUP).answers(ready.clone())).next(patch(BACKUP).answers(ready.clone()));
    let gate = gate(&api, Executor::Velero);
    gate.store.observe(WatchEvent::Replaced(vec![serde_json::from_value(ready).unwrap()]));
    let begun = Instant::now();
    let first = async {
        while api.asked().iter().all(|one| !one.starts_with("PATCH")) {
            sleep(Duration::from_millis(100)).await;
        }
        let after = begun.elapsed().as_secs();
        api.played().await;
        (after, begun.elapsed().as_secs())
    };
    tokio::select! {
        () = gate.keep() => unreachable!("it is kept for ever"),
        done = timeout(Duration::from_secs(90), first) => assert_eq!(done.unwrap(), (30, 60)),
    }
    let touch = api.writes().into_iter().find(|write| write.method == "PATCH").unwrap().body;
    // Without a version: whatever else has been written, it is to be seen.
    let keys: Vec<_> = touch["metadata"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        (keys, &touch["metadata"]["uid"]),
        (vec!["annotations".to_owned(), "uid".to_owned()], &json!("one"))
    );
    assert!(touch["metadata"]["annotations"][keys::NUDGED_AT].is_string(), "{touch}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_takes_no_write_keeps_nobody_from_seeing_who_is_alone() {
    let api = Scripted::new()
        .always(get(WEBHOOKS).refuses(404))
        .always(get(DEFINITION).answers(definition()))
        .always(post(REQUESTS).never_answers());
    let why = kept(gate(&api, Executor::Velero), 16).await.unwrap();
    assert!(why.why.contains("took no request within 10 s") && why.can_queue, "{why:?}");
    assert_eq!(asked(&api, &format!("GET {WEBHOOKS}")), 2);

    // However many are to be woken, after the first that is not answered it looks again.
    let api = beside_velero().always(patch(BACKUP).never_answers()).always(patch(OTHER).never_answers());
    let gate = gate(&api, Executor::Velero);
    let backups = ["one", "two"].map(|name| serde_json::from_value::<Backup>(ready(name)).unwrap());
    gate.store.observe(WatchEvent::Replaced(backups.into()));
    assert_eq!(kept(gate, 46).await, None);
    // Six times until half a minute is over, then after the time-out and a pause.
    assert_eq!(asked(&api, &format!("GET {WEBHOOKS}")), 8);
    assert_eq!(api.asked().iter().filter(|one| one.starts_with("PATCH")).count(), 2);
}
