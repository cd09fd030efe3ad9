//! Recovers orphans, that is, data movers that no node-agent continues: deletes the objects that
//! were made for them, and resets them to New if that is possible.

use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys;
use berth_api::velero::DataMoverStatus;
use berth_core::mover::MoverKind;
use berth_core::mover::grant::{
    Circumstances, MAX_RESETS, Mover, MoverPhase, Recover, Remedy, Unrecoverable, remedy,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, NamespaceResourceScope, PartialObjectMeta};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::mover_cache::MoverItem;
use super::objects::api;
use crate::client::is_not_found;
use crate::write::{self, Write, WriteResult};

/// A deletion that takes longer is left to the next plan.
const GONE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(200);
const CALL: Duration = Duration::from_secs(10);
const EXPOSING: &str = "velero.io/expose-on-going";

/// Returns what was done, in words, and the resourceVersion that was written; `None`: nothing was
/// done yet.
///
/// # Errors
/// The data mover has changed since the view, or an object could not be deleted or written: a later
/// plan tries again.
pub async fn recover(
    client: &Client,
    namespace: &str,
    item: &MoverItem,
    recover: Recover,
    node_gone: bool,
) -> anyhow::Result<Option<(String, String)>> {
    let mover = &*item.mover;
    let name = &mover.name;
    // A recent write of its agent outweighs the earlier finding that the agent is away, so nothing
    // is deleted before a fresh read.
    let found = timeout(CALL, api(client, namespace, mover.kind).get(name)).await??;
    if found.metadata.uid.as_ref() != Some(&mover.uid)
        || found.metadata.resource_version.as_ref() != Some(&item.resource_version)
    {
        bail!("it has changed meanwhile");
    }
    let snapshot_taken =
        mover.kind == MoverKind::DataUpload && !snapshot_is_there(client, namespace, &found).await?;
    let circumstances = Circumstances { snapshot_taken, node_gone, for_long: recover.for_long };
    match remedy(mover, circumstances) {
        Remedy::Wait => Ok(None),
        Remedy::Reset => {
            clear(client, namespace, mover).await?;
            let written = write(client, namespace, item, anew(mover, recover.keeps_place)).await?;
            Ok(Some(("it begins anew, at its old place in line".to_owned(), written)))
        }
        Remedy::MarkInProgress => {
            let written = write(client, namespace, item, begun(client, namespace, name).await?).await?;
            let text =
                "its pod moves the data by itself, and the node-agent takes the result when it is back";
            Ok(Some((text.to_owned(), written)))
        }
        Remedy::Fail(why) => {
            let message = advice(why, namespace, mover);
            let status = DataMoverStatus::ended(MoverPhase::Failed, &message, Timestamp::now());
            let patch = json!({"metadata": {"labels": {EXPOSING: null}}, "status": status});
            let written = write(client, namespace, item, patch).await?;
            // It has ended, so no plan considers it again.
            if let Err(error) = clear(client, namespace, mover).await {
                warn!(kind = %mover.kind, %name, error = format!("{error:#}"), "marked data mover as Failed, but could not delete its objects");
            }
            Ok(Some((format!("Failed: {message}"), written)))
        }
    }
}

/// The advice in `status.message`.
fn advice(why: Unrecoverable, namespace: &str, mover: &Mover) -> String {
    let name = &mover.name;
    match why {
        Unrecoverable::SnapshotTaken => format!(
            "the node-agent that carried it died after Velero had taken its snapshot over, so that it cannot begin \
             anew: back the volume up once more. The snapshot is still there, as VolumeSnapshot {name} in {namespace}: \
             delete that when it is of no use"
        ),
        Unrecoverable::TooOften => format!(
            "it began anew {MAX_RESETS} times, and each time the node-agent that carried it went away: see to the \
             node-agents, then run the backup or restore once more"
        ),
        Unrecoverable::NodeGone => format!(
            "node {} is gone, and its volume cannot be reached from another one: run the backup or restore once more",
            mover.bound_node.as_deref().unwrap_or_default()
        ),
    }
}

/// A patch that resets it to New, as before it was accepted.
fn anew(mover: &Mover, keeps_place: bool) -> Value {
    let grant = if keeps_place { json!(Timestamp::now().to_string()) } else { json!(null) };
    let count = (mover.resets + 1).to_string();
    let annotations = json!({keys::GRANTED: grant, keys::BEGUN_ANEW: count});
    let metadata = json!({"labels": {EXPOSING: null}, "annotations": annotations});
    json!({"metadata": metadata, "status": DataMoverStatus::reset()})
}

