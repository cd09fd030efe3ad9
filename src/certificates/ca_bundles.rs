//! The two webhook configurations: their `caBundle`, which the API server trusts, and the Service
//! that they call.

use anyhow::Context as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::Api;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::info;

use crate::write::{Write, WriteResult, patch_strategic};

/// Name of both configurations.
pub struct CaBundles {
    pub client: Client,
    pub configuration: String,
}

/// One webhook of a configuration: its name and its caBundle, as text; empty where there is none.
pub type Believed = (String, String);

impl CaBundles {
    /// Reads every webhook of both configurations. A missing configuration has none.
    ///
    /// # Errors
    /// When a configuration cannot be read.
    pub async fn read(&self) -> anyhow::Result<Vec<Believed>> {
        let mut all =
            self.found::<MutatingWebhookConfiguration>().await?.map_or_else(Vec::new, |c| c.believed());
        all.extend(
            self.found::<ValidatingWebhookConfiguration>().await?.map_or_else(Vec::new, |c| c.believed()),
        );
        Ok(all)
    }

    /// Sets `bundle` as the caBundle of every webhook. A concurrent write of another program wins.
    ///
    /// # Errors
    /// When a configuration cannot be read or written.
    pub async fn write(&self, bundle: &str) -> anyhow::Result<()> {
        self.write_one::<MutatingWebhookConfiguration>(bundle).await?;
        self.write_one::<ValidatingWebhookConfiguration>(bundle).await
    }

    async fn found<K: WebhookConfiguration>(&self) -> anyhow::Result<Option<K>> {
        let api: Api<K> = Api::all(self.client.clone());
        let found = api.get_opt(&self.configuration).await;
        found.with_context(|| format!("failed to read {} {}", K::kind(&()), self.configuration))
    }

    async fn write_one<K: WebhookConfiguration>(&self, bundle: &str) -> anyhow::Result<()> {
        let Some(found) = self.found::<K>().await? else { return Ok(()) };
        let believed = found.believed();
        if believed.iter().all(|(_, current)| current == bundle) {
            return Ok(());
        }
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let webhook = |(name, _): &Believed| json!({"name": name, "clientConfig": {"caBundle": bundle}});
        // A strategic merge by the webhook's name, so that all other fields stay.
        let change = json!({"webhooks": believed.iter().map(webhook).collect::<Vec<Value>>()});
        let as_seen = Write::on(&found).uid(None);
        let (api, kind): (Api<K>, _) = (Api::all(self.client.clone()), K::kind(&()));
        match patch_strategic(&api, as_seen, change).await {
            // Another program wrote first; the watch shows that change and starts the next pass.
            WriteResult::Conflict(_) => return Ok(()),
            answer => answer
                .written()
                .with_context(|| format!("failed to write caBundle of {kind} {}", self.configuration))?,
        };
        info!(%kind, name = %self.configuration, "wrote caBundle");
        Ok(())
    }
}

/// Namespace of the Service that a webhook configuration calls.
pub fn called(configuration: &MutatingWebhookConfiguration) -> Option<String> {
    let first = configuration.webhooks.as_ref()?.first()?;
    Some(first.client_config.service.as_ref()?.namespace.clone())
}

/// The fields that both kinds of webhook configurations share.
trait WebhookConfiguration:
    Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
    + Clone
    + std::fmt::Debug
    + DeserializeOwned
{
    fn believed(&self) -> Vec<Believed>;
}

impl WebhookConfiguration for MutatingWebhookConfiguration {
    fn believed(&self) -> Vec<Believed> {
        self.webhooks.iter().flatten().map(|w| (w.name.clone(), bundle(&w.client_config))).collect()
    }
}

impl WebhookConfiguration for ValidatingWebhookConfiguration {
    fn believed(&self) -> Vec<Believed> {
        self.webhooks.iter().flatten().map(|w| (w.name.clone(), bundle(&w.client_config))).collect()
    }
}

fn bundle(config: &WebhookClientConfig) -> String {
    config.ca_bundle.as_ref().map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}
