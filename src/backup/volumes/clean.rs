//! Snapshots and PodVolumeBackups that outlive their run: what a stored backup lets go of in the
//! cluster, and what is removed of one that is not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, label_value};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::mover::PodVolumeBackup;
use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::timeout;
use tracing::{info, warn};

use super::group_objects::{self, SeenGroup, was_kept};
use super::objects::{delete_own, group_of, is_kept, list_all, own_content, patch_own, policy};
use super::outcomes::{Outcomes, StoredVolumeData, standing};
use super::read::VolumeTraits;
use super::snapshots::MADE;
use super::watched::has_ended;
use super::{RunVolumes, VolumeAccess};
use crate::backup::engine::{Engine, RunFailure};
use crate::backup::list::ListError;
use crate::backup::log::{BackupLog, ResultsHeading};
use crate::backup::related::key;
use crate::backup::status::BackupWriter;
use crate::patch::digest;
use crate::text::chain;

const CALL: Duration = Duration::from_secs(10);
/// Snapshots that are written at one time.
const AT_ONCE: usize = 16;
/// How long everything that belongs to one backup is cleaned up.
const ALL: Duration = Duration::from_secs(300);

/// Which snapshots of a backup are removed, by their keys.
#[derive(Clone, Copy)]
enum Which<'k> {
    /// All, because the backup ends.
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

/// What was made for a Backup.
struct MadeSnapshots {
    snapshots: Vec<VolumeSnapshot>,
    /// An error: they could not be read.
    groups: Result<Vec<SeenGroup>, String>,
}

