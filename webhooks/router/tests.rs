use std::sync::atomic::{AtomicBool, Ordering};

use berth_core::affinity::AffinityFinding;
use berth_core::glob::Glob;
use berth_core::location::Location;
use berth_core::mover::placement::MoverRef;
use berth_core::namespace::NamespaceSet;
use berth_core::queue::{Band, QueueEntry, QueueOrder, QueuePhase, QueueView};
use berth_core::schedule::preview::Others;
use http::Request;
use http_body_util::BodyExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::ServiceExt;

use super::*;
use crate::events::EventRecorder;
use crate::intake::BODY_LIMIT;

#[derive(Default)]
struct Cluster {
    backups: Mutex<Vec<Arc<QueueEntry>>>,
    locations: Mutex<Vec<Location>>,
    changed: Notify,
    ready: AtomicBool,
    order: QueueOrder,
    foreign: Mutex<Vec<String>>,
    cannot_queue: Mutex<Option<String>>,
    /// Velero runs the queued Backups.
    beside_velero: AtomicBool,
    schedules: Mutex<Option<Others>>,
    movers: movers::Movers,
    garden: garden::Garden,
}

impl Listers for Arc<Cluster> {
    fn ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
    fn cannot_queue(&self) -> Option<String> {
        self.cannot_queue.lock().clone()
    }
    fn runs_backups(&self) -> bool {
        !self.beside_velero.load(Ordering::Relaxed)
    }
    fn queue(&self, _: &QueueEntry, _: Timestamp) -> QueueView {
        QueueView { backups: self.backups.lock().clone(), order: self.order.clone(), ..QueueView::default() }
    }
    fn has_seen(&self, answered: &QueueEntry) -> bool {
        let is_it = |entry: &Arc<QueueEntry>| {
            entry.enqueued_at == answered.enqueued_at || entry.name == answered.name
        };
        self.backups.lock().iter().any(is_it)
    }
    fn locations(&self) -> Arc<Vec<Location>> {
        Arc::new(self.locations.lock().clone())
    }
    fn locations_changed(&self) -> impl Future<Output = ()> + Send {
        self.changed.notified()
    }
    fn schedules(&self) -> Option<Others> {
        self.schedules.lock().clone()
    }
    fn order(&self) -> &QueueOrder {
        &self.order
    }
    fn expected_start(&self, _: &QueueView, _: &str, _: Timestamp) -> Option<Band<Timestamp>> {
        None
    }
    fn within(&self, _: Duration) -> impl Sized + Send {}
}

impl EventRecorder for Arc<Cluster> {
    fn placement(&self, mover: &MoverRef<'_>, finding: &AffinityFinding) {
        self.movers.told.lock().push(format!("{}: {finding}", mover.name));
    }
    fn foreign_queue(&self, name: &str, _: &str, user: &str) {
        self.foreign.lock().push(format!("{name} by {user}"));
    }
}

mod garden;
mod movers;
mod schedules;
mod volumes;

fn location(name: &str) -> Location {
    Location {
        name: name.into(),
        is_default: name == "default",
        read_only: false,
        held: false,
        unavailable: None,
        reopened_at: None,
    }
}

fn state() -> (Arc<Cluster>, Router) {
    let cluster = Arc::new(Cluster::default());
    cluster.locations.lock().push(location("default"));
    cluster.ready.store(true, Ordering::Relaxed);
    let identities = crate::Identities {
        queue: vec!["berth".into()],
        executor: vec!["berth".into()],
        lifecycle: vec!["velero".into()],
    };
    let now = || Timestamp::from_second(1_790_000_000).unwrap_or_default();
    let state = AdmissionState::new(cluster.clone(), cluster.clone(), identities, now);
    (cluster, router(Arc::new(state)))
}

fn review(operation: &str, object: Value, old: Option<Value>, dry_run: bool) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u-1", "operation": operation, "namespace": "velero", "name": "b", "dryRun": dry_run,
        "kind": {"group": "velero.io", "version": "v1", "kind": "Backup"}, "object": object, "oldObject": old}})
}

fn backup(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "velero.io/v1", "kind": "Backup", "metadata": {"name": name, "namespace": "velero"}, "spec": spec})
}

async fn post(router: &Router, path: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let request = Request::post(path).body(axum::body::Body::from(body));
    let request = request.unwrap_or_else(|e| unreachable!("{e}"));
    let answer = router.clone().oneshot(request).await.unwrap_or_else(|e| match e {});
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap_or_else(|e| unreachable!("{e}"));
    (status, body.to_bytes().to_vec())
}

