//! Binds the volume with the restored data to the claim that it is for, as Velero's node-agents do:
//! the volume is retained, the claim that created it is removed, and then volume and claim name
//! each other.
//!
//! Each pass takes one step, according to what it has just read. The name of the volume is written
//! to the DataDownload before anything is changed, because after that no other object leads to the
//! volume.

use anyhow::Context as _;
use berth_api::keys::{MADE_FOR, RECLAIM_POLICY, RESTORED_VOLUME};
use berth_core::mover::grant::Mover;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::clear::gone;
use super::{Carried, Item, OwnMovements, Unmade};
use crate::text::chain;
use crate::write::{Write, WriteResult, patch};

/// An annotation of volumes that the PersistentVolume controller has bound to the first claim that
/// fitted.
const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const RETAIN: &str = "Retain";

impl OwnMovements {
    /// `true`: the claim is bound to the volume.
    pub(super) async fn bind(&self, item: &Item) -> Result<bool, Unmade> {
        let Carried::Download(download) = &item.object else {
            return Err(Unmade::Never("only restored data is bound to a claim".to_owned()));
        };
        let Mover { name, .. } = &item.mover;
        let (target, of) = self.target(download).await?;
        let target = target.ok_or_else(|| Unmade::Never(format!("claim {of} is gone")))?;
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), &self.namespace);
        let owns = |metadata: &ObjectMeta| item.owns(metadata);
        if !gone(&pods, name, owns).await.map_err(|error| Unmade::Later(chain(error.as_ref())))? {
            return Ok(false);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &self.namespace);
        let Some(volume) = item.annotation(RESTORED_VOLUME) else {
            let made = claims.get_opt(name).await.map_err(Unmade::call("its claim cannot be read"))?;
            let made = made.filter(|made| item.owns(&made.metadata)).and_then(|made| made.spec?.volume_name);
            let volume = made.filter(|volume| !volume.is_empty());
            let lost = || Unmade::Never("the claim with the restored data is gone".to_owned());
            let volume = volume.ok_or_else(lost)?;
            self.write(item, json!({"metadata": {"annotations": {RESTORED_VOLUME: volume}}})).await;
            return Ok(false);
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
        let found =
            volumes.get_opt(volume).await.map_err(Unmade::call("the restored volume cannot be read"))?;
        let lost = || Unmade::Never(format!("PersistentVolume {volume} with the restored data is gone"));
        let found = found.ok_or_else(lost)?;
        let spec = found.spec.clone().unwrap_or_default();
        let holder = spec.claim_ref.clone().unwrap_or_default();
        let is_here = holder.namespace.as_deref() == Some(self.namespace.as_str())
            && holder.name.as_ref() == Some(name);
        let is_there = holder.namespace == target.namespace() && holder.name == target.metadata.name;
        if !is_here && !is_there {
            return Err(Unmade::Never(format!("PersistentVolume {volume} is bound to another claim")));
        }
        let policy = spec.persistent_volume_reclaim_policy.unwrap_or_default();
        let of_target = target.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let is_bound = target.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"));
        let is_given = is_there && holder.uid == target.metadata.uid && of_target == volume;
        let not_its = || Unmade::Never(format!("PersistentVolume {volume} was not made for this movement"));
        let Some(former) = found.annotations().get(RECLAIM_POLICY) else {
            // Everything is done, and only the phase could not be written.
            if is_given && is_bound {
                return Ok(true);
            }
            // A user who may write to a DataDownload could name any volume there, and that volume's
            // claim could have the name of the movement. So the owner is checked.
            let made = claims.get_opt(name).await.map_err(Unmade::call("its claim cannot be read"))?;
            let is_its = made.is_some_and(|made| {
                item.owns(&made.metadata)
                    && holder.uid.is_some()
                    && holder.uid == made.metadata.uid
                    && made.spec.is_some_and(|spec| spec.volume_name.as_deref() == Some(volume))
            });
            if !is_its {
                return Err(not_its());
            }
            // The selector of a restored claim requires labels that no other volume has.
            let selector = target.spec.as_ref().and_then(|spec| spec.selector.clone());
            let mut labels = selector.and_then(|selector| selector.match_labels).unwrap_or_default();
            labels.insert(MADE_FOR.to_owned(), item.mover.uid.clone());
            let metadata = json!({"annotations": {RECLAIM_POLICY: policy}, "labels": labels});
            let spec = json!({"persistentVolumeReclaimPolicy": RETAIN});
            return change(&volumes, &found, json!({"metadata": metadata, "spec": spec})).await;
        };
        if found.labels().get(MADE_FOR) != Some(&item.mover.uid) {
            return Err(not_its());
        }
        if policy != RETAIN {
            return Err(Unmade::Never(format!("PersistentVolume {volume} is not retained any more")));
        }
        if !gone(&claims, name, owns).await.map_err(|error| Unmade::Later(chain(error.as_ref())))? {
            return Ok(false);
        }
        if of_target.is_empty() {
            let namespace = target.namespace().unwrap_or_default();
            let targets: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &namespace);
            return change(&targets, &target, json!({"spec": {"volumeName": volume}})).await;
        }
        if of_target != volume {
            return Err(Unmade::Never(format!("claim {of} has volume {of_target} by now")));
        }
        if !is_given {
            let to = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": target.namespace(),
                "name": target.metadata.name, "uid": target.metadata.uid, "resourceVersion": null,
            });
            let metadata = json!({"annotations": {BY_CONTROLLER: null}});
            return change(&volumes, &found, json!({"metadata": metadata, "spec": {"claimRef": to}})).await;
        }
        if !is_bound {
            return Ok(false);
        }
        let metadata = json!({"annotations": {RECLAIM_POLICY: null}, "labels": {MADE_FOR: null}});
        let spec = json!({"persistentVolumeReclaimPolicy": former});
        change(&volumes, &found, json!({"metadata": metadata, "spec": spec})).await.map(|_| true)
    }

    /// Says where the restored data is if the movement has failed; empty if it does not stay. A
    /// volume that is not retained is deleted with the claim that created it.
    pub(super) async fn kept_volume(&self, item: &Item) -> String {
        let Some(volume) = item.annotation(RESTORED_VOLUME) else { return String::new() };
        let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
        let is_kept = |found: &PersistentVolume| {
            found.labels().get(MADE_FOR) == Some(&item.mover.uid)
                && found
                    .spec
                    .as_ref()
                    .is_some_and(|spec| spec.persistent_volume_reclaim_policy.as_deref() == Some(RETAIN))
        };
        match volumes.get_opt(volume).await {
            Ok(Some(found)) if is_kept(&found) => format!("; its data is in PersistentVolume {volume}"),
            Ok(_) => String::new(),
            Err(_) => format!("; its data may be in PersistentVolume {volume}, which could not be read"),
        }
    }

    /// Restores the reclaim policy of a volume that its claim does not have yet, when the movement
    /// is deleted, because after that no object says where this copy of the data is.
    pub(super) async fn let_go(&self, item: &Item) -> anyhow::Result<()> {
        let is_deleted = item.object.metadata().deletion_timestamp.is_some();
        let Some(volume) = item.annotation(RESTORED_VOLUME).filter(|_| is_deleted) else { return Ok(()) };
        let volumes: Api<PersistentVolume> = Api::all(self.client().clone());
        let found = volumes.get_opt(volume).await.context("the restored volume cannot be read")?;
        let is_its = |found: &PersistentVolume| found.labels().get(MADE_FOR) == Some(&item.mover.uid);
        let Some(found) = found.filter(is_its) else { return Ok(()) };
        let Some(former) = found.annotations().get(RECLAIM_POLICY) else { return Ok(()) };
        let metadata = json!({"annotations": {RECLAIM_POLICY: null}, "labels": {MADE_FOR: null}});
        let spec = json!({"persistentVolumeReclaimPolicy": former});
        match patch(&volumes, Write::on(&found), json!({"metadata": metadata, "spec": spec})).await {
            WriteResult::Written(_) | WriteResult::Gone(_) => Ok(()),
            answer => answer.written().map(drop).context("the restored volume cannot be changed"),
        }
    }
}

/// Writes to an object on the version that was just read. The next pass takes the next step.
async fn change<K>(api: &Api<K>, found: &K, change: Value) -> Result<bool, Unmade>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    match patch(api, Write::on(found), change).await {
        WriteResult::Written(_) => Ok(false),
        answer => {
            let kind = K::kind(&());
            let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
            Err(Unmade::Later(format!("{kind} {} cannot be changed: {error}", found.name_any())))
        }
    }
}
