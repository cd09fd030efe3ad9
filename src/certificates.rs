//! The webhook's keys in two Secrets, and the `caBundle` of the webhook configurations.
//!
//! The leader issues and renews them ([`keeper`]), or checks the work of cert-manager
//! ([`monitor`]). Every webhook replica watches the Secret and swaps the certificate that it serves
//! ([`follow`]).

pub mod ca_bundles;
pub mod follow;
pub mod keeper;
pub mod monitor;

pub use follow::KeyReloader;
pub use keeper::CertificateKeeper;
pub use monitor::CaBundleMonitor;

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use ring::hmac;
use tokio::time::timeout;

use crate::text::chain;

const CALL: Duration = Duration::from_secs(10);

/// Default name of the Secret with the webhooks' certificate.
pub const SECRET: &str = "berth-webhook-certs";
/// Name of the Secret with the authority, where berth issues the certificate. It is a Secret of its
/// own, so that the webhook's pods cannot read the authority's key.
pub const AUTHORITY: &str = "berth-webhook-authority";
/// Keys of the Secrets, the same as cert-manager's.
pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
pub(crate) const CA_KEY: &str = "ca.key";
pub(crate) const LEAF_CERTIFICATE: &str = "tls.crt";
pub(crate) const LEAF_KEY: &str = "tls.key";

/// # Errors
/// When the Secret cannot be read.
pub(crate) async fn read(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Secret> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let found = timeout(CALL, api.get(name)).await;
    let found = found.context("the API server did not answer in time")?;
    found.map_err(|error| anyhow!(chain(&error))).with_context(|| format!("failed to read Secret {name}"))
}

/// A key that every replica derives from the private key of the webhooks' certificate, and nobody
/// without that. Each purpose has a key of its own.
///
/// # Errors
/// When the Secret has no private key.
pub(crate) fn derived_key(secret: &Secret, name: &str, purpose: &[u8]) -> anyhow::Result<hmac::Key> {
    let private = text(secret, LEAF_KEY);
    if private.is_empty() {
        bail!("Secret {name} has no {LEAF_KEY}, from which berth derives a key");
    }
    let root = hmac::Key::new(hmac::HMAC_SHA256, private.as_bytes());
    Ok(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, purpose).as_ref()))
}

/// One value of a Secret as text. Empty where it is missing.
pub(crate) fn text<'s>(secret: &'s Secret, key: &str) -> &'s str {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}
