//! The objects of group snapshots, and their end.
//!
//! The sidecar of the driver removes a snapshot that belongs to a group from the storage only with
//! the group. So a VolumeGroupSnapshot is there until its backup ends. Its content is retained
//! before any claim of the group is stored, so whoever deletes the VolumeGroupSnapshot meanwhile
//! takes nothing from an archive. When the backup ends, either the objects go, because an archive
//! names the snapshots, or the group is removed from the storage as well. The latter takes all of
//! its snapshots, so it is done only where each of them is seen ([`SeenGroup`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, BACKUP_UID, EXCLUDE_FROM_BACKUP, label_value};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_core::volume::group::{GroupRefusal, MOST};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::VolumeAccess;
use super::objects::{
    API_GROUP, FOREIGN, GROUP, delete_own, group_of, is_kept, list_all, list_those, own_content, patch_own,
    patch_there, policy,
};
use crate::backup::insist::insist;
use crate::client::{is_forbidden, is_not_found};
use crate::patch::digest;
use crate::text::chain;

/// How long a call takes at most that pods may be frozen for.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// Hexadecimal digits in the name of a group that berth makes, behind `velero-`.
const OF_NAME: usize = 20;
/// Contents of the snapshots of one group that are read at one time.
const AT_ONCE: usize = 16;

/// A group of which a group snapshot is to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// Namespace, slash, value of the label.
    pub(super) key: String,
    pub(super) namespace: String,
    /// The label, and its value.
    pub(super) label: String,
    pub(super) value: String,
    /// Its claims.
    pub(super) names: BTreeSet<String>,
    /// The VolumeGroupSnapshotClass.
    pub(super) class: String,
}

/// The content that the snapshot controller has made for a group.
enum GroupContent {
    Absent,
    /// Somebody else has made one of that name.
    Foreign,
    Own(Box<DynamicObject>),
}

/// A group that was made for a Backup, and what is seen of it.
pub(super) struct SeenGroup {
    pub group: DynamicObject,
    /// Its snapshots, those without the label of the Backup among them: a run that died may not
    /// have labelled them yet, and whoever may change one can take its label.
    pub members: Vec<VolumeSnapshot>,
    /// These are all that the storage has of the group.
    pub is_whole: bool,
    /// An archive may name one of them.
    pub is_named: bool,
}

/// The name of a group. `hash`: hexadecimal, of all that tells it from others.
pub(super) fn group_name(hash: &str) -> String {
    format!("velero-{}", hash.get(..OF_NAME).unwrap_or_default())
}

/// Velero uses this version, too: external-snapshotter serves it from 8.4 on.
fn kind(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(API_GROUP, "v1beta2", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

pub(super) fn kind_of_groups() -> ApiResource {
    kind(GROUP, "volumegroupsnapshots")
}

/// The VolumeGroupSnapshots of a namespace, or of all.
pub(super) fn groups(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind_of_groups()),
        None => Api::all_with(client.clone(), &kind_of_groups()),
    }
}

pub(super) fn classes(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kind("VolumeGroupSnapshotClass", "volumegroupsnapshotclasses"))
}

fn contents(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &kind("VolumeGroupSnapshotContent", "volumegroupsnapshotcontents"))
}

/// Whether a group has the form of those that berth makes. Everyone who may change one can give it
/// the label of a Backup.
fn is_made(group: &DynamicObject) -> bool {
    let name = group.name_any();
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix("velero-").is_some_and(|hash| hash.len() == OF_NAME && hash.bytes().all(is_hex))
        && group.data["spec"]["source"]["selector"].is_object()
}

