//! What a run that died may have left in the folder, step by step, and what becomes of it.

use super::*;

/// The folder, and the API server of whoever finds it.
pub(super) struct Dead {
    pub(super) api: Scripted,
    pub(super) folder: TempDir,
}

impl Dead {
    pub(super) fn new(files: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("bucket/backups/one");
        std::fs::create_dir_all(&place).unwrap();
        for name in files {
            std::fs::write(place.join(name), *name).unwrap();
        }
        let api = Scripted::new().always(get(LOCATION).answers(location(folder.path()))).always(cluster());
        takes_no_data(&api);
        Self { api, folder }
    }

    fn put(&self, name: &str, content: &Value) {
        let place = self.folder.path().join("bucket/backups/one");
        std::fs::write(place.join(name), content.to_string()).unwrap();
    }

    pub(super) fn claimed(self, cluster: &str, backup: &str) -> Self {
        let claim = json!({"cluster": cluster, "namespace": "velero", "backup": backup, "run": "dead"});
        self.put("berth-run.json", &claim);
        self
    }

    /// The phase that was written.
    async fn settled(&self, publishing: bool) -> Value {
        let at = if publishing { json!("2026-01-01T00:00:00Z") } else { Value::Null };
        self.settled_as(publishing, at).await
    }

    async fn settled_as(&self, publishing: bool, completed_at: Value) -> Value {
        let mut stands = backup("7", "InProgress");
        stands["metadata"]["annotations"] = json!({keys::RUN: "dead"});
        stands["status"]["errors"] = json!(1);
        if publishing {
            stands["metadata"]["annotations"][keys::PUBLISHING] = json!("dead");
            stands["status"]["completionTimestamp"] = completed_at;
        }
        let found = stands.clone();
        self.api
            .next(get(ONE).answers(stands))
            .next(patch(ONE).answers_with(move |sent| {
                let mut stands = found.clone();
                stands["metadata"]["annotations"][keys::RUN] =
                    sent["metadata"]["annotations"][keys::RUN].clone();
                stands
            }))
            .next(ends_in("Failed"));
        let engine = engine(&self.api, &self.folder, AfterInterruption::Fail);
        engine.recover("one", "u", Signals::default(), |_| {}).await.unwrap();
        self.api.writes()[1].body["status"]["phase"].clone()
    }

    /// All files with what is in them.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let place = self.folder.path().join("bucket/backups/one");
        let with_content = |name: String| {
            let content = std::fs::read(place.join(&name)).unwrap();
            (name, content)
        };
        stored(self.folder.path()).into_iter().map(with_content).collect()
    }

    /// Whether the write that ended it leaves no expiration, by which a Velero beside berth would
    /// remove the folder.
    fn expires_never(&self) -> bool {
        self.api.writes()[1].body["status"].get("expiration").is_some_and(Value::is_null)
    }
}

pub(super) const ALL: [&str; 8] = [
    "one-itemoperations.json.gz",
    "one-logs.gz",
    "one-podvolumebackups.json.gz",
    "one-resource-list.json.gz",
    "one-results.gz",
    "one-volumeinfo.json.gz",
    "one-volumesnapshots.json.gz",
    "one.tar.gz",
];

