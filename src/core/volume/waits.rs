//! How long a run waits for the data of volumes.

use std::time::Duration;

/// `spec.csiSnapshotTimeout` of a Backup that has none.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// No Backup waits for longer for the data of its volumes, whatever it says, unless
/// `--fs-backup-timeout` is longer, because it holds a slot of the queue meanwhile.
const LONGEST: Duration = Duration::from_secs(4 * 3600);

/// How long a run waits for the data of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeWaits {
    /// For one snapshot.
    pub snapshot: Duration,
    /// For all file-system backups together, as in Velero, from the begin of the run.
    pub files: Duration,
    /// The most that a Backup may ask for. After this time, from the begin of the run, no snapshot
    /// is waited for longer than by default.
    pub longest: Duration,
}

impl VolumeWaits {
    /// `snapshot`, `files`: what the Backup asks for. `flag`: `--fs-backup-timeout`.
    pub fn new(snapshot: Option<Duration>, files: Option<Duration>, flag: Duration) -> Self {
        let longest = flag.max(LONGEST);
        Self {
            snapshot: snapshot.unwrap_or(SNAPSHOT_TIMEOUT).min(longest),
            files: files.unwrap_or(flag).min(longest),
            longest,
        }
    }

    /// When the wait for a snapshot ends that is asked for at `asked`; both times count from the
    /// begin of the run. A backup may take longer than [`VolumeWaits::longest`] because it is
    /// large, so its last snapshots have the default time, too.
    pub fn snapshot_end(&self, asked: Duration) -> Duration {
        asked.saturating_add(self.snapshot).min(self.longest.max(asked.saturating_add(SNAPSHOT_TIMEOUT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backup_asks_for_holds_its_slot_no_longer_than_the_controller_says() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let usual = VolumeWaits::new(None, None, hours(4));
        assert_eq!(usual, VolumeWaits { snapshot: SNAPSHOT_TIMEOUT, files: hours(4), longest: LONGEST });
        let week = VolumeWaits::new(Some(hours(168)), Some(hours(168)), hours(1));
        assert_eq!(week, VolumeWaits { snapshot: LONGEST, files: LONGEST, longest: LONGEST });
        let day = VolumeWaits::new(Some(hours(12)), None, hours(24));
        assert_eq!(day, VolumeWaits { snapshot: hours(12), files: hours(24), longest: hours(24) });
        assert_eq!(day.snapshot_end(hours(1)), hours(13));
        assert_eq!(day.snapshot_end(hours(20)), hours(24));
        assert_eq!(day.snapshot_end(hours(30)), hours(30) + SNAPSHOT_TIMEOUT);
        assert_eq!(VolumeWaits::new(None, Some(hours(1)), hours(4)).files, hours(1));
    }
}
