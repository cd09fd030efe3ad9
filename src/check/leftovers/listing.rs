//! Lists the objects of each kind, in pages and up to a limit.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use berth_api::velero::BackupStorageLocation;
use berth_core::leftover::LocationSync;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{GroupVersionKind, ObjectList};
use kube::{Client, Resource};
use tokio::time::timeout;

use super::kept::{kept, path, synced};
use super::{CONTENT, GROUP, GROUP_CONTENT, SNAPSHOT};
use crate::client::{is_forbidden, is_not_found};
use crate::text::chain;

/// Time-out of one page of a list, and its objects.
const LIST: Duration = Duration::from_secs(30);
const PAGE: u32 = 100;
/// Objects of one kind that are looked at, some hundred bytes of each.
pub(super) const MOST: usize = 100_000;

/// What is read of one kind.
pub(super) struct KindListing<T> {
    pub all: Vec<T>,
    /// There is more.
    pub is_cut: bool,
    /// The cluster has the kind, as far as one may know.
    pub is_there: bool,
}

impl<T> KindListing<T> {
    /// Of a kind that the cluster does not have.
    pub fn absent() -> Self {
        Self { all: Vec::new(), is_cut: false, is_there: false }
    }
}

/// What it means that the cluster has no such kind.
#[derive(Clone, Copy)]
pub(super) enum AbsentKind {
    /// There are none.
    Empty,
    /// There are none, or they cannot be listed: without the right to all kinds, a kind that the
    /// cluster does not have is forbidden.
    Unknown,
    Fault,
}

impl AbsentKind {
    /// Whether this answer means that there are no objects.
    fn is_said_by(self, error: &kube::Error) -> bool {
        match self {
            Self::Empty => is_not_found(error),
            Self::Unknown => is_not_found(error) || is_forbidden(error),
            Self::Fault => false,
        }
    }
}

pub(super) async fn list(
    api: &Api<DynamicObject>,
    absent: AbsentKind,
) -> anyhow::Result<KindListing<DynamicObject>> {
    read(async |params: &ListParams| api.list(params).await, absent, MOST, kept).await
}

pub(super) async fn locations(client: &Client) -> anyhow::Result<KindListing<(String, LocationSync)>> {
    let api = dynamic::<BackupStorageLocation>(client, None);
    let ask = async |params: &ListParams| api.list(params).await;
    read(ask, AbsentKind::Fault, MOST, |location: DynamicObject| {
        let location = kept(location);
        (path(&location), synced(&location))
    })
    .await
}

/// All of them, in pages, up to `most`.
pub(super) async fn read<K: Clone, T>(
    ask: impl AsyncFn(&ListParams) -> Result<ObjectList<K>, kube::Error>,
    absent: AbsentKind,
    most: usize,
    keep: impl Fn(K) -> T,
) -> anyhow::Result<KindListing<T>> {
    let mut params = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let is_first = params.continue_token.is_none();
        let page = timeout(LIST, ask(&params)).await.context("the API server did not answer in time")?;
        let page = match page {
            Ok(page) => page,
            Err(error) if is_first && absent.is_said_by(&error) => {
                return Ok(KindListing::absent());
            }
            Err(error) => return Err(anyhow!(chain(&error))),
        };
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        let is_cut =
            all.len() + page.items.len() > most || token.is_some() && all.len() + page.items.len() == most;
        all.extend(page.items.into_iter().map(&keep).take(most - all.len()));
        match token {
            Some(token) if !is_cut => params = params.continue_token(&token),
            _ => return Ok(KindListing { all, is_cut, is_there: true }),
        }
    }
}

pub(super) fn dynamic<K: Resource<DynamicType = ()>>(
    client: &Client,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    of_kind(client, namespace, &ApiResource::erase::<K>(&()))
}

pub(super) fn snapshots(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    of_kind(client, namespace, &snapshot_kind(SNAPSHOT, "volumesnapshots"))
}

pub(super) fn contents(client: &Client) -> Api<DynamicObject> {
    of_kind(client, None, &snapshot_kind(CONTENT, "volumesnapshotcontents"))
}

