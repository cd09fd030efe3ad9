//! Data movers: the objects of four kinds by which Velero's node-agents move volume data.
//!
//! - [`grant`]: which data movers may be prepared next, so that never more are than the limit
//!   allows.
//! - [`own`]: the movements of snapshot data that berth carries out itself.
//! - [`placement`]: the values by which the pod of a data mover is placed.

pub mod grant;
pub mod own;
pub mod placement;

use std::fmt;

/// The order of the kinds decides between data movers of the same age.
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

    /// The `kind` of the API object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DataUpload => "DataUpload",
            Self::DataDownload => "DataDownload",
            Self::PodVolumeBackup => "PodVolumeBackup",
            Self::PodVolumeRestore => "PodVolumeRestore",
        }
    }

    /// The plural resource name, as in paths and RBAC rules.
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

    /// Group and version, as in an ownerReference.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::DataUpload | Self::DataDownload => "velero.io/v2alpha1",
            Self::PodVolumeBackup | Self::PodVolumeRestore => "velero.io/v1",
        }
    }

    /// Key of the label of its pod. The value is the name of the data mover, unless a configured
    /// pod label overwrote it. The pod's ownerReference is reliable instead.
    pub fn pod_label(self) -> &'static str {
        match self {
            Self::DataUpload => "velero.io/data-upload",
            Self::DataDownload => "velero.io/data-download",
            Self::PodVolumeBackup => "velero.io/pod-volume-backup",
            Self::PodVolumeRestore => "velero.io/pod-volume-restore",
        }
    }

    /// Is it bound to the node-agent of one node? Any node-agent can run the other kinds.
    pub fn is_bound(self) -> bool {
        matches!(self, Self::PodVolumeBackup | Self::PodVolumeRestore)
    }
}

impl fmt::Display for MoverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
