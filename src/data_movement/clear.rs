//! Removes what berth created for a movement, and nothing else.

use std::fmt::Debug;

use anyhow::Context as _;
use berth_api::keys::{BACKUP_UID, MADE_FOR};
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::DataUpload;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::Api;
use serde::de::DeserializeOwned;

use super::{Carried, Item, OwnMovements};
use crate::backup::volumes::clean::remove;
use crate::write::{Write, WriteResult, delete};

impl OwnMovements {
    /// `true`: everything that was created for it is removed.
    pub(super) async fn clear(&self, item: &Item) -> anyhow::Result<bool> {
        let (client, name) = (|| self.client().clone(), item.mover.name.as_str());
        let owns = |metadata: &ObjectMeta| item.owns(metadata);
        let pods: Api<Pod> = Api::namespaced(client(), &self.namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), &self.namespace);
        let mut is_clear = gone(&pods, name, owns).await.context("its pod cannot be removed")?;
        if item.object.is_of_files() {
            return Ok(is_clear);
        }
        is_clear &= gone(&claims, name, owns).await.context("its claim cannot be removed")?;
        let Carried::Upload(upload) = &item.object else {
            if is_clear {
                self.let_go(item).await?;
            }
            return Ok(is_clear);
        };
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(client(), &self.namespace);
        let contents: Api<VolumeSnapshotContent> = Api::all(client());
        let what = "the copy of its snapshot cannot be removed";
        is_clear &= gone(&snapshots, name, owns).await.context(what)?;
        is_clear &= gone(&contents, name, owns).await.context(what)?;
        if is_clear {
            self.remove_original(upload).await?;
        }
        Ok(is_clear)
    }

    /// Removes the snapshot that a backup has taken for this movement, also from the storage. A
    /// snapshot of a user stays.
    async fn remove_original(&self, upload: &DataUpload) -> anyhow::Result<()> {
        let spec = &upload.spec;
        let name = spec.csi_snapshot.as_ref().and_then(|snapshot| snapshot.volume_snapshot.as_deref());
        let (Some(namespace), Some(name)) = (spec.source_namespace.as_deref(), name) else { return Ok(()) };
        if namespace.is_empty() || name.is_empty() {
            return Ok(());
        }
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(self.client().clone(), namespace);
        let found = snapshots.get_opt(name).await.context("its VolumeSnapshot cannot be read")?;
        let Some(found) = found.filter(|found| is_taken_for(found, upload)) else { return Ok(()) };
        remove(self.client(), &found)
            .await
            .map_err(anyhow::Error::msg)
            .context("its VolumeSnapshot cannot be removed")
    }
}

/// Did a backup take this snapshot of this claim for this movement? The snapshot has the movement's
/// UID or, until the backup hands it over, the UID of that very Backup.
fn is_taken_for(snapshot: &VolumeSnapshot, upload: &DataUpload) -> bool {
    let has =
        |key: &str, uid: &str| !uid.is_empty() && snapshot.labels().get(key).is_some_and(|of| of == uid);
    let mut owners = upload.owner_references().iter().filter(|owner| owner.kind == "Backup");
    let is_its = has(MADE_FOR, upload.metadata.uid.as_deref().unwrap_or_default())
        || owners.any(|backup| has(BACKUP_UID, &backup.uid));
    let claim = snapshot.spec.source.persistent_volume_claim_name.as_ref();
    is_its && claim.is_some() && claim == upload.spec.source_pvc.as_ref()
}

/// Removes an object that was created for a movement. `true`: it no longer exists.
pub(super) async fn gone<K>(
    api: &Api<K>,
    name: &str,
    is_its: impl Fn(&ObjectMeta) -> bool,
) -> anyhow::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    let found = api.get_metadata_opt(name).await?;
    let Some(found) = found.filter(|found| is_its(&found.metadata)) else { return Ok(true) };
    if found.metadata.deletion_timestamp.is_some() {
        return Ok(false);
    }
    match delete(api, Write::to(name).uid(found.metadata.uid.as_deref())).await {
        WriteResult::Gone(_) => Ok(true),
        WriteResult::Conflict(_) => Ok(false),
        answer => Ok(answer.written().map(|()| false)?),
    }
}
