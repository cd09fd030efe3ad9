//! Removes CSI snapshots. The VolumeSnapshotContent that a snapshot had is gone since its backup
//! ended, or it is that of a snapshot which is kept. So each snapshot gets a content of its own,
//! with the deletion policy Delete, and this content is deleted: the driver then deletes the
//! snapshot. The content has its finalizer from the beginning, because without it the API server
//! would let the content go before the driver has seen it. It is deleted once the driver's sidecar
//! has written the handle into its status, because the sidecar takes the finalizer off without a
//! word to the driver where the status has none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use berth_api::keys;
use futures::future::try_join_all;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::calls::{CALL, list, told, written};
use super::carrying::{Carrying, StoredSnapshot};
use super::secrets::{DeletionSecrets, OF_CONTENT};
use crate::backup::volumes::objects::delete_own;
use crate::client::{is_forbidden, is_not_found};
use crate::pace::paced;
use crate::patch::digest;
use crate::write::{Write, WriteResult, create, delete, patch};

/// The snapshot controller's own: the driver's sidecar removes it once the snapshot is deleted.
const FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// How long one look waits for drivers.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_secs(1);
/// Snapshots whose removal is asked for at the same time, because a backup may have thousands, and
/// one step has so much time and no more.
const AT_ONCE: usize = 8;
/// VolumeSnapshotClasses of one page of a list, and pages. Clusters have a few.
const CLASSES: u32 = 500;
const PAGES: usize = 20;
/// What the sidecar says of a snapshot that the storage does not have: its own words, and those for
/// a driver's answer.
const MISSING: [&str; 2] = ["can not find snapshot for snapshotID", "\"rpc error: code = NotFound "];

/// A content whose snapshot is removed with it.
struct GoingContent {
    name: String,
    /// It was made for this, and is not deleted yet.
    is_made: bool,
}

fn contents(client: kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");
    Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "volumesnapshotcontents"))
}

fn classes(client: kube::Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
    Api::all_with(client, &ApiResource::from_gvk_with_plural(&kind, "volumesnapshotclasses"))
}

fn snapshots(client: kube::Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk_with_plural(&kind, "volumesnapshots"))
}