/// The groups that were made for a Backup (the value of its label, and its UID). There are none
/// where berth may not list them: it cannot list their classes either then, and makes none (the
/// cluster has no such kind, for example, and berth may only list the kinds that there are).
pub(super) async fn made(client: &Client, (backup, uid): (&str, &str)) -> Result<Vec<SeenGroup>, String> {
    let all = match list_all(&groups(client, None), uid, &FOREIGN, is_made).await {
        Ok(all) => all,
        Err(error) if is_forbidden(&error) => return Ok(Vec::new()),
        Err(error) => return Err(chain(&error)),
    };
    let mut members = BTreeMap::<String, Vec<VolumeSnapshot>>::new();
    let uids: BTreeSet<String> = all.iter().filter_map(kube::ResourceExt::uid).collect();
    let namespaces: BTreeSet<String> = all.iter().filter_map(kube::ResourceExt::namespace).collect();
    for namespace in namespaces {
        let api: Api<VolumeSnapshot> = Api::namespaced(client.clone(), &namespace);
        let is_member = |snapshot: &VolumeSnapshot| {
            group_of(snapshot.owner_references()).is_some_and(|group| uids.contains(group))
        };
        let found = list_those(&api, ListParams::default(), &FOREIGN, is_member).await;
        for snapshot in found.map_err(|error| chain(&error))? {
            let Some(group) = group_of(snapshot.owner_references()).map(str::to_owned) else { continue };
            members.entry(group).or_default().push(snapshot);
        }
    }
    let mut seen = Vec::new();
    for group in all {
        let of_group = group.metadata.uid.as_ref().and_then(|uid| members.remove(uid));
        seen.extend(see(client, backup, group, of_group.unwrap_or_default()).await?);
    }
    Ok(seen)
}

/// Whether these snapshots are all of a group, by what only the snapshot controller and the sidecar
/// write: the handles in the content of the group, and the contents of the snapshots. `None`: by
/// that content another Backup has retained the group, and somebody has changed its label.
async fn see(
    client: &Client,
    backup: &str,
    group: DynamicObject,
    members: Vec<VolumeSnapshot>,
) -> Result<Option<SeenGroup>, String> {
    // Anybody can make objects that name the group as their owner.
    if members.len() > MOST {
        return Ok(Some(SeenGroup { group, members, is_whole: false, is_named: true }));
    }
    let content = content_of_group(&contents(client), &group).await?;
    if let GroupContent::Own(content) = &content
        && content.labels().get(BACKUP_NAME).is_some_and(|of| of != backup)
    {
        return Ok(None);
    }
    let read = futures::stream::iter(members).map(|member| {
        let client = client.clone();
        async move {
            let content = own_content(&client, &member).await?;
            Ok::<_, String>((member, content))
        }
    });
    let read: Vec<(VolumeSnapshot, Option<VolumeSnapshotContent>)> =
        read.buffer_unordered(AT_ONCE).try_collect().await?;
    let is_named =
        read.iter().any(|(member, content)| is_kept(member) || content.as_ref().is_some_and(was_kept));
    let handle = |content: &VolumeSnapshotContent| content.status.as_ref()?.snapshot_handle.clone();
    let handles: BTreeSet<String> =
        read.iter().filter_map(|(_, content)| handle(content.as_ref()?)).collect();
    let is_whole = match &content {
        // What removes the group finds nothing of it in the storage.
        GroupContent::Absent => true,
        GroupContent::Foreign => false,
        GroupContent::Own(content) => has_only(&content.data["status"], &handles),
    };
    let members = read.into_iter().map(|(member, _)| member).collect();
    Ok(Some(SeenGroup { group, members, is_whole, is_named }))
}

/// Whether the storage has no snapshots of a group but these (handles), by the status of its
/// content.
fn has_only(status: &Value, handles: &BTreeSet<String>) -> bool {
    match status["volumeSnapshotInfoList"].as_array() {
        Some(all) if !all.is_empty() => all
            .iter()
            .all(|one| one["snapshotHandle"].as_str().is_some_and(|handle| handles.contains(handle))),
        // It is not cut. If it is, nothing tells of its snapshots.
        _ => status["volumeGroupSnapshotHandle"].is_null(),
    }
}

/// Whether a backup has kept the snapshot of this content. A user may take the annotation from the
/// snapshot, and cannot change this.
pub(super) fn was_kept(content: &VolumeSnapshotContent) -> bool {
    content.labels().contains_key(BACKUP_NAME) && content.spec.deletion_policy.as_deref() == Some("Retain")
}

/// The claims that have the label of a group, and one more than a group may have.
pub(super) async fn list_group(
    access: &VolumeAccess,
    namespace: &str,
    (label, value): (&str, &str),
) -> Result<Vec<DynamicObject>, kube::Error> {
    let kind = ApiResource::erase::<PersistentVolumeClaim>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(access.client.clone(), namespace, &kind);
    let most = u32::try_from(MOST).unwrap_or(u32::MAX);
    let params = ListParams::default().labels(&format!("{label}={value}")).limit(most.saturating_add(1));
    insist(|| async { api.list(&params).await.into() }).await.map(|found| found.items)
}

