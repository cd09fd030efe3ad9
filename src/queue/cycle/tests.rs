use std::time::Duration;

use berth_api::keys;
use berth_core::queue::QueuePhase;
use berth_test_scripted::{Hold, Scripted, get, list, patch, watch as watching};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::QueueSettings;
use super::super::cache::reflect_queue;
use super::super::writer::EndedBackupSettings;
use super::*;
use crate::events::Events;
use crate::leader::LeaseAnnotations;
use crate::metrics::QueueMetrics;
use crate::watch::WatchEvent;

const LOCATIONS: &str = "/apis/velero.io/v1/namespaces/velero/backupstoragelocations";
const BACKUPS: &str = "/apis/velero.io/v1/namespaces/velero/backups";
const ONE: &str = "/apis/velero.io/v1/namespaces/velero/backups/one";

fn backup(name: &str, version: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Backup",
        "metadata": {"name": name, "namespace": "velero", "uid": name, "resourceVersion": version},
        "spec": {}, "status": {"phase": phase},
    })
}

/// In the way of no other.
fn of_its_own(name: &str, version: &str, phase: &str) -> Value {
    let mut backup = backup(name, version, phase);
    backup["spec"]["includedNamespaces"] = json!([name]);
    backup
}

struct Queue {
    store: Arc<BackupCache>,
    metrics: QueueMetrics,
    cycle: Cycle,
    _stopped: watch::Sender<Option<Stopped>>,
}

impl Queue {
    fn new(api: &Scripted, slots: usize) -> Self {
        let store = Arc::new(BackupCache::new(QueueSettings { slots, ..QueueSettings::default() }));
        let metrics = QueueMetrics::new(&mut Registry::default());
        let client = api.client("velero");
        let (events, _) = Events::new(client.clone(), "velero", Counter::default());
        let keeping = EndedBackupSettings { default_ttl: Duration::from_secs(3600), writes_spec: true };
        let writer =
            QueueWriter::new(client, "velero", keeping, Arc::clone(&store), metrics.clone(), events.clone());
        let (stopped, is_stopped) = watch::channel(None);
        let reporter = QueueReporter::new(metrics.clone(), events, LeaseAnnotations::default());
        let cycle = Cycle::new(Arc::clone(&store), writer, is_stopped, reporter, Pulse::default());
        Self { store, metrics, cycle, _stopped: stopped }
    }

    fn showing(self, backups: &[Value]) -> Self {
        let read = |one: &Value| serde_json::from_value(one.clone()).unwrap();
        self.store.observe_location(WatchEvent::Replaced(Vec::new()));
        self.store.observe(WatchEvent::Replaced(backups.iter().map(read).collect()));
        self
    }

