//! The archive of a backup as a stream: headers and objects pass, and nothing is unpacked. What a
//! header claims is bounded before memory is taken for it.

use std::io::{self, Read};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::storage::StoredBackups;
use crate::text::printable;

const BLOCK: usize = 512;
/// Of a name that does not fit a header.
const LONGEST_NAME: u64 = 64 << 10;
/// Of an object that is read into memory.
pub const LARGEST_OBJECT: u64 = 4 << 20;
/// Values of an object that is taken apart: in memory, one may take a hundred times the bytes of
/// its text. The largest objects of an API server have some ten thousand.
const VALUES: usize = 500_000;

/// A stored object: `deployments.apps/web/frontend`, or `persistentvolumes/pv1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    pub resource: String,
    pub namespace: Option<String>,
    pub name: String,
}

impl StoredObject {
    /// What a path in the archive names. An object stands in the archive twice; the copy by
    /// version is not a further object.
    pub fn at(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches("./").split('/').collect();
        let stored = |resource: &str, namespace: Option<&str>, file: &str| {
            let name = file.strip_suffix(".json")?;
            Some(Self {
                resource: resource.to_owned(),
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            })
        };
        match parts.as_slice() {
            ["resources", resource, "namespaces", namespace, file] => stored(resource, Some(namespace), file),
            ["resources", resource, "cluster", file] => stored(resource, None, file),
            _ => None,
        }
    }
}

impl std::fmt::Display for StoredObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", self.resource, self.name),
            None => write!(f, "{}/{}", self.resource, self.name),
        }
    }
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveControl {
    Go,
    Stop,
}

/// Visits every stored object of an unpacked archive, in its order.
///
/// # Errors
/// When the archive is cut off or is none, or `visit` fails.
pub fn visit(
    tar: impl Read,
    visit: impl FnMut(StoredObject, u64, &mut dyn Read) -> anyhow::Result<ArchiveControl>,
) -> anyhow::Result<()> {
    walk(tar, true, visit)
}

/// Visits the objects of a piece of an unpacked archive, which begins and ends between entries.
///
/// # Errors
/// As [`visit`].
pub fn visit_piece(
    tar: impl Read,
    visit: impl FnMut(StoredObject, u64, &mut dyn Read) -> anyhow::Result<ArchiveControl>,
) -> anyhow::Result<()> {
    walk(tar, false, visit)
}

fn walk(
    mut tar: impl Read,
    is_whole: bool,
    mut visit: impl FnMut(StoredObject, u64, &mut dyn Read) -> anyhow::Result<ArchiveControl>,
) -> anyhow::Result<()> {
    let (mut has_version, mut entries, mut long_name) = (false, 0_u64, None::<String>);
    loop {
        let mut header = [0; BLOCK];
        let read = fill(&mut tar, &mut header).map_err(damaged)?;
        if read == 0 && !is_whole {
            return Ok(());
        }
        if read == 0 {
            // The two blocks of zeros at the end are missing.
            bail!(
                "the archive is cut off after {entries} entries: download it again; if that does not help, the backup itself is damaged"
            );
        }
        ensure!(read == BLOCK, "the archive is cut off within a header, after {entries} entries");
        if header.iter().all(|byte| *byte == 0) {
            ensure!(is_whole, "the archive ends within a piece of it");
            break;
        }
        ensure!(
            checksum_fits(&header),
            "this is no archive of a backup: entry {} has a wrong checksum",
            entries + 1
        );
        entries += 1;
        let size = size(&header).context("an entry of the archive has no readable size")?;
        let mut body = tar.by_ref().take(size);
        match header.get(156).copied().unwrap_or(0) {
            b'L' | b'x' => {
                ensure!(
                    size <= LONGEST_NAME,
                    "the name of an entry takes {size} bytes: this is no archive of a backup"
                );
                let mut text = Vec::new();
                body.read_to_end(&mut text).map_err(damaged)?;
                let is_extended = header.get(156) == Some(&b'x');
                let name = if is_extended { extended_path(&text) } else { Some(until_zero(&text)) };
                long_name = name.or(long_name);
            }
            b'0' | 0 => {
                let path = long_name.take().unwrap_or_else(|| path(&header));
                has_version |= path.trim_start_matches("./") == "metadata/version";
                if let Some(stored) = StoredObject::at(&path)
                    && visit(stored, size, &mut body)? == ArchiveControl::Stop
                {
                    return Ok(());
                }
            }
            _ => long_name = None,
        }
        // Whatever was not read of the entry, and what fills its last block.
        io::copy(&mut body, &mut io::sink()).map_err(damaged)?;
        ensure!(
            body.limit() == 0,
            "the archive is cut off within entry {entries}: download it again; if that does not help, the backup itself is damaged"
        );
        let rest = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        let skipped = io::copy(&mut tar.by_ref().take(rest), &mut io::sink()).map_err(damaged)?;
        ensure!(skipped == rest, "the archive is cut off after entry {entries}");
    }
    ensure!(has_version || !is_whole, "this is no archive of a backup: it has no metadata/version");
    Ok(())
}

