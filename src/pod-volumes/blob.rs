//! Pieces of files, as a repository stores them.

use bytes::Bytes;
use ring::digest::{SHA256, digest};
use rustic_core::repofile::BlobType;
use rustic_core::{BlobId, DataId, IndexedFullStatus, Repository};

/// A repository with its index in memory, which says where each piece of a file is stored.
pub(crate) type IndexedRepository = Repository<IndexedFullStatus>;

/// Reads one piece of a file, and checks it against its ID.
pub(crate) fn blob(repository: &IndexedRepository, id: &DataId) -> Result<Bytes, String> {
    let data = repository.get_blob_cached(&BlobId::from(**id), BlobType::Data);
    let data = data.map_err(|error| crate::fault::told(&error))?;
    let name = id.to_hex();
    let name = name.as_str();
    if digest(&SHA256, &data).as_ref() == bytes_of(name).as_slice() {
        Ok(data)
    } else {
        Err(format!("blob {name} of the repository has other bytes than its name says"))
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}
