//! The files of an image as a reproducible tar: no build times, paths or users.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use libdeflater::{CompressionLvl, Compressor};
use tar::{Builder, EntryType, Header};

pub struct LayerEntry {
    path: String,
    mode: u32,
    bytes: Vec<u8>,
}

impl LayerEntry {
    pub fn file(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.into(), mode: 0o644, bytes }
    }

    pub fn program(path: &str, bytes: Vec<u8>) -> Self {
        Self { mode: 0o755, ..Self::file(path, bytes) }
    }
}

pub struct Layer {
    pub packed: Vec<u8>,
    /// Digest of the uncompressed tar.
    pub diff_id: String,
    pub unpacked: usize,
}

impl Layer {
    /// # Errors
    /// When the tar cannot be compressed.
    pub fn pack(entries: impl IntoIterator<Item = LayerEntry>, epoch: u32) -> anyhow::Result<Self> {
        let mut entries: Vec<LayerEntry> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let tar = tar(&entries, epoch)?;
        // libdeflate gives the same bytes on every CPU, and its header has no time.
        let mut compressor = Compressor::new(CompressionLvl::best());
        let mut packed = vec![0; compressor.gzip_compress_bound(tar.len())];
        let length = compressor.gzip_compress(&tar, &mut packed).context("failed to compress the layer")?;
        packed.truncate(length);
        Ok(Self { packed, diff_id: sha256(&tar), unpacked: tar.len() })
    }
}

/// A tar of the entries in the given order, each folder before its first file.
///
/// # Errors
/// When a path cannot be written in a tar.
pub fn tar(entries: &[LayerEntry], epoch: u32) -> anyhow::Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    let mut folders = BTreeSet::new();
    for entry in entries {
        let above: Vec<&Path> = Path::new(&entry.path).ancestors().skip(1).collect();
        for folder in above.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            if folders.insert(folder) {
                let path = format!("{}/", folder.display());
                append(&mut tar, EntryType::Directory, &path, 0o755, &[], epoch)?;
            }
        }
        append(&mut tar, EntryType::Regular, &entry.path, entry.mode, &entry.bytes, epoch)?;
    }
    tar.into_inner().context("failed to end a tar")
}

fn append(
    tar: &mut Builder<Vec<u8>>,
    kind: EntryType,
    path: &str,
    mode: u32,
    bytes: &[u8],
    epoch: u32,
) -> anyhow::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(epoch.into());
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, path, bytes).with_context(|| format!("failed to put {path} into a tar"))
}

/// In hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn entries() -> [LayerEntry; 3] {
        [
            LayerEntry::program("berth", vec![7; 1000]),
            LayerEntry::file("etc/ssl/certs/roots", b"roots".to_vec()),
            LayerEntry::file("etc/ssl/other", Vec::new()),
        ]
    }

    #[test]
    fn a_layer_holds_its_files_as_root_and_of_one_time() {
        let layer = Layer::pack(entries(), 1_700_000_000).unwrap();
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(layer.packed.as_slice()).read_to_end(&mut tar).unwrap();
        assert_eq!(layer.diff_id, sha256(&tar));
        assert_eq!(layer.unpacked, tar.len());
        let mut seen = Vec::new();
        for entry in tar::Archive::new(tar.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let header = entry.header().clone();
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            assert_eq!(header.mtime().unwrap(), 1_700_000_000);
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
            seen.push((path, header.mode().unwrap(), bytes.len()));
        }
        let wanted = [
            ("berth", 0o755, 1000),
            ("etc/", 0o755, 0),
            ("etc/ssl/", 0o755, 0),
            ("etc/ssl/certs/", 0o755, 0),
            ("etc/ssl/certs/roots", 0o644, 5),
            ("etc/ssl/other", 0o644, 0),
        ];
        assert_eq!(seen, wanted.map(|(path, mode, size)| (path.to_owned(), mode, size)));
    }

    #[test]
    fn the_order_given_does_not_matter() {
        let (one, two) = (entries(), entries());
        let one = Layer::pack(one, 0).unwrap();
        let two = Layer::pack(two.into_iter().rev(), 0).unwrap();
        assert_eq!(one.packed, two.packed);
    }
}
