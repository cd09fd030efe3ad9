//! Opens what is in a folder, and never anything else: no link leads out of it, whoever changes the folder meanwhile.
//! Each name is opened by itself, from the open folder that it is in.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

/// An open folder.
#[derive(Clone, Debug)]
pub struct Folder(Arc<OwnedFd>);

/// Opens a folder by its path below another one. Mounts on the way are entered, links are not.
///
/// # Errors
/// When one of the names is no folder, or cannot be read.
pub fn descend(from: &Path, below: &Path) -> io::Result<Folder> {
    let from = File::open(from)?;
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || below.as_os_str().is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path does not stay below its folder"));
    }
    let how = OpenHow::new()
        .flags(FOLDER)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(Folder(Arc::new(openat2(from.as_fd(), below, how)?)))
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const WITHIN: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

impl Folder {
    /// The path of something in it, for calls that take no open folder. Links on the way there are none, because the
    /// kernel keeps the folder; the last name is whatever it is, so only calls that follow no link may have it.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    fn open(&self, name: &OsStr, flags: OFlag, mode: Mode) -> io::Result<OwnedFd> {
        if !is_name(name) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not the name of a file"));
        }
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(WITHIN);
        Ok(openat2(self.0.as_fd(), name, how)?)
    }

    /// A folder in it that no other file system is mounted on.
    pub(crate) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(Arc::new(self.open(name, FOLDER, Mode::empty())?)))
    }

    /// A file, without waiting for whoever may be at the other end of it.
    pub(crate) fn file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
        Ok(File::from(self.open(name, flags, Mode::empty())?))
    }

    /// A file that was not there.
    pub(crate) fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        Ok(File::from(self.open(name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    /// As a file, for its metadata.
    pub(crate) fn as_file(&self) -> io::Result<File> {
        Ok(File::from(self.0.try_clone()?))
    }

    /// The names in it, in order.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(self.path())?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Makes an empty file, with the folders above it. What is there under the first of these names goes before.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn mark(&self, folder: &str, name: &str) -> io::Result<()> {
        let at = OsStr::new(folder);
        match self.folder(at) {
            Ok(old) => {
                for name in old.names()? {
                    nix::unistd::unlinkat(&old, name.as_os_str(), nix::unistd::UnlinkatFlags::NoRemoveDir)?;
                }
            }
            Err(_) => {
                crate::restore::clear(self, at)?;
                nix::sys::stat::mkdirat(self, at, Mode::from_bits_truncate(0o755))?;
            }
        }
        let file = self.folder(at)?.create(OsStr::new(name))?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.sync_all()
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Is it one name?
pub(crate) fn is_name(name: &OsStr) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out_of_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let (inside, outside) = (root.path().join("pods/p"), root.path().join("secret"));
        std::fs::create_dir_all(inside.join("real")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("file"), "secret").unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink("../../secret", inside.join("up")).unwrap();
        symlink(outside.join("file"), inside.join("file")).unwrap();
        let pods = root.path().join("pods");
        for path in ["p/link", "p/up", "p/../../secret", "..", "/etc", "p/link/x", "", "p/real/../link"] {
            assert!(descend(&pods, Path::new(path)).is_err(), "{path}");
        }
        let folder = descend(&pods, Path::new("p")).unwrap();
        assert!(folder.folder(OsStr::new("real")).is_ok());
        for name in ["link", "up", "..", ".", "real/.."] {
            assert!(folder.folder(OsStr::new(name)).is_err(), "{name}");
        }
        assert!(folder.file(OsStr::new("file")).is_err());
        assert_eq!(folder.names().unwrap(), ["file", "link", "real", "up"]);
    }

    #[test]
    fn a_mark_replaces_the_older_ones() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("v")).unwrap();
        let folder = descend(root.path(), Path::new("v")).unwrap();
        folder.mark(".velero", "a").unwrap();
        folder.mark(".velero", "b").unwrap();
        let names = folder.folder(OsStr::new(".velero")).unwrap().names().unwrap();
        assert_eq!(names, ["b"]);
    }
}
