//! Snapshots and what was made for a Backup, as the API server has them: how they are listed, which
//! content is a snapshot's own, and what is written on one.

use berth_api::keys::{BACKUP_UID, SNAPSHOT_HANDLE};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::backup::insist::insist;
use crate::client::is_not_found;
use crate::text::chain;

pub(super) const API_GROUP: &str = "groupsnapshot.storage.k8s.io";
pub(super) const GROUP: &str = "VolumeGroupSnapshot";
/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Most characters of a message in a status.
const MESSAGE: usize = 200;

/// The beginning, in one line, of a message that a driver, a controller or a node-agent has written
/// into a status.
pub(super) fn short(message: &str) -> String {
    message.chars().filter(|c| !c.is_control()).take(MESSAGE).collect()
}

/// Whether an archive may name this snapshot.
pub fn is_kept(snapshot: &VolumeSnapshot) -> bool {
    snapshot.annotations().contains_key(SNAPSHOT_HANDLE)
}

/// The name by which a snapshot controller makes the content of a snapshot.
pub fn content_of(snapshot: &VolumeSnapshot) -> Option<String> {
    let bound = snapshot.status.as_ref().and_then(|status| status.bound_volume_snapshot_content_name.clone());
    bound.filter(|name| !name.is_empty()).or_else(|| Some(format!("snapcontent-{}", snapshot.uid()?)))
}

/// A patch by which a content keeps, or loses, what it stands for in the storage.
pub fn policy(is_kept: bool) -> Value {
    json!({"spec": {"deletionPolicy": if is_kept { "Retain" } else { "Delete" }}})
}

/// The content of a snapshot, if that content says the same: whoever may write the status of a
/// VolumeSnapshot could name the content of another one there.
pub(super) async fn own_content(
    client: &Client,
    snapshot: &VolumeSnapshot,
) -> Result<Option<VolumeSnapshotContent>, String> {
    let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
    let Some(name) = content_of(snapshot) else { return Ok(None) };
    let content = match insist(|| async { contents.get(&name).await.into() }).await {
        Ok(content) => content,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(chain(&error)),
    };
    let of = &content.spec.volume_snapshot_ref.uid;
    let is_own = content.metadata.uid.is_some() && of.is_some() && *of == snapshot.uid();
    Ok(is_own.then_some(content))
}

/// The UID of the group that a snapshot belongs to.
pub(super) fn group_of(owners: &[OwnerReference]) -> Option<&str> {
    let is_group = |owner: &&OwnerReference| {
        let group = owner.api_version.split_once('/').map(|(group, _)| group);
        group == Some(API_GROUP) && owner.kind == GROUP
    };
    owners.iter().find(is_group).map(|owner| owner.uid.as_str())
}

/// All objects of a kind that were made for a Backup; none where the cluster has no such kind.
pub(super) async fn list_all<K>(api: &Api<K>, uid: &str) -> Result<Vec<K>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    list_those(api, ListParams::default().labels(&format!("{BACKUP_UID}={uid}")), |_| true).await
}

/// As [`list_all`], by other parameters. Only what `is_wanted` is in memory longer than its page.
pub(super) async fn list_those<K>(
    api: &Api<K>,
    params: ListParams,
    is_wanted: impl Fn(&K) -> bool,
) -> Result<Vec<K>, kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = match insist(|| async { api.list(&params).await.into() }).await {
            Ok(page) => page,
            Err(error) if is_not_found(&error) => return Ok(all),
            Err(error) => return Err(error),
        };
        all.extend(page.items.into_iter().filter(&is_wanted));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// An object that is gone, or that is another one by now, needs nothing more.
pub(super) fn gone(done: Result<(), kube::Error>) -> Result<(), String> {
    match done {
        Err(error) if !(is_not_found(&error) || crate::client::is_conflict(&error)) => Err(chain(&error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_api::snapshot::VolumeSnapshotSpec;

    use super::*;

    #[test]
    fn a_content_is_known_by_the_snapshot_that_it_may_not_be_bound_to_yet() {
        let mut snapshot = VolumeSnapshot::new("s", VolumeSnapshotSpec::default());
        assert_eq!(content_of(&snapshot), None);
        snapshot.metadata.uid = Some("u".to_owned());
        assert_eq!(content_of(&snapshot).as_deref(), Some("snapcontent-u"));
        let status = json!({"boundVolumeSnapshotContentName": "c"});
        snapshot.status = Some(serde_json::from_value(status).unwrap());
        assert_eq!(content_of(&snapshot).as_deref(), Some("c"));
        assert!(!is_kept(&snapshot));
        snapshot.metadata.annotations = Some(BTreeMap::from([(SNAPSHOT_HANDLE.to_owned(), "h".to_owned())]));
        assert!(is_kept(&snapshot));
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