#[tokio::test(start_paused = true)]
async fn a_run_that_died_before_it_might_publish_ends_failed_and_only_its_log_is_left() {
    // With leave to publish, and not whole: nobody got that from us.
    for (files, publishing) in [(&ALL[..0], false), (&ALL[7..], false), (&ALL[..], false), (&ALL[1..], true)]
    {
        let dead = Dead::new(files).claimed("here", "u");
        assert_eq!(dead.settled(publishing).await, "Failed", "{files:?}");
        assert_eq!(stored(dead.folder.path()), LOG, "{files:?}");
        assert!(!dead.expires_never(), "what is left is its own, and goes when it expires");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_died_when_it_might_publish_is_published_by_whoever_takes_it_up() {
    let dead = Dead::new(&ALL).claimed("here", "u");
    assert_eq!(dead.settled(true).await, "PartiallyFailed");
    let metadata = std::fs::read(dead.folder.path().join("bucket/backups/one/velero-backup.json")).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata["metadata"]["uid"], "u");
    assert_eq!(
        (&metadata["status"]["phase"], &metadata["status"]["errors"]),
        (&json!("PartiallyFailed"), &json!(1))
    );
    // The dead one has written it after all.
    let dead = Dead::new(&ALL).claimed("here", "u");
    dead.put(METADATA, &json!({"metadata": {"uid": "u"}, "status": {"phase": "Completed"}}));
    assert_eq!(dead.settled(true).await, "Completed");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_run_did_not_write_is_neither_published_nor_removed() {
    for publishing in [false, true] {
        for (cluster, backup) in [("elsewhere", "u"), ("here", "another"), ("", "")] {
            let dead = Dead::new(&ALL);
            let dead = if cluster.is_empty() { dead } else { dead.claimed(cluster, backup) };
            let before = dead.files();
            assert_eq!(dead.settled(publishing).await, "Failed");
            assert!(dead.expires_never(), "{cluster} {backup}");
            assert_eq!(dead.files(), before);
        }
        // What no status has is not taken over into one.
        let dead = Dead::new(&ALL).claimed("here", "u");
        let status = json!({"phase": "Completed", "progress": {"totalItems": ["what", "not"]}});
        dead.put(METADATA, &json!({"metadata": {"uid": "u"}, "status": status}));
        assert_eq!(dead.settled(publishing).await, "Failed");
        assert!(dead.expires_never());
        // Another one's, or what somebody wrote there by whom it would run for ever.
        for (uid, phase) in [("of another", "Completed"), ("u", "InProgress"), ("u", "Queued")] {
            let dead = Dead::new(&ALL).claimed("here", "u");
            dead.put(METADATA, &json!({"metadata": {"uid": uid}, "status": {"phase": phase}}));
            let before = dead.files();
            assert_eq!(dead.settled(publishing).await, "Failed");
            assert!(dead.expires_never(), "{uid} {phase}");
            assert_eq!(dead.files(), before);
        }
    }
}

/// Velero stores `velero-backup.json`, with the end of the backup in it, before the archive.
#[tokio::test(start_paused = true)]
async fn a_backup_that_is_published_without_its_archive_has_failed_and_stays_as_it_is() {
    for is_claimed in [false, true] {
        let dead = Dead::new(&ALL[..7]);
        let dead = if is_claimed { dead.claimed("here", "u") } else { dead };
        dead.put(METADATA, &json!({"metadata": {"uid": "u"}, "status": {"phase": "Completed"}}));
        let before = stored(dead.folder.path());
        assert_eq!(dead.settled(is_claimed).await, "Failed");
        let why = dead.api.writes()[1].body["status"]["failureReason"].clone();
        assert!(why.as_str().is_some_and(|why| why.contains("the archive is not")), "{why}");
        assert_eq!(stored(dead.folder.path()), before);
        assert_eq!(dead.expires_never(), !is_claimed, "without a claim it may be another one's");
    }
}

/// Without policies and webhooks anybody who may patch Backups may write the annotation.
#[tokio::test(start_paused = true)]
async fn leave_to_publish_that_is_forged_publishes_nothing() {
    let dead = Dead::new(&ALL).claimed("here", "u");
    assert_eq!(dead.settled_as(true, Value::Null).await, "Failed");
    assert_eq!(stored(dead.folder.path()), LOG);
}

/// The folder is one and the same for two clusters, and for a Backup that is deleted and made again
/// under its name.
#[tokio::test]
async fn a_folder_that_is_claimed_is_left_as_it_is_unless_its_backup_is_gone() {
    let of =
        |cluster: &str| json!({"cluster": cluster, "namespace": "velero", "backup": "before", "run": "r"});
    let still_there = backup("3", "Failed");
    for (claim, answer, words) in [
        (of("elsewhere"), None, "Backup velero/one with UID before of the cluster with UID elsewhere"),
        (of("here"), Some("before"), "Backup velero/one with UID before of the cluster with UID here"),
        (json!("no claim"), None, "is no claim that this version of berth can read"),
    ] {
        let site = Site::new();
        let place = site.folder.path().join("bucket/backups/one");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("berth-run.json"), claim.to_string()).unwrap();
        std::fs::write(place.join("one-logs.gz"), "theirs").unwrap();
        site.api.next(begins());
        if let Some(uid) = answer {
            let mut found = still_there.clone();
            found["metadata"]["uid"] = json!(uid);
            site.api.next(get(ONE).answers(found));
        }
        site.api.next(ends_in("Failed"));
        assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
        let (_, reason) = &site.written()[1];
        assert!(reason.as_str().unwrap().contains(words), "{reason}");
        assert_eq!(site.stored(), ["berth-run.json", "one-logs.gz"]);
        assert_eq!(std::fs::read_to_string(place.join("one-logs.gz")).unwrap(), "theirs");
    }
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[map("b")])));
    let place = site.folder.path().join("bucket/backups/one");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("berth-run.json"), of("here").to_string()).unwrap();
    std::fs::write(place.join("one-logs.gz"), "of the one that failed").unwrap();
    // Whoever has that name now is not the one of the claim: it is ours.
    site.api.next(begins()).next(get(ONE).answers(backup("8", "InProgress")));
    site.api.next(gets_leave()).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);
    let claim: Value = serde_json::from_slice(&std::fs::read(place.join("berth-run.json")).unwrap()).unwrap();
    assert_eq!(claim["backup"], "u");
}

