//! A volume as rustic_core reads it: every name from the open folder that it is in, links as links, no other file
//! system. What cannot be read is told, and the rest is read nevertheless.

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

use crate::beneath::Folder;
use crate::metadata::{attributes, node};
use crate::repository::TOP;
use crate::watched::Watched;

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
struct Level {
    folder: Folder,
    path: PathBuf,
    names: std::vec::IntoIter<OsString>,
}

pub(crate) struct Walk {
    watched: Watched,
    /// Is what cannot be read to be told? Who only counts bytes comes here first.
    tells: bool,
    top: Option<Folder>,
    levels: Vec<Level>,
}

/// Not there any more, or something else by now.
fn is_change(error: &io::Error) -> bool {
    const CHANGES: [Errno; 3] = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP];
    error.raw_os_error().is_some_and(|code| CHANGES.contains(&Errno::from_raw(code)))
}

impl Walk {
    fn new(top: Folder, watched: Watched, tells: bool) -> Self {
        Self { watched, tells, top: Some(top), levels: Vec::new() }
    }

    fn fail(&self, path: &Path, error: &io::Error) {
        if self.tells {
            self.watched.fail(path, error);
        }
    }

    fn attribute(&self, node: &mut Node, at: &Path, path: &Path) {
        if !self.tells {
            return;
        }
        match attributes(at) {
            Ok(found) => {
                // The type of an attribute cannot be named.
                node.meta.extended_attributes = found
                    .into_iter()
                    .filter_map(|(name, value)| {
                        let value = value.map(|value| STANDARD.encode(value));
                        serde_json::from_value(serde_json::json!({"name": name, "value": value})).ok()
                    })
                    .collect();
            }
            Err(error) if is_change(&error) => {}
            Err(error) => self.fail(path, &error),
        }
    }

    /// Enters a folder. `None`: it is gone.
    fn enter(&mut self, folder: &Folder, name: &OsStr, path: &Path) -> Option<Node> {
        let file = folder.as_file().and_then(|file| file.metadata());
        let found = file.inspect_err(|error| self.fail(path, error)).ok()?;
        let mut node = node(name, &found, None);
        self.attribute(&mut node, &folder.path(), path);
        let names = folder.names().unwrap_or_else(|error| {
            self.fail(path, &error);
            Vec::new()
        });
        self.levels.push(Level { folder: folder.clone(), path: path.to_owned(), names: names.into_iter() });
        Some(node)
    }

    fn entry(&mut self, parent: &Folder, name: OsString, path: PathBuf) -> Option<ReadSourceEntry<Opening>> {
        let at = parent.path_of(&name);
        let found = match std::fs::symlink_metadata(&at) {
            Ok(found) => found,
            Err(error) => {
                if !is_change(&error) {
                    self.fail(&path, &error);
                }
                return None;
            }
        };
        if found.is_dir() {
            return match parent.folder(&name) {
                Ok(folder) => {
                    let node = self.enter(&folder, &name, &path)?;
                    Some(ReadSourceEntry { path, node, open: None })
                }
                Err(error) if is_change(&error) => None,
                // Another file system is mounted there.
                Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => {
                    Some(ReadSourceEntry { path, node: node(&name, &found, None), open: None })
                }
                Err(error) => {
                    self.fail(&path, &error);
                    None
                }
            };
        }
        let link = match found.is_symlink().then(|| std::fs::read_link(&at)).transpose() {
            Ok(link) => link,
            Err(error) => {
                // It may be a file by now, which is no link.
                if !is_change(&error) && error.kind() != io::ErrorKind::InvalidInput {
                    self.fail(&path, &error);
                }
                return None;
            }
        };
        let mut node = node(&name, &found, link.as_deref());
        self.attribute(&mut node, &at, &path);
        let open = node.is_file().then(|| Opening {
            parent: parent.clone(),
            name,
            path: path.clone(),
            found: (found.dev(), found.ino(), found.len()),
            watched: self.watched.clone(),
        });
        Some(ReadSourceEntry { path, node, open })
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
        // What was read until then becomes no snapshot: the back end refuses it.
        while !self.watched.is_canceled() {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let (folder, path) = (level.folder.clone(), level.path.join(&name));
            if let Some(entry) = self.entry(&folder, name, path) {
                return Some(Ok(entry));
            }
        }
        None
    }
}

/// A file that is to be read.
pub(crate) struct Opening {
    parent: Folder,
    name: OsString,
    path: PathBuf,
    /// Device, number and size of what was found.
    found: (u64, u64, u64),
    watched: Watched,
}

impl ReadSourceOpen for Opening {
    type Reader = Reader;

    fn open(self) -> RusticResult<Reader> {
        let (device, number, size) = self.found;
        let opened = self.parent.file(&self.name).and_then(|file| {
            let now = file.metadata()?;
            let is_it = now.is_file() && (now.dev(), now.ino()) == (device, number);
            is_it.then_some(file).ok_or_else(|| io::Error::other("it was replaced while the volume was read"))
        });
        match opened {
            Ok(file) => Ok(Reader { file, left: size, path: self.path, watched: self.watched }),
            Err(error) => {
                if !is_change(&error) {
                    self.watched.fail(&self.path, &error);
                }
                Err(RusticError::with_source(ErrorKind::InputOutput, "the file cannot be opened", error))
            }
        }
    }
}

/// Reads no more than the size that the file had: restic takes size and contents from the same node.
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
            Ok(0) if most > 0 => self.left = 0,
            Ok(bytes) => self.left = self.left.saturating_sub(u64::try_from(*bytes).unwrap_or(u64::MAX)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.watched.fail(&self.path, error),
        }
        read
    }
}
