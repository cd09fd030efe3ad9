//! The claim of a DataUpload, which is created from a copy of the snapshot.

use berth_api::keys;
use berth_api::node_agent::BackupClaim;
use berth_api::quantity::Quantity;
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_core::mover::grant::Mover;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::make::FILES;
use super::{Item, OwnMovements, Unmade};
use crate::backup::volumes::objects::content_of;
use crate::text::chain;

impl OwnMovements {
    pub(super) async fn content(&self, namespace: &str, name: &str) -> Result<VolumeSnapshotContent, Unmade> {
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(self.client().clone(), namespace);
        let what = "its VolumeSnapshot cannot be read";
        let snapshot = snapshots.get_opt(name).await.map_err(Unmade::call(what))?;
        let gone = || Unmade::Never(format!("there is no VolumeSnapshot {namespace}/{name}"));
        let snapshot = snapshot.ok_or_else(gone)?;
        let contents: Api<VolumeSnapshotContent> = Api::all(self.client().clone());
        let what = "the content of its VolumeSnapshot cannot be read";
        let content = content_of(&snapshot).unwrap_or_default();
        let content = contents.get_opt(&content).await.map_err(Unmade::call(what))?;
        let late = || Unmade::Later(format!("VolumeSnapshot {namespace}/{name} has no content yet"));
        let content = content.ok_or_else(late)?;
        // A user who may write the status of a VolumeSnapshot could name the content of another
        // snapshot.
        let is_its = snapshot.uid().is_some() && content.spec.volume_snapshot_ref.uid == snapshot.uid();
        if is_its {
            Ok(content)
        } else {
            Err(Unmade::Never(format!("VolumeSnapshot {namespace}/{name} names the content of another one")))
        }
    }

