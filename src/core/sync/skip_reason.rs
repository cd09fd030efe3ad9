//! Why a folder of a store gets no Backup.

use jiff::{SignedDuration, Timestamp};

/// Whoever has not written into a folder for so long does not finish the backup in it.
const ABANDONED: SignedDuration = SignedDuration::from_hours(24);

/// Why a folder of the store gets no Backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SyncSkipReason {
    /// The folder has no `velero-backup.json`: a backup that is being written, or something else.
    NoMetadata,
    /// The folder has no archive: another cluster is just writing it, or has died before it could.
    NoArchive,
    /// The folder has no archive, and nobody has written into it for a day.
    Abandoned,
    /// The backup has not ended.
    Unfinished,
    /// Somebody has asked for the deletion of the backup.
    BeingDeleted,
    /// A deletion has claimed the folder, so parts of the backup may be gone.
    HalfDeleted,
    /// No object can have this name.
    Name,
    /// The file is larger than any Backup.
    TooLarge,
    /// The file is no Backup in JSON.
    Unreadable,
    /// The file is the Backup of another folder.
    OtherName,
    /// The archive's layout is newer than this program.
    NewerFormat,
    /// The cluster has another Backup of this name.
    NameTaken,
    /// The API server refuses to create the Backup.
    Refused,
    /// The location has as much in the cluster as one may have.
    NoRoom,
}

impl SyncSkipReason {
    pub const ALL: [Self; 14] = [
        Self::NoMetadata,
        Self::NoArchive,
        Self::Abandoned,
        Self::Unfinished,
        Self::BeingDeleted,
        Self::HalfDeleted,
        Self::Name,
        Self::TooLarge,
        Self::Unreadable,
        Self::OtherName,
        Self::NewerFormat,
        Self::NameTaken,
        Self::Refused,
        Self::NoRoom,
    ];

    /// For a folder that has no archive. `written`: when a file in it was written last; `None`:
    /// nobody knows. A cluster that is alive writes the archive, or a claim.
    pub fn without_archive(written: Option<Timestamp>, now: Timestamp) -> Self {
        match written {
            Some(written) if now.duration_since(written) >= ABANDONED => Self::Abandoned,
            _ => Self::NoArchive,
        }
    }

    /// The value of the metric's label.
    pub fn word(self) -> &'static str {
        match self {
            Self::NoMetadata => "NoMetadata",
            Self::NoArchive => "NoArchive",
            Self::Abandoned => "Abandoned",
            Self::Unfinished => "Unfinished",
            Self::BeingDeleted => "BeingDeleted",
            Self::HalfDeleted => "HalfDeleted",
            Self::Name => "Name",
            Self::TooLarge => "TooLarge",
            Self::Unreadable => "Unreadable",
            Self::OtherName => "OtherName",
            Self::NewerFormat => "NewerFormat",
            Self::NameTaken => "NameTaken",
            Self::Refused => "Refused",
            Self::NoRoom => "NoRoom",
        }
    }

    /// What is wrong, and the way out.
    pub fn message(self) -> &'static str {
        match self {
            Self::NoMetadata => "the folder has no velero-backup.json: it is being written, or is no backup",
            Self::NoArchive => {
                "the folder has no archive: it is being written, or can never be restored: remove the folder if nobody writes it"
            }
            Self::Abandoned => {
                "the folder has no archive, and nobody has written into it for a day, so the backup can never be restored: remove the folder"
            }
            Self::Unfinished => "the backup has not ended",
            Self::BeingDeleted => "a DeleteBackupRequest asks for its deletion",
            Self::HalfDeleted => {
                "a deletion has begun to remove this backup, so parts of it may be gone: remove the folder or, to have what is left of it, remove berth-run.json from the folder"
            }
            Self::Name => {
                "no Backup can have the name of this folder: remove the folder, or move it elsewhere"
            }
            Self::TooLarge => {
                "velero-backup.json is larger than any Backup: remove the folder if it is no backup"
            }
            Self::Unreadable => "velero-backup.json is no Backup: remove the folder, or bring back the file",
            Self::OtherName => {
                "velero-backup.json is of a Backup of another name: the folder must have the name of its backup"
            }
            Self::NewerFormat => {
                "the backup was written by a later version: run a berth or a Velero that knows it"
            }
            Self::NameTaken => {
                "another Backup has this name here: sync the location into another namespace, or delete that Backup"
            }
            Self::Refused => "the API server refuses the Backup",
            Self::NoRoom => {
                "this location has as many Backups here, or as large ones, as sync brings of one (20000, 512 MiB): remove from the store what is no backup of yours, or sync a part of it by a location with a prefix"
            }
        }
    }

    /// Can a folder that is skipped for this reason bring a Backup whose name the cluster lacks?
    /// Not if the backup has not ended, if nobody stores its archive any more, if its name is
    /// taken, or if no Backup can have it.
    pub fn may_come(self) -> bool {
        !matches!(self, Self::NoMetadata | Self::Abandoned | Self::Unfinished | Self::NameTaken | Self::Name)
    }

    /// Is this a state that passes by itself, of which nobody needs to be told?
    pub fn passes(self) -> bool {
        matches!(self, Self::NoMetadata | Self::NoArchive | Self::Unfinished | Self::BeingDeleted)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;

    #[test]
    fn a_folder_without_an_archive_is_abandoned_when_nobody_has_written_into_it_for_a_day() {
        let day = 24 * 60;
        for (written, why) in [
            (Some(at(day)), SyncSkipReason::NoArchive),
            (Some(at(1)), SyncSkipReason::NoArchive),
            (Some(at(0)), SyncSkipReason::Abandoned),
            // By a clock that is ahead.
            (Some(at(2 * day)), SyncSkipReason::NoArchive),
            (None, SyncSkipReason::NoArchive),
        ] {
            assert_eq!(SyncSkipReason::without_archive(written, at(day)), why, "{written:?}");
        }
    }
}
