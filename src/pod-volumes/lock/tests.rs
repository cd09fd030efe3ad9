#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use rustic_core::repofile::MasterKey;

use super::*;

fn sealer() -> Sealer {
    Sealer::new(&MasterKey::new()).unwrap()
}

fn store() -> Store {
    Store::new(Arc::new(InMemory::new()), Path::from("restic/n"))
}

async fn put(store: &Store, sealer: &Sealer, content: &Content, name: char) {
    let sealed = sealer.seal(&serde_json::to_vec(content).unwrap()).unwrap();
    store.write(&store.folder(FOLDER).join(name.to_string().repeat(64)), sealed).await.unwrap();
}

fn content(exclusive: bool, username: &str, age: SignedDuration) -> Content {
    let time = Timestamp::now() - age;
    Content { time, exclusive, hostname: "h".into(), username: username.into(), pid: 1 }
}

#[tokio::test]
async fn an_exclusive_lock_is_respected_however_old_and_others_are_not_waited_for() {
    let (store, sealer, watched) = (store(), sealer(), Watched::default());
    put(&store, &sealer, &content(false, "root", SignedDuration::ZERO), 'a').await;
    Lock::take(&store, &sealer, "n1", &watched).await.unwrap().release().await;
    assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
    put(&store, &sealer, &content(true, "root", SignedDuration::from_hours(3)), 'b').await;
    let Err(fault) = Lock::take(&store, &sealer, "n1", &watched).await else { unreachable!("it is locked") };
    let text = fault.to_string();
    assert!(text.contains("locked exclusively by root@h, process 1") && text.contains("unlock"), "{text}");
    assert_eq!(store.list(FOLDER).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_a_dead_process_of_berth_left_goes() {
    let (store, sealer) = (store(), sealer());
    put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(31)), 'a').await;
    put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(29)), 'b').await;
    put(&store, &sealer, &content(false, "root", SignedDuration::from_mins(31)), 'c').await;
    // Of a clock that was a day early.
    put(&store, &sealer, &content(true, USER, SignedDuration::from_hours(-24)), 'd').await;
    Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap().release().await;
    let left: Vec<String> = store.list(FOLDER).await.unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, ["b".repeat(64), "c".repeat(64)]);
}

#[tokio::test]
async fn the_exclusive_lock_is_for_one_alone_and_nobody_begins_beside_it() {
    let (store, sealer, watched) = (store(), sealer(), Watched::default());
    let names = async || store.list(FOLDER).await.unwrap().len();
    let shared = Lock::take(&store, &sealer, "n1", &watched).await.unwrap();
    let refused = Lock::take_alone(&store, &sealer, "n2", &watched).await.err().unwrap();
    assert!(matches!(refused, Fault::InUse { .. }), "{refused}");
    assert_eq!(names().await, 1, "nothing of the one that was refused is left");
    shared.release().await;
    let alone = Lock::take_alone(&store, &sealer, "n2", &watched).await.unwrap();
    for refused in [
        Lock::take(&store, &sealer, "n1", &watched).await.err().unwrap(),
        Lock::take_alone(&store, &sealer, "n1", &watched).await.err().unwrap(),
        Lock::look(&store, &sealer).await.unwrap_err(),
    ] {
        assert!(matches!(refused, Fault::Locked { is_own: true, .. }), "{refused}");
    }
    alone.release().await;
    assert_eq!(names().await, 0);
    // Of a process that was killed it is nobody's after a while; of others it is not berth's to
    // remove.
    put(&store, &sealer, &content(true, USER, SignedDuration::from_mins(31)), 'a').await;
    Lock::take_alone(&store, &sealer, "n1", &watched).await.unwrap().release().await;
    put(&store, &sealer, &content(false, "root", SignedDuration::from_hours(31)), 'b').await;
    assert!(matches!(Lock::take_alone(&store, &sealer, "n1", &watched).await, Err(Fault::InUse { .. })));
    assert_eq!(names().await, 1);
}

#[tokio::test]
async fn who_only_reads_leaves_all_locks_alone() {
    let (store, sealer) = (store(), sealer());
    put(&store, &sealer, &content(false, USER, SignedDuration::from_mins(31)), 'a').await;
    Lock::look(&store, &sealer).await.unwrap();
    assert_eq!(store.list(FOLDER).await.unwrap().len(), 1);
    put(&store, &sealer, &content(true, "root", SignedDuration::ZERO), 'b').await;
    assert!(matches!(Lock::look(&store, &sealer).await, Err(Fault::Locked { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_released_while_it_is_written_anew_leaves_none() {
    let slow = ThrottleConfig { wait_delete_per_call: Duration::from_secs(10), ..ThrottleConfig::default() };
    let objects = ThrottledStore::new(InMemory::new(), slow);
    let (store, sealer) = (Store::new(Arc::new(objects), Path::from("restic/n")), sealer());
    let lock = Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap();
    // The new one is written, and the old one is being removed.
    sleep(RENEWED + Duration::from_secs(5)).await;
    lock.release().await;
    assert!(store.list(FOLDER).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lock_that_is_gone_or_old_is_not_held() {
    let (store, sealer) = (store(), sealer());
    let lock = Lock::take(&store, &sealer, "n1", &Watched::default()).await.unwrap();
    let guard = lock.guard();
    assert!(guard.is_held().await);
    let age = guard.current.lock().at;
    // As after a sleep of the machine, in which the other clock stood still.
    guard.current.lock().at = Age { time: age.time - SignedDuration::from_mins(23), ..age };
    assert!(!guard.is_held().await);
    guard.current.lock().at = age;
    assert!(guard.is_held().await);
    let path = guard.current.lock().path.clone();
    store.remove(&path).await.unwrap();
    assert!(!guard.is_held().await);
}

#[tokio::test]
async fn a_lock_of_another_key_is_no_lock_to_pass_over() {
    let store = store();
    put(&store, &sealer(), &content(false, "root", SignedDuration::ZERO), 'a').await;
    assert!(matches!(
        Lock::take(&store, &sealer(), "n1", &Watched::default()).await,
        Err(Fault::Lock(name)) if name == "a".repeat(64)
    ));
}
