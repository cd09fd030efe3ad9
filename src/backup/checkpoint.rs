//! The checkpoint of a run: what of it is stored, in a file beside its claim, so that another process can go on from there.
//!
//! It is one line of JSON and the bytes that this names: the scope that the backup began with, the names of what is stored, what the
//! run remembers, its log, and the rest of the gzip member in whose middle the last part of the archive ends. A part ends where it is full, so a run
//! that goes on begins with that rest, and everything that the checkpoint names is in the archive once.

use std::collections::HashSet;
use std::io::{BufReader, Read as _};

use anyhow::{Context as _, ensure};
use berth_core::selection::{Fate, ResourceType, Selection};
use bytes::Bytes;
use flate2::read::GzDecoder;
use object_store::PutPayload;
use ring::digest::{Context, SHA256};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hooks::Tried;
use super::ledger::{Balance, Extents};
use super::log::{Told, gzip_json};
use crate::storage::Receipt;

const VERSION: u32 = 1;
/// Of the scope, and of what is remembered, as text.
const MOST_TEXT: u64 = 256 << 20;

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ScopedType {
    group: String,
    version: String,
    kind: String,
    resource: String,
    namespaced: bool,
    fate: ScopedFate,
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
            // Filters ask for these, and have been settled.
            singular: String::new(),
            short_names: Vec::new(),
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
    pub fn size(&self) -> u64 {
        self.parts.iter().map(|receipt| receipt.size).sum()
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

    /// # Errors
    /// When it is no scope.
    pub fn open(&self) -> anyhow::Result<Scope> {
        unpacked(&self.0)
    }
}

/// What a run knows besides, and no later one finds again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Remembered {
    /// Warnings and errors.
    pub told: Vec<Told>,
    pub hooks: Tried,
    /// As of which moment its lists are: sentences for the log, and whether they are warnings.
    pub moment: Vec<(bool, String)>,
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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    run: String,
    uploaded: Uploaded,
    is_whole: bool,
    extents: Extents,
    count: u64,
    /// Bytes of the scope, the names, what is remembered, the lines, and the tail, which follow in this order.
    lengths: [usize; 5],
    /// SHA-256 of all of these.
    digest: String,
}

impl Checkpoint {
    /// As it stands in the store.
    ///
    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn content(self) -> std::io::Result<PutPayload> {
        let Self { run, scope, uploaded, tail, is_whole, balance, remembered, lines } = self;
        let remembered: Bytes = gzip_json(&remembered)?.into();
        let names = balance.names.iter().map(Bytes::len).sum();
        let lengths = [scope.0.len(), names, remembered.len(), lines.len(), tail.len()];
        let mut parts = vec![scope.0];
        parts.extend(balance.names);
        parts.extend([remembered, lines, tail]);
        let (extents, count, digest) = (balance.extents, balance.count, digest(&parts));
        let header = Header { version: VERSION, run, uploaded, is_whole, extents, count, lengths, digest };
        let mut line = serde_json::to_vec(&header)?;
        line.push(b'\n');
        Ok(std::iter::once(Bytes::from(line)).chain(parts).collect())
    }

    /// # Errors
    /// When it is none that this version can read.
    pub fn read(mut content: Bytes) -> anyhow::Result<Self> {
        let end = memchr::memchr(b'\n', &content).context("it has no first line")?;
        let header: Header = serde_json::from_slice(&content.split_to(end))?;
        ensure!(header.version == VERSION, "it is of version {}", header.version);
        let rest = content.slice(1..);
        ensure!(digest([&rest]) == header.digest, "it is damaged");
        let mut at = 0_usize;
        let mut part = |length: usize| {
            let end = at.checked_add(length).filter(|end| *end <= rest.len()).context("it is cut off")?;
            let part = rest.slice(at..end);
            at = end;
            anyhow::Ok(part)
        };
        let [scope, names, remembered, lines, tail] = header.lengths;
        let (scope, names, remembered) = (part(scope)?, part(names)?, part(remembered)?);
        Ok(Self {
            run: header.run,
            scope: Packed(scope),
            uploaded: header.uploaded,
            is_whole: header.is_whole,
            balance: Balance { extents: header.extents, names: vec![names], count: header.count },
            remembered: unpacked(&remembered)?,
            lines: part(lines)?,
            tail: part(tail)?,
        })
    }
}

fn unpacked<T: DeserializeOwned>(gzip: &[u8]) -> anyhow::Result<T> {
    Ok(serde_json::from_reader(BufReader::new(GzDecoder::new(gzip).take(MOST_TEXT)))?)
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
