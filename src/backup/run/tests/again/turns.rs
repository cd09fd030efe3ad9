//! What dead runs have stored is looked at for one backup of a location at a time, and read for one
//! at a time.

use std::pin::pin;

use tokio::time::timeout;

use super::super::dead::{ALL, Dead};
use super::*;

/// Shorter than the longest turn of anybody.
const WHILE: Duration = Duration::from_secs(60);

/// How often its location was looked at.
fn looked(site: &Site) -> usize {
    let location = format!("GET {LOCATION}");
    site.api.asked().iter().filter(|asked| **asked == location).count()
}

/// What lies in another one's folder may be what kills us.
#[tokio::test]
async fn nothing_is_read_and_no_run_counted_while_another_backup_is_taken_up() {
    let (site, standing) = killed_with_a_checkpoint().await;
    site.api.once(third().answers(list("5", &[large("c")])));
    let before = looked(&site);
    let engine = site.engine_of_small_parts();
    let mut recovering = pin!(engine.recover("one", "u", Signals::default(), |_| {}));
    tokio::time::pause();
    let another = engine.turns.inspect("default").await;
    assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits before it looks");
    assert_eq!(looked(&site), before);
    drop(another);
    // One that is read now is in the way wherever it lies.
    let another = engine.turns.read("elsewhere").await;
    assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits before it counts its run");
    assert!(looked(&site) > before);
    assert_eq!(standing.runs(), 1);
    drop(another);
    tokio::time::resume();
    let ended = timeout(LONG, recovering).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed, "{:?}", ended.status);
    assert_eq!(standing.runs(), 2);
    site.holds(&["a", "b", "c"]);
}

#[tokio::test]
async fn a_location_at_which_another_backup_waits_for_its_store_holds_up_nobody_elsewhere() {
    let (site, standing) = killed_with_a_checkpoint().await;
    site.api.once(third().answers(list("5", &[large("c")])));
    let engine = site.engine_of_small_parts();
    let _away = engine.turns.inspect("away").await;
    let recovering = engine.recover("one", "u", Signals::default(), |_| {});
    let ended = timeout(LONG, recovering).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase(), BackupPhase::Completed, "{:?}", ended.status);
    assert_eq!(standing.runs(), 2);
    site.holds(&["a", "b", "c"]);
}

/// Before it looks, and before it reads: nothing of it is left, and no further run is counted.
#[tokio::test]
async fn a_cancel_is_heard_while_a_recovery_waits_for_its_turn() {
    for has_looked in [false, true] {
        let (site, standing) = killed_with_a_checkpoint().await;
        let (engine, signals, before) = (site.engine_of_small_parts(), Signals::default(), looked(&site));
        let _another = if has_looked {
            engine.turns.read("elsewhere").await
        } else {
            engine.turns.inspect("default").await
        };
        let mut recovering = pin!(engine.recover("one", "u", signals.clone(), |_| {}));
        tokio::time::pause();
        assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits for its turn");
        tokio::time::resume();
        assert_eq!(looked(&site) > before, has_looked);
        signals.canceled.cancel();
        let ended = timeout(LONG, recovering).await.unwrap().unwrap().unwrap();
        assert_eq!(ended.phase(), BackupPhase::Failed);
        assert_eq!(standing.now()["status"]["failureReason"], CANCELED);
        assert_eq!(standing.runs(), 1);
        assert_eq!(site.stored(), [""; 0], "a canceled backup leaves nothing");
    }
}

/// Its last file is missing, and whoever takes it up writes that.
#[tokio::test(start_paused = true)]
async fn one_that_is_stored_waits_for_its_turn_and_is_published_though_it_is_canceled_meanwhile() {
    let dead = Dead::new(&ALL).claimed("here", "u");
    let mut stands = backup("7", "InProgress");
    stands["metadata"]["annotations"] = json!({keys::RUN: "dead", keys::PUBLISHING: "dead"});
    stands["status"]["completionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let found = stands.clone();
    let taken = patch(ONE).answers_with(move |sent| {
        let mut stands = found.clone();
        merge(&mut stands, sent);
        stands
    });
    dead.api.next(get(ONE).answers(stands)).next(taken).next(ends_in("Completed"));
    let (engine, signals) = (engine(&dead.api, &dead.folder, AfterInterruption::Resume), Signals::default());
    let another = engine.turns.inspect("default").await;
    let mut recovering = pin!(engine.recover("one", "u", signals.clone(), |_| {}));
    signals.canceled.cancel();
    assert!(timeout(WHILE, &mut recovering).await.is_err(), "it waits for its turn");
    drop(another);
    recovering.await.unwrap();
    assert_eq!(dead.api.writes()[1].body["status"]["phase"], "Completed");
    assert!(stored(dead.folder.path()).contains(&METADATA.to_owned()));
}
