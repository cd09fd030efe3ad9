//! File-system backups: PodVolumeBackups, which Velero's node-agents carry out, or berth's own
//! (`berth_core::volume::node_agents`).
//!
//! The name of a PodVolumeBackup follows from the Backup, the pod and the volume, so a run that
//! continues finds what an earlier one has asked for, and takes it over.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys::{BACKUP_NAME, BACKUP_UID, POD_VOLUME_TIMEOUT, PVC_NAME, PVC_UID, RUN, label_value};
use berth_api::velero::Backup;
use berth_core::volume::node_agents::NodeAgent;
use berth_core::volume::{Asked, Moment, takes_over};
use futures::future::join_all;
use kube::api::DynamicObject;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::cancel::{cancel_files_of, volume_backups};
use super::objects::patch_own;
use super::outcomes::volume_of;
use super::watched::{Watched, WatchedObjects, WatchedPodVolumeBackup};
use super::{RunVolumes, VolumeAccess};
use crate::backup::insist::insist;
use crate::backup::log::ResultsHeading;
use crate::patch::digest;
use crate::text::chain;
use crate::write::create;

/// How long a canceled PodVolumeBackup may take to end.
const LAST: Duration = Duration::from_secs(60);
/// How many PodVolumeBackups of one volume may exist that earlier runs created and that do not
/// count. Each run may leave one, and an orderly handover does not count as a run, so there may be
/// many.
const TRIES: u32 = 200;
/// Limit of the characters of a Backup's name in the name of a PodVolumeBackup, because a pod and
/// its label get that name, too.
const OF_BACKUP: usize = 50;

/// A pod with volumes whose files are backed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    pub moment: Moment,
    pub volumes: Vec<FileVolume>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVolume {
    pub name: String,
    pub claim: Option<FileClaim>,
}

/// The claim of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileClaim {
    pub key: String,
    pub name: String,
    pub uid: String,
}

