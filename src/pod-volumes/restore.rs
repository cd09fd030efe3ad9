//! Restores a snapshot into a folder. rustic_core would restore by paths, which links in a volume
//! may lead anywhere, and would end the process or only log when a file fails. So this module
//! restores by itself, from one open folder to the next.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, SFlag, UtimensatFlags, futimens, mkdirat, mknodat, utimensat};
use nix::unistd::{Gid, Uid, fchown, fchownat, linkat, symlinkat};
use rustic_core::repofile::{Metadata, Node, NodeType, SnapshotFile, SnapshotId};
use rustic_core::{DataId, OpenStatus, Repository};
use xattr::FileExt as _;

use crate::ahead::Entries;
use crate::beneath::{Folder, clear, is_name};
use crate::blob::{IndexedRepository, blob};
use crate::fault::Fault;
use crate::metadata::{is_kept, is_unsupported, permissions, time_of};
use crate::source::{DEVICE_TAG, TOP};
use crate::watched::Watched;

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub files: u64,
    pub bytes: u64,
}

pub(crate) fn restore(
    repository: Repository<OpenStatus>,
    snapshot: &str,
    folder: &Folder,
    watched: &Watched,
) -> Result<Restored, Fault> {
    let (id, snapshot) = &found(&repository, snapshot)?;
    if snapshot.tags.contains(DEVICE_TAG) {
        return Err(Fault::Repository(format!("snapshot {id} is of a device, and the volume takes files")));
    }
    watched.set_total(snapshot.summary.as_ref().map_or(0, |summary| summary.total_bytes_processed));
    let repository = repository.to_indexed()?;
    let (top, is_ours) = top(&repository, snapshot)?;
    if top.subtree.is_none() {
        return Err(Fault::Repository(format!("snapshot {id} does not say what is in it")));
    }
    let mut target = Target {
        watched,
        root: folder,
        levels: Vec::new(),
        links: HashMap::new(),
        done: Restored::default(),
    };
    target.levels.push(RestoredFolder {
        path: PathBuf::new(),
        folder: folder.clone(),
        then: top.meta.clone(),
    });
    let seen = std::thread::scope(|threads| {
        let entries = Entries::below(&repository, &top, is_ahead, threads)?;
        target.fill(&repository, &entries)
    })?;
    // After the mark of a restore is written, all of its files must be on the disk.
    folder.sync().map_err(Fault::Unsynced)?;
    if let Some(failed) = watched.failed() {
        return Err(Fault::Unfinished(failed));
    }
    match snapshot.summary.as_ref().map(|summary| summary.total_files_processed) {
        Some(wanted) if is_ours && wanted != seen => {
            Err(Fault::Repository(format!("snapshot {id} was made of {wanted} files, and has {seen}")))
        }
        _ => Ok(target.done),
    }
}

/// The snapshot with this ID or prefix of an ID, and its whole ID.
pub(crate) fn found(
    repository: &Repository<OpenStatus>,
    snapshot: &str,
) -> Result<(String, SnapshotFile), Fault> {
    let none = || Fault::NoSnapshot(snapshot.to_owned());
    let is_id = snapshot.len() >= 8 && snapshot.chars().all(|c| c.is_ascii_hexdigit());
    let mut ids = Vec::new();
    if is_id {
        let all = repository.list::<SnapshotId>()?.map(|id| id.to_hex().as_str().to_owned());
        ids.extend(all.filter(|id| id.starts_with(snapshot)));
    }
    let [id] = ids.as_slice() else { return Err(none()) };
    let mut found = repository.get_snapshots(&[id])?;
    match (found.pop(), found.is_empty()) {
        (Some(snapshot), true) => Ok((id.clone(), snapshot)),
        _ => Err(none()),
    }
}

/// The folder of the volume in a snapshot that berth wrote; in any other snapshot the root.
fn top(repository: &IndexedRepository, snapshot: &SnapshotFile) -> Result<(Node, bool), Fault> {
    let is_ours =
        snapshot.paths.contains(&format!("/{TOP}")) && snapshot.program_version.starts_with("berth");
    Ok((repository.node_from_snapshot_and_path(snapshot, if is_ours { TOP } else { "" })?, is_ours))
}

