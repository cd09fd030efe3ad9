//! Snapshots and PodVolumeBackups after their run. Of a stored backup, the objects in the cluster
//! are removed and the snapshots stay in the storage; of any other, both are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, RUN, label_value};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::Backup;
use berth_api::velero::mover::PodVolumeBackup;
use berth_core::pod_volume::is_own;
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::group_objects::{self, SeenGroup, was_kept};
use super::objects::{FOREIGN, OWN, delete_own, group_of, is_kept, list_all, own_content, patch_own, policy};
use super::outcomes::{Outcomes, StoredVolumeData, standing};
use super::read::VolumeTraits;
use super::snapshots::MADE;
use super::watched::has_ended;
use super::{RunVolumes, VolumeAccess};
use crate::backup::engine::{Engine, RunFailure};
use crate::backup::insist::insist;
use crate::backup::list::ListError;
use crate::backup::log::{BackupLog, ResultsHeading};
use crate::backup::related::key;
use crate::backup::status::BackupWriter;
use crate::patch::digest;
use crate::text::chain;
use crate::write::WriteResult;

const CALL: Duration = Duration::from_secs(10);
/// How many snapshots are written at the same time.
const AT_ONCE: usize = 16;
/// Time-out of the clean-up of one backup.
const ALL: Duration = Duration::from_secs(300);

/// Which snapshots of a backup are removed, by their keys.
#[derive(Clone, Copy)]
enum Which<'k> {
    /// All snapshots, because the backup ends.
    All,
    But(&'k BTreeSet<String>),
    Only(&'k BTreeSet<String>),
}

impl Which<'_> {
    fn has(self, snapshot: &str) -> bool {
        match self {
            Self::All => true,
            Self::But(kept) => !kept.contains(snapshot),
            Self::Only(these) => these.contains(snapshot),
        }
    }
}

/// The snapshots that were made for a Backup.
struct MadeSnapshots {
    snapshots: Vec<VolumeSnapshot>,
    /// An error if they could not be read.
    groups: Result<Vec<SeenGroup>, String>,
}

impl RunVolumes<'_> {
    /// Removes a snapshot that does not become the backup's. If that fails, it is removed with the
    /// run. One that is kept stays if another run of the backup may have kept it, because that run
    /// has taken it over, and an archive may name it. `spares_kept`: this run has not kept it.
    pub(super) async fn discard(
        &self,
        access: &VolumeAccess,
        namespace: &str,
        (name, uid): (&str, &str),
        spares_kept: bool,
    ) {
        let api: Api<VolumeSnapshot> = Api::namespaced(access.client.clone(), namespace);
        let removed = match timeout(CALL, api.get_opt(name)).await {
            Ok(Ok(Some(found))) if found.uid().as_deref() == Some(uid) => {
                match own_content(&access.client, &found).await {
                    Ok(content) => {
                        let is_spared =
                            is_named(&found, content.as_ref()) && (spares_kept || !has_backup(access).await);
                        if is_spared { Ok(()) } else { end(&access.client, &found, content, false).await }
                    }
                    Err(error) => Err(error),
                }
            }
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err("the API server did not answer in time".to_owned()),
        };
        if let Err(error) = removed {
            warn!(%namespace, %name, error, "could not remove a snapshot: it is removed when the backup ends");
        }
    }
}

impl Engine {
    /// Releases the snapshots of a stored backup: they stay in the storage, named by the archive,
    /// and their objects in the cluster are removed, as Velero does. Snapshots that no archive
    /// names are also removed from the storage.
    pub(in crate::backup) async fn let_go_of_snapshots(&self, name: &str, uid: &str) {
        let work = async {
            let backup = label_value(name, digest);
            let MadeSnapshots { snapshots, groups } = self.made_snapshots(&backup, uid).await?;
            for_each(snapshots, |snapshot| {
                let (client, backup) = (self.client.clone(), backup.as_str());
                async move { end_made(&client, &snapshot, backup, true).await }
            })
            .await?;
            // The groups come after their snapshots, which could not be found without them.
            for_each(groups?, |seen| {
                let client = self.client.clone();
                async move {
                    if seen.is_whole && !seen.is_named {
                        group_objects::remove(&client, &seen.group).await
                    } else {
                        group_objects::release(&client, &seen.group).await
                    }
                }
            })
            .await
        };
        tell(name, "let go of the snapshots of a backup", timeout(ALL, work).await);
    }

