//! Ownership of a backup's folder in the object store. Names are no proof of it, because two
//! clusters may share a prefix, and a Backup may be deleted and created again. A claim file in the
//! folder names the run that writes there, and a run neither overwrites nor removes the files of
//! another one.

/// Names the run that writes into the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderClaim {
    /// UID of the cluster.
    pub cluster: String,
    /// Namespace of the Backup. The Backup's name is that of the folder.
    pub namespace: String,
    /// UID of the Backup.
    pub backup: String,
    pub run: String,
    /// The run from whose checkpoint this one continues. Until this run has written a checkpoint of
    /// its own it has stored nothing, so the earlier checkpoint is complete.
    pub before: Option<String>,
}

impl FolderClaim {
    /// Is this the claim of any run of the same Backup?
    pub fn is_of_backup_of(&self, other: &Self) -> bool {
        self.cluster == other.cluster && self.backup == other.backup
    }
}

/// The contents of the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FolderContents {
    /// The folder has `velero-backup.json`, the file that makes a backup visible.
    pub published: bool,
    pub claim: Option<FolderClaim>,
    /// The folder has files besides the claim and that one.
    pub others: bool,
}

/// Whether a run may begin to write into the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderDecision {
    /// The folder is empty.
    Free,
    /// The folder has this run's own claim: its write succeeded, but the answer was lost.
    Ours,
    /// The run may begin once the Backup of the claim is known to be deleted, because then no run
    /// publishes under that claim any more.
    IfGone,
    /// The folder has a finished backup.
    Published,
    /// Another run writes there, or did.
    Taken,
    /// The folder has files without a claim, so their owner is not known.
    Unclaimed,
}

pub fn judge(ours: &FolderClaim, folder: &FolderContents) -> FolderDecision {
    match &folder.claim {
        _ if folder.published => FolderDecision::Published,
        Some(claim) if claim == ours => FolderDecision::Ours,
        // Whether a Backup of another cluster still runs cannot be found out here.
        Some(claim) if claim.cluster == ours.cluster && claim.backup != ours.backup => FolderDecision::IfGone,
        Some(_) => FolderDecision::Taken,
        None if folder.others => FolderDecision::Unclaimed,
        None => FolderDecision::Free,
    }
}

/// Whether a folder that was claimed for the removal of a Backup is still nobody else's, so that
/// what belongs to its backup may go. A run that got the permission to publish may have done that.
pub fn is_forsaken(ours: &FolderClaim, folder: &FolderContents) -> bool {
    !folder.published && folder.claim.as_ref() == Some(ours)
}

/// Whether a folder is another Backup's by now. No run of this one publishes there any more,
/// because it looks for its own claim first.
pub fn is_of_another(ours: &FolderClaim, folder: &FolderContents) -> bool {
    folder.claim.as_ref().is_some_and(|claim| !claim.is_of_backup_of(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(cluster: &str, backup: &str, run: &str) -> FolderClaim {
        let [cluster, backup, run] = [cluster, backup, run].map(str::to_owned);
        FolderClaim { cluster, backup, run, ..FolderClaim::default() }
    }

    fn folder(claim: Option<FolderClaim>, others: bool) -> FolderContents {
        FolderContents { published: false, claim, others }
    }

    #[test]
    fn what_belongs_to_a_backup_goes_only_while_its_folder_is_claimed_for_that_and_unpublished() {
        let ours = claim("here", "b", "r");
        for (found, is_ours) in [
            (Some(ours.clone()), true),
            (None, false),
            (Some(claim("here", "b", "another run")), false),
            (Some(claim("here", "the next", "r")), false),
        ] {
            let mut folder = folder(found, true);
            assert_eq!(is_forsaken(&ours, &folder), is_ours, "{folder:?}");
            folder.published = true;
            assert!(!is_forsaken(&ours, &folder), "{folder:?}");
        }
    }

    #[test]
    fn a_folder_is_of_another_backup_only_where_a_claim_says_so() {
        let ours = claim("here", "b", "r");
        for (found, is_others) in [
            (None, false),
            (Some(claim("here", "b", "another run")), false),
            (Some(claim("here", "the next", "r")), true),
            (Some(claim("elsewhere", "b", "r")), true),
        ] {
            assert_eq!(is_of_another(&ours, &folder(found.clone(), true)), is_others, "{found:?}");
        }
    }

    #[test]
    fn only_an_empty_folder_or_that_of_a_backup_of_this_cluster_that_is_gone_may_be_claimed() {
        let ours = claim("here", "b", "r");
        for (found, others, verdict) in [
            (None, false, FolderDecision::Free),
            (None, true, FolderDecision::Unclaimed),
            (Some(claim("here", "b", "r")), true, FolderDecision::Ours),
            (Some(claim("here", "an earlier one", "x")), true, FolderDecision::IfGone),
            (Some(claim("here", "b", "another run")), true, FolderDecision::Taken),
            (Some(claim("elsewhere", "b", "r")), true, FolderDecision::Taken),
            (Some(claim("elsewhere", "an earlier one", "x")), false, FolderDecision::Taken),
        ] {
            let mut folder = folder(found, others);
            assert_eq!(judge(&ours, &folder), verdict, "{folder:?}");
            folder.published = true;
            assert_eq!(judge(&ours, &folder), FolderDecision::Published, "{folder:?}");
        }
    }
}
