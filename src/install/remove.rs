//! Uninstallation. Backups, locations and stores stay untouched; objects in use stay, and are
//! listed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use berth_api::keys::{self, FIELD_MANAGER};
use berth_api::velero::{Backup, BackupStorageLocation};
use futures::{StreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::core::{DynamicObject, NamespaceResourceScope};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::apply::LISTS_AT_ONCE;
use super::{InstallCluster, Reference, member_objects};
use crate::certificates::{AUTHORITY, SECRET};
use crate::client::is_not_found;
use crate::leader::LEASE;
use crate::objects::{LEDGER, PART_OF, PART_OF_BERTH};

const LOOK: Duration = Duration::from_millis(100);

/// Deletes one object. Returns whether it existed.
///
/// # Errors
/// When the API server refuses it.
pub async fn delete(cluster: &InstallCluster, reference: &Reference) -> anyhow::Result<bool> {
    let params =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    match reference.api(&cluster.client).delete(&reference.name, &params).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("{reference} cannot be removed")),
    }
}

/// Waits until no pod of berth is left, because pods hand over their work before they end.
///
/// # Errors
/// When a pod is still there after `patience`.
pub async fn pods_gone(cluster: &InstallCluster, patience: Duration) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let labelled = ListParams::default().labels(&format!("{PART_OF}={PART_OF_BERTH}"));
    let waiting = async {
        while !api.list(&labelled).await.context("Pods cannot be listed")?.items.is_empty() {
            sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    timeout(patience, waiting).await.unwrap_or_else(|_| {
        anyhow::bail!(
            "berth's pods are still there after {} s; run `berth uninstall` again when they have ended",
            patience.as_secs()
        )
    })
}

/// Waits until no controller pod is terminating: each first hands over its Backups and undoes what
/// their hooks began.
///
/// # Errors
/// When one is still there after `patience`.
pub async fn leaving_gone(cluster: &InstallCluster, patience: Duration) -> anyhow::Result<()> {
    let api: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let controllers = ListParams::default().labels("app.kubernetes.io/name=berth-controller");
    let waiting = async {
        loop {
            let pods = api.list(&controllers).await.context("Pods cannot be listed")?;
            if pods.items.iter().all(|pod| pod.metadata.deletion_timestamp.is_none()) {
                return anyhow::Ok(());
            }
            sleep(LOOK).await;
        }
    };
    timeout(patience, waiting).await.unwrap_or_else(|_| {
        anyhow::bail!(
            "the previous controller is still there after {} s: it runs the hooks after pods, or lets its backups end where it has --drain-timeout; run the same command again when its pods have ended",
            patience.as_secs()
        )
    })
}

/// Removes berth's holds, which have no meaning without berth. Returns the released objects.
///
/// # Errors
/// When an object cannot be listed or written.
pub async fn release_holds(cluster: &InstallCluster) -> anyhow::Result<Vec<String>> {
    let (mut backups, locations) =
        futures::try_join!(release::<Backup>(cluster), release::<BackupStorageLocation>(cluster))?;
    backups.extend(locations);
    Ok(backups)
}

async fn release<K>(cluster: &InstallCluster) -> anyhow::Result<Vec<String>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let kind = K::kind(&());
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = match api.list_metadata(&ListParams::default()).await {
        Ok(found) => found,
        Err(error) if is_not_found(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("{kind}s cannot be listed")),
    };
    let mut released = Vec::new();
    for object in found.items.iter().filter(|object| object.annotations().contains_key(keys::HOLD)) {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = json!({"metadata": {"annotations": {keys::HOLD: null}}});
        let name = object.name_any();
        match api.patch_metadata(&name, &params, &Patch::Merge(patch)).await {
            Ok(_) => released.push(format!("{} {name}", kind.to_lowercase())),
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error).with_context(|| format!("{kind} {name} cannot be released")),
        }
    }
    Ok(released)
}

/// The Secret of the authority that cert-manager issues for berth, and keeps when the Certificate
/// is deleted.
pub fn authority(cluster: &InstallCluster) -> Reference {
    secret(cluster, "berth-webhook-ca")
}

/// The Secret of berth's own authority.
pub fn own_authority(cluster: &InstallCluster) -> Reference {
    secret(cluster, AUTHORITY)
}

