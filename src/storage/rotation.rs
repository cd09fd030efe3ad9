//! S3 keys that are read again while a store is open, because a backup may run longer than its
//! first session token is valid, and the program that writes new keys into the Secret cannot know
//! which backups run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use berth_api::velero::BackupStorageLocation;
use futures::future::BoxFuture;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::credentials::AwsProfileKeys;
use super::secrets::LocationSecrets;
use crate::text::chain;

/// No request is signed with keys that were read longer ago than this.
const AGE: Duration = Duration::from_secs(10);
/// A refusal reads the keys anew, but not more often than this: stores do not tell keys that
/// expired from keys that lack a right.
const REFUSED: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(5);

/// The keys of a location's Secret, at most [`AGE`] old.
pub(super) struct Rotating {
    secrets: LocationSecrets,
    location: BackupStorageLocation,
    known: Mutex<CachedKeys>,
}

struct CachedKeys {
    keys: Arc<AwsCredential>,
    read: Instant,
    /// When a refusal had them read last.
    refused: Option<Instant>,
}

impl Rotating {
    /// `keys`: read just now.
    pub fn new(secrets: LocationSecrets, location: BackupStorageLocation, keys: AwsProfileKeys) -> Self {
        let known = CachedKeys { keys: Arc::new(keys.into()), read: Instant::now(), refused: None };
        Self { secrets, location, known: Mutex::new(known) }
    }

    pub async fn current(&self) -> Arc<AwsCredential> {
        let mut known = self.known.lock().await;
        if known.read.elapsed() >= AGE {
            self.read(&mut known).await;
        }
        Arc::clone(&known.keys)
    }

    /// Whether there are other keys by now than these, which the store has refused.
    pub async fn others(&self, refused: &AwsCredential) -> bool {
        let mut known = self.known.lock().await;
        let is_told = known.refused.is_some_and(|at| at.elapsed() < REFUSED);
        if *known.keys == *refused && !is_told {
            self.read(&mut known).await;
            known.refused = Some(Instant::now());
        }
        *known.keys != *refused
    }

    async fn read(&self, known: &mut CachedKeys) {
        let name = self.location.metadata.name.as_deref().unwrap_or_default();
        // The last keys may still be valid; the store decides.
        match timeout(CALL, self.secrets.s3_keys(&self.location)).await {
            Ok(Ok(Some(keys))) => known.keys = Arc::new(keys.into()),
            Ok(Ok(None)) => {
                warn!(%name, "Secret of the storage location is gone: using its last keys")
            }
            Ok(Err(error)) => {
                warn!(%name, error = chain(&error), "could not read the Secret of the storage location: using its last keys");
            }
            Err(_) => {
                warn!(%name, "reading the Secret of the storage location timed out: using its last keys")
            }
        }
        known.read = Instant::now();
    }
}

impl From<AwsProfileKeys> for AwsCredential {
    fn from(keys: AwsProfileKeys) -> Self {
        Self { key_id: keys.access_key_id, secret_key: keys.secret_access_key, token: keys.session_token }
    }
}

impl fmt::Debug for Rotating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rotating(…)")
    }
}

// The signature that `async_trait` generates, because object_store declares the trait with it.
impl CredentialProvider for Rotating {
    type Credential = AwsCredential;

    fn get_credential<'s, 'f>(&'s self) -> BoxFuture<'f, object_store::Result<Arc<AwsCredential>>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move { Ok(self.current().await) })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use berth_test_scripted::{Scripted, get};
    use serde_json::{Value, json};

    use super::*;
    use crate::storage::credentials::parse;

    const SECRET: &str = "/api/v1/namespaces/velero/secrets/keys";

    fn file(id: &str) -> String {
        format!("[default]\naws_access_key_id={id}\naws_secret_access_key=s\naws_session_token=t\n")
    }

    fn secret(id: &str) -> Value {
        let data = base64::engine::general_purpose::STANDARD.encode(file(id));
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"cloud": data}})
    }

    #[tokio::test(start_paused = true)]
    async fn new_keys_are_used_soon_and_the_last_ones_while_nobody_gives_others() {
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "away"},
            "spec": {
                "provider": "aws", "objectStorage": {"bucket": "b"}, "credential": {"name": "keys", "key": "cloud"},
            },
        }))
        .unwrap();
        let api = Scripted::new().next(get(SECRET).answers(secret("second"))).next(get(SECRET).refuses(503));
        let secrets = LocationSecrets::new(api.client("velero"), "velero");
        let keys = Rotating::new(secrets, location, parse(&file("first"), "default").unwrap());
        let mut used = Vec::new();
        for pause in [0, 9, 1, 5, 10] {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            used.push(keys.get_credential().await.unwrap().key_id.clone());
        }
        assert_eq!(used, ["first", "first", "second", "second", "second"]);
        assert_eq!(format!("{keys:?}"), "Rotating(…)");
    }
}
