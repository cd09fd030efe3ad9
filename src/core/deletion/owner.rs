//! Whose the folder of a backup is.
//!
//! A backup that berth has written has a claim, which names its cluster and its Backup. One that a
//! Velero has written has none, and the Backup in its own file decides. A Backup object may also be
//! a copy: after a Backup object is lost, or in another cluster, it is created again from the
//! store, with a UID of its own. A copy agrees with the stored Backup on when it began and ended.
//! What another cluster has written, or another namespace of this one, is deleted there, unless the
//! location says that its backups are this cluster's by now.

use std::fmt;

use jiff::Timestamp;

use crate::claim::FolderClaim;

/// What is known of the Backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupIdentity {
    /// UID of this cluster.
    pub cluster: String,
    /// Namespace of the Backup.
    pub namespace: String,
    /// UID of the Backup.
    pub uid: String,
    pub started: Option<Timestamp>,
    pub completed: Option<Timestamp>,
}

/// What the file says that makes the backup visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredMetadata {
    pub uid: String,
    pub started: Option<Timestamp>,
    pub completed: Option<Timestamp>,
}

/// What the folder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredFolder {
    pub claim: Option<FolderClaim>,
    pub metadata: Option<StoredMetadata>,
    /// There are files besides these two.
    pub has_others: bool,
}

/// The clusters whose backups in a location belong to this cluster by now: the annotation
/// `berth.dev/inherits` of the location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inherited<'a>(pub &'a str);

impl Inherited<'_> {
    /// With `*`, also those that no claim names.
    fn has_all(self) -> bool {
        self.0.split(',').any(|one| one.trim() == "*")
    }

    fn has(self, cluster: &str) -> bool {
        self.has_all() || self.0.split(',').any(|one| one.trim() == cluster)
    }
}

/// Why a folder is not the Backup's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForeignFolderReason {
    /// The Backup is a copy of what a cluster of this UID has written.
    CopyOfCluster(String),
    /// The Backup is a copy of what another namespace of this cluster has written.
    CopyOfNamespace {
        namespace: String,
        /// UID of this cluster.
        cluster: String,
    },
    /// The Backup is a copy of what a Velero has written for a Backup of this UID, in whatever
    /// cluster.
    CopyOfBackup(String),
    /// It is of a cluster of this UID.
    Cluster(String),
    /// It is of a Backup of this UID.
    Backup(String),
    /// Nothing says whose it is.
    Unknown,
}

impl ForeignFolderReason {
    /// Is the Backup a copy of what is stored there?
    pub fn is_copied(&self) -> bool {
        matches!(self, Self::CopyOfCluster(_) | Self::CopyOfNamespace { .. } | Self::CopyOfBackup(_))
    }
}

/// At most so much of a text that somebody else has written, and nothing but plain characters.
fn short(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic()).take(63).collect()
}

impl fmt::Display for ForeignFolderReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopyOfCluster(cluster) => {
                let cluster = short(cluster);
                write!(
                    f,
                    "the cluster with UID {cluster} has written this backup: delete it there or, if its backups in this location are this cluster's by now, annotate the BackupStorageLocation with berth.dev/inherits={cluster}"
                )
            }
            Self::CopyOfNamespace { namespace, cluster } => write!(
                f,
                "namespace {} of this cluster has written this backup: delete it there or, if its backups in this location are this namespace's by now, annotate the BackupStorageLocation with berth.dev/inherits={}",
                short(namespace),
                short(cluster)
            ),
            Self::CopyOfBackup(uid) => write!(
                f,
                "a Velero has written this backup for a Backup with UID {}, which may be in another cluster: delete it there or, if all backups in this location are this cluster's by now, annotate the BackupStorageLocation with berth.dev/inherits=*",
                short(uid)
            ),
            Self::Cluster(cluster) => write!(
                f,
                "the folder of this name in the store is not this Backup's: the cluster with UID {} writes there, or did: remove the Backup by kubectl, which leaves that folder as it is",
                short(cluster)
            ),
            Self::Backup(uid) => write!(
                f,
                "the folder of this name in the store is not this Backup's, but of a Backup with UID {}: remove the Backup by kubectl, which leaves that folder as it is",
                short(uid)
            ),
            Self::Unknown => f.write_str(
                "the folder of this name in the store holds files of which nothing says whose they are: remove them from the store, or remove the Backup by kubectl, which leaves them as they are",
            ),
        }
    }
}

/// Whose the folder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderOwner {
    /// It is empty, and the location has other backups.
    Nobody,
    /// It is empty, as is the whole location: that of a bucket or a volume that is not the one that
    /// it was looks the same.
    NobodyInEmpty,
    /// It is the Backup's, and no deletion has claimed it.
    Ours,
    /// A deletion of this Backup has claimed it.
    Claimed,
    Stranger(ForeignFolderReason),
}

/// Begins the run of a claim that a deletion has written.
pub const DELETION: &str = "deletion-";

/// Decides whose the folder is.
pub fn owner(known: &BackupIdentity, stored: &StoredFolder, inherited: Inherited<'_>) -> FolderOwner {
    let strange = |stranger| FolderOwner::Stranger(stranger);
    let is_copy = |metadata: &StoredMetadata| {
        let is_same = |a: Option<Timestamp>, b: Option<Timestamp>| a.is_some() && a == b;
        is_same(metadata.started, known.started) && is_same(metadata.completed, known.completed)
    };
    match (&stored.claim, &stored.metadata) {
        (None, None) if stored.has_others => strange(ForeignFolderReason::Unknown),
        (None, None) => FolderOwner::Nobody,
        (Some(claim), metadata) if claim.cluster == known.cluster && claim.backup == known.uid => {
            match metadata {
                Some(metadata) if metadata.uid != known.uid && !is_copy(metadata) => {
                    strange(ForeignFolderReason::Backup(metadata.uid.clone()))
                }
                _ if claim.run.starts_with(DELETION) => FolderOwner::Claimed,
                _ => FolderOwner::Ours,
            }
        }
        (Some(claim), Some(metadata)) if metadata.uid == claim.backup && is_copy(metadata) => {
            let is_here = claim.cluster == known.cluster;
            if (is_here && claim.namespace == known.namespace) || inherited.has(&claim.cluster) {
                FolderOwner::Ours
            } else if is_here {
                let (namespace, cluster) = (claim.namespace.clone(), claim.cluster.clone());
                strange(ForeignFolderReason::CopyOfNamespace { namespace, cluster })
            } else {
                strange(ForeignFolderReason::CopyOfCluster(claim.cluster.clone()))
            }
        }
        (Some(claim), _) if claim.cluster == known.cluster => {
            strange(ForeignFolderReason::Backup(claim.backup.clone()))
        }
        (Some(claim), _) => strange(ForeignFolderReason::Cluster(claim.cluster.clone())),
        (None, Some(metadata)) if metadata.uid == known.uid => FolderOwner::Ours,
        (None, Some(metadata)) if is_copy(metadata) && inherited.has_all() => FolderOwner::Ours,
        (None, Some(metadata)) if is_copy(metadata) => {
            strange(ForeignFolderReason::CopyOfBackup(metadata.uid.clone()))
        }
        (None, Some(metadata)) => strange(ForeignFolderReason::Backup(metadata.uid.clone())),
    }
}
