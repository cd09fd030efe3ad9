//! How the data of each volume is backed up: one decision for each claim, and one for each volume
//! of a pod.
//!
//! The pods of a backup are asked first ([`of_pod`]), because a claim whose files a pod's
//! node-agent reads needs no snapshot. Then each claim is decided on ([`of_claim`]).

pub mod class;
pub mod group;
pub mod node_agents;
pub mod takers;
pub mod waits;

use std::fmt;

use crate::policy::volume::VolumeAction;

/// Kinds of volumes whose content comes from elsewhere: no backup reads their files.
pub const NEVER: [&str; 5] = ["hostPath", "secret", "configMap", "projected", "downwardAPI"];
/// Prefix of the volume with a service account's token, as older clusters named it.
const TOKEN: &str = "default-token";

/// What the Backup says of all volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// `snapshotVolumes`; `None`: snapshots are taken where they can be.
    pub snapshots: Option<bool>,
    /// `defaultVolumesToFsBackup`: files of all volumes that a pod does not exclude, instead of
    /// those that it names.
    pub files: bool,
    /// `snapshotMoveData`: the data of snapshots is moved into the storage location.
    pub moves: bool,
}

/// What is known of a claim and of the volume that it is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeClaim {
    /// The action of the first volume policy that matches.
    pub policy: Option<VolumeAction>,
    /// A pod of the backup has its files backed up.
    pub by_files: bool,
    pub is_bound: bool,
    /// Its volume belongs to a CSI driver.
    pub is_csi: bool,
    /// There is a VolumeSnapshotClass for that driver.
    pub has_class: bool,
}

/// What becomes of the data of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimDecision {
    /// It is not stored, and need not be.
    Skip(VolumeSkipReason),
    /// A node-agent reads its files, in a pod.
    Files,
    /// A CSI snapshot stays in the storage.
    Snapshot,
    /// A CSI snapshot is taken, and its data is moved into the storage location.
    Move,
    /// Nothing can store it.
    Nothing(UnstorableReason),
}

/// Why the data of a claim need not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeSkipReason {
    Policy,
    Unwanted,
    Unbound,
}

/// Why nothing can store the data of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnstorableReason {
    /// A policy asks for its files, and no pod of the backup that runs has it mounted.
    Pod,
    /// A policy leaves it to a plugin.
    Plugin,
    /// The volume belongs to no CSI driver.
    Driver,
    /// The driver has no VolumeSnapshotClass.
    Class,
}

impl fmt::Display for VolumeSkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Policy => "a volume policy skips it",
            Self::Unwanted => "spec.snapshotVolumes is false",
            Self::Unbound => "the claim is bound to no volume",
        })
    }
}

impl fmt::Display for UnstorableReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => {
                "a volume policy asks for its files, and no running pod of the backup has it mounted"
            }
            Self::Plugin => {
                "a volume policy leaves it to a plugin (action custom), and berth runs no plugins"
            }
            Self::Driver => "its volume belongs to no CSI driver, and no pod asks for its files",
            Self::Class => "its CSI driver has no VolumeSnapshotClass",
        })
    }
}

/// The decision for a claim. The order of the questions is Velero's (contract 7.1), except that a
/// claim which no pod can have backed up is snapshotted instead.
pub fn of_claim(wish: &VolumeOptions, claim: &VolumeClaim) -> ClaimDecision {
    match claim.policy {
        Some(VolumeAction::Skip) => return ClaimDecision::Skip(VolumeSkipReason::Policy),
        Some(VolumeAction::FsBackup) if claim.by_files => return ClaimDecision::Files,
        Some(VolumeAction::FsBackup) => return ClaimDecision::Nothing(UnstorableReason::Pod),
        Some(VolumeAction::Custom) => return ClaimDecision::Nothing(UnstorableReason::Plugin),
        Some(VolumeAction::Snapshot) => {}
        None if claim.by_files => return ClaimDecision::Files,
        None if wish.snapshots == Some(false) => return ClaimDecision::Skip(VolumeSkipReason::Unwanted),
        None => {}
    }
    if !claim.is_bound {
        ClaimDecision::Skip(VolumeSkipReason::Unbound)
    } else if !claim.is_csi {
        ClaimDecision::Nothing(UnstorableReason::Driver)
    } else if !claim.has_class {
        ClaimDecision::Nothing(UnstorableReason::Class)
    } else if wish.moves {
        ClaimDecision::Move
    } else {
        ClaimDecision::Snapshot
    }
}

/// Whether the Backup asks for the data of this claim. A request that is not served is an error; a
/// backup that only takes what can be taken warns of it.
pub fn is_asked_for(wish: &VolumeOptions, policy: Option<VolumeAction>) -> bool {
    match policy {
        Some(action) => action != VolumeAction::Skip,
        None => wish.snapshots == Some(true) || (wish.moves && wish.snapshots != Some(false)),
    }
}

