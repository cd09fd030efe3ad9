//! Hands certificate management from berth to cert-manager and back. The API server trusts the
//! served certificate all the time.
//!
//! The old manager stops before the new one starts, because two programs must not write the same
//! Secret or caBundle.

use std::time::Duration;

use anyhow::{Context as _, bail};
use berth_certs::bundle::is_signed_by;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ClusterResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::apply::{self, ApplyMode};
use super::cluster::CONFIGURATION;
use super::{INSTALLER, InstallCluster, Reference, remove};
use crate::certificates::ca_bundles::CaBundles;
use crate::certificates::{LEAF_CERTIFICATE, SECRET, text};
use crate::cli::print::say;
use crate::client::is_not_found;

const LOOK: Duration = Duration::from_millis(200);
/// Longer than the slowest API server takes to read a new authority, and a replica a new
/// certificate.
const NOTICED: Duration = Duration::from_secs(5);
const INJECT: &str = "cert-manager.io/inject-ca-from";
const ISSUER: &str = "cert-manager.io/issuer-name";

/// Is this one of cert-manager's objects (Issuer, Certificate)?
pub fn is_of_cert_manager(object: &Value) -> bool {
    object["apiVersion"].as_str().is_some_and(|version| version.starts_with("cert-manager.io/"))
}

/// Takes the certificates from cert-manager. The one that it issued stays served and trusted until
/// berth issues its own.
///
/// # Errors
/// When an object cannot be written.
pub async fn take(cluster: &InstallCluster) -> anyhow::Result<()> {
    say!("taking the certificates over from cert-manager");
    no_injection::<MutatingWebhookConfiguration>(&cluster.client).await?;
    no_injection::<ValidatingWebhookConfiguration>(&cluster.client).await?;
    for reference in apply::installed(cluster).await? {
        if reference.api_version.starts_with("cert-manager.io/")
            && remove::delete(cluster, &reference).await?
        {
            say!("{reference} removed");
        }
    }
    Ok(())
}

async fn no_injection<K>(client: &Client) -> anyhow::Result<()>
where
    K: Resource<Scope = ClusterResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {INJECT: null}}}));
    match api.patch_metadata(CONFIGURATION, &params(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("{} {CONFIGURATION}", K::kind(&()))),
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(INSTALLER.to_owned()), ..PatchParams::default() }
}

/// Gives the certificates to cert-manager, once no controller issues them any more. Its authority
/// is in caBundle beside the old one before it signs the served certificate. Its cainjector may
/// take over caBundle afterwards.
///
/// # Errors
/// When an object cannot be written, or cert-manager issues no certificate within `patience`.
pub async fn give(cluster: &InstallCluster, objects: &[Value], patience: Duration) -> anyhow::Result<()> {
    say!("handing the certificates over to cert-manager");
    let trust = CaBundles { client: cluster.client.clone(), configuration: CONFIGURATION.to_owned() };
    let is_leaf = |object: &&Value| object["spec"]["secretName"] == SECRET;
    for object in objects.iter().filter(|object| !is_leaf(object)) {
        apply::apply(&cluster.client, object, ApplyMode::Write).await?;
    }
    let authority = remove::authority(cluster).name;
    let authority =
        issued(cluster, &authority, patience, |certificate| (!certificate.is_empty()).then_some(())).await?;
    let mut believed: Vec<String> = trust.read().await?.into_iter().map(|(_, bundle)| bundle).collect();
    believed.push(authority.clone());
    believed.sort();
    believed.dedup();
    trust.write(&believed.concat()).await?;
    sleep(NOTICED).await;
    // The Secret is marked as another issuer's, because cert-manager would otherwise keep its
    // certificate until that expires.
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {ISSUER: "berth-controller"}}}));
    secrets.patch_metadata(SECRET, &params(), &patch).await.with_context(|| format!("Secret {SECRET}"))?;
    for object in objects.iter().filter(is_leaf) {
        apply::apply(&cluster.client, object, ApplyMode::Write).await?;
    }
    let signed = |leaf: &str| is_signed_by(leaf.as_bytes(), authority.as_bytes()).then_some(());
    issued(cluster, SECRET, patience, signed).await?;
    sleep(NOTICED).await;
    // berth's authority signs nothing any more. It stays trusted until cert-manager removes it from
    // caBundle.
    let own = remove::own_authority(cluster);
    if remove::delete(cluster, &own).await? {
        say!("{own} removed");
    }
    for reference in objects.iter().filter_map(Reference::of) {
        say!("{reference} in use");
    }
    Ok(())
}

/// Waits until the certificate in a Secret is `good`, and returns it.
async fn issued(
    cluster: &InstallCluster,
    name: &str,
    patience: Duration,
    good: impl Fn(&str) -> Option<()>,
) -> anyhow::Result<String> {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let waiting = async {
        loop {
            let secret = api.get_opt(name).await.with_context(|| format!("Secret {name} cannot be read"))?;
            let certificate = secret.as_ref().map(|secret| text(secret, LEAF_CERTIFICATE).to_owned());
            if let Some(certificate) = certificate.filter(|certificate| good(certificate).is_some()) {
                return anyhow::Ok(certificate);
            }
            sleep(LOOK).await;
        }
    };
    timeout(patience, waiting).await.unwrap_or_else(|_| {
        bail!(
            "cert-manager issued nothing into Secret {name} for {} s: see `kubectl describe certificate --namespace {}`, then run this again",
            patience.as_secs(),
            cluster.namespace
        )
    })
}
