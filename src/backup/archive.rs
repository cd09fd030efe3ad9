//! The tarball, made by the packers of one backup.
//!
//! Each packer writes whole tar entries into a buffer of its own and compresses it as a gzip
//! member. Concatenated members are one gzip file, and the order of entries means nothing to
//! readers, so members may come in any order and no packer waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use berth_api::keys::FORMAT_VERSION;
use berth_core::selection::ResourceType;
use bytes::Bytes;
use libdeflater::{CompressionLvl, Compressor};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::ledger::{Contents, PageId};
use super::messages::ArchivePart;
use super::related::key;

/// Bytes of tar per gzip member. Larger ones compress no better (32 KiB window), smaller ones
/// worse.
const MEMBER: usize = 1024 * 1024;
/// In libdeflate, level 6 is as fast as 4 on what clusters hold, and the result is smaller than
/// that of gzip at its default.
const LEVEL: i32 = 6;

/// One object, as the API server sent it.
pub struct ArchiveItem {
    pub namespace: Option<String>,
    pub name: String,
    pub json: Bytes,
    /// Items of built-in lists carry neither apiVersion nor kind.
    pub lacks_type: bool,
}

/// Objects of one type from one page.
pub struct Batch {
    pub kind: Arc<ResourceType>,
    pub page: PageId,
    pub items: Vec<ArchiveItem>,
    /// Receives a message when all of them have been sent to the upload: batches that follow then
    /// stand behind them in the archive.
    pub packed: Option<oneshot::Sender<()>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("failed to write the tar entry {path}")]
    Entry { path: String, source: std::io::Error },
    #[error("failed to compress a member of the archive")]
    Compress,
    /// The upload has ended early and reports why.
    #[error("the upload takes no more of the archive, because it has ended")]
    UploadEnded,
}

/// The first member of every archive.
///
/// # Errors
/// Never in practice, because writing to memory does not fail.
pub fn opening(mtime: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut writer = MemberWriter::new(mtime);
    writer.entry("metadata/version", format!("{FORMAT_VERSION}\n").as_bytes())?;
    writer.take_member()
}

/// The last member: a tar ends with two empty blocks.
///
/// # Errors
/// Never in practice.
pub fn closing() -> Result<Vec<u8>, ArchiveError> {
    compress(&mut compressor(), &[0; 1024], &mut Vec::new())
}

/// Runs one packer until the batches end or the upload does.
///
/// # Errors
/// When an entry cannot be written, or the upload takes no more members.
pub fn pack(
    batches: &Mutex<mpsc::Receiver<Batch>>,
    parts: &mpsc::Sender<ArchivePart>,
    mtime: u64,
    done: &AtomicU64,
) -> Result<(), ArchiveError> {
    let mut writer = MemberWriter::new(mtime);
    let mut json = Vec::new();
    let mut contents: Vec<Contents> = Vec::new();
    loop {
        let batch = batches.lock().blocking_recv();
        let Some(batch) = batch else { break };
        let (count, page) = (batch.items.len() as u64, batch.page);
        let resource: Arc<str> = batch.kind.qualified().into();
        let held = |names| Contents { page, resource: Arc::clone(&resource), names, at: None };
        let mut names = Vec::new();
        for item in batch.items {
            writer.item(&batch.kind, &item, &mut json)?;
            names.push(key(item.namespace.as_deref(), &item.name));
            if writer.size() >= MEMBER {
                contents.push(held(std::mem::take(&mut names)));
                send(parts, writer.take_member()?, std::mem::take(&mut contents))?;
            }
        }
        if !names.is_empty() {
            contents.push(held(names));
        }
        done.fetch_add(count, Ordering::Relaxed);
        if let Some(packed) = batch.packed {
            if writer.size() > 0 {
                send(parts, writer.take_member()?, std::mem::take(&mut contents))?;
            }
            // The receiver may be gone.
            let _ = packed.send(());
        }
    }
    if writer.size() > 0 { send(parts, writer.take_member()?, contents) } else { Ok(()) }
}

fn send(
    parts: &mpsc::Sender<ArchivePart>,
    member: Vec<u8>,
    contents: Vec<Contents>,
) -> Result<(), ArchiveError> {
    parts.blocking_send(ArchivePart::Member(member.into(), contents)).map_err(|_| ArchiveError::UploadEnded)
}

struct MemberWriter {
    tar: tar::Builder<Vec<u8>>,
    compressor: Compressor,
    /// Where members are compressed. Kept, because it is many times as large as a member.
    scratch: Vec<u8>,
    mtime: u64,
}

fn compressor() -> Compressor {
    Compressor::new(CompressionLvl::new(LEVEL).unwrap_or_default())
}

