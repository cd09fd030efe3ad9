//! How long pods of one block are still for each other's sake.

use super::*;

/// So many seconds.
fn slow(name: &str, seconds: u64) -> Arc<Hook> {
    let mut slow = Hook::clone(&hook(name, &format!("wait {}", seconds * 1000)));
    slow.timeout = 2 * limits::BLOCK_STILL;
    Arc::new(slow)
}

/// What ran in pods, in this order.
fn ran(site: &Site) -> Vec<String> {
    let happened = site.played.happened();
    happened.iter().filter_map(|line| line.strip_suffix("/main").map(str::to_owned)).collect()
}

#[tokio::test(start_paused = true)]
async fn all_pods_of_a_block_are_on_record_and_looked_at_before_the_first_of_them_is_still() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "ok")], [hook("thaw", "ok")]);
    // A server that has too many requests.
    let slowly = json!({"message": "too many requests", "details": {"retryAfterSeconds": 50}});
    site.api.once(get("/api/v1/namespaces/shop/pods/b").refuses_with(429, slowly));
    let block = ["a", "b"].map(|name| {
        let played = site.played.clone();
        let looked = move |_: &serde_json::Value| {
            played.note(format!("{name} is looked at"));
            json!({"metadata": {"name": name, "uid": "u"}})
        };
        site.api.always(get(&format!("/api/v1/namespaces/shop/pods/{name}")).answers_with(looked));
        site.listed(name, &freeze, &thaw)
    });
    let (batches, mut taken) = mpsc::channel(8);
    site.run_blocks(vec![block.into()], 1, batches).await;
    let record = "on record: \"shop/a/u,shop/b/u\"";
    let expected = [
        record,
        "a is looked at",
        "b is looked at",
        // It may be somebody else's by now.
        record,
        "freeze in a/main",
        // Its name may be another pod's by now.
        "b is looked at",
        "freeze in b/main",
        "thaw in a/main",
        "thaw in b/main",
    ];
    assert_eq!(site.played.happened(), expected);
    assert_eq!((came(&mut taken).join(" "), site.log.counts().errors), ("a b".to_owned(), 0));
}

/// Nobody would find it on record, should this process be killed.
#[tokio::test(start_paused = true)]
async fn no_hook_runs_in_a_pod_that_was_made_anew_while_another_one_of_its_block_was_still() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "ok")], [hook("thaw", "ok")]);
    let a = site.pod("a", &freeze, &thaw);
    let b = site.listed("b", &freeze, &thaw);
    for uid in ["u", "another one"] {
        let of_b = json!({"metadata": {"name": "b", "uid": uid}});
        site.api.once(get("/api/v1/namespaces/shop/pods/b").answers(of_b));
    }
    let (batches, mut taken) = mpsc::channel(8);
    site.run_blocks(vec![vec![a, b]], 1, batches).await;
    assert_eq!(ran(&site), ["freeze in a", "thaw in a"]);
    assert_eq!((came(&mut taken).join(" "), site.log.counts().errors), ("a b".to_owned(), 1));
}

/// What has begun is undone, what has not is told, and all are stored but the one whose hook says
/// otherwise.
#[tokio::test(start_paused = true)]
async fn when_the_first_pod_of_a_block_has_been_still_for_long_hooks_begin_in_no_other_one() {
    let site = Site::new();
    let thaw = [hook("thaw", "ok")];
    let block = vec![
        site.pod("a", &[slow("freeze", 1)], &thaw),
        site.pod("b", &[slow("freeze", 500)], &thaw),
        // It begins in time, and its second one does not.
        site.pod("c", &[slow("freeze", 500), hook("more", "ok")], &thaw),
        site.pod("d", &[hook("freeze", "ok")], &thaw),
        site.pod("dump", &[hook("dump", "ok")], &[]),
        site.pod("out", &[hook("freeze!", "ok")], &thaw),
        site.pod("post", &[], &thaw),
    ];
    let (batches, mut taken) = mpsc::channel(8);
    let begun = Instant::now();
    site.run_blocks(vec![block], 1, batches).await;
    assert_eq!(begun.elapsed().as_secs(), 1001);
    let expected =
        ["freeze in a", "freeze in b", "freeze in c", "thaw in a", "thaw in b", "thaw in c", "thaw in post"];
    assert_eq!(ran(&site), expected);
    assert_eq!(came(&mut taken), ["a", "b", "c", "d", "dump", "post"]);
    // One error of each hook that was not run, and each counts as one that was tried.
    assert_eq!((site.status(), site.log.counts().errors, site.lasting()), ((11, 4), 4, 4));
    assert!(site.tally.has_left_out("shop/out"));
    assert!(site.frozen.asked().unwrap().pods.is_null());
}

/// Nobody else is still meanwhile.
#[tokio::test(start_paused = true)]
async fn what_comes_before_the_first_pod_that_is_still_may_take_as_long_as_it_takes() {
    let site = Site::new();
    let thaw = [hook("thaw", "ok")];
    let block = vec![
        // Nothing is undone in it.
        site.pod("dump", &[slow("dump", 700)], &[]),
        site.pod("a", &[slow("flush", 700), slow("freeze", 700)], &thaw),
        site.pod("b", &[hook("freeze", "ok")], &thaw),
    ];
    let (batches, mut taken) = mpsc::channel(8);
    site.run_blocks(vec![block], 1, batches).await;
    let expected = ["dump in dump", "flush in a", "freeze in a", "freeze in b", "thaw in a", "thaw in b"];
    assert_eq!(ran(&site), expected);
    assert_eq!((came(&mut taken).len(), site.log.counts().errors), (3, 0));
}
