//! The checkpoint of a run: what of it is stored, in a file beside its claim, so that another process can go on from there.
//!
//! It is one short line of JSON and the bytes that this names: what the run remembers, its log, the scope that the backup began with, which
//! parts are stored and how far the lists are, the names of what is stored, and the rest of the gzip member in whose middle the last part
//! of the archive ends. A part ends where it is full, so a run that goes on begins with that rest, and everything that the checkpoint names
//! is in the archive once.
//!
//! Whoever may write to the store may have written it. So the line alone decides whether it is looked at any further, which happens in a
//! run that has been counted; and its scope is opened only if its digest stands on the Backup.

use std::collections::HashSet;
use std::io::{BufReader, Read as _};

use anyhow::{Context as _, ensure};
use berth_core::run;
use berth_core::selection::{Fate, ResourceType, Selection};
use bytes::Bytes;
use flate2::read::GzDecoder;
use memchr::memmem;
use object_store::PutPayload;
use ring::digest::{Context, SHA256};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hooks::Tried;
use super::ledger::{Balance, Extents};
use super::log::{Told, Untold, gzip_json, read_told};
use crate::storage::Receipt;

const VERSION: u32 = 3;
/// Bytes of its first line, at most.
pub const HEAD: usize = 4096;
/// Of what is remembered and of the log, which come first: whoever ends a backup wants no more of it.
pub const NOTES: usize = HEAD + (8 << 20);
/// Of the scope, as text: it is this controller's own.
const MOST_TEXT: u64 = 256 << 20;
/// Of everything else but the names.
const MOST_TOLD: u64 = 32 << 20;
/// Of what is remembered, as text, where no run is counted for reading it.
const MOST_NOTED: u64 = 8 << 20;
/// Bytes of an archive, more than any store takes.
const MOST_STORED: u64 = 1 << 50;

/// What a backup takes, as it was when it began: types, their fates, and namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    types: Vec<ScopedType>,
    all_namespaces: bool,
    namespaces: Vec<String>,
    /// Digest of its resource policy.
    policy: String,
}

/// With all that a resource policy may call it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScopedType {
    group: String,
    version: String,
    kind: String,
    resource: String,
    singular: String,
    short_names: Vec<String>,
    namespaced: bool,
    fate: ScopedFate,
}

impl ScopedType {
    /// They become parts of addresses as they are.
    fn is_plain(&self) -> bool {
        let is_plain = |part: &str| {
            let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            !matches!(part, "" | "." | "..") && part.bytes().all(may_stand)
        };
        (self.group.is_empty() || is_plain(&self.group))
            && is_plain(&self.version)
            && is_plain(&self.resource)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ScopedFate {
    Excluded,
    Unnamed,
    Needed,
    Listed,
}

impl Scope {
    /// `policy`: digest of its resource policy.
    pub fn of(
        types: &[ResourceType],
        selection: &Selection,
        resolved: &HashSet<String>,
        policy: &str,
    ) -> Self {
        let scoped = |kind: &ResourceType| ScopedType {
            group: kind.group.clone(),
            version: kind.version.clone(),
            kind: kind.kind.clone(),
            resource: kind.resource.clone(),
            singular: kind.singular.clone(),
            short_names: kind.short_names.clone(),
            namespaced: kind.namespaced,
            fate: match selection.fate(kind) {
                Fate::Excluded => ScopedFate::Excluded,
                Fate::Unnamed => ScopedFate::Unnamed,
                Fate::Needed => ScopedFate::Needed,
                Fate::Listed => ScopedFate::Listed,
            },
        };
        Self {
            types: types.iter().map(scoped).collect(),
            all_namespaces: selection.all_namespaces,
            namespaces: resolved.iter().cloned().collect(),
            policy: policy.to_owned(),
        }
    }

    /// Digest of its resource policy. A list that was read by another one cannot be gone on with.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    pub fn types(&self) -> Vec<ResourceType> {
        let kind = |scoped: &ScopedType| ResourceType {
            group: scoped.group.clone(),
            version: scoped.version.clone(),
            kind: scoped.kind.clone(),
            resource: scoped.resource.clone(),
            singular: scoped.singular.clone(),
            short_names: scoped.short_names.clone(),
            namespaced: scoped.namespaced,
        };
        self.types.iter().map(kind).collect()
    }

    pub fn selection(&self) -> Selection {
        let fate = |(kind, scoped): (ResourceType, &ScopedType)| {
            let fate = match scoped.fate {
                ScopedFate::Excluded => Fate::Excluded,
                ScopedFate::Unnamed => Fate::Unnamed,
                ScopedFate::Needed => Fate::Needed,
                ScopedFate::Listed => Fate::Listed,
            };
            (kind.qualified(), fate)
        };
        Selection::of(self.types().into_iter().zip(&self.types).map(fate), self.all_namespaces)
    }

    pub fn resolved(&self) -> HashSet<String> {
        self.namespaces.iter().cloned().collect()
    }
}

/// An upload in parts, as far as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uploaded {
    pub upload: String,
    pub parts: Vec<Receipt>,
}

