//! The current key of a running server. It is replaced atomically: a handshake uses the old one or
//! the new one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::bundle::BundleError;

/// Empty until the first [`CurrentKey::set`]; handshakes fail until then.
#[derive(Debug, Default)]
pub struct CurrentKey(ArcSwapOption<CertifiedKey>);

impl CurrentKey {
    pub fn set(&self, key: Arc<CertifiedKey>) {
        self.0.store(Some(key));
    }

    pub fn is_set(&self) -> bool {
        self.0.load().is_some()
    }

    /// The configuration of an HTTPS server with this key, HTTP/2 and HTTP/1.1. With an authority,
    /// every client must present a certificate that it signed.
    ///
    /// # Errors
    /// When the crypto provider has no usable protocol version, or the authority has no certificate
    /// that can sign.
    pub fn server_config(
        self: &Arc<Self>,
        client_authority: Option<ClientAuthority>,
    ) -> Result<ServerConfig, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match client_authority {
            Some(ClientAuthority(roots)) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The authority that signs the certificates of accepted clients.
#[derive(Clone, Debug)]
pub struct ClientAuthority(RootCertStore);

impl ClientAuthority {
    /// Reads PEM with one certificate or several.
    ///
    /// # Errors
    /// When there is no certificate, or one cannot be read.
    pub fn parse(pem: &[u8]) -> Result<Self, BundleError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(BundleError::Certificate)?;
            roots.add(certificate).map_err(|error| BundleError::Content(error.to_string()))?;
        }
        if roots.is_empty() { Err(BundleError::Empty) } else { Ok(Self(roots)) }
    }
}

impl ResolvesServerCert for CurrentKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load_full()
    }
}