async fn ask(router: &Router, path: &str, review: Value) -> Value {
    let (status, body) = post(router, path, review.to_string().into_bytes()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let answer: Value = serde_json::from_slice(&body).unwrap_or_else(|e| unreachable!("{e}"));
    assert_eq!(answer["response"]["uid"], "u-1");
    answer["response"].clone()
}

/// The object as the API server would store it.
fn patched(object: Value, answer: &Value) -> Value {
    use base64::Engine as _;
    assert_eq!(answer["allowed"], true);
    let mut stored = object;
    if let Some(patch) = answer["patch"].as_str() {
        assert_eq!(answer["patchType"], "JSONPatch");
        let bytes = base64::engine::general_purpose::STANDARD.decode(patch).unwrap_or_default();
        let patch: json_patch::Patch = serde_json::from_slice(&bytes).unwrap_or_else(|e| unreachable!("{e}"));
        json_patch::patch(&mut stored, &patch).unwrap_or_else(|e| unreachable!("{e}"));
    }
    stored
}

/// The object as the API server would store it, and the warnings.
async fn create(router: &Router, object: Value, dry_run: bool) -> (Value, Vec<String>) {
    let answer = ask(router, ENQUEUE_PATH, review("CREATE", object.clone(), None, dry_run)).await;
    let stored = patched(object, &answer);
    let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
    (stored, warnings.iter().filter_map(|w| w.as_str().map(str::to_owned)).collect())
}

#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "nobody can look at the queue meanwhile: that is the point")]
async fn what_takes_too_long_is_let_in_without_a_place_before_the_api_server_gives_up() {
    let (cluster, router) = state();
    let mut object = backup("slow", json!({}));
    object["metadata"]["annotations"] = json!({"berth.dev/enqueued-at": "2020-01-01T00:00:00Z"});
    let review = review("CREATE", object, None, false);
    let held = cluster.backups.lock();
    let answer = ask(&router, &format!("{ENQUEUE_PATH}?timeout=1s"), review.clone()).await;
    assert_eq!(answer["allowed"], true);
    let later = "berth: queued by the controller in a moment: this replica is busy";
    assert_eq!(answer["warnings"], json!([later]));
    assert!(answer["patch"].is_string(), "a mark that was written by hand goes all the same");
    drop(held);
    let answer = ask(&router, &format!("{ENQUEUE_PATH}?timeout=30s"), review).await;
    let warning = answer["warnings"][0].as_str().unwrap_or_default();
    assert!(warning.starts_with("berth: queued at position"), "{warning}");
}

#[test]
fn the_deadline_is_before_the_one_of_the_api_server_and_no_hostile_one() {
    let of = |query: &str| {
        deadline(&Request::builder().uri(format!("/x{query}")).body(axum::body::Body::empty()).unwrap())
    };
    let millis = |query: &str| of(query).as_millis();
    assert_eq!((millis(""), millis("?timeout=2s"), millis("?a=b&timeout=10s")), (1500, 1500, 7500));
    for hostile in ["?timeout=18446744073709551615s", "?timeout=99999999999999999999999s", "?timeout=-1s"] {
        assert!(of(hostile) <= LONGEST, "{hostile}");
    }
    assert_eq!(millis("?timeout=0s"), 750);
}

#[tokio::test]
async fn a_create_gets_phase_position_mark_and_a_warning() {
    let (_, router) = state();
    let (stored, warnings) = create(&router, backup("b", json!({"includedNamespaces": ["a"]})), false).await;
    assert_eq!(stored["status"], json!({"phase": "Queued", "queuePosition": 1}));
    assert_eq!(stored["metadata"]["annotations"]["berth.dev/enqueued-at"], "2026-09-21T14:13:20.000000Z");
    assert_eq!(warnings, ["berth: queued at position 1; it starts next"]);
}

#[tokio::test]
async fn creates_in_quick_succession_rise_and_dry_runs_take_no_place() {
    let (_, router) = state();
    let same = |name: &str| backup(name, json!({"includedNamespaces": ["a"]}));
    let position = |stored: &Value| stored["status"]["queuePosition"].as_u64();
    assert_eq!(position(&create(&router, same("b1"), false).await.0), Some(1));
    for _ in 0..10 {
        assert_eq!(position(&create(&router, same("dry"), true).await.0), Some(2));
    }
    let (second, warnings) = create(&router, same("b2"), false).await;
    assert_eq!(position(&second), Some(2));
    assert_eq!(
        warnings,
        ["berth: queued at position 2; waits for b1 (ahead in the queue), which also takes a"]
    );
}

#[tokio::test]
async fn an_answer_is_forgotten_once_its_object_is_seen() {
    let (cluster, router) = state();
    let (stored, _) = create(&router, backup("b1", json!({"includedNamespaces": ["a"]})), false).await;
    let mark = stored["metadata"]["annotations"]["berth.dev/enqueued-at"].as_str().unwrap_or_default();
    cluster.backups.lock().push(Arc::new(QueueEntry {
        name: "b1".into(),
        uid: "real".into(),
        phase: QueuePhase::InProgress,
        enqueued_at: mark.parse().ok(),
        created_at: Timestamp::UNIX_EPOCH,
        namespaces: NamespaceSet::new(Glob::parse("a").into_iter().collect(), Vec::new()),
        ..QueueEntry::default()
    }));
    let (stored, warnings) = create(&router, backup("b2", json!({"includedNamespaces": ["a"]})), false).await;
    assert_eq!(stored["status"]["queuePosition"], 1, "b1 runs, so the queue is empty");
    assert_eq!(warnings, ["berth: queued at position 1; waits for b1 (running), which also takes a"]);
}

#[tokio::test]
async fn a_create_of_a_name_that_is_taken_is_nothing_to_wait_for() {
    let (cluster, router) = state();
    cluster.backups.lock().push(Arc::new(QueueEntry {
        name: "b1".into(),
        uid: "real".into(),
        phase: QueuePhase::InProgress,
        enqueued_at: Some(Timestamp::UNIX_EPOCH),
        namespaces: NamespaceSet::new(Glob::parse("a").into_iter().collect(), Vec::new()),
        ..QueueEntry::default()
    }));
    // The API server answers AlreadyExists afterwards, and tells no webhook.
    create(&router, backup("b1", json!({"includedNamespaces": ["b"]})), false).await;
    let (stored, warnings) = create(&router, backup("b2", json!({"includedNamespaces": ["b"]})), false).await;
    assert_eq!(stored["status"]["queuePosition"], 1, "b1 runs, so the queue is empty");
    assert!(!warnings[0].contains("b1"), "{warnings:?}");
}

#[tokio::test]
async fn what_is_not_new_is_left_alone() {
    let (_, router) = state();
    for phase in ["Completed", "Failed", "ReadyToStart", "SomethingOfTomorrow"] {
        let mut object = backup("b", json!({}));
        object["status"] = json!({"phase": phase});
        let (stored, warnings) = create(&router, object.clone(), false).await;
        assert_eq!((stored, warnings.len()), (object, 0), "{phase}");
    }
    let answer = ask(&router, ENQUEUE_PATH, review("UPDATE", backup("b", json!({})), None, false)).await;
    assert!(answer["patch"].is_null());
}

#[tokio::test]
async fn empty_status_and_new_are_queued_too() {
    let (_, router) = state();
    for status in [json!({}), json!({"phase": ""}), json!({"phase": "New"}), Value::Null] {
        let mut object = backup("b", json!({}));
        object["status"] = status.clone();
        object["metadata"]["annotations"] = Value::Null;
        let (stored, _) = create(&router, object, true).await;
        assert_eq!(stored["status"]["phase"], "Queued", "{status}");
    }
}

#[tokio::test]
async fn every_fault_is_refused_at_once() {
    let (_, router) = state();
    let bad = backup("b", json!({"includedNamespaces": ["A"], "ttl": "1d", "storageLocation": "nowhere"}));
    let answer = ask(&router, VALIDATE_PATH, review("CREATE", bad.clone(), None, false)).await;
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["status"]["code"], 422);
    let message = answer["status"]["message"].as_str().unwrap_or_default();
    for field in
        ["spec.includedNamespaces[0]: ", "spec.ttl: ", "spec.storageLocation: ", "there are: default"]
    {
        assert!(message.contains(field), "{message}");
    }
    let mut placed = bad.clone();
    placed["status"] = json!({"phase": "Queued", "queuePosition": 1});
    let mut labelled = placed.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let answer = ask(&router, VALIDATE_PATH, review("UPDATE", labelled, Some(placed), false)).await;
    assert_eq!(answer["allowed"], true, "a label can be put on what was accepted once");
    let unchanged = ask(&router, VALIDATE_PATH, review("UPDATE", bad.clone(), Some(bad), false)).await;
    assert_eq!(unchanged["allowed"], true, "a label can be put on what was accepted once");
}

