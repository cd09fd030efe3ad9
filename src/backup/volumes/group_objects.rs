//! The objects of group snapshots, and their end.
//!
//! The sidecar of the driver removes a snapshot that belongs to a group from the storage only with
//! the group. So a VolumeGroupSnapshot is there until its backup ends. Then either its content is
//! retained, because an archive names its snapshots, or the group is removed from the storage as
//! well.

use berth_api::snapshot::VolumeSnapshot;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};

use super::clean::{gone, list_all};
use super::snapshots::policy;
use crate::backup::insist::insist;
use crate::client::{is_forbidden, is_not_found};
use crate::text::chain;
use crate::write::{Write, delete, patch};

const GROUP: &str = "VolumeGroupSnapshot";

/// Velero uses this version, too: external-snapshotter serves it from 8.4 on.
fn kind(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("groupsnapshot.storage.k8s.io", "v1beta2", kind);
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

/// The UID of the group that a snapshot belongs to.
pub(super) fn group_of(owners: &[OwnerReference]) -> Option<&str> {
    owners.iter().find(|owner| owner.kind == GROUP).map(|owner| owner.uid.as_str())
}

/// Whether one of these snapshots belongs to the group.
pub(super) fn has_one(group: &DynamicObject, snapshots: &[VolumeSnapshot]) -> bool {
    let uid = group.metadata.uid.as_deref();
    snapshots.iter().any(|snapshot| uid.is_some() && group_of(snapshot.owner_references()) == uid)
}

/// The groups that were made for a Backup. There are none where berth may not list them: it cannot
/// list their classes either then, and makes none (the cluster has no such kind, for example, and
/// berth may only list the kinds that there are).
pub(super) async fn made(client: &Client, uid: &str) -> Result<Vec<DynamicObject>, String> {
    match list_all(&groups(client, None), uid).await {
        Err(error) if is_forbidden(&error) => Ok(Vec::new()),
        found => found.map_err(|error| chain(&error)),
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

async fn end(client: &Client, group: &DynamicObject, is_kept: bool) -> Result<(), String> {
    let contents = contents(client);
    if let Some((name, uid)) = own_content(&contents, group).await? {
        let write = || Write::to(&name).uid(Some(&uid));
        gone(insist(|| patch(&contents, write(), policy(is_kept))).await.map(drop))?;
        // Otherwise the snapshot controller deletes it, when the storage has removed the group.
        if is_kept {
            gone(insist(|| delete(&contents, write())).await)?;
        }
    }
    let (name, uid) = (group.name_any(), group.uid());
    let api = groups(client, group.namespace().as_deref());
    gone(insist(|| delete(&api, Write::to(&name).uid(uid.as_deref()))).await)
}

/// Name and UID of the content of a group, if that content says the same.
async fn own_content(
    contents: &Api<DynamicObject>,
    group: &DynamicObject,
) -> Result<Option<(String, String)>, String> {
    let Some(group_uid) = group.uid() else { return Ok(None) };
    let bound = group.data["status"]["boundVolumeGroupSnapshotContentName"].as_str();
    let name = match bound.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        None => format!("groupsnapcontent-{group_uid}"),
    };
    match insist(|| async { contents.get(&name).await.into() }).await {
        Ok(content) => {
            let is_own = content.data["spec"]["volumeGroupSnapshotRef"]["uid"] == group_uid.as_str();
            Ok(content.metadata.uid.filter(|_| is_own).map(|uid| (name, uid)))
        }
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}
