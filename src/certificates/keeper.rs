//! Makes the webhooks' keys, renews them, and repairs what somebody else broke. The leader alone.
//!
//! `caBundle` never lacks a CA that signed what is served: a new CA is trusted by both configurations, for as long as
//! the slowest API server takes to notice, before anything that it signed is put into the Secret.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_api::keys;
use berth_certs::rotation::{self, trusts};
use berth_certs::{Keys, Rotate, Step};
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::trust::Trust;
use super::{CA_CERTIFICATE, CA_KEY, LEAF_CERTIFICATE, LEAF_KEY, text};
use crate::client::is_conflict;
use crate::telemetry::chain;

/// How often everything is looked at, whatever the watches show.
const PERIOD: Duration = Duration::from_secs(10);
/// How often caBundle is looked at while a new authority waits.
const LOOK: Duration = Duration::from_millis(500);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);

pub struct Keeper {
    pub client: Client,
    /// For watches.
    pub watch: Client,
    pub namespace: String,
    pub secret: String,
    /// Name of both webhook configurations.
    pub configuration: String,
    /// Under which the webhooks are called.
    pub names: Vec<String>,
    /// How long a CA is trusted before anything that it signed is served.
    pub lead_time: Duration,
}

impl Keeper {
    /// For ever: repairs whatever is not as it should be.
    pub async fn run(&self) {
        let changed = Notify::new();
        let keeping = async {
            loop {
                let pause = match self.keep().await {
                    Ok(()) => PERIOD,
                    Err(error) => {
                        warn!(error = format!("{error:#}"), "failed to keep the webhook's certificates");
                        RETRY
                    }
                };
                let _ = timeout(pause, changed.notified()).await;
            }
        };
        let secrets: Api<Secret> = Api::namespaced(self.watch.clone(), &self.namespace);
        tokio::join!(
            keeping,
            touched(secrets, &self.secret, &changed),
            touched::<MutatingWebhookConfiguration>(
                Api::all(self.watch.clone()),
                &self.configuration,
                &changed
            ),
            touched::<ValidatingWebhookConfiguration>(
                Api::all(self.watch.clone()),
                &self.configuration,
                &changed
            ),
        );
    }

    fn trust(&self) -> Trust {
        Trust { client: self.client.clone(), configuration: self.configuration.clone() }
    }

    async fn keep(&self) -> anyhow::Result<()> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(&self.secret).await;
        let found = found.with_context(|| format!("failed to read Secret {}", self.secret))?;
        let part = |key| found.as_ref().map(|secret| text(secret, key).to_owned()).unwrap_or_default();
        let present = Keys {
            authorities: part(CA_CERTIFICATE),
            authority_key: part(CA_KEY),
            leaf: part(LEAF_CERTIFICATE),
            leaf_key: part(LEAF_KEY),
        };
        let trust = self.trust();
        let believed: String = trust.read().await?.into_iter().map(|(_, bundle)| bundle + "\n").collect();
        let asked = found.as_ref().and_then(asked);
        let provider = rustls::crypto::ring::default_provider();
        let step = rotation::next(&present, &believed, &self.names, asked, Timestamp::now(), &provider)?;
        let keys = match step {
            None => present,
            Some(Step::Keep(keys)) => self.write(&api, found, keys).await?,
            Some(Step::TrustFirst(keys)) => {
                trust.write(&keys.authorities).await?;
                // Where nothing was believed nothing is served: there is nobody to wait for.
                if !believed.trim().is_empty() {
                    info!(
                        for_seconds = self.lead_time.as_secs(),
                        "a new authority is trusted, and used in a while"
                    );
                    let mut since = Instant::now();
                    while since.elapsed() < self.lead_time {
                        sleep(LOOK.min(self.lead_time)).await;
                        let believed = trust.read().await?;
                        if !believed.iter().all(|(_, bundle)| trusts(bundle, &keys.authorities)) {
                            warn!("caBundle was overwritten meanwhile: written again");
                            trust.write(&keys.authorities).await?;
                            since = Instant::now();
                        }
                    }
                }
                self.write(&api, found, keys).await?
            }
        };
        trust.write(&keys.authorities).await
    }

    /// Gives what the Secret holds afterwards: somebody else may have been faster.
    async fn write(&self, api: &Api<Secret>, found: Option<Secret>, keys: Keys) -> anyhow::Result<Keys> {
        let is_new = found.is_none();
        let mut secret = found.unwrap_or_else(|| Secret {
            metadata: ObjectMeta { name: Some(self.secret.clone()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        });
        // Ours from now on, whoever kept it before.
        secret.annotations_mut().retain(|key, _| key != keys::ROTATE && !key.starts_with("cert-manager.io/"));
        let parts = [
            (CA_CERTIFICATE, &keys.authorities),
            (CA_KEY, &keys.authority_key),
            (LEAF_CERTIFICATE, &keys.leaf),
            (LEAF_KEY, &keys.leaf_key),
        ];
        let data = secret.data.get_or_insert_default();
        data.extend(parts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))));
        let params = PostParams::default();
        let written = if is_new {
            api.create(&params, &secret).await
        } else {
            api.replace(&self.secret, &params, &secret).await
        };
        match written {
            Ok(_) => {
                info!(secret = %self.secret, names = ?self.names, "wrote the webhooks' certificate");
                Ok(keys)
            }
            Err(error) if is_conflict(&error) => {
                Err(error).context(format!("Secret {} was written by somebody else meanwhile", self.secret))
            }
            Err(error) => Err(error).context(format!("failed to write Secret {}", self.secret)),
        }
    }
}

/// What somebody asked for by an annotation. Writing the Secret takes it away.
fn asked(secret: &Secret) -> Option<Rotate> {
    match secret.annotations().get(keys::ROTATE).map(String::as_str) {
        None => None,
        Some("ca") => Some(Rotate::Authority),
        Some(_) => Some(Rotate::Leaf),
    }
}

/// Tells whenever that object changes, for ever.
async fn touched<K>(api: Api<K>, name: &str, changed: &Notify)
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = std::pin::pin!(watcher(api, only).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(_) => changed.notify_one(),
            Err(error) => warn!(%name, error = chain(&error), "the watch was interrupted"),
        }
    }
}
