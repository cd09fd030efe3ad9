use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use berth_core::selection::ResourceType;
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{DynObjectStore, ObjectStoreExt as _};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::backup::archive::{self, ArchiveItem, Batch};
use crate::backup::ledger::ObjectLedger;
use crate::backup::messages::{ArchivePart, UploadProgress};
use crate::backup::upload::ArchiveUpload;
use crate::cli::archive::{ArchiveControl, object, visit, visit_piece};
use crate::storage::MultipartTarget;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn piece(from: u64, to: u64) -> ByteRange {
    ByteRange { from, to }
}

fn again(index: &ArchiveIndex, bytes: u64) -> (ArchiveIndex, u64) {
    let file = index.file(bytes).unwrap().unwrap();
    ArchiveIndex::read(MultiGzDecoder::new(file.as_slice())).unwrap()
}

#[test]
fn an_object_is_in_the_members_between_whose_keys_it_lies() {
    let mut index = ArchiveIndex::default();
    index.note("pods", &names(&["a/x", "a/a"]), piece(10, 20));
    index.note("pods", &names(&["b/x"]), piece(10, 20));
    index.note("secrets", &names(&["a/x"]), piece(10, 20));
    index.note("pods", &names(&["b/a", "c/x"]), piece(20, 30));
    index.note("pods", &[], piece(30, 40));
    index.note("pods", &names(&["b/b"]), piece(50, 60));
    let (read, bytes) = again(&index, 99);
    assert_eq!((&read, bytes), (&index, 99));
    for (resource, key, found) in [
        ("pods", "a/b", &[piece(10, 20)][..]),
        ("pods", "b/b", &[piece(10, 30), piece(50, 60)]),
        ("pods", "c/x", &[piece(20, 30)]),
        ("pods", "c/y", &[]),
        ("pods", "", &[]),
        ("secrets", "a/x", &[piece(10, 20)]),
        ("nodes", "a", &[]),
    ] {
        assert_eq!(read.find(resource, key), found, "{resource}/{key}");
    }
}

#[test]
fn an_index_of_many_members_stays_small_and_one_that_cannot_is_void() {
    let mut index = ArchiveIndex::default();
    // As of an archive of 40 GB.
    let (count, bytes) = (400_000, 100_000);
    for i in 0..count {
        index.note("pods", &names(&[&format!("a/{i:09}")]), piece(i * bytes, i * bytes + bytes));
        assert!(index.size <= MOST);
    }
    for i in [0, 1, 70_000, count - 1] {
        let found = index.find("pods", &format!("a/{i:09}"));
        assert!(
            matches!(found[..], [ByteRange { from, to }] if from <= i * bytes && i * bytes < to && to - from <= 1 << 20),
            "{found:?}"
        );
    }
    let mut index = ArchiveIndex::default();
    for i in 0..200_000 {
        // Too far apart to be joined.
        index.note("pods", &names(&[&format!("a/{i:09}")]), piece(i * WIDEST, i * WIDEST + 10));
    }
    assert_eq!(index, ArchiveIndex::void());
    assert_eq!(index.file(1).unwrap(), None);
    index.note("pods", &names(&["a/a"]), piece(1, 2));
    assert_eq!(index.file(1).unwrap(), None, "what is missing stays missing");
}

#[test]
fn what_is_no_index_is_refused() {
    for text in [
        "",
        "metadata/version\0\0\0",
        "{",
        "[]",
        r#"{"index":2,"bytes":1,"spans":{}}"#,
        r#"{"index":1,"bytes":9,"spans":{"pods":[{"first":"a","last":"b","from":5,"to":10}]}}"#,
        r#"{"index":1,"bytes":9,"spans":{"pods":[{"first":"a","last":"b","from":5,"to":5}]}}"#,
        r#"{"index":1,"bytes":9,"spans":{"pods":[{"first":"b","last":"a","from":5,"to":6}]}}"#,
    ] {
        assert!(ArchiveIndex::read(Cursor::new(text)).is_err(), "{text}");
    }
}