    /// Removes the snapshots that were made for a backup, and cancels its PodVolumeBackups, because
    /// the backup ends. Does nothing if another run has taken the backup over.
    pub(in crate::backup) async fn remove_snapshots(&self, name: &str, record: &BackupWriter) {
        self.remove_made(name, record, Which::All).await;
    }

    /// Removes the snapshots that a dead run has made, except `kept` (namespace, slash, name),
    /// because they are taken again. Does nothing if another run has taken the backup over.
    pub(in crate::backup) async fn remove_snapshots_but(
        &self,
        name: &str,
        record: &BackupWriter,
        kept: &BTreeSet<String>,
    ) {
        self.remove_made(name, record, Which::But(kept)).await;
    }

    /// Removes these snapshots, which no archive will name, if they were made for the backup. Does
    /// nothing if another run has taken the backup over.
    pub(in crate::backup) async fn remove_unmet(
        &self,
        name: &str,
        record: &BackupWriter,
        unmet: &BTreeSet<String>,
    ) {
        self.remove_made(name, record, Which::Only(unmet)).await;
    }

    async fn remove_made(&self, name: &str, record: &BackupWriter, which: Which<'_>) {
        let uid = record.uid();
        let work = async {
            let is_going =
                |found: &VolumeSnapshot| which.has(&key(found.namespace().as_deref(), &found.name_any()));
            let backup = label_value(name, digest);
            let MadeSnapshots { snapshots: mut made, groups } = self.made_snapshots(&backup, uid).await?;
            made.retain(is_going);
            // The storage removes a group as a whole, so it is removed only if all of its snapshots
            // are.
            let groups = groups.map(|mut groups| {
                let left = groups.iter().filter(|seen| !seen.is_whole).count();
                if left > 0 {
                    warn!(%name, groups = left, "leaving group snapshots, because not all of their snapshots are seen: an archive may name the others");
                }
                groups.retain(|seen| {
                    let is_chosen = !(seen.members.is_empty() && matches!(which, Which::Only(_)));
                    seen.is_whole && is_chosen && seen.members.iter().all(is_going)
                });
                groups
            });
            let volume_backups = volume_backups(&self.client, &self.namespace);
            let files = match which {
                Which::All => files_under_way(&volume_backups, uid).await,
                Which::But(_) | Which::Only(_) => Ok(Vec::new()),
            };
            let is_idle = made.is_empty()
                && groups.as_ref().is_ok_and(Vec::is_empty)
                && files.as_ref().is_ok_and(Vec::is_empty);
            // This is checked after the list and before the first removal, so the list contains
            // nothing of another run.
            if !is_idle && !record.is_still_ours().await {
                info!(%name, "another run has the backup: leaving its snapshots and PodVolumeBackups to it");
                return Ok(());
            }
            if !made.is_empty() {
                info!(%name, snapshots = made.len(), "removing snapshots of a run that has not stored them");
            }
            let removed = for_each(made, |snapshot| {
                let (client, backup) = (self.client.clone(), backup.as_str());
                async move { end_made(&client, &snapshot, backup, false).await }
            });
            removed.await?;
            let removed = for_each(groups?, |seen| {
                let client = self.client.clone();
                async move { group_objects::remove(&client, &seen.group).await }
            });
            removed.await?;
            cancel_files(&volume_backups, files?).await
        };
        tell(name, "remove the snapshots of a backup", timeout(ALL, work).await);
    }

