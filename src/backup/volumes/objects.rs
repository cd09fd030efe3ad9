//! Snapshots and what was made for a Backup, as the API server has them: how they are listed, which
//! content is a snapshot's own, and what is written on one.

use std::fmt::Debug;

use berth_api::keys::{BACKUP_UID, SNAPSHOT_HANDLE};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_core::limits;
use futures::StreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::backup::insist::insist;
use crate::client::{is_not_found, is_unprocessable};
use crate::patch::json_size;
use crate::text::chain;
use crate::write::{Write, WriteResult, delete, patch};

pub(super) const API_GROUP: &str = "groupsnapshot.storage.k8s.io";
pub(super) const GROUP: &str = "VolumeGroupSnapshot";
/// Most pages of one list.
const PAGES: usize = 1000;

/// How much of one kind is listed.
pub(super) struct ListBounds {
    /// Objects of one page.
    page: u32,
    /// Objects that are kept.
    most: usize,
    /// Bytes of their JSON.
    bytes: usize,
}

/// Of a kind that anybody may create in a namespace of theirs, as large as the API server allows.
pub(super) const FOREIGN: ListBounds = ListBounds { page: 20, most: 10_000, bytes: 32 << 20 };
/// Of a kind that only berth and administrators create.
pub(super) const OWN: ListBounds = ListBounds { page: 500, most: 100_000, bytes: 256 << 20 };
/// How many objects are written at the same time.
const AT_ONCE: usize = 16;
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

/// The objects of a kind that have the label of a Backup's UID; none where the cluster has no such
/// kind, or where that is no UID, because it becomes part of a label selector.
pub(super) async fn list_all<K>(
    api: &Api<K>,
    uid: &str,
    bounds: &ListBounds,
    is_wanted: impl Fn(&K) -> bool,
) -> Result<Vec<K>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Resource + Serialize,
{
    if !is_uid(uid) {
        return Ok(Vec::new());
    }
    list_those(api, ListParams::default().labels(&format!("{BACKUP_UID}={uid}")), bounds, is_wanted).await
}

fn is_uid(uid: &str) -> bool {
    (1..=63).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// As [`list_all`], by other parameters. Only what `is_wanted` is in memory longer than its page,
/// and without its managed fields.
pub(super) async fn list_those<K>(
    api: &Api<K>,
    params: ListParams,
    bounds: &ListBounds,
    is_wanted: impl Fn(&K) -> bool,
) -> Result<Vec<K>, kube::Error>
where
    K: Clone + Debug + DeserializeOwned + Resource + Serialize,
{
    let mut params = params.limit(bounds.page);
    let (mut all, mut bytes) = (Vec::new(), 0_usize);
    for _ in 0..PAGES {
        let page = match insist(|| async { api.list(&params).await.into() }).await {
            Ok(page) => page,
            Err(error) if is_not_found(&error) => return Ok(all),
            Err(error) => return Err(error),
        };
        for mut object in page.items.into_iter().filter(&is_wanted) {
            object.meta_mut().managed_fields = None;
            bytes = bytes.saturating_add(json_size(&object));
            all.push(object);
        }
        if all.len() > bounds.most || bytes > bounds.bytes {
            let why = format!(
                "there are more than {} objects to look at, or they have more than {} MiB",
                bounds.most,
                bounds.bytes >> 20
            );
            return Err(kube::Error::Service(why.into()));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
    let why = format!("the list has more than {PAGES} pages of {} objects", bounds.page);
    Err(kube::Error::Service(why.into()))
}

/// Merges `change` into the object that has this name and UID. One that is gone, or that is another
/// one by now, needs nothing more.
pub(in crate::backup) async fn patch_own<K>(
    api: &Api<K>,
    of: (&str, Option<&str>),
    change: Value,
) -> Result<(), String>
where
    K: Clone + Debug + DeserializeOwned,
{
    patch_there(api, of, change).await.map(drop)
}

/// As [`patch_own`], and gives the object as it is then. `None`: it is gone, or is another one by
/// now.
pub(super) async fn patch_there<K>(
    api: &Api<K>,
    (name, uid): (&str, Option<&str>),
    change: Value,
) -> Result<Option<K>, String>
where
    K: Clone + Debug + DeserializeOwned,
{
    let to = Write::to(name).uid(uid);
    insist_on(api, (name, uid), || patch(api, to, change.clone())).await
}

/// As [`patch_own`], and removes the object.
pub(crate) async fn delete_own<K>(api: &Api<K>, (name, uid): (&str, Option<&str>)) -> Result<(), String>
where
    K: Clone + Debug + DeserializeOwned,
{
    let to = Write::to(name).uid(uid);
    insist_on(api, (name, uid), || delete(api, to)).await.map(drop)
}

/// Repeats a write on the condition of a UID. The API server reports a UID that does not match as a
/// conflict if it deletes, and as an invalid object if it patches, and reports other things in the
/// same way. So the object that has the name now is read, and its UID decides. Without a UID any
/// object of that name is the one. `None`: there is nothing to write to.
async fn insist_on<K, T, F>(
    api: &Api<K>,
    (name, uid): (&str, Option<&str>),
    attempt: impl Fn() -> F,
) -> Result<Option<T>, String>
where
    K: Clone + Debug + DeserializeOwned,
    F: Future<Output = WriteResult<T>>,
{
    let done = insist(|| async {
        let error = match attempt().await {
            WriteResult::Written(object) => return WriteResult::Written(Some(object)),
            WriteResult::Gone(_) => return WriteResult::Written(None),
            WriteResult::Conflict(error) => error,
            WriteResult::Refused(error) if is_unprocessable(&error) => error,
            WriteResult::Refused(error) => return WriteResult::Refused(error),
            WriteResult::TimedOut => return WriteResult::TimedOut,
        };
        match timeout(limits::WRITE, api.get_metadata_opt(name)).await {
            // A conflict with another write passes, so this one is repeated.
            Ok(Ok(Some(found))) if uid.is_none() || found.metadata.uid.as_deref() == uid => {
                WriteResult::Refused(error)
            }
            Ok(Ok(_)) => WriteResult::Written(None),
            Ok(Err(unread)) => WriteResult::Refused(unread),
            Err(_) => WriteResult::TimedOut,
        }
    });
    done.await.map_err(|error| chain(&error))
}

/// Does `work` for each of them, for some at the same time. The error is one of those that came.
pub(super) async fn for_each<K, F>(all: Vec<K>, work: impl Fn(K) -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let done: Vec<_> = futures::stream::iter(all).map(work).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().find(Result::is_err).unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests;