impl Carrying<'_> {
    fn contents(&self) -> Api<DynamicObject> {
        contents(self.lifecycle.clients.call.clone())
    }

    /// Does the cluster know VolumeSnapshotContents?
    pub(super) async fn has_snapshots(&self) -> anyhow::Result<bool> {
        let params = ListParams::default().limit(1);
        match timeout(CALL, self.contents().list(&params)).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if is_not_found(&error) => Ok(false),
            Ok(Err(error)) => Err(told(error)).context("failed to list VolumeSnapshotContents"),
            Err(_) => bail!("the API server did not answer in time"),
        }
    }

    /// Removes snapshots from their storage, and waits until their drivers have done so. Of a
    /// backup that neither its folder nor a Backup shows (`was_visible`) only those go that have
    /// the content which its run has made: a run lets go of it only after it has made the backup
    /// visible, and what else the folder names may be forged.
    pub(super) async fn remove_snapshots(
        &self,
        all: &BTreeSet<StoredSnapshot>,
        was_visible: bool,
    ) -> anyhow::Result<()> {
        self.check_others(all).await?;
        let secrets = self.deletion_secrets().await?;
        let snapshots: Vec<&StoredSnapshot> = all.iter().collect();
        let mut pending = Vec::new();
        for some in snapshots.chunks(AT_ONCE) {
            let removals = some.iter().map(|snapshot| self.remove_snapshot(snapshot, &secrets, was_visible));
            pending.extend(try_join_all(removals).await?.into_iter().flatten());
        }
        let (count, until) = (pending.len(), Instant::now() + PATIENCE);
        let made: Vec<&str> =
            pending.iter().filter(|content| content.is_made).map(|content| content.name.as_str()).collect();
        for some in made.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|name| self.delete_known(name, until))).await?;
        }
        while let Some(GoingContent { name, .. }) = pending.last() {
            match self.get(&self.contents(), name).await? {
                None => drop(pending.pop()),
                Some(content) if Instant::now() >= until => {
                    return Err(anyhow!(
                        "the CSI driver has not deleted {} snapshots yet (VolumeSnapshotContent {name}: {})",
                        pending.len(),
                        fault_of(&content)
                    ));
                }
                Some(_) => sleep(paced(LOOK)).await,
            }
        }
        info!(backup = self.backup_name(), snapshots = count, "removed the CSI snapshots of a backup");
        Ok(())
    }

    /// Deletes a content that was made for a snapshot, once the sidecar knows the snapshot.
    async fn delete_known(&self, name: &str, until: Instant) -> anyhow::Result<()> {
        loop {
            let found = self.get(&self.contents(), name).await?;
            let Some(content) = found.filter(|content| content.metadata.deletion_timestamp.is_none()) else {
                return Ok(());
            };
            if is_looked_up(&content) {
                match delete(&self.contents(), Write::on(&content)).await {
                    // The sidecar has written to it since.
                    WriteResult::Conflict(_) => {}
                    answer => {
                        return written(answer)
                            .with_context(|| format!("failed to remove VolumeSnapshotContent {name}"));
                    }
                }
            }
            if Instant::now() >= until {
                let why = fault_of(&content);
                bail!("the CSI driver has not found a snapshot yet (VolumeSnapshotContent {name}: {why})");
            }
            sleep(paced(LOOK)).await;
        }
    }

    /// The Secrets with which drivers delete snapshots; none where berth may not list the classes.
    async fn deletion_secrets(&self) -> anyhow::Result<DeletionSecrets> {
        let classes = classes(self.lifecycle.clients.call.clone());
        let (mut params, mut all) = (ListParams::default().limit(CLASSES), Vec::new());
        for _ in 0..PAGES {
            let page = match timeout(CALL, classes.list(&params)).await {
                Ok(Ok(page)) => page,
                Ok(Err(error)) if is_not_found(&error) || is_forbidden(&error) => {
                    return Ok(DeletionSecrets::default());
                }
                Ok(Err(error)) => {
                    return Err(told(error)).context("failed to list the VolumeSnapshotClasses");
                }
                Err(_) => bail!("the API server did not answer in time"),
            };
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(DeletionSecrets::of(all)),
            }
        }
        bail!("there are more than {} VolumeSnapshotClasses", PAGES * CLASSES as usize)
    }

    /// Names the Secret on a content that an earlier attempt has made without it.
    async fn annotate(&self, name: &str, annotations: &BTreeMap<&str, String>) -> anyhow::Result<()> {
        if annotations.is_empty() {
            return Ok(());
        }
        let found = self.get(&self.contents(), name).await?;
        let Some(content) = found.filter(|content| !content.annotations().contains_key(OF_CONTENT[0])) else {
            return Ok(());
        };
        let change = json!({"metadata": {"annotations": annotations}});
        written(patch(&self.contents(), Write::on(&content), change).await)
            .with_context(|| format!("failed to write VolumeSnapshotContent {name}"))
    }

    /// Has a snapshot deleted, or makes a content by whose deletion it is, if `may_make`. That
    /// content is gone once it is done. `None`: the snapshot stays, if there is one.
    async fn remove_snapshot(
        &self,
        snapshot: &StoredSnapshot,
        secrets: &DeletionSecrets,
        may_make: bool,
    ) -> anyhow::Result<Option<GoingContent>> {
        if let Some(content) = self.of_backup(snapshot).await? {
            let name = content.name_any();
            if content.data.pointer("/spec/deletionPolicy").and_then(Value::as_str) != Some("Delete") {
                let change = json!({"spec": {"deletionPolicy": "Delete"}});
                written(patch(&self.contents(), Write::on(&content), change).await)
                    .with_context(|| format!("failed to write VolumeSnapshotContent {name}"))?;
            }
            let text = |pointer: &str| content.data.pointer(pointer).and_then(Value::as_str);
            let of = (text("/spec/volumeSnapshotRef/namespace"), text("/spec/volumeSnapshotRef/name"));
            if let ((Some(namespace), Some(of)), Some(uid)) = (of, text("/spec/volumeSnapshotRef/uid")) {
                let api = snapshots(self.lifecycle.clients.call.clone(), namespace);
                delete_own(&api, (of, Some(uid)))
                    .await
                    .map_err(anyhow::Error::msg)
                    .with_context(|| format!("failed to remove VolumeSnapshot {namespace}/{of}"))?;
            }
            written(delete(&self.contents(), Write::to(&name).uid(content.metadata.uid.as_deref())).await)
                .with_context(|| format!("failed to remove VolumeSnapshotContent {name}"))?;
            return Ok(Some(GoingContent { name, is_made: false }));
        }
        let StoredSnapshot { driver, handle, .. } = snapshot;
        if !may_make {
            warn!(
                backup = self.backup_name(),
                driver,
                ?handle,
                "leaving a CSI snapshot alone that the folder names: the backup was never visible, and no VolumeSnapshotContent of it has that snapshot"
            );
            return Ok(None);
        }
        let name = format!("berth-delete-{:.32}", digest(&format!("{driver}/{handle}")));
        let annotations = secrets.annotations(snapshot);
        let content: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotContent",
            "metadata": {
                "name": name,
                "labels": {keys::BACKUP_NAME: keys::label_value(self.backup_name(), digest)},
                "annotations": annotations,
                "finalizers": [FINALIZER],
            },
            "spec": {
                "deletionPolicy": "Delete",
                "driver": driver,
                "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {"name": name, "namespace": self.lifecycle.namespace},
            },
        }))?;
        match create(&self.contents(), &content).await {
            WriteResult::Written(_) => {}
            // From a deletion that was interrupted.
            WriteResult::Conflict(_) => self.annotate(&name, &annotations).await?,
            answer => answer
                .written()
                .map(drop)
                .map_err(told)
                .with_context(|| format!("failed to create VolumeSnapshotContent {name}"))?,
        }
        Ok(Some(GoingContent { name, is_made: true }))
    }

    /// The content that the snapshot had, if it is still there and still of this snapshot and of
    /// this backup.
    async fn of_backup(&self, snapshot: &StoredSnapshot) -> anyhow::Result<Option<DynamicObject>> {
        if snapshot.content.is_empty() {
            return Ok(None);
        }
        let found = self.get(&self.contents(), &snapshot.content).await?;
        let is_of = |content: &DynamicObject| {
            is_content_of(content, snapshot) && self.is_labelled(content, &snapshot.namespace)
        };
        Ok(found.filter(is_of))
    }

    /// Is the content of this backup, by its label and by the namespace of its VolumeSnapshot? Two
    /// namespaces can have Backups of one name. `namespace`: of the claim.
    fn is_labelled(&self, content: &DynamicObject, namespace: &str) -> bool {
        let label = keys::label_value(self.backup_name(), digest);
        let of = content.data.pointer("/spec/volumeSnapshotRef/namespace").and_then(Value::as_str);
        content.labels().get(keys::BACKUP_NAME) == Some(&label)
            && of.is_some_and(|of| of == namespace || of == self.lifecycle.namespace)
    }

    /// Checks that no content of somebody else has one of the snapshots: what names them lies in
    /// the store, where others may be able to write.
    async fn check_others(&self, all: &BTreeSet<StoredSnapshot>) -> anyhow::Result<()> {
        let named: HashMap<(&str, &str), &str> =
            all.iter().map(|snapshot| (snapshot.key(), snapshot.namespace.as_str())).collect();
        let is_others = |content: &DynamicObject| {
            let of = keys_of(content).find_map(|key| named.get(&key));
            of.is_some_and(|namespace| !self.is_labelled(content, namespace))
        };
        let found = list(&self.contents(), None, is_others).await;
        let found = found.context("failed to list the VolumeSnapshotContents")?;
        match found.first() {
            None => Ok(()),
            Some(other) => Err(anyhow!(
                "VolumeSnapshotContent {} has a snapshot that the backup names, and it is not of this backup: remove that object, or annotate the Backup with berth.dev/forget-volumes=REASON",
                other.name_any()
            )),
        }
    }
}