#[tokio::test]
async fn files_of_nobody_are_not_written_over() {
    let site = Site::new();
    let place = site.folder.path().join("bucket/backups/one");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("one.tar.gz"), "whose").unwrap();
    site.api.next(begins()).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert!(
        reason.as_str().unwrap().contains("holds files of which nobody can tell whose they are"),
        "{reason}"
    );
    assert_eq!(site.stored(), ["one.tar.gz"]);
    let end = &site.api.writes()[1].body["status"];
    assert!(end.get("expiration").is_some_and(Value::is_null), "{end}");
}

/// A schedule makes such a Backup each night for as long as its store is away.
#[tokio::test]
async fn one_whose_store_fails_at_its_claim_expires_as_any_other_that_failed() {
    let site = Site::new();
    std::fs::create_dir_all(site.folder.path().join("bucket")).unwrap();
    // No folder can be made there.
    std::fs::write(site.folder.path().join("bucket/backups"), "").unwrap();
    site.api.next(begins()).next(ends_in("Failed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Failed);
    let (_, reason) = &site.written()[1];
    assert_eq!(reason.as_str().unwrap().split(':').next(), Some("the storage location failed"), "{reason}");
    let end = &site.api.writes()[1].body["status"];
    assert_eq!(end.get("expiration"), None, "what the beginning wrote stays: {end}");
}

/// A location that cannot be read for a moment says nothing of the archive in it.
#[tokio::test(start_paused = true)]
async fn what_nobody_runs_ends_as_it_is_stored_once_its_location_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let stored = folder.path().join("bucket/backups/one");
    std::fs::create_dir_all(&stored).unwrap();
    let metadata = json!({"metadata": {"uid": "u"}, "status": {"phase": "Completed"}});
    std::fs::write(stored.join("velero-backup.json"), metadata.to_string()).unwrap();
    std::fs::write(stored.join("one.tar.gz"), "archive").unwrap();
    let api = Scripted::new()
        .always(get(ONE).answers(backup("7", "InProgress")))
        .always(cluster())
        .next(begins())
        .next(get(LOCATION).refuses(503))
        .next(get(LOCATION).answers(location(folder.path())))
        .next(ends_in("Completed"));
    takes_no_data(&api);
    let engine = engine(&api, &folder, AfterInterruption::Resume);
    engine.recover("one", "u", Signals::default(), |_| {}).await.unwrap();
    assert_eq!(api.writes()[1].body["status"]["phase"], "Completed");
}
