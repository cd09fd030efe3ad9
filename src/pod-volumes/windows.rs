//! Small pieces of packs, of which one read of the store brings many: what a folder holds lies in a
//! pack one after the other, and a request for each of its files takes longer than their bytes.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;
use rustic_core::Id;

/// Bytes of one read.
const WINDOW: u64 = 2 << 20;
/// Bytes up to which a piece is small.
const SMALL: u64 = 512 << 10;
/// How many reads are kept: pieces of folders and of files are in packs of their own.
const KEPT: usize = 4;

/// The last reads; the one that was used last is last.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Vec<Window>>);

#[derive(Debug)]
struct Window {
    pack: Id,
    start: u64,
    bytes: Bytes,
}

impl Windows {
    /// These bytes of a pack, fewer where it ends before. `read` reads a range of it in the same way.
    ///
    /// Who wants a small piece waits for the read of another one, because that may bring it.
    pub fn piece<E>(
        &self,
        pack: &Id,
        range: Range<u64>,
        read: impl FnOnce(Range<u64>) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        if range.end.saturating_sub(range.start) > SMALL {
            return read(range);
        }
        let mut windows = self.0.lock();
        let has = |window: &Window| window.pack == *pack && window.piece(&range).is_some();
        let window = match windows.iter().position(has) {
            Some(at) => windows.remove(at),
            None => {
                let bytes = read(range.start..range.start.saturating_add(WINDOW))?;
                Window { pack: *pack, start: range.start, bytes }
            }
        };
        let piece = window.piece(&range).unwrap_or_else(|| window.bytes.clone());
        if windows.len() == KEPT {
            windows.remove(0);
        }
        windows.push(window);
        Ok(piece)
    }
}

impl Window {
    fn piece(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = usize::try_from(range.start.checked_sub(self.start)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.start)?).ok()?;
        (start <= end && end <= self.bytes.len()).then(|| self.bytes.slice(start..end))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_read_brings_what_lies_behind_a_small_piece() {
        let pack: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
        let (windows, reads) = (Windows::default(), Cell::new(0));
        let piece = |id: u8, range: Range<usize>| {
            let id: Id = format!("{id:02x}").repeat(32).parse().unwrap();
            let read = |asked: Range<u64>| {
                reads.set(reads.get() + 1);
                let end = pack.len().min(asked.end as usize);
                Ok::<_, Infallible>(Bytes::copy_from_slice(&pack[asked.start as usize..end]))
            };
            let got = windows.piece(&id, range.start as u64..range.end as u64, read).unwrap();
            assert_eq!(got, pack[range.start..range.end.min(pack.len())]);
            reads.get()
        };
        assert_eq!(piece(1, 10..20), 1);
        assert_eq!(piece(1, 20..4_000), 1, "it came with the first");
        assert_eq!(piece(1, 10..10 + (2 << 20)), 2, "a large one is read alone");
        assert_eq!(piece(1, 0..5), 3, "it lies before");
        assert_eq!(piece(1, (2 << 20) - 5..(2 << 20) + 15), 4, "it is cut by the end of the windows");
        assert_eq!(piece(1, (3 << 20) - 5..3 << 20), 4);
        assert_eq!(piece(1, (3 << 20) - 5..(3 << 20) + 9), 5, "the pack ends before");
        assert_eq!(piece(2, 10..20), 6, "of another pack");
        assert_eq!(piece(3, 10..20), 7);
        assert_eq!(piece(1, (2 << 20)..(2 << 20) + 15), 7, "it is one of the last four");
        assert_eq!(piece(1, 10..20), 8, "it is not any more");
    }
}
