use std::sync::atomic::{AtomicU32, Ordering};

use berth_test_scripted::{Ask, Line, Scripted, get, post, put};
use serde_json::{Value, json};

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/velero/leases";
const ONE: &str = "/apis/coordination.k8s.io/v1/namespaces/velero/leases/berth-controller";
/// It is looked at every 2.5 s, and given up after 10 s without a renewal.
const DURATION: Duration = Duration::from_secs(15);

/// Its times are of another clock: a thousand years off.
fn lease(version: &str, holder: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": LEASE, "namespace": "velero", "uid": "u", "resourceVersion": version},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 4,
            "acquireTime": "1026-01-01T00:00:00.000000Z", "renewTime": "1026-01-01T00:00:00.000000Z",
        },
    })
}

fn candidate(api: &Scripted, identity: &str) -> LeaseCandidate {
    LeaseCandidate::new(api.client("velero"), "velero", LEASE, identity.to_owned(), DURATION)
}

/// Each answer shows a version of its own: whoever holds it lives.
fn renewed_again_and_again(ask: Ask, holder: &'static str) -> Line {
    let count = AtomicU32::new(0);
    ask.answers_with(move |_| lease(&count.fetch_add(1, Ordering::Relaxed).to_string(), holder))
}

/// `None`: not within ten minutes.
async fn took(doing: impl Future<Output = ()>) -> Option<Duration> {
    let begun = Instant::now();
    timeout(Duration::from_secs(600), doing).await.ok()?;
    Some(begun.elapsed())
}