/// Whether the group still has the claims that it was planned with, and all of them are bound: the
/// snapshot controller takes those that have the label now, and pods that are frozen would wait for
/// the others until the time-out.
pub(super) async fn is_as_planned(access: &VolumeAccess, plan: &GroupPlan) -> Result<(), GroupRefusal> {
    let found =
        timeout(CALL, list_group(access, &plan.namespace, (plan.label.as_str(), plan.value.as_str()))).await;
    let Ok(Ok(found)) = found else { return Err(GroupRefusal::Unlisted) };
    let stay = found.iter().filter(|claim| {
        claim.metadata.deletion_timestamp.is_none() && claim.data["status"]["phase"] == "Bound"
    });
    let names: BTreeSet<String> = stay.map(kube::ResourceExt::name_any).collect();
    if names == plan.names && names.len() == found.len() { Ok(()) } else { Err(GroupRefusal::Changed) }
}

/// The labels of a group and of its content: by the first two it is known of which Backup they are.
/// No backup stores them, because a restore would make the group anew, and cut the restored claims.
pub(super) fn labels(access: &VolumeAccess) -> BTreeMap<String, String> {
    BTreeMap::from([
        (BACKUP_NAME.to_owned(), label_value(&access.backup, digest)),
        (BACKUP_UID.to_owned(), access.uid.clone()),
        (EXCLUDE_FROM_BACKUP.to_owned(), "true".to_owned()),
    ])
}

/// Keeps the snapshots of a group in the storage, whoever deletes its objects.
pub(super) async fn retain(
    client: &Client,
    group: &DynamicObject,
    labels: &BTreeMap<String, String>,
) -> Result<(), String> {
    let contents = contents(client);
    let GroupContent::Own(content) = content_of_group(&contents, group).await? else {
        return Err("its VolumeGroupSnapshotContent is not there".to_owned());
    };
    let retained = json!({"metadata": {"labels": labels}, "spec": {"deletionPolicy": "Retain"}});
    let (name, uid) = (content.name_any(), content.uid());
    match patch_there(&contents, (&name, uid.as_deref()), retained).await? {
        Some(kept) if kept.metadata.deletion_timestamp.is_none() => Ok(()),
        // The sidecar may have removed it from the storage before it was retained.
        _ => Err("somebody has deleted its VolumeGroupSnapshot".to_owned()),
    }
}

/// Removes the objects of a group whose snapshots stay in the storage.
pub(super) async fn release(client: &Client, group: &DynamicObject) -> Result<(), String> {
    end(client, group, true).await
}

/// Removes a group, in the storage as well.
pub(super) async fn remove(client: &Client, group: &DynamicObject) -> Result<(), String> {
    end(client, group, false).await
}

async fn end(client: &Client, group: &DynamicObject, stays: bool) -> Result<(), String> {
    let contents = contents(client);
    if let GroupContent::Own(content) = content_of_group(&contents, group).await? {
        let (name, uid) = (content.name_any(), content.uid());
        patch_own(&contents, (&name, uid.as_deref()), policy(stays)).await?;
        // Otherwise the snapshot controller deletes it, when the storage has removed the group.
        if stays {
            delete_own(&contents, (&name, uid.as_deref())).await?;
        }
    }
    let api = groups(client, group.namespace().as_deref());
    delete_own(&api, (&group.name_any(), group.uid().as_deref())).await
}

/// The content that the snapshot controller has made for a group. Its name follows from the UID of
/// the group, because whoever may write the status of the group could name another one there. A
/// content that was made of snapshots that existed before it is somebody else's.
async fn content_of_group(
    contents: &Api<DynamicObject>,
    group: &DynamicObject,
) -> Result<GroupContent, String> {
    let Some(group_uid) = group.uid() else { return Ok(GroupContent::Foreign) };
    let name = format!("groupsnapcontent-{group_uid}");
    match insist(|| async { contents.get(&name).await.into() }).await {
        Ok(content) => {
            let spec = &content.data["spec"];
            let is_own = content.metadata.uid.is_some()
                && spec["volumeGroupSnapshotRef"]["uid"] == group_uid.as_str()
                && spec["source"]["groupSnapshotHandles"].is_null();
            Ok(if is_own { GroupContent::Own(Box::new(content)) } else { GroupContent::Foreign })
        }
        Err(error) if is_not_found(&error) => Ok(GroupContent::Absent),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests;
