//! A volume, as rustic_core reads it: each name is opened from the open folder that it is in, links
//! are stored as links, and other file systems are not entered. A file that cannot be read is
//! reported, and the others are read nevertheless.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::errno::Errno;
use rustic_core::repofile::Node;
use rustic_core::{ErrorKind, ReadSource, ReadSourceEntry, ReadSourceOpen, RusticError, RusticResult};

use crate::beneath::{Folder, Held};
use crate::metadata::{attributes, node};
use crate::watched::Watched;

/// The folder of the volume in a snapshot. The volume is not the root, so that its own owner and
/// mode are stored, too.
pub(crate) const TOP: &str = "volume";
/// A tag of the snapshots of devices.
pub(crate) const DEVICE_TAG: &str = "volume-mode=Block";

pub(crate) struct Volume {
    pub folder: Folder,
    pub watched: Watched,
}

impl ReadSource for Volume {
    type Open = Opening;
    type Iter = Walk;

    fn size(&self) -> RusticResult<Option<u64>> {
        let walk = Walk::new(self.folder.clone(), self.watched.clone(), false);
        let files = walk.filter_map(Result::ok).filter(|entry| entry.node.is_file());
        Ok(Some(files.map(|entry| entry.node.meta.size).sum()))
    }

    fn entries(&self) -> Walk {
        Walk::new(self.folder.clone(), self.watched.clone(), true)
    }
}

/// A folder that is being walked.
struct WalkedFolder {
    folder: Folder,
    path: PathBuf,
    names: std::vec::IntoIter<OsString>,
    /// Bytes of the extended attributes of the entries of this folder.
    attributes: usize,
}

pub(crate) struct Walk {
    watched: Watched,
    /// Are unreadable files reported? Not by the first pass, which only counts bytes.
    tells: bool,
    top: Option<Folder>,
    levels: Vec<WalkedFolder>,
    /// Bytes of extended attributes that the folders in `levels` may still take.
    room: usize,
}

/// Limit of the bytes of the extended attributes of all entries of one folder and of those above
/// it. They are in memory until the folder has been read, and any pod may give its files as many as
/// it likes.
const ATTRIBUTES: usize = 128 << 20;
/// Folders nested more deeply than this are not read.
const DEEPEST: usize = 1000;
/// The largest size of a file that consists almost only of holes, because reading a hole takes as
/// long as reading bytes.
const LARGEST_HOLE: u64 = 16 << 40;

fn is(error: &io::Error, code: Errno) -> bool {
    error.raw_os_error() == Some(code as i32)
}

/// Is the file a hole that would take for ever to read? `blocks`: of 512 bytes.
fn is_endless(size: u64, blocks: u64) -> bool {
    size > LARGEST_HOLE && blocks.saturating_mul(512) < size / 1000
}

impl Walk {
    fn new(top: Folder, watched: Watched, tells: bool) -> Self {
        Self { watched, tells, top: Some(top), levels: Vec::new(), room: ATTRIBUTES }
    }

    fn fail(&self, path: &Path, error: &io::Error) {
        if self.tells {
            self.watched.fail(path, error);
        }
    }

    /// Counts a file that was removed after its folder was read.
    fn vanish(&self) {
        if self.tells {
            self.watched.vanish();
        }
    }

    fn attribute(&mut self, node: &mut Node, at: &Path, path: &Path) {
        if !self.tells {
            return;
        }
        let found = attributes(at, |what| self.watched.note(path, &what));
        match found {
            Ok(found) => {
                let bytes = |(name, value): &(String, Option<Vec<u8>>)| {
                    name.len() + value.as_ref().map_or(0, Vec::len)
                };
                let bytes: usize = found.iter().map(bytes).sum();
                let Some(room) = self.room.checked_sub(bytes) else {
                    self.fail(path, &io::Error::other("the files of its folder have too many attributes"));
                    return;
                };
                if let Some(level) = self.levels.last_mut() {
                    self.room = room;
                    level.attributes = level.attributes.saturating_add(bytes);
                }
                // The type of an extended attribute has no public name in rustic_core.
                node.meta.extended_attributes = found
                    .into_iter()
                    .filter_map(|(name, value)| {
                        let value = value.map(|value| STANDARD.encode(value));
                        serde_json::from_value(serde_json::json!({"name": name, "value": value})).ok()
                    })
                    .collect();
            }
            Err(error) => self.fail(path, &error),
        }
    }

