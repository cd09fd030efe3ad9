//! Data movers: the objects by which Velero's node-agents carry volume data, of four kinds.
//!
//! - [`grant`]: which of them may take a place in the cluster, exactly as many as are allowed.

pub mod grant;

use std::fmt;

/// Their order settles who goes first among equally old ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MoverKind {
    DataUpload,
    DataDownload,
    PodVolumeBackup,
    PodVolumeRestore,
}

impl MoverKind {
    pub const ALL: [Self; 4] =
        [Self::DataUpload, Self::DataDownload, Self::PodVolumeBackup, Self::PodVolumeRestore];
    pub const GROUP: &str = "velero.io";

    /// The `kind` on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DataUpload => "DataUpload",
            Self::DataDownload => "DataDownload",
            Self::PodVolumeBackup => "PodVolumeBackup",
            Self::PodVolumeRestore => "PodVolumeRestore",
        }
    }

    /// The resource, as paths and rules name it.
    pub fn plural(self) -> &'static str {
        match self {
            Self::DataUpload => "datauploads",
            Self::DataDownload => "datadownloads",
            Self::PodVolumeBackup => "podvolumebackups",
            Self::PodVolumeRestore => "podvolumerestores",
        }
    }

    pub fn version(self) -> &'static str {
        match self {
            Self::DataUpload | Self::DataDownload => "v2alpha1",
            Self::PodVolumeBackup | Self::PodVolumeRestore => "v1",
        }
    }

    /// Group and version, as an ownerReference names them.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::DataUpload | Self::DataDownload => "velero.io/v2alpha1",
            Self::PodVolumeBackup | Self::PodVolumeRestore => "velero.io/v1",
        }
    }

    /// Label of its pod. The value is its name, unless a configured label of pods overwrote it: an ownerReference says
    /// for certain whose pod it is.
    pub fn pod_label(self) -> &'static str {
        match self {
            Self::DataUpload => "velero.io/data-upload",
            Self::DataDownload => "velero.io/data-download",
            Self::PodVolumeBackup => "velero.io/pod-volume-backup",
            Self::PodVolumeRestore => "velero.io/pod-volume-restore",
        }
    }

    /// Can only the node-agent of one node carry it? Any node-agent can carry the others.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::PodVolumeBackup | Self::PodVolumeRestore)
    }
}

impl fmt::Display for MoverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
