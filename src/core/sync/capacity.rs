//! How many Backups, and how many bytes of them, the sync of a location brings into the cluster.

/// Backups that one location may have in the cluster with what sync brings. What a store has is
/// foreign data, and all of it together must not fill etcd.
pub const MOST_STANDING: usize = 20_000;
/// Bytes of JSON that the objects of one location may have together.
pub const MOST_BYTES: usize = 512 << 20;
/// Bytes of JSON that a round brings.
pub const ROUND_BYTES: usize = 64 << 20;

/// How many Backups there are, and how large they are together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub backups: usize,
    pub bytes: usize,
}

impl Size {
    #[must_use]
    pub fn with(self, bytes: usize) -> Self {
        Self { backups: self.backups.saturating_add(1), bytes: self.bytes.saturating_add(bytes) }
    }
}

/// Is there room for another Backup?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupCapacity {
    Enough,
    /// In a later round.
    Later,
    None,
}

/// Whether there is room for so many bytes more. `standing`: what the location has in the cluster;
/// `brought`: what this round has brought since. One of any size is brought in a round of its own.
pub fn room(standing: Size, brought: Size, bytes: usize) -> BackupCapacity {
    let all = standing.bytes.saturating_add(brought.bytes).saturating_add(bytes);
    if standing.backups.saturating_add(brought.backups) >= MOST_STANDING || all > MOST_BYTES {
        BackupCapacity::None
    } else if brought.backups > 0 && brought.bytes.saturating_add(bytes) > ROUND_BYTES {
        BackupCapacity::Later
    } else {
        BackupCapacity::Enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_and_a_location_bring_so_much_and_no_more() {
        const MIB: usize = 1 << 20;
        let size = |backups, bytes| Size { backups, bytes };
        for (standing, brought, bytes, expected) in [
            (size(0, 0), size(0, 0), MIB, BackupCapacity::Enough),
            (size(0, 0), size(63, 63 * MIB), MIB, BackupCapacity::Enough),
            (size(0, 0), size(64, 64 * MIB), 1, BackupCapacity::Later),
            (size(0, 0), size(0, 0), 100 * MIB, BackupCapacity::Enough),
            (size(9, MOST_BYTES - MIB), size(0, 0), MIB, BackupCapacity::Enough),
            (size(9, MOST_BYTES - MIB), size(1, 1), MIB, BackupCapacity::None),
            (size(MOST_STANDING - 1, 0), size(0, 0), 1, BackupCapacity::Enough),
            (size(MOST_STANDING - 1, 0), size(1, 1), 1, BackupCapacity::None),
            (size(usize::MAX, usize::MAX), size(usize::MAX, usize::MAX), usize::MAX, BackupCapacity::None),
        ] {
            assert_eq!(room(standing, brought, bytes), expected, "{standing:?} {brought:?} {bytes}");
        }
        // A bucket with a hundred thousand forged backups of half a MiB each, over a day of rounds.
        let (mut standing, mut rounds) = (Size::default(), 0);
        loop {
            let mut brought = Size::default();
            while room(standing, brought, MIB / 2) == BackupCapacity::Enough {
                brought = brought.with(MIB / 2);
            }
            assert!(brought.bytes <= ROUND_BYTES);
            if brought.backups == 0 {
                break;
            }
            standing = size(standing.backups + brought.backups, standing.bytes + brought.bytes);
            rounds += 1;
        }
        assert_eq!((standing.backups, rounds), (1024, 8));
    }
}