    /// Enters a folder. `None`: the folder cannot be read.
    fn enter(&mut self, folder: &Folder, name: &OsStr, path: &Path) -> Option<Node> {
        let file = folder.as_file().and_then(|file| file.metadata());
        let found = file.inspect_err(|error| self.fail(path, error)).ok()?;
        let mut node = node(name, &found, None);
        self.attribute(&mut node, &folder.path(), path);
        let names = folder.names().unwrap_or_else(|error| {
            self.fail(path, &error);
            Vec::new()
        });
        self.levels.push(WalkedFolder {
            folder: folder.clone(),
            path: path.to_owned(),
            names: names.into_iter(),
            attributes: 0,
        });
        Some(node)
    }

    fn entry(&mut self, parent: &Folder, name: OsString, path: PathBuf) -> Option<ReadSourceEntry<Opening>> {
        let held = match parent.held(&name) {
            Ok(held) => held,
            // Another file system is mounted there.
            Err(error) if is(&error, Errno::EXDEV) => return self.mounted(parent, &name, path),
            Err(error) if is(&error, Errno::ENOENT) => {
                self.vanish();
                return None;
            }
            Err(error) => {
                self.fail(&path, &error);
                return None;
            }
        };
        let found = held.metadata().inspect_err(|error| self.fail(&path, error)).ok()?;
        if found.is_dir() {
            if self.levels.len() >= DEEPEST {
                self.fail(&path, &io::Error::other("it is too deep below the volume"));
                return None;
            }
            return match held.folder() {
                Ok(folder) => {
                    let node = self.enter(&folder, &name, &path)?;
                    Some(ReadSourceEntry { path, node, open: None })
                }
                Err(error) if is(&error, Errno::ENOENT) => {
                    self.vanish();
                    None
                }
                Err(error) => {
                    self.fail(&path, &error);
                    None
                }
            };
        }
        if found.is_file() && is_endless(found.len(), found.blocks()) {
            self.fail(&path, &io::Error::other("nearly all of its many bytes are a hole"));
            return None;
        }
        let link = found.is_symlink().then(|| held.link()).transpose();
        let link = link.inspect_err(|error| self.fail(&path, error)).ok()?;
        let mut node = node(&name, &found, link.as_deref());
        self.attribute(&mut node, &held.path(), &path);
        let size = found.len();
        let open =
            node.is_file().then(|| Opening { held, path: path.clone(), size, watched: self.watched.clone() });
        Some(ReadSourceEntry { path, node, open })
    }

    /// A folder on which something is mounted is stored, as an empty folder.
    fn mounted(&self, parent: &Folder, name: &OsStr, path: PathBuf) -> Option<ReadSourceEntry<Opening>> {
        let found = std::fs::symlink_metadata(parent.path_of(name));
        let found = found.inspect_err(|error| self.fail(&path, error)).ok()?;
        if !found.is_dir() {
            self.fail(&path, &io::Error::other("another file is mounted on it"));
            return None;
        }
        Some(ReadSourceEntry { path, node: node(name, &found, None), open: None })
    }
}

impl Iterator for Walk {
    type Item = RusticResult<ReadSourceEntry<Opening>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(top) = self.top.take() {
            let path = PathBuf::from("/").join(TOP);
            let node = self.enter(&top, OsStr::new(TOP), &path)?;
            return Some(Ok(ReadSourceEntry { path, node, open: None }));
        }
        // Nothing read until then becomes a snapshot, because the back end refuses to write one.
        while !self.watched.is_canceled() {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.next() else {
                if let Some(level) = self.levels.pop() {
                    self.room = self.room.saturating_add(level.attributes);
                }
                continue;
            };
            self.watched.step();
            let (folder, path) = (level.folder.clone(), level.path.join(&name));
            if let Some(entry) = self.entry(&folder, name, path) {
                if self.tells && !entry.node.is_dir() {
                    self.watched.begin_file();
                }
                return Some(Ok(entry));
            }
        }
        None
    }
}

/// A file that is going to be read.
pub(crate) struct Opening {
    held: Held,
    path: PathBuf,
    /// The size of the file when its folder was read.
    size: u64,
    watched: Watched,
}

impl ReadSourceOpen for Opening {
    type Reader = Reader;