    /// When somebody asks for a list anew; `None`: not within `patience`.
    async fn relist_asked(self, patience: Duration) -> Option<Duration> {
        let begun = Instant::now();
        tokio::select! {
            () = self.cycle.run(CancellationToken::new()) => unreachable!("nobody has stopped it"),
            asked = timeout(patience, self.store.relist_asked()) => asked.ok().map(|()| begun.elapsed()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_something_could_start_and_nothing_moves_everything_is_listed_anew() {
    // It runs, and the watch does not say so: each write is refused.
    let api = Scripted::new().always(patch(ONE).refuses(409)).always(get(ONE).answers(backup(
        "one",
        "8",
        "InProgress",
    )));
    let queue = Queue::new(&api, 1).showing(&[backup("one", "7", "Queued")]);
    let trips = queue.metrics.watchdog_trips.clone();
    let asked = queue.relist_asked(Duration::from_secs(60)).await;
    let asked = asked.unwrap().as_secs_f64();
    assert!((15.0..15.6).contains(&asked), "after {asked} s");
    assert_eq!(trips.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn where_nothing_can_start_nothing_is_listed_anew() {
    let api = Scripted::new().always(patch(ONE).refuses(403));
    let queue =
        Queue::new(&api, 1).showing(&[backup("one", "7", "Queued"), backup("holder", "3", "InProgress")]);
    assert_eq!(queue.relist_asked(Duration::from_secs(60)).await, None);
}

#[tokio::test(start_paused = true)]
async fn after_a_list_anew_it_goes_on_with_what_that_shows() {
    let api = Scripted::new()
        .once(get(LOCATIONS).answers(list("1", &[])))
        .once(watching(LOCATIONS).never_answers())
        .next(get(BACKUPS).answers(list("7", &[backup("one", "7", "Queued")])))
        // It says nothing, though the Backup has changed: each write is refused.
        .next(watching(BACKUPS).never_answers())
        .always(patch(ONE).refuses(409))
        .always(get(ONE).answers(backup("one", "8", "InProgress")))
        .next(get(BACKUPS).answers(list("9", &[backup("one", "9", "Queued")])))
        .next(watching(BACKUPS).never_answers());
    let Queue { store, metrics, cycle, _stopped } = Queue::new(&api, 1);
    let client = api.client("velero");
    tokio::select! {
        () = cycle.run(CancellationToken::new()) => unreachable!("nobody has stopped it"),
        () = reflect_queue(&client, "velero", &store) => unreachable!("a watch ended"),
        () = api.played() => {}
    }
    let versions: Vec<_> =
        api.writes().iter().map(|write| write.body["metadata"]["resourceVersion"].clone()).collect();
    assert_eq!((versions.first(), versions.last()), (Some(&json!("7")), Some(&json!("9"))));
    assert_eq!(metrics.watchdog_trips.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_writes_to_its_end_what_it_has_begun() {
    let hold = Hold::new();
    let mut placed = backup("one", "8", "Queued");
    placed["status"]["queuePosition"] = json!(1);
    let api = Scripted::new().next(patch(ONE).answers(placed).held(&hold));
    // The only slot is taken: it gets its place, and nobody waits for that.
    let shown = [backup("one", "7", "Queued"), backup("holder", "3", "InProgress")];
    let Queue { store, cycle, _stopped, .. } = Queue::new(&api, 1).showing(&shown);
    let stop = CancellationToken::new();
    let later = Duration::from_secs(3);
    let story = async {
        hold.asked().await;
        stop.cancel();
        sleep(later).await;
        hold.let_go();
        Instant::now()
    };
    let running = async {
        timeout(2 * later, cycle.run(stop.clone())).await.unwrap();
        Instant::now()
    };
    let (answered, ended) = tokio::join!(story, running);
    assert!(ended >= answered, "whoever leads next would not see what is written");
    assert_eq!(api.writes()[0].body["status"], json!({"phase": "Queued", "queuePosition": 1}));
    assert_eq!(store.get("one").map(|item| item.entry.position), Some(1));
}

#[tokio::test(start_paused = true)]
async fn no_more_start_than_there_are_slots_though_the_watch_shows_nothing() {
    let names: Vec<String> = (0..5).map(|i| format!("b{i}")).collect();
    let mut api = Scripted::new();
    for name in &names {
        let started = of_its_own(name, "8", "ReadyToStart");
        let path = format!("{BACKUPS}/{name}");
        // Places and starts are told apart by what is sent.
        api = api.always(patch(&path).answers_with(move |sent| {
            let mut answer = started.clone();
            answer["status"] = sent["status"].clone();
            answer
        }));
    }
    let shown: Vec<Value> = names.iter().map(|name| of_its_own(name, "7", "Queued")).collect();
    let Queue { store, cycle, _stopped, .. } = Queue::new(&api, 2).showing(&shown);
    let _ = timeout(Duration::from_secs(30), cycle.run(CancellationToken::new())).await;
    let writes = api.writes();
    let starts = writes.iter().filter(|write| write.body["status"]["phase"] == "ReadyToStart").count();
    assert_eq!((starts, store.in_phase(QueuePhase::ReadyToStart).len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_deleted_and_that_a_finalizer_keeps_is_ended_and_not_started() {
    let going = |version: &str, phase: &str| {
        let mut backup = of_its_own("one", version, phase);
        backup["metadata"]["finalizers"] = json!(["a/b"]);
        backup["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        backup
    };
    for phase in ["New", "Queued"] {
        let api = Scripted::new()
            .next(get(ONE).answers(going("7", phase)))
            .next(patch(ONE).answers(going("8", "Failed")));
        let Queue { store, cycle, _stopped, .. } = Queue::new(&api, 1).showing(&[going("7", phase)]);
        let _ = timeout(Duration::from_secs(30), cycle.run(CancellationToken::new())).await;
        let writes = api.writes();
        assert_eq!((writes.len(), &writes[0].body["status"]["phase"]), (1, &json!("Failed")), "{writes:?}");
        assert!(store.get("one").is_none());
    }
}

/// More than are ended in one cycle, and all of them ahead of the others.
#[tokio::test(start_paused = true)]
async fn those_that_cannot_be_ended_keep_nobody_from_ending_nor_from_the_queue() {
    let canceled = |name: &str| {
        let mut backup = of_its_own(name, "7", "Queued");
        backup["metadata"]["annotations"] = json!({keys::CANCEL: "true"});
        backup
    };
    let unwritable: Vec<String> = (0..40).map(|i| format!("a{i:02}")).collect();
    for is_refused in [true, false] {
        let mut api = Scripted::new();
        let mut shown = Vec::new();
        for name in &unwritable {
            let path = format!("{BACKUPS}/{name}");
            let asked = patch(&path);
            api = api.always(get(&path).answers(canceled(name)));
            api = api.always(if is_refused { asked.refuses(422) } else { asked.never_answers() });
            shown.push(canceled(name));
        }
        for (name, backup) in [("last", canceled("last")), ("new", of_its_own("new", "7", "New"))] {
            let path = format!("{BACKUPS}/{name}");
            let mut answer = backup.clone();
            answer["metadata"]["resourceVersion"] = json!("8");
            api = api.always(get(&path).answers(backup.clone()));
            api = api.always(patch(&path).answers_with(move |sent| {
                let mut answer = answer.clone();
                answer["status"] = sent["status"].clone();
                answer
            }));
            shown.push(backup);
        }
        let Queue { store, cycle, _stopped, .. } = Queue::new(&api, 1).showing(&shown);
        let _ = timeout(Duration::from_secs(200), cycle.run(CancellationToken::new())).await;
        let phase = |name: &str| store.get(name).map(|item| item.entry.phase);
        let ready = Some(QueuePhase::ReadyToStart);
        assert_eq!((phase("last"), phase("new")), (None, ready), "refused: {is_refused}");
    }
}
