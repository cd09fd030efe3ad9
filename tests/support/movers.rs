//! Many data movements at once, with stock Velero's node-agents and nothing else of it: no server,
//! no CSI driver, no data.
//!
//! The objects that a node-agent needs are created by hand, and the pods that it creates are
//! played: see [`Player`](player::Player). A watch that misses nothing records what happens: see
//! [`History`].

mod agents;
mod burst;
mod history;
mod player;

#[allow(unused_imports, reason = "not everybody who has this module uses all of it")]
pub use agents::{Agents, Work, patiently};
#[allow(unused_imports, reason = "not everybody who has this module uses all of it")]
pub use burst::{Burst, SOURCE, spec};
pub use history::History;
#[allow(unused_imports, reason = "not everybody who has this module uses all of it")]
pub use player::Pace;

use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

/// What a node-agent works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    DataUpload,
    DataDownload,
    PodVolumeBackup,
    PodVolumeRestore,
}

pub const KINDS: [Kind; 4] =
    [Kind::DataUpload, Kind::DataDownload, Kind::PodVolumeBackup, Kind::PodVolumeRestore];

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::DataUpload => "DataUpload",
            Self::DataDownload => "DataDownload",
            Self::PodVolumeBackup => "PodVolumeBackup",
            Self::PodVolumeRestore => "PodVolumeRestore",
        }
    }

    pub fn version(self) -> &'static str {
        match self {
            Self::DataUpload | Self::DataDownload => "v2alpha1",
            Self::PodVolumeBackup | Self::PodVolumeRestore => "v1",
        }
    }

    pub fn plural(self) -> &'static str {
        match self {
            Self::DataUpload => "datauploads",
            Self::DataDownload => "datadownloads",
            Self::PodVolumeBackup => "podvolumebackups",
            Self::PodVolumeRestore => "podvolumerestores",
        }
    }

    /// Of the pods that are made for such an object: its name is the value.
    pub fn label(self) -> &'static str {
        match self {
            Self::DataUpload => "velero.io/data-upload",
            Self::DataDownload => "velero.io/data-download",
            Self::PodVolumeBackup => "velero.io/pod-volume-backup",
            Self::PodVolumeRestore => "velero.io/pod-volume-restore",
        }
    }

    /// What such an object belongs to.
    pub fn owner(self) -> &'static str {
        match self {
            Self::DataUpload | Self::PodVolumeBackup => "Backup",
            Self::DataDownload | Self::PodVolumeRestore => "Restore",
        }
    }

    pub fn api_version(self) -> String {
        format!("velero.io/{}", self.version())
    }

    pub fn api(self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        let resource = ApiResource {
            group: "velero.io".to_owned(),
            version: self.version().to_owned(),
            api_version: self.api_version(),
            kind: self.name().to_owned(),
            plural: self.plural().to_owned(),
        };
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}
