//! The current key of a running server. Swapped whole: a handshake sees the old one or the new one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Holds nothing until the first [`CurrentKey::set`]: handshakes fail until then.
#[derive(Debug, Default)]
pub struct CurrentKey(ArcSwapOption<CertifiedKey>);

impl CurrentKey {
    pub fn set(&self, key: Arc<CertifiedKey>) {
        self.0.store(Some(key));
    }

    pub fn is_set(&self) -> bool {
        self.0.load().is_some()
    }

    /// What an HTTPS server needs: this key, HTTP/2 and HTTP/1.1.
    ///
    /// # Errors
    /// When the crypto provider has no usable protocol version.
    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for CurrentKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
