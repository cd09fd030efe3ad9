//! Folders of Backups that were deleted while they ran and nobody led: their files and the data
//! that they name would stay for ever.

use jiff::{SignedDuration, Timestamp};

use super::is_name;
use crate::claim::FolderClaim;

/// The longest value of a label.
const LABEL: usize = 63;
/// How long nobody may have written into a folder of a Backup that is gone. It is so long because a
/// copy of this cluster that uses the place, too, writes nothing into the folder of a backup that
/// waits for its operations, and that Backup is only in the copy.
const ORPHANED_AFTER: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Whether a folder without `velero-backup.json` is what a Backup of this namespace has left, if
/// that Backup is gone. `written`: when a file in it was written last; `None`: nobody knows.
pub fn is_orphaned(
    claim: &FolderClaim,
    cluster: &str,
    namespace: &str,
    written: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    let is_ours = claim.cluster == cluster && claim.namespace == namespace;
    // Anybody may have written it, and it becomes a part of a name.
    let is_uid = claim.backup.len() <= LABEL && is_name(&claim.backup);
    is_ours && is_uid && written.is_some_and(|written| now.duration_since(written) >= ORPHANED_AFTER)
}

#[cfg(test)]
mod tests {
    use super::super::tests::at;
    use super::*;

    #[test]
    fn only_a_folder_of_this_namespace_into_which_nobody_has_written_for_a_week_is_orphaned() {
        let claim = |cluster: &str, namespace: &str, backup: &str| {
            let [cluster, namespace, backup] = [cluster, namespace, backup].map(str::to_owned);
            FolderClaim { cluster, namespace, backup, run: "r".to_owned(), before: None }
        };
        let (ours, week) = (claim("c", "velero", "u"), 7 * 24 * 60);
        for (claim, written, is_left) in [
            (ours.clone(), Some(at(0)), true),
            (ours.clone(), Some(at(1)), false),
            // By a clock that is ahead.
            (ours.clone(), Some(at(2 * week)), false),
            (ours, None, false),
            (claim("away", "velero", "u"), Some(at(0)), false),
            (claim("c", "elsewhere", "u"), Some(at(0)), false),
            (claim("c", "velero", ""), Some(at(0)), false),
            (claim("c", "velero", "../u"), Some(at(0)), false),
            (claim("c", "velero", &"u".repeat(64)), Some(at(0)), false),
        ] {
            assert_eq!(
                is_orphaned(&claim, "c", "velero", written, at(week)),
                is_left,
                "{claim:?} {written:?}"
            );
        }
    }
}
