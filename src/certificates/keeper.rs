//! Issues the webhooks' keys, renews them, and repairs foreign changes. Only the leader runs it.
//!
//! `caBundle` always holds the CA that signed the served certificate: a new CA is in both
//! configurations for as long as the slowest API server takes to read them, before a certificate
//! that it signed is put into the Secret.
//!
//! A pending revocation is an annotation on the Secret until it is done, so that the next leader
//! can finish it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use berth_api::keys::{self, EXCLUDE_FROM_BACKUP};
use berth_certs::rotation::{self, trusts};
use berth_certs::{KeySet, Rotate, RotationStep};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::ca_bundles::CaBundles;
use super::{AUTHORITY, CA_CERTIFICATE, CA_KEY, LEAF_CERTIFICATE, LEAF_KEY, text};
use crate::client::is_conflict;
use crate::guarded::Guarded;
use crate::pace::counted;
use crate::watch::{of_namespace, reflect};

/// How often all objects are read again, whatever the watches show.
const PERIOD: Duration = Duration::from_secs(10);
/// How often caBundle is read while a new authority waits.
const LOOK: Duration = Duration::from_millis(500);
/// The pause after a failure, and during a revocation.
const SOON: Duration = Duration::from_secs(1);

pub struct CertificateKeeper {
    pub client: Client,
    /// The client for watches.
    pub watch: Client,
    pub namespace: String,
    pub secret: String,
    /// Name of both webhook configurations.
    pub configuration: String,
    /// DNS names and addresses of the webhooks.
    pub names: Vec<String>,
    /// How long a CA is in caBundle before a certificate that it signed is served.
    pub lead_time: Duration,
}

/// A leaf in the Secret, and since when this leader has seen it there, by its own clock, because
/// clocks of leaders differ.
struct Published {
    leaf: String,
    since: Timestamp,
}

impl CertificateKeeper {
    /// Runs for ever, and repairs the Secrets and caBundles.
    pub async fn run(&self) {
        let changed = Notify::new();
        let keeping = async {
            let mut published = Published { leaf: String::new(), since: Timestamp::now() };
            loop {
                let pause = self.keep(&mut published).await.unwrap_or_else(|error| {
                    warn!(error = format!("{error:#}"), "failed to keep the webhook's certificates");
                    SOON
                });
                let _ = timeout(pause, changed.notified()).await;
            }
        };
        let secrets: Api<Guarded<Secret>> = of_namespace(&self.watch, &self.namespace);
        tokio::join!(
            keeping,
            touched(secrets.clone(), &self.secret, &changed),
            touched(secrets, AUTHORITY, &changed),
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

    fn trust(&self) -> CaBundles {
        CaBundles { client: self.client.clone(), configuration: self.configuration.clone() }
    }

    /// One pass. Returns how long to wait for the next one if nothing changes.
    async fn keep(&self, published: &mut Published) -> anyhow::Result<Duration> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let (signing, serving) = (read(&api, AUTHORITY).await?, read(&api, &self.secret).await?);
        let present = KeySet {
            authorities: part(signing.as_ref(), CA_CERTIFICATE),
            authority_key: part(signing.as_ref(), CA_KEY),
            leaf: part(serving.as_ref(), LEAF_CERTIFICATE),
            leaf_key: part(serving.as_ref(), LEAF_KEY),
        };
        let now = Timestamp::now();
        if published.leaf != present.leaf {
            *published = Published { leaf: present.leaf.clone(), since: now };
        }
        let trust = self.trust();
        let believed: String = trust.read().await?.into_iter().map(|(_, bundle)| bundle + "\n").collect();
        let asked = serving.as_ref().and_then(asked);
        let is_revoking =
            serving.as_ref().is_some_and(|secret| secret.annotations().contains_key(keys::REVOKE));
        let revoking = is_revoking.then(|| counted(published.since, now));
        let provider = rustls::crypto::ring::default_provider();
        let step = rotation::next(&present, &believed, &self.names, asked, revoking, now, &provider)?;
        let (keys, is_revoked) = match step {
            None => (present, false),
            Some(RotationStep::Keep(keys)) => (keys, false),
            Some(RotationStep::Revoke(keys)) => (keys, true),
            Some(RotationStep::TrustFirst(keys)) => {
                trust.write(&keys.authorities).await?;
                // An empty caBundle means that no certificate is in use yet, so no wait is needed.
                if !believed.trim().is_empty() {
                    self.wait_for_trust(&trust, &keys.authorities).await?;
                }
                (keys, false)
            }
        };
        let values = [(CA_CERTIFICATE, keys.authorities.as_str()), (CA_KEY, keys.authority_key.as_str())];
        write(&api, signing.as_ref(), &holding(signing.as_ref(), AUTHORITY, "Opaque", &values)).await?;
        trust.write(&keys.authorities).await?;
        if is_revoked {
            let is_written = trust.read().await?.iter().all(|(_, bundle)| *bundle == keys.authorities);
            ensure!(is_written, "caBundle was changed by another program meanwhile");
            info!("revoked older authorities");
        }
        let values = [
            (CA_CERTIFICATE, keys.authorities.as_str()),
            (LEAF_CERTIFICATE, keys.leaf.as_str()),
            (LEAF_KEY, keys.leaf_key.as_str()),
        ];
        let mut wanted = holding(serving.as_ref(), &self.secret, "kubernetes.io/tls", &values);
        if let Some(annotations) = &mut wanted.metadata.annotations {
            // berth keeps the Secret from now on, so another program's annotations are removed.
            annotations.retain(|key, _| {
                key != keys::ROTATE
                    && !(is_revoked && key == keys::REVOKE)
                    && !key.starts_with("cert-manager.io/")
            });
        }
        write(&api, serving.as_ref(), &wanted).await?;
        Ok(if is_revoking { SOON } else { PERIOD })
    }

    /// Waits for as long as the slowest API server takes to read caBundle.
    async fn wait_for_trust(&self, trust: &CaBundles, authorities: &str) -> anyhow::Result<()> {
        info!(
            for_seconds = self.lead_time.as_secs(),
            "added a new authority to caBundle; waiting before it is used"
        );
        let mut since = Instant::now();
        while since.elapsed() < self.lead_time {
            sleep(LOOK.min(self.lead_time)).await;
            let believed = trust.read().await?;
            if !believed.iter().all(|(_, bundle)| trusts(bundle, authorities)) {
                warn!("caBundle was overwritten: writing it again");
                trust.write(authorities).await?;
                since = Instant::now();
            }
        }
        Ok(())
    }
}

async fn read(api: &Api<Secret>, name: &str) -> anyhow::Result<Option<Secret>> {
    api.get_opt(name).await.with_context(|| format!("failed to read Secret {name}"))
}

fn part(secret: Option<&Secret>, key: &str) -> String {
    secret.map(|secret| text(secret, key).to_owned()).unwrap_or_default()
}

/// The Secret with exactly these values. It is excluded from backups, because a reader of a backup
/// could sign certificates, and a restore would bring back a revoked authority.
fn holding(found: Option<&Secret>, name: &str, kind: &str, values: &[(&str, &str)]) -> Secret {
    let mut secret = found.cloned().unwrap_or_else(|| Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some(kind.to_owned()),
        ..Secret::default()
    });
    let value = |&(key, text): &(&str, &str)| (key.to_owned(), ByteString(text.as_bytes().to_vec()));
    secret.data = Some(values.iter().map(value).collect());
    let labels = secret.metadata.labels.get_or_insert_default();
    // An existing value stays, because a program that sets another one would write it again and
    // again.
    labels.entry(EXCLUDE_FROM_BACKUP.to_owned()).or_insert_with(|| "true".to_owned());
    secret
}

