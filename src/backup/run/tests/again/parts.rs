//! What becomes of the uploads that dead runs have begun in parts.

use super::*;

/// A lifecycle rule of the bucket, or an old process that wakes: what a run has begun in parts is
/// gone while it goes on with it.
#[tokio::test]
async fn a_run_whose_upload_is_gone_begins_anew_from_nothing_and_that_counts() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let late = Hold::new();
    site.api.once(third().answers(list("5", &[large("c")])).held(&late));
    let engine = site.engine_of_small_parts();
    let story = async {
        late.asked().await;
        for name in site.stored().iter().filter(|name| name.starts_with("one.tar.gz#")) {
            std::fs::remove_file(site.folder.path().join("bucket/backups/one").join(name)).unwrap();
        }
        late.let_go();
    };
    let (ended, ()) = tokio::join!(engine.recover("one", "u", Signals::default(), |_| {}), story);
    assert_eq!(ended.unwrap().unwrap().phase(), BackupPhase::InProgress);
    assert_eq!(standing.runs(), 2);
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it begins anew (run 3 of 3)") && lists_anew(&asked), "{told}");
    site.holds(&["a", "b", "c"]);
}

#[tokio::test]
async fn whatever_ends_a_run_nothing_is_left_of_what_it_began_in_parts() {
    for is_canceled in [true, false] {
        let never = Hold::new();
        let (mut site, _standing) = three_pages();
        site.api.once(third().never_answers().held(&never));
        if !is_canceled {
            site.setting = AfterInterruption::Fail;
        }
        let (engine, signals) = (site.engine_of_small_parts(), Signals::default());
        let story = async {
            never.asked().await;
            while !site.stored().iter().any(|name| name.starts_with("one.tar.gz#")) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if is_canceled { signals.canceled.cancel() } else { signals.stop.cancel() }
        };
        let both = async { tokio::join!(engine.run("one", "u", signals.clone()), story) };
        let Ok((ended, ())) = tokio::time::timeout(LONG, both).await else {
            panic!("it has asked for {:?}", site.api.asked());
        };
        assert_eq!(ended.unwrap().unwrap().phase(), BackupPhase::Failed);
        assert_eq!(site.stored(), if is_canceled { &LOG[..0] } else { &LOG[..] });
    }
}

/// Two runs died, and nobody knows of what the second one had just begun.
#[tokio::test]
async fn what_dead_runs_began_is_gone_when_the_backup_is_stored_and_what_is_not_theirs_stays() {
    let never = Hold::new();
    let (site, _standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let folder = site.folder.path().join("bucket/backups");
    std::fs::write(folder.join("one/one.tar.gz#7"), "of the second").unwrap();
    std::fs::create_dir_all(folder.join("two")).unwrap();
    let others = folder.join("two/two.tar.gz#7");
    std::fs::write(&others, "of another backup").unwrap();
    site.api.once(third().answers(list("5", &[large("c")])));
    site.recovers(BackupPhase::Completed).await;
    // It is another one's.
    std::fs::remove_file(&others).unwrap();
    site.holds(&["a", "b", "c"]);
}

/// It was paused for so long that another one has its backup, and ends when it wakes.
#[tokio::test]
async fn an_old_run_that_wakes_and_gives_up_leaves_alone_what_the_next_one_goes_on_with() {
    let (asleep, going_on) = (Hold::new(), Hold::new());
    let (site, _standing) = three_pages();
    site.api.once(third().never_answers().held(&asleep));
    let (old, next) = (site.engine_of_small_parts(), site.engine_of_small_parts());
    let (signals, over) = (Signals::default(), CancellationToken::new());
    let wakes = async {
        let _ = old.run("one", "u", signals.clone()).await;
        over.cancel();
    };
    let takes_over = async {
        asleep.asked().await;
        site.has(CHECKPOINT).await;
        site.api.once(third().answers(list("5", &[large("c")])).held(&going_on));
        next.recover("one", "u", Signals::default(), |_| {}).await.unwrap().unwrap()
    };
    let story = async {
        going_on.asked().await;
        signals.deleted.cancel();
        over.cancelled().await;
        going_on.let_go();
    };
    let all = async { tokio::join!(wakes, takes_over, story) };
    let ((), ended, ()) = tokio::time::timeout(LONG, all).await.unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed);
    site.holds(&["a", "b", "c"]);
}