    /// The snapshots and group snapshots that were made for a Backup (`backup`: the value of its
    /// label). None where the cluster does not have these kinds.
    ///
    /// The label alone is no proof, because everyone who may change a VolumeSnapshot can set it,
    /// and a removal here also removes the snapshot from the storage, even if its content says
    /// Retain. So the name and the source, which nobody can change, must have the form that backups
    /// give them. A VolumeSnapshot whose source is not a claim refers to a snapshot that existed
    /// before, which the archive of another backup may name, for example after a restore. The
    /// snapshot controller names the snapshots of a group, so their group must be one of the
    /// Backup's; if the groups cannot be read, their snapshots stay.
    async fn made_snapshots(&self, backup: &str, uid: &str) -> Result<MadeSnapshots, String> {
        if !is_uid(uid) {
            return Ok(MadeSnapshots { snapshots: Vec::new(), groups: Ok(Vec::new()) });
        }
        // Which groups there are is not known yet.
        let may_be_made = |snapshot: &VolumeSnapshot| has_form(snapshot, |_| true);
        let all: Api<VolumeSnapshot> = Api::all(self.client.clone());
        let all = list_all(&all, uid, &FOREIGN, may_be_made).await;
        let mut snapshots = all.map_err(|error| chain(&error))?;
        let groups = group_objects::made(&self.client, (backup, uid)).await;
        let of_backup: BTreeSet<&str> =
            groups.iter().flatten().filter_map(|seen| seen.group.metadata.uid.as_deref()).collect();
        snapshots.retain(|snapshot| is_made(snapshot, &of_backup));
        Ok(MadeSnapshots { snapshots, groups })
    }

    /// What the stored backup says of the data of its volumes, when all data is taken. Missing data
    /// that was not reported yet becomes an error of the backup.
    pub(in crate::backup) async fn data(
        &self,
        record: &BackupWriter,
        outcomes: &Outcomes,
        traits: &BTreeMap<String, VolumeTraits>,
        log: &BackupLog,
    ) -> Result<StoredVolumeData, RunFailure> {
        let mut files = Vec::new();
        if outcomes.has_files() && is_uid(record.uid()) {
            let api = volume_backups(&self.client, &self.namespace);
            let all = list_all(&api, record.uid(), &OWN, |_| true).await;
            let all = all.map_err(|error| {
                let error = format!("failed to list the backup's PodVolumeBackups: {}", chain(&error));
                // Another run finds all data stored, and tries this again.
                RunFailure::List(ListError::Gone(Box::new(ListError::Unreachable(error.into()))))
            })?;
            files.extend(all.into_iter().filter_map(|one| serde_json::to_value(one).ok()));
        }
        let (files, doubtful) = standing(files);
        for (namespace, message) in doubtful {
            log.error(&ResultsHeading::Namespace(&namespace), "pods", &message);
        }
        for (namespace, message) in outcomes.unfinished(&files) {
            log.error(&ResultsHeading::Namespace(&namespace), "persistentvolumeclaims", &message);
        }
        Ok(StoredVolumeData { infos: outcomes.infos(&files, traits), snapshots: outcomes.counts(), files })
    }
}

/// Untyped, because a PodVolumeBackup that cannot be parsed may still be in progress.
fn volume_backups(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<PodVolumeBackup>(&()))
}

/// The PodVolumeBackups of a Backup that are in progress.
async fn files_under_way(api: &Api<DynamicObject>, uid: &str) -> Result<Vec<DynamicObject>, String> {
    if !is_uid(uid) {
        return Ok(Vec::new());
    }
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
    let is_done = matches!(done, Ok(Ok(())));
    tell(uid, "cancel the PodVolumeBackups of pods that are thawed", done);
    is_done
}

