//! PEM to a chain and key, checked to belong together.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A server's certificate chain and key, and fields of the leaf.
#[derive(Clone, Debug)]
pub struct Bundle {
    pub key: Arc<CertifiedKey>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// DNS names and IP addresses of the leaf, as text.
    pub names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("the certificate is not PEM")]
    Certificate(#[source] rustls_pki_types::pem::Error),
    #[error("the private key is not PEM")]
    Key(#[source] rustls_pki_types::pem::Error),
    #[error("there is no certificate in the PEM")]
    Empty,
    #[error("certificate and key do not belong together")]
    Pair(#[source] rustls::Error),
    #[error("the certificate cannot be read: {0}")]
    Content(String),
}

impl Bundle {
    /// # Errors
    /// When certificate or key cannot be read, or do not belong together.
    pub fn parse(certificate: &[u8], key: &[u8], provider: &CryptoProvider) -> Result<Self, BundleError> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(BundleError::Certificate)?;
        let leaf = chain.first().ok_or(BundleError::Empty)?.clone();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(BundleError::Key)?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(BundleError::Pair)?;
        let (_, read) = X509Certificate::from_der(&leaf).map_err(|e| BundleError::Content(e.to_string()))?;
        let time = |t: x509_parser::time::ASN1Time| {
            Timestamp::from_second(t.timestamp()).map_err(|e| BundleError::Content(e.to_string()))
        };
        let sans = read.subject_alternative_name().ok().flatten();
        let names = sans.into_iter().flat_map(|san| &san.value.general_names).filter_map(name).collect();
        Ok(Self {
            key: Arc::new(key),
            not_before: time(read.validity().not_before)?,
            not_after: time(read.validity().not_after)?,
            names,
        })
    }

    /// Is less than a third of the lifetime left, or does the leaf lack one of `names`?
    pub fn wants_renewal(&self, names: &[String], now: Timestamp) -> bool {
        let life = self.not_after.duration_since(self.not_before);
        let left = self.not_after.duration_since(now);
        let third = SignedDuration::from_secs(life.as_secs() / 3);
        left < third || names.iter().any(|name| !self.names.contains(name))
    }
}

fn name(general: &GeneralName<'_>) -> Option<String> {
    match general {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from));
            address.ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// Was `leaf` signed by one of the CAs in `bundle`? Both are PEM. Unreadable certificates count as
/// not signed.
pub fn is_signed_by(leaf: &[u8], bundle: &[u8]) -> bool {
    let Ok(leaf) = CertificateDer::from_pem_slice(leaf) else { return false };
    let Ok((_, leaf)) = X509Certificate::from_der(&leaf) else { return false };
    CertificateDer::pem_slice_iter(bundle).flatten().any(|ca| {
        X509Certificate::from_der(&ca).is_ok_and(|(_, ca)| {
            leaf.issuer() == ca.subject() && leaf.verify_signature(Some(ca.public_key())).is_ok()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    fn provider() -> CryptoProvider {
        rustls::crypto::ring::default_provider()
    }

    fn made(names: &[&str]) -> (Authority, crate::issue::Leaf, Timestamp) {
        let now = Timestamp::from_second(1_790_000_000).unwrap_or_default();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let ca = Authority::new("test", now).unwrap_or_else(|e| unreachable!("{e}"));
        let leaf = ca.issue("leaf", &[], &names, now).unwrap_or_else(|e| unreachable!("{e}"));
        (ca, leaf, now)
    }

    #[test]
    fn a_leaf_is_read_back_with_its_names_and_its_life() {
        let (ca, leaf, now) = made(&["berth-webhook.velero.svc", "127.0.0.1"]);
        let bundle = Bundle::parse(leaf.certificate.as_bytes(), leaf.key.as_bytes(), &provider());
        let bundle = bundle.unwrap_or_else(|e| unreachable!("{e}"));
        assert_eq!(bundle.names, ["berth-webhook.velero.svc", "127.0.0.1"]);
        assert!(is_signed_by(leaf.certificate.as_bytes(), ca.certificate.as_bytes()));
        assert!(bundle.not_before < now - SignedDuration::from_mins(10), "ten minutes of skew are tolerated");
        assert!(!bundle.wants_renewal(&bundle.names, now));
        assert!(bundle.wants_renewal(&["other".to_owned()], now));
        assert!(bundle.wants_renewal(&bundle.names, now + SignedDuration::from_hours(24 * 61)));
    }

    #[test]
    fn a_key_of_somebody_else_is_refused() {
        let ((ca, one, _), (other_ca, other, _)) = (made(&["a"]), made(&["a"]));
        let bundle = Bundle::parse(one.certificate.as_bytes(), other.key.as_bytes(), &provider());
        assert!(matches!(bundle, Err(BundleError::Pair(_))), "{bundle:?}");
        assert!(!is_signed_by(one.certificate.as_bytes(), other_ca.certificate.as_bytes()));
        let both = format!("{}{}", other_ca.certificate, ca.certificate);
        assert!(is_signed_by(one.certificate.as_bytes(), both.as_bytes()), "old and new CA stand together");
    }

    #[test]
    fn noise_is_refused() {
        for (certificate, key) in
            [(&b""[..], &b""[..]), (b"-----BEGIN CERTIFICATE-----", b"x"), (b"\xff\xfe", b"\0")]
        {
            assert!(Bundle::parse(certificate, key, &provider()).is_err());
        }
    }
}