fn secret(cluster: &InstallCluster, name: &str) -> Reference {
    Reference {
        api_version: Secret::api_version(&()).into_owned(),
        kind: "Secret".to_owned(),
        namespace: Some(cluster.namespace.clone()),
        name: name.to_owned(),
    }
}

/// Deletes what berth wrote while it ran: its Leases, its ledger, its keys; and the Secret with the
/// access to the hub.
///
/// # Errors
/// When an object cannot be deleted.
pub async fn delete_written(cluster: &InstallCluster) -> anyhow::Result<Vec<Reference>> {
    let of = |api_version: &str, kind: &str, name: &str| Reference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: Some(cluster.namespace.clone()),
        name: name.to_owned(),
    };
    let mut written = vec![
        of(&Lease::api_version(&()), "Lease", LEASE),
        of(&ConfigMap::api_version(&()), "ConfigMap", LEDGER),
        secret(cluster, SECRET),
        own_authority(cluster),
        authority(cluster),
    ];
    written.extend(member_objects::written(cluster, None).await?);
    let mut deleted = Vec::new();
    for reference in written {
        if delete(cluster, &reference).await? {
            deleted.push(reference);
        }
    }
    Ok(deleted)
}

/// Counts the objects of a definition in all namespaces.
///
/// # Errors
/// When they cannot be listed.
pub async fn instances(cluster: &InstallCluster, definition: &Reference) -> anyhow::Result<usize> {
    let object = match definition.api(&cluster.client).get_opt(&definition.name).await? {
        Some(object) => object,
        None => return Ok(0),
    };
    let text =
        |pointer: &str| object.data.pointer(pointer).and_then(serde_json::Value::as_str).unwrap_or_default();
    let kind = Reference {
        api_version: format!("{}/{}", text("/spec/group"), text("/spec/versions/0/name")),
        kind: text("/spec/names/kind").to_owned(),
        namespace: None,
        name: String::new(),
    };
    let found = kind.api(&cluster.client).list_metadata(&ListParams::default().limit(500)).await;
    match found {
        Ok(list) => Ok(list.items.len()),
        Err(error) if is_not_found(&error) => Ok(0),
        Err(error) => Err(error).with_context(|| format!("objects of {definition} cannot be listed")),
    }
}

/// Other objects in a namespace: `kind/name` of the first few. Empty: the namespace can be deleted.
///
/// # Errors
/// When a kind cannot be listed.
pub async fn inhabitants(cluster: &InstallCluster, namespace: &str) -> anyhow::Result<Vec<String>> {
    const MOST: usize = 5;
    // Aggregated discovery, because a just deleted definition may be in one of several answers and
    // missing in the next.
    let discovery = Discovery::new(cluster.client.clone()).run_aggregated().await;
    let discovery = discovery.context("the API's types cannot be listed")?;
    ensure!(discovery.groups().next().is_some(), "the API server tells none of its types");
    let mut kinds = Vec::new();
    for group in discovery.groups().filter(|group| group.name() != "metrics.k8s.io") {
        kinds.extend(group.recommended_resources().into_iter().filter(|(resource, capabilities)| {
            let is_listed =
                capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
            is_listed && resource.kind != "Event"
        }));
    }
    let lists = stream::iter(kinds).map(|(resource, _)| {
        let client = cluster.client.clone();
        async move {
            let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
            match api.list_metadata(&ListParams::default().limit(50)).await {
                Ok(list) => Ok((resource.kind, list.items)),
                Err(error) if is_not_found(&error) => Ok((resource.kind, Vec::new())),
                Err(error) => Err(error).with_context(|| format!("{} cannot be listed", resource.plural)),
            }
        }
    });
    let mut lists = std::pin::pin!(lists.buffered(LISTS_AT_ONCE));
    let mut found = Vec::new();
    while let Some(listed) = lists.next().await {
        let (kind, objects) = listed?;
        for object in objects {
            let name = object.name_any();
            // Objects that every namespace has.
            let is_usual = matches!(
                (kind.as_str(), name.as_str()),
                ("ConfigMap", "kube-root-ca.crt") | ("ServiceAccount", "default")
            );
            let follows = object.metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
            if !is_usual && !follows && object.metadata.deletion_timestamp.is_none() {
                found.push(format!("{}/{name}", kind.to_lowercase()));
            }
            if found.len() == MOST {
                return Ok(found);
            }
        }
    }
    Ok(found)
}
