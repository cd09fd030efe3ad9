//! The index of an archive: which gzip members hold which objects, so that one object is a request
//! for a few hundred KiB and not for the archive.
//!
//! Members are packed page by page, and pages are in order, so of each type a member needs the
//! first and the last key only. Whoever looks for an object reads the members between whose keys it
//! lies, mostly one, and searches them. An archive of 1 GiB has some ten thousand members, and its
//! index is read as a whole; in the index of a much larger one, neighbours are joined.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Read, Write};

use anyhow::{Context as _, ensure};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::log::gzip_json;

/// Most bytes of spans, as text. With more, neighbours are joined.
const MOST: usize = 8 << 20;
/// Of a span beside its keys.
const SPAN: usize = 64;
/// Bytes of the archive up to which neighbours are joined first, and at last.
const NARROW: u64 = 256 << 10;
const WIDEST: u64 = 16 << 20;
/// Most bytes of an index that is read, as text.
const MOST_TEXT: u64 = 32 << 20;
/// Most spans, and most types, that are read.
const MOST_SPANS: usize = MOST / SPAN;
/// Most pieces of an archive, and most bytes in them, that are read because an index names them.
/// Each piece is a request.
const MOST_PIECES: usize = 64;
const MOST_NAMED: u64 = 64 << 20;
/// Changes when readers of this version could not read it.
const VERSION: u32 = 1;

/// Objects of one type in one piece of the archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Keys.
    first: String,
    last: String,
    /// Bytes of the archive: whole gzip members.
    from: u64,
    to: u64,
}

/// Bytes of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    pub from: u64,
    pub to: u64,
}

/// Whether one lookup may read all of these.
pub fn are_few(pieces: &[ByteRange]) -> bool {
    let lengths = pieces.iter().map(|ByteRange { from, to }| to.saturating_sub(*from));
    pieces.len() <= MOST_PIECES && lengths.fold(0, u64::saturating_add) <= MOST_NAMED
}

/// By the types' qualified names; in the order of the archive.
type ByType = BTreeMap<String, Vec<Span>>;

/// What a run knows of its archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ArchiveIndex {
    #[serde(deserialize_with = "read_spans")]
    spans: ByType,
    /// Something of the archive is not in it, so it says nothing.
    is_void: bool,
    /// Of all spans, as text, at most.
    #[serde(skip)]
    size: usize,
    /// Up to where neighbours are joined.
    #[serde(skip)]
    width: u64,
}

/// What is stored beside the archive.
#[derive(Serialize, Deserialize)]
struct IndexFile {
    index: u32,
    /// Size of the archive: the index of another one is of no use.
    bytes: u64,
    #[serde(deserialize_with = "read_spans")]
    spans: ByType,
}

/// Reads no more than [`MOST_SPANS`] types and as many spans: anybody who may write to the store
/// may have written them.
fn read_spans<'de, D: Deserializer<'de>>(from: D) -> Result<ByType, D::Error> {
    from.deserialize_map(SpansVisitor)
}

struct SpansVisitor;

impl<'de> Visitor<'de> for SpansVisitor {
    type Value = ByType;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("spans by type")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ByType, A::Error> {
        let (mut all, mut left) = (ByType::new(), MOST_SPANS);
        while let Some(resource) = map.next_key::<String>()? {
            if all.len() >= MOST_SPANS {
                return Err(A::Error::custom("it has more types than an index may have"));
            }
            let spans = map.next_value_seed(Spans(&mut left))?;
            if all.insert(resource, spans).is_some() {
                return Err(A::Error::custom("it names a type twice"));
            }
        }
        Ok(all)
    }
}

/// Those of one type, with how many more there may be.
struct Spans<'a>(&'a mut usize);

impl<'de> DeserializeSeed<'de> for Spans<'_> {
    type Value = Vec<Span>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<Span>, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Spans<'_> {
    type Value = Vec<Span>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of spans")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Span>, A::Error> {
        let mut spans = Vec::new();
        while let Some(span) = list.next_element()? {
            let left = self.0.checked_sub(1);
            *self.0 = left.ok_or_else(|| A::Error::custom("it has more spans than an index may have"))?;
            spans.push(span);
        }
        Ok(spans)
    }
}

/// Counts what is written.
struct ByteCounter(u64);

impl Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of it as text.
fn text_of(value: &impl Serialize) -> u64 {
    let mut count = ByteCounter(0);
    serde_json::to_writer(&mut count, value).map_or(u64::MAX, |()| count.0)
}

impl ArchiveIndex {
    /// One of which something is missing from the beginning.
    pub fn void() -> Self {
        Self { is_void: true, ..Self::default() }
    }