fn compress(
    compressor: &mut Compressor,
    bytes: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Vec<u8>, ArchiveError> {
    scratch.resize(compressor.gzip_compress_bound(bytes.len()), 0);
    let length = compressor.gzip_compress(bytes, scratch).map_err(|_| ArchiveError::Compress)?;
    scratch.get(..length).map(<[u8]>::to_vec).ok_or(ArchiveError::Compress)
}

impl MemberWriter {
    fn new(mtime: u64) -> Self {
        let tar = tar::Builder::new(Vec::with_capacity(MEMBER));
        Self { tar, compressor: compressor(), scratch: Vec::new(), mtime }
    }

    fn size(&self) -> usize {
        self.tar.get_ref().len()
    }

    /// Writes both entries of an object: where readers look for it, and under its version, for
    /// readers that choose a version.
    fn item(
        &mut self,
        kind: &ResourceType,
        item: &ArchiveItem,
        spliced: &mut Vec<u8>,
    ) -> Result<(), ArchiveError> {
        let place = match &item.namespace {
            Some(namespace) => format!("namespaces/{namespace}/{}.json", item.name),
            None => format!("cluster/{}.json", item.name),
        };
        let folder = format!("resources/{}", kind.qualified());
        let json: &[u8] = if item.lacks_type {
            spliced.clear();
            spliced.extend_from_slice(
                format!(r#"{{"apiVersion":"{}","kind":"{}","#, kind.api_version(), kind.kind).as_bytes(),
            );
            spliced.extend_from_slice(item.json.get(1..).unwrap_or_default());
            spliced
        } else {
            &item.json
        };
        self.entry(&format!("{folder}/{place}"), json)?;
        self.entry(&format!("{folder}/{}-preferredversion/{place}", kind.version), json)
    }

    fn entry(&mut self, path: &str, content: &[u8]) -> Result<(), ArchiveError> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_mtime(self.mtime);
        header.set_uid(0);
        header.set_gid(0);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        let written = self.tar.append_data(&mut header, path, content);
        written.map_err(|source| ArchiveError::Entry { path: path.to_owned(), source })
    }

    fn take_member(&mut self) -> Result<Vec<u8>, ArchiveError> {
        let bytes = self.tar.get_mut();
        let member = compress(&mut self.compressor, bytes, &mut self.scratch)?;
        bytes.clear();
        // One huge object must not keep its memory for ever.
        bytes.shrink_to(2 * MEMBER);
        self.scratch.truncate(2 * MEMBER);
        self.scratch.shrink_to(2 * MEMBER);
        Ok(member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn members_of_several_packers_make_one_archive() {
        let kind = Arc::new(ResourceType::regular("", "v1", "ConfigMap", true));
        let long = "n".repeat(253);
        let mut archive = opening(7).unwrap_or_else(|e| unreachable!("{e}"));
        let (batch_sender, batches) = mpsc::channel(8);
        let (parts, mut members) = mpsc::channel(8);
        for (name, lacks_type) in [("a", true), (long.as_str(), false)] {
            let json = Bytes::from_static(br#"{"metadata":{"name":"x"}}"#);
            let item = ArchiveItem { namespace: Some("ns1".into()), name: name.into(), json, lacks_type };
            let batch =
                Batch { kind: kind.clone(), page: PageId::default(), items: vec![item], packed: None };
            batch_sender.try_send(batch).unwrap_or_else(|_| unreachable!());
        }
        drop(batch_sender);
        let (batches, done) = (Mutex::new(batches), AtomicU64::new(0));
        for _ in 0..2 {
            pack(&batches, &parts, 7, &done).unwrap_or_else(|e| unreachable!("{e}"));
        }
        drop(parts);
        let mut named = Vec::new();
        while let Some(ArchivePart::Member(member, contents)) = members.blocking_recv() {
            archive.extend_from_slice(&member);
            named.extend(contents.into_iter().flat_map(|contents| contents.names));
        }
        assert_eq!(named, ["ns1/a".to_owned(), format!("ns1/{long}")]);
        archive.extend(closing().unwrap_or_default());
        let mut tar = tar::Archive::new(flate2::read::MultiGzDecoder::new(archive.as_slice()));
        let mut found = Vec::new();
        for entry in tar.entries().unwrap_or_else(|e| unreachable!("{e}")) {
            let mut entry = entry.unwrap_or_else(|e| unreachable!("{e}"));
            assert_eq!(entry.header().entry_type(), tar::EntryType::Regular);
            let mut text = String::new();
            let _ = entry.read_to_string(&mut text);
            found.push((String::from_utf8_lossy(&entry.path_bytes()).into_owned(), text));
        }
        let typed = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}"#;
        let plain = r#"{"metadata":{"name":"x"}}"#;
        let expected = [
            ("metadata/version".to_owned(), "1.1.0\n"),
            ("resources/configmaps/namespaces/ns1/a.json".to_owned(), typed),
            ("resources/configmaps/v1-preferredversion/namespaces/ns1/a.json".to_owned(), typed),
            (format!("resources/configmaps/namespaces/ns1/{long}.json"), plain),
            (format!("resources/configmaps/v1-preferredversion/namespaces/ns1/{long}.json"), plain),
        ];
        assert_eq!(found, expected.map(|(path, text)| (path, text.to_owned())));
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_waited_for_is_on_its_way_to_the_store_however_little_it_is() {
        let kind = Arc::new(ResourceType::regular("", "v1", "Pod", true));
        let (batch_sender, batches) = mpsc::channel(8);
        let (parts, mut members) = mpsc::channel(8);
        let batches = Arc::new(Mutex::new(batches));
        let working = tokio::task::spawn_blocking(move || pack(&batches, &parts, 7, &AtomicU64::new(0)));
        let json = Bytes::from_static(br#"{"metadata":{"name":"x"}}"#);
        let item = ArchiveItem { namespace: Some("ns1".into()), name: "a".into(), json, lacks_type: true };
        let (packed, is_packed) = oneshot::channel();
        let batch = Batch { kind, page: PageId::default(), items: vec![item], packed: Some(packed) };
        batch_sender.send(batch).await.unwrap_or_else(|_| unreachable!());
        is_packed.await.unwrap_or_else(|e| unreachable!("{e}"));
        let Ok(ArchivePart::Member(_, contents)) = members.try_recv() else {
            unreachable!("it waits for more")
        };
        let names = vec!["ns1/a".to_owned()];
        assert_eq!(
            contents,
            [Contents { page: PageId::default(), resource: "pods".into(), names, at: None }]
        );
        drop(batch_sender);
        assert!(working.await.is_ok_and(|worked| worked.is_ok()));
    }
}