fn damaged(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::Other => error.into(),
        _ => anyhow::Error::new(error).context("the archive is damaged or cut off"),
    }
}

/// Reads an object into memory.
///
/// # Errors
/// When it is too large, or is no JSON.
pub fn object(stored: &StoredObject, size: u64, body: &mut dyn Read) -> anyhow::Result<Value> {
    let text = text(stored, size, body)?;
    parsed(stored, &text)?.with_context(|| {
        let name = stored.to_string();
        format!(
            "{} has more than {VALUES} values, which is more than this command reads: use `berth backup download`",
            printable(&name)
        )
    })
}

/// The text of an object.
///
/// # Errors
/// When it is too large, or cut off.
pub fn text(stored: &StoredObject, size: u64, body: &mut dyn Read) -> anyhow::Result<Vec<u8>> {
    let name = stored.to_string();
    let name = printable(&name);
    ensure!(
        size <= LARGEST_OBJECT,
        "{name} has {size} bytes, which is more than this command reads: use `berth backup download`"
    );
    let mut text = Vec::new();
    body.read_to_end(&mut text).map_err(damaged)?;
    ensure!(text.len() as u64 == size, "the archive is cut off within {name}");
    Ok(text)
}

/// What the text of an object says. `None`: it has too many values to be taken apart.
///
/// # Errors
/// When it is no JSON.
pub fn parsed(stored: &StoredObject, text: &[u8]) -> anyhow::Result<Option<Value>> {
    if !StoredBackups::is_light(text, VALUES) {
        return Ok(None);
    }
    let value = serde_json::from_slice(text);
    value.map(Some).with_context(|| format!("{} is no JSON", printable(&stored.to_string())))
}

fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

fn path(header: &[u8; BLOCK]) -> String {
    let field = |from: usize, to: usize| until_zero(header.get(from..to).unwrap_or_default());
    let (name, prefix) = (field(0, 100), field(345, 500));
    let is_ustar = header.get(257..263) == Some(b"ustar\0".as_slice());
    if is_ustar && !prefix.is_empty() { format!("{prefix}/{name}") } else { name }
}

/// `LENGTH path=VALUE`, one record a line.
fn extended_path(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let mut rest: &str = &text;
    while let Some((length, _)) = rest.split_once(' ') {
        let length: usize = length.parse().ok()?;
        let record = rest.get(..length)?;
        let (_, pair) = record.split_once(' ')?;
        if let Some(path) = pair.strip_prefix("path=") {
            return Some(path.trim_end_matches('\n').to_owned());
        }
        rest = rest.get(length..)?;
        if length == 0 {
            return None;
        }
    }
    None
}

fn number(field: &[u8]) -> Option<u64> {
    let text = until_zero(field);
    let text = text.trim_matches(' ');
    if text.is_empty() { Some(0) } else { u64::from_str_radix(text, 8).ok() }
}

fn size(header: &[u8; BLOCK]) -> Option<u64> {
    let field = header.get(124..136)?;
    if field.first()? & 0x80 != 0 {
        // Too large for octal digits.
        let bytes: [u8; 8] = field.get(4..)?.try_into().ok()?;
        return Some(u64::from_be_bytes(bytes));
    }
    number(field)
}

