//! Objects in a cluster that the agent of a member of shared buckets has besides its manifests: the
//! Secret by which it comes to the hub, and its Lease.

use anyhow::{Context as _, bail};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::{Resource, ResourceExt};

use super::cluster::Presence;
use super::hub::{HUB_SECRET, HubAccess, KUBECONFIG, SEED};
use super::member::{AGENT, HubCredentialsSecret};
use super::{InstallCluster, MemberParts, Reference};
use crate::client::{is_forbidden, is_not_found};

impl HubCredentialsSecret {
    /// Why pods cannot use the Secret, and the way out. `None`: they can, or the user may not read
    /// the Secret.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn fault(&self, cluster: &InstallCluster) -> anyhow::Result<Option<String>> {
        let (name, namespace) = (&self.secret, &cluster.namespace);
        let found = match secret(cluster, name).await {
            Ok(found) => found,
            Err(error) if is_forbidden(&error) => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("Secret {name} cannot be read")),
        };
        let Some(found) = found else {
            return Ok(Some(format!(
                "there is no Secret {name} in {namespace}: say --hub-kubeconfig and --seed, or make it by `{}`",
                self.recipe(namespace)
            )));
        };
        let has = |key: &&str| {
            let data = found.data.as_ref();
            data.and_then(|data| data.get(*key)).is_some_and(|value| !value.0.is_empty())
        };
        let missing: Vec<&str> = [KUBECONFIG, SEED].into_iter().filter(|key| !has(key)).collect();
        Ok((!missing.is_empty()).then(|| {
            format!(
                "Secret {name} in {namespace} lacks {}: put it in (`kubeconfig` of the hub, `seed`, the name of this cluster there)",
                missing.join(" and ")
            )
        }))
    }
}

async fn secret(cluster: &InstallCluster, name: &str) -> kube::Result<Option<Secret>> {
    Api::<Secret>::namespaced(cluster.client.clone(), &cluster.namespace).get_opt(name).await
}

/// Checks before any write that the agent's pods can start, and that no foreign Secret would be
/// overwritten.
///
/// # Errors
/// When a check fails, with the way out.
pub async fn ensure_hub(
    cluster: &InstallCluster,
    hub: &HubCredentialsSecret,
    access: Option<&HubAccess>,
) -> anyhow::Result<()> {
    if access.is_none() {
        return match hub.fault(cluster).await? {
            None => Ok(()),
            Some(fault) => {
                bail!("{fault}; or take the agent out by --garden-member=false. Nothing was changed")
            }
        };
    }
    let found = secret(cluster, &hub.secret).await;
    let found = found.with_context(|| format!("Secret {} cannot be read", hub.secret))?;
    if Presence::of(found.as_ref().map(|secret| secret.labels())) == Presence::Foreign {
        bail!(
            "Secret {name} is in {namespace} already, and berth did not make it; nothing was changed. Use it as it is, by --hub-secret={name} in place of --hub-kubeconfig and --seed, or delete it first",
            name = hub.secret,
            namespace = cluster.namespace
        );
    }
    Ok(())
}

/// Objects that the agent's installation wrote besides the manifests, and that `wanted` does not
/// need.
///
/// # Errors
/// When an object cannot be read.
pub async fn written(
    cluster: &InstallCluster,
    wanted: Option<&MemberParts>,
) -> anyhow::Result<Vec<Reference>> {
    let of = |api_version: &str, kind: &str, name: &str| Reference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: Some(cluster.namespace.clone()),
        name: name.to_owned(),
    };
    let mut found = Vec::new();
    if wanted.is_none() {
        let lease = of(&Lease::api_version(&()), "Lease", AGENT);
        let there = lease.api(&cluster.client).get_metadata_opt(AGENT).await;
        if there.context("the agent's Lease cannot be read")?.is_some() {
            found.push(lease);
        }
    }
    if wanted.and_then(MemberParts::hub).is_none_or(|hub| hub.secret != HUB_SECRET) {
        let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let there = match secrets.get_metadata_opt(HUB_SECRET).await {
            Err(error) if is_not_found(&error) => None,
            there => there.with_context(|| format!("Secret {HUB_SECRET} cannot be read"))?,
        };
        // A Secret that was created by hand stays.
        if Presence::of(there.as_ref().map(|secret| secret.labels())) == Presence::Ours {
            found.push(of(&Secret::api_version(&()), "Secret", HUB_SECRET));
        }
    }
    Ok(found)
}
