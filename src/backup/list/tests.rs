use std::collections::HashSet;

use berth_test_scripted::{Hold, Scripted, get, list, page};
use futures::StreamExt as _;
use serde_json::{Value, json};

use super::*;
use crate::backup::log::BackupLog;

const MAPS: &str = "/api/v1/configmaps";
const NAMESPACES: &str = "/api/v1/namespaces";
const MINUTE: Duration = Duration::from_secs(60);

fn kind(resource: &str) -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Kind".into(),
        resource: resource.into(),
        singular: String::new(),
        short_names: Vec::new(),
        namespaced: true,
    }
}

fn object(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "app"}})
}

/// Some megabytes.
fn large(name: &str, megabytes: usize) -> Value {
    let mut large = object(name);
    large["data"] = json!({"text": "x".repeat(megabytes << 20)});
    large
}

fn lister(api: &Scripted, page_size: u32, requests: usize) -> Lister {
    Lister::new(api.client("app"), page_size, MINUTE, Arc::new(Semaphore::new(requests)))
}

/// Names, once the hold lets go.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    hold: Option<Hold>,
}

impl ObjectSink for Names {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
        if let Some(hold) = self.hold.take() {
            hold.pass().await;
        }
        self.names.push(found.name);
        Ok(())
    }
}

/// The whole list.
async fn names(lister: &Lister, resource: &str) -> Result<Vec<String>, ListError> {
    let (mut progress, mut names) = (ListProgress::default(), Names::default());
    while !progress.is_done() {
        lister.page(&kind(resource), None, "", &mut progress, &mut names).await?;
    }
    Ok(names.names)
}

