//! Creates what a movement needs: a claim in berth's namespace, and the pod that mounts it. For the
//! files of a pod's volume it is the pod alone.

use std::collections::BTreeMap;
use std::fmt::Debug;

use berth_api::keys;
use berth_api::mover_pod;
use berth_api::node_agent::MoverPods;
use berth_api::velero::{DataDownload, DataUpload};
use berth_core::affinity::{MoverOperation, Term};
use berth_core::mover::grant::Mover;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::Api;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

use super::pod::{PodPlace, pod};
use super::{Carried, Item, OwnMovements, Unmade};
use crate::install::pod_volumes::AGENT;
use crate::text::chain;
use crate::write::{WriteResult, create};

/// An annotation of claims that names the node that the scheduler chose for their pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Part of the API server's message about a pod whose PriorityClass does not exist.
const NO_PRIORITY_CLASS: &str = "no PriorityClass with name";

/// The mode of a volume that pods use as a device.
const BLOCK: &str = "Block";
pub(super) const FILES: &str = "Filesystem";

impl OwnMovements {
    /// Creates what is missing. Every object is created once, because it has the name of the
    /// movement.
    pub(super) async fn make(&self, item: &Item) -> Result<(), Unmade> {
        let Mover { name, .. } = &item.mover;
        let agents: Api<DaemonSet> = Api::namespaced(self.client().clone(), &self.namespace);
        let agents =
            agents.get_opt(AGENT).await.map_err(Unmade::call("berth's node agents cannot be read"))?;
        let template = agents.and_then(|agents| agents.spec).map(|spec| spec.template);
        let template = template.ok_or_else(|| {
            Unmade::Never(format!(
                "there is no DaemonSet {AGENT}, whose image and settings the pod would have: berth install --pod-volumes"
            ))
        })?;
        let place = match &item.object {
            Carried::Upload(upload) => self.for_upload(item, upload, self.claim(item).await?).await?,
            Carried::Download(download) => {
                let is_there = self.claim(item).await?.is_some();
                self.for_download(item, download, is_there).await?
            }
            Carried::Backup(backup) => self.for_files(item, backup.spec.pod.as_ref()).await?,
            Carried::Restore(restore) => self.for_files(item, restore.spec.pod.as_ref()).await?,
        };
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), &self.namespace);
        let own = self.node_cache.read(|state| state.configuration.config.pods.clone());
        let of = |own: &MoverPods| {
            pod(&template, &item.mover, &self.namespace, item.made(), own, &place).map_err(Unmade::Never)
        };
        match self.ensure(&pods, &of(&own)?, item, "pod").await {
            // Velero ignores a PriorityClass that does not exist, too.
            Err(Unmade::Later(why)) if own.priority_class.is_some() && why.contains(NO_PRIORITY_CLASS) => {
                warn!(%name, why, "priorityClassName is ignored, because there is no such PriorityClass");
                let own = MoverPods { priority_class: None, ..own };
                self.ensure(&pods, &of(&own)?, item, "pod").await
            }
            made => made,
        }
    }

    /// The claim that was created for the movement.
    async fn claim(&self, item: &Item) -> Result<Option<PersistentVolumeClaim>, Unmade> {
        let Mover { name, .. } = &item.mover;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &self.namespace);
        let what = "its claim in berth's namespace cannot be read";
        match claims.get_opt(name).await.map_err(Unmade::call(what))? {
            Some(found) if !item.owns(&found.metadata) => Err(taken("claim", name)),
            found => Ok(found),
        }
    }

    /// Creates the claim from the snapshot. The original snapshot stays as it is: the content of
    /// the copy has the policy Retain, so removing the copy removes nothing from the storage.
    async fn for_upload(
        &self,
        item: &Item,
        upload: &DataUpload,
        there: Option<PersistentVolumeClaim>,
    ) -> Result<PodPlace, Unmade> {
        let Mover { name, .. } = &item.mover;
        let spec = &upload.spec;
        let of = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
        let namespace = of(&spec.source_namespace).ok_or_else(|| empty("spec.sourceNamespace"))?;
        let snapshot = spec.csi_snapshot.clone().unwrap_or_default();
        let class = of(&snapshot.storage_class).unwrap_or_default();
        let own = self.node_cache.read(|state| state.configuration.config.backup_pvc.get(&class).cloned());
        let own = own.unwrap_or_default();
        let class = own.storage_class.clone().unwrap_or(class);
        let source = match of(&spec.source_pvc) {
            Some(source) => {
                let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &namespace);
                let what = "the claim that is backed up cannot be read";
                let found = claims.get_opt(&source).await.map_err(Unmade::call(what))?;
                // Another claim may have the name by now, with any size, and no quota of its
                // namespace limits the new claim. So the UID is compared.
                let wanted = upload.labels().get(keys::PVC_UID);
                found.filter(|claim| wanted.is_none_or(|uid| claim.metadata.uid.as_ref() == Some(uid)))
            }
            None => None,
        };
        let mode = match there {
            Some(claim) => claim.spec.and_then(|spec| spec.volume_mode),
            None => {
                let original = of(&snapshot.volume_snapshot);
                let original = original.ok_or_else(|| empty("spec.csiSnapshot.volumeSnapshot"))?;
                let found = self.content(&namespace, &original).await?;
                Some(self.copy(item, &found, source.as_ref(), &class, &own).await?)
            }
        };
        // If the claim is bound only when its pod is scheduled, the pod must run where the volume
        // can be.
        let waits = self.waits(&class);
        let bound =
            source.and_then(|claim| claim.spec?.volume_name).filter(|volume| waits && !volume.is_empty());
        let terms = match bound {
            Some(volume) => self.topology(&volume).await?,
            None => Vec::new(),
        };
        let topology: Vec<Term> = terms.iter().map(mover_pod::term).collect();
        let operation = MoverOperation::Backup {
            claim_class: Some(&class),
            mapped_class: None,
            source_class: None,
            topology: Some(&topology),
        };
        let place = PodPlace {
            claim: name.clone(),
            is_read_only: true,
            is_claim_read_only: own.read_only,
            is_block: mode.as_deref() == Some(BLOCK),
            no_relabeling: own.no_relabeling,
            terms,
            ..PodPlace::default()
        };
        Ok(self.placed(operation, place))
    }

    /// Creates the claim into which the data is restored, with the settings of the claim that it is
    /// for.
    async fn for_download(
        &self,
        item: &Item,
        download: &DataDownload,
        is_there: bool,
    ) -> Result<PodPlace, Unmade> {
        let (target, of) = self.target(download).await?;
        let Some(target) = target else {
            return Err(Unmade::Later(format!("claim {of} is not there yet")));
        };
        let annotations = target.metadata.annotations.unwrap_or_default();
        let spec = target.spec.unwrap_or_default();
        if let Some(volume) = spec.volume_name.filter(|volume| !volume.is_empty()) {
            return Err(Unmade::Never(format!(
                "claim {of} has volume {volume} already, and data is restored only into a new one: give the claim a selector that no volume has (velero.io/dynamic-pv-restore), so that nobody else makes it one"
            )));
        }
        let mode = spec.volume_mode.unwrap_or_else(|| FILES.to_owned());
        let class = spec.storage_class_name.clone().unwrap_or_default();
        let ignores = self.node_cache.read(|state| state.configuration.config.ignore_delay_binding);
        let node = match annotations.get(SELECTED_NODE) {
            _ if ignores || !self.waits(&class) => None,
            Some(node) => Some(node.clone()),
            None => {
                return Err(Unmade::Later(format!(
                    "claim {of} waits for a pod that uses it, because its StorageClass {class} binds then: create that pod, or set restorePVC.ignoreDelayBinding in the node agents' ConfigMap"
                )));
            }
        };
        if !is_there {
            let claim = json!({
                "metadata": item.made(),
                "spec": {
                    "accessModes": spec.access_modes, "volumeMode": mode,
                    "storageClassName": spec.storage_class_name, "resources": spec.resources,
                },
            });
            self.ensure_claim(item, claim).await?;
        }
        let operation = MoverOperation::Restore {
            class: Some(&class),
            binding: self.binding(&class),
            ignore_delay_binding: ignores,
            selected_node: node.as_deref(),
        };
        let place = PodPlace {
            claim: item.mover.name.clone(),
            is_block: mode == BLOCK,
            node: node.clone(),
            ..PodPlace::default()
        };
        Ok(self.placed(operation, place))
    }

    /// The claim that a DataDownload is for, and its namespace and name.
    pub(super) async fn target(
        &self,
        download: &DataDownload,
    ) -> Result<(Option<PersistentVolumeClaim>, String), Unmade> {
        let target = download.spec.target_volume.clone().unwrap_or_default();
        let (namespace, name) = (target.namespace.unwrap_or_default(), target.pvc.unwrap_or_default());
        if namespace.is_empty() || name.is_empty() {
            return Err(empty("spec.targetVolume"));
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &namespace);
        let what = "the claim that it is for cannot be read";
        let found = claims.get_opt(&name).await.map_err(Unmade::call(what))?;
        Ok((found, format!("{namespace}/{name}")))
    }

    pub(super) async fn ensure_claim(&self, item: &Item, claim: Value) -> Result<(), Unmade> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client().clone(), &self.namespace);
        let claim = serde_json::from_value(claim).map_err(|error| Unmade::Never(chain(&error)))?;
        self.ensure(&claims, &claim, item, "claim").await
    }

    /// Creates an object, unless it exists.
    pub(super) async fn ensure<K>(
        &self,
        api: &Api<K>,
        object: &K,
        item: &Item,
        what: &str,
    ) -> Result<(), Unmade>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Serialize,
    {
        let name = item.mover.name.as_str();
        match create(api, object).await {
            WriteResult::Written(_) => Ok(()),
            WriteResult::Conflict(_) => {
                let read = format!("{what} {name} cannot be read");
                match api.get_opt(name).await.map_err(Unmade::call(&read))? {
                    Some(found) if item.owns(found.meta()) => Ok(()),
                    Some(_) => Err(taken(what, name)),
                    None => Err(Unmade::Later(format!("{what} {name} is just going"))),
                }
            }
            answer => {
                let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                Err(Unmade::Later(format!("{what} {name} could not be created: {error}")))
            }
        }
    }
}

