//! A block device as one file of a snapshot, `/volume/device`: read and written from its first byte
//! to its last, a chunk of the repository at a time. `restic dump` writes that file to any device.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustic_core::jiff::Timestamp;
use rustic_core::repofile::{Metadata, Node, NodeType};
use rustic_core::{OpenStatus, ReadSource, ReadSourceEntry, Repository, RusticResult};

use crate::blob::{IndexedRepository, blob};
use crate::fault::Fault;
use crate::metadata::mode_of_go;
use crate::restore::{Restored, found};
use crate::source::{DEVICE_TAG, TOP};
use crate::watched::Watched;

/// The device's name in a snapshot.
const NAME: &str = "device";

/// An open block device.
#[derive(Clone, Debug)]
pub struct Device {
    file: Arc<File>,
    size: u64,
}

impl Device {
    /// # Errors
    /// When it is not a block device, has no bytes, or cannot be opened.
    pub fn open(path: &Path, writes: bool) -> io::Result<Self> {
        let file = File::options().read(true).write(writes).open(path)?;
        if !file.metadata()?.file_type().is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no block device"));
        }
        Self::of(file)
    }

    /// Tests use a regular file.
    pub(crate) fn of(mut file: File) -> io::Result<Self> {
        // The metadata of a device does not contain its size.
        let size = file.seek(SeekFrom::End(0))?;
        // A device that has lost its storage also shows size 0, and its backup would be empty.
        if size == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has no bytes"));
        }
        Ok(Self { file: Arc::new(file), size })
    }
}

fn path() -> PathBuf {
    Path::new("/").join(TOP).join(NAME)
}

/// A device, as rustic_core reads it.
pub(crate) struct DeviceSource {
    pub device: Device,
    pub watched: Watched,
}

type DeviceEntry = ReadSourceEntry<DeviceReader>;

impl ReadSource for DeviceSource {
    type Open = DeviceReader;
    type Iter =
        std::iter::Map<std::array::IntoIter<DeviceEntry, 2>, fn(DeviceEntry) -> RusticResult<DeviceEntry>>;

    fn size(&self) -> RusticResult<Option<u64>> {
        Ok(Some(self.device.size))
    }

    fn entries(&self) -> Self::Iter {
        self.watched.begin_file();
        let folder = Node::new_node(OsStr::new(TOP), NodeType::Dir, metadata(0o040_700, 0));
        let file = Node::new_node(OsStr::new(NAME), NodeType::File, metadata(0o100_600, self.device.size));
        let reader = DeviceReader { device: self.device.clone(), at: 0, watched: self.watched.clone() };
        let entries = [
            ReadSourceEntry { path: Path::new("/").join(TOP), node: folder, open: None },
            ReadSourceEntry { path: path(), node: file, open: Some(reader) },
        ];
        entries.into_iter().map(Ok as fn(DeviceEntry) -> RusticResult<DeviceEntry>)
    }
}

/// The metadata of a file of this size that was created now.
fn metadata(mode: u32, size: u64) -> Metadata {
    let now = Some(Timestamp::now());
    Metadata {
        mode: Some(mode_of_go(mode)),
        mtime: now,
        atime: now,
        ctime: now,
        uid: Some(0),
        gid: Some(0),
        size,
        ..Metadata::default()
    }
}

pub(crate) struct DeviceReader {
    device: Device,
    at: u64,
    watched: Watched,
}

impl Read for DeviceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.watched.is_canceled() {
            return Err(io::Error::other("canceled"));
        }
        let left = self.device.size.saturating_sub(self.at);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = match self.device.file.read_at(buffer.get_mut(..most).unwrap_or_default(), self.at) {
            Ok(0) if most > 0 => Err(io::Error::other("it ends before its size")),
            read => read,
        };
        match &read {
            Ok(bytes) => self.at = self.at.saturating_add(u64::try_from(*bytes).unwrap_or(u64::MAX)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.watched.fail(&path(), error),
        }
        read
    }
}

/// Overwrites the device with all bytes of a snapshot, zeros included, because the device may
/// contain other data.
pub(crate) fn restore(
    repository: Repository<OpenStatus>,
    snapshot: &str,
    device: &Device,
    watched: &Watched,
) -> Result<Restored, Fault> {
    let (id, snapshot) = found(&repository, snapshot)?;
    if !snapshot.tags.contains(DEVICE_TAG) {
        return Err(Fault::Repository(format!("snapshot {id} has files, and the volume is a device")));
    }
    let repository = repository.to_indexed()?;
    let node = repository.node_from_snapshot_and_path(&snapshot, &format!("{TOP}/{NAME}"))?;
    let size = node.meta.size;
    watched.set_total(size);
    if size > device.size {
        let room = device.size;
        return Err(Fault::Repository(format!(
            "the device of snapshot {id} has {size} bytes, and this one has only {room}"
        )));
    }
    watched.begin_file();
    match write(&repository, &node, device, watched) {
        Ok(written) if written == size => {}
        Ok(written) => {
            return Err(Fault::Repository(format!(
                "the device of snapshot {id} has {size} bytes, of which {written} are stored"
            )));
        }
        Err(_) if watched.is_canceled() => return Err(Fault::Canceled),
        Err(why) => {
            watched.fail(&path(), &why);
            return Err(Fault::Unfinished(watched.failed().unwrap_or_default()));
        }
    }
    device.file.sync_all().map_err(Fault::Unsynced)?;
    Ok(Restored { files: 1, bytes: size })
}

fn write(
    repository: &IndexedRepository,
    node: &Node,
    device: &Device,
    watched: &Watched,
) -> Result<u64, String> {
    let mut at: u64 = 0;
    for id in node.content.iter().flatten() {
        if watched.is_canceled() {
            return Err("canceled".to_owned());
        }
        let data = blob(repository, id)?;
        let bytes = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let end = at.saturating_add(bytes);
        if end > node.meta.size {
            return Err("the repository has more bytes of it than its size".to_owned());
        }
        device.file.write_all_at(&data, at).map_err(|error| error.to_string())?;
        at = end;
        watched.add(bytes);
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