fn has_links(node: &Node) -> bool {
    node.meta.links > 1 && node.meta.device_id != 0
}

/// Are the bytes of a file read before its turn? Not those of a file with several names, because
/// only its first name needs them.
fn is_ahead(node: &Node) -> bool {
    node.is_file() && !has_links(node)
}

struct RestoredFolder {
    path: PathBuf,
    folder: Folder,
    /// Metadata that the folder gets when everything in it is restored.
    then: Metadata,
}

struct Target<'a> {
    watched: &'a Watched,
    root: &'a Folder,
    levels: Vec<RestoredFolder>,
    /// The first name of each file with several names, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
    done: Restored,
}

impl Target<'_> {
    /// Restores all entries. Returns how many of them are not folders.
    fn fill(&mut self, repository: &IndexedRepository, entries: &Entries) -> Result<u64, Fault> {
        let mut seen: u64 = 0;
        while let Some(entry) = entries.entry() {
            if self.watched.is_canceled() {
                return Err(Fault::Canceled);
            }
            let (path, node) = entry?;
            self.watched.step();
            if !node.is_dir() {
                seen = seen.saturating_add(1);
                self.watched.begin_file();
            }
            self.leave_until(path.parent().unwrap_or(Path::new("")));
            let Some(parent) = self.levels.last().filter(|level| path.parent() == Some(&level.path)) else {
                // This entry is below a folder that could not be created.
                self.watched.fail(&path, &"its folder is not there");
                continue;
            };
            let parent = parent.folder.clone();
            let piece = |id: &DataId| if is_ahead(&node) { entries.piece() } else { blob(repository, id) };
            if let Err(why) = self.bring(piece, &parent, &path, &node) {
                self.watched.fail(&path, &why);
            }
        }
        self.leave_until(Path::new(""));
        self.leave();
        Ok(seen)
    }

    fn leave_until(&mut self, path: &Path) {
        while self.levels.len() > 1 && self.levels.last().is_some_and(|level| !path.starts_with(&level.path))
        {
            self.leave();
        }
    }

    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        let note = |what: String| self.watched.note(&level.path, &what);
        let set = level.folder.as_file().and_then(|file| set_metadata(&file, &level.then, note));
        if let Err(error) = set {
            self.watched.fail(&level.path, &error);
        }
    }

    /// Restores one entry. `piece` returns the next bytes of a file.
    fn bring(
        &mut self,
        piece: impl FnMut(&DataId) -> Result<Bytes, String>,
        parent: &Folder,
        path: &Path,
        node: &Node,
    ) -> Result<(), String> {
        let name: OsString = node.name().into_owned();
        if !is_name(&name) || path.file_name() != Some(&name) {
            return Err("it has no name that a file can have".to_owned());
        }
        let text = |error: io::Error| error.to_string();
        match &node.node_type {
            // rustic_core skips such a folder.
            NodeType::Dir if node.subtree.is_none() => {
                return Err("the repository does not say what is in that folder".to_owned());
            }
            NodeType::File if node.content.is_none() && node.meta.size > 0 => {
                return Err("the repository does not say what is in that file".to_owned());
            }
            NodeType::Dir => {
                let folder = enter(parent, &name).map_err(text)?;
                self.levels.push(RestoredFolder { path: path.to_owned(), folder, then: node.meta.clone() });
                return Ok(());
            }
            NodeType::File => {
                clear(parent, &name).map_err(text)?;
                let key = (node.meta.device_id, node.meta.inode);
                let has_links = has_links(node);
                if has_links && let Some(first) = self.links.get(&key) {
                    // Where a hard link is not possible, the file is restored as a copy.
                    if self.link(first, parent, &name).is_ok() {
                        return Ok(());
                    }
                }
                self.file(piece, parent, path, &name, node)?;
                if has_links {
                    self.links.entry(key).or_insert_with(|| path.to_owned());
                }
            }
            special => {
                clear(parent, &name).map_err(text)?;
                let note = |what: String| self.watched.note(path, &what);
                make(parent, &name, special, &node.meta, note).map_err(text)?;
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

    fn file(
        &mut self,
        mut piece: impl FnMut(&DataId) -> Result<Bytes, String>,
        parent: &Folder,
        path: &Path,
        name: &OsStr,
        node: &Node,
    ) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let mut file = parent.create(name).map_err(text)?;
        let mut size: u64 = 0;
        for id in node.content.iter().flatten() {
            if self.watched.is_canceled() {
                return Err("canceled".to_owned());
            }
            let data = piece(id)?;
            // A piece of zeros becomes a hole.
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
        set_metadata(&file, &node.meta, |what| self.watched.note(path, &what)).map_err(text)
    }
}

/// Opens the folder of that name, or creates it. Anything else of that name is removed.
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

/// Creates a symbolic link, pipe, socket or device.
fn make(
    parent: &Folder,
    name: &OsStr,
    kind: &NodeType,
    meta: &Metadata,
    note: impl FnMut(String),
) -> io::Result<()> {
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
    let set = set_attributes(meta, |name, value| xattr::set(&at, name, value), note);
    let times = (time_of(meta.atime), time_of(meta.mtime));
    utimensat(parent.as_fd(), name, &times.0, &times.1, UtimensatFlags::NoFollowSymlink)?;
    set
}

/// Sets all extended attributes that can be set. One that the file system does not support is
/// noted, because another attempt would not help; of all other errors the first is returned.
fn set_attributes(
    meta: &Metadata,
    set: impl Fn(&str, &[u8]) -> io::Result<()>,
    mut note: impl FnMut(String),
) -> io::Result<()> {
    let mut done = Ok(());
    for attribute in meta.extended_attributes.iter().filter(|attribute| is_kept(&attribute.name)) {
        match set(&attribute.name, attribute.value.as_deref().unwrap_or_default()) {
            Ok(()) => {}
            Err(error) if is_unsupported(&error) => {
                note(format!("the volume does not take the attribute {}", attribute.name));
            }
            Err(error) if done.is_ok() => {
                done = Err(io::Error::new(error.kind(), format!("attribute {}: {error}", attribute.name)));
            }
            Err(_) => {}
        }
    }
    done
}

/// Sets owner, mode, attributes and times in this order, because a new owner clears special bits
/// and capabilities, and each of these changes the times.
fn set_metadata(file: &File, meta: &Metadata, note: impl FnMut(String)) -> io::Result<()> {
    fchown(file, meta.uid.map(Uid::from_raw), meta.gid.map(Gid::from_raw))?;
    if let Some(mode) = meta.mode {
        file.set_permissions(Permissions::from_mode(permissions(mode)))?;
    }
    let set = set_attributes(meta, |name, value| file.set_xattr(name, value), note);
    futimens(file, &time_of(meta.atime), &time_of(meta.mtime))?;
    set
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn an_attribute_that_is_not_taken_keeps_no_other_away() {
        let attribute =
            |name: &str| serde_json::from_value(serde_json::json!({"name": name, "value": "YQ=="})).unwrap();
        let names = ["security.selinux", "user.no", "user.a", "user.denied", "user.b"];
        let meta = Metadata { extended_attributes: names.map(attribute).to_vec(), ..Metadata::default() };
        let (set, mut notes) = (RefCell::new(Vec::new()), Vec::new());
        let done = set_attributes(
            &meta,
            |name, value| match name {
                "user.no" => Err(Errno::EOPNOTSUPP.into()),
                "user.denied" => Err(Errno::EPERM.into()),
                _ => {
                    set.borrow_mut().push((name.to_owned(), value.to_vec()));
                    Ok(())
                }
            },
            |note| notes.push(note),
        );
        let wanted = ["user.a", "user.b"].map(|name| (name.to_owned(), b"a".to_vec()));
        assert_eq!(set.into_inner(), wanted);
        assert_eq!(notes, ["the volume does not take the attribute user.no"]);
        assert!(done.unwrap_err().to_string().contains("user.denied"));
    }
}
