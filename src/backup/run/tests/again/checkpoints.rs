//! Which checkpoints a run continues from, and when it reads them.

use berth_core::selection::{ResourceType, Selection, TypeSelection};
use bytes::Bytes;

use super::*;
use crate::backup::checkpoint::{BackupScope, Checkpoint};
use crate::backup::index::ArchiveIndex;
use crate::backup::ledger::Balance;

#[tokio::test]
async fn a_checkpoint_that_nobody_can_go_on_from_is_as_good_as_none() {
    let never = Hold::new();
    let (site, _standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let path = site.folder.path().join("bucket/backups/one").join(CHECKPOINT);
    let mut content = std::fs::read(&path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    std::fs::write(&path, content).unwrap();
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it begins anew"), "{told}");
    site.holds(&["a", "b", "c"]);
}

/// As the run before has written it, which was killed while it published.
#[tokio::test]
async fn no_index_of_an_earlier_run_lies_beside_an_archive_that_has_none() {
    let never = Hold::new();
    let (site, _standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let folder = site.folder.path().join("bucket/backups/one");
    let mut kept = Checkpoint::read(std::fs::read(folder.join(CHECKPOINT)).unwrap().into()).unwrap();
    kept.balance.index = ArchiveIndex::void();
    std::fs::write(folder.join(CHECKPOINT), Bytes::from(kept.content().unwrap())).unwrap();
    std::fs::write(folder.join("one-index.json.gz"), "old").unwrap();
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(!told.contains("begins anew"), "{told}");
    assert_eq!(site.items().0.len(), 3);
    let without: Vec<&str> = WHOLE.into_iter().filter(|name| *name != "one-index.json.gz").collect();
    assert_eq!(site.stored(), without);
}

/// By somebody who may write to the bucket, and to nothing in the cluster: as a run of a Backup
/// writes it that takes Secrets of everybody.
fn forge(site: &Site) {
    let path = site.folder.path().join("bucket/backups/one").join(CHECKPOINT);
    let mut forged = Checkpoint::read(std::fs::read(&path).unwrap().into()).unwrap();
    let secrets = ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: "Secret".into(),
        resource: "secrets".into(),
        singular: "secret".into(),
        short_names: Vec::new(),
        namespaced: true,
    };
    let selection = Selection::of([("secrets".to_owned(), TypeSelection::Listed)], true);
    let everybody = ["app", "kube-system"].map(str::to_owned).into();
    let policy = forged.scope.open().unwrap().policy().to_owned();
    forged.scope = Packed::new(&BackupScope::of(&[secrets], &selection, &everybody, &policy)).unwrap();
    forged.balance = Balance::default();
    std::fs::write(&path, Bytes::from(forged.content().unwrap())).unwrap();
}

#[tokio::test]
async fn a_checkpoint_that_is_forged_does_not_say_what_is_read() {
    for is_on_record in [true, false] {
        let never = Hold::new();
        let (site, standing) = three_pages();
        site.api.once(third().never_answers().held(&never));
        let story = async {
            never.asked().await;
            site.has(CHECKPOINT).await;
        };
        site.is_killed_after(story).await;
        let before = standing.annotation(keys::SCOPE);
        assert!(before.is_string(), "it stands there as long as the backup runs");
        if is_on_record {
            forge(&site);
        } else {
            // One that began where no checkpoints are written has nothing that says which of them
            // is its own.
            standing.0.lock()["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::SCOPE);
        }
        site.api.once(third().answers(list("5", &[large("c")])));
        let (told, asked) = site.recovers(BackupPhase::Completed).await;
        assert!(told.contains("it begins anew (run 2 of 3)") && lists_anew(&asked), "{told}");
        assert!(!asked.iter().any(|asked| asked.contains("secrets")), "{asked:?}");
        site.holds(&["a", "b", "c"]);
        assert_eq!(standing.annotation(keys::SCOPE), Value::Null, "it is of no use any more");
    }
}

/// What is frozen when one begins anew counts from then on.
#[tokio::test]
async fn one_that_began_anew_is_gone_on_with_by_its_own_checkpoint() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let first = standing.annotation(keys::SCOPE);
    standing.0.lock()["metadata"]["annotations"][keys::SCOPE] = json!("of another scope");
    let again = Hold::new();
    site.api.once(third().never_answers().held(&again));
    let engine = site.engine_of_small_parts();
    let story = async {
        again.asked().await;
        site.has(CHECKPOINT).await;
    };
    tokio::select! {
        ended = engine.recover("one", "u", Signals::default(), |_| {}) => panic!("it has ended: {ended:?}"),
        () = story => {}
    }
    let second = standing.annotation(keys::SCOPE);
    assert!(second.is_string() && second != "of another scope" && first.is_string());
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint") && told.contains("(run 3 of 3)"), "{told}");
    assert!(!lists_anew(&asked), "{asked:?}");
    site.holds(&["a", "b", "c"]);
}

/// It may be what kills whoever reads it: so no more than its first line is looked at before the
/// run is counted.
#[tokio::test]
async fn what_a_checkpoint_holds_is_read_when_the_run_that_reads_it_is_counted() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let path = site.folder.path().join("bucket/backups/one").join(CHECKPOINT);
    let whole = std::fs::read(&path).unwrap();
    let line = memchr::memchr(b'\n', &whole).unwrap();
    std::fs::write(&path, &whole[..=line]).unwrap();
    // All of it is there again once the run is counted. Two writes come before there is progress:
    // it is taken over, and counted.
    for _ in 0..2 {
        let (standing, path, whole) = (standing.clone(), path.clone(), whole.clone());
        site.api.once(patch(ONE).answers_with(move |sent| {
            if sent["metadata"]["annotations"][keys::RUNS].is_string() {
                std::fs::write(&path, &whole).unwrap();
            }
            standing.write(sent)
        }));
    }
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint") && !lists_anew(&asked), "{told}");
    site.holds(&["a", "b", "c"]);
}

#[tokio::test]
async fn a_checkpoint_that_ends_each_of_its_runs_is_not_read_again() {
    let never = Hold::new();
    let (site, standing) = three_pages();
    site.api.once(third().never_answers().held(&never));
    let story = async {
        never.asked().await;
        site.has(CHECKPOINT).await;
    };
    site.is_killed_after(story).await;
    let path = site.folder.path().join("bucket/backups/one").join(CHECKPOINT);
    let whole = std::fs::read(&path).unwrap();
    // The line is as it was, and nothing behind it can be read.
    let line = memchr::memchr(b'\n', &whole).unwrap();
    let odd = [&whole[..=line], &[0xff; 64][..]].concat();
    standing.0.lock()["metadata"]["annotations"][keys::RUNS] = json!("2");
    std::fs::write(&path, &odd).unwrap();
    let counted = Hold::new();
    site.api.once(third().never_answers().held(&counted));
    let engine = site.engine_of_small_parts();
    tokio::select! {
        ended = engine.recover("one", "u", Signals::default(), |_| {}) => panic!("it has ended: {ended:?}"),
        () = counted.asked() => {}
    }
    assert_eq!(standing.runs(), 3);
    std::fs::write(&path, &odd).unwrap();
    site.recovers(BackupPhase::Failed).await;
    let reason = standing.now()["status"]["failureReason"].clone();
    assert!(reason.as_str().unwrap().starts_with("each of its runs ended"), "{reason}");
    assert_eq!(site.stored(), LOG);
}