    fn open(self) -> RusticResult<Reader> {
        match self.held.open() {
            Ok(file) => Ok(Reader { file, left: self.size, path: self.path, watched: self.watched }),
            Err(error) => {
                self.watched.fail(&self.path, &error);
                Err(RusticError::with_source(ErrorKind::InputOutput, "the file cannot be opened", error))
            }
        }
    }
}

/// Reads no more bytes than the file had when its folder was read, because restic takes size and
/// content from the same node.
pub(crate) struct Reader {
    file: File,
    left: u64,
    path: PathBuf,
    watched: Watched,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.watched.is_canceled() {
            return Err(io::Error::other("canceled"));
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..most).unwrap_or_default());
        match &read {
            Ok(0) if most > 0 => {
                self.watched.note(&self.path, &"it became shorter while it was read");
                self.left = 0;
            }
            Ok(bytes) => self.left = self.left.saturating_sub(u64::try_from(*bytes).unwrap_or(u64::MAX)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.watched.fail(&self.path, error),
        }
        read
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_room_in_each_folder_and_no_more() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        std::fs::create_dir_all(volume.join("a")).unwrap();
        for name in ["a/x", "b", "c"] {
            std::fs::write(volume.join(name), "").unwrap();
            if xattr::set(volume.join(name), "user.berth", &[7; 1000]).is_err() {
                // The file system of this machine has no extended attributes.
                return;
            }
        }
        let folder = crate::beneath::descend(root.path(), Path::new("v")).unwrap();
        let watched = Watched::default();
        let walk = Walk { room: 1500, ..Walk::new(folder, watched.clone(), true) };
        assert_eq!(walk.count(), 5);
        let failed = watched.failed().unwrap();
        assert!(failed.count == 1 && failed.first[0].starts_with("/volume/c: "), "{failed}");
    }

    #[test]
    fn what_vanishes_before_it_is_read_is_told_and_nothing_fails_by_it() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        std::fs::create_dir_all(volume.join("folder")).unwrap();
        for name in ["file", "stays"] {
            std::fs::write(volume.join(name), "text").unwrap();
        }
        let folder = crate::beneath::descend(root.path(), Path::new("v")).unwrap();
        let watched = Watched::default();
        let mut walk = Walk::new(folder, watched.clone(), true);
        // The volume itself: its names have been read now.
        assert_eq!(walk.next().unwrap().unwrap().path, Path::new("/volume"));
        std::fs::remove_file(volume.join("file")).unwrap();
        std::fs::remove_dir(volume.join("folder")).unwrap();
        let found: Vec<PathBuf> = walk.map(|entry| entry.unwrap().path).collect();
        assert_eq!(found, [PathBuf::from("/volume/stays")]);
        assert_eq!(watched.failed(), None);
        assert_eq!(watched.notes(), "2 files vanished before they were read");
    }

    #[test]
    fn of_a_file_that_changes_its_size_while_it_is_read_no_more_is_read_than_was_found() {
        for (then, wanted, note) in
            [("text and more", "text", ""), ("te", "te", "/volume/file: it became shorter while it was read")]
        {
            let root = tempfile::tempdir().unwrap();
            let file = root.path().join("v/file");
            std::fs::create_dir(root.path().join("v")).unwrap();
            std::fs::write(&file, "text").unwrap();
            let folder = crate::beneath::descend(root.path(), Path::new("v")).unwrap();
            let watched = Watched::default();
            let entry = Walk::new(folder, watched.clone(), true).nth(1).unwrap().unwrap();
            assert_eq!(entry.node.meta.size, 4);
            let mut reader = entry.open.unwrap().open().unwrap();
            std::fs::write(&file, then).unwrap();
            let mut read = String::new();
            reader.read_to_string(&mut read).unwrap();
            assert_eq!((read.as_str(), watched.notes().as_str()), (wanted, note));
            assert_eq!(watched.failed(), None);
        }
    }

    #[test]
    fn only_large_holes_are_endless() {
        for (size, blocks, endless) in [
            (1 << 62, 8, true),
            (17 << 40, 0, true),
            (1 << 40, 0, false),
            (17 << 40, (17 << 40) / 512, false),
            (0, 0, false),
        ] {
            assert_eq!(is_endless(size, blocks), endless, "{size} {blocks}");
        }
    }
}
