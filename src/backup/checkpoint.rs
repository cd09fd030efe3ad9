//! The checkpoint of a run: a file beside the run's claim that records what is stored, so that
//! another process can continue from there.
//!
//! It is one short line of JSON, followed by the parts that this line names: what the run
//! remembers, its log, the scope of the backup, which parts of the archive are stored and how far
//! the lists are, the names of all stored objects, and the rest of the gzip member in the middle of
//! which the last part of the archive ends. A part ends where it is full, so a run that continues
//! first uploads that rest; then every object that the checkpoint names is in the archive once.
//!
//! Anybody who may write to the store may have written the checkpoint. So berth decides by the
//! first line whether to read more, reads the rest only in a run that has been counted, and unpacks
//! the scope only if its digest stands on the Backup.

mod moved;
mod scope;

use std::collections::BTreeSet;
use std::io::{BufReader, Read as _};

use anyhow::{Context as _, ensure};
use berth_core::run;
use bytes::Bytes;
use flate2::read::GzDecoder;
use memchr::memmem;
use object_store::PutPayload;
use ring::digest::{Context, SHA256};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hooks::Tried;
use super::index::ArchiveIndex;
use super::ledger::{Balance, Extents};
use super::log::{LogMessage, Untold, gzip_json, read_told};
use super::movement::{MOST_MOVEMENTS, Movement};
use super::volumes::outcomes::VolumeOutcomes;
use crate::storage::Receipt;
use moved::DataNamespaces;

pub use scope::BackupScope;

const VERSION: u32 = 3;
/// Most bytes of the first line.
pub const HEAD: usize = 4096;
/// Most bytes of the first line, what the run remembers, and the log, which come first: a run that
/// ends a backup reads no more.
pub const NOTES: usize = HEAD + (8 << 20);
/// Most bytes of the scope as text. It is large, because only this controller writes scopes.
const MOST_TEXT: u64 = 256 << 20;
/// Most bytes of each other part as text, except the names.
const MOST_TOLD: u64 = 32 << 20;
/// Most bytes of the index as text. One that is longer is not kept: the account would be longer
/// than [`MOST_TOLD`], so that no run could go on from the checkpoint.
const MOST_INDEX: u64 = 16 << 20;
/// Most bytes, as text, of what a run remembers where it is read outside a counted run.
const MOST_NOTED: u64 = 8 << 20;
/// Most bytes of an archive; no store takes more.
const MOST_STORED: u64 = 1 << 50;

/// The stored parts of a multipart upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    pub upload: String,
    pub parts: Vec<Receipt>,
}

impl Uploaded {
    /// Bytes that are stored; `None`: more than any archive has.
    fn checked_size(&self) -> Option<u64> {
        let all = self.parts.iter().try_fold(0_u64, |sum, receipt| sum.checked_add(receipt.size));
        all.filter(|size| *size <= MOST_STORED)
    }

    pub fn size(&self) -> u64 {
        self.checked_size().unwrap_or(MOST_STORED)
    }
}

/// The scope of a backup, gzip. It never changes.
#[derive(Clone)]
pub struct Packed(Bytes);

impl Packed {
    /// # Errors
    /// Never in practice.
    pub fn new(scope: &BackupScope) -> std::io::Result<Self> {
        Ok(Self(gzip_json(scope)?.into()))
    }

    /// The digest by which the Backup knows the scope.
    pub fn digest(&self) -> String {
        digest([&self.0])
    }

    /// # Errors
    /// When the bytes are no scope.
    pub fn open(&self) -> anyhow::Result<BackupScope> {
        let scope: BackupScope = unpacked(&self.0, MOST_TEXT)?;
        ensure!(scope.is_plain(), "it names a type that no API server can have");
        Ok(scope)
    }
}

/// What a run knows besides, and a later run cannot find out again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Remembered {
    /// Messages: warnings and errors.
    #[serde(deserialize_with = "read_told")]
    pub told: Vec<LogMessage>,
    /// Counts of messages for which there was no room.
    pub untold: Untold,
    pub hooks: Tried,
    /// Movements of data that were begun.
    pub operations: Vec<Movement>,
    /// The data of volumes.
    pub volumes: VolumeOutcomes,
    /// The revision of its lists: sentences for the log, each with whether it is a warning.
    pub moment: Vec<(bool, String)>,
}