    /// Creates the copy of the snapshot, and the claim from it. Returns the mode of the volume.
    pub(super) async fn copy(
        &self,
        item: &Item,
        content: &VolumeSnapshotContent,
        source: Option<&PersistentVolumeClaim>,
        class: &str,
        own: &BackupClaim,
    ) -> Result<String, Unmade> {
        let Mover { name, uid, .. } = &item.mover;
        let spec = &content.spec;
        let status = content.status.clone().unwrap_or_default();
        let handle = status.snapshot_handle.filter(|handle| !handle.is_empty());
        let handle = handle.ok_or_else(|| Unmade::Later("its snapshot is not cut yet".to_owned()))?;
        let of_source = source.and_then(|claim| claim.spec.as_ref());
        let mode = match &spec.source_volume_mode {
            Some(mode) => mode.clone(),
            None => self.original_mode(item, content, source).await?,
        };
        let asked = of_source.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
        let size = size(status.restore_size, asked.map(|asked| asked.0.as_str()));
        let size = size.ok_or_else(|| {
            Unmade::Never("neither its snapshot nor the claim says how large the volume is".to_owned())
        })?;
        let mut copy = json!({
            "metadata": {"name": name, "labels": {keys::MADE_FOR: uid}},
            "spec": {
                "deletionPolicy": "Retain", "driver": spec.driver, "source": {"snapshotHandle": handle},
                "volumeSnapshotRef": {
                    "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "namespace": self.namespace, "name": name,
                },
            },
        });
        let mut snapshot = json!({
            "metadata": item.made(), "spec": {"source": {"volumeSnapshotContentName": name}},
        });
        if let Some(class) = &spec.volume_snapshot_class_name {
            copy["spec"]["volumeSnapshotClassName"] = json!(class);
            snapshot["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        if let Some(mode) = &spec.source_volume_mode {
            copy["spec"]["sourceVolumeMode"] = json!(mode);
        }
        let kind = ApiResource::erase::<VolumeSnapshotContent>(&());
        let contents: Api<DynamicObject> = Api::all_with(self.client().clone(), &kind);
        self.ensure(&contents, &dynamic(&kind, copy)?, item, "VolumeSnapshotContent").await?;
        let kind = ApiResource::erase::<VolumeSnapshot>(&());
        let snapshots: Api<DynamicObject> =
            Api::namespaced_with(self.client().clone(), &self.namespace, &kind);
        self.ensure(&snapshots, &dynamic(&kind, snapshot)?, item, "VolumeSnapshot").await?;
        let access = if own.read_only { "ReadOnlyMany" } else { "ReadWriteOnce" };
        let mut claim = json!({
            "metadata": item.made(),
            "spec": {
                "accessModes": [access], "volumeMode": mode,
                "resources": {"requests": {"storage": size}},
                "dataSource": {
                    "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name,
                },
            },
        });
        if !class.is_empty() {
            claim["spec"]["storageClassName"] = json!(class);
        }
        if !own.annotations.is_empty() {
            claim["metadata"]["annotations"] = json!(own.annotations);
        }
        self.ensure_claim(item, claim).await?;
        Ok(mode)
    }

    /// The mode of the volume of which the snapshot was taken, if the snapshot does not say it. It
    /// is read from the volume whose claim was backed up, because another claim may have the name
    /// by now, with the other mode, and the bytes of a device, which its owner chose, must not be
    /// mounted as a file system.
    async fn original_mode(
        &self,
        item: &Item,
        content: &VolumeSnapshotContent,
        source: Option<&PersistentVolumeClaim>,
    ) -> Result<String, Unmade> {
        let named = source.and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
        let found = match named.filter(|volume| !volume.is_empty()) {
            Some(volume) => {
                let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
                let what = "the volume that is backed up cannot be read";
                volumes.get_opt(volume).await.map_err(Unmade::call(what))?
            }
            None => None,
        };
        let labels = item.object.metadata().labels.as_ref();
        let of = labels.and_then(|labels| labels.get(keys::PVC_UID)).filter(|uid| !uid.is_empty());
        let spec = found.and_then(|volume| volume.spec);
        let is_its = |spec: &PersistentVolumeSpec| {
            let holder = spec.claim_ref.as_ref().and_then(|claim| claim.uid.as_ref());
            of.is_some() && holder == of
        };
        let spec = spec.filter(is_its).ok_or_else(|| {
            Unmade::Never(format!(
                "nobody can tell whether its volume had files or was a device: VolumeSnapshotContent {} does not say it, and the claim that was backed up is gone, or is another one by now: run a snapshot controller that notes it (version 7, or --prevent-volume-mode-conversion), and back up again",
                content.name_any()
            ))
        })?;
        Ok(spec.volume_mode.unwrap_or_else(|| FILES.to_owned()))
    }
}

fn dynamic(kind: &ApiResource, mut object: Value) -> Result<DynamicObject, Unmade> {
    object["apiVersion"] = json!(kind.api_version);
    object["kind"] = json!(kind.kind);
    serde_json::from_value(object).map_err(|error| Unmade::Never(chain(&error)))
}

/// The size of the claim: at least what the snapshot requires, and at least what the claim had.
fn size(restore: Option<i64>, asked: Option<&str>) -> Option<String> {
    let restore = restore.filter(|bytes| *bytes > 0).map(|bytes| bytes.to_string());
    let asked = asked.map(str::to_owned).filter(|asked| Quantity::parse(asked).is_some());
    restore.into_iter().chain(asked).max_by_key(|text| Quantity::parse(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_claim_is_as_large_as_both_ask_for() {
        for (restore, asked, wanted) in [
            (Some(1 << 30), Some("2Gi"), Some("2Gi")),
            (Some(3 << 30), Some("2Gi"), Some("3221225472")),
            (Some(0), Some("1M"), Some("1M")),
            (None, Some("odd"), None),
            (Some(5), None, Some("5")),
            (None, None, None),
        ] {
            assert_eq!(size(restore, asked).as_deref(), wanted, "{restore:?} {asked:?}");
        }
    }
}