/// Repeats one text for ever behind another one, and counts what is read.
struct Endless {
    start: Cursor<&'static str>,
    repeats: &'static str,
    at: usize,
    read: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut length = self.start.read(buffer)?;
        if length == 0 {
            for (to, byte) in buffer.iter_mut().zip(self.repeats.bytes().cycle().skip(self.at)) {
                *to = byte;
                length += 1;
            }
            self.at = (self.at + length) % self.repeats.len();
        }
        self.read += length;
        Ok(length)
    }
}

#[test]
fn of_a_forged_index_no_more_is_read_than_an_index_may_have() {
    let span = r#"{"first":"a","last":"a","from":0,"to":1}"#;
    let of = |types: usize, spans: usize| {
        let spans = vec![span; spans].join(",");
        let types: Vec<String> = (0..types).map(|i| format!("\"t{i}\":[{spans}]")).collect();
        let text = format!(r#"{{"index":1,"bytes":1,"spans":{{{}}}}}"#, types.join(","));
        ArchiveIndex::read(Cursor::new(text))
            .map(|(index, _)| count(&index))
            .map_err(|error| format!("{error:#}"))
    };
    let most = MOST_SPANS;
    assert_eq!(of(1, most), Ok(most));
    assert_eq!(of(most / 2, 2), Ok(most));
    assert_eq!(of(most, 0), Ok(0));
    for (types, spans, what) in [(1, most + 1, "spans"), (most / 2, 3, "spans"), (most + 1, 0, "types")] {
        let said = of(types, spans).unwrap_err();
        assert!(said.contains(&format!("more {what} than an index may have")), "{said}");
    }
    // It ends where there are too many, and not where the text does, which it may never do.
    let start = Cursor::new(r#"{"index":1,"bytes":1,"spans":{"pods":["#);
    let repeats = r#"{"first":"a","last":"a","from":0,"to":1},"#;
    let mut endless = Endless { start, repeats, at: 0, read: 0 };
    assert!(ArchiveIndex::read(&mut endless).is_err());
    assert!(endless.read < (most + 1) * repeats.len() + (1 << 16), "{}", endless.read);
    let mut endless =
        Endless { start: Cursor::new(r#"{"index":1,"spans":{""#), repeats: "a", at: 0, read: 0 };
    assert!(ArchiveIndex::read(&mut endless).is_err());
    assert_eq!(endless.read as u64, MOST_TEXT);
    let twice = r#"{"index":1,"bytes":1,"spans":{"pods":[],"pods":[]}}"#;
    assert!(ArchiveIndex::read(Cursor::new(twice)).is_err());
}

fn count(index: &ArchiveIndex) -> usize {
    index.spans.values().map(Vec::len).sum()
}

/// As many spans as there may be, whose keys begin with so many of a character.
pub fn full(begin: char, length: usize) -> ArchiveIndex {
    let begin = String::from(begin).repeat(length);
    let mut index = ArchiveIndex::default();
    let spans = MOST / (SPAN + 2 * (length + 9));
    for i in 0..spans as u64 {
        let at = (1 << 49) + i * WIDEST;
        index.note("pods", &[format!("{begin}{i:09}")], piece(at, at + 1));
    }
    assert_eq!(count(&index), spans);
    index
}

#[test]
fn an_index_that_readers_would_not_read_is_not_stored() {
    // Of a namespace, and of an object in it.
    let index = full('a', 63 + 1 + 253);
    assert_eq!(again(&index, 1 << 50).0, index);
    // Some names may have any character, and one of these takes six in the text.
    assert_eq!(full('\u{1}', 300).file(1 << 50).unwrap(), None);
}

#[test]
fn an_index_stays_as_it_is_up_to_a_length_and_is_void_beyond() {
    let mut index = ArchiveIndex::default();
    index.note("pods", &names(&["a/\"x\""]), piece(1, 2));
    let length = serde_json::to_string(&index).unwrap().len() as u64;
    assert_eq!(index.clone().within(length), index);
    assert_eq!(index.within(length - 1), ArchiveIndex::void());
}

#[test]
fn one_lookup_is_few_requests_for_few_bytes() {
    let pieces = |count: u64, length: u64| -> Vec<ByteRange> {
        (0..count).map(|i| piece(i * (length + 1), i * (length + 1) + length)).collect()
    };
    for (pieces, expected) in [
        (pieces(0, 0), true),
        (pieces(MOST_PIECES as u64, 1), true),
        (pieces(MOST_PIECES as u64 + 1, 1), false),
        (pieces(2, MOST_NAMED / 2), true),
        (pieces(2, MOST_NAMED / 2 + 1), false),
        (vec![piece(0, u64::MAX), piece(0, u64::MAX)], false),
    ] {
        assert_eq!(are_few(&pieces), expected, "{}", pieces.len());
    }
}

fn kind(resource: &str, namespaced: bool) -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: resource.to_owned(),
        resource: resource.to_owned(),
        singular: resource.to_owned(),
        short_names: Vec::new(),
        namespaced,
    }
}

/// An object of some of these types, and how large it is.
type Made = (bool, u8, u16, u16);

/// Packs and uploads them as a run does, in so many parts and, perhaps, by two runs. Gives the
/// archive, and its index.
async fn stored(made: &[Made], part_size: usize, cut: Option<usize>) -> (Bytes, ArchiveIndex) {
    let types = [kind("pods", true), kind("volumes", false)];
    let memory = Arc::new(InMemory::new());
    let (store, parts): (Arc<DynObjectStore>, MultipartTarget) =
        (memory.clone(), MultipartTarget::Bucket(memory));
    let path = Path::from("b.tar.gz");
    let mut ledger = ObjectLedger::new(&types);
    let mut begun = None;
    let cut = cut.map(|cut| cut % (made.len() + 1));
    let runs = match cut {
        Some(cut) => vec![(&made[..cut], false), (&made[cut..], true)],
        None => vec![(made, true)],
    };
    for (number, (made, is_last)) in runs.into_iter().enumerate() {
        let (members, received) = mpsc::channel(1024);
        let (progress, mut told) = mpsc::channel(1024);
        if number == 0 {
            let opening = archive::opening(7).unwrap();
            members.send(ArchivePart::Member(opening.into(), Vec::new())).await.unwrap();
        }
        let (sender, batches) = mpsc::channel(1024);
        for (i, (namespaced, namespace, name, size)) in made.iter().enumerate() {
            let kind = Arc::new(types[usize::from(!*namespaced)].clone());
            let name = format!("{name}-{number}-{i}");
            let namespace = namespaced.then(|| format!("n{}", namespace % 4));
            let json = json!({"kind": kind.kind, "name": name, "noise": "x".repeat(usize::from(*size))});
            let item = ArchiveItem { namespace, name, json: json.to_string().into(), lacks_type: false };
            // Every few objects the archive is cut into members.
            let (packed, _) = tokio::sync::oneshot::channel();
            let page = ledger.beside(&kind);
            let packed = i.is_multiple_of(3).then_some(packed);
            sender.send(Batch { kind, page, items: vec![item], packed }).await.unwrap();
        }
        drop(sender);
        let work = {
            let members = members.clone();
            tokio::task::spawn_blocking(move || {
                archive::pack(&Mutex::new(batches), &members, 7, &AtomicU64::new(0)).unwrap();
            })
        };
        work.await.unwrap();
        let end =
            if is_last { ArchivePart::End(archive::closing().unwrap().into()) } else { ArchivePart::Rest };
        members.send(end).await.unwrap();
        drop(members);
        let upload = ArchiveUpload {
            store: Arc::clone(&store),
            parts: parts.clone(),
            path: path.clone(),
            part_size,
            begun: begun.take(),
            progress: Some(progress),
            staged: Arc::default(),
            claimed: None,
        };
        let staged = Arc::clone(&upload.staged);
        let mut uploaded = crate::backup::checkpoint::Uploaded::default();
        let mut behind = Bytes::new();
        let listen = async {
            while let Some(progress) = told.recv().await {
                let contents = match progress {
                    UploadProgress::Part { receipt, contents, tail, upload } => {
                        (uploaded.upload, behind) = (upload, tail);
                        uploaded.parts.push(receipt);
                        contents
                    }
                    UploadProgress::Whole { contents, .. } => contents,
                    UploadProgress::Resting { upload, tail, contents, .. } => {
                        (uploaded.upload, behind) = (upload, tail);
                        contents
                    }
                };
                ledger.stored(contents);
            }
        };
        let (size, ()) = tokio::join!(upload.run(received), listen);
        size.unwrap();
        if !is_last {
            // As the next run reads it from the checkpoint.
            let mut balance = ledger.balance().unwrap();
            let text = serde_json::to_string(&balance.index).unwrap();
            balance.index = serde_json::from_str(&text).unwrap();
            ledger = ObjectLedger::again(&types, balance).unwrap();
            let known = parts.known(&path, staged.get().unwrap().id()).unwrap();
            let size = uploaded.size();
            begun = Some((known.for_another(size).await.unwrap(), uploaded, behind));
        }
    }
    let found = store.get(&path).await.unwrap().bytes().await.unwrap();
    (found, ledger.index())
}

/// What the archive holds, by a walk through all of it.
fn streamed(archive: &[u8]) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    visit(MultiGzDecoder::new(archive), |stored, size, body| {
        all.insert(stored.to_string(), object(&stored, size, body)?);
        Ok(ArchiveControl::Go)
    })
    .unwrap();
    all
}

/// What the pieces that an index names hold of that name.
fn looked_up(archive: &[u8], index: &ArchiveIndex, wanted: &str) -> anyhow::Result<Option<Value>> {
    let (resource, key) = wanted.split_once('/').unwrap();
    for ByteRange { from, to } in index.find(resource, key) {
        let (mut found, mut has_type) = (None, false);
        let bytes = &archive[usize::try_from(from)?..usize::try_from(to)?];
        visit_piece(MultiGzDecoder::new(bytes), |stored, size, body| {
            has_type |= stored.resource == resource;
            if stored.to_string() != wanted {
                return Ok(ArchiveControl::Go);
            }
            found = Some(object(&stored, size, body)?);
            Ok(ArchiveControl::Stop)
        })?;
        assert!(has_type, "{wanted}");
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_the_index_finds_is_what_a_walk_through_the_archive_finds(
        made in proptest::collection::vec(any::<Made>(), 1..40),
        part_size in 200_usize..4000,
        cut in proptest::option::of(0_usize..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (archive, index) = runtime.block_on(stored(&made, part_size, cut));
        let all = streamed(&archive);
        prop_assert_eq!(all.len(), made.len());
        // An archive that was stored with one request has no index.
        let Some(file) = index.file(archive.len() as u64).unwrap() else {
            prop_assert!(cut.is_none() && archive.len() < part_size + 100, "{}", archive.len());
            return Ok(());
        };
        let (index, bytes) = ArchiveIndex::read(MultiGzDecoder::new(file.as_slice())).unwrap();
        prop_assert_eq!(bytes, archive.len() as u64);
        for (name, value) in &all {
            let found = looked_up(&archive, &index, name).unwrap();
            prop_assert_eq!(found.as_ref(), Some(value), "{}", name);
        }
        let near: BTreeSet<String> = all.keys().map(|name| format!("{name}x")).collect();
        for name in near.iter().map(String::as_str).chain(["pods/n0/-", "nodes/a"]) {
            prop_assert_eq!(looked_up(&archive, &index, name).unwrap(), None);
        }
    }
}
