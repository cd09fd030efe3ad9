//! Whose node-agent reads the files of a pod's volumes, and the repositories of Velero's.

use std::sync::Arc;
use std::time::Duration;

use berth_api::keys::{REPOSITORY_TYPE, STORAGE_LOCATION, VOLUME_NAMESPACE, label_value};
use berth_core::volume::node_agents::{KOPIA, NoNodeAgent, NodeAgent};
use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::runtime::watcher;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::objects::short;
use super::{RunVolumes, VolumeAccess};
use crate::backup::agent_pods::node_agents;
use crate::backup::insist::insist;
use crate::patch::digest;
use crate::text::chain;
use crate::write::create;

/// How long a BackupRepository may take to become ready (Velero's `--resource-timeout`).
const REPOSITORY: Duration = Duration::from_secs(600);

impl RunVolumes<'_> {
    /// Whose node-agent reads on the node. They are listed once, and again for a node that had
    /// none.
    pub(super) async fn node_agent(&self, access: &VolumeAccess, node: &str) -> Result<NodeAgent, String> {
        let known = self.agents.lock().on(node);
        if let Ok(agent) = known {
            return Ok(agent);
        }
        if known == Err(NoNodeAgent::Nowhere) {
            return Err(NoNodeAgent::Nowhere.on(node));
        }
        let agents = node_agents(&access.client, &access.namespace).await?;
        let agent = agents.on(node);
        *self.agents.lock() = agents;
        agent.map_err(|lack| lack.on(node))
    }

    /// Why nobody reads on the node by now, in words. `None`: somebody does, as far as is seen.
    pub(super) async fn missing_agent(&self, access: &VolumeAccess, node: &str) -> Option<String> {
        let agents = node_agents(&access.client, &access.namespace).await.ok()?;
        agents.on(node).err().map(|lack| lack.on(node))
    }

    /// Makes sure that there is a repository for a namespace. Once for each namespace.
    pub(super) async fn repository(&self, access: &VolumeAccess, namespace: &str) -> Result<(), String> {
        let cell = Arc::clone(self.repositories.lock().entry(namespace.to_owned()).or_default());
        cell.get_or_init(|| ensure_repository(access, namespace)).await.clone()
    }
}

/// The repository of each namespace, or why there is none.
pub type Repository = Arc<OnceCell<Result<(), String>>>;

async fn ensure_repository(access: &VolumeAccess, namespace: &str) -> Result<(), String> {
    let kind =
        ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("velero.io", "v1", "BackupRepository"));
    let kind = ApiResource { plural: "backuprepositories".to_owned(), ..kind };
    let api: Api<DynamicObject> = Api::namespaced_with(access.client.clone(), &access.namespace, &kind);
    let labels = [
        (VOLUME_NAMESPACE, label_value(namespace, digest)),
        (STORAGE_LOCATION, label_value(&access.location, digest)),
        (REPOSITORY_TYPE, KOPIA.to_owned()),
    ];
    let selector: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let selector = selector.join(",");
    let params = ListParams::default().labels(&selector).limit(2);
    let found = insist(|| async { api.list(&params).await.into() }).await;
    let found =
        found.map_err(|error| format!("the BackupRepositories cannot be listed: {}", chain(&error)))?;
    if found.items.is_empty() {
        let repository = json!({
            "apiVersion": "velero.io/v1", "kind": "BackupRepository",
            "metadata": {
                "name": format!("{namespace}-{}-{KOPIA}", access.location), "namespace": access.namespace,
                "labels": labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect::<serde_json::Map<_, _>>(),
            },
            "spec": {
                "volumeNamespace": namespace, "backupStorageLocation": access.location,
                "repositoryType": KOPIA, "maintenanceFrequency": "0s",
            },
        });
        let repository: DynamicObject =
            serde_json::from_value(repository).map_err(|error| error.to_string())?;
        match insist(|| create(&api, &repository)).await {
            Err(error) if !crate::client::already_exists(&error) => {
                return Err(format!("its BackupRepository could not be created: {}", chain(&error)));
            }
            _ => {}
        }
    }
    // A Velero server connects to the repository.
    let api: Api<DynamicObject> = Api::namespaced_with(access.watches.clone(), &access.namespace, &kind);
    let ready = async {
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default().labels(&selector)));
        while let Some(event) = events.next().await {
            let object = match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => object,
                Ok(_) => continue,
                Err(_) => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let status = &object.data["status"];
            match status["phase"].as_str() {
                Some("Ready") => return Ok(()),
                Some("NotReady") => {
                    let message = short(status["message"].as_str().unwrap_or_default());
                    return Err(format!("BackupRepository {} is not ready: {message}", object.name_any()));
                }
                _ => {}
            }
        }
        Err("the watch of BackupRepositories ended".to_owned())
    };
    let late = || {
        format!(
            "the BackupRepository of namespace {namespace} was not ready within {} s: a Velero server connects to it, is one running?",
            REPOSITORY.as_secs()
        )
    };
    timeout(REPOSITORY, ready).await.unwrap_or_else(|_| Err(late()))
}
