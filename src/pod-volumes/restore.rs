//! A snapshot back into a folder. rustic_core restores by paths, which links in a volume may lead anywhere; and what
//! fails there ends the process or is only logged. So this is done here, from open folder to open folder.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, futimens, mkdirat, mknodat, utimensat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, linkat, symlinkat, unlinkat};
use ring::digest::{SHA256, digest};
use rustic_core::repofile::{BlobType, Metadata, Node, NodeType, SnapshotFile};
use rustic_core::{BlobId, IndexedFullStatus, LsOptions, OpenStatus, Repository};
use xattr::FileExt as _;

use crate::beneath::{Folder, is_name};
use crate::fault::Fault;
use crate::metadata::{permissions, time_of};
use crate::repository::TOP;
use crate::watched::Watched;

/// What was brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub files: u64,
    pub bytes: u64,
}

type Full = Repository<IndexedFullStatus>;

pub(crate) fn restore(
    repository: Repository<OpenStatus>,
    snapshot: &str,
    folder: &Folder,
    watched: &Watched,
) -> Result<Restored, Fault> {
    let is_id = snapshot.len() >= 8 && snapshot.chars().all(|c| c.is_ascii_hexdigit());
    let found = if is_id { repository.get_snapshots(&[snapshot]).unwrap_or_default() } else { Vec::new() };
    let [snapshot] = found.as_slice() else { return Err(Fault::NoSnapshot(snapshot.to_owned())) };
    watched.set_total(snapshot.summary.as_ref().map_or(0, |summary| summary.total_bytes_processed));
    let repository = repository.to_indexed()?;
    let top = top(&repository, snapshot)?;
    let mut target = Target { watched, root: folder, levels: Vec::new(), links: HashMap::new(), done: Restored::default() };
    target.levels.push(Level { path: PathBuf::new(), folder: folder.clone(), then: top.meta.clone() });
    for entry in repository.ls(&top, &LsOptions::default())? {
        if watched.is_canceled() {
            return Err(Fault::Canceled);
        }
        let (path, node) = entry?;
        target.leave_until(path.parent().unwrap_or(Path::new("")));
        let Some(parent) = target.levels.last().filter(|level| path.parent() == Some(&level.path)) else {
            // What is below a folder that could not be made.
            watched.fail(&path, &"its folder is not there");
            continue;
        };
        let parent = parent.folder.clone();
        if let Err(why) = target.bring(&repository, &parent, &path, &node) {
            watched.fail(&path, &why);
        }
    }
    target.leave_until(Path::new(""));
    target.leave();
    match watched.failed() {
        Some(failed) => Err(Fault::Unfinished(failed)),
        None => Ok(target.done),
    }
}

/// The volume in a snapshot of ours; in one of others, all of it.
fn top(repository: &Full, snapshot: &SnapshotFile) -> Result<Node, Fault> {
    let is_ours = snapshot.paths.contains(&format!("/{TOP}")) && snapshot.program_version.starts_with("berth");
    Ok(repository.node_from_snapshot_and_path(snapshot, if is_ours { TOP } else { "" })?)
}

struct Level {
    path: PathBuf,
    folder: Folder,
    /// What it is to have when all that is in it is there.
    then: Metadata,
}

struct Target<'a> {
    watched: &'a Watched,
    root: &'a Folder,
    levels: Vec<Level>,
    /// The first name of each file that has several, by device and number.
    links: HashMap<(u64, u64), PathBuf>,
    done: Restored,
}

