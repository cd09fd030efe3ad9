//! The webhook's keys in two Secrets, and the `caBundle` of the webhook configurations.
//!
//! The leader issues and renews them ([`keeper`]), or checks the work of cert-manager
//! ([`watcher`]). Every webhook replica watches the Secret and swaps the certificate that it serves
//! ([`follow`]).

pub mod follow;
pub mod keeper;
pub mod trust;
pub mod watcher;

pub use follow::Follower;
pub use keeper::CertificateKeeper;
pub use watcher::Watcher;

use k8s_openapi::api::core::v1::Secret;

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

/// One value of a Secret as text. Empty where it is missing.
pub(crate) fn text<'s>(secret: &'s Secret, key: &str) -> &'s str {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}
