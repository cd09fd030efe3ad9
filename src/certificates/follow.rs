//! What a webhook replica serves: the Secret, as it is now. What cannot be served leaves the last good key in place.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use berth_certs::{Bundle, CurrentKey};
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tracing::{info, warn};

use super::{LEAF_CERTIFICATE, LEAF_KEY, text};
use crate::events::{Events, What};
use crate::mirror::{Change, mirror};
use crate::telemetry::chain;

/// What is counted of the certificate.
#[derive(Clone, Default)]
pub struct Counts {
    pub not_after: Gauge,
    pub swapped: Counter,
    pub rejected: Counter,
}

impl Counts {
    pub fn register(&self, registry: &mut Registry) {
        let part = registry.sub_registry_with_prefix("berth_certificate");
        let expires = "When the certificate that is served expires, in seconds since 1970";
        part.register("not_after_seconds", expires, self.not_after.clone());
        part.register("swapped", "Certificates taken up", self.swapped.clone());
        let rejected = "Certificates in the Secret that could not be served: the previous one was kept";
        part.register("rejected", rejected, self.rejected.clone());
    }
}

/// For ever.
pub async fn follow(
    client: Client,
    namespace: &str,
    secret: &str,
    current: Arc<CurrentKey>,
    counts: Counts,
    events: Events,
) {
    let only = watcher::Config::default().fields(&format!("metadata.name={secret}"));
    let provider = rustls::crypto::ring::default_provider();
    let served: AtomicU64 = AtomicU64::default();
    let take = |secret: &Secret| {
        let (certificate, key) = (text(secret, LEAF_CERTIFICATE), text(secret, LEAF_KEY));
        let hash = std::hash::BuildHasher::hash_one(&hasher(), (certificate, key));
        // The same pair again: the Secret changed in something else, or the watch began anew.
        if served.swap(hash, std::sync::atomic::Ordering::Relaxed) == hash {
            return;
        }
        match Bundle::parse(certificate.as_bytes(), key.as_bytes(), &provider) {
            Ok(bundle) => {
                info!(not_after = %bundle.not_after, "serving the certificate of the Secret");
                counts.not_after.set(bundle.not_after.as_second());
                counts.swapped.inc();
                current.set(bundle.key);
            }
            Err(error) => {
                warn!(
                    error = chain(&error),
                    "keeping the previous certificate: that of the Secret cannot be served"
                );
                counts.rejected.inc();
                let note = format!("not served, the previous certificate is kept: {}", chain(&error));
                events.tell_about(What::CertificateRejected, reference(namespace, secret), note);
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
