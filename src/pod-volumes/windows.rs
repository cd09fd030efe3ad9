//! Reads small pieces of packs, several in one request: the pieces of one folder mostly lie in a
//! pack one after the other, and a request for each file would take longer than reading their
//! bytes. It reads ahead only if a piece begins right after the last one, and further each time.
//! Pieces that are scattered, as after many changes, are read one by one, because reading ahead
//! would read a thousand times their bytes.

use std::ops::Range;

use bytes::Bytes;
use parking_lot::Mutex;
use rustic_core::Id;

/// Bytes of one read ahead: at first, and at most.
const FIRST: u64 = 64 << 10;
const MOST: u64 = 2 << 20;
/// Pieces up to this size are small.
const SMALL: u64 = 512 << 10;
/// Two pieces with up to so many bytes between them count as lying one after the other, because the
/// piece between them may have been read before.
const GAP: u64 = 16 << 10;
/// How many reads are kept, because several threads read, and pieces of folders and of files are in
/// different packs.
const KEPT: usize = 8;

/// The latest reads; the one that was used last is at the end.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Vec<Window>>);

#[derive(Debug)]
struct Window {
    pack: Id,
    start: u64,
    bytes: Bytes,
}

impl Windows {
    /// These bytes of a pack, fewer if the pack ends before. `read` reads a range of the pack in
    /// the same way.
    ///
    /// A caller that wants a small piece waits for a read ahead that is in progress, because that
    /// read may bring the piece.
    pub fn piece<E>(
        &self,
        pack: &Id,
        range: Range<u64>,
        read: impl FnOnce(Range<u64>) -> Result<Bytes, E>,
    ) -> Result<Bytes, E> {
        let length = range.end.saturating_sub(range.start);
        if length > SMALL {
            return read(range);
        }
        let mut windows = self.0.lock();
        let has = |window: &Window| window.pack == *pack && window.piece(&range).is_some();
        if let Some(at) = windows.iter().position(has) {
            let window = windows.remove(at);
            let piece = window.piece(&range);
            windows.push(window);
            if let Some(piece) = piece {
                return Ok(piece);
            }
        }
        let before =
            windows.iter().rev().find(|window| window.pack == *pack && window.is_before(range.start));
        let window = match before.map(Window::length) {
            Some(before) => {
                let ahead = before.saturating_mul(2).clamp(FIRST, MOST).max(length);
                let bytes = read(range.start..range.start.saturating_add(ahead))?;
                Window { pack: *pack, start: range.start, bytes }
            }
            None => {
                drop(windows);
                let bytes = read(range.clone())?;
                windows = self.0.lock();
                Window { pack: *pack, start: range.start, bytes }
            }
        };
        let piece = window.piece(&range).unwrap_or_else(|| window.bytes.clone());
        if windows.len() >= KEPT {
            windows.remove(0);
        }
        windows.push(window);
        Ok(piece)
    }
}

impl Window {
    fn length(&self) -> u64 {
        u64::try_from(self.bytes.len()).unwrap_or(u64::MAX)
    }

    /// Does `start` lie right after this read?
    fn is_before(&self, start: u64) -> bool {
        let end = self.start.saturating_add(self.length());
        self.start <= start && start <= end.saturating_add(GAP)
    }

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

    const LENGTH: usize = 8 << 20;

    /// Reads pieces, and returns the number of reads and of bytes that they took.
    fn read(pieces: impl IntoIterator<Item = (u8, Range<usize>)>) -> (usize, usize) {
        let pack: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
        let (windows, reads, bytes) = (Windows::default(), Cell::new(0), Cell::new(0));
        for (id, range) in pieces {
            let id: Id = format!("{id:02x}").repeat(32).parse().unwrap();
            let read = |asked: Range<u64>| {
                let end = LENGTH.min(asked.end as usize);
                let got = Bytes::copy_from_slice(&pack[asked.start as usize..end]);
                reads.set(reads.get() + 1);
                bytes.set(bytes.get() + got.len());
                Ok::<_, Infallible>(got)
            };
            let got = windows.piece(&id, range.start as u64..range.end as u64, read).unwrap();
            assert_eq!(got, pack[range.start..range.end.min(LENGTH)], "{range:?}");
        }
        (reads.get(), bytes.get())
    }

    #[test]
    fn pieces_one_behind_the_other_take_few_reads_and_are_read_once() {
        const PIECE: usize = 3_000;
        let pieces = (0..LENGTH / PIECE).map(|at| (1, at * PIECE..(at + 1) * PIECE));
        let (reads, bytes) = read(pieces.clone());
        assert!(reads <= 12, "{reads}");
        assert!(bytes <= LENGTH + reads * PIECE, "{bytes}");
        // The pieces of folders lie in another pack.
        let (reads, _) = read(pieces.flat_map(|(_, range)| [(1, range.clone()), (2, range)]));
        assert!(reads <= 24, "{reads}");
    }

    #[test]
    fn pieces_that_lie_anywhere_bring_little_else() {
        const PIECE: usize = 4_096;
        // Each is far from those before.
        let pieces =
            (0..1_000).map(|at| (1, at * 7_919 % 2_000 * PIECE)).map(|(id, at)| (id, at..at + PIECE));
        let (_, bytes) = read(pieces);
        assert!(bytes <= 2 * 1_000 * PIECE, "{bytes}");
    }

    #[test]
    fn large_pieces_are_read_alone_and_a_pack_ends_where_it_ends() {
        assert_eq!(read([(1, 0..1 << 20), (1, 1 << 20..2 << 20)]), (2, 2 << 20));
        assert_eq!(read([(1, LENGTH - 5..LENGTH + 9)]), (1, 5));
        assert_eq!(read([(1, LENGTH - 20..LENGTH - 10), (1, LENGTH - 10..LENGTH + 9)]), (2, 20));
        // Read ahead, and then again as far as it is there.
        assert_eq!(read([(1, 0..10), (1, 10..20), (1, 20..30), (1, 5..15)]).0, 3);
        assert_eq!(read([(1, 0..10), (2, 0..10), (1, 5..10)]).0, 2);
    }
}
