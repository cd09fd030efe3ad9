//! The certificate that a webhook replica serves follows the Secret. A certificate that cannot be
//! served leaves the last good one in place.

use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_certs::bundle::is_signed_by;
use berth_certs::{Bundle, CurrentKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use super::ca_bundles::CaBundles;
use super::{LEAF_CERTIFICATE, LEAF_KEY, text};
use crate::events::{EventReason, Events};
use crate::pace::paced;
use crate::text::chain;
use crate::watch::{WatchEvent, of_namespace, reflect};

/// Metrics of the served certificate.
#[derive(Clone, Default)]
pub struct CertificateMetrics {
    pub not_after: Gauge,
    pub swapped: Counter,
    pub rejected: Counter,
}

impl CertificateMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let part = registry.sub_registry_with_prefix("berth_certificate");
        let expires = "When the served certificate expires, in seconds since 1970";
        part.register("not_after_seconds", expires, self.not_after.clone());
        part.register("swapped", "Certificates put into use", self.swapped.clone());
        let rejected =
            "Certificates in the Secret that could not be served, so that the previous one was kept";
        part.register("rejected", rejected, self.rejected.clone());
    }
}

/// How long a replica that serves nothing yet waits for the authority of its certificate to be in
/// caBundle. After that it serves the certificate anyway, because nothing can get worse.
const PATIENCE: Duration = Duration::from_secs(60);
/// The served certificate is replaced this long before it expires, even by one whose authority is
/// not in caBundle.
const LAST_MOMENT: SignedDuration = SignedDuration::from_mins(10);
const LOOK: Duration = Duration::from_millis(100);
/// How long an API server takes to read a new caBundle through its watch.
const LEAD_TIME: Duration = Duration::from_secs(2);

/// Follows the certificate Secret and serves its certificate.
pub struct KeyReloader {
    pub client: Client,
    pub namespace: String,
    pub secret: String,
    pub current: Arc<CurrentKey>,
    pub counts: CertificateMetrics,
    pub events: Events,
    /// The caBundles. Two programs may write Secret and caBundle in any order, so a certificate is
    /// served only once its authority is in every caBundle.
    pub trust: CaBundles,
}

