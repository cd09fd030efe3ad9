//! PodVolumeBackups that nobody needs any more: whoever reads files for them is told to end.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, label_value};
use berth_api::velero::mover::PodVolumeBackup;
use berth_core::pod_volume::is_own;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;
use tracing::warn;

use super::objects::{OWN, for_each, list_all, patch_own};
use super::watched::has_ended;
use crate::patch::digest;
use crate::text::chain;

/// Time-out of what a pod that is to be thawed waits for.
const CALL: Duration = Duration::from_secs(10);

/// The PodVolumeBackups of a namespace. Untyped, because one that cannot be parsed may still be in
/// progress.
pub(super) fn volume_backups(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<PodVolumeBackup>(&()))
}

/// The PodVolumeBackups of a Backup that are in progress.
pub(super) async fn files_under_way(
    api: &Api<DynamicObject>,
    uid: &str,
) -> Result<Vec<DynamicObject>, String> {
    let under_way = |one: &DynamicObject| {
        let phase = one.data["status"]["phase"].as_str();
        one.data["spec"]["cancel"] != true && !phase.is_some_and(has_ended)
    };
    list_all(api, uid, &OWN, under_way).await.map_err(|error| chain(&error))
}

/// Cancels the PodVolumeBackups of pods (UIDs) before the pods are thawed, because files that are
/// read after that are of another moment. A run that continues starts the canceled ones again;
/// those that have completed were read while the pods were frozen. `false`: some may still be in
/// progress.
pub(in crate::backup) async fn cancel_files_of(
    client: &Client,
    namespace: &str,
    uid: &str,
    pods: &BTreeSet<String>,
) -> bool {
    let work = async {
        let api = volume_backups(client, namespace);
        let mut all = files_under_way(&api, uid).await?;
        all.retain(|files| files.data["spec"]["pod"]["uid"].as_str().is_some_and(|pod| pods.contains(pod)));
        cancel_files(&api, all).await
    };
    let done = timeout(CALL, work).await;
    match done.unwrap_or_else(|_| Err("the API server did not answer in time".to_owned())) {
        Ok(()) => true,
        Err(error) => {
            warn!(%uid, error, "could not cancel the PodVolumeBackups of pods that are thawed");
            false
        }
    }
}

/// Whether an agent of berth may still store files for a Backup that is gone. What it reads is
/// canceled, because nobody needs it. It must have the name of that Backup as well, because the UID
/// may be from a claim that somebody has forged to name another Backup, which runs.
///
/// # Errors
/// When the PodVolumeBackups cannot be listed or canceled.
pub async fn end_files(client: &Client, namespace: &str, name: &str, uid: &str) -> Result<bool, String> {
    let api = volume_backups(client, namespace);
    let name = label_value(name, digest);
    let under_way = |one: &DynamicObject| {
        let phase = one.data["status"]["phase"].as_str();
        one.labels().get(BACKUP_NAME) == Some(&name)
            && is_own(one.data["spec"]["uploaderType"].as_str())
            && !phase.is_some_and(has_ended)
    };
    let mut all = list_all(&api, uid, &OWN, under_way).await.map_err(|error| chain(&error))?;
    let may_store = !all.is_empty();
    all.retain(|one| one.data["spec"]["cancel"] != true);
    cancel_files(&api, all).await?;
    Ok(may_store)
}

/// Cancels these PodVolumeBackups.
pub(super) async fn cancel_files(api: &Api<DynamicObject>, all: Vec<DynamicObject>) -> Result<(), String> {
    for_each(all, |files| {
        let api = api.clone();
        async move {
            let canceled = json!({"spec": {"cancel": true}});
            patch_own(&api, (&files.name_any(), files.uid().as_deref()), canceled).await
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get, patch};

    use super::*;

    const FILES: &str = "/apis/velero.io/v1/namespaces/velero/podvolumebackups";

    #[tokio::test(start_paused = true)]
    async fn it_is_known_whether_the_files_of_pods_that_are_thawed_were_canceled() {
        let list = |items: &[serde_json::Value]| json!({"apiVersion": "velero.io/v1", "kind": "PodVolumeBackupList", "metadata": {}, "items": items});
        let files = json!({
            "metadata": {"name": "f", "uid": "uid-f"}, "spec": {"pod": {"uid": "p"}, "node": 7}, "status": {"phase": "New"},
        });
        // This object cannot be parsed as a PodVolumeBackup.
        let odd = json!({"metadata": {"name": "odd"}, "spec": {"pod": "p"}, "status": {"phase": 7}});
        let there = list(&[odd, files.clone()]);
        for (script, is_done) in [
            (vec![get(FILES).answers(list(&[]))], true),
            (vec![get(FILES).answers(there.clone()), patch(&format!("{FILES}/f")).answers(files)], true),
            // The object is gone by then.
            (vec![get(FILES).answers(there.clone()), patch(&format!("{FILES}/f")).refuses(404)], true),
            (vec![get(FILES).answers(there.clone()), patch(&format!("{FILES}/f")).refuses(403)], false),
            (vec![get(FILES).refuses(403)], false),
            (vec![get(FILES).never_answers()], false),
        ] {
            let api = Scripted::new();
            for line in script {
                api.next(line);
            }
            let pods = BTreeSet::from(["p".to_owned()]);
            assert_eq!(cancel_files_of(&api.client("velero"), "velero", "b", &pods).await, is_done);
            api.finish();
        }
    }

    /// A claim in a bucket can name the UID of any Backup.
    #[tokio::test(start_paused = true)]
    async fn only_files_of_the_backup_of_this_name_are_canceled_because_a_claim_names_their_uid() {
        let files = |name: &str, backup: &str| {
            json!({
                "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
                "metadata": {
                    "name": name, "uid": name, "labels": {BACKUP_NAME: backup, "velero.io/backup-uid": "u"},
                },
                "spec": {"uploaderType": "restic"}, "status": {"phase": "InProgress"},
            })
        };
        let long = "b".repeat(70);
        let there = [files("live", "nightly"), files("left", &label_value(&long, digest))];
        let there = berth_test_scripted::list("7", &there);
        for (name, canceled) in [("forged", None), (long.as_str(), Some("left")), ("nightly", Some("live"))] {
            let api = Scripted::new().next(get(FILES).answers(there.clone()));
            if let Some(file) = canceled {
                api.next(patch(&format!("{FILES}/{file}")).answers(files(file, name)));
            }
            let may_store = end_files(&api.client("velero"), "velero", name, "u").await;
            assert_eq!(may_store, Ok(canceled.is_some()), "{name}");
            assert_eq!(api.writes().len(), usize::from(canceled.is_some()), "{name}");
            api.finish();
        }
    }
}