/// The part of [`Remembered`] that a run reads which ends a backup.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CheckpointNotes {
    #[serde(deserialize_with = "read_told")]
    pub told: Vec<LogMessage>,
    pub untold: Untold,
}

/// What a run had stored when it wrote the checkpoint.
pub struct Checkpoint {
    pub run: String,
    pub scope: Packed,
    pub uploaded: Uploaded,
    /// Bytes of the archive behind the last stored part.
    pub tail: Bytes,
    /// The whole archive is stored; at most the upload must be completed.
    pub is_whole: bool,
    /// All objects are stored, or are in `tail`. What follows from operations is missing.
    pub is_collected: bool,
    pub balance: Balance,
    pub remembered: Remembered,
    /// Lines of the log, gzip.
    pub lines: Bytes,
}

/// First line of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointHead {
    version: u32,
    run: String,
    /// Digest of the scope.
    scope: String,
    /// The upload of the parts. A run that decides whether to abort it reads no more than this
    /// line.
    #[serde(default)]
    upload: String,
    /// Byte lengths of what follows, in this order: what is remembered, log lines, scope, account,
    /// names, tail.
    lengths: [usize; 6],
    /// SHA-256 of everything that follows.
    digest: String,
}

impl CheckpointHead {
    /// Reads the first line. Also returns the bytes of `start` behind it.
    ///
    /// # Errors
    /// When this version of berth cannot read the line.
    pub fn read(mut start: Bytes) -> anyhow::Result<(Self, Bytes)> {
        let end = memchr::memchr(b'\n', &start[..start.len().min(HEAD)]).context("it has no first line")?;
        let head: Self = serde_json::from_slice(&start.split_to(end))?;
        ensure!(
            head.version == VERSION,
            "it is of version {}, which this version of berth does not read",
            head.version
        );
        Ok((head, start.slice(1..)))
    }

    pub fn upload(&self) -> &str {
        &self.upload
    }

    /// Digest of everything behind the first line.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How many bytes behind the first line [`Checkpoint::read_notes`] reads.
    pub fn notes(&self) -> usize {
        let [remembered, lines, ..] = self.lengths;
        remembered.saturating_add(lines)
    }

    /// The upload that a checkpoint names in its first bytes, whichever version of berth wrote it:
    /// the first version put it in one line with all parts, which may be longer than these bytes,
    /// and another version put it elsewhere. Use it only to abort the upload.
    pub fn upload_of(start: &[u8]) -> Option<String> {
        // In a string of JSON these quotes would be escaped, so this matches a key.
        const KEY: &[u8] = br#""upload":"#;
        let start = &start[..start.len().min(HEAD)];
        let line = &start[..memchr::memchr(b'\n', start).unwrap_or(start.len())];
        let value = line.get(memmem::find(line, KEY)? + KEY.len()..)?;
        let named = serde_json::Deserializer::from_slice(value).into_iter::<String>().next()?;
        named.ok().filter(|upload| !upload.is_empty())
    }

    pub fn says(&self) -> run::CheckpointIdentity<'_> {
        run::CheckpointIdentity { run: &self.run, scope: &self.scope }
    }
}

/// Which parts are stored, and how far the lists are.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CheckpointProgress {
    uploaded: Uploaded,
    is_whole: bool,
    #[serde(default)]
    is_collected: bool,
    extents: Extents,
    count: u64,
    /// One of an earlier version has none.
    #[serde(default = "ArchiveIndex::void")]
    index: ArchiveIndex,
}

/// Splits off the next bytes.
fn part(rest: &mut Bytes, length: usize) -> anyhow::Result<Bytes> {
    ensure!(length <= rest.len(), "it is cut off");
    Ok(rest.split_to(length))
}