impl RunVolumes<'_> {
    /// Removes a snapshot that does not become the backup's. If that fails, it is removed with the
    /// run. `spares_kept`: this run has not kept it, so if it is kept another run of the backup has
    /// taken it over, and an archive may name it.
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
                    Ok(content) if spares_kept && is_named(&found, content.as_ref()) => Ok(()),
                    Ok(content) => end(&access.client, &found, content, false).await,
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
    /// Lets go of the snapshots of a stored backup: what is in the storage stays there, known by
    /// the archive, and the objects in the cluster go, as Velero does. What no archive names is
    /// removed from the storage as well.
    pub(in crate::backup) async fn let_go_of_snapshots(&self, name: &str, uid: &str) {
        let work = async {
            let backup = label_value(name, digest);
            let MadeSnapshots { snapshots, groups } = self.made_snapshots(&backup, uid).await?;
            for_each(snapshots, |snapshot| {
                let (client, backup) = (self.client.clone(), backup.as_str());
                async move { end_made(&client, &snapshot, backup, true).await }
            })
            .await?;
            // After their snapshots, which would not be found without them.
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
    /// it ends. Nothing is done if another run has it by now.
    pub(in crate::backup) async fn remove_snapshots(&self, name: &str, record: &BackupWriter) {
        self.remove_made(name, record, Which::All).await;
    }

    /// Removes the snapshots that a dead run has made, except `kept` (namespace, slash, name),
    /// because they are taken anew. Nothing is done if another run has the backup by now.
    pub(in crate::backup) async fn remove_snapshots_but(
        &self,
        name: &str,
        record: &BackupWriter,
        kept: &BTreeSet<String>,
    ) {
        self.remove_made(name, record, Which::But(kept)).await;
    }

    /// Removes these snapshots, which no archive will name, if they were made for the backup and no
    /// other run has it by now.
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
            // The storage removes a group whole, so all that it has of the group must go.
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
            // Asked between the list and the first removal: what another run has made is not
            // listed.
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

    /// The snapshots that were made for a Backup (`backup`: the value of its label), and the group
    /// snapshots. Where the cluster has no such kind there are none. Everyone who may change a
    /// VolumeSnapshot can give it the label, and what is removed here goes in the storage as well,
    /// also where its content says Retain. So it has the form of those that are made, because
    /// nobody can change the name or the source: one that is not of a claim brings a snapshot that
    /// existed before it, which an archive of another backup may name, as after a restore. The
    /// snapshot controller names those of a group, so their group has to be one of the Backup's:
    /// where the groups cannot be read, their snapshots are left.
    async fn made_snapshots(&self, backup: &str, uid: &str) -> Result<MadeSnapshots, String> {
        if !is_uid(uid) {
            return Ok(MadeSnapshots { snapshots: Vec::new(), groups: Ok(Vec::new()) });
        }
        let all = list_all::<VolumeSnapshot>(&Api::all(self.client.clone()), uid).await;
        let mut snapshots = all.map_err(|error| chain(&error))?;
        let groups = group_objects::made(&self.client, (backup, uid)).await;
        let of_backup: BTreeSet<&str> =
            groups.iter().flatten().filter_map(|seen| seen.group.metadata.uid.as_deref()).collect();
        snapshots.retain(|snapshot| is_made(snapshot, &of_backup));
        Ok(MadeSnapshots { snapshots, groups })
    }

    /// What a backup says of the data of its volumes when all is taken. What is missing, and was
    /// not told of, is an error of the backup.
    pub(in crate::backup) async fn data(
        &self,
        record: &BackupWriter,
        outcomes: &Outcomes,
        traits: &BTreeMap<String, VolumeTraits>,
        log: &BackupLog,
    ) -> Result<StoredVolumeData, RunFailure> {
        let mut files = Vec::new();
        if outcomes.has_files() && is_uid(record.uid()) {
            let all = list_all(&volume_backups(&self.client, &self.namespace), record.uid()).await;
            let all = all.map_err(|error| {
                let error = format!("failed to list the backup's PodVolumeBackups: {}", chain(&error));
                // Another run finds all data stored, and asks again.
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

/// As they are, because one that cannot be read goes on as well.
fn volume_backups(client: &Client, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<PodVolumeBackup>(&()))
}

/// The PodVolumeBackups of a Backup that go on.
async fn files_under_way(api: &Api<DynamicObject>, uid: &str) -> Result<Vec<DynamicObject>, String> {
    let listed = if is_uid(uid) { list_all(api, uid).await } else { Ok(Vec::new()) };
    let mut all = listed.map_err(|error| chain(&error))?;
    all.retain(|one| {
        let phase = one.data["status"]["phase"].as_str();
        one.data["spec"]["cancel"] != true && !phase.is_some_and(has_ended)
    });
    Ok(all)
}

/// Cancels the PodVolumeBackups of pods (UIDs) before they are thawed: what is read of their files
/// after that is of another moment. A run that continues begins anew what is canceled; what has
/// completed was read while they were frozen. `false`: some may go on.
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

/// Whether a snapshot has the form of those that are made for a backup: by berth, or by the
/// snapshot controller for one of these groups (UIDs).
fn is_made(snapshot: &VolumeSnapshot, groups: &BTreeSet<&str>) -> bool {
    let is_of_group = || group_of(snapshot.owner_references()).is_some_and(|group| groups.contains(group));
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

/// Removes a snapshot, in the storage as well.
pub(crate) async fn remove(client: &Client, snapshot: &VolumeSnapshot) -> Result<(), String> {
    let content = own_content(client, snapshot).await?;
    end(client, snapshot, content, false).await
}

/// Whether an archive may name this snapshot. A user may take the annotation from it.
fn is_named(snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> bool {
    is_kept(snapshot) || content.is_some_and(was_kept)
}

/// Ends a snapshot that has the label of a Backup (`backup`: the value of its other label). What
/// another Backup has kept is left to that one: whoever may change a VolumeSnapshot can move it
/// from one Backup to another, whose end would remove what the archive of the first one names.
/// `is_stored`: an archive may name it.
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

/// Removes the objects of a snapshot. `stays`: it stays in the storage.
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
        // Otherwise the snapshot controller deletes it, when the storage has removed the snapshot.
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
        // Nobody could read this one as a PodVolumeBackup.
        let odd = json!({"metadata": {"name": "odd"}, "spec": {"pod": "p"}, "status": {"phase": 7}});
        let there = list(&[odd, files.clone()]);
        for (script, is_done) in [
            (vec![get(FILES).answers(list(&[]))], true),
            (vec![get(FILES).answers(there.clone()), patch(&format!("{FILES}/f")).answers(files)], true),
            // It is gone by now.
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
}