#[tokio::test]
async fn labels_of_a_backup_have_a_limit() {
    let (_, router) = state();
    for (count, fault) in [
        (1000, None),
        (1001, Some("metadata.labels: has 1001 entries, and at most 1000 are taken: use fewer")),
    ] {
        let mut object = backup("b", json!({}));
        let labels: serde_json::Map<String, Value> =
            (0..count).map(|i| (format!("a{i}"), json!("b"))).collect();
        object["metadata"]["labels"] = labels.into();
        let answer = ask(&router, VALIDATE_PATH, review("CREATE", object, None, false)).await;
        assert_eq!(answer["allowed"], fault.is_none(), "{count}");
        assert_eq!(answer["status"]["message"].as_str(), fault, "{count}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_location_that_arrives_with_its_backup_is_waited_for() {
    let (cluster, router) = state();
    let wanted = review("CREATE", backup("b", json!({"storageLocation": "fresh"})), None, false);
    let asked = tokio::spawn(async move { ask(&router, VALIDATE_PATH, wanted).await });
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    cluster.locations.lock().push(location("fresh"));
    cluster.changed.notify_waiters();
    let answer = asked.await.unwrap_or_default();
    assert_eq!(answer["allowed"], true, "{answer}");
}

#[tokio::test]
async fn a_location_that_cannot_be_written_is_told() {
    let (cluster, router) = state();
    cluster.locations.lock().push(Location { read_only: true, ..location("archive") });
    cluster.locations.lock().push(Location { unavailable: Some("no route".into()), ..location("far") });
    let judge = |name: &str| review("CREATE", backup("b", json!({"storageLocation": name})), None, false);
    assert_eq!(ask(&router, VALIDATE_PATH, judge("archive")).await["allowed"], false);
    let far = ask(&router, VALIDATE_PATH, judge("far")).await;
    assert_eq!(
        (&far["allowed"], &far["warnings"][0]),
        (&json!(true), &json!("berth: location far is unavailable just now: no route"))
    );
}

#[tokio::test]
async fn what_the_engine_does_not_serve_is_refused_where_it_runs_the_backups_and_only_there() {
    let (cluster, router) = state();
    let spec = json!({"volumeSnapshotLocations": ["default"]});
    let wanted = review("CREATE", backup("b", spec), None, false);
    let refused = ask(&router, VALIDATE_PATH, wanted.clone()).await;
    assert_eq!(refused["allowed"], false);
    let said = refused["status"]["message"].as_str().unwrap_or_default();
    for words in ["spec.volumeSnapshotLocations: ", "--executor=velero"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    cluster.beside_velero.store(true, Ordering::Relaxed);
    assert_eq!(ask(&router, VALIDATE_PATH, wanted).await["allowed"], true);
}

#[tokio::test]
async fn malformed_reviews_get_400_and_a_reason() {
    let (_, router) = state();
    let no_object = review("CREATE", Value::Null, None, false).to_string().into_bytes();
    let wrong_type =
        review("CREATE", json!({"spec": {"includedNamespaces": 5}}), None, false).to_string().into_bytes();
    for body in [
        &b""[..],
        b"{}",
        b"[1]",
        b"\xff\xff",
        br#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
        &no_object,
        &wrong_type,
    ] {
        for path in [ENQUEUE_PATH, VALIDATE_PATH] {
            let (status, answer) = post(&router, path, body.to_vec()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {}", String::from_utf8_lossy(body));
            assert!(!answer.is_empty(), "a reason is given");
        }
    }
    let (status, _) = post(&router, ENQUEUE_PATH, vec![b' '; BODY_LIMIT + 1]).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn readiness_follows_the_caches() {
    let (cluster, router) = state();
    let get = |router: Router| async move {
        let request = Request::get("/readyz").body(axum::body::Body::empty());
        let request = request.unwrap_or_else(|e| unreachable!("{e}"));
        router.oneshot(request).await.unwrap_or_else(|e| match e {}).status()
    };
    cluster.ready.store(false, Ordering::Relaxed);
    assert_eq!(get(router.clone()).await, StatusCode::SERVICE_UNAVAILABLE);
    // Without caches any position would be the first one, so none is given.
    let (stored, warnings) = create(&router, backup("b", json!({"includedNamespaces": ["a"]})), false).await;
    assert!(stored.get("status").is_none(), "{stored}");
    assert_eq!(warnings, ["berth: queued by the controller in a moment: this replica has just started"]);
    cluster.ready.store(true, Ordering::Relaxed);
    assert_eq!(get(router.clone()).await, StatusCode::OK);
    // A phase that the definition does not know would make the create fail.
    *cluster.cannot_queue.lock() = Some("too old".to_owned());
    let (stored, warnings) = create(&router, backup("b", json!({"includedNamespaces": ["a"]})), false).await;
    assert!(stored.get("status").is_none(), "{stored}");
    assert_eq!(warnings, ["berth: not queued: too old"]);
}

/// Its creation may still be refused, and whoever knows the name could take it then.
#[tokio::test]
async fn whoever_waits_for_a_scheduled_backup_does_not_learn_the_name_that_only_berth_can_foretell() {
    let (_, router) = state();
    let ours = backup("daily-20260101000500-0123456789abcdef0123", json!({"includedNamespaces": ["a"]}));
    let mut asked = review("CREATE", ours, None, false);
    asked["request"]["userInfo"] = json!({"username": "berth"});
    assert_eq!(ask(&router, ENQUEUE_PATH, asked).await["allowed"], true);
    let (_, warnings) = create(&router, backup("b", json!({"includedNamespaces": ["a"]})), true).await;
    assert_eq!(
        warnings,
        [
            "berth: queued at position 2; waits for daily-20260101000500-… (ahead in the queue), which also takes a"
        ]
    );
}

/// By it a Schedule's own Backups are told from those that only look like them.
#[tokio::test]
async fn of_which_schedule_a_backup_is_only_berth_says() {
    let (cluster, router) = state();
    let mut marked = backup("daily-20260101020000", json!({"includedNamespaces": ["a"]}));
    marked["metadata"]["annotations"] = json!({"berth.dev/schedule-uid": "s1", "berth.dev/run": "r"});
    for is_ready in [true, false] {
        cluster.ready.store(is_ready, Ordering::Relaxed);
        for (user, mark) in [("berth", json!("s1")), ("velero", json!(null)), ("mallory", json!(null))] {
            let mut asked = review("CREATE", marked.clone(), None, true);
            asked["request"]["userInfo"] = json!({"username": user});
            let stored = patched(marked.clone(), &ask(&router, ENQUEUE_PATH, asked).await);
            let annotations = &stored["metadata"]["annotations"];
            assert_eq!(annotations["berth.dev/schedule-uid"], mark, "{user}: {stored}");
            assert_eq!(annotations["berth.dev/run"], json!(null), "{user}: {stored}");
        }
    }
}

/// GitOps tools that replace an object drop what they do not know.
#[tokio::test]
async fn marks_that_say_nothing_any_more_may_go() {
    let (_, router) = state();
    let of = |phase: &str, annotations: Value| {
        let mut object = backup("b", json!({"includedNamespaces": ["a"]}));
        object["metadata"]["annotations"] = annotations;
        object["status"] = json!({"phase": phase});
        object
    };
    let marked = json!({"berth.dev/run": "r", "berth.dev/enqueued-at": "2026-01-01T00:00:00Z"});
    let of_schedule = json!({"berth.dev/run": "r", "berth.dev/schedule-uid": "s1"});
    for (phase, before, after, legal) in [
        ("Completed", marked.clone(), json!({}), true),
        ("InProgress", marked.clone(), json!({}), false),
        ("Completed", marked.clone(), json!({"berth.dev/run": "s"}), false),
        ("Completed", of_schedule.clone(), json!({"berth.dev/schedule-uid": "s1"}), true),
        ("Completed", of_schedule, json!({}), false),
    ] {
        let asked = review("UPDATE", of(phase, after.clone()), Some(of(phase, before.clone())), false);
        let answer = ask(&router, VALIDATE_PATH, asked).await;
        assert_eq!(answer["allowed"], legal, "{phase}: {before} to {after}: {answer}");
        let said = answer["status"]["message"].as_str().unwrap_or_default();
        assert!(legal || said.contains("kubectl apply"), "{answer}");
    }
}

#[tokio::test]
async fn strangers_move_nothing_and_berth_moves_everything() {
    let (_, router) = state();
    let at = |phase: &str, position: u32| {
        let mut object = backup("b", json!({"includedNamespaces": ["a"]}));
        object["status"] = json!({"phase": phase, "queuePosition": position});
        object
    };
    let asked = |who: &str, new: Value, old: Option<Value>| {
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        let mut asked = review(operation, new, old, false);
        asked["request"]["userInfo"] = json!({"username": who});
        asked
    };
    let queued = || Some(at("Queued", 3));
    let mut other_spec = at("Queued", 3);
    other_spec["spec"]["includedNamespaces"] = json!(["kube-system"]);
    let mut other_mark = at("Queued", 3);
    other_mark["metadata"]["annotations"] = json!({"berth.dev/enqueued-at": "2000-01-01T00:00:00Z"});
    let mut extra = at("Queued", 3);
    extra["status"]["startTimestamp"] = json!("2000-01-01T00:00:00Z");
    for (new, old, field) in [
        (at("ReadyToStart", 0), queued(), "status: "),
        (at("Queued", 1), queued(), "status: "),
        (at("Completed", 0), queued(), "status: "),
        (extra, queued(), "status: "),
        (other_spec.clone(), queued(), "spec: "),
        (other_mark, queued(), "metadata.annotations: "),
        (at("ReadyToStart", 0), None, "status: "),
        (at("InProgress", 0), None, "status: "),
    ] {
        let answer = ask(&router, VALIDATE_PATH, asked("mallory", new.clone(), old)).await;
        assert_eq!((&answer["allowed"], &answer["status"]["code"]), (&json!(false), &json!(409)), "{new}");
        assert!(answer["status"]["message"].as_str().unwrap_or_default().starts_with(field), "{answer}");
    }
    let ready = ask(&router, VALIDATE_PATH, asked("berth", at("ReadyToStart", 0), queued())).await;
    assert_eq!(ready["allowed"], true);
    let ready = ask(&router, VALIDATE_PATH, asked("velero", at("ReadyToStart", 0), queued())).await;
    assert_eq!(ready["status"]["reason"], "Conflict", "a Velero queue left running gives way");
    let deleting = ask(&router, VALIDATE_PATH, asked("velero", at("Deleting", 0), queued())).await;
    assert_eq!(deleting["allowed"], true);
    // The executor, with an older phase in its cache.
    for (to, is_allowed) in
        [("InProgress", false), ("FailedValidation", false), ("Completed", true), ("Deleting", true)]
    {
        let answer = ask(&router, VALIDATE_PATH, asked("berth", at(to, 0), Some(at("Completed", 1)))).await;
        assert_eq!(answer["allowed"], is_allowed, "{to}: {answer}");
        let said = answer["status"]["message"].as_str().unwrap_or_default();
        assert!(is_allowed || said.starts_with("status.phase: a backup that has ended"), "{answer}");
    }
}

#[tokio::test]
async fn another_queue_that_only_tries_is_refused_and_not_told() {
    let (cluster, router) = state();
    let at = |phase: &str| {
        let mut object = backup("b", json!({"includedNamespaces": ["a"]}));
        object["status"] = json!({"phase": phase});
        object
    };
    for (dry_run, told) in [(true, 0), (false, 1), (true, 1)] {
        let mut asked = review("UPDATE", at("ReadyToStart"), Some(at("Queued")), dry_run);
        asked["request"]["userInfo"] = json!({"username": "velero"});
        let answer = ask(&router, VALIDATE_PATH, asked).await;
        assert_eq!(answer["status"]["reason"], "Conflict");
        assert_eq!(cluster.foreign.lock().len(), told, "dry run: {dry_run}");
    }
}

#[tokio::test]
async fn a_place_written_by_hand_is_no_place() {
    let (_, router) = state();
    create(&router, backup("first", json!({"includedNamespaces": ["a"]})), false).await;
    let mut forged = backup("forged", json!({"includedNamespaces": ["a"]}));
    forged["status"] = json!({"phase": "Queued", "queuePosition": 1});
    forged["metadata"]["annotations"] = json!({"berth.dev/enqueued-at": "2000-01-01T00:00:00Z"});
    let (stored, _) = create(&router, forged, false).await;
    assert_eq!(stored["status"], json!({"phase": "Queued", "queuePosition": 2}));
    assert_eq!(stored["metadata"]["annotations"]["berth.dev/enqueued-at"], "2026-09-21T14:13:20.000001Z");
}