/// Whether an agent of berth may still store files for a Backup that is gone. What it reads is
/// canceled, because nobody needs it. It must have the name of that Backup as well, because the UID
/// may be from a claim that somebody has forged to name another Backup, which runs.
///
/// # Errors
/// When the PodVolumeBackups cannot be listed or canceled.
pub async fn end_files(client: &Client, namespace: &str, name: &str, uid: &str) -> Result<bool, String> {
    if !is_uid(uid) {
        return Ok(false);
    }
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

async fn cancel_files(api: &Api<DynamicObject>, all: Vec<DynamicObject>) -> Result<(), String> {
    for_each(all, |files| {
        let api = api.clone();
        async move {
            let canceled = json!({"spec": {"cancel": true}});
            patch_own(&api, (&files.name_any(), files.uid().as_deref()), canceled).await
        }
    })
    .await
}

/// Does a snapshot have the form of those that are made for a backup, by berth or, for one of these
/// groups (UIDs), by the snapshot controller?
fn is_made(snapshot: &VolumeSnapshot, groups: &BTreeSet<&str>) -> bool {
    has_form(snapshot, |group| groups.contains(group))
}

/// As [`is_made`], for groups of which `is_its` says whether they are the backup's.
fn has_form(snapshot: &VolumeSnapshot, is_its: impl Fn(&str) -> bool) -> bool {
    let is_of_group = || group_of(snapshot.owner_references()).is_some_and(&is_its);
    snapshot.spec.source.persistent_volume_claim_name.is_some()
        && (snapshot.name_any().starts_with(MADE) || is_of_group())
}

/// UIDs become part of a label selector.
fn is_uid(uid: &str) -> bool {
    (1..=63).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

async fn for_each<K, F>(all: Vec<K>, work: impl Fn(K) -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let done: Vec<_> = futures::stream::iter(all).map(work).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}

fn tell<E>(name: &str, what: &str, done: Result<Result<(), String>, E>) {
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%name, error, "could not {what}"),
        Err(_) => warn!(%name, "could not {what} in time"),
    }
}

/// Removes a snapshot, also from the storage.
pub(crate) async fn remove(client: &Client, snapshot: &VolumeSnapshot) -> Result<(), String> {
    let content = own_content(client, snapshot).await?;
    end(client, snapshot, content, false).await
}

/// Whether this run still has its Backup. If nobody says so, another run may have it: the process
/// may have been stopped for longer than its Lease lasts.
async fn has_backup(access: &VolumeAccess) -> bool {
    let api: Api<Backup> = Api::namespaced(access.client.clone(), &access.namespace);
    let read = || async {
        match timeout(CALL, api.get_metadata_opt(&access.backup)).await {
            Ok(answer) => WriteResult::from(answer),
            Err(_) => WriteResult::TimedOut,
        }
    };
    let Ok(Some(found)) = insist(read).await else { return false };
    found.uid().as_ref() == Some(&access.uid) && found.annotations().get(RUN) == Some(&access.run)
}

/// Whether an archive may name this snapshot. A user may take the annotation from it.
fn is_named(snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> bool {
    is_kept(snapshot) || content.is_some_and(was_kept)
}

/// Removes a snapshot that has the label of a Backup (`backup`: the value of its other label). A
/// snapshot that another Backup has kept is left to that Backup, because everyone who may change a
/// VolumeSnapshot can move it from one Backup to another, and the end of the other would remove
/// what the archive of the first one names. `is_stored`: an archive may name it.
async fn end_made(
    client: &Client,
    snapshot: &VolumeSnapshot,
    backup: &str,
    is_stored: bool,
) -> Result<(), String> {
    let content = own_content(client, snapshot).await?;
    let kept = content.as_ref().filter(|content| was_kept(content));
    if kept.is_some_and(|content| content.labels().get(BACKUP_NAME).is_some_and(|of| of != backup)) {
        return Ok(());
    }
    let stays = is_stored && is_named(snapshot, content.as_ref());
    end(client, snapshot, content, stays).await
}

/// Removes the objects of a snapshot. `stays`: the snapshot stays in the storage.
async fn end(
    client: &Client,
    snapshot: &VolumeSnapshot,
    content: Option<VolumeSnapshotContent>,
    stays: bool,
) -> Result<(), String> {
    let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
    if let Some(content) = content {
        let (name, uid) = (content.name_any(), content.uid());
        patch_own(&contents, (&name, uid.as_deref()), policy(stays)).await?;
        // Otherwise the snapshot controller deletes the content when the storage has removed the
        // snapshot.
        if stays {
            delete_own(&contents, (&name, uid.as_deref())).await?;
        }
    }
    delete_snapshot(client, snapshot).await
}

async fn delete_snapshot(client: &Client, snapshot: &VolumeSnapshot) -> Result<(), String> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let api: Api<VolumeSnapshot> = Api::namespaced(client.clone(), &namespace);
    delete_own(&api, (&snapshot.name_any(), snapshot.uid().as_deref())).await
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
