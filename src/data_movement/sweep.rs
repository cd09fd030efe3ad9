//! Removes objects that were created for movements that no longer need them, and that no step of a
//! movement removes: the movement may be gone, and a former leader with an old view may create
//! objects of a movement that has ended once more.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use berth_api::keys::MADE_FOR;
use berth_api::snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use berth_api::velero::{DataDownload, DataMover, DataUpload, PodVolumeBackup, PodVolumeRestore};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{OwnMovements, is_wanted};
use crate::install::pod_volumes::AGENT;
use crate::text::chain;
use crate::write::{Write, WriteResult, delete};

/// Objects of one page of a list.
const PAGE: u32 = 500;
/// Pages of each kind in one look: many more objects than there are movements at one time. The rest
/// is looked at when some of these are gone.
const PAGES: usize = 40;
/// How long one look may take, because no movement takes a step meanwhile.
const ALL: Duration = Duration::from_secs(120);

impl OwnMovements {
    /// `known`: UIDs of the movements that have not ended. Without berth's node agents nothing was
    /// created, and berth may have no right to list.
    pub(super) async fn sweep(&self, known: &BTreeSet<&str>) {
        if timeout(ALL, self.sweep_all(known)).await.is_err() {
            let seconds = ALL.as_secs();
            warn!(
                seconds,
                "looking for objects of data movements that are gone or have ended took too long: the next look finds the rest"
            );
        }
    }

    async fn sweep_all(&self, known: &BTreeSet<&str>) {
        let (client, namespace) = (|| self.client().clone(), self.namespace.as_str());
        let agents: Api<DaemonSet> = Api::namespaced(client(), namespace);
        if !matches!(agents.get_metadata_opt(AGENT).await, Ok(Some(_))) {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(client(), namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), namespace);
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(client(), namespace);
        let contents: Api<VolumeSnapshotContent> = Api::all(client());
        self.sweep_kind(&pods, known, is_owned).await;
        self.sweep_kind(&claims, known, is_owned).await;
        self.sweep_kind(&snapshots, known, is_owned).await;
        self.sweep_kind(&contents, known, |content, _| is_copy(content, namespace)).await;
    }

    /// `is_made`: was it created for the movement with this UID, which its label has?
    async fn sweep_kind<K>(&self, api: &Api<K>, known: &BTreeSet<&str>, is_made: impl Fn(&K, &str) -> bool)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let kind = K::kind(&());
        let mut params = ListParams::default().labels(MADE_FOR).limit(PAGE);
        for _ in 0..PAGES {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(error) if crate::client::is_not_found(&error) => return,
                Err(error) => {
                    let error = chain(&error);
                    warn!(%kind, error, "objects of data movements cannot be listed: some that no movement needs may be left");
                    return;
                }
            };
            if !self.sweep_page(api, &page.items, known, &is_made).await {
                return;
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return,
            }
        }
        let looked_at = PAGES * PAGE as usize;
        warn!(%kind, looked_at, "there are more objects of data movements: the rest was not looked at");
    }

    /// `false`: one cannot be removed, so no other one is tried now.
    async fn sweep_page<K>(
        &self,
        api: &Api<K>,
        found: &[K],
        known: &BTreeSet<&str>,
        is_made: impl Fn(&K, &str) -> bool,
    ) -> bool
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let kind = K::kind(&());
        for object in found {
            let (name, labels) = (object.name_any(), object.labels());
            let Some(uid) = labels.get(MADE_FOR).filter(|uid| is_made(object, uid)) else { continue };
            if known.contains(uid.as_str()) || object.meta().deletion_timestamp.is_some() {
                continue;
            }
            let removed = match self.is_needed(&name, uid).await {
                Ok(true) => continue,
                Ok(false) => delete(api, Write::on(object)).await,
                Err(error) => WriteResult::Refused(error),
            };
            match removed {
                WriteResult::Written(()) => {
                    info!(%kind, %name, "removed an object of a data movement that is gone or has ended");
                }
                WriteResult::Gone(_) | WriteResult::Conflict(_) => {}
                answer => {
                    let error = answer.written().err().map(|error| chain(&error)).unwrap_or_default();
                    warn!(%kind, %name, error, "an object of a data movement that is gone or has ended cannot be removed");
                    return false;
                }
            }
        }
        true
    }

    /// Does a movement with this UID exist that has not ended? It is read from the API server,
    /// because this process may itself be a former leader, with an older view than the one that
    /// created the object. A movement that has ended stays ended.
    async fn is_needed(&self, name: &str, uid: &str) -> kube::Result<bool> {
        let (client, namespace) = (|| self.client().clone(), self.namespace.as_str());
        let uploads: Api<DataUpload> = Api::namespaced(client(), namespace);
        let downloads: Api<DataDownload> = Api::namespaced(client(), namespace);
        let backups: Api<PodVolumeBackup> = Api::namespaced(client(), namespace);
        let restores: Api<PodVolumeRestore> = Api::namespaced(client(), namespace);
        Ok(needs(&uploads, name, uid).await?
            || needs(&downloads, name, uid).await?
            || needs(&backups, name, uid).await?
            || needs(&restores, name, uid).await?)
    }
}

async fn needs<K>(movements: &Api<K>, name: &str, uid: &str) -> kube::Result<bool>
where
    K: DataMover + Clone + DeserializeOwned + Debug,
{
    let found = movements.get_opt(name).await?;
    Ok(found.is_some_and(|found| found.meta().uid.as_deref() == Some(uid) && is_wanted(&found)))
}

fn is_owned<K: Resource>(object: &K, uid: &str) -> bool {
    object.meta().owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// Another berth may create such contents for a namespace of its own. Deleting a content with the
/// policy Retain removes nothing from the storage.
fn is_copy(content: &VolumeSnapshotContent, namespace: &str) -> bool {
    let spec = &content.spec;
    spec.volume_snapshot_ref.namespace.as_deref() == Some(namespace)
        && spec.deletion_policy.as_deref() == Some("Retain")
}
