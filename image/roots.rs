//! The public CAs. berth reads them from the platform, as curl and Go do, so that a cluster can
//! mount its own over them. An image from scratch has none, and without CAs the S3 client cannot be
//! created, even for a store on plain HTTP.
//!
//! They are Mozilla's, from a crate that Cargo.lock pins, because the CAs of build machines differ.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

/// Debian's path, which the client reads first.
pub const PATH: &str = "etc/ssl/certs/ca-certificates.crt";
/// The crate's name for the SBOM, because it is not a dependency of the binary.
pub const CRATE: &str = "webpki-root-certs";
/// Characters in a line of PEM.
const LINE: usize = 64;

pub fn pem() -> String {
    let mut pem = String::new();
    for certificate in TLS_SERVER_ROOT_CERTS {
        let mut text = STANDARD.encode(certificate);
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        while !text.is_empty() {
            let rest = text.split_off(text.len().min(LINE));
            pem.push_str(&text);
            pem.push('\n');
            text = rest;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    pem
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_can_be_trusted() {
        let pem = pem();
        let read: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().unwrap();
        assert_eq!(read, TLS_SERVER_ROOT_CERTS);
        assert!(read.len() > 50, "{}", read.len());
        let mut store = RootCertStore::empty();
        assert_eq!(store.add_parsable_certificates(read.clone()), (read.len(), 0));
    }
}
