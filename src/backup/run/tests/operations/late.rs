//! Movements that do not end, and leaders that do.

use std::task::Poll;

use super::*;

/// Its data mover hangs, or there is none.
#[tokio::test]
async fn a_movement_that_is_not_over_in_time_is_canceled_and_an_error_of_the_backup() {
    let moving = Moving::new(&["data", "hangs"], AfterInterruption::Resume);
    moving.backup.lock()["spec"]["itemOperationTimeout"] = json!("1h");
    let engine = moving.waits().await;
    moving.says("data", "Completed");
    let hour_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
    moving.uploads.lock().get_mut("hangs").unwrap()["metadata"]["creationTimestamp"] =
        json!(hour_ago.to_string());
    assert!(matches!(moving.attend(&engine).await, Attended::Written(_)));
    assert_eq!(moving.phase(), "FinalizingPartiallyFailed");
    let uploads = moving.uploads.lock().clone();
    assert_eq!(
        (&uploads["data"]["spec"]["cancel"], &uploads["hangs"]["spec"]["cancel"]),
        (&Value::Null, &json!(true))
    );
    moving.attend(&engine).await;
    assert_eq!(
        (moving.phase().as_str(), moving.counts()),
        ("PartiallyFailed", [json!(2), json!(1), json!(1)])
    );
    let told = moving.site.told();
    let words =
        "claim hangs was not moved (DataUpload hangs): it was not over within spec.itemOperationTimeout";
    assert!(told.contains(words), "{told}");
}

/// Its archive is whole by then, and no reader sees the backup.
#[tokio::test]
async fn what_a_leader_was_completing_when_it_was_killed_is_completed_by_the_next_one() {
    let moving = Moving::new(&["data"], AfterInterruption::Resume);
    let engine = moving.waits().await;
    moving.says("data", "Completed");
    moving.attend(&engine).await;
    assert_eq!(moving.phase(), "Finalizing");
    let archive = moving.site.folder.path().join("bucket/backups/one/one.tar.gz");
    assert!(!archive.exists());
    // Asked whenever the leader has done something.
    let is_whole = std::future::poll_fn(|_| if archive.exists() { Poll::Ready(()) } else { Poll::Pending });
    tokio::select! {
        biased;
        () = is_whole => {}
        ended = engine.attend("one", "u", Signals::default()) => panic!("it has ended: {ended:?}"),
    }
    drop(engine);
    assert_eq!(moving.phase(), "Finalizing");
    assert!(!moving.site.stored().contains(&METADATA.to_owned()));
    let next = moving.engine();
    assert!(matches!(moving.attend(&next).await, Attended::Written(_)));
    assert_eq!(moving.phase(), "Completed", "{}", moving.site.told());
    let archive = moving.archive();
    assert_eq!(archive["resources/configmaps/namespaces/app/a.json"], map("a"));
    let path = "resources/datauploads.velero.io/namespaces/velero/data.json";
    assert_eq!(archive[path]["status"]["snapshotID"], "id-of-data");
    let maps = moving.site.api.asked().iter().filter(|asked| asked.contains(MAPS)).count();
    assert_eq!(maps, 1, "{:?}", moving.site.api.asked());
}
