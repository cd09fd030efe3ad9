use std::sync::atomic::{AtomicU64, Ordering};

use berth_test_scripted::{Scripted, Watch, get, list as whole, patch, post, put, watch};
use serde_json::{Value, json};

use super::*;
use crate::movers::nudge;

const MAPS: &str = "/api/v1/namespaces/velero/configmaps";
const IT: &str = "/api/v1/namespaces/velero/configmaps/berth-mover-grants";
const UPLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datauploads";
const DOWNLOADS: &str = "/apis/velero.io/v2alpha1/namespaces/velero/datadownloads";

fn ledger(in_force: bool, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": LEDGER, "namespace": "velero", "resourceVersion": version},
        "data": {UIDS: "", IN_FORCE: in_force.to_string(), LIMIT: "1"},
    })
}

/// A data mover that was refused.
fn waits() -> Value {
    json!({
        "apiVersion": "velero.io/v2alpha1", "kind": "DataDownload",
        "metadata": {"name": "waits", "namespace": "velero", "uid": "u", "resourceVersion": "7"},
        "spec": {}, "status": {"phase": "New"},
    })
}

fn seconds(seconds: u64) -> impl Future<Output = ()> {
    sleep(Duration::from_secs(seconds))
}

/// Runs the watch and the nudges of a webhook, with the periods of a real cluster, while `story`
/// goes on.
async fn followed(api: &Scripted, story: impl AsyncFnOnce(&InForce)) {
    let known = InForce::new(GrantSignPeriods::new(Duration::from_secs(60)));
    let client = api.client("velero");
    let nudging = nudge::when_silent(&client, "velero", known.silent());
    tokio::select! {
        () = watched(api, &known) => unreachable!("it follows for ever"),
        () = nudging => unreachable!("it nudges for ever"),
        () = story(&known) => {}
    }
}

async fn watched(api: &Scripted, known: &InForce) {
    let clients = Clients { watch: api.client("velero"), call: api.client("velero") };
    known.follow(&clients, "velero").await;
}

#[tokio::test(start_paused = true)]
async fn a_minute_after_the_last_sign_nobody_is_held_back_and_those_that_were_refused_are_woken_once() {
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[ledger(true, "5")])))
        .next(watch(MAPS).from("5").streams(&events))
        // A read brings no sign.
        .always(get(IT).answers(ledger(true, "6")))
        .once(get(UPLOADS).answers(whole("9", &[])))
        .once(get(DOWNLOADS).answers(whole("9", &[waits()])))
        .once(patch(&format!("{DOWNLOADS}/waits")).answers(waits()));
    followed(&api, async |known| {
        seconds(25).await;
        events.modified(&ledger(true, "6"));
        seconds(59).await;
        assert!(known.is_kept(), "59 s after a sign");
        assert_eq!(api.writes(), []);
        seconds(2).await;
        assert!(!known.is_kept(), "61 s after the last sign");
        seconds(10).await;
        assert_eq!(api.writes().len(), 1, "{:?}", api.writes());
        seconds(120).await;
        assert_eq!(api.writes().len(), 1, "nudged once: {:?}", api.writes());
        // A leader grants again.
        events.modified(&ledger(true, "7"));
        seconds(1).await;
        assert!(known.is_kept());
    })
    .await;
    api.finish();
}

/// The watch cache reads only: what follows from it is for a task of its own.
#[tokio::test(start_paused = true)]
async fn the_watch_of_the_ledger_tells_that_the_leader_is_silent_and_writes_nothing() {
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[ledger(true, "5")])))
        .next(watch(MAPS).from("5").streams(&events))
        .always(get(IT).answers(ledger(true, "5")));
    let known = InForce::new(GrantSignPeriods::new(Duration::from_secs(60)));
    let mut silent = known.silent();
    let story = async {
        seconds(59).await;
        assert!(!*silent.borrow_and_update(), "59 s after a sign");
        seconds(15).await;
        assert!(*silent.borrow_and_update(), "a minute after the last sign");
        events.modified(&ledger(true, "6"));
        seconds(15).await;
        assert!(!*silent.borrow_and_update(), "a leader grants again");
    };
    tokio::select! {
        () = watched(&api, &known) => unreachable!("it follows for ever"),
        () = story => {}
    }
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn signs_that_a_watch_does_not_bring_are_asked_for() {
    let version = AtomicU64::new(5);
    let next = move |_: &Value| ledger(true, &version.fetch_add(1, Ordering::Relaxed).to_string());
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[ledger(true, "5")])))
        .next(watch(MAPS).from("5").never_answers())
        .always(get(IT).answers_with(next));
    followed(&api, async |known| {
        for _ in 0..40 {
            seconds(5).await;
            assert!(known.is_kept());
        }
    })
    .await;
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn while_the_ledger_is_gone_nobody_passes_who_is_held_back() {
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[ledger(true, "5")])))
        .next(watch(MAPS).from("5").streams(&events))
        .always(get(IT).refuses(404));
    followed(&api, async |known| {
        seconds(1).await;
        events.deleted(&ledger(true, "6"));
        seconds(58).await;
        assert!(known.is_kept());
        // The leader has noticed.
        events.added(&ledger(true, "7"));
        seconds(59).await;
        assert!(known.is_kept());
    })
    .await;
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_held_back_or_woken_by_a_webhook_when_there_is_no_limit_any_more() {
    let events = Watch::new();
    let api =
        Scripted::new().next(get(MAPS).answers(whole("5", &[]))).next(watch(MAPS).from("5").streams(&events));
    followed(&api, async |known| {
        seconds(1).await;
        assert!(known.is_known() && !known.is_kept());
        events.added(&ledger(true, "6"));
        seconds(1).await;
        assert!(known.is_kept());
        events.modified(&ledger(false, "7"));
        seconds(1).await;
        assert!(!known.is_kept());
        seconds(120).await;
    })
    .await;
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn a_leader_gives_a_sign_every_twenty_seconds_and_makes_a_ledger_anew_that_is_gone() {
    let api = Scripted::new()
        .next(get(IT).answers(ledger(true, "5")))
        .next(put(IT).takes_as("6"))
        .next(put(IT).refuses(404))
        .next(get(IT).refuses(404))
        .next(post(MAPS).takes_as("9"));
    let signs = GrantSignPeriods::new(Duration::from_secs(60));
    let client = api.client("velero");
    let mut own = GrantLedger::open(client.clone(), "velero").await.unwrap();
    assert!(own.write(&BTreeSet::new(), Some(1)).await.unwrap());
    seconds(19).await;
    assert!(!own.is_due(signs));
    seconds(1).await;
    assert!(own.is_due(signs));
    assert!(!own.write(&BTreeSet::new(), Some(1)).await.unwrap(), "it is gone: this term ends");
    let mut anew = GrantLedger::open(client, "velero").await.unwrap();
    assert!(anew.uids().is_none() && anew.write(&BTreeSet::new(), Some(1)).await.unwrap());
    assert!(!anew.is_due(signs));
    // A leader whose write succeeds has read all of it.
    assert_eq!(api.writes()[1].body["metadata"]["resourceVersion"], "6");
    api.finish();
}