impl Uploaded {
    /// Bytes that are stored; `None`: more than there can be.
    fn checked_size(&self) -> Option<u64> {
        let all = self.parts.iter().try_fold(0_u64, |sum, receipt| sum.checked_add(receipt.size));
        all.filter(|size| *size <= MOST_STORED)
    }

    pub fn size(&self) -> u64 {
        self.checked_size().unwrap_or(MOST_STORED)
    }
}

/// The scope of a backup, gzip: it stays the same.
#[derive(Clone)]
pub struct Packed(Bytes);

impl Packed {
    /// # Errors
    /// Never in practice.
    pub fn new(scope: &Scope) -> std::io::Result<Self> {
        Ok(Self(gzip_json(scope)?.into()))
    }

    /// By which the Backup knows it.
    pub fn digest(&self) -> String {
        digest([&self.0])
    }

    /// # Errors
    /// When it is no scope.
    pub fn open(&self) -> anyhow::Result<Scope> {
        let scope: Scope = unpacked(&self.0, MOST_TEXT)?;
        ensure!(scope.types.iter().all(ScopedType::is_plain), "it has a type that nobody can serve");
        Ok(scope)
    }
}

/// What a run knows besides, and no later one finds again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Remembered {
    /// Warnings and errors.
    #[serde(deserialize_with = "read_told")]
    pub told: Vec<Told>,
    /// For which there was no room.
    pub untold: Untold,
    pub hooks: Tried,
    /// As of which moment its lists are: sentences for the log, and whether they are warnings.
    pub moment: Vec<(bool, String)>,
}

/// Of what is remembered, as much as whoever ends a backup wants.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Notes {
    #[serde(deserialize_with = "read_told")]
    pub told: Vec<Told>,
    pub untold: Untold,
}

/// What a run had stored when it wrote it.
pub struct Checkpoint {
    pub run: String,
    pub scope: Packed,
    pub uploaded: Uploaded,
    /// Behind the parts.
    pub tail: Bytes,
    /// The archive is stored, and has only to be put together if that is not done already.
    pub is_whole: bool,
    pub balance: Balance,
    pub remembered: Remembered,
    /// Gzip.
    pub lines: Bytes,
}

/// Its first line: what it says of itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    version: u32,
    run: String,
    /// Digest of the scope.
    scope: String,
    /// The upload of its parts: whoever wants to abort it, or not to, reads no more.
    #[serde(default)]
    upload: String,
    /// Bytes of what is remembered, the lines, the scope, the account, the names, and the tail, which follow in this order.
    lengths: [usize; 6],
    /// SHA-256 of all of these.
    digest: String,
}

impl Head {
    /// From the first bytes of a checkpoint. Besides, those that are behind it.
    ///
    /// # Errors
    /// When it is none that this version can read.
    pub fn read(mut start: Bytes) -> anyhow::Result<(Self, Bytes)> {
        let end = memchr::memchr(b'\n', &start[..start.len().min(HEAD)]).context("it has no first line")?;
        let head: Self = serde_json::from_slice(&start.split_to(end))?;
        ensure!(head.version == VERSION, "it is of version {}", head.version);
        Ok((head, start.slice(1..)))
    }

    pub fn upload(&self) -> &str {
        &self.upload
    }

