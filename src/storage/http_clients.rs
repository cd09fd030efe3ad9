//! HTTP clients of buckets. All who open a location with the same settings of TLS share one,
//! because making a client means reading the system's roots of trust, which may be hundreds of
//! files, and because a new client has no connections yet.
//!
//! A client knows no keys and no bucket, so whoever opens a location has a store of its own, with
//! the keys that the Secret has then.

use std::sync::Arc;
use std::time::Duration;

use object_store::client::{ClientOptions, HttpClient, HttpConnector, ReqwestConnector};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::limited::LimitedConnector;
use super::locked::LockReadingConnector;

/// How long a client is given to those who open a location. The roots of trust, and the proxy of
/// the environment, are read only when a client is made.
const LASTS: Duration = Duration::from_secs(300);
/// Most clients that are kept. All locations without an authority of their own share one or two.
const MOST: usize = 16;

/// Makes clients around those of `real` that read no more of an answer than it may have, and what
/// it says of a lock.
pub(super) fn connector(real: impl HttpConnector) -> impl HttpConnector {
    LockReadingConnector(LimitedConnector(real))
}

/// What the clients of two locations may differ in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsSettings {
    /// PEM of the location's own authority.
    pub(super) authority: Option<Vec<u8>>,
    /// `insecureSkipTLSVerify`.
    pub(super) is_unverified: bool,
    pub(super) allows_http: bool,
}

/// The clients that are kept, the oldest first. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct HttpClients(Arc<Mutex<Vec<KeptClient>>>);

#[derive(Debug)]
struct KeptClient {
    settings: TlsSettings,
    client: HttpClient,
    made: Instant,
}

impl HttpClients {
    /// For the builder of one store, whose options must be those of `settings`.
    pub(super) fn connector(&self, settings: TlsSettings) -> KeptConnector {
        KeptConnector { clients: self.clone(), settings }
    }
}

/// Connects a store by a client that others may use, too.
#[derive(Debug)]
pub(super) struct KeptConnector {
    clients: HttpClients,
    settings: TlsSettings,
}

impl HttpConnector for KeptConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let made = Instant::now();
        {
            let mut kept = self.clients.0.lock();
            kept.retain(|one| made.duration_since(one.made) < LASTS);
            if let Some(known) = kept.iter().find(|one| one.settings == self.settings) {
                return Ok(known.client.clone());
            }
        }
        // Without the lock, because it takes milliseconds. Of two that are made at one time both
        // serve.
        let client = ReqwestConnector::default().connect(options)?;
        let mut kept = self.clients.0.lock();
        if kept.len() >= MOST {
            kept.remove(0);
        }
        kept.push(KeptClient { settings: self.settings.clone(), client: client.clone(), made });
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use base64::Engine as _;
    use berth_api::velero::BackupStorageLocation;
    use berth_test_scripted::{Scripted, get};
    use object_store::path::Path;
    use object_store::{Error, ObjectStoreExt as _};
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::storage::{Opener, Roots};

    #[tokio::test(start_paused = true)]
    async fn a_client_serves_all_with_its_settings_until_it_is_too_old() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let clients = HttpClients::default();
        let connect = |settings: &TlsSettings| {
            clients.connector(settings.clone()).connect(&ClientOptions::new()).unwrap();
        };
        let made = || clients.0.lock().iter().map(|one| one.made).collect::<Vec<_>>();
        let plain = TlsSettings { authority: None, is_unverified: false, allows_http: false };
        let of = |authority: u8| TlsSettings { authority: Some(vec![authority]), ..plain.clone() };
        let begun = Instant::now();
        connect(&plain);
        tokio::time::advance(LASTS / 2).await;
        connect(&plain);
        assert_eq!(made(), [begun]);
        for others in [
            of(1),
            TlsSettings { is_unverified: true, ..plain.clone() },
            TlsSettings { allows_http: true, ..plain.clone() },
        ] {
            connect(&others);
        }
        assert_eq!(made().len(), 4);
        tokio::time::advance(LASTS / 2).await;
        connect(&plain);
        assert_eq!((made().len(), made().contains(&begun)), (4, false));
        (2..=40).for_each(|authority| connect(&of(authority)));
        assert_eq!(made().len(), MOST);
    }

    /// Says that nothing is there.
    async fn answer(mut stream: TcpStream) {
        let mut asked = Vec::new();
        while stream.read_buf(&mut asked).await.is_ok_and(|read| read > 0) {
            if asked.ends_with(b"\r\n\r\n") {
                asked.clear();
                let nothing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(nothing).await.unwrap();
            }
        }
    }

    /// On the clock of this machine, because a store answers over the network.
    #[tokio::test]
    async fn whoever_opens_a_location_again_finds_its_connections_open() {
        const OPENED: usize = 20;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(answer(stream));
            }
        });
        let location: BackupStorageLocation = serde_json::from_value(json!({
            "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation", "metadata": {"name": "away"},
            "spec": {
                "provider": "aws", "objectStorage": {"bucket": "b"}, "config": {"s3Url": url},
                "credential": {"name": "keys", "key": "cloud"},
            },
        }))
        .unwrap();
        let file = "[default]\naws_access_key_id=id\naws_secret_access_key=s\n";
        let data = json!({"cloud": base64::engine::general_purpose::STANDARD.encode(file)});
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data});
        let api = Scripted::new().always(get("/api/v1/namespaces/velero/secrets/keys").answers(secret));
        let opener = Opener::new(api.client("velero"), "velero", Roots::default());
        for _ in 0..OPENED {
            // As each run does.
            let store = opener.patient().open(&location).await.unwrap();
            assert!(matches!(store.get(&Path::from("k")).await, Err(Error::NotFound { .. })));
        }
        // A connection may be on its way back while the next request wants one.
        let connections = connections.load(Ordering::Relaxed);
        assert!(connections <= OPENED / 2, "{connections} connections");
        assert_eq!(api.asked().len(), OPENED, "the keys are read whenever it is opened");
    }
}
