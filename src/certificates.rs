//! The webhook's keys in a Secret, and the `caBundle` of the webhook configurations.
//!
//! The leader makes and renews them; every webhook replica reads the Secret through a watch and swaps what it
//! serves. A CA stays in the bundle until nothing that it signed can be served any more.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use berth_api::keys::FIELD_MANAGER;
use berth_certs::bundle::is_signed_by;
use berth_certs::{Authority, Bundle, CurrentKey};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::client::is_conflict;
use crate::mirror::{Change, mirror};

const CA_CERTIFICATE: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const LEAF_CERTIFICATE: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";
/// How often the Secret and the configurations are looked at.
const PERIOD: Duration = Duration::from_secs(10);

/// What the keeper keeps.
pub struct Keeper {
    pub client: Client,
    pub namespace: String,
    pub secret: String,
    /// Name of both webhook configurations.
    pub configuration: String,
    /// Under which the webhooks are called.
    pub names: Vec<String>,
}

impl Keeper {
    /// For ever: repairs whatever is not as it should be.
    pub async fn run(&self) {
        loop {
            if let Err(error) = self.keep().await {
                warn!(error = format!("{error:#}"), "failed to keep the webhook's certificates");
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn keep(&self) -> anyhow::Result<()> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api
            .get_opt(&self.secret)
            .await
            .with_context(|| format!("failed to read Secret {}", self.secret))?;
        let secret = match self.wanted(found.as_ref())? {
            None => found,
            Some(wanted) => {
                let params = PostParams::default();
                let written = match found {
                    None => api.create(&params, &wanted).await,
                    Some(_) => api.replace(&self.secret, &params, &wanted).await,
                };
                match written {
                    Ok(secret) => {
                        info!(secret = %self.secret, names = ?self.names, "issued a certificate for the webhooks");
                        Some(secret)
                    }
                    Err(error) if is_conflict(&error) => api.get_opt(&self.secret).await?,
                    Err(error) => {
                        return Err(error).context(format!("failed to write Secret {}", self.secret));
                    }
                }
            }
        };
        let bundle =
            secret.as_ref().and_then(|s| part(s, CA_CERTIFICATE)).context("the Secret lacks ca.crt")?;
        self.bundle_into::<MutatingWebhookConfiguration>(bundle).await?;
        self.bundle_into::<ValidatingWebhookConfiguration>(bundle).await
    }

    /// The Secret as it should be; `None` when it is.
    fn wanted(&self, found: Option<&Secret>) -> anyhow::Result<Option<Secret>> {
        let now = Timestamp::now();
        let text = |key| {
            found.and_then(|s| part(s, key)).and_then(|b| std::str::from_utf8(b).ok()).unwrap_or_default()
        };
        let (ca, ca_key) = (text(CA_CERTIFICATE), text(CA_KEY));
        let provider = rustls::crypto::ring::default_provider();
        let leaf = Bundle::parse(text(LEAF_CERTIFICATE).as_bytes(), text(LEAF_KEY).as_bytes(), &provider);
        let signed = is_signed_by(text(LEAF_CERTIFICATE).as_bytes(), ca.as_bytes());
        if signed && leaf.is_ok_and(|leaf| !leaf.wants_renewal(&self.names, now)) {
            return Ok(None);
        }
        let name = self.names.first().map_or("berth", String::as_str);
        let kept = Authority { certificate: ca.to_owned(), key: ca_key.to_owned() };
        let (authority, leaf) = match kept.issue(name, &[], &self.names, now) {
            // The CA is still good: only the leaf is new.
            Ok(leaf) if is_signed_by(leaf.certificate.as_bytes(), ca.as_bytes()) => (kept, leaf),
            _ => {
                let authority = Authority::new(&format!("berth webhook CA {}", now.as_second()), now)?;
                let leaf = authority.issue(name, &[], &self.names, now)?;
                (authority, leaf)
            }
        };
        let mut secret = found.cloned().unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(self.secret.clone()), ..ObjectMeta::default() },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        });
        let parts = [
            (CA_CERTIFICATE, authority.certificate),
            (CA_KEY, authority.key),
            (LEAF_CERTIFICATE, leaf.certificate),
            (LEAF_KEY, leaf.key),
        ];
        let data = secret.data.get_or_insert_default();
        data.extend(parts.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))));
        Ok(Some(secret))
    }

    async fn bundle_into<K>(&self, bundle: &[u8]) -> anyhow::Result<()>
    where
        K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()> + Configuration,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let kind = K::kind(&());
        let read = || format!("failed to read {kind} {}", self.configuration);
        let Some(found) = api.get_opt(&self.configuration).await.with_context(read)? else {
            debug!(%kind, name = %self.configuration, "no such webhook configuration: its caBundle is not kept");
            return Ok(());
        };
        let webhooks = found.ca_bundles();
        if webhooks.iter().all(|(_, current)| current.as_deref() == Some(bundle)) {
            return Ok(());
        }
        // Merged by the webhook's name, so everything else about it stays as it is.
        let patch = json!({
            "metadata": {"resourceVersion": found.resource_version()},
            "webhooks": webhooks.iter().map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": ByteString(bundle.to_vec())}})).collect::<Vec<Value>>(),
        });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch(&self.configuration, &params, &Patch::Strategic(patch)).await {
            Ok(_) => {
                info!(%kind, name = %self.configuration, "wrote caBundle");
                Ok(())
            }
            Err(error) if is_conflict(&error) => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("failed to write caBundle of {kind} {}", self.configuration)),
        }
    }
}

/// Both webhook configurations, alike for us.
trait Configuration {
    /// Name and caBundle of each webhook.
    fn ca_bundles(&self) -> Vec<(String, Option<Vec<u8>>)>;
}

impl Configuration for MutatingWebhookConfiguration {
    fn ca_bundles(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|w| (w.name.clone(), w.client_config.ca_bundle.clone().map(|b| b.0))).collect()
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn ca_bundles(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks.map(|w| (w.name.clone(), w.client_config.ca_bundle.clone().map(|b| b.0))).collect()
    }
}

fn part<'s>(secret: &'s Secret, key: &str) -> Option<&'s [u8]> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice())
}

/// Serves what the Secret holds; what cannot be read leaves the last good key in place.
pub async fn follow(client: Client, namespace: &str, secret: &str, current: Arc<CurrentKey>) {
    let only = watcher::Config::default().fields(&format!("metadata.name={secret}"));
    let provider = rustls::crypto::ring::default_provider();
    let take = |secret: &Secret| {
        let (certificate, key) = (part(secret, LEAF_CERTIFICATE), part(secret, LEAF_KEY));
        match Bundle::parse(certificate.unwrap_or_default(), key.unwrap_or_default(), &provider) {
            Ok(bundle) => {
                info!(not_after = %bundle.not_after, "serving the certificate of the Secret");
                current.set(bundle.key);
            }
            Err(error) => {
                warn!(error = format!("{:#}", anyhow::Error::from(error)), "keeping the previous certificate")
            }
        }
    };
    mirror::<Secret>(client, namespace, only, |change| match change {
        Change::All(secrets) => secrets.iter().for_each(&take),
        Change::Applied(secret) => take(&secret),
        Change::Deleted(_) => warn!("the certificate Secret was deleted: keeping the previous certificate"),
    })
    .await;
}
