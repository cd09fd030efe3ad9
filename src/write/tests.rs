use berth_test_scripted::{Line, Scripted, delete as deleting, patch as patching, post};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::time::Instant;

use super::*;

const ALL: &str = "/api/v1/namespaces/velero/configmaps";
const ONE: &str = "/api/v1/namespaces/velero/configmaps/one";
const STATUS: &str = "/api/v1/namespaces/velero/configmaps/one/status";

fn api(script: &Scripted) -> Api<ConfigMap> {
    Api::namespaced(script.client("velero"), "velero")
}

fn object(version: &str) -> Value {
    let metadata = json!({"name": "one", "namespace": "velero", "uid": "u", "resourceVersion": version});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

fn seen() -> ConfigMap {
    serde_json::from_value(object("7")).unwrap()
}

/// As `kubectl` shows it: the code is that of a conflict, and nothing will be different on a second
/// look.
fn denial(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Conflict",
        "message": "admission webhook \"x.berth.dev\" denied the request: metadata: leave it",
    })
}

fn word<K>(answer: &WriteResult<K>) -> &'static str {
    match answer {
        WriteResult::Written(_) => "written",
        WriteResult::Conflict(_) => "conflict",
        WriteResult::Gone(_) => "gone",
        WriteResult::Refused(_) => "refused",
        WriteResult::TimedOut => "timed out",
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_the_api_server_says_is_one_of_five_answers_and_nothing_is_tried_again() {
    let ask = || patching(ONE);
    let lines: [(Line, &str); 16] = [
        (ask().answers(object("8")), "written"),
        (ask().refuses(404), "gone"),
        (ask().refuses(409), "conflict"),
        (ask().refuses_with(409, denial(409)), "refused"),
        (ask().refuses_with(404, denial(404)), "refused"),
        (ask().refuses(400), "refused"),
        (ask().refuses(401), "refused"),
        (ask().refuses(403), "refused"),
        (ask().refuses(413), "refused"),
        (ask().refuses(422), "refused"),
        (ask().refuses(429), "refused"),
        (ask().refuses(500), "refused"),
        (ask().refuses(503), "refused"),
        (ask().breaks(), "refused"),
        (ask().breaks_after("{\"kind\": "), "refused"),
        (ask().never_answers(), "timed out"),
    ];
    for (index, (line, expected)) in lines.into_iter().enumerate() {
        let script = Scripted::new().next(line);
        let answer = patch(&api(&script), Write::on(&seen()), json!({"data": {"a": "b"}})).await;
        assert_eq!(word(&answer), expected, "line {index}: {answer:?}");
        assert_eq!(answer.written().is_ok(), expected == "written", "line {index}");
        assert_eq!(script.writes().len(), 1, "line {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_write_has_an_end_and_says_so_in_words() {
    for (within, seconds) in [(None, 10), (Some(Duration::from_secs(3)), 3)] {
        let script = Scripted::new().always(patching(ONE).never_answers());
        let write = Write::to("one");
        let write = within.map_or(write, |within| write.within(within));
        let begun = Instant::now();
        let error = apply(&api(&script), write, &seen()).await.written().unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), seconds);
        assert!(crate::text::chain(&error).contains("did not answer in time"), "{error}");
    }
    let script = Scripted::new()
        .next(patching(STATUS).never_answers())
        .next(patching(ONE).never_answers())
        .next(patching(ONE).never_answers())
        .next(deleting(ONE).never_answers())
        .next(post(ALL).never_answers());
    let (api, to) = (api(&script), Write::to("one"));
    assert!(matches!(patch_status(&api, to, json!({})).await, WriteResult::TimedOut));
    assert!(matches!(patch_metadata(&api, to, json!({})).await, WriteResult::TimedOut));
    assert!(matches!(patch_strategic(&api, to, json!({})).await, WriteResult::TimedOut));
    assert!(matches!(delete(&api, to).await, WriteResult::TimedOut));
    assert!(matches!(create(&api, &seen()).await, WriteResult::TimedOut));
}

#[tokio::test(start_paused = true)]
async fn a_write_carries_its_manager_and_the_conditions_that_were_asked_for_and_no_others() {
    let seen = seen();
    let both = json!({"uid": "u", "resourceVersion": "7"});
    for (write, metadata) in [
        (Write::to("one"), Value::Null),
        (Write::to("one").uid(Some("u")), json!({"uid": "u"})),
        (Write::to("one").version(Some("7")), json!({"resourceVersion": "7"})),
        (Write::on(&seen), both.clone()),
    ] {
        let script = Scripted::new().next(patching(ONE).answers(object("8")));
        let answer = patch(&api(&script), write, json!({"data": {"a": null}})).await;
        assert_eq!(answer.written().unwrap().metadata.resource_version.as_deref(), Some("8"));
        let sent = &script.writes()[0];
        assert_eq!(sent.body["metadata"], metadata);
        assert_eq!(sent.body["data"], json!({"a": null}));
        assert!(sent.query.contains(&format!("fieldManager={FIELD_MANAGER}")), "{}", sent.query);
        assert!(!sent.query.contains("force"), "{}", sent.query);
    }
    // What the caller writes in the metadata besides stays.
    let script = Scripted::new().next(patching(ONE).answers(object("8")));
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let written = patch_metadata(&api(&script), Write::on(&seen), change).await.written().unwrap();
    assert_eq!(written.metadata.uid.as_deref(), Some("u"));
    let expected = json!({"uid": "u", "resourceVersion": "7", "labels": {"a": "b"}});
    assert_eq!(script.writes()[0].body["metadata"], expected);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_applied_by_force_made_once_and_deleted_on_conditions() {
    let made = ConfigMap {
        metadata: ObjectMeta { name: Some("one".to_owned()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let deleted = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"});
    let script = Scripted::new()
        .next(patching(ONE).answers(object("8")))
        .next(post(ALL).takes_as("1"))
        .next(post(ALL).already_exists())
        .next(post(ALL).refuses(409))
        .next(deleting(ONE).answers(deleted.clone()))
        .next(deleting(ONE).answers(deleted))
        .next(deleting(ONE).refuses(409))
        .next(deleting(ONE).refuses(404));
    let (api, seen) = (api(&script), seen());
    assert_eq!(word(&apply(&api, Write::to("one"), &made).await), "written");
    assert_eq!(word(&create(&api, &made).await), "written");
    assert_eq!(word(&create(&api, &made).await), "conflict");
    assert_eq!(word(&create(&api, &made).await), "refused", "a conflict of another kind: nothing stands");
    assert_eq!(word(&delete(&api, Write::to("one")).await), "written");
    assert_eq!(word(&delete(&api, Write::on(&seen)).await), "written");
    assert_eq!(word(&delete(&api, Write::on(&seen)).await), "conflict");
    assert_eq!(word(&delete(&api, Write::on(&seen)).await), "gone");
    let sent = script.writes();
    assert!(sent[0].query.contains("force=true") && sent[0].query.contains("fieldManager="), "{sent:?}");
    assert!(sent[4].body.get("preconditions").is_none(), "{}", sent[4].body);
    assert_eq!(sent[5].body["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_too_large_is_written_again_without_the_record_of_who_wrote_which_field_and_only_once() {
    let large = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "",
        "message": "etcdserver: request is too large",
    });
    let too_large = || patching(ONE).refuses_with(500, large.clone());
    for (second, expected) in [(patching(ONE).answers(object("8")), "written"), (too_large(), "refused")] {
        let script = Scripted::new().next(too_large()).next(second);
        let answer = patch_to_fit(&api(&script), Write::on(&seen()), json!({"data": {"a": "b"}})).await;
        assert_eq!(word(&answer), expected);
        let sent = script.writes();
        assert!(sent[0].body["metadata"].get("managedFields").is_none());
        assert_eq!(sent[1].body["metadata"]["managedFields"], json!([{}]));
        assert_eq!(sent[1].body["metadata"]["resourceVersion"], "7");
        assert_eq!(sent[1].body["data"], json!({"a": "b"}));
    }
    for refused in [patching(ONE).refuses(422), patching(ONE).refuses(409), patching(ONE).never_answers()] {
        let script = Scripted::new().next(refused);
        patch_to_fit(&api(&script), Write::on(&seen()), json!({"data": {}})).await.written().unwrap_err();
    }
    // It was small already.
    let script = Scripted::new().next(too_large());
    let small = json!({"metadata": {"managedFields": [{}]}});
    assert_eq!(word(&patch_to_fit(&api(&script), Write::to("one"), small).await), "refused");
}

#[test]
fn pauses_grow_to_five_seconds_and_are_never_none() {
    let mut pauses = Pauses::default();
    let mut whole = Pauses::FIRST;
    for _ in 0..100 {
        let pause = pauses.pause();
        assert!((whole / 2..whole).contains(&pause), "{pause:?} of {whole:?}");
        whole = Pauses::LONGEST.min(whole * 2);
    }
    assert_eq!(whole, Pauses::LONGEST);
}
