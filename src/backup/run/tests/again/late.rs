//! Claims that land when nobody waits for them any more, and runs that end before they have written
//! more than theirs.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::PathBuf;

use futures::FutureExt as _;

use super::*;

fn claim_of(site: &Site) -> PathBuf {
    site.folder.path().join("bucket/backups/one/berth-run.json")
}

fn claimed(site: &Site) -> Value {
    serde_json::from_slice(&std::fs::read(claim_of(site)).unwrap()).unwrap()
}

/// When the next run is counted it has looked at the folder, and `happens` does before it writes
/// its claim. Two writes come before there is progress: it is taken over, and counted.
fn when_counted(site: &Site, standing: &Standing, happens: impl Fn() + Clone + Send + Sync + 'static) {
    for _ in 0..2 {
        let (standing, happens) = (standing.clone(), happens.clone());
        site.api.once(patch(ONE).answers_with(move |sent| {
            let written = standing.write(sent);
            if sent["metadata"]["annotations"][keys::RUNS].is_string() {
                happens();
            }
            written
        }));
    }
}

/// Another run of this Backup writes its claim.
fn lands(site: &Site, run: &str) -> impl Fn() + Clone + Send + Sync + 'static + use<> {
    let (path, claim) = (
        claim_of(site),
        json!({"cluster": "here", "namespace": "velero", "backup": "u", "run": run}).to_string(),
    );
    move || {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &claim).unwrap();
    }
}

/// Of two leaders one was paused, after it had taken the Backup over and before its claim was sent.
#[tokio::test]
async fn a_claim_of_an_earlier_run_that_lands_late_does_not_end_the_backup() {
    let (site, standing) = killed_with_a_checkpoint().await;
    when_counted(&site, &standing, lands(&site, "paused"));
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint") && !lists_anew(&asked), "{told}");
    site.holds(&["a", "b", "c"]);
    assert_eq!(claimed(&site)["run"], standing.annotation(keys::RUN));
}

#[tokio::test]
async fn a_first_claim_that_lands_late_does_not_end_the_backup() {
    let (site, standing) = three_pages();
    let begins = standing.clone();
    site.api.once(patch(ONE).answers_with(move |sent| -> Value {
        begins.write(sent);
        resume_unwind(Box::new("killed"))
    }));
    let engine = site.engine_of_small_parts();
    let ran = AssertUnwindSafe(engine.run("one", "u", Signals::default())).catch_unwind();
    assert!(ran.await.is_err(), "it has ended");
    assert!(!claim_of(&site).exists() && standing.now()["status"]["phase"] == "InProgress");
    when_counted(&site, &standing, lands(&site, "dead"));
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, _) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it begins anew (run 2 of 3)"), "{told}");
    site.holds(&["a", "b", "c"]);
    assert_eq!(claimed(&site)["run"], standing.annotation(keys::RUN));
}

/// It is the one that was paused.
#[tokio::test]
async fn a_run_that_finds_the_claim_of_a_later_one_leaves_it_everything() {
    let (site, standing) = killed_with_a_checkpoint().await;
    let (taken, lands) = (standing.clone(), lands(&site, "later"));
    when_counted(&site, &standing, move || {
        taken.0.lock()["metadata"]["annotations"][keys::RUN] = json!("later");
        lands();
    });
    let checkpoint = || std::fs::read(claim_of(&site).with_file_name(CHECKPOINT)).unwrap();
    let before = checkpoint();
    let ended = site.engine_of_small_parts().recover("one", "u", Signals::default(), |_| {}).await;
    assert!(matches!(ended, Err(WriteError::Taken)), "{ended:?}");
    assert_eq!(claimed(&site)["run"], "later");
    assert!(checkpoint() == before && standing.now()["status"]["phase"] == "InProgress");
}

#[tokio::test]
async fn a_run_that_is_gone_between_its_claim_and_its_first_checkpoint_costs_nothing_of_what_is_stored() {
    let (site, standing) = killed_with_a_checkpoint().await;
    let first = claimed(&site)["run"].clone();
    let engine = site.engine_of_small_parts();
    // What it tells is the last that it does before it writes its checkpoint, and a write that has
    // begun would land after its end.
    let dies = |_: &str| resume_unwind(Box::new("killed"));
    let recovered = AssertUnwindSafe(engine.recover("one", "u", Signals::default(), dies)).catch_unwind();
    assert!(recovered.await.is_err(), "it has ended");
    let second = claimed(&site);
    assert_eq!((&second["run"], &second["before"]), (&standing.annotation(keys::RUN), &first));
    site.api.once(third().answers(list("5", &[large("c")])));
    let (told, asked) = site.recovers(BackupPhase::Completed).await;
    assert!(told.contains("it goes on from a checkpoint") && told.contains("(run 3 of 3)"), "{told}");
    assert!(!lists_anew(&asked), "{asked:?}");
    site.holds(&["a", "b", "c"]);
}
