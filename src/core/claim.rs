//! Whose a backup's folder in a store is. Names are no proof: two clusters may share a prefix, and a Backup may be deleted and
//! made anew. A claim in the folder says which run writes there, and what a run did not write it neither overwrites nor removes.

/// Which run writes into the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// UID of the cluster.
    pub cluster: String,
    /// Of the Backup; its name is that of the folder.
    pub namespace: String,
    /// UID of the Backup.
    pub backup: String,
    pub run: String,
    /// The run from whose checkpoint this one goes on. Until it has written one of its own it has stored nothing, and that one says all.
    pub before: Option<String>,
}

impl Claim {
    /// Is it by whichever run of the same Backup?
    pub fn is_of_backup_of(&self, other: &Self) -> bool {
        self.cluster == other.cluster && self.backup == other.backup
    }
}

/// What lies in the folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// The file that makes it visible is there.
    pub published: bool,
    pub claim: Option<Claim>,
    /// Something else than these two is there.
    pub others: bool,
}

/// May a run begin to write there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is there.
    Free,
    /// The claim is this run's already: the answer to its write was lost.
    Ours,
    /// As soon as it is known that the Backup of the claim is no more: nobody will publish anything under that claim then.
    IfGone,
    /// It holds a backup.
    Published,
    /// Somebody else writes there, or did, and may be asked.
    Taken,
    /// Nobody says whose these files are.
    Unclaimed,
}

pub fn judge(ours: &Claim, folder: &Folder) -> Verdict {
    match &folder.claim {
        _ if folder.published => Verdict::Published,
        Some(claim) if claim == ours => Verdict::Ours,
        // Of another cluster nobody here can tell whether it still runs.
        Some(claim) if claim.cluster == ours.cluster && claim.backup != ours.backup => Verdict::IfGone,
        Some(_) => Verdict::Taken,
        None if folder.others => Verdict::Unclaimed,
        None => Verdict::Free,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(cluster: &str, backup: &str, run: &str) -> Claim {
        let [cluster, backup, run] = [cluster, backup, run].map(str::to_owned);
        Claim { cluster, backup, run, ..Claim::default() }
    }

    fn folder(claim: Option<Claim>, others: bool) -> Folder {
        Folder { published: false, claim, others }
    }

    #[test]
    fn only_an_empty_folder_or_that_of_a_backup_of_this_cluster_that_is_gone_may_be_claimed() {
        let ours = claim("here", "b", "r");
        for (found, others, verdict) in [
            (None, false, Verdict::Free),
            (None, true, Verdict::Unclaimed),
            (Some(claim("here", "b", "r")), true, Verdict::Ours),
            (Some(claim("here", "an earlier one", "x")), true, Verdict::IfGone),
            (Some(claim("here", "b", "another run")), true, Verdict::Taken),
            (Some(claim("elsewhere", "b", "r")), true, Verdict::Taken),
            (Some(claim("elsewhere", "an earlier one", "x")), false, Verdict::Taken),
        ] {
            let mut folder = folder(found, others);
            assert_eq!(judge(&ours, &folder), verdict, "{folder:?}");
            folder.published = true;
            assert_eq!(judge(&ours, &folder), Verdict::Published, "{folder:?}");
        }
    }
}
