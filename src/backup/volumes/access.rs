//! With what the data of volumes is taken, by the settings of the controller and the effective spec
//! of a Backup.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::GoDuration;
use berth_api::keys::POD_VOLUME_TIMEOUT;
use berth_api::velero::BackupSpec;
use berth_core::selection::{ResourceType, TypeSelection};
use berth_core::volume::VolumeOptions;
use kube::{Client, ResourceExt as _};
use tokio::sync::mpsc;

use super::outcomes::Outcomes;
use super::{Job, RunVolumes};
use crate::backup::engine::Engine;
use crate::backup::inputs::ClusterInputs;
use crate::backup::list::Lister;
use crate::backup::log::BackupLog;
use crate::backup::prepare::Prepared;
use crate::backup::related::Related;
use crate::backup::status::BackupWriter;

/// `spec.csiSnapshotTimeout` of a Backup that has none.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Nothing is waited for longer, whatever a Backup says.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is needed to take the data of volumes.
pub struct VolumeAccess {
    pub client: Client,
    /// For watches, which may be silent for long.
    pub watches: Client,
    pub lister: Lister,
    /// Of the Backup.
    pub namespace: String,
    pub backup: String,
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
    pub location: String,
    /// The run that has the Backup.
    pub run: String,
    /// The cluster has the kinds of snapshots.
    pub serves_snapshots: bool,
    pub snapshot_timeout: Duration,
    pub files_timeout: Duration,
    /// `uploaderConfig.parallelFilesUpload`.
    pub parallel_files: Option<i64>,
}

impl Engine {
    /// The data of a run's volumes, by its effective spec.
    pub(in crate::backup) fn volumes<'a>(
        &self,
        record: &BackupWriter,
        spec: &BackupSpec,
        (cluster, prepared): (&ClusterInputs, &Prepared),
        (backup, run): (&str, &str),
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
    ) -> (RunVolumes<'a>, mpsc::Receiver<Job>) {
        let length = |duration: GoDuration| duration.get().ok().flatten().map(|length| length.min(LONGEST));
        let annotations = record.object().annotations().clone();
        let files_timeout = annotations.get(POD_VOLUME_TIMEOUT);
        let files_timeout = files_timeout.and_then(|text| length(GoDuration(text.clone())));
        let parallel = spec.uploader_config.as_ref().and_then(|config| config.parallel_files_upload);
        let access = VolumeAccess {
            client: self.client.clone(),
            watches: self.volumes.watches.clone(),
            lister: self.lister(),
            namespace: self.namespace.clone(),
            backup: backup.to_owned(),
            uid: record.uid().to_owned(),
            location: prepared.location.name_any(),
            run: run.to_owned(),
            serves_snapshots: serves_snapshots(&cluster.types),
            snapshot_timeout: spec.csi_snapshot_timeout.clone().and_then(length).unwrap_or(SNAPSHOT_TIMEOUT),
            files_timeout: files_timeout.unwrap_or(self.volumes.files_timeout).min(LONGEST),
            parallel_files: parallel.filter(|files| *files > 0),
            annotations,
        };
        of_spec(spec, &cluster.types, prepared, log, outcomes, access)
    }
}

/// The data of the volumes that an effective spec takes.
pub(in crate::backup) fn of_spec<'a>(
    spec: &BackupSpec,
    types: &[ResourceType],
    prepared: &Prepared,
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: VolumeAccess,
) -> (RunVolumes<'a>, mpsc::Receiver<Job>) {
    let claims = types.iter().find(|kind| Related::Claim.is(kind));
    let takes_claims = claims.is_some_and(|kind| prepared.selection.fate(kind) != TypeSelection::Excluded);
    let wish = VolumeOptions {
        snapshots: spec.snapshot_volumes,
        files: spec.default_volumes_to_fs_backup == Some(true),
        moves: spec.snapshot_move_data == Some(true),
    };
    let policies = prepared.policies.volumes.clone();
    let groups = (prepared.wanted.group_key.clone(), takes_claims);
    RunVolumes::new(wish, policies, groups, log, outcomes, Some(access))
}

/// Whether the cluster has the kinds of snapshots.
pub(in crate::backup) fn serves_snapshots(types: &[ResourceType]) -> bool {
    let served = |related: Related| types.iter().any(|kind| related.is(kind));
    [Related::Snapshot, Related::SnapshotContent, Related::SnapshotClass].into_iter().all(served)
}