/// Has the sidecar looked the snapshot up? Then it has the driver delete the snapshot when the
/// content is deleted, unless the storage does not have it, as after a deletion that was
/// interrupted.
fn is_looked_up(content: &DynamicObject) -> bool {
    let text = |pointer: &str| content.data.pointer(pointer).and_then(Value::as_str);
    let is_missing = |fault: &str| MISSING.iter().any(|missing| fault.contains(missing));
    text("/status/snapshotHandle").is_some_and(|handle| !handle.is_empty())
        || text("/status/error/message").is_some_and(is_missing)
}

/// What the sidecar says that it cannot do.
fn fault_of(content: &DynamicObject) -> String {
    let fault = content.data.pointer("/status/error/message").and_then(Value::as_str);
    fault.unwrap_or("it does not say why").chars().take(300).collect()
}

fn is_content_of(content: &DynamicObject, snapshot: &StoredSnapshot) -> bool {
    keys_of(content).any(|key| key == snapshot.key())
}

/// The driver with each handle by which a content names its snapshot.
fn keys_of(content: &DynamicObject) -> impl Iterator<Item = (&str, &str)> {
    let text = |pointer: &str| content.data.pointer(pointer).and_then(Value::as_str);
    let driver = text("/spec/driver");
    let handles = [text("/status/snapshotHandle"), text("/spec/source/snapshotHandle")];
    handles.into_iter().flatten().filter_map(move |handle| Some((driver?, handle)))
}
