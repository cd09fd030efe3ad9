//! Opens files below a folder and never anything else: no link leads out of it, even if somebody
//! changes the folder meanwhile. Each name is opened from the open folder that it is in.

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

/// Opens a folder by its path below another one. Mounts on the way are entered, and links are not.
///
/// # Errors
/// When one of the names is not a folder, or cannot be read.
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
/// When one of the names is not a folder, or cannot be read.
pub fn is_mounted(from: &Path, below: &Path) -> io::Result<bool> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no folder");
    let (parent, name) = below.parent().zip(below.file_name()).ok_or_else(none)?;
    let parent = match parent.as_os_str().is_empty() {
        true => Folder(Arc::new(OwnedFd::from(File::open(from)?))),
        false => descend(from, parent)?,
    };
    // This also detects the same file system mounted a second time, which device numbers do not
    // show.
    match parent.folder(name) {
        Ok(_) => Ok(false),
        Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Raises the limit of open files of this process to the highest one allowed. A folder stays open
/// while what is below it is read or restored, and a pod may nest a thousand folders: that is the
/// usual limit of a container, so all other volumes would fail meanwhile.
///
/// # Errors
/// When the system refuses the new limit.
pub fn open_many_files() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Limit of the names in one folder. They are in memory, because they are read in order.
const MOST_NAMES: usize = 4_000_000;

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const WITHIN: ResolveFlag =
    ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS).union(ResolveFlag::RESOLVE_NO_XDEV);

impl Folder {
    /// The path of an entry, for calls that take no open folder. The kernel resolves it from the
    /// open folder, so no link on the way can mislead it. The last name may be a link, so only
    /// calls that do not follow links may use this path.
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

    /// Opens a folder in this one, unless another file system is mounted on it.
    pub(crate) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(Arc::new(self.open(name, FOLDER, Mode::empty())?)))
    }

    /// Holds the file of that name without opening it: all later calls are about this same file,
    /// even if somebody gives the name to another one meanwhile.
    pub(crate) fn held(&self, name: &OsStr) -> io::Result<Held> {
        Ok(Held(File::from(self.open(name, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())?)))
    }

    /// Creates a file that must not exist yet.
    pub(crate) fn create(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        Ok(File::from(self.open(name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?))
    }

    /// As a file, for its metadata.
    pub(crate) fn as_file(&self) -> io::Result<File> {
        Ok(File::from(self.0.try_clone()?))
    }

    /// Has [`Folder::mark`] created that file?
    ///
    /// # Errors
    /// When that cannot be read.
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

    /// Flushes everything that was written to the folder's file system. Also fails if a write
    /// failed since the folder was opened.
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

    /// Creates an empty file, and the folder that it is in. Other files of that folder are removed
    /// first.
    ///
    /// # Errors
    /// When one of these calls fails.
    pub fn mark(&self, folder: &str, name: &str) -> io::Result<()> {
        let at = OsStr::new(folder);
        match self.folder(at) {
            Ok(old) => {
                for name in old.names()? {
                    match unlinkat(&old, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
                        // A folder of that name belongs to the volume, and is not a mark.
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

/// A file of any type that is held, and not open.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Held {
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.0.metadata()
    }

    /// A path that leads to this very file, for calls that follow links. If the file is a link, it
    /// leads to the link itself.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// The target of the link.
    pub fn link(&self) -> io::Result<PathBuf> {
        Ok(PathBuf::from(readlinkat(&self.0, "")?))
    }

    pub fn folder(&self) -> io::Result<Folder> {
        let how = OpenHow::new().flags(FOLDER).resolve(WITHIN);
        Ok(Folder(Arc::new(openat2(self.0.as_fd(), ".", how)?)))
    }

    /// Opens the file to read its bytes. Only for regular files, because opening a pipe or a device
    /// may block.
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

/// Removes the entry of that name, unless it is a folder.
pub(crate) fn clear(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Is this a single name, and not a path?
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
        // Other tests are not disturbed by one file fewer.
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