/// A patch to InProgress, as its node-agent would have written it.
async fn begun(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Value> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = timeout(CALL, pods.get(name)).await?.context("its pod cannot be read")?;
    let os = pod.spec.and_then(|spec| spec.os).map(|os| os.name);
    let status = DataMoverStatus::begun(Timestamp::now(), os.as_deref());
    Ok(json!({"metadata": {"labels": {EXPOSING: null}}, "status": status}))
}

/// Deletes the objects that were made for it. What Velero records about a snapshot stays.
async fn clear(client: &Client, namespace: &str, mover: &Mover) -> anyhow::Result<()> {
    let name = mover.name.as_str();
    let uid = mover.uid.as_str();
    gone::<Pod>(client, namespace, name, uid).await?;
    if !mover.kind.is_bound() {
        gone::<PersistentVolumeClaim>(client, namespace, name, uid).await?;
    }
    if matches!(mover.kind, MoverKind::DataDownload | MoverKind::PodVolumeRestore) {
        gone::<PersistentVolumeClaim>(client, namespace, &format!("{name}-cache"), uid).await?;
    }
    Ok(())
}

/// Returns the resourceVersion.
async fn write(client: &Client, namespace: &str, item: &MoverItem, patch: Value) -> anyhow::Result<String> {
    let mover = &item.mover;
    let api = api(client, namespace, mover.kind);
    let as_seen = Write::to(&mover.name).uid(Some(&mover.uid)).version(Some(&item.resource_version));
    let written = write::patch(&api, as_seen, patch).await;
    let written = written.written().context("its phase cannot be written")?;
    Ok(written.metadata.resource_version.unwrap_or_default())
}

/// Is the snapshot still where a node-agent looks for it, and only there?
async fn snapshot_is_there(client: &Client, namespace: &str, upload: &DynamicObject) -> anyhow::Result<bool> {
    let text = |pointer| upload.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (source, snapshot) = (text("/spec/sourceNamespace"), text("/spec/csiSnapshot/volumeSnapshot"));
    // Velero's own copy has the name of the DataUpload. If both exist, the agent died in between,
    // and the next one would fail because of the copy.
    let name = upload.metadata.name.as_deref().unwrap_or_default();
    Ok(has_snapshot(client, source, snapshot).await? && !has_snapshot(client, namespace, name).await?)
}

async fn has_snapshot(client: &Client, namespace: &str, name: &str) -> anyhow::Result<bool> {
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let snapshots: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&gvk));
    match timeout(CALL, snapshots.get_metadata(name)).await? {
        Ok(_) => Ok(true),
        // Also if the whole kind is gone.
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).context("the VolumeSnapshot cannot be read"),
    }
}

/// Deletes it and waits until it is gone, because an agent that starts over would fail while it
/// exists. Only objects that were made for the data mover with the UID `owner`: Velero's agents
/// name the data mover as an owner of each pod and claim.
async fn gone<K>(client: &Client, namespace: &str, name: &str, owner: &str) -> anyhow::Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (api, kind): (Api<K>, _) = (Api::namespaced(client.clone(), namespace), K::kind(&()));
    let found = timeout(CALL, api.get_metadata_opt(name)).await?;
    let found = found.with_context(|| format!("{kind} {name} cannot be read"))?;
    let is_its_own = |found: &PartialObjectMeta<K>| found.owner_references().iter().any(|of| of.uid == owner);
    let Some(found) = found.filter(is_its_own) else { return Ok(()) };
    match write::delete(&api, Write::to(name).uid(found.metadata.uid.as_deref())).await {
        WriteResult::Gone(_) => return Ok(()),
        // Another object has its name by now, or it stands: the look below tells which.
        WriteResult::Conflict(_) => {}
        answer => answer.written().with_context(|| format!("{kind} {name} cannot be removed"))?,
    }
    let waiting = async {
        while api.get_metadata_opt(name).await?.is_some_and(|left| left.metadata.uid == found.metadata.uid) {
            sleep(LOOK).await;
        }
        Ok::<_, kube::Error>(())
    };
    match timeout(GONE, waiting).await {
        Ok(done) => done.with_context(|| format!("{kind} {name} cannot be read")),
        Err(_) => bail!("{kind} {name} is still there"),
    }
}

#[cfg(test)]
mod tests;
