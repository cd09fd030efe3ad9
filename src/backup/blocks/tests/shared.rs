//! What several pods of a block use.

use super::*;

/// A claim that two pods use is stored when both of them are still, before either goes on.
#[tokio::test(start_paused = true)]
async fn what_several_pods_use_is_stored_once_while_all_of_them_are_still() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "wait 1000")], [hook("thaw", "wait 1000")]);
    let mut block = vec![site.pod("a", &freeze, &thaw), site.pod("b", &freeze, &thaw)];
    block[0].used.with = vec![along("persistentvolumeclaims", "c"), along("persistentvolumes", "v")];
    let (batches, mut taken) = mpsc::channel(8);
    let begun = Instant::now();
    let story = async {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(came(&mut taken).is_empty(), "one of them is not still yet");
        tokio::time::sleep(Duration::from_millis(1000)).await;
        assert_eq!(came(&mut taken), ["c", "v", "a", "b"]);
    };
    tokio::join!(site.run_blocks(vec![block], 1, batches), story);
    let expected = ["freeze in a/main", "freeze in b/main", "thaw in a/main", "thaw in b/main"];
    let happened = site.played.happened();
    assert!(happened[0].contains("shop/a/u") && happened[0].contains("shop/b/u"), "{happened:?}");
    assert_eq!(happened[1..], expected);
    assert_eq!(
        begun.elapsed().as_secs(),
        3,
        "those after them side by side, because all are still meanwhile"
    );
    assert!(site.frozen.asked().unwrap().pods.is_null());
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_uses_is_stored_though_the_pod_is_left_out_and_others_of_its_block_are_not() {
    let site = Site::new();
    let mut block = vec![
        site.pod("a", &[hook("freeze!", "fail")], &[hook("thaw", "ok")]),
        site.pod("b", &[hook("freeze", "ok")], &[hook("thaw", "ok")]),
    ];
    block[0].used.with = vec![along("persistentvolumeclaims", "c")];
    let (batches, mut taken) = mpsc::channel(8);
    site.run_blocks(vec![block], 1, batches).await;
    assert_eq!(came(&mut taken), ["c", "b"]);
    let expected = ["freeze in a/main", "freeze in b/main", "thaw in a/main", "thaw in b/main"];
    assert_eq!(site.played.happened()[1..], expected);
    assert_eq!((site.status(), site.counters.total.load(Ordering::Relaxed)), ((4, 1), 99));
    assert!(site.tally.has_left_out("shop/a") && !site.tally.has_left_out("shop/b"));
}

#[tokio::test(start_paused = true)]
async fn a_block_in_the_midst_of_which_the_backup_ends_begins_no_other_pod_and_undoes_the_first() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "wait 1000")], [hook("thaw", "ok")]);
    let mut block = vec![site.pod("a", &freeze, &thaw), site.pod("b", &freeze, &thaw)];
    block[1].used.with = vec![along("persistentvolumeclaims", "c")];
    let (batches, mut taken) = mpsc::channel(8);
    let story = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        site.ending.cancel();
    };
    tokio::join!(site.run_blocks(vec![block], 1, batches), story);
    assert_eq!(site.played.happened()[1..], ["freeze in a/main", "thaw in a/main"]);
    assert_eq!((site.status(), site.log.counts().errors), ((2, 0), 0));
    assert!(!site.tally.has_left_out("shop/b"), "a run that goes on tries it");
    let _ = came(&mut taken);
}
