//! Schedules at admission.

use super::*;

fn schedule(expression: &str, template: Value) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "Schedule", "metadata": {"name": "daily", "namespace": "velero"},
        "spec": {"schedule": expression, "template": template},
    })
}

async fn judge(router: &Router, object: Value, old: Option<Value>) -> (Option<String>, Vec<String>) {
    judge_of("somebody", router, object, old).await
}

async fn judge_of(
    user: &str,
    router: &Router,
    object: Value,
    old: Option<Value>,
) -> (Option<String>, Vec<String>) {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let mut answers = Vec::new();
    for dry_run in [false, true] {
        let mut asked = review(operation, object.clone(), old.clone(), dry_run);
        asked["request"]["userInfo"] = json!({"username": user});
        let answer = ask(router, SCHEDULE_PATH, asked).await;
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        let warnings = warnings.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect();
        let message = answer["status"]["message"].as_str().map(str::to_owned);
        assert_eq!(answer["allowed"], message.is_none());
        answers.push((message, warnings));
    }
    assert_eq!(answers[0], answers[1], "a dry run gets the same answer");
    answers.swap_remove(0)
}

#[tokio::test]
async fn who_creates_one_is_told_its_next_five_times_in_utc_and_in_its_zone() {
    let (_, router) = state();
    let (refused, told) = judge(&router, schedule("0 2 * * *", json!({})), None).await;
    assert_eq!(refused, None);
    assert_eq!(
        told,
        [
            "berth: runs at 2026-09-22 02:00:00, 2026-09-23 02:00:00, 2026-09-24 02:00:00, 2026-09-25 02:00:00, 2026-09-26 02:00:00 UTC"
        ]
    );
    let zoned = schedule("CRON_TZ=Europe/Berlin 30 2 * * SUN", json!({}));
    let (_, told) = judge(&router, zoned, None).await;
    assert!(told[0].starts_with("berth: runs at 2026-09-27 00:30:00, "), "{told:?}");
    assert!(told[0].ends_with("2026-10-18 00:30:00, 2026-10-25 00:30:00 UTC"), "{told:?}");
    assert!(
        told[1].starts_with("berth: that is Sun 2026-09-27 02:30:00, ")
            && told[1].ends_with(" in Europe/Berlin"),
        "{told:?}"
    );
    let (_, told) = judge(&router, schedule("0 0 31 2 *", json!({})), None).await;
    assert_eq!(told, ["berth: spec.schedule names no time within the next five years"]);
}

#[tokio::test]
async fn every_fault_of_expression_and_template_is_refused_at_once() {
    let (_, router) = state();
    let template = json!({"includedNamespaces": ["A"], "ttl": "1d", "storageLocation": "nowhere", "volumeSnapshotLocations": ["default"]});
    let mut bad = schedule("0 25 * * *", template);
    bad["metadata"]["annotations"] =
        json!({"berth.dev/concurrency-policy": "Replace", "berth.dev/jitter": "x"});
    let (refused, told) = judge(&router, bad, None).await;
    let refused = refused.unwrap_or_default();
    for fault in [
        "spec.schedule: hour \"25\" (characters 3 to 4) is above 23; allowed: 0-23",
        "metadata.annotations[berth.dev/concurrency-policy]: \"Replace\" is not a policy",
        "metadata.annotations[berth.dev/jitter]: ",
        "spec.template.includedNamespaces[0]: ",
        "spec.template.ttl: ",
        "spec.template.volumeSnapshotLocations: ",
        "spec.template.storageLocation: BackupStorageLocation \"nowhere\" does not exist",
    ] {
        assert!(refused.contains(fault), "{fault}: {refused}");
    }
    assert!(told.is_empty(), "{told:?}");
    let mut labelled = schedule("@daily", json!({}));
    for i in 0..1001 {
        labelled["metadata"]["labels"][format!("l{i}")] = json!("x");
    }
    let (refused, _) = judge(&router, labelled, None).await;
    let wanted = "metadata.labels: has 1001 entries, and at most 1000 are taken: use fewer";
    assert!(refused.as_ref().is_some_and(|why| why.starts_with(wanted)), "{refused:?}");
    let mut long = schedule("@daily", json!({}));
    long["metadata"]["name"] = json!("n".repeat(64));
    let (refused, _) = judge(&router, long, None).await;
    assert!(refused.is_some_and(|why| why.starts_with("metadata.name: has more than 63 characters")));
}