/// What is known of a volume of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodVolumeState<'a> {
    pub name: &'a str,
    /// The key of its source, as in [`crate::policy::volume::KINDS`].
    pub kind: &'a str,
    /// The action of the first volume policy that matches.
    pub policy: Option<VolumeAction>,
    /// The annotation that asks for its files names it.
    pub is_named: bool,
    /// The annotation that excludes volumes names it.
    pub is_excluded: bool,
    /// It is of a claim, and the backup takes no claims.
    pub is_of_untaken_claim: bool,
    /// The data of its claim is stored already: through another pod, or by a snapshot.
    pub is_stored: bool,
    /// It is of a claim whose volume is a path of the node.
    pub is_host_path: bool,
    /// A container has it as a block device.
    pub is_device: bool,
    /// A container has it in its file system.
    pub is_mounted: bool,
    pub pod: PodPhase,
}

/// Whether a node-agent can read volumes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    Running,
    /// Succeeded or Failed: its volumes are not there any more.
    Ended,
    /// Any other phase.
    Waiting,
}

/// What becomes of the files of a pod's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPod {
    /// Nobody asks for them.
    No,
    /// The pod's node-agent reads them.
    Files,
    /// They were asked for and cannot be read.
    Skip(FileBackupObstacle),
}

/// Why the files of a pod's volume cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileBackupObstacle {
    Stored,
    Ended,
    Waiting,
    HostPath,
    Device,
    Unmounted,
}

impl FileBackupObstacle {
    /// Whether something is missing: not if the data is stored in another way, or is gone with its
    /// pod.
    pub fn is_loss(self) -> bool {
        !matches!(self, Self::Stored | Self::Ended)
    }
}

impl fmt::Display for FileBackupObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stored => "the data of its claim is stored in another way",
            Self::Ended => "the pod has ended",
            Self::Waiting => "the pod does not run",
            Self::HostPath => "it is a path of the node, which node-agents do not read",
            Self::Device => "it is a block device, of which node-agents read no files",
            Self::Unmounted => "no container has it mounted",
        })
    }
}

/// The decision for a volume of a pod, as `docs/volumes.md` has it under "File-system backups".
pub fn of_pod(wish: &VolumeOptions, volume: &PodVolumeState<'_>) -> OfPod {
    let is_never =
        NEVER.contains(&volume.kind) || volume.name.starts_with(TOKEN) || volume.is_of_untaken_claim;
    let is_wanted = match volume.policy {
        Some(action) => action == VolumeAction::FsBackup,
        None if wish.files => !volume.is_excluded,
        None => volume.is_named,
    };
    if is_never || !is_wanted {
        return OfPod::No;
    }
    let obstacles = [
        (volume.pod == PodPhase::Ended, FileBackupObstacle::Ended),
        (volume.is_stored, FileBackupObstacle::Stored),
        (volume.pod == PodPhase::Waiting, FileBackupObstacle::Waiting),
        (volume.is_host_path, FileBackupObstacle::HostPath),
        (volume.is_device, FileBackupObstacle::Device),
        (!volume.is_mounted, FileBackupObstacle::Unmounted),
    ];
    match obstacles.into_iter().find(|(is_there, _)| *is_there) {
        Some((_, obstacle)) => OfPod::Skip(obstacle),
        None => OfPod::Files,
    }
}

/// The names in an annotation that lists volumes.
pub fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// When the files of a pod's volumes are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Moment {
    /// The pod has no hooks, so any moment will do.
    #[default]
    Any,
    /// While this run's hooks keep the pod still.
    Still,
    /// An earlier run has stored the pod, and its hooks are not run again.
    Past,
}

/// What is known of a file-system backup of a volume that an earlier run has asked for, and that
/// has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub is_complete: bool,
    /// Its pod was thawed while it went on.
    pub is_spoiled: bool,
    /// The earlier run had taken all data of the pod's block when its pods were thawed.
    pub is_whole: bool,
    /// It is this run that has asked for it, and the answer was lost.
    pub is_ours: bool,
}

/// Whether a run takes over what an earlier one has asked for. If not, it asks anew: what is read
/// of one pod, and of those that share a claim with it, is to be of one moment.
pub fn takes_over(moment: Moment, asked: Asked) -> bool {
    match (moment, asked.is_complete) {
        // The rest of the block is read while its pods are still once more.
        (Moment::Still, true) => asked.is_whole,
        // The pod was stored after that.
        (Moment::Past, true) => true,
        // Hooks before the pod have run once more since an earlier run had it begun.
        (Moment::Still, false) => asked.is_ours && !asked.is_spoiled,
        (Moment::Any, _) | (Moment::Past, false) => !asked.is_spoiled,
    }
}

#[cfg(test)]
mod tests;
