//! Pods that cannot be thawed, and hooks after a pod that fail.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hook_after_a_pod_that_cannot_be_started_is_tried_again_for_as_long_as_one_of_a_dead_run() {
    for (command, tries, failed) in [("busy 5", 6, 0), ("busy 60", 61, 0), ("busy 100", 63, 1)] {
        let site = Site::new();
        let pod = site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", command), hook("last", "ok")]);
        let begun = Instant::now();
        assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
        let happened = site.played.happened();
        assert_eq!(happened.iter().filter(|line| *line == "thaw in db/main").count(), tries, "{command}");
        assert_eq!((happened.last().unwrap().as_str(), site.status()), ("last in db/main", (3, failed)));
        // That it failed, and that nobody tries it any more.
        let told = 2 * usize::from(failed > 0);
        assert_eq!((site.lasting(), site.log.counts().errors > 0), (told, failed > 0));
        assert!(begun.elapsed() <= limits::LAST_HOOKS, "{:?}", begun.elapsed());
    }
}

/// Its kubelet is away for some minutes.
#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_thawed_for_long_stays_on_record_and_holds_up_no_other_block() {
    let site = Site::new();
    let (freeze, thaw) = ([hook("freeze", "ok")], [hook("thaw", "ok")]);
    let mut pods = vec![site.pod("away", &freeze, &[hook("thaw", "busy 30")])];
    pods.extend((0..40).map(|i| site.pod(&format!("p{i}"), &freeze, &thaw)));
    let begun = Instant::now();
    let story = async {
        tokio::time::sleep(Duration::from_secs(61)).await;
        let happened = site.played.happened();
        assert_eq!(happened.iter().filter(|line| line.starts_with("thaw in p")).count(), 40, "{happened:?}");
        let record = happened.iter().rfind(|line| line.starts_with("on record")).unwrap();
        assert!(record.contains("shop/away/u"), "{record}");
    };
    let (stored, ()) = tokio::join!(site.run(pods, 1), story);
    assert_eq!(stored.len(), 41);
    // 0, 1, 3, 7, 15, 25 seconds, and so on.
    assert_eq!(begun.elapsed().as_secs(), 275);
    assert_eq!(site.played.happened().last().unwrap(), "thaw in away/main");
    assert_eq!((site.log.counts().errors, site.status()), (0, (82, 0)));
    assert!(site.frozen.asked().unwrap().pods.is_null());
}

/// Unless another leader has the backup, which may freeze the pod again by then.
#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_thawed_is_tried_on_when_the_backup_ends_early() {
    for (is_lost, tries) in [(false, 21), (true, 3)] {
        let site = Site::new();
        let pod = site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "busy 20")]);
        let story = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            if is_lost {
                site.lost.cancel();
            }
            site.ending.cancel();
        };
        tokio::join!(site.run(vec![pod], 1), story);
        assert_eq!(site.played.happened().iter().filter(|line| line.starts_with("thaw")).count(), tries);
        assert_eq!(site.log.counts().errors > 0, is_lost);
    }
}

/// The next leader goes on, so the end of a process does not wait for ten minutes.
#[tokio::test(start_paused = true)]
async fn a_process_that_is_to_end_tries_for_a_minute_and_leaves_the_pod_on_record() {
    let site = Site::new();
    let pod = site.pod("db", &[hook("freeze", "ok")], &[hook("thaw", "busy 1000")]);
    let story = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        site.stop.cancel();
        site.ending.cancel();
    };
    let begun = Instant::now();
    tokio::join!(site.run(vec![pod], 1), story);
    assert!(begun.elapsed() <= Duration::from_secs(75), "{:?}", begun.elapsed());
    assert!(site.frozen.has_any());
}

/// What freezes may come after what thaws, where its container keeps it.
#[tokio::test(start_paused = true)]
async fn behind_a_hook_that_may_go_on_those_after_the_pod_that_fail_are_run_once_more() {
    for (pre, expected) in [("wait 31000", 2), ("fail", 1)] {
        let site = Site::new();
        let pod = site.pod("db", &[hook("freeze", pre)], &[hook("thaw", "fail 1"), hook("last", "ok")]);
        let begun = Instant::now();
        assert_eq!(site.run(vec![pod], 1).await, names(["db"]));
        let happened = site.played.happened();
        let count = |line: &str| happened.iter().filter(|other| *other == line).count();
        assert_eq!((count("thaw in db/main"), count("last in db/main")), (expected, 1), "{happened:?}");
        assert_eq!(begun.elapsed().as_secs() >= 60, expected == 2);
    }
}