impl RunVolumes<'_> {
    /// Has the files of all volumes of a pod backed up at the same time, and waits for that.
    /// Returns whether all succeeded.
    pub(super) async fn take_files(&self, pod: &FilePod) -> bool {
        self.reading.lock().insert(pod.uid.clone());
        let is_read = self.take_all_files(pod).await;
        self.reading.lock().remove(&pod.uid);
        is_read
    }

    /// Prepares what the files of a pod need, before the pod is frozen, because a repository may
    /// take minutes. Errors are reported when the files are read.
    pub async fn prepare_files(&self, pod: &FilePod) {
        if let Some(access) = &self.access
            && self.can_read_files(access, pod).await.is_ok()
        {
            self.shown_files(access).await;
        }
    }

    /// Cancels the PodVolumeBackups that are still in progress of pods that were frozen for them
    /// and are thawed now, and records these pods, because no later run may use the result.
    pub async fn give_up_files(&self, pods: &[String]) {
        let pods: BTreeSet<String> = {
            let reading = self.reading.lock();
            pods.iter().filter(|pod| reading.contains(*pod)).cloned().collect()
        };
        for pod in &pods {
            self.outcomes.spoil(pod);
        }
        if let Some(access) = self.access.as_ref().filter(|_| !pods.is_empty()) {
            cancel_files_of(&access.client, &access.namespace, &access.uid, &pods).await;
        }
    }

    async fn can_read_files(&self, access: &VolumeAccess, pod: &FilePod) -> Result<NodeAgent, String> {
        let until = access.limits.files_until;
        // Not created at all, because it would have to be canceled at once.
        if until <= Instant::now() {
            return Err(too_late(access));
        }
        let agent = self.node_agent(access, &pod.node).await?;
        // berth's node agents create their repositories themselves.
        if agent == NodeAgent::Velero {
            let repository = self.repository(access, &pod.namespace);
            timeout_at(until, repository).await.unwrap_or_else(|_| Err(too_late(access)))?;
        }
        Ok(agent)
    }

    async fn shown_files(&self, access: &VolumeAccess) -> &Watched<WatchedObjects<WatchedPodVolumeBackup>> {
        let start = || async { Watched::files(&access.watches, &access.namespace, &access.uid) };
        self.files.get_or_init(start).await
    }

    async fn take_all_files(&self, pod: &FilePod) -> bool {
        let Some(access) = &self.access else { return false };
        let agent = match self.can_read_files(access, pod).await {
            Ok(agent) => agent,
            Err(why) => {
                for volume in &pod.volumes {
                    if let Some(claim) = &volume.claim {
                        self.outcomes.miss(&claim.key, &why);
                    }
                    self.tell_files(pod, volume, &why);
                }
                return false;
            }
        };
        let each = join_all(pod.volumes.iter().map(|volume| async move {
            let taken = self.take_file_volume(access, pod, volume, agent).await;
            if let Err(why) = &taken {
                self.tell_files(pod, volume, why);
            }
            taken.is_ok()
        }));
        each.await.into_iter().all(|is_read| is_read)
    }

    fn tell_files(&self, pod: &FilePod, volume: &FileVolume, why: &str) {
        let message = format!("volume {} of pod {} is not backed up: {why}", volume.name, pod.name);
        self.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
        let claim = volume.claim.as_ref().map(|claim| claim.key.as_str());
        self.outcomes.note_told(volume_of(&pod.namespace, &pod.name, &volume.name), claim);
    }

    async fn take_file_volume(
        &self,
        access: &VolumeAccess,
        pod: &FilePod,
        volume: &FileVolume,
        agent: NodeAgent,
    ) -> Result<(), String> {
        self.outcomes.note_files(&pod.namespace);
        let shown = self.shown_files(access).await;
        let asked = self.ask_files(access, shown, pod, volume, agent).await;
        let (name, uid) = match asked {
            Ok(asked) => asked,
            Err(why) => {
                // No PodVolumeBackup shows it.
                if let Some(claim) = &volume.claim {
                    self.outcomes.miss(&claim.key, &why);
                }
                return Err(why);
            }
        };
        let key = (access.namespace.clone(), name.clone());
        let mut was_seen = false;
        let ended = async {
            shown
                .find(|shown: &WatchedObjects<WatchedPodVolumeBackup>| match shown.get(&key) {
                    None => was_seen.then(|| Err("somebody deleted its PodVolumeBackup".to_owned())),
                    Some(files) => {
                        was_seen = true;
                        files.has_ended().then(|| Ok(files.clone()))
                    }
                })
                .await
        };
        let mut ended = std::pin::pin!(ended);
        let files = match timeout_at(access.limits.files_until, &mut ended).await {
            Ok(files) => files?,
            Err(_) => {
                let api = volume_backups(&access.client, &access.namespace);
                let cancel = json!({"spec": {"cancel": true}});
                if let Err(error) = patch_own(&api, (&name, uid.as_deref()), cancel).await {
                    warn!(%name, error, "could not cancel a PodVolumeBackup whose time is over: it may go on");
                }
                // The pod may be frozen, so it waits no longer for these words than for its files.
                let lack = timeout(LAST, self.missing_agent(access, &pod.node));
                match tokio::join!(timeout(LAST, ended), lack) {
                    // It may have completed at this moment.
                    (Ok(files), _) => files?,
                    (Err(_), lack) => {
                        let lack = lack.ok().flatten().map(|lack| format!("; {lack}")).unwrap_or_default();
                        let why = too_late(access);
                        return Err(format!("its PodVolumeBackup {name} has not ended: {why}{lack}"));
                    }
                }
            }
        };
        match files.phase.as_str() {
            "Completed" => {
                self.log.info(&format!(
                    "backed up the files of volume {} of pod {}/{}",
                    volume.name, pod.namespace, pod.name
                ));
                Ok(())
            }
            "Canceled" => Err(format!("its PodVolumeBackup {name} was canceled: {}", files.message)),
            _ => Err(format!("its PodVolumeBackup {name} failed: {}", files.message)),
        }
    }

    /// Creates the PodVolumeBackup, or finds that of an earlier run. Its name and its UID.
    async fn ask_files(
        &self,
        access: &VolumeAccess,
        shown: &Watched<WatchedObjects<WatchedPodVolumeBackup>>,
        pod: &FilePod,
        volume: &FileVolume,
        agent: NodeAgent,
    ) -> Result<(String, Option<String>), String> {
        let api = volume_backups(&access.client, &access.namespace);
        for attempt in 0..TRIES {
            let name = files_name(&access.backup, &access.uid, &pod.uid, &volume.name, attempt);
            // Failed ones that the watch shows are not read again, because the pod may be frozen.
            let key = (access.namespace.clone(), name.clone());
            if shown.look(|shown| shown.get(&key).is_some_and(WatchedPodVolumeBackup::has_failed)) {
                continue;
            }
            let object = pod_volume_backup(access, pod, volume, agent, &name);
            let object: DynamicObject = serde_json::from_value(object).map_err(|error| error.to_string())?;
            let error = match insist(|| create(&api, &object)).await {
                Ok(created) => {
                    self.tell_files_anew(pod, volume);
                    return Ok((name, created.uid()));
                }
                Err(error) => error,
            };
            if !crate::client::already_exists(&error) {
                return Err(format!("its PodVolumeBackup could not be created: {}", chain(&error)));
            }
            let found = insist(|| async { api.get(&name).await.into() }).await;
            let found =
                found.map_err(|error| format!("its PodVolumeBackup cannot be read: {}", chain(&error)))?;
            let phase = found.data["status"]["phase"].as_str().unwrap_or_default();
            let is_over = matches!(phase, "Failed" | "Canceled") || found.data["spec"]["cancel"] == true;
            if found.labels().get(BACKUP_UID) != Some(&access.uid) || is_over {
                continue;
            }
            let asked = Asked {
                is_complete: phase == "Completed",
                is_spoiled: self.outcomes.is_spoiled(&pod.uid),
                is_whole: self.outcomes.is_whole(&pod.uid),
                is_ours: found.annotations().get(RUN) == Some(&access.run),
            };
            let uploader = found.data["spec"]["uploaderType"].as_str();
            let is_its = asked.is_complete || uploader.is_none_or(|one| one == agent.uploader());
            if is_its && takes_over(pod.moment, asked) {
                return Ok((name, found.uid()));
            }
            // Canceled, so that the backup does not contain it beside the next one. The node-agent
            // that it was created for may be gone.
            let (uid, cancel) = (found.uid(), json!({"spec": {"cancel": true}}));
            patch_own(&api, (&name, uid.as_deref()), cancel).await.map_err(|error| {
                format!(
                    "its PodVolumeBackup {name}, which is not of the moment of the pod's other data, could not be canceled: {error}"
                )
            })?;
        }
        Err(format!("{TRIES} PodVolumeBackups of it failed before"))
    }
}

