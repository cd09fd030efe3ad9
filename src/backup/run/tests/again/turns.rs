//! What dead runs have stored is read for one backup at a time.

use std::pin::pin;

use tokio::time::timeout;

use super::*;

/// Shorter than the longest turn of anybody.
const WHILE: Duration = Duration::from_secs(60);

/// What lies in another one's folder may be what kills us.
#[tokio::test]
async fn nothing_is_read_and_no_run_counted_while_another_backup_is_taken_up() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    site.api.once(third().answers(list("5", &[large("c")])));
    let location = format!("GET {LOCATION}");
    let looked = || site.api.asked().iter().filter(|asked| **asked == location).count();
    let before = looked();
    let engine = site.engine_of_small_parts();
    let mut recovering = pin!(engine.recover("one", "u", Signals::default(), |_| {}));
    tokio::time::pause();
    let another = engine.turns.next().await;
    assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits before it looks");
    assert_eq!(looked(), before);
    drop(another);
    // It is before us in the line.
    let another = tokio::select! {
        biased;
        ended = &mut recovering => panic!("it has ended: {ended:?}"),
        another = engine.turns.next() => another,
    };
    assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits before it counts its run");
    assert!(looked() > before);
    assert_eq!(standing.annotation(keys::RUNS), "1");
    drop(another);
    tokio::time::resume();
    let ended = timeout(LONG, recovering).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed, "{:?}", ended.status);
    assert_eq!(standing.annotation(keys::RUNS), "2");
    site.holds(&["a", "b", "c"]);
}
