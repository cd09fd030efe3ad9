//! The metadata of a file, in restic's terms.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Metadata as Kept, Node, NodeType};

/// Bits of Go's `fs.FileMode`, and the bits of a file's mode that they stand for.
const SPECIAL: [(u32, u32); 3] = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];
const FORMAT: u32 = 0o170_000;
/// The same for types of files. A character device has two bits.
const FORMATS: [(u32, u32); 6] = [
    (1 << 31, 0o040_000),
    (1 << 27, 0o120_000),
    (1 << 26, 0o060_000),
    (1 << 26 | 1 << 21, 0o020_000),
    (1 << 25, 0o010_000),
    (1 << 24, 0o140_000),
];

pub(crate) fn mode_of_go(mode: u32) -> u32 {
    let format = FORMATS.iter().find(|(_, format)| *format == mode & FORMAT).map_or(0, |(go, _)| *go);
    let special = SPECIAL.iter().filter(|(_, bit)| mode & bit != 0).map(|(go, _)| go).sum::<u32>();
    mode & 0o777 | format | special
}

/// The permission bits, without the type.
pub(crate) fn permissions(go: u32) -> u32 {
    let special = SPECIAL.iter().filter(|(bit, _)| go & bit != 0).map(|(_, bit)| bit).sum::<u32>();
    go & 0o777 | special
}

/// The metadata of a file without its extended attributes, which the caller adds.
fn kept(found: &Metadata) -> Kept {
    let time = |seconds: i64, nanos: i64| Timestamp::new(seconds, i32::try_from(nanos).ok()?).ok();
    let is_folder = found.is_dir();
    Kept {
        mode: Some(mode_of_go(found.mode())),
        mtime: time(found.mtime(), found.mtime_nsec()),
        // The real access time is not stored, because reading a file would change it, and so the
        // trees of all folders above.
        atime: time(found.mtime(), found.mtime_nsec()),
        ctime: time(found.ctime(), found.ctime_nsec()),
        uid: Some(found.uid()),
        gid: Some(found.gid()),
        inode: found.ino(),
        device_id: if found.nlink() > 1 && !is_folder { found.dev() } else { 0 },
        size: if is_folder { 0 } else { found.len() },
        links: if is_folder { 0 } else { found.nlink() },
        ..Kept::default()
    }
}

/// The node of a file. `link`: the target of a symbolic link.
pub(crate) fn node(name: &OsStr, found: &Metadata, link: Option<&Path>) -> Node {
    let kind = found.file_type();
    let kind = match link {
        Some(target) => NodeType::from_link(target),
        None if kind.is_dir() => NodeType::Dir,
        None if kind.is_fifo() => NodeType::Fifo,
        None if kind.is_socket() => NodeType::Socket,
        None if kind.is_block_device() => NodeType::Dev { device: found.rdev() },
        None if kind.is_char_device() => NodeType::Chardev { device: found.rdev() },
        None => NodeType::File,
    };
    Node::new_node(name, kind, kept(found))
}

/// Attributes that belong to the node, such as labels and signatures that are made where the file
/// is. They are not stored.
const OF_THE_NODE: [&str; 3] = ["security.selinux", "security.ima", "security.evm"];

/// Limit of the bytes of all attributes of one file. Most file systems allow a few thousand.
const LARGEST: usize = 16 << 20;

/// Is an attribute stored, and restored?
pub(crate) fn is_kept(attribute: &str) -> bool {
    !OF_THE_NODE.contains(&attribute)
}

pub(crate) fn is_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32)
}

/// The extended attributes of the file that the path leads to; the path must be that of an open
/// file. None where the file system has no attributes. `note`: is called for each one that cannot
/// be stored.
pub(crate) fn attributes(
    path: &Path,
    mut note: impl FnMut(String),
) -> io::Result<Vec<(String, Option<Vec<u8>>)>> {
    let names = match xattr::list_deref(path) {
        Ok(names) => names,
        Err(error) if is_unsupported(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut found, mut bytes) = (Vec::new(), 0_usize);
    for name in names {
        // restic could not store such a name, either.
        let Some(text) = name.to_str().map(str::to_owned) else {
            note(format!(
                "its attribute {} is not stored, because its name is no text",
                name.to_string_lossy()
            ));
            continue;
        };
        if !is_kept(&text) {
            continue;
        }
        match xattr::get_deref(path, &name) {
            // The attribute was removed meanwhile.
            Ok(None) => {}
            Ok(value) => {
                bytes = bytes.saturating_add(value.as_ref().map_or(0, Vec::len));
                if bytes > LARGEST {
                    return Err(io::Error::other("its extended attributes are too large"));
                }
                found.push((text, value));
            }
            Err(error) if is_unsupported(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

pub(crate) fn time_of(time: Option<Timestamp>) -> TimeSpec {
    let Some(time) = time else { return TimeSpec::UTIME_OMIT };
    // Before 1970 jiff's fraction of a second is negative; the kernel's never is.
    let (seconds, nanos) = (time.as_second(), i64::from(time.subsec_nanosecond()));
    if nanos < 0 { TimeSpec::new(seconds - 1, nanos + 1_000_000_000) } else { TimeSpec::new(seconds, nanos) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_as_go_has_them_and_come_back() {
        for (mode, go) in [
            (0o100_644, 0o644),
            (0o104_755, 0o755 | 1 << 23),
            (0o042_775, 0o775 | 1 << 31 | 1 << 22),
            (0o041_777, 0o777 | 1 << 31 | 1 << 20),
            (0o120_777, 0o777 | 1 << 27),
            (0o020_600, 0o600 | 1 << 26 | 1 << 21),
            (0o060_600, 0o600 | 1 << 26),
            (0o010_600, 0o600 | 1 << 25),
            (0o140_600, 0o600 | 1 << 24),
        ] {
            assert_eq!(mode_of_go(mode), go, "{mode:o}");
            assert_eq!(permissions(go), mode & 0o7777, "{mode:o}");
        }
    }
}
