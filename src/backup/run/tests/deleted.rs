//! A run in the folder of an earlier Backup of its name, whose deletion may be under way.

use super::*;

const REQUESTS: &str = "/apis/velero.io/v1/namespaces/velero/deletebackuprequests";

fn request(phase: &str) -> Value {
    json!({
        "apiVersion": "velero.io/v1", "kind": "DeleteBackupRequest",
        "metadata": {"name": "one-x", "namespace": "velero", "labels": {keys::BACKUP_UID: "earlier"}},
        "spec": {"backupName": "one"}, "status": {"phase": phase},
    })
}

/// What a deletion has left that has claimed the folder, and removed nothing yet.
fn begun() -> Site {
    let site = Site::new();
    let place = place(&site);
    std::fs::create_dir_all(&place).unwrap();
    let claim =
        json!({"cluster": "here", "namespace": "velero", "backup": "earlier", "run": "deletion-request"});
    std::fs::write(place.join("berth-run.json"), claim.to_string()).unwrap();
    for name in [METADATA, "one.tar.gz", "one-csi-volumesnapshots.json.gz"] {
        std::fs::write(place.join(name), "of the earlier one").unwrap();
    }
    site
}

fn place(site: &Site) -> std::path::PathBuf {
    site.folder.path().join("bucket/backups/one")
}

/// It is stored, and nothing of the earlier one is left.
async fn completes(site: &Site) {
    site.api.always(get(MAPS).answers(list("5", &[map("a")])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    let ran = site.run(Signals::default()).await;
    assert_eq!(ran.map(|backup| backup.phase()), Some(BackupPhase::Completed), "{:?}", site.written());
    let stored = site.stored();
    assert!(stored.contains(&METADATA.to_owned()), "{stored:?}");
    assert!(!stored.contains(&"one-csi-volumesnapshots.json.gz".to_owned()), "{stored:?}");
    let metadata = std::fs::read(place(site).join(METADATA)).unwrap();
    let metadata: Value = serde_json::from_slice(&metadata).unwrap();
    assert_eq!(metadata["metadata"]["uid"], "u");
}

#[tokio::test]
async fn a_deletion_that_ends_while_its_folder_is_looked_at_is_over() {
    let site = begun();
    let place = place(&site);
    // It was listed, and is gone before the requests are.
    site.api.once(get(REQUESTS).answers_with(move |_| {
        std::fs::remove_dir_all(&place).unwrap();
        list("5", &[])
    }));
    completes(&site).await;
}

#[tokio::test]
async fn what_a_deletion_leaves_that_yields_is_no_backup_any_more() {
    let site = begun();
    site.api.once(get(REQUESTS).answers(list("5", &[request("InProgress")])));
    site.api.once(get(REQUESTS).answers(list("6", &[])));
    // The Backup of the claim is gone: this one has taken its name.
    site.api.always(get(ONE).answers(backup("7", "ReadyToStart")));
    completes(&site).await;
}

/// Whoever publishes does not look for one where no other run of the Backup has been.
#[tokio::test]
async fn the_index_of_an_earlier_backup_that_is_gone_does_not_outlive_the_claim() {
    let site = Site::new();
    let place = place(&site);
    std::fs::create_dir_all(&place).unwrap();
    let claim = json!({"cluster": "here", "namespace": "velero", "backup": "earlier", "run": "dead"});
    std::fs::write(place.join("berth-run.json"), claim.to_string()).unwrap();
    for name in ["one.tar.gz", "one-index.json.gz"] {
        std::fs::write(place.join(name), "of the earlier one").unwrap();
    }
    site.api.always(get(ONE).answers(backup("7", "ReadyToStart")));
    completes(&site).await;
    assert!(!site.stored().contains(&"one-index.json.gz".to_owned()), "{:?}", site.stored());
}

#[tokio::test]
async fn what_a_deletion_leaves_that_was_given_up_stays() {
    for requests in [vec![request("Processed")], Vec::new()] {
        let site = begun();
        site.api.always(get(REQUESTS).answers(list("5", &requests)));
        site.api.always(get(ONE).answers(backup("7", "ReadyToStart")));
        site.api.next(begins()).next(ends_in("Failed"));
        site.run(Signals::default()).await;
        assert_eq!(site.written().last().unwrap().0, "Failed", "{:?}", site.written());
        let metadata = std::fs::read(place(&site).join(METADATA)).unwrap();
        assert_eq!(metadata, b"of the earlier one");
    }
}
