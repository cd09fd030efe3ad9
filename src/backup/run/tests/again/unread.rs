//! Locations that cannot be opened for a moment, before the folder is claimed and when the backup
//! is taken up.

use super::*;

const SECRET: &str = "/api/v1/namespaces/velero/secrets/cloud";

/// A location in a bucket, which nobody asks for anything before its Secret is read.
fn in_a_bucket() -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
        "metadata": {"name": "default", "namespace": "velero"},
        "spec": {
            "provider": "aws", "config": {"region": "r"}, "objectStorage": {"bucket": "bucket"},
            "credential": {"name": "cloud", "key": "keys"},
        },
    })
}

/// Nothing is stored by then, and nothing claimed.
#[tokio::test]
async fn a_first_run_to_which_the_api_server_does_not_give_the_secret_leaves_the_backup_to_the_next() {
    for (setting, code, phase) in [
        (AfterInterruption::Resume, 503, BackupPhase::InProgress),
        (AfterInterruption::Restart, 503, BackupPhase::InProgress),
        (AfterInterruption::Fail, 503, BackupPhase::Failed),
        // It would be refused to the next run, too.
        (AfterInterruption::Resume, 403, BackupPhase::Failed),
    ] {
        let (mut site, standing) = three_pages();
        site.setting = setting;
        // Whoever asks later finds the location in the folder.
        site.api.once(get(LOCATION).answers(in_a_bucket())).once(get(SECRET).refuses(code));
        let engine = site.engine_of_small_parts();
        let ran = tokio::time::timeout(LONG, engine.run("one", "u", Signals::default())).await.unwrap();
        assert_eq!(ran.unwrap().unwrap().phase(), phase, "{setting:?} {code}");
        assert_eq!(site.stored(), [""; 0], "{setting:?} {code}");
        if phase == BackupPhase::Failed {
            let reason = standing.now()["status"]["failureReason"].clone();
            assert!(reason.as_str().unwrap().contains("failed to read Secret cloud"), "{reason}");
            continue;
        }
        site.api.once(third().answers(list("5", &[large("c")])));
        let (told, _) = site.recovers(BackupPhase::Completed).await;
        assert!(told.contains("it begins anew (run 2 of 3)"), "{told}");
        site.holds(&["a", "b", "c"]);
    }
}

/// Its volume is unmounted when the next leader has looked at it, and mounted again when that one
/// looks once more.
#[tokio::test]
async fn a_folder_that_is_gone_for_a_moment_while_its_backup_is_taken_up_costs_no_checkpoint() {
    let (site, _standing) = killed_with_a_checkpoint().await;
    let (bucket, away) = (site.folder.path().join("bucket"), site.folder.path().join("away"));
    // One that was validated is not created.
    let mut validated = location(site.folder.path());
    validated["status"] = json!({"phase": "Available", "lastValidationTime": "2026-01-01T00:00:00Z"});
    let (from, to, again) = (bucket.clone(), away.clone(), Hold::new());
    site.api
        .once(get(LOCATION).answers(validated.clone()))
        .once(get(LOCATION).answers(validated).held(&again))
        .once(get("/api/v1/namespaces/kube-system").answers_with(move |_| {
            std::fs::rename(&from, &to).unwrap();
            json!({"metadata": {"name": "kube-system", "uid": "here"}})
        }))
        .once(third().answers(list("5", &[large("c")])));
    // The pause before the second look takes no time.
    tokio::time::pause();
    let story = async {
        again.asked().await;
        std::fs::rename(&away, &bucket).unwrap();
        tokio::time::resume();
        again.let_go();
    };
    let ((told, asked), ()) = tokio::join!(site.recovers(BackupPhase::Completed), story);
    assert!(told.contains("it goes on from a checkpoint") && !lists_anew(&asked), "{told}");
    site.holds(&["a", "b", "c"]);
}
