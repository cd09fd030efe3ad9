//! PodVolumeBackups and PodVolumeRestores: the files of a pod's volume, read and written in the
//! kubelet's folder of the pod.

use std::sync::Arc;

use anyhow::Context as _;
use berth_api::keys::{PVC_UID, RESTORE_UID};
use berth_api::velero::{DataMoverStatus, PodReference, PodVolumeBackup, PodVolumeRestore};
use berth_core::pod_volume::{number, same, tags};
use berth_pod_volumes::{Progress, Saved, Source};
use kube::ResourceExt as _;
use serde_json::json;

use super::job::{End, Job, NotYet, ensure_few, moved, runs};
use super::{AgentContext, volume};
use crate::text::chain;

/// The folder in a volume whose files tell the pod's init container which restores are done.
const DONE: &str = ".velero";

impl Job {
    pub(super) async fn backup(&self, object: Arc<PodVolumeBackup>) -> anyhow::Result<End> {
        let AgentContext { clients, settings, .. } = &*self.context;
        ensure_few(runs(&*object))?;
        let spec = &object.spec;
        let (pod, name) = volume_of(spec.pod.as_ref(), spec.volume.as_deref())?;
        let location = spec.backup_storage_location.as_deref().unwrap_or_default();
        let found = volume::find(&clients.call, settings, pod, name).await?;
        found.state.clone().map_err(anyhow::Error::msg)?;
        let namespace = pod.namespace.as_deref().unwrap_or_default();
        let pod_name = pod.name.as_deref().unwrap_or_default();
        let claim = found.claim_uid.as_deref().or_else(|| object.labels().get(PVC_UID).map(String::as_str));
        let given = spec.tags.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        let source = Source {
            data: found.folder.clone().into(),
            host: namespace.to_owned(),
            tags: tags(given)?,
            reader: settings.node.clone(),
            same: same(claim, namespace, pod_name, name),
        };
        let path = found.path.to_string_lossy();
        let read = DataMoverStatus::read_at(&path);
        let of_backup = source.tags.iter().find(|tag| tag.starts_with("backup=")).cloned();
        let Saved { snapshot, bytes, added, .. } = match self.store(location, namespace, source).await? {
            Ok(saved) => saved,
            Err(why) => return Ok(End::failed(&read, why)),
        };
        if self.is_left_behind(&object, (location, namespace), &snapshot, of_backup).await {
            return Ok(End::failed(&read, "the PodVolumeBackup was removed meanwhile".to_owned()));
        }
        // Files that were taken away with their volume look like files that somebody removed.
        let there = async {
            volume::still(&clients.call, pod, &found.uid).await?;
            found.ensure_mounted(settings).await.map_err(|error| chain(error.as_ref()))
        };
        if let Err(why) = there.await {
            let why = format!("{why}, so snapshot {snapshot} may lack some of its files");
            return Ok(End::failed(&read, why));
        }
        let (bytes, added) = (number(bytes), number(added));
        Ok(End::completed(&DataMoverStatus::stored(&snapshot, &path, bytes, added)))
    }

    pub(super) async fn restore(&self, object: Arc<PodVolumeRestore>) -> anyhow::Result<End> {
        let AgentContext { clients, settings, .. } = &*self.context;
        let spec = &object.spec;
        let (pod, name) = volume_of(spec.pod.as_ref(), spec.volume.as_deref())?;
        let location = spec.backup_storage_location.as_deref().unwrap_or_default();
        let snapshot = spec.snapshot_id.as_deref().unwrap_or_default();
        let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
        let restore =
            owner.map(|owner| owner.uid.clone()).or_else(|| object.labels().get(RESTORE_UID).cloned());
        let restore = restore.context("no Restore owns it, so it is not known which pod waits for it")?;
        let namespace = spec.source_namespace.as_deref().filter(|namespace| !namespace.is_empty());
        let namespace = namespace.context("spec.sourceNamespace is empty")?;
        let found = volume::find(&clients.call, settings, pod, name).await?;
        let folder = found.folder.clone();
        let mark = restore.clone();
        let is_done = volume::blocking(&found.namespace, move || Ok(folder.is_marked(DONE, &mark)?)).await;
        // The restore is done and only its end was not written, so the pod may already use the
        // volume.
        if is_done.context("failed to read whether the volume is restored")? {
            return Ok(End::completed(&json!({})));
        }
        if !found.waits {
            return Err(NotYet.into());
        }
        self.waits_no_more();
        ensure_few(runs(&*object))?;
        let data = found.folder.clone().into();
        let restored = match self.bring(location, namespace, snapshot, data).await? {
            Ok(restored) => restored,
            Err(why) => return Ok(End::failed(&json!({}), why)),
        };
        let (folder, of) = (found.folder, found.namespace);
        let marked = volume::blocking(&of, move || Ok(folder.mark(DONE, &restore)?)).await;
        marked.context("failed to write the file that tells the pod that its volume is restored")?;
        let bytes = Progress { done: restored.bytes, total: restored.bytes };
        Ok(End::completed(&moved(bytes)))
    }
}

fn volume_of<'a>(
    pod: Option<&'a PodReference>,
    volume: Option<&'a str>,
) -> anyhow::Result<(&'a PodReference, &'a str)> {
    let pod = pod.context("spec.pod is empty")?;
    Ok((pod, volume.filter(|volume| !volume.is_empty()).context("spec.volume is empty")?))
}
