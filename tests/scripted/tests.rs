use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, Patch, PatchParams, WatchParams};
use kube::core::WatchEvent;

use super::*;

const MAPS: &str = "/api/v1/namespaces/ns/configmaps";
const ONE: &str = "/api/v1/namespaces/ns/configmaps/one";

fn map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": version}})
}

fn maps(api: &Scripted) -> Api<ConfigMap> {
    Api::namespaced(api.client("ns"), "ns")
}

#[tokio::test(start_paused = true)]
async fn lines_are_answered_in_their_order_and_writes_are_kept() {
    let api = Scripted::new()
        .always(get(ONE).answers(map("one", "1")))
        .next(patch(ONE).refuses(409))
        .next(patch(ONE).answers(map("one", "2")));
    let maps = maps(&api);
    let (params, patch) = (PatchParams::apply("me"), Patch::Merge(json!({"data": {"a": "b"}})));
    let refused = maps.patch("one", &params, &patch).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409));
    let read = maps.get("one").await.unwrap();
    assert_eq!(read.metadata.resource_version.as_deref(), Some("1"));
    maps.patch("one", &params, &patch).await.unwrap();
    let write = &api.writes()[1];
    assert_eq!((write.method.as_str(), write.path.as_str()), ("PATCH", ONE));
    assert_eq!(write.body, json!({"data": {"a": "b"}}));
    assert!(write.query.contains("fieldManager=me"), "{}", write.query);
    api.finish();
}

#[tokio::test(start_paused = true)]
#[should_panic(
    expected = "nobody answers PATCH /api/v1/namespaces/ns/configmaps/one with body {\"a\":1}; next in line was GET"
)]
async fn what_nobody_has_scripted_fails_the_test() {
    let api = Scripted::new().next(get(ONE).answers(map("one", "1")));
    let written = maps(&api).patch("one", &PatchParams::default(), &Patch::Merge(json!({"a": 1}))).await;
    assert!(written.is_err());
    api.finish();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "never asked for: DELETE")]
async fn what_is_never_asked_for_fails_the_test_by_its_end() {
    let _api = Scripted::new().next(delete(ONE).answers(json!({})));
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_held_until_the_test_lets_go() {
    let hold = Hold::new();
    let api = Scripted::new().next(get(ONE).answers(map("one", "1")).held(&hold));
    let maps = maps(&api);
    let reading = tokio::spawn(async move { maps.get("one").await });
    hold.asked().await;
    assert!(!reading.is_finished());
    hold.let_go();
    reading.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn time_passes_by_the_clock_of_the_test() {
    let api = Scripted::new()
        .next(get(ONE).answers(map("one", "1")).after(Duration::from_secs(9)))
        .next(get(ONE).never_answers())
        .next(get(ONE).breaks());
    let (maps, patience) = (maps(&api), Duration::from_secs(10));
    tokio::time::timeout(patience, maps.get("one")).await.unwrap().unwrap();
    assert!(tokio::time::timeout(patience, maps.get("one")).await.is_err());
    assert!(matches!(maps.get("one").await, Err(kube::Error::Service(_))));
}

#[tokio::test(start_paused = true)]
async fn a_list_has_pages_and_a_watch_events() {
    let events = Watch::new();
    let api = Scripted::new()
        .next(get(MAPS).answers(page("5", "more", &[map("one", "1")])))
        .next(get(MAPS).page("more").answers(list("5", &[map("two", "2")])))
        .next(watch(MAPS).streams(&events));
    let maps = maps(&api);
    let first = maps.list(&ListParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let second = maps.list(&ListParams::default().continue_token(&token)).await.unwrap();
    assert_eq!(second.items[0].metadata.name.as_deref(), Some("two"));
    let mut seen = std::pin::pin!(maps.watch(&WatchParams::default(), "5").await.unwrap());
    events.begun().await;
    events.added(&map("three", "6"));
    assert!(
        matches!(seen.next().await, Some(Ok(WatchEvent::Added(map))) if map.metadata.name.as_deref() == Some("three"))
    );
    events.gone();
    assert!(matches!(seen.next().await, Some(Ok(WatchEvent::Error(status))) if status.code == 410));
    assert!(seen.next().await.is_none());
}
