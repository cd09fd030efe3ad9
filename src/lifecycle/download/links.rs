//! Links to files of folders. A link names the location, the file and when it expires, and is
//! signed with a key that every replica of the controller derives from the private key of the
//! webhooks' certificate, so that any of them can serve what the leader has signed. The link is all
//! that whoever has it needs.

use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use ring::hmac;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::certificates;

/// What the derived key is for. Another purpose, or another form of links, takes other words.
const PURPOSE: &[u8] = b"berth download links, version 1";
/// Path of all links.
pub const PATH: &str = "/download";
/// Between two reads of the key for checks.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a key that was read is believed.
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes of a signature.
const TAG: usize = 32;

/// Signs links, and checks them.
#[derive(Clone)]
pub struct Links {
    pub client: Client,
    pub namespace: String,
    /// The Secret with the webhooks' certificate.
    pub secret: String,
    /// Where people reach the server, without a slash at the end.
    pub url: String,
}

/// What a link says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkClaims<'a> {
    pub location: &'a str,
    /// Without the location's prefix.
    pub key: &'a str,
    /// Seconds since 1970.
    pub expires: i64,
}

impl LinkClaims<'_> {
    /// Neither a namespace, a location nor a key has line feeds.
    fn text(&self, namespace: &str) -> String {
        format!("{namespace}\n{}\n{}\n{}", self.location, self.key, self.expires)
    }

    pub fn sign(&self, key: &hmac::Key, namespace: &str) -> String {
        let tag = hmac::sign(key, self.text(namespace).as_bytes());
        tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Has a link this signature, and not expired?
    pub fn is_valid(&self, key: &hmac::Key, namespace: &str, signature: &str, now: Timestamp) -> bool {
        let Some(tag) = unhex(signature) else { return false };
        hmac::verify(key, self.text(namespace).as_bytes(), &tag).is_ok() && now.as_second() < self.expires
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() || pairs.len() > 64 {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

impl Links {
    /// A link to a file.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub async fn make(&self, location: &str, key: &str, until: Timestamp) -> anyhow::Result<String> {
        let claimed = LinkClaims { location, key, expires: until.as_second() };
        let signature = claimed.sign(&self.key().await?, &self.namespace);
        let LinkClaims { expires, .. } = claimed;
        Ok(format!("{}{PATH}/{location}/{key}?expires={expires}&signature={signature}", self.url))
    }

    /// # Errors
    /// When the Secret cannot be read, or has no private key.
    pub async fn key(&self) -> anyhow::Result<hmac::Key> {
        certificates::derived_key(&self.read().await?, &self.secret, PURPOSE)
    }

    /// # Errors
    /// When the Secret cannot be read.
    pub async fn read(&self) -> anyhow::Result<Secret> {
        certificates::read(&self.client, &self.namespace, &self.secret).await
    }
}

/// Checks links by the key as it was last read, so that whoever has no link causes no calls.
pub struct LinkChecker {
    pub links: Links,
    known: Mutex<CachedLinkKey>,
}

#[derive(Default)]
struct CachedLinkKey {
    /// With the time at which it was read.
    key: Option<(hmac::Key, Instant)>,
    tried: Option<Instant>,
}

impl LinkChecker {
    pub fn new(links: Links) -> Self {
        Self { links, known: Mutex::default() }
    }

    /// Has berth made this link, and is it still valid? One that is not valid by the known key may
    /// be signed by a later one, so the key is read again, but at most every [`PAUSE`], whoever
    /// asks.
    ///
    /// # Errors
    /// When the key cannot be read.
    pub async fn is_valid(
        &self,
        claimed: &LinkClaims<'_>,
        signature: &str,
        now: Timestamp,
    ) -> anyhow::Result<bool> {
        if claimed.expires <= now.as_second() || unhex(signature).is_none_or(|tag| tag.len() != TAG) {
            return Ok(false);
        }
        let mut known = self.known.lock().await;
        let fits = |key: &hmac::Key| claimed.is_valid(key, &self.links.namespace, signature, now);
        let is_tried = known.tried.is_some_and(|tried| tried.elapsed() < PAUSE);
        match known.key.as_ref().filter(|(_, read)| read.elapsed() < LONGEST) {
            Some((key, _)) if fits(key) => return Ok(true),
            Some(_) if is_tried => return Ok(false),
            None if is_tried => bail!("the key for links could not be read a moment ago"),
            _ => {}
        }
        // The key that is known stays until there is another one, because whoever asked may be gone
        // before the API server answers, and others' links must not fail for that.
        known.tried = Some(Instant::now());
        // Told here, and not by whoever asks: anybody may ask as often as they like.
        let read = self.links.key().await;
        let key = read.inspect_err(|error| {
            warn!(error = format!("{error:#}"), "could not read the key for links: none can be checked");
        })?;
        let (key, _) = known.key.insert((key, Instant::now()));
        Ok(fits(key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[seed; 32])
    }

    const GOOD: LinkClaims<'_> = LinkClaims { location: "l", key: "backups/b/b-logs.gz", expires: 100 };

    #[test]
    fn a_link_is_good_for_one_file_for_a_while() {
        let now = Timestamp::from_second(99).unwrap();
        let signature = GOOD.sign(&key(1), "velero");
        assert!(GOOD.is_valid(&key(1), "velero", &signature, now));
        for other in [
            LinkClaims { location: "m", ..GOOD },
            LinkClaims { key: "backups/c/c-logs.gz", ..GOOD },
            LinkClaims { expires: 101, ..GOOD },
            LinkClaims { location: "l\nbackups", key: "b/b-logs.gz", ..GOOD },
        ] {
            assert!(!other.is_valid(&key(1), "velero", &signature, now), "{other:?}");
        }
        assert!(!GOOD.is_valid(&key(2), "velero", &signature, now), "another key");
        assert!(!GOOD.is_valid(&key(1), "other", &signature, now), "another namespace");
        assert!(!GOOD.is_valid(&key(1), "velero", &signature, Timestamp::from_second(100).unwrap()));
    }

    proptest! {
        #[test]
        fn no_signature_is_guessed_and_none_panics(signature in "\\PC*") {
            prop_assert!(!GOOD.is_valid(&key(1), "velero", &signature, Timestamp::UNIX_EPOCH));
        }
    }
}
