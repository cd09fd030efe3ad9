//! The content of a lock file, and how it is encrypted.

use aes256ctr_poly1305aes::aead::Aead;
use aes256ctr_poly1305aes::{Aes256CtrPoly1305Aes, Key, Nonce};
use jiff::Timestamp;
use ring::rand::{SecureRandom as _, SystemRandom};
use rustic_core::repofile::MasterKey;
use serde::{Deserialize, Serialize};

/// Limit of the size of a lock file, which has a few hundred bytes.
pub(crate) const LARGEST: u64 = 64 * 1024;
/// The byte that restic writes before compressed content.
const COMPRESSED: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    pub time: Timestamp,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub pid: u32,
}

/// The key of a repository, which encrypts its locks.
#[derive(Clone)]
pub(crate) struct Sealer(Key);

impl Sealer {
    /// `None`: the key has the wrong size.
    pub fn new(key: &MasterKey) -> Option<Self> {
        let bytes = [key.encrypt.as_slice(), &key.mac.k, &key.mac.r].concat();
        let sizes = (key.encrypt.len(), key.mac.k.len(), key.mac.r.len());
        (sizes == (32, 16, 16)).then(|| Self(*Key::from_slice(&bytes)))
    }

    pub fn seal(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = Nonce::default();
        SystemRandom::new().fill(&mut nonce).ok()?;
        let sealed = Aes256CtrPoly1305Aes::new(&self.0).encrypt(&nonce, plain).ok()?;
        Some([nonce.as_slice(), &sealed].concat())
    }

    pub fn unseal(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(16)?;
        let plain = Aes256CtrPoly1305Aes::new(&self.0).decrypt(Nonce::from_slice(nonce), sealed).ok()?;
        match plain.split_first() {
            Some((&COMPRESSED, compressed)) => {
                zstd::bulk::decompress(compressed, usize::try_from(LARGEST).ok()?).ok()
            }
            _ => Some(plain),
        }
    }
}