#[tokio::test]
async fn what_was_accepted_once_may_be_paused_labelled_and_written_by_controllers() {
    let (_, router) = state();
    let bad = schedule("0 25 * * *", json!({"storageLocation": "nowhere"}));
    let mut changed = bad.clone();
    changed["metadata"]["labels"] = json!({"a": "b"});
    changed["spec"]["paused"] = json!(true);
    changed["spec"]["skipImmediately"] = json!(false);
    changed["status"] = json!({"phase": "FailedValidation", "lastBackup": "2026-01-01T00:00:00Z"});
    let written = judge_of("velero", &router, changed.clone(), Some(bad.clone())).await;
    assert_eq!(written, (None, Vec::new()));
    let (refused, _) = judge(&router, changed.clone(), Some(bad.clone())).await;
    assert!(refused.is_some_and(|why| why.starts_with("status: which times have had their backups")));
    changed["status"] = Value::Null;
    assert_eq!(judge(&router, changed.clone(), Some(bad.clone())).await, (None, Vec::new()));
    changed["spec"]["template"] = json!({});
    assert!(judge(&router, changed, Some(bad)).await.0.is_some());

    let good = schedule("@daily", json!({}));
    let mut paused = good.clone();
    paused["spec"]["paused"] = json!(true);
    let (_, told) = judge(&router, paused, Some(good.clone())).await;
    assert!(told[0].starts_with("berth: runs once it is not paused, at 2026-09-22 00:00:00"), "{told:?}");
    assert_eq!(judge(&router, good.clone(), Some(good)).await, (None, Vec::new()));
}

#[tokio::test]
async fn who_makes_a_schedule_does_not_say_when_it_has_run() {
    let (_, router) = state();
    let with = |status: Value| {
        let mut made = schedule("@daily", json!({}));
        made["status"] = status;
        made
    };
    for status in [json!(null), json!({}), json!({"phase": "New"})] {
        assert_eq!(judge(&router, with(status.clone()), None).await.0, None, "{status}");
    }
    for status in [json!({"phase": "Enabled"}), json!({"lastBackup": "2026-01-01T00:00:00Z"})] {
        let (refused, _) = judge(&router, with(status.clone()), None).await;
        assert!(refused.is_some_and(|why| why.contains("leave status out")), "{status}");
        assert_eq!(judge_of("velero", &router, with(status.clone()), None).await.0, None, "{status}");
        // As `kubectl replace` does with what lies in Git.
        let (refused, _) = judge(&router, with(json!(null)), Some(with(status.clone()))).await;
        assert!(refused.is_some_and(|why| why.contains("use kubectl apply")), "{status}");
    }
}

#[tokio::test]
async fn a_template_for_velero_may_ask_for_what_berths_engine_does_not_do() {
    let (cluster, router) = state();
    let asks = || schedule("@daily", json!({"volumeSnapshotLocations": ["default"]}));
    assert!(judge(&router, asks(), None).await.0.is_some());
    cluster.beside_velero.store(true, Ordering::Relaxed);
    assert_eq!(judge(&router, asks(), None).await.0, None);
}

fn others(schedules: impl IntoIterator<Item = Value>) -> Option<Others> {
    let read = |object: Value| serde_json::from_value::<berth_api::velero::Schedule>(object).unwrap();
    let plans = schedules.into_iter().filter_map(|object| read(object).planned()).map(Arc::new).collect();
    Some(Others { plans, left_out: 0 })
}

fn named(name: &str, expression: &str, namespaces: &[&str]) -> Value {
    let mut object = schedule(expression, json!({"includedNamespaces": namespaces}));
    object["metadata"]["name"] = json!(name);
    object["metadata"]["creationTimestamp"] = json!("2026-09-01T00:00:00Z");
    object
}

#[tokio::test]
async fn who_creates_one_is_told_what_others_take_at_these_times() {
    let (cluster, router) = state();
    let mine = || named("daily", "0 2 * * *", &["shop"]);
    let (_, alone) = judge(&router, mine(), None).await;
    assert_eq!(alone.len(), 1, "nothing is known of the others: {alone:?}");
    let mut paused = named("paused", "0 2 * * *", &["shop"]);
    paused["spec"]["paused"] = json!(true);
    *cluster.schedules.lock() = others([
        named("daily", "0 2 * * *", &["shop"]),
        named("elsewhere", "0 2 * * *", &["club"]),
        named("later", "0 3 * * *", &["shop"]),
        named("nightly", "58 1 * * *", &["s*"]),
        named("weekly", "0 2 * * SAT", &["*"]),
        paused,
    ]);
    let (refused, told) = judge(&router, mine(), None).await;
    assert_eq!((refused, &told[..1]), (None, &alone[..]));
    assert_eq!(
        told[1..],
        [
            "berth: Schedule nightly, which also takes shop, runs within 5 minutes of each of these times: one waits for the other",
            "berth: Schedule weekly, which also takes shop, runs within 5 minutes of 2026-09-26 02:00:00 UTC: one waits for the other",
        ]
    );
    // Nothing new is told of what has the same times.
    let mut labelled = mine();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(judge(&router, labelled, Some(mine())).await, (None, Vec::new()));
}

#[tokio::test]
async fn of_many_that_are_met_a_few_are_named() {
    let (cluster, router) = state();
    let many = (0..100).map(|i| named(&format!("s{i:03}"), "0 2 * * *", &["shop"]));
    let known = others(many).map(|known| Others { left_out: 7, ..known });
    *cluster.schedules.lock() = known;
    let (_, told) = judge(&router, named("daily", "0 2 * * *", &["shop"]), None).await;
    assert_eq!(told.len(), 1 + 5 + 2, "{told:?}");
    assert_eq!(told[6], "berth: so do 95 other Schedules, at some of these times");
    assert_eq!(told[7], "berth: 7 other Schedules were not compared: they are too many");
}