impl Checkpoint {
    /// The content of the file.
    ///
    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn content(self) -> std::io::Result<PutPayload> {
        let Self { run, scope, uploaded, tail, is_whole, is_collected, balance, remembered, lines } = self;
        let Balance { extents, names, count, index } = balance;
        let index = index.within(MOST_INDEX);
        let remembered: Bytes = gzip_json(&remembered)?.into();
        let upload = uploaded.upload.clone();
        let account: Bytes =
            gzip_json(&CheckpointProgress { uploaded, is_whole, is_collected, extents, count, index })?
                .into();
        let of_names = names.iter().map(Bytes::len).sum();
        let lengths = [remembered.len(), lines.len(), scope.0.len(), account.len(), of_names, tail.len()];
        let of_scope = scope.digest();
        let mut parts = vec![remembered, lines, scope.0, account];
        parts.extend(names);
        parts.push(tail);
        let digest = digest(&parts);
        let head = CheckpointHead { version: VERSION, run, scope: of_scope, upload, lengths, digest };
        let mut line = serde_json::to_vec(&head)?;
        line.push(b'\n');
        Ok(std::iter::once(Bytes::from(line)).chain(parts).collect())
    }

    /// Reads a whole checkpoint, except that the scope stays packed.
    ///
    /// # Errors
    /// When the checkpoint is damaged, or this version of berth cannot read it.
    pub fn read(content: Bytes) -> anyhow::Result<Self> {
        let (head, mut rest) = CheckpointHead::read(content)?;
        ensure!(digest([&rest]) == head.digest, "it is damaged");
        let [remembered, lines, scope, account, names, tail] = head.lengths;
        let (remembered, lines) = (part(&mut rest, remembered)?, part(&mut rest, lines)?);
        let (scope, account) = (Packed(part(&mut rest, scope)?), part(&mut rest, account)?);
        let (names, tail) = (part(&mut rest, names)?, part(&mut rest, tail)?);
        ensure!(scope.digest() == head.scope, "its scope is not the one that its first line names");
        let CheckpointProgress { uploaded, is_whole, is_collected, extents, count, index } =
            unpacked(&account, MOST_TOLD)?;
        ensure!(uploaded.upload == head.upload, "its upload is not the one that its first line names");
        ensure!(uploaded.checked_size().is_some(), "it names more stored bytes than any archive has");
        let remembered: Remembered = unpacked(&remembered, MOST_TOLD)?;
        ensure!(remembered.hooks.is_possible(), "it names more hooks than any run tries");
        let balance = Balance { extents, names: vec![names], count, index };
        ensure!(remembered.operations.len() <= MOST_MOVEMENTS, "it names more movements than any backup has");
        Ok(Self { run: head.run, scope, uploaded, tail, is_whole, is_collected, balance, remembered, lines })
    }

    /// Reads the messages and the log of a run from the first [`NOTES`] bytes of its checkpoint.
    /// This happens outside a counted run, so it must not be able to kill the process: it unpacks
    /// and keeps no more than a run logs.
    ///
    /// # Errors
    /// When this version of berth cannot read the checkpoint, or these parts are longer.
    pub fn read_notes(start: Bytes) -> anyhow::Result<(CheckpointNotes, Bytes)> {
        let (head, mut rest) = CheckpointHead::read(start)?;
        let [remembered, lines, ..] = head.lengths;
        let (remembered, lines) = (part(&mut rest, remembered)?, part(&mut rest, lines)?);
        Ok((unpacked(&remembered, MOST_NOTED)?, lines))
    }

    /// Reads the namespaces in whose repositories a backup may have data from the first [`NOTES`]
    /// bytes of its checkpoint. This happens outside a counted run, too, so it keeps nothing else.
    ///
    /// # Errors
    /// When this version of berth cannot read the checkpoint, or no run notes as many.
    pub fn read_namespaces(start: Bytes) -> anyhow::Result<BTreeSet<String>> {
        let (head, mut rest) = CheckpointHead::read(start)?;
        let [remembered, ..] = head.lengths;
        let found: DataNamespaces = unpacked(&part(&mut rest, remembered)?, MOST_TOLD)?;
        Ok(found.all())
    }
}

fn unpacked<T: DeserializeOwned>(gzip: &[u8], most: u64) -> anyhow::Result<T> {
    Ok(serde_json::from_reader(BufReader::new(GzDecoder::new(gzip).take(most)))?)
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a Bytes>) -> String {
    let mut digest = Context::new(&SHA256);
    for part in parts {
        digest.update(part);
    }
    digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
