//! The objects of group snapshots, and their end.
//!
//! The sidecar of the driver removes a snapshot that belongs to a group from the storage only with
//! the group. So a VolumeGroupSnapshot is there until its backup ends. Its content is retained before
//! any claim of the group is stored, so whoever deletes the VolumeGroupSnapshot meanwhile takes
//! nothing from an archive. When the backup ends, either the objects go, because an archive names
//! the snapshots, or the group is removed from the storage as well.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::snapshot::VolumeSnapshot;
use berth_core::volume::group::{GroupRefusal, MOST};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use tokio::time::timeout;

use super::VolumeAccess;
use super::clean::{gone, list_all};
use super::groups::GroupPlan;
use super::snapshots::policy;
use crate::backup::insist::insist;
use crate::client::{is_forbidden, is_not_found};
use crate::text::chain;
use crate::write::{Write, delete, patch};

/// How long a call takes at most that pods may be frozen for.
pub(super) const CALL: Duration = Duration::from_secs(10);
const API_GROUP: &str = "groupsnapshot.storage.k8s.io";
const GROUP: &str = "VolumeGroupSnapshot";
/// Hexadecimal digits in the name of a group that berth makes, behind `velero-`.
const OF_NAME: usize = 20;

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

/// The UID of the group that a snapshot belongs to.
pub(super) fn group_of(owners: &[OwnerReference]) -> Option<&str> {
    let is_group = |owner: &&OwnerReference| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        group == Some(API_GROUP) && owner.kind == GROUP
    };
    owners.iter().find(is_group).map(|owner| owner.uid.as_str())
}

/// Whether a group has the form of those that berth makes. Everyone who may change one can give it
/// the label of a Backup.
fn is_made(group: &DynamicObject) -> bool {
    let name = group.name_any();
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix("velero-").is_some_and(|hash| hash.len() == OF_NAME && hash.bytes().all(is_hex))
        && group.data["spec"]["source"]["selector"].is_object()
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
        Ok(mut all) => {
            all.retain(is_made);
            Ok(all)
        }
        Err(error) if is_forbidden(&error) => Ok(Vec::new()),
        Err(error) => Err(chain(&error)),
    }
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

/// Keeps the snapshots of a group in the storage, whoever deletes its objects.
pub(super) async fn retain(client: &Client, group: &DynamicObject) -> Result<(), String> {
    let contents = contents(client);
    let Some((name, uid)) = own_content(&contents, group).await? else {
        return Err("its VolumeGroupSnapshotContent is not there".to_owned());
    };
    let write = || Write::to(&name).uid(Some(&uid));
    insist(|| patch(&contents, write(), policy(true))).await.map(drop).map_err(|error| chain(&error))
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

/// Name and UID of the content that the snapshot controller has made for a group. Its name follows
/// from the UID of the group, because whoever may write the status of the group could name another
/// one there. A content that was made of snapshots that existed before it is somebody else's.
async fn own_content(
    contents: &Api<DynamicObject>,
    group: &DynamicObject,
) -> Result<Option<(String, String)>, String> {
    let Some(group_uid) = group.uid() else { return Ok(None) };
    let name = format!("groupsnapcontent-{group_uid}");
    match insist(|| async { contents.get(&name).await.into() }).await {
        Ok(content) => {
            let spec = &content.data["spec"];
            let is_own = spec["volumeGroupSnapshotRef"]["uid"] == group_uid.as_str()
                && spec["source"]["groupSnapshotHandles"].is_null();
            Ok(content.metadata.uid.filter(|_| is_own).map(|uid| (name, uid)))
        }
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, delete, get, list, patch};
    use serde_json::{Value, json};

    use super::*;

    const GROUPS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots";
    const IN_APP: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/app/volumegroupsnapshots";
    const CONTENTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshotcontents";

    fn group(name: &str, source: &Value) -> Value {
        json!({
            "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": GROUP,
            "metadata": {"name": name, "namespace": "app", "uid": "g"},
            "spec": {"source": source}, "status": {"boundVolumeGroupSnapshotContentName": "another"},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_only_has_the_label_of_a_backup_is_left_alone() {
        let selector = || json!({"selector": {"matchLabels": {"velero.io/volume-group": "g"}}});
        let own = group_name(&"0f".repeat(32));
        let api = Scripted::new().next(get(GROUPS).answers(list(
            "7",
            &[
                group(&own, &selector()),
                group("mine", &selector()),
                group("velero-0f0f", &selector()),
                group(&format!("velero-{}", "g".repeat(OF_NAME)), &selector()),
                group(&own, &json!({"volumeGroupSnapshotContentName": "another"})),
            ],
        )));
        let found = made(&api.client("velero"), "b").await.unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].name_any() == own && found[0].data["spec"]["source"] == selector());
        api.finish();
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_content_that_was_made_for_a_group_goes_with_it() {
        let path = format!("{CONTENTS}/groupsnapcontent-g");
        let of = |uid: &str, source: Value| {
            json!({
                "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
                "metadata": {"name": "groupsnapcontent-g", "uid": "c"},
                "spec": {"volumeGroupSnapshotRef": {"uid": uid}, "source": source},
            })
        };
        for (content, is_own) in [
            (of("g", json!({"volumeHandles": ["v"]})), true),
            (of("other", json!({"volumeHandles": ["v"]})), false),
            (of("g", json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "h"}})), false),
        ] {
            let group = group("velero-1", &json!({"selector": {}}));
            let api = Scripted::new().next(get(&path).answers(content.clone()));
            if is_own {
                api.next(patch(&path).answers(content.clone()));
            }
            api.next(delete(&format!("{IN_APP}/velero-1")).answers(group.clone()));
            let group: DynamicObject = serde_json::from_value(group).unwrap();
            remove(&api.client("velero"), &group).await.unwrap();
            api.finish();
            let api = Scripted::new().next(get(&path).answers(content.clone()));
            if is_own {
                api.next(patch(&path).answers(content));
            }
            assert_eq!(retain(&api.client("velero"), &group).await.is_ok(), is_own);
            api.finish();
        }
    }

    #[test]
    fn the_group_of_a_snapshot_is_of_the_api_of_groups() {
        let owner = |api_version: &str, kind: &str| OwnerReference {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            uid: "u".to_owned(),
            ..OwnerReference::default()
        };
        for (api_version, kind, expected) in [
            ("groupsnapshot.storage.k8s.io/v1", GROUP, Some("u")),
            ("groupsnapshot.storage.k8s.io/v1beta2", GROUP, Some("u")),
            ("example.com/v1", GROUP, None),
            ("groupsnapshot.storage.k8s.io", GROUP, None),
            ("groupsnapshot.storage.k8s.io/v1", "VolumeGroup", None),
        ] {
            assert_eq!(group_of(&[owner(api_version, kind)]), expected, "{api_version} {kind}");
        }
    }
}
