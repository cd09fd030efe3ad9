//! A data mover that was accepted by a node-agent that is gone: what was made for it goes, and it begins anew.

use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_api::keys::{self, FIELD_MANAGER};
use berth_core::mover::MoverKind;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, NamespaceResourceScope};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::granting::api;
use super::mirror::Item;
use crate::client::is_not_found;

/// Pods of a node that is gone are not ended by anybody: then the next look tries again.
const GONE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(200);
const CALL: Duration = Duration::from_secs(10);
const EXPOSING: &str = "velero.io/expose-on-going";

/// Gives what became of it, in words.
///
/// # Errors
/// When something could not be removed or written: it is as it was, and can be tried again.
pub async fn recover(
    client: &Client,
    namespace: &str,
    item: &Item,
    keeps_place: bool,
) -> anyhow::Result<&'static str> {
    let (kind, name) = (item.mover.kind, item.mover.name.as_str());
    if kind == MoverKind::DataUpload && !snapshot_is_there(client, namespace, name).await? {
        // Velero moves the snapshot into its own namespace before it makes the pod, and looks for it in the old one.
        let message = "the node-agent that accepted it died after it had taken the snapshot over";
        let status = json!({"phase": "Failed", "message": message, "completionTimestamp": Timestamp::now()});
        write(client, namespace, item, json!({}), status).await?;
        return Ok("Failed, because the snapshot cannot be exposed a second time");
    }
    gone::<Pod>(client, namespace, name).await?;
    if matches!(kind, MoverKind::DataUpload | MoverKind::DataDownload) {
        gone::<PersistentVolumeClaim>(client, namespace, name).await?;
        gone::<PersistentVolumeClaim>(client, namespace, &format!("{name}-cache")).await?;
    }
    let grant = if keeps_place { json!(Timestamp::now().to_string()) } else { json!(null) };
    let metadata = json!({"labels": {EXPOSING: null}, "annotations": {keys::GRANTED: grant}});
    let mut status = json!({"phase": "New", "acceptedTimestamp": null, "message": null});
    if matches!(kind, MoverKind::DataUpload | MoverKind::DataDownload)
        && let Some(status) = status.as_object_mut()
    {
        status.insert("acceptedByNode".to_owned(), Value::Null);
    }
    write(client, namespace, item, metadata, status).await?;
    Ok("it begins anew, at its old place in line")
}

async fn write(
    client: &Client,
    namespace: &str,
    item: &Item,
    mut metadata: Value,
    status: Value,
) -> anyhow::Result<()> {
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("uid".to_owned(), json!(item.mover.uid));
        metadata.insert("resourceVersion".to_owned(), json!(item.resource_version));
    }
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
    let api = api(client, namespace, item.mover.kind);
    timeout(CALL, api.patch(&item.mover.name, &params, &patch))
        .await?
        .context("its phase cannot be written")?;
    Ok(())
}

/// Is the snapshot still where a node-agent looks for it?
async fn snapshot_is_there(client: &Client, namespace: &str, name: &str) -> anyhow::Result<bool> {
    let upload = timeout(CALL, api(client, namespace, MoverKind::DataUpload).get(name)).await??;
    let text = |pointer| upload.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (source, snapshot) = (text("/spec/sourceNamespace"), text("/spec/csiSnapshot/volumeSnapshot"));
    let gvk = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let snapshots: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), source, &ApiResource::from_gvk(&gvk));
    match timeout(CALL, snapshots.get_metadata(snapshot)).await? {
        Ok(_) => Ok(true),
        // Also where the whole kind is gone.
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).context("the snapshot cannot be looked for"),
    }
}

/// Removes it and waits until it is gone: an agent that begins anew would trip over it.
async fn gone<K>(client: &Client, namespace: &str, name: &str) -> anyhow::Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + std::fmt::Debug + DeserializeOwned,
{
    let (api, kind): (Api<K>, _) = (Api::namespaced(client.clone(), namespace), K::kind(&()));
    match timeout(CALL, api.delete(name, &DeleteParams::default())).await? {
        Ok(_) => {}
        Err(error) if is_not_found(&error) => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("{kind} {name} cannot be removed")),
    }
    let waiting = async {
        while api.get_metadata_opt(name).await?.is_some() {
            sleep(LOOK).await;
        }
        Ok::<_, kube::Error>(())
    };
    match timeout(GONE, waiting).await {
        Ok(done) => done.with_context(|| format!("{kind} {name} cannot be looked at")),
        Err(_) => bail!("{kind} {name} is still there"),
    }
}