    /// The upload that a checkpoint names in its first bytes, whichever version of berth wrote it: the first one had it in its line with
    /// all parts, which may be longer than these, and one had it elsewhere. It is good for being aborted, and for nothing else.
    pub fn upload_of(start: &[u8]) -> Option<String> {
        // Within a string of JSON its quotes would be escaped.
        const KEY: &[u8] = br#""upload":"#;
        let start = &start[..start.len().min(HEAD)];
        let line = &start[..memchr::memchr(b'\n', start).unwrap_or(start.len())];
        let value = line.get(memmem::find(line, KEY)? + KEY.len()..)?;
        let named = serde_json::Deserializer::from_slice(value).into_iter::<String>().next()?;
        named.ok().filter(|upload| !upload.is_empty())
    }

    pub fn says(&self) -> run::Checkpoint<'_> {
        run::Checkpoint { run: &self.run, scope: &self.scope }
    }
}

/// Which parts are stored, and how far the lists are.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Account {
    uploaded: Uploaded,
    is_whole: bool,
    extents: Extents,
    count: u64,
}

/// Takes the next bytes.
fn part(rest: &mut Bytes, length: usize) -> anyhow::Result<Bytes> {
    ensure!(length <= rest.len(), "it is cut off");
    Ok(rest.split_to(length))
}

impl Checkpoint {
    /// As it stands in the store.
    ///
    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn content(self) -> std::io::Result<PutPayload> {
        let Self { run, scope, uploaded, tail, is_whole, balance, remembered, lines } = self;
        let Balance { extents, names, count } = balance;
        let remembered: Bytes = gzip_json(&remembered)?.into();
        let upload = uploaded.upload.clone();
        let account: Bytes = gzip_json(&Account { uploaded, is_whole, extents, count })?.into();
        let of_names = names.iter().map(Bytes::len).sum();
        let lengths = [remembered.len(), lines.len(), scope.0.len(), account.len(), of_names, tail.len()];
        let of_scope = scope.digest();
        let mut parts = vec![remembered, lines, scope.0, account];
        parts.extend(names);
        parts.push(tail);
        let digest = digest(&parts);
        let head = Head { version: VERSION, run, scope: of_scope, upload, lengths, digest };
        let mut line = serde_json::to_vec(&head)?;
        line.push(b'\n');
        Ok(std::iter::once(Bytes::from(line)).chain(parts).collect())
    }

    /// All of one, the scope unopened.
    ///
    /// # Errors
    /// When it is none that this version can read.
    pub fn read(content: Bytes) -> anyhow::Result<Self> {
        let (head, mut rest) = Head::read(content)?;
        ensure!(digest([&rest]) == head.digest, "it is damaged");
        let [remembered, lines, scope, account, names, tail] = head.lengths;
        let (remembered, lines) = (part(&mut rest, remembered)?, part(&mut rest, lines)?);
        let (scope, account) = (Packed(part(&mut rest, scope)?), part(&mut rest, account)?);
        let (names, tail) = (part(&mut rest, names)?, part(&mut rest, tail)?);
        ensure!(scope.digest() == head.scope, "its scope is another one");
        let Account { uploaded, is_whole, extents, count } = unpacked(&account, MOST_TOLD)?;
        ensure!(uploaded.upload == head.upload, "its upload is another one");
        ensure!(uploaded.checked_size().is_some(), "no archive is as large as it says");
        let remembered: Remembered = unpacked(&remembered, MOST_TOLD)?;
        ensure!(remembered.hooks.is_possible(), "nobody has tried as many hooks as it says");
        let balance = Balance { extents, names: vec![names], count };
        Ok(Self { run: head.run, scope, uploaded, tail, is_whole, balance, remembered, lines })
    }

    /// What a run told, and its log, from the first [`NOTES`] bytes of one. Nobody counts a run for that, so it must not be what kills us:
    /// no more is unpacked, and no more of it kept, than a run tells.
    ///
    /// # Errors
    /// When it is none, or these are longer.
    pub fn read_notes(start: Bytes) -> anyhow::Result<(Notes, Bytes)> {
        let (head, mut rest) = Head::read(start)?;
        let [remembered, lines, ..] = head.lengths;
        let (remembered, lines) = (part(&mut rest, remembered)?, part(&mut rest, lines)?);
        Ok((unpacked(&remembered, MOST_NOTED)?, lines))
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