/// Writes the Secret unless it has these values already.
async fn write(api: &Api<Secret>, found: Option<&Secret>, wanted: &Secret) -> anyhow::Result<()> {
    if found == Some(wanted) {
        return Ok(());
    }
    let (name, params) = (wanted.name_any(), PostParams::default());
    let written = match found {
        None => api.create(&params, wanted).await,
        Some(_) => api.replace(&name, &params, wanted).await,
    };
    match written {
        Ok(_) => {
            info!(secret = %name, "wrote the webhooks' keys");
            Ok(())
        }
        Err(error) if is_conflict(&error) => {
            Err(error).context(format!("Secret {name} was changed by another program meanwhile"))
        }
        Err(error) => Err(error).context(format!("failed to write Secret {name}")),
    }
}

/// The rotation that an annotation asks for. Writing the Secret removes the annotation.
fn asked(secret: &Secret) -> Option<Rotate> {
    match secret.annotations().get(keys::ROTATE).map(String::as_str) {
        None => None,
        Some("ca") => Some(Rotate::Authority),
        Some(_) => Some(Rotate::Leaf),
    }
}

/// Notifies `changed` at every change of the object, for ever.
async fn touched<K>(api: Api<Guarded<K>>, name: &str, changed: &Notify)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    reflect(api, only, |_| (), |_| changed.notify_one()).await;
}

#[cfg(test)]
mod tests {
    use berth_test_scripted::{Scripted, get};

    use super::*;

    /// A watch that fails backs off, and soon reads less often than the pass of every ten seconds.
    #[tokio::test(start_paused = true)]
    async fn whoever_cannot_list_asks_less_and_less_often_and_goes_on() {
        let api = Scripted::new().always(get("/api/v1/namespaces/ns/secrets").refuses(500));
        let changed = Notify::new();
        let secrets: Api<Guarded<Secret>> = of_namespace(&api.client("ns"), "ns");
        let _ = timeout(Duration::from_secs(50), touched(secrets, "keys", &changed)).await;
        // After 0.1, 0.2, 0.4 … 12.8 s, and then every 15 s.
        assert_eq!(api.asked().len(), 10);
    }
}
