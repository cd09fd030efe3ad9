//! The webhook's keys in two Secrets, and the `caBundle` of the webhook configurations.
//!
//! The leader makes and renews them ([`keeper`]), or watches over somebody else who does ([`watcher`]); every webhook
//! replica follows the Secret and swaps what it serves ([`follow`]).

pub mod follow;
pub mod keeper;
pub mod trust;
pub mod watcher;

pub use follow::Follower;
pub use keeper::Keeper;
pub use watcher::Watcher;

use k8s_openapi::api::core::v1::Secret;

/// The Secret that holds the webhooks' certificate, unless a flag says otherwise.
pub const SECRET: &str = "berth-webhook-certs";
/// The Secret that holds the authority of that certificate, where berth keeps both. Of its own, so that the webhook's pods
/// cannot read the authority's key.
pub const AUTHORITY: &str = "berth-webhook-authority";
/// Keys of the Secrets, as cert-manager has them, too.
pub(crate) const CA_CERTIFICATE: &str = "ca.crt";
pub(crate) const CA_KEY: &str = "ca.key";
pub(crate) const LEAF_CERTIFICATE: &str = "tls.crt";
pub(crate) const LEAF_KEY: &str = "tls.key";

/// One value of a Secret as text; empty where there is none.
pub(crate) fn text<'s>(secret: &'s Secret, key: &str) -> &'s str {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}