impl Item {
    /// The metadata of an object that is created for the movement.
    pub(super) fn made(&self) -> ObjectMeta {
        let Mover { kind, name, uid, .. } = &self.mover;
        ObjectMeta {
            name: Some(name.clone()),
            labels: Some(BTreeMap::from([(keys::MADE_FOR.to_owned(), uid.clone())])),
            owner_references: Some(vec![OwnerReference {
                api_version: kind.api_version().to_owned(),
                kind: kind.as_str().to_owned(),
                name: name.clone(),
                uid: uid.clone(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        }
    }

    /// Was it created for this movement? A cluster-scoped object has no owner, and a label instead.
    pub(super) fn owns(&self, metadata: &ObjectMeta) -> bool {
        let uid = &self.mover.uid;
        let is_labelled = metadata.labels.as_ref().and_then(|labels| labels.get(keys::MADE_FOR)) == Some(uid);
        let mut owners = metadata.owner_references.iter().flatten();
        is_labelled && (metadata.namespace.is_none() || owners.any(|owner| owner.uid == *uid))
    }
}

fn empty(field: &str) -> Unmade {
    Unmade::Never(format!("{field} is empty"))
}

fn taken(what: &str, name: &str) -> Unmade {
    Unmade::Never(format!("there is a {what} {name}, and it was not made for this movement: remove it"))
}