#[track_caller]
fn about(seconds: f64, took: Option<Duration>) {
    let off = took.map(|took| (took.as_secs_f64() - seconds).abs());
    // Timers fire on the next millisecond.
    assert!(off.is_some_and(|off| off < 0.05), "{took:?} instead of {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_there_is_made() {
    let api = Scripted::new().next(get(ONE).refuses(404)).next(post(LEASES).takes_as("1"));
    about(0.0, took(candidate(&api, "us").acquire()).await);
    let spec = &api.writes()[0].body["spec"];
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!("us"), &json!(15)));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_let_go_is_taken_at_once_on_the_version_that_was_read() {
    let api = Scripted::new().next(get(ONE).answers(lease("5", ""))).next(put(ONE).takes_as("6"));
    about(0.0, took(candidate(&api, "us").acquire()).await);
    let written = &api.writes()[0].body;
    assert_eq!(written["metadata"]["resourceVersion"], "5");
    assert_eq!(
        (&written["spec"]["holderIdentity"], &written["spec"]["leaseTransitions"]),
        (&json!("us"), &json!(5))
    );
    assert_ne!(written["spec"]["acquireTime"], lease("5", "")["spec"]["acquireTime"]);
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_waited_for_by_our_own_clock() {
    let api = Scripted::new().always(get(ONE).answers(lease("5", "another"))).next(put(ONE).takes_as("6"));
    // By the times in the record it has been dead for a thousand years.
    about(15.0, took(candidate(&api, "us").acquire()).await);
    assert_eq!(api.writes()[0].body["metadata"]["resourceVersion"], "5");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_allows_itself_a_longer_silence_gets_it() {
    let mut long = lease("5", "another");
    long["spec"]["leaseDurationSeconds"] = json!(60);
    let api = Scripted::new().always(get(ONE).answers(long)).next(put(ONE).takes_as("6"));
    about(60.0, took(candidate(&api, "us").acquire()).await);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_renews_is_left_alone() {
    let api = Scripted::new().always(renewed_again_and_again(get(ONE), "another"));
    assert_eq!(took(candidate(&api, "us").acquire()).await, None);
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn of_two_candidates_one_gets_a_conflict_and_goes_on_waiting() {
    let api = Scripted::new()
        .next(get(ONE).answers(lease("5", "")))
        .next(get(ONE).answers(lease("5", "")))
        .next(put(ONE).takes_as("6"))
        .next(put(ONE).refuses(409))
        .always(get(ONE).answers(lease("6", "whoever was faster")));
    let (one, other) = (candidate(&api, "one"), candidate(&api, "other"));
    let less = DURATION - Duration::from_secs(1);
    let (one, other) = tokio::join!(timeout(less, one.acquire()), timeout(less, other.acquire()));
    assert_ne!(one.is_ok(), other.is_ok(), "there are two leaders, or none");
    let versions: Vec<_> =
        api.writes().iter().map(|write| write.body["metadata"]["resourceVersion"].clone()).collect();
    assert_eq!(versions, ["5", "5"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_sixth_of_its_duration_and_carries_the_notes() {
    let api = Scripted::new()
        .always(get(ONE).answers(lease("5", "us")))
        .next(put(ONE).takes_as("6"))
        .next(put(ONE).takes_as("7"))
        .next(put(ONE).refuses(409));
    let us = candidate(&api, "us");
    us.notes().put("berth.dev/note", "a".to_owned());
    // A conflict while it is renewed: somebody else has written it.
    about(7.5, took(us.keep()).await);
    let written = &api.writes()[0].body;
    assert_eq!(written["metadata"]["resourceVersion"], "5");
    assert_eq!(written["metadata"]["annotations"]["berth.dev/note"], "a");
    let (old, new) = (&lease("5", "us")["spec"], &written["spec"]);
    assert_eq!(
        (&new["acquireTime"], &new["leaseTransitions"]),
        (&old["acquireTime"], &old["leaseTransitions"])
    );
    assert_ne!(new["renewTime"], old["renewTime"]);
    api.finish();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_one_holds_is_lost_and_not_written() {
    let api = Scripted::new().next(get(ONE).answers(lease("9", "another")));
    about(2.5, took(candidate(&api, "us").keep()).await);
    assert_eq!(api.writes(), []);
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_answer_gives_up_before_anybody_may_take_its_lease() {
    let give_up = 10.0;
    assert!(give_up < DURATION.as_secs_f64());
    let silent = Scripted::new().always(get(ONE).never_answers());
    about(give_up, took(candidate(&silent, "us").keep()).await);
    let broken = Scripted::new().always(get(ONE).breaks());
    about(give_up, took(candidate(&broken, "us").keep()).await);
    // It can be read, and not be written.
    let half = Scripted::new()
        .always(get(ONE).answers(lease("5", "us")))
        .always(put(ONE).answers(lease("6", "us")).after(Duration::from_secs(60)));
    about(give_up, took(candidate(&half, "us").keep()).await);
    // Counted from the last renewal.
    let later = Scripted::new()
        .always(get(ONE).answers(lease("5", "us")))
        .next(put(ONE).takes_as("6"))
        .always(put(ONE).refuses(500));
    about(2.5 + give_up, took(candidate(&later, "us").keep()).await);
    // From when that was asked for, because the others see it long before a slow answer comes.
    let slow = Scripted::new()
        .always(get(ONE).answers(lease("5", "us")))
        .next(put(ONE).takes_as("6").after(Duration::from_secs(5)))
        .always(put(ONE).refuses(500));
    about(2.5 + give_up, took(candidate(&slow, "us").keep()).await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_let_go_on_the_version_that_was_read() {
    let api = Scripted::new().next(get(ONE).answers(lease("5", "us"))).next(put(ONE).takes_as("6"));
    candidate(&api, "us").release().await;
    let written = &api.writes()[0].body;
    assert_eq!(
        (&written["metadata"]["resourceVersion"], &written["spec"]["holderIdentity"]),
        (&json!("5"), &json!(""))
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_lets_go_of_the_lease_of_another_one_or_waits_long_for_it() {
    let api = Scripted::new().next(get(ONE).answers(lease("5", "another"))).next(get(ONE).never_answers());
    let us = candidate(&api, "us");
    us.release().await;
    about(3.0, took(us.release()).await);
    assert_eq!(api.writes(), []);
}

/// Deciding may keep a thread for long, and answers to nobody meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lease_is_renewed_while_its_leader_is_busy() {
    let api = Scripted::new().always(get(ONE).answers(lease("5", "us"))).always(put(ONE).takes_as("6"));
    let duration = Duration::from_secs(6);
    let us = LeaseCandidate::new(api.client("velero"), "velero", LEASE, "us".to_owned(), duration);
    let kept = Arc::new(us).keep_beside();
    let busy = tokio::spawn(async move {
        let begun = std::time::Instant::now();
        while api.writes().is_empty() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        api.writes().len()
    });
    assert!(busy.await.unwrap() > 0, "nothing was renewed for a minute");
    assert!(!kept.is_finished());
}
