//! Which file a DownloadRequest asks for, and what becomes of the request.

use jiff::{SignedDuration, Timestamp};

/// How long a link is valid, and how long a request waits for one.
pub const VALID: SignedDuration = SignedDuration::from_mins(10);
/// No request stays for longer, whatever expiration somebody has written into it.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// The value of the annotation `berth.dev/download` that asks for the index of an archive.
pub const INDEX: &str = "index";
/// The value that asks for the checkpoint of a backup that runs.
pub const CHECKPOINT: &str = "checkpoint";
/// The name of that file.
pub const CHECKPOINT_FILE: &str = "berth-checkpoint";

/// A file of a Backup or a Restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadFile {
    BackupLog,
    BackupContents,
    /// Where in the archive which objects are. No kind of DownloadRequest is of it.
    BackupIndex,
    /// What the run of a backup has done, its log included. No kind of DownloadRequest is of it.
    BackupCheckpoint,
    BackupVolumeSnapshots,
    BackupItemOperations,
    BackupResourceList,
    BackupResults,
    BackupVolumeInfos,
    CsiVolumeSnapshots,
    CsiVolumeSnapshotContents,
    RestoreLog,
    RestoreResults,
    RestoreResourceList,
    RestoreItemOperations,
    RestoreVolumeInfo,
}

impl DownloadFile {
    pub const ALL: [Self; 16] = [
        Self::BackupLog,
        Self::BackupContents,
        Self::BackupIndex,
        Self::BackupCheckpoint,
        Self::BackupVolumeSnapshots,
        Self::BackupItemOperations,
        Self::BackupResourceList,
        Self::BackupResults,
        Self::BackupVolumeInfos,
        Self::CsiVolumeSnapshots,
        Self::CsiVolumeSnapshotContents,
        Self::RestoreLog,
        Self::RestoreResults,
        Self::RestoreResourceList,
        Self::RestoreItemOperations,
        Self::RestoreVolumeInfo,
    ];

    /// Is it a file of a Restore, and not of a Backup?
    pub fn is_of_restore(self) -> bool {
        matches!(
            self,
            Self::RestoreLog
                | Self::RestoreResults
                | Self::RestoreResourceList
                | Self::RestoreItemOperations
                | Self::RestoreVolumeInfo
        )
    }

