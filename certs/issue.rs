//! Issues a CA, and leaves signed by it.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::OffsetDateTime;

/// Certificates are valid from this long before now, because clocks in a cluster differ.
pub(crate) const SKEW: Duration = Duration::from_secs(15 * 60);
/// Ten years.
pub const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Ninety days.
pub const LEAF_LIFE: Duration = Duration::from_secs(90 * 86_400);

#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("failed to make the {what}")]
    Make { what: &'static str, source: rcgen::Error },
    #[error("{0} is outside the range of dates")]
    Date(Timestamp),
}

/// A CA: its certificate and private key, PEM.
#[derive(Clone)]
pub struct Authority {
    pub certificate: String,
    pub key: String,
}

/// A leaf: its certificate and private key, PEM.
#[derive(Clone)]
pub struct Leaf {
    pub certificate: String,
    pub key: String,
}

/// Without the key, so that no debug output shows it.
impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// A new self-signed CA, valid from a little before `now`.
    ///
    /// # Errors
    /// When the system's randomness fails.
    pub fn new(name: &str, now: Timestamp) -> Result<Self, IssueError> {
        let make = |source| IssueError::Make { what: "certificate authority", source };
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = validity(now, CA_LIFE)?;
        let key = KeyPair::generate().map_err(make)?;
        let certificate = params.self_signed(&key).map_err(make)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }

    /// A leaf for `names` (DNS names or IP addresses), for servers and, with `organizations`, for
    /// clients.
    ///
    /// # Errors
    /// When a name is not a valid DNS name, or this CA cannot be read.
    pub fn issue(
        &self,
        common_name: &str,
        organizations: &[&str],
        names: &[String],
        now: Timestamp,
    ) -> Result<Leaf, IssueError> {
        let make = |source| IssueError::Make { what: "leaf certificate", source };
        let ca_key = KeyPair::from_pem(&self.key).map_err(make)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, ca_key).map_err(make)?;
        let mut params = CertificateParams::new(names).map_err(make)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = validity(now, LEAF_LIFE)?;
        let key = KeyPair::generate().map_err(make)?;
        let certificate = params.signed_by(&key, &issuer).map_err(make)?;
        Ok(Leaf { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

fn validity(now: Timestamp, life: Duration) -> Result<(OffsetDateTime, OffsetDateTime), IssueError> {
    let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| IssueError::Date(now));
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    let start = now.as_second();
    Ok((at(start.saturating_sub(seconds(SKEW)))?, at(start.saturating_add(seconds(life)))?))
}