    /// Notes the objects of one type in a gzip member. Members come in the order of the archive.
    pub fn note(&mut self, resource: &str, names: &[String], piece: ByteRange) {
        let (Some(first), Some(last)) = (names.iter().min(), names.iter().max()) else { return };
        if self.is_void {
            return;
        }
        if !self.spans.contains_key(resource) {
            self.spans.insert(resource.to_owned(), Vec::new());
        }
        let Some(spans) = self.spans.get_mut(resource) else { return };
        match spans.last_mut() {
            Some(span) if (span.from..span.to).contains(&piece.from) => {
                self.size += span.take(first, last);
                span.to = span.to.max(piece.to);
            }
            _ => {
                let (first, last) = (first.clone(), last.clone());
                let span = Span { first, last, from: piece.from, to: piece.to };
                self.size += span.size();
                spans.push(span);
            }
        }
        if self.size > MOST {
            self.join();
        }
    }

    /// Joins neighbours, no further than necessary. Where that is not enough there is no index.
    fn join(&mut self) {
        self.width = self.width.max(NARROW);
        loop {
            for spans in self.spans.values_mut() {
                let mut joined: Vec<Span> = Vec::new();
                for span in spans.drain(..) {
                    match joined.last_mut() {
                        Some(before) if span.to.saturating_sub(before.from) <= self.width => {
                            before.take(&span.first, &span.last);
                            before.to = span.to;
                        }
                        _ => joined.push(span),
                    }
                }
                *spans = joined;
            }
            self.recount();
            if self.size <= MOST / 2 {
                return;
            }
            if self.width >= WIDEST {
                break;
            }
            self.width *= 2;
        }
        if self.size > MOST - MOST / 8 {
            *self = Self::void();
        }
    }

    fn recount(&mut self) {
        self.size = self.spans.values().flatten().map(Span::size).sum();
    }

    /// As it was read from a checkpoint.
    #[must_use]
    pub fn counted(mut self) -> Self {
        self.recount();
        self
    }

    /// Void if its text has more than so many bytes.
    #[must_use]
    pub fn within(self, most: u64) -> Self {
        if text_of(&self) > most { Self::void() } else { self }
    }

    /// What is stored beside an archive of so many bytes, gzip. `None`: there is no index of it, or
    /// it is longer than readers read.
    ///
    /// # Errors
    /// Never in practice: memory does not refuse writes.
    pub fn file(&self, bytes: u64) -> io::Result<Option<Vec<u8>>> {
        if self.is_void || self.spans.is_empty() {
            return Ok(None);
        }
        let file = IndexFile { index: VERSION, bytes, spans: self.spans.clone() };
        if text_of(&file) >= MOST_TEXT {
            return Ok(None);
        }
        gzip_json(&file).map(Some)
    }

    /// Reads an index, unpacked, with the size of its archive. What is none is told by its first
    /// bytes.
    ///
    /// # Errors
    /// When it is no index, or one that this version cannot read.
    pub fn read(text: impl Read) -> anyhow::Result<(Self, u64)> {
        let read: serde_json::Result<IndexFile> =
            serde_json::from_reader(BufReader::new(text.take(MOST_TEXT)));
        let IndexFile { index, bytes, spans } = read.context("this is no index of an archive")?;
        ensure!(
            index == VERSION,
            "the index is of version {index}, which this version of berth does not read"
        );
        let is_possible = |span: &Span| span.first <= span.last && span.from < span.to && span.to <= bytes;
        ensure!(spans.values().flatten().all(is_possible), "the index names pieces that no archive can have");
        Ok((Self { spans, ..Self::default() }.counted(), bytes))
    }

    /// The pieces of the archive one of which holds the object, if the archive does.
    pub fn find(&self, resource: &str, key: &str) -> Vec<ByteRange> {
        let spans = self.spans.get(resource).into_iter().flatten();
        let near = spans.filter(|span| span.first.as_str() <= key && key <= span.last.as_str());
        let mut pieces: Vec<ByteRange> =
            near.map(|span| ByteRange { from: span.from, to: span.to }).collect();
        pieces.sort_unstable();
        // What lies side by side is one request.
        let mut joined: Vec<ByteRange> = Vec::new();
        for piece in pieces {
            match joined.last_mut() {
                Some(before) if piece.from <= before.to => before.to = before.to.max(piece.to),
                _ => joined.push(piece),
            }
        }
        joined
    }
}

impl Span {
    fn size(&self) -> usize {
        SPAN + self.first.len() + self.last.len()
    }

    /// Gives how many bytes it has grown by.
    fn take(&mut self, first: &str, last: &str) -> usize {
        let before = self.size();
        if first < self.first.as_str() {
            first.clone_into(&mut self.first);
        }
        if last > self.last.as_str() {
            last.clone_into(&mut self.last);
        }
        self.size().saturating_sub(before)
    }
}

#[cfg(test)]
pub(super) mod tests;
