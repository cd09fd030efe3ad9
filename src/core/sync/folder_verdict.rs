//! Whether a stored backup gets a Backup, by what its own file says of it.

use jiff::Timestamp;

use super::skip_reason::SyncSkipReason;

/// The major version of the archive's layout that this berth and Velero 1.18 know.
const MAJOR: u64 = 1;

/// What a stored file says of its backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBackupFile<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    pub phase: &'a str,
    pub format_version: &'a str,
    pub expiration: Option<Timestamp>,
}

/// How a stored backup becomes a Backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    AsIs,
    /// Its server is gone, and nobody waits for its operations any more: it has expired.
    AsPartiallyFailed,
}

/// Whether the backup in the folder of this name gets a Backup.
///
/// # Errors
/// Why not.
pub fn judge(folder: &str, stored: &StoredBackupFile<'_>, now: Timestamp) -> Result<Take, SyncSkipReason> {
    if stored.kind != "Backup" || !stored.api_version.starts_with("velero.io/") {
        return Err(SyncSkipReason::Unreadable);
    }
    if stored.name != folder {
        return Err(SyncSkipReason::OtherName);
    }
    // Backups of a time without that field have the oldest layout.
    let major = stored.format_version.split('.').next().unwrap_or_default();
    if !stored.format_version.is_empty() && !major.parse::<u64>().is_ok_and(|major| major <= MAJOR) {
        return Err(SyncSkipReason::NewerFormat);
    }
    match stored.phase {
        "Completed" | "PartiallyFailed" | "Failed" => Ok(Take::AsIs),
        "WaitingForPluginOperations"
        | "WaitingForPluginOperationsPartiallyFailed"
        | "Finalizing"
        | "FinalizingPartiallyFailed"
            if stored.expiration.is_some_and(|expiration| expiration < now) =>
        {
            Ok(Take::AsPartiallyFailed)
        }
        _ => Err(SyncSkipReason::Unfinished),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;

    #[test]
    fn only_what_has_ended_and_can_be_read_gets_a_backup() {
        let good = StoredBackupFile {
            api_version: "velero.io/v1",
            kind: "Backup",
            name: "b",
            phase: "Completed",
            format_version: "1.1.0",
            expiration: None,
        };
        let expired = |phase| StoredBackupFile { phase, expiration: Some(at(-1)), ..good };
        for (stored, verdict) in [
            (good, Ok(Take::AsIs)),
            (StoredBackupFile { phase: "PartiallyFailed", ..good }, Ok(Take::AsIs)),
            (StoredBackupFile { phase: "Failed", ..good }, Ok(Take::AsIs)),
            (StoredBackupFile { format_version: "", ..good }, Ok(Take::AsIs)),
            (StoredBackupFile { format_version: "1.9", ..good }, Ok(Take::AsIs)),
            (StoredBackupFile { format_version: "2.0.0", ..good }, Err(SyncSkipReason::NewerFormat)),
            (StoredBackupFile { format_version: "v1", ..good }, Err(SyncSkipReason::NewerFormat)),
            (StoredBackupFile { name: "c", ..good }, Err(SyncSkipReason::OtherName)),
            (StoredBackupFile { kind: "Restore", ..good }, Err(SyncSkipReason::Unreadable)),
            (StoredBackupFile { api_version: "v1", ..good }, Err(SyncSkipReason::Unreadable)),
            (StoredBackupFile { phase: "", ..good }, Err(SyncSkipReason::Unfinished)),
            (StoredBackupFile { phase: "Queued", ..good }, Err(SyncSkipReason::Unfinished)),
            (StoredBackupFile { phase: "Deleting", ..good }, Err(SyncSkipReason::Unfinished)),
            (StoredBackupFile { phase: "Finalizing", ..good }, Err(SyncSkipReason::Unfinished)),
            (
                StoredBackupFile { expiration: Some(at(1)), ..expired("Finalizing") },
                Err(SyncSkipReason::Unfinished),
            ),
            (expired("Finalizing"), Ok(Take::AsPartiallyFailed)),
            (expired("WaitingForPluginOperations"), Ok(Take::AsPartiallyFailed)),
            (expired("InProgress"), Err(SyncSkipReason::Unfinished)),
        ] {
            assert_eq!(judge("b", &stored, at(0)), verdict, "{stored:?}");
        }
    }
}
