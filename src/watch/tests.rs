use berth_test_scripted::{Scripted, Watch, get, list as whole, page, watch};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";

fn map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}})
}

/// The events of a watch, while `story` goes on.
async fn told(api: &Scripted, story: impl Future<Output = ()>) -> Vec<String> {
    let told = Mutex::new(Vec::new());
    let maps = of_namespace::<ConfigMap>(&api.client("ns"), "ns");
    let reflecting = reflect(
        maps,
        watcher::Config::default(),
        |map| map.name_any(),
        |change| {
            told.lock().push(match change {
                WatchEvent::Replaced(names) => format!("all: {}", names.join(" ")),
                WatchEvent::Applied(name) => format!("applied: {name}"),
                WatchEvent::Deleted(name) => format!("deleted: {name}"),
            });
        },
    );
    tokio::select! {
        () = reflecting => unreachable!("a watch ended"),
        () = story => {}
    }
    told.into_inner()
}

#[tokio::test(start_paused = true)]
async fn all_pages_of_a_list_are_told_at_once() {
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(MAPS).answers(page("5", "more", &[map("one", "1")])))
        .next(get(MAPS).page("more").answers(whole("5", &[map("two", "2")])))
        .next(watch(MAPS).from("5").streams(&events));
    let story = async {
        events.added(&map("three", "6"));
        events.modified(&map("one", "7"));
        events.deleted(&map("two", "8"));
        api.played().await;
    };
    assert_eq!(told(&api, story).await, ["all: one two", "applied: three", "applied: one", "deleted: two"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_while_nobody_could_tell_is_missing_in_the_next_list() {
    let (first, second) = (Watch::new(), Watch::new());
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[map("one", "1"), map("two", "2")])))
        .next(watch(MAPS).from("5").streams(&first))
        // The connection is lost; when it is back, the versions since are no longer known.
        .next(watch(MAPS).from("5").streams(&second))
        .next(get(MAPS).answers(whole("900", &[map("two", "2")])))
        .next(watch(MAPS).from("900").never_answers());
    first.breaks();
    second.gone();
    assert_eq!(told(&api, api.played()).await, ["all: one two", "all: two"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_goes_on_where_it_was() {
    let watches: [Watch; 3] = std::array::from_fn(|_| Watch::new());
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[map("one", "1")])))
        .next(watch(MAPS).from("5").streams(&watches[0]))
        .next(watch(MAPS).from("9").streams(&watches[1]))
        .next(watch(MAPS).from("20").streams(&watches[2]));
    watches[0].modified(&map("one", "9"));
    watches[0].end();
    // Nothing of ours has changed, and yet time goes on.
    watches[1].bookmark("v1", "ConfigMap", "20");
    watches[1].end();
    watches[2].deleted(&map("one", "21"));
    assert_eq!(told(&api, api.played()).await, ["all: one", "applied: one", "deleted: one"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_broke_off_is_not_told_in_part() {
    let api = Scripted::new()
        .next(get(MAPS).answers(page("5", "more", &[map("one", "1")])))
        .next(get(MAPS).page("more").refuses(410))
        .next(get(MAPS).answers(whole("6", &[map("two", "2")])))
        .next(watch(MAPS).from("6").never_answers());
    assert_eq!(told(&api, api.played()).await, ["all: two"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_read_is_not_known_and_blinds_nobody() {
    let events = Watch::new();
    let broken = |version: &str| {
        let mut broken = map("broken", version);
        broken["data"] = json!("not a map");
        broken
    };
    let api = Scripted::new()
        .next(get(MAPS).answers(whole("5", &[broken("1"), map("one", "2")])))
        .next(watch(MAPS).streams(&events));
    events.added(&map("broken", "6"));
    events.modified(&broken("7"));
    events.modified(&map("one", "8"));
    assert_eq!(
        told(&api, api.played()).await,
        ["all: one", "applied: broken", "deleted: broken", "applied: one"]
    );
}

#[tokio::test(start_paused = true)]
async fn of_a_kind_that_is_not_known_there_are_none_until_it_is() {
    let api = Scripted::new()
        .next(get(MAPS).refuses(404))
        .next(get(MAPS).answers(whole("5", &[map("one", "1")])))
        .next(watch(MAPS).never_answers());
    assert_eq!(told(&api, api.played()).await, ["all: ", "all: one"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_once_is_asked_for_again_in_a_moment() {
    let api = Scripted::new()
        .next(get(MAPS).refuses(500))
        .next(get(MAPS).answers(whole("5", &[])))
        .next(watch(MAPS).never_answers());
    let begun = Instant::now();
    told(&api, api.played()).await;
    assert!(begun.elapsed() < Duration::from_millis(150), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_cannot_begin_is_asked_for_less_and_less_often() {
    let api = Scripted::new().next(get(MAPS).answers(whole("5", &[]))).always(watch(MAPS).refuses(500));
    told(&api, sleep(Duration::from_secs(50))).await;
    // After 0.1, 0.2, 0.4 … 12.8 s, and then every 15 s.
    assert_eq!(api.asked().len(), 1 + 10);
}

#[tokio::test(start_paused = true)]
async fn whoever_cannot_list_asks_less_and_less_often() {
    let api = Scripted::new().always(get(MAPS).refuses(500));
    told(&api, sleep(Duration::from_secs(50))).await;
    assert_eq!(api.asked().len(), 10);
    // Nor is a part of a list one.
    let first = get(MAPS).answers(page("5", "more", &[map("one", "1")]));
    let api = Scripted::new().always(first).always(get(MAPS).page("more").refuses(500));
    assert!(told(&api, sleep(Duration::from_secs(50))).await.is_empty());
    assert_eq!(api.asked().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_known_is_asked_for_once_a_second_and_seldom_after_a_minute() {
    for (seconds, asked) in [(9, 10), (59, 60), (60 + 600, 60 + 60)] {
        let api = Scripted::new().always(get(MAPS).refuses(404));
        told(&api, sleep(Duration::from_millis(seconds * 1000 + 500))).await;
        assert_eq!(api.asked().len(), asked, "{seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_was_known_is_asked_for_once_a_second_again() {
    let mut api = Scripted::new();
    for _ in 0..70 {
        api = api.next(get(MAPS).refuses(404));
    }
    let gone = Watch::new();
    let api = api
        .next(get(MAPS).answers(whole("5", &[])))
        .next(watch(MAPS).from("5").streams(&gone))
        .always(get(MAPS).refuses(404));
    gone.gone();
    // 59 seconds, and then eleven times ten.
    told(&api, sleep(Duration::from_millis((59 + 110) * 1000 + 9_500))).await;
    assert_eq!(api.asked().len(), 70 + 2 + 10);
}

#[test]
fn a_map_is_brought_up_to_date_by_the_events_of_a_watch() {
    let mut map = BTreeMap::from([("gone", 1)]);
    for (event, expected) in [
        (WatchEvent::Replaced(vec![("one", 1), ("two", 2)]), vec![("one", 1), ("two", 2)]),
        (WatchEvent::Applied(("one", 3)), vec![("one", 3), ("two", 2)]),
        (WatchEvent::Deleted("two"), vec![("one", 3)]),
    ] {
        event.apply_to(&mut map);
        assert_eq!(Vec::from_iter(map.clone()), expected);
    }
}