/// Removes what is there under a name, unless it is a folder.
pub(crate) fn clear(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Target<'_> {
    fn leave_until(&mut self, path: &Path) {
        while self.levels.len() > 1 && self.levels.last().is_some_and(|level| !path.starts_with(&level.path)) {
            self.leave();
        }
    }

    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        let set = level.folder.as_file().and_then(|file| set_metadata(&file, &level.then));
        if let Err(error) = set {
            self.watched.fail(&level.path, &error);
        }
    }

    fn bring(&mut self, repository: &Full, parent: &Folder, path: &Path, node: &Node) -> Result<(), String> {
        let name: OsString = node.name().into_owned();
        if !is_name(&name) || path.file_name() != Some(&name) {
            return Err("it has no name that a file can have".to_owned());
        }
        let text = |error: io::Error| error.to_string();
        match &node.node_type {
            NodeType::Dir => {
                let folder = enter(parent, &name).map_err(text)?;
                self.levels.push(Level { path: path.to_owned(), folder, then: node.meta.clone() });
                return Ok(());
            }
            NodeType::File => {
                clear(parent, &name).map_err(text)?;
                let key = (node.meta.device_id, node.meta.inode);
                let has_links = node.meta.links > 1 && key.0 != 0;
                if has_links && let Some(first) = self.links.get(&key) {
                    // Where it cannot be a link, it is a file of its own.
                    if self.link(first, parent, &name).is_ok() {
                        return Ok(());
                    }
                }
                self.file(repository, parent, &name, node)?;
                if has_links {
                    self.links.entry(key).or_insert_with(|| path.to_owned());
                }
            }
            special => {
                clear(parent, &name).map_err(text)?;
                make(parent, &name, special, &node.meta).map_err(text)?;
            }
        }
        self.done.files += 1;
        Ok(())
    }

    fn link(&self, first: &Path, parent: &Folder, name: &OsStr) -> io::Result<()> {
        let mut folder = self.root.clone();
        for part in first.parent().into_iter().flat_map(Path::iter) {
            folder = folder.folder(part)?;
        }
        let old = first.file_name().unwrap_or_default();
        Ok(linkat(&folder, old, parent, name, AtFlags::empty())?)
    }

    fn file(&mut self, repository: &Full, parent: &Folder, name: &OsStr, node: &Node) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let mut file = parent.create(name).map_err(text)?;
        let mut size: u64 = 0;
        for id in node.content.iter().flatten() {
            if self.watched.is_canceled() {
                return Err("canceled".to_owned());
            }
            let blob = BlobId::from(**id);
            let data = repository.get_blob_cached(&blob, BlobType::Data);
            let data = data.map_err(|error| crate::fault::told(&error))?;
            let is_whole = digest(&SHA256, &data).as_ref() == bytes_of(id.to_hex().as_str()).as_slice();
            if !is_whole {
                return Err(format!("blob {} of the repository has other bytes than its name says", id.to_hex().as_str()));
            }
            // Nothing but zeros is a hole.
            if data.iter().all(|byte| *byte == 0) {
                let over = i64::try_from(data.len()).unwrap_or(i64::MAX);
                file.seek(SeekFrom::Current(over)).map_err(text)?;
            } else {
                file.write_all(&data).map_err(text)?;
            }
            let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
            size = size.saturating_add(bytes);
            self.watched.add(bytes);
        }
        file.set_len(size).map_err(text)?;
        self.done.bytes = self.done.bytes.saturating_add(size);
        set_metadata(&file, &node.meta).map_err(text)
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()).collect()
}

/// The folder of that name, which is made if there is none. What is no folder makes way.
fn enter(parent: &Folder, name: &OsStr) -> io::Result<Folder> {
    match mkdirat(parent, name, Mode::S_IRWXU) {
        Ok(()) => {}
        Err(Errno::EEXIST) => {
            if let Ok(folder) = parent.folder(name) {
                return Ok(folder);
            }
            clear(parent, name)?;
            mkdirat(parent, name, Mode::S_IRWXU)?;
        }
        Err(error) => return Err(error.into()),
    }
    parent.folder(name)
}

/// Links, pipes, sockets and devices.
fn make(parent: &Folder, name: &OsStr, kind: &NodeType, meta: &Metadata) -> io::Result<()> {
    let mode = permissions(meta.mode.unwrap_or(0o600));
    let node = |flag, device| mknodat(parent, name, flag, Mode::from_bits_truncate(mode), device);
    match kind {
        NodeType::Symlink { .. } => symlinkat(kind.to_link(), parent, name)?,
        NodeType::Fifo => node(SFlag::S_IFIFO, 0)?,
        NodeType::Socket => node(SFlag::S_IFSOCK, 0)?,
        NodeType::Dev { device } => node(SFlag::S_IFBLK, *device)?,
        NodeType::Chardev { device } => node(SFlag::S_IFCHR, *device)?,
        NodeType::File | NodeType::Dir => return Ok(()),
    }
    let (owner, group) = (meta.uid.map(Uid::from_raw), meta.gid.map(Gid::from_raw));
    fchownat(parent, name, owner, group, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let at = parent.path_of(name);
    for attribute in &meta.extended_attributes {
        xattr::set(&at, &attribute.name, attribute.value.as_deref().unwrap_or_default())?;
    }
    let times = (time_of(meta.atime), time_of(meta.mtime));
    Ok(utimensat(parent.as_fd(), name, &times.0, &times.1, UtimensatFlags::NoFollowSymlink)?)
}

/// The order matters: a new owner takes special bits and capabilities away, and each of these changes the times.
fn set_metadata(file: &File, meta: &Metadata) -> io::Result<()> {
    fchown(file, meta.uid.map(Uid::from_raw), meta.gid.map(Gid::from_raw))?;
    if let Some(mode) = meta.mode {
        file.set_permissions(Permissions::from_mode(permissions(mode)))?;
    }
    for attribute in &meta.extended_attributes {
        file.set_xattr(&attribute.name, attribute.value.as_deref().unwrap_or_default())?;
    }
    Ok(futimens(file, &time_of(meta.atime), &time_of(meta.mtime))?)
}
