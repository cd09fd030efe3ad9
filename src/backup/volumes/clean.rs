//! Snapshots after their run. Of a stored backup, the objects in the cluster are removed and the
//! snapshots stay in the storage; of any other, both are removed. With those of the latter its
//! PodVolumeBackups are canceled (`cancel`).

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, RUN, label_value};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::Backup;
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tokio::time::timeout;
use tracing::{info, warn};

use super::cancel::{cancel_files, files_under_way, volume_backups};
use super::group_objects::{self, SeenGroup, was_kept};
use super::objects::{
    FOREIGN, delete_own, for_each, group_of, is_kept, list_all, own_content, patch_own, policy,
};
use super::snapshots::MADE;
use super::{RunVolumes, VolumeAccess};
use crate::backup::engine::Engine;
use crate::backup::insist::insist;
use crate::backup::related::key;
use crate::backup::status::BackupWriter;
use crate::patch::digest;
use crate::text::chain;
use crate::write::WriteResult;

const CALL: Duration = Duration::from_secs(10);
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