fn too_late(access: &VolumeAccess) -> String {
    format!(
        "all file-system backups of a Backup together may take {} s (--fs-backup-timeout, or its annotation {POD_VOLUME_TIMEOUT})",
        access.limits.waits.files.as_secs()
    )
}

/// The name of a PodVolumeBackup. `attempt`: how many of this volume have failed before.
pub fn files_name(backup: &str, uid: &str, pod: &str, volume: &str, attempt: u32) -> String {
    let head: String = backup.chars().take(OF_BACKUP).collect();
    let head = head.trim_end_matches(['.', '-']);
    let hash = digest(&format!("{uid}/{pod}/{volume}/{attempt}"));
    format!("{head}-{}", hash.get(..10).unwrap_or_default())
}

/// As Velero makes it (contract 7.2).
fn pod_volume_backup(
    access: &VolumeAccess,
    pod: &FilePod,
    volume: &FileVolume,
    agent: NodeAgent,
    name: &str,
) -> Value {
    let mut object = json!({
        "apiVersion": "velero.io/v1", "kind": "PodVolumeBackup",
        "metadata": {
            "name": name, "namespace": access.namespace,
            "ownerReferences": [{
                "apiVersion": Backup::api_version(&()), "kind": Backup::kind(&()),
                "name": access.backup, "uid": access.uid, "controller": true,
            }],
            "labels": {BACKUP_NAME: label_value(&access.backup, digest), BACKUP_UID: access.uid},
            "annotations": {RUN: access.run},
        },
        "spec": {
            "node": pod.node,
            "pod": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
            "volume": volume.name,
            "backupStorageLocation": access.location,
            "repoIdentifier": "",
            "uploaderType": agent.uploader(),
            "tags": {
                "backup": access.backup, "backup-uid": access.uid, "pod": pod.name, "pod-uid": pod.uid,
                "ns": pod.namespace, "volume": volume.name,
            },
        },
    });
    if let Some(claim) = &volume.claim {
        object["metadata"]["annotations"][PVC_NAME] = json!(claim.name);
        object["metadata"]["labels"][PVC_UID] = json!(claim.uid);
        object["spec"]["tags"]["pvc-uid"] = json!(claim.uid);
    }
    if let Some(parallel) = access.parallel_files {
        object["spec"]["uploaderSettings"] = json!({"ParallelFilesUpload": parallel.to_string()});
    }
    object
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_name_of_a_pod_volume_backup_is_one_of_a_pod(backup in "[a-z0-9]([-a-z0-9]{0,240}[a-z0-9])?") {
            let name = files_name(&backup, "u", "p", "v", 0);
            prop_assert!(name.len() <= 63 && !name.contains(".-") && !name.starts_with('-'), "{}", name);
            for other in [files_name(&backup, "u", "p", "w", 0), files_name(&backup, "u", "p", "v", 1)] {
                prop_assert!(name != other);
            }
        }
    }
}