    /// The key below the prefix of the location. `name`: of the Backup or the Restore. `None`: such
    /// a name is no part of a key, and no object has it.
    pub fn key(self, name: &str) -> Option<String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.is_empty() || name.len() > 253 || !name.chars().all(is_plain) || name.starts_with('.') {
            return None;
        }
        let folder = if self.is_of_restore() { "restores" } else { "backups" };
        let prefix = match self {
            Self::RestoreLog
            | Self::RestoreResults
            | Self::RestoreResourceList
            | Self::RestoreItemOperations => "restore-",
            _ => "",
        };
        let suffix = match self {
            Self::BackupLog | Self::RestoreLog => "-logs.gz",
            Self::BackupContents => ".tar.gz",
            Self::BackupIndex => "-index.json.gz",
            Self::BackupCheckpoint => return Some(format!("{folder}/{name}/{CHECKPOINT_FILE}")),
            Self::BackupVolumeSnapshots => "-volumesnapshots.json.gz",
            Self::BackupItemOperations | Self::RestoreItemOperations => "-itemoperations.json.gz",
            Self::BackupResourceList | Self::RestoreResourceList => "-resource-list.json.gz",
            Self::BackupResults | Self::RestoreResults => "-results.gz",
            Self::BackupVolumeInfos | Self::RestoreVolumeInfo => "-volumeinfo.json.gz",
            Self::CsiVolumeSnapshots => "-csi-volumesnapshots.json.gz",
            Self::CsiVolumeSnapshotContents => "-csi-volumesnapshotcontents.json.gz",
        };
        Some(format!("{folder}/{name}/{prefix}{name}{suffix}"))
    }
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadRequestState {
    pub created: Timestamp,
    pub is_processed: bool,
    pub expiration: Option<Timestamp>,
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadStep {
    /// Make a link, and write it.
    Answer,
    /// It has its link.
    Leave {
        until: Timestamp,
    },
    Remove,
}

impl DownloadRequestState {
    /// When it is removed.
    pub fn ends(&self) -> Timestamp {
        let after = |age| self.created.checked_add(age).unwrap_or(self.created);
        self.expiration.unwrap_or_else(|| after(VALID)).min(after(LONGEST))
    }

    pub fn next(&self, now: Timestamp) -> DownloadStep {
        match self.ends() {
            end if end <= now => DownloadStep::Remove,
            until if self.is_processed => DownloadStep::Leave { until },
            _ => DownloadStep::Answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn files_lie_where_velero_puts_them() {
        for (file, key) in [
            (DownloadFile::BackupLog, "backups/b/b-logs.gz"),
            (DownloadFile::BackupContents, "backups/b/b.tar.gz"),
            (DownloadFile::BackupIndex, "backups/b/b-index.json.gz"),
            (DownloadFile::BackupCheckpoint, "backups/b/berth-checkpoint"),
            (DownloadFile::BackupVolumeSnapshots, "backups/b/b-volumesnapshots.json.gz"),
            (DownloadFile::BackupItemOperations, "backups/b/b-itemoperations.json.gz"),
            (DownloadFile::BackupResourceList, "backups/b/b-resource-list.json.gz"),
            (DownloadFile::BackupResults, "backups/b/b-results.gz"),
            (DownloadFile::BackupVolumeInfos, "backups/b/b-volumeinfo.json.gz"),
            (DownloadFile::CsiVolumeSnapshots, "backups/b/b-csi-volumesnapshots.json.gz"),
            (DownloadFile::CsiVolumeSnapshotContents, "backups/b/b-csi-volumesnapshotcontents.json.gz"),
            (DownloadFile::RestoreLog, "restores/b/restore-b-logs.gz"),
            (DownloadFile::RestoreResults, "restores/b/restore-b-results.gz"),
            (DownloadFile::RestoreResourceList, "restores/b/restore-b-resource-list.json.gz"),
            (DownloadFile::RestoreItemOperations, "restores/b/restore-b-itemoperations.json.gz"),
            (DownloadFile::RestoreVolumeInfo, "restores/b/b-volumeinfo.json.gz"),
        ] {
            assert_eq!(file.key("b").as_deref(), Some(key));
        }
    }

    #[test]
    fn a_request_is_answered_then_left_and_then_removed() {
        let fresh = DownloadRequestState { created: at(0), is_processed: false, expiration: None };
        assert_eq!(fresh.next(at(1)), DownloadStep::Answer);
        assert_eq!(fresh.next(at(600)), DownloadStep::Remove, "nothing could answer it");
        let expiration = Some(at(700));
        assert_eq!(DownloadRequestState { expiration, ..fresh }.next(at(650)), DownloadStep::Answer);
        let answered = DownloadRequestState { is_processed: true, expiration, ..fresh };
        assert_eq!(answered.next(at(650)), DownloadStep::Leave { until: at(700) });
        assert_eq!(answered.next(at(700)), DownloadStep::Remove);
        let of_somebody = DownloadRequestState { expiration: Some(Timestamp::MAX), ..answered };
        assert_eq!(of_somebody.next(at(3599)), DownloadStep::Leave { until: at(3600) });
        assert_eq!(of_somebody.next(at(3600)), DownloadStep::Remove);
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_its_folder(name in "\\PC{0,40}") {
            for file in DownloadFile::ALL {
                if let Some(key) = file.key(&name) {
                    let parts: Vec<&str> = key.split('/').collect();
                    prop_assert_eq!(parts.len(), 3);
                    prop_assert!(parts.iter().all(|part| !part.is_empty() && *part != "." && *part != ".."));
                    prop_assert_eq!(parts[1], name.as_str());
                }
            }
        }
    }
}
