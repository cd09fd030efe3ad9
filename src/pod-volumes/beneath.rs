//! Opens what is in a folder, and never anything else: no link leads out of it, whoever changes the
//! folder meanwhile. Each name is opened by itself, from the open folder that it is in.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2, readlinkat};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};

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
    let how =
        OpenHow::new().flags(FOLDER).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    Ok(Folder(Arc::new(openat2(from.as_fd(), below, how)?)))
}

/// Is something mounted on a folder below another one?
///
/// # Errors
/// When one of the names is no folder, or cannot be read.
pub fn is_mounted(from: &Path, below: &Path) -> io::Result<bool> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no folder");
    let (parent, name) = below.parent().zip(below.file_name()).ok_or_else(none)?;
    let parent = match parent.as_os_str().is_empty() {
        true => Folder(Arc::new(OwnedFd::from(File::open(from)?))),
        false => descend(from, parent)?,
    };
    // Also where the same file system is mounted once more, which no other number would tell.
    match parent.folder(name) {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Has this process open as many files as it ever may. A folder is held open while what is below it
/// is read or restored, and a pod may make a thousand, one in another: as many files as a container
/// begins with, so that all other volumes would fail beside it.
///
/// # Errors
/// When the system refuses it.
pub fn open_many_files() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Names in one folder. They are in memory, because they are read in order.
const MOST_NAMES: usize = 4_000_000;

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const WITHIN: ResolveFlag =
    ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS).union(ResolveFlag::RESOLVE_NO_XDEV);

impl Folder {
    /// The path of something in it, for calls that take no open folder. Links on the way there are
    /// none, because the kernel keeps the folder; the last name is whatever it is, so only calls
    /// that follow no link may have it.
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

    /// Whatever has that name, without opening it: all that is asked of it later is asked of the
    /// same file, whoever gives its name to another one meanwhile.
    pub(crate) fn held(&self, name: &OsStr) -> io::Result<Held> {
        Ok(Held(File::from(self.open(name, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())?)))
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

    /// Has [`Folder::mark`] made that file?
    ///
    /// # Errors
    /// When that cannot be told.
    pub fn is_marked(&self, folder: &str, name: &str) -> io::Result<bool> {
        let found = self.folder(OsStr::new(folder)).and_then(|folder| folder.held(OsStr::new(name)));
        match found {
            Ok(held) => Ok(held.metadata()?.is_file()),
            Err(error) => {
                const NONE: [Errno; 4] = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::EXDEV];
                let is_none = error.raw_os_error().is_some_and(|code| NONE.contains(&Errno::from_raw(code)));
                if is_none { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Everything that was written to its file system is on the disk. Errors of writes since the
    /// folder was opened count.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(nix::unistd::syncfs(self)?)
    }

    /// The names in it, in order.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(self.path())?;
        let names = entries.map(|entry| Ok(entry?.file_name())).take(MOST_NAMES + 1);
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        if names.len() > MOST_NAMES {
            return Err(io::Error::other("it has too many names"));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes an empty file, with the folder above it. Other files of that folder go before.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn mark(&self, folder: &str, name: &str) -> io::Result<()> {
        let at = OsStr::new(folder);
        match self.folder(at) {
            Ok(old) => {
                for name in old.names()? {
                    match unlinkat(&old, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                        // A folder is no mark, but something of the volume.
                        Ok(()) | Err(Errno::EISDIR | Errno::ENOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Err(_) => {
                clear(self, at)?;
                nix::sys::stat::mkdirat(self, at, Mode::from_bits_truncate(0o755))?;
            }
        }
        let file = self.folder(at)?.create(OsStr::new(name))?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.sync_all()
    }
}

/// A file of any kind that is held, and not open.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Held {
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to this very file, for calls that follow links: to a link itself, if it is
    /// one.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Where the link leads.
    pub fn link(&self) -> io::Result<PathBuf> {
        Ok(PathBuf::from(readlinkat(&self.0, "")?))
    }

    pub fn folder(&self) -> io::Result<Folder> {
        let how = OpenHow::new().flags(FOLDER).resolve(WITHIN);
        Ok(Folder(Arc::new(openat2(self.0.as_fd(), ".", how)?)))
    }

    /// Its bytes. Only for files that have some: others may wait for whoever is at their other end.
    pub fn open(&self) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt as _;
        File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(self.path())
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Removes what is there under a name, unless it is a folder.
pub(crate) fn clear(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
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
        let held = folder.held(OsStr::new("file")).unwrap();
        assert!(held.metadata().unwrap().is_symlink() && held.folder().is_err());
        assert_eq!(held.link().unwrap(), outside.join("file"));
        assert!(folder.held(OsStr::new("link/file")).is_err());
        assert_eq!(folder.names().unwrap(), ["file", "link", "real", "up"]);
    }

    #[test]
    fn a_folder_is_told_from_what_is_mounted_on_it() {
        assert!(is_mounted(Path::new("/"), Path::new("proc")).unwrap());
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("v/mount")).unwrap();
        symlink("/proc", root.path().join("v/link")).unwrap();
        for path in ["v", "v/mount"] {
            assert!(!is_mounted(root.path(), Path::new(path)).unwrap(), "{path}");
        }
        for path in ["", "..", "v/link", "v/none", "v/.."] {
            assert!(is_mounted(root.path(), Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn as_many_files_may_be_open_as_the_system_allows() {
        let (few, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // One fewer does no other test any harm.
        setrlimit(Resource::RLIMIT_NOFILE, few.min(most - 1), most).unwrap();
        open_many_files().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (most, most));
    }

    #[test]
    fn what_is_held_stays_itself() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        std::fs::create_dir_all(volume.join("sub")).unwrap();
        std::fs::write(volume.join("file"), "old").unwrap();
        std::fs::write(volume.join("new"), "newer").unwrap();
        let folder = descend(root.path(), Path::new("v")).unwrap();
        let held = folder.held(OsStr::new("file")).unwrap();
        std::fs::rename(volume.join("new"), volume.join("file")).unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut held.open().unwrap(), &mut text).unwrap();
        assert_eq!((text.as_str(), held.metadata().unwrap().len()), ("old", 3));
        let sub = folder.held(OsStr::new("sub")).unwrap();
        std::fs::rename(volume.join("sub"), volume.join("other")).unwrap();
        std::fs::write(volume.join("other/x"), "").unwrap();
        assert_eq!(sub.folder().unwrap().names().unwrap(), ["x"]);
    }

    #[test]
    fn a_mark_replaces_the_older_ones() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("v")).unwrap();
        let folder = descend(root.path(), Path::new("v")).unwrap();
        folder.mark(".velero", "a").unwrap();
        std::fs::create_dir(root.path().join("v/.velero/some")).unwrap();
        folder.mark(".velero", "b").unwrap();
        let names = folder.folder(OsStr::new(".velero")).unwrap().names().unwrap();
        assert_eq!(names, ["b", "some"]);
        assert!(folder.is_marked(".velero", "b").unwrap() && !folder.is_marked(".velero", "a").unwrap());
        assert!(!folder.is_marked(".other", "b").unwrap());
        symlink(root.path().join("v/.velero"), root.path().join("v/link")).unwrap();
        symlink("b", root.path().join("v/.velero/c")).unwrap();
        assert!(!folder.is_marked("link", "b").unwrap() && !folder.is_marked(".velero", "c").unwrap());
        folder.sync().unwrap();
    }
}