impl KeyReloader {
    /// Runs for ever.
    pub async fn follow(self) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.secret));
        let latest = watch::Sender::new(None::<Secret>);
        let watching = reflect(
            of_namespace(&self.client, &self.namespace),
            only,
            |secret: Secret| secret,
            |change| match change {
                WatchEvent::Replaced(secrets) => {
                    secrets.into_iter().for_each(|secret| drop(latest.send_replace(Some(secret))))
                }
                WatchEvent::Applied(secret) => drop(latest.send_replace(Some(secret))),
                WatchEvent::Deleted(_) => {
                    warn!("the certificate Secret was deleted: keeping the previous certificate")
                }
            },
        );
        let mut changed = latest.subscribe();
        let taking = async {
            let mut seen = 0;
            let mut served: Option<ServedCertificate> = None;
            while changed.changed().await.is_ok() {
                let Some(secret) = changed.borrow_and_update().clone() else { continue };
                let hash = pair(&secret);
                // The same pair again, because another field changed or the watch restarted.
                if std::mem::replace(&mut seen, hash) == hash {
                    continue;
                }
                tokio::select! {
                    taken = self.take(&secret, served.as_ref()) => served = taken.or(served),
                    // A newer pair arrived before this one was in use.
                    () = another(&latest, hash) => {}
                }
            }
        };
        tokio::join!(watching, taking);
    }

    /// Puts the Secret's certificate into use. Returns the certificate that is served from now on,
    /// if it changed.
    async fn take(&self, secret: &Secret, served: Option<&ServedCertificate>) -> Option<ServedCertificate> {
        let (certificate, key) = (text(secret, LEAF_CERTIFICATE), text(secret, LEAF_KEY));
        let provider = rustls::crypto::ring::default_provider();
        let parsed =
            Bundle::parse(certificate.as_bytes(), key.as_bytes(), &provider).map_err(|error| chain(&error));
        let valid = parsed.and_then(|bundle| {
            if bundle.not_after <= Timestamp::now() {
                return Err(format!("it expired at {}", bundle.not_after));
            }
            Ok(bundle)
        });
        match valid {
            Ok(bundle) => {
                self.believed(certificate, served).await;
                info!(not_after = %bundle.not_after, "swapped the served certificate");
                self.counts.not_after.set(bundle.not_after.as_second());
                self.counts.swapped.inc();
                self.current.set(bundle.key);
                Some(ServedCertificate { certificate: certificate.to_owned(), not_after: bundle.not_after })
            }
            Err(why) => {
                warn!(%why, "keeping the previous certificate: that of the Secret cannot be served");
                self.counts.rejected.inc();
                let note = format!("not served, the previous certificate is kept: {why}");
                self.events.tell_about(
                    EventReason::CertificateRejected,
                    reference(&self.namespace, secret),
                    note,
                );
                None
            }
        }
    }

    /// Waits until the certificate's authority is in every caBundle, or waiting longer is of no
    /// use.
    async fn believed(&self, certificate: &str, served: Option<&ServedCertificate>) {
        let begun = Instant::now();
        let mut told = false;
        loop {
            match self.trust.read().await {
                Ok(all) => {
                    let is = |leaf: &str| {
                        all.iter().all(|(_, bundle)| is_signed_by(leaf.as_bytes(), bundle.as_bytes()))
                    };
                    if is(certificate) {
                        break;
                    }
                    if served.is_some_and(|served| !is(&served.certificate)) {
                        return;
                    }
                }
                Err(error) if !told => {
                    warn!(
                        error = format!("{error:#}"),
                        "cannot tell whether the new certificate is believed"
                    );
                    told = true;
                }
                Err(_) => {}
            }
            let nothing_to_lose = match served {
                None => begun.elapsed() >= paced(PATIENCE),
                Some(served) => served.not_after.duration_since(Timestamp::now()) <= LAST_MOMENT,
            };
            if nothing_to_lose {
                warn!(
                    "the authority of the new certificate is not in every caBundle: serving it all the same"
                );
                return;
            }
            if !told && begun.elapsed() >= paced(PATIENCE) / 2 {
                warn!(
                    "the authority of the new certificate is not in every caBundle: the previous one is served"
                );
                told = true;
            }
            sleep(LOOK).await;
        }
        // The authority was missing at the first check, so an API server may not have read the new
        // caBundle yet.
        if served.is_some() && begun.elapsed() >= LOOK {
            sleep(LEAD_TIME).await;
        }
    }
}

/// The certificate that is served at present.
struct ServedCertificate {
    /// PEM.
    certificate: String,
    not_after: Timestamp,
}

/// Resolves when the Secret holds another pair than the one of `hash`.
async fn another(latest: &watch::Sender<Option<Secret>>, hash: u64) {
    let mut changed = latest.subscribe();
    let is_another = |secret: &Option<Secret>| secret.as_ref().is_some_and(|secret| pair(secret) != hash);
    if changed.wait_for(is_another).await.is_err() {
        std::future::pending().await
    }
}

/// A hash of certificate and key.
fn pair(secret: &Secret) -> u64 {
    hasher().hash_one((text(secret, LEAF_CERTIFICATE), text(secret, LEAF_KEY)))
}

fn hasher() -> std::hash::BuildHasherDefault<std::hash::DefaultHasher> {
    std::hash::BuildHasherDefault::default()
}

fn reference(namespace: &str, secret: &Secret) -> ObjectReference {
    ObjectReference {
        api_version: Some(Secret::api_version(&()).into_owned()),
        kind: Some(Secret::kind(&()).into_owned()),
        name: Some(secret.name_any()),
        namespace: Some(namespace.to_owned()),
        uid: secret.uid(),
        ..ObjectReference::default()
    }
}