#[tokio::test(start_paused = true)]
async fn throttling_is_waited_for_as_long_as_the_server_asks() {
    let slowly = json!({"message": "too many requests", "details": {"retryAfterSeconds": 50}});
    let api = Scripted::new();
    for _ in 0..5 {
        api.next(get(MAPS).refuses_with(429, slowly.clone()));
    }
    api.next(get(MAPS).answers(list("5", &[object("a")])));
    let begun = Instant::now();
    assert_eq!(names(&lister(&api, 1, 1), "configmaps").await.unwrap(), ["a"]);
    assert_eq!(begun.elapsed().as_secs(), 250);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_breaks_off_is_handed_on_once_it_is_whole() {
    let whole = list("5", &[object("a"), object("b")]).to_string();
    let (begin, _) = whole.split_once("},{").unwrap_or_else(|| unreachable!("{whole}"));
    let api = Scripted::new()
        .next(get(MAPS).breaks_after(&format!("{begin}}},")))
        .next(get(MAPS).answers(list("5", &[object("a"), object("b")])));
    assert_eq!(names(&lister(&api, 2, 1), "configmaps").await.unwrap(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_taker_that_stalls_holds_no_request_to_the_api_server() {
    let api = Scripted::new()
        .once(get(MAPS).answers(list("5", &[object("a")])))
        .once(get("/api/v1/secrets").answers(list("5", &[object("s")])));
    let (lister, stalled) = (lister(&api, 1, 1), Hold::new());
    let mut slow = Names { hold: Some(stalled.clone()), ..Names::default() };
    let mut progress = ListProgress::default();
    let maps = kind("configmaps");
    let reading = lister.page(&maps, None, "", &mut progress, &mut slow);
    let story = async {
        stalled.asked().await;
        assert_eq!(names(&lister, "secrets").await.unwrap(), ["s"]);
        stalled.let_go();
    };
    let (read, ()) = tokio::join!(reading, story);
    read.unwrap();
    assert_eq!(slow.names, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_asked_for_again_with_fewer_objects() {
    let api = Scripted::new()
        .next(get(MAPS).limit(2).answers(list("5", &[large("a", 5), large("b", 5)])))
        .next(get(MAPS).limit(1).answers(page("5", "more", &[large("a", 5)])))
        .next(get(MAPS).page("more").limit(1).answers(list("5", &[large("b", 5)])));
    assert_eq!(names(&lister(&api, 2, 1), "configmaps").await.unwrap(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_gives_all_at_once_is_taken_as_it_comes() {
    let api = Scripted::new().next(get(MAPS).answers(list("5", &[large("a", 5), large("b", 5)])));
    assert_eq!(names(&lister(&api, 1, 1), "configmaps").await.unwrap(), ["a", "b"]);
}

/// Is ready half an hour after it is asked.
#[derive(Default)]
struct Late {
    is_ready: bool,
    names: Vec<String>,
}

impl ObjectSink for Late {
    async fn take(&mut self, found: ListedObject) -> Result<(), ListError> {
        self.names.push(found.name);
        Ok(())
    }

    async fn ready(&mut self) -> Result<(), ListError> {
        sleep(30 * MINUTE).await;
        self.is_ready = true;
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }
}

/// What has failed once before a long wait and once behind it has failed for a moment.
#[tokio::test(start_paused = true)]
async fn the_time_for_retries_does_not_run_while_its_taker_is_waited_for() {
    let all = || list("5", &[large("a", 5), large("b", 5)]);
    let api = Scripted::new()
        .next(get(MAPS).refuses(500))
        .next(get(MAPS).answers(all()))
        .next(get(MAPS).refuses(500))
        .next(get(MAPS).answers(all()));
    let (mut progress, mut late) = (ListProgress::default(), Late::default());
    let (lister, begun) = (lister(&api, 1, 1), Instant::now());
    lister.page(&kind("configmaps"), None, "", &mut progress, &mut late).await.unwrap();
    assert_eq!(late.names, ["a", "b"]);
    assert!(begun.elapsed() >= 30 * MINUTE);
}

/// Be they for an object or for a page: the only request slot is somebody else's for half an hour
/// after the first failure.
#[tokio::test(start_paused = true)]
async fn the_time_for_retries_does_not_run_while_other_requests_are_waited_for() {
    let one = format!("{MAPS}/a");
    let api = Scripted::new()
        .next(get(&one).refuses(500))
        .next(get(&one).refuses(500))
        .next(get(&one).answers(object("a")))
        .next(get(MAPS).refuses(500))
        .next(get(MAPS).refuses(500))
        .next(get(MAPS).answers(list("5", &[object("a")])));
    let lister = lister(&api, 1, 1);
    // It begins while the failure is paused for.
    let others = || async {
        sleep(Duration::from_millis(10)).await;
        let _slot = acquire(&lister.requests, 1).await.unwrap();
        sleep(30 * MINUTE).await;
    };
    let maps = kind("configmaps");
    let (found, ()) = tokio::join!(lister.get(&maps, None, "a"), others());
    assert_eq!(found.unwrap().unwrap().name, "a");
    let (listed, ()) = tokio::join!(names(&lister, "configmaps"), others());
    assert_eq!(listed.unwrap(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn pages_that_lead_nowhere_end() {
    let api = Scripted::new()
        .next(get(MAPS).answers(page("5", "more", &[object("a")])))
        .next(get(MAPS).page("more").answers(page("5", "more", &[object("a")])));
    assert!(matches!(names(&lister(&api, 1, 1), "configmaps").await, Err(ListError::Astray)));
    let expired = Scripted::new()
        .always(get(MAPS).answers(page("5", "more", &[object("a")])))
        .always(get(MAPS).page("more").refuses(410));
    assert!(matches!(names(&lister(&expired, 1, 1), "configmaps").await, Err(ListError::Astray)));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_about_its_type_only_where_the_api_server_is_well() {
    for well in [true, false] {
        let api = Scripted::new().always(get(MAPS).refuses(500));
        if well {
            api.always(get(NAMESPACES).answers(list("5", &[])));
        } else {
            api.always(get(NAMESPACES).refuses(500));
        }
        let begun = Instant::now();
        let error = names(&lister(&api, 1, 1), "configmaps").await.unwrap_err();
        assert_eq!((error.is_about_type(), error.is_gone()), (well, !well), "{error}");
        assert!(begun.elapsed() > MINUTE / 2 && begun.elapsed() < 2 * MINUTE);
    }
}

/// Anybody who may create definitions can create as many, and break them.
#[tokio::test(start_paused = true)]
async fn many_types_that_cannot_be_read_cost_a_bounded_time_and_no_other_type() {
    const BROKEN: usize = 50;
    let is_broken = |at: &usize| at % 100 == 99;
    let path = |at: usize| format!("/api/v1/type{at}");
    let api = Scripted::new().always(get(NAMESPACES).answers(list("5", &[])));
    for at in 0..100 * BROKEN {
        let asked = get(&path(at));
        api.always(if is_broken(&at) {
            asked.refuses(500)
        } else {
            asked.answers(list("5", &[object("a")]))
        });
    }
    // By then all the others are known.
    for _ in 0..3 {
        api.once(get(&path(100 * BROKEN - 5)).refuses(503));
    }
    let (lister, begun) = (&lister(&api, 1, REQUESTS_AT_ONCE), Instant::now());
    let read = futures::stream::iter(0..100 * BROKEN)
        .map(|at| async move { (at, names(lister, &format!("type{at}")).await.is_ok()) })
        .buffer_unordered(REQUESTS_AT_ONCE);
    let read: Vec<(usize, bool)> = read.collect().await;
    let mut lost: Vec<usize> = read.into_iter().filter(|(_, is_read)| !is_read).map(|(at, _)| at).collect();
    lost.sort_unstable();
    assert_eq!(lost, (0..100 * BROKEN).filter(is_broken).collect::<Vec<_>>());
    // Some begin while fewer than ten have failed, right after others have.
    assert!(begun.elapsed() < 3 * MINUTE, "{:?}", begun.elapsed());
    assert!(api.asked().len() < 150 * BROKEN, "{}", api.asked().len());
}

/// One after the other, so that each of the first ten costs all the time for retries.
#[tokio::test(start_paused = true)]
async fn types_that_fail_at_once_count_as_those_that_have_used_up_the_time_for_retries() {
    const MORE: usize = 5;
    let path = |at: usize| format!("/api/v1/type{at}");
    let api = Scripted::new().always(get(NAMESPACES).answers(list("5", &[])));
    for at in 0..IN_VAIN + MORE {
        api.always(get(&path(at)).refuses(500));
    }
    // What is refused for good costs no time, and does not count.
    for at in 0..2 * IN_VAIN {
        api.always(get(&format!("/api/v1/forbidden{at}")).refuses(403));
    }
    let lister = lister(&api, 1, 1);
    for at in 0..2 * IN_VAIN {
        assert!(names(&lister, &format!("forbidden{at}")).await.is_err());
    }
    let mut took = Vec::new();
    for at in 0..IN_VAIN + MORE {
        let begun = Instant::now();
        assert!(names(&lister, &format!("type{at}")).await.is_err());
        took.push(begun.elapsed());
    }
    let (patient, hasty) = took.split_at(IN_VAIN);
    assert!(patient.iter().all(|took| *took > MINUTE / 2), "{took:?}");
    assert!(hasty.iter().all(|took| *took <= HASTE), "{took:?}");
}

fn revision() -> Arc<Revision> {
    Arc::new(Revision::new(Some("8".to_owned()), Some(HashSet::new())).unwrap())
}

/// Warnings of what is not as of the revision.
fn warnings(revision: &Revision) -> u32 {
    let log = BackupLog::new(String::new());
    Revision::tell(Some(revision), &log);
    log.counts().warnings
}

#[tokio::test(start_paused = true)]
async fn a_list_is_as_of_the_revision_and_its_pages_go_on_so() {
    let api = Scripted::new()
        .next(get(MAPS).from("8").answers(page("8", "more", &[object("a")])))
        .next(get(MAPS).page("more").answers(list("8", &[object("b")])));
    let revision = revision();
    let lister = lister(&api, 1, 1).as_of(Some(Arc::clone(&revision)));
    assert_eq!(names(&lister, "configmaps").await.unwrap(), ["a", "b"]);
    assert_eq!(api.asked()[1], format!("GET {MAPS} continue=more"));
    assert_eq!(warnings(&revision), 0);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_expires_is_given_up_for_that_type_and_told() {
    let later = json!({"message": "too old", "metadata": {"continue": "later"}});
    let api = Scripted::new()
        .next(get(MAPS).from("8").answers(page("8", "more", &[object("a")])))
        .next(get(MAPS).page("more").refuses_with(410, later))
        .next(get(MAPS).page("later").answers(list("9", &[object("b")])))
        .next(get(MAPS).answers(list("9", &[object("a")])))
        .next(get("/api/v1/secrets").from("8").refuses(410))
        .next(get("/api/v1/secrets").answers(list("9", &[object("s")])));
    let revision = revision();
    let lister = lister(&api, 1, 1).as_of(Some(Arc::clone(&revision)));
    assert_eq!(names(&lister, "configmaps").await.unwrap(), ["a", "b"]);
    assert_eq!(names(&lister, "configmaps").await.unwrap(), ["a"]);
    assert_eq!(names(&lister, "secrets").await.unwrap(), ["s"]);
    let asked = api.asked();
    assert_eq!(asked[3], format!("GET {MAPS}"), "{asked:?}");
    assert_eq!(asked[5], "GET /api/v1/secrets", "{asked:?}");
    assert_eq!(warnings(&revision), 1, "both types, for one reason");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lags_behind_the_revision_is_asked_again_before_that_is_given_up() {
    let lags = json!({"message": "Timeout: Too large resource version: 8, current: 5"});
    let api = Scripted::new();
    for _ in 0..3 {
        api.next(get(MAPS).from("8").refuses_with(504, lags.clone()));
    }
    api.next(get(MAPS).answers(list("5", &[object("a")])));
    let (revision, begun) = (revision(), Instant::now());
    let lister = lister(&api, 1, 1).as_of(Some(Arc::clone(&revision)));
    assert_eq!(names(&lister, "configmaps").await.unwrap(), ["a"]);
    assert_eq!(begun.elapsed().as_secs(), 2 * LAG.as_secs());
    assert_eq!(api.asked()[3], format!("GET {MAPS}"));
    assert_eq!(warnings(&revision), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_at_a_revision_is_asked_for_what_it_has_before_it_is_given_up() {
    let api = Scripted::new()
        .next(get(MAPS).from("8").refuses(500))
        .next(get(NAMESPACES).answers(list("5", &[])))
        .next(get(MAPS).answers(list("9", &[object("a")])));
    let revision = revision();
    let lister = Lister::new(api.client("app"), 1, Duration::ZERO, Arc::new(Semaphore::new(1)));
    let lister = lister.as_of(Some(Arc::clone(&revision)));
    assert_eq!(names(&lister, "configmaps").await.unwrap(), ["a"]);
    assert_eq!(api.asked()[2], format!("GET {MAPS}"));
    assert_eq!(warnings(&revision), 1);
}

fn found(json: &'static str) -> ListedObject {
    ListedObject::parse(Bytes::from_static(json.as_bytes())).unwrap_or_else(|e| unreachable!("{e}"))
}

#[test]
fn what_a_rule_asks_is_read_from_the_bytes() {
    let plain = found(r#"{"metadata":{"name":"a","namespace":"n","labels":null},"data":{"k":"v"}}"#);
    assert_eq!((plain.name.as_str(), plain.namespace.as_deref()), ("a", Some("n")));
    assert!(plain.lacks_type && !plain.excluded && !plain.deleting);
    let custom = found(
        r#"{"apiVersion":"x/v1","kind":"X","metadata":{"labels":{"velero.io/exclude-from-backup":"true","a":"b"},"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#,
    );
    assert!(!custom.lacks_type && custom.excluded && custom.deleting);
    assert!(!found(r#"{"metadata":{"name":"a","labels":{"velero.io/exclude-from-backup":"yes"}}}"#).excluded);
}