fn checksum_fits(header: &[u8; BLOCK]) -> bool {
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(i, byte)| if (148..156).contains(&i) { 32 } else { u64::from(*byte) })
        .sum();
    header.get(148..156).and_then(number) == Some(sum)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    pub fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn names(tar: &[u8]) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        visit(tar, |stored, _, _| {
            names.push(stored.to_string());
            Ok(ArchiveControl::Go)
        })?;
        Ok(names)
    }

    #[test]
    fn objects_are_listed_once_with_long_names_and_both_scopes() {
        let long = "x".repeat(200);
        let path = format!("resources/configmaps/namespaces/web/{long}.json");
        let tar = archive(&[
            ("metadata/version", "1.1.0\n"),
            ("resources/pods/namespaces/web/a.json", "{}"),
            ("resources/pods/v1-preferredversion/namespaces/web/a.json", "{}"),
            ("resources/persistentvolumes/cluster/pv1.json", "{}"),
            (&path, "{}"),
        ]);
        let expected =
            ["pods/web/a".to_owned(), "persistentvolumes/pv1".to_owned(), format!("configmaps/web/{long}")];
        assert_eq!(names(&tar).unwrap(), expected);
    }

    #[test]
    fn an_object_is_read_and_the_rest_is_not() {
        let tar = archive(&[
            ("metadata/version", "1.1.0\n"),
            ("resources/pods/namespaces/web/a.json", "{\"kind\":\"Pod\"}"),
            ("resources/pods/namespaces/web/b.json", "no json"),
        ]);
        let mut read = Vec::new();
        visit(tar.as_slice(), |stored, size, body| {
            read.push(object(&stored, size, body)?);
            Ok(ArchiveControl::Stop)
        })
        .unwrap();
        assert_eq!(read, [serde_json::json!({"kind": "Pod"})]);
    }

    /// In memory it would be hundreds of MiB.
    #[test]
    fn an_object_of_very_many_values_is_not_taken_apart() {
        let stored = StoredObject::at("resources/pods/namespaces/web/a.json").unwrap();
        let read = |text: &str| object(&stored, text.len() as u64, &mut text.as_bytes());
        let objects = |count: usize| format!("[{}0]", r#"{"":0},"#.repeat(count));
        assert!(read(&objects(100_000)).is_ok());
        let said = read(&objects(200_000)).unwrap_err().to_string();
        assert!(said.contains("pods/web/a has more than 500000 values"), "{said}");
        assert!(read("{").unwrap_err().to_string().contains("pods/web/a is no JSON"));
    }

    #[test]
    fn what_is_cut_off_or_no_archive_is_refused() {
        let tar = archive(&[("metadata/version", "1.1.0\n"), ("resources/pods/namespaces/web/a.json", "{}")]);
        for length in [1, 511, 512, 514, 1024, 1600, 2048] {
            let said = names(&tar[..length]).unwrap_err().to_string();
            assert!(said.contains("cut off"), "{length}: {said}");
        }
        let said = names(&[b'a'; 2048]).unwrap_err().to_string();
        assert!(said.contains("no archive of a backup"), "{said}");
        let said =
            names(&archive(&[("resources/pods/namespaces/web/a.json", "{}")])).unwrap_err().to_string();
        assert!(said.contains("metadata/version"), "{said}");
        assert!(names(&[]).is_err());
    }

    #[test]
    fn a_piece_ends_between_entries_and_nowhere_else() {
        let tar = archive(&[
            ("resources/pods/namespaces/web/a.json", "{}"),
            ("resources/pods/cluster/b.json", "{}"),
        ]);
        let names = |piece: &[u8]| {
            let mut names = Vec::new();
            visit_piece(piece, |stored, _, _| {
                names.push(stored.to_string());
                Ok(ArchiveControl::Go)
            })
            .map(|()| names)
        };
        assert_eq!(names(&tar[..1024]).unwrap(), ["pods/web/a"]);
        assert_eq!(names(&tar[1024..2048]).unwrap(), ["pods/b"]);
        assert_eq!(names(&tar[..2048]).unwrap(), ["pods/web/a", "pods/b"]);
        // The end of an archive is in no piece that an index names.
        for bad in [&tar[..1023], &tar[..600], &tar[1..1024], &tar[512..1024], &tar] {
            assert!(names(bad).is_err());
        }
    }

    #[test]
    fn a_header_that_claims_much_takes_no_memory() {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(u64::MAX / 2);
        header.set_cksum();
        let said = names(header.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("no archive of a backup"), "{said}");
    }

    /// An archive of one large object after the other, which is nowhere as a whole. Notes the
    /// largest buffer that is filled at one time.
    struct Endless {
        entry: Vec<u8>,
        at: usize,
        left: u64,
        largest: usize,
    }

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.largest = self.largest.max(buffer.len());
            let rest = &self.entry[self.at..];
            let length = rest.len().min(buffer.len()).min(usize::try_from(self.left).unwrap());
            buffer[..length].copy_from_slice(&rest[..length]);
            self.at = (self.at + length) % self.entry.len();
            self.left -= length as u64;
            Ok(length)
        }
    }

    #[test]
    fn an_archive_of_any_size_passes_in_small_buffers() {
        let large = "x".repeat(16 << 20);
        let mut entry = archive(&[("resources/pods/namespaces/web/a.json", &large)]);
        // Without the blocks of zeros that end an archive.
        entry.truncate(BLOCK + large.len());
        let left = 64 * entry.len() as u64;
        let mut endless = Endless { entry, at: 0, left, largest: 0 };
        let mut visited = 0;
        let error = visit(&mut endless, |_, size, _| {
            visited += 1;
            assert_eq!(size, large.len() as u64);
            Ok(ArchiveControl::Go)
        });
        assert!(error.unwrap_err().to_string().contains("cut off after 64 entries"));
        assert_eq!((visited, endless.left), (64, 0));
        assert!(endless.largest <= 64 << 10, "{} bytes at one time", endless.largest);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_never_panic(at in 0_usize..3000, byte: u8, length in 0_usize..3000) {
            let mut tar = archive(&[("metadata/version", "1.1.0\n"), ("resources/pods/namespaces/web/a.json", "{}")]);
            tar.truncate(length);
            if let Some(there) = tar.get_mut(at) {
                *there = byte;
            }
            let _ = names(&tar);
        }
    }
}
