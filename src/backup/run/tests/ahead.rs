//! What is read of the folder while the Backup is about to begin. The clock is paused: no run here
//! comes so far that it has workers.

use super::*;

/// Its beginning takes as long as `lasts`, and is written when this is in the folder. Gives why the
/// backup failed.
async fn fails_beside(site: &Site, lasts: Duration, name: &str, content: &str) -> String {
    let begun = Hold::new();
    site.api.next(begins().held(&begun)).next(ends_in("Failed"));
    let story = async {
        begun.asked().await;
        // The clock moves on when everything waits: by then the folder was read.
        tokio::time::sleep(lasts).await;
        let bucket = site.folder.path().join("bucket");
        assert!(bucket.exists(), "nobody has opened the location");
        let folder = bucket.join("backups/one");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), content).unwrap();
        begun.let_go();
    };
    let (ran, ()) = tokio::join!(site.run(Signals::default()), story);
    assert_eq!(ran.unwrap().phase(), BackupPhase::Failed);
    // It is of another one, and stays as it is.
    assert_eq!(site.stored(), [name]);
    assert_eq!(
        std::fs::read_to_string(site.folder.path().join("bucket/backups/one").join(name)).unwrap(),
        content
    );
    site.written()[1].1.as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_was_read_too_long_ago_is_read_again_before_it_is_claimed() {
    let why = fails_beside(&Site::new(), 2 * SEEN_LASTS, "one.tar.gz", "of a Velero").await;
    assert!(why.contains("nobody can tell whose they are"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_somebody_wrote_after_the_folder_was_read_stands() {
    let claim = json!({"cluster": "elsewhere", "namespace": "velero", "backup": "b", "run": "r"}).to_string();
    let why = fails_beside(&Site::new(), SEEN_LASTS / 2, "berth-run.json", &claim).await;
    assert!(why.contains("is taken"), "{why}");
}