pub(super) fn groups(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    of_kind(client, namespace, &group_kind(GROUP, "volumegroupsnapshots"))
}

pub(super) fn group_contents(client: &Client) -> Api<DynamicObject> {
    of_kind(client, None, &group_kind(GROUP_CONTENT, "volumegroupsnapshotcontents"))
}

fn group_kind(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("groupsnapshot.storage.k8s.io", "v1beta2", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn snapshot_kind(kind: &str, plural: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", kind);
    ApiResource::from_gvk_with_plural(&kind, plural)
}

fn of_kind(client: &Client, namespace: Option<&str>, kind: &ApiResource) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
        None => Api::all_with(client.clone(), kind),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::velero::Backup;
    use berth_test_scripted::{Scripted, get};
    use kube::core::PartialObjectMeta;
    use serde_json::{Value, json};

    use super::*;

    const BACKUPS: &str = "/apis/velero.io/v1/backups";

    fn page(kind: &str, names: &[&str], token: &str) -> Value {
        let items: Vec<Value> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name, "uid": format!("u-{name}")}}))
            .collect();
        json!({
            "apiVersion": "velero.io/v1", "kind": kind, "items": items,
            "metadata": {"continue": token, "resourceVersion": "7"},
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_found_has_no_objects_only_if_it_may_be_absent_and_at_first() {
        let path = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
        let api = Scripted::new().once(get(path).refuses(404));
        let found = list(&contents(&api.client("velero")), AbsentKind::Empty).await.unwrap();
        assert!(found.all.is_empty() && !found.is_cut);
        let api = Scripted::new()
            .next(get(path).answers(page("VolumeSnapshotContentList", &["a"], "more")))
            .next(get(path).page("more").refuses(404));
        assert!(list(&contents(&api.client("velero")), AbsentKind::Empty).await.is_err());
        let api = Scripted::new().once(get(BACKUPS).refuses(404));
        let backups = dynamic::<Backup>(&api.client("velero"), None);
        assert!(list(&backups, AbsentKind::Fault).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_may_be_forbidden_because_it_is_absent_has_no_objects() {
        let path = "/apis/groupsnapshot.storage.k8s.io/v1beta2/volumegroupsnapshots";
        for (code, absent, is_empty) in [
            (403, AbsentKind::Unknown, true),
            (404, AbsentKind::Unknown, true),
            (500, AbsentKind::Unknown, false),
            (403, AbsentKind::Empty, false),
        ] {
            let api = Scripted::new().once(get(path).refuses(code));
            let found = list(&groups(&api.client("velero"), None), absent).await;
            let is_absent = found.is_ok_and(|found| found.all.is_empty() && !found.is_cut && !found.is_there);
            assert_eq!(is_absent, is_empty, "{code}");
        }
        let api = Scripted::new()
            .next(get(path).answers(page("VolumeGroupSnapshotList", &["a"], "more")))
            .next(get(path).page("more").refuses(403));
        assert!(list(&groups(&api.client("velero"), None), AbsentKind::Unknown).await.is_err());
        let api = Scripted::new().once(get(path).answers(page("VolumeGroupSnapshotList", &[], "")));
        assert!(list(&groups(&api.client("velero"), None), AbsentKind::Unknown).await.unwrap().is_there);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_the_limit_is_read_and_the_rest_is_known_to_be_there() {
        for (most, token, read_names, is_cut) in
            [(1, "", vec!["a"], true), (2, "", vec!["a", "b"], false), (2, "more", vec!["a", "b"], true)]
        {
            let api = Scripted::new().once(get(BACKUPS).answers(page("BackupList", &["a", "b"], token)));
            let backups = Api::<Backup>::all(api.client("velero"));
            let ask = async |params: &ListParams| backups.list_metadata(params).await;
            let found = read(ask, AbsentKind::Fault, most, |one: PartialObjectMeta<Backup>| {
                one.metadata.name.unwrap()
            })
            .await
            .unwrap();
            assert_eq!(
                (found.all, found.is_cut),
                (read_names.iter().map(|name| (*name).to_owned()).collect(), is_cut)
            );
        }
    }
}
