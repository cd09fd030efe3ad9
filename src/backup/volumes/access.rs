//! The clients, settings and limits with which a run takes the data of volumes, from the settings
//! of the controller and the effective spec of a Backup.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::GoDuration;
use berth_api::keys::POD_VOLUME_TIMEOUT;
use berth_api::velero::BackupSpec;
use berth_core::selection::{ResourceType, TypeSelection};
use berth_core::volume::VolumeOptions;
use berth_core::volume::waits::VolumeWaits;
use kube::{Client, ResourceExt as _};
use tokio::time::Instant;

use super::outcomes::Outcomes;
use super::{Jobs, RunVolumes};
use crate::backup::engine::Engine;
use crate::backup::inputs::ClusterInputs;
use crate::backup::list::Lister;
use crate::backup::log::{BackupLog, ResultsHeading};
use crate::backup::prepare::Prepared;
use crate::backup::related::Related;
use crate::backup::status::BackupWriter;

/// Until when a run waits for the data of volumes, by the run's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitLimits {
    pub waits: VolumeWaits,
    /// When the run began.
    begun: Instant,
    pub files_until: Instant,
}

impl WaitLimits {
    /// The limits of a run that begins at `begun`. `asked`: `spec.csiSnapshotTimeout` and the
    /// annotation [`POD_VOLUME_TIMEOUT`] of its Backup. `flag`: `--fs-backup-timeout`. The second
    /// value names each of these that exceeds what the controller allows.
    pub fn new(
        begun: Instant,
        (snapshot, files): (Option<Duration>, Option<Duration>),
        flag: Duration,
    ) -> (Self, Vec<String>) {
        let waits = VolumeWaits::new(snapshot, files, flag);
        let asked = [("spec.csiSnapshotTimeout", snapshot), (POD_VOLUME_TIMEOUT, files)];
        let beyond = asked.into_iter().filter(|(_, asked)| asked.is_some_and(|asked| asked > waits.longest));
        let told = beyond.map(|(field, _)| {
            format!(
                "{field} is longer than any backup waits for the data of its volumes: {} s are taken, and --fs-backup-timeout raises that",
                waits.longest.as_secs()
            )
        });
        (Self { waits, begun, files_until: begun + waits.files }, told.collect())
    }

    /// Until when the run waits for a snapshot that it requested at `asked`.
    pub fn snapshot_until(&self, asked: Instant) -> Instant {
        self.begun + self.waits.snapshot_end(asked.duration_since(self.begun))
    }
}

/// What is needed to take the data of volumes.
pub struct VolumeAccess {
    pub client: Client,
    /// For watches, which may be silent for long.
    pub watches: Client,
    pub lister: Lister,
    /// The namespace of the Backup.
    pub namespace: String,
    pub backup: String,
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
    pub location: String,
    /// The run that has the Backup.
    pub run: String,
    /// Does the cluster have the kinds of snapshots?
    pub serves_snapshots: bool,
    pub limits: WaitLimits,
    /// `uploaderConfig.parallelFilesUpload`.
    pub parallel_files: Option<i64>,
}

impl Engine {
    /// Takes the data of a run's volumes, as its effective spec asks.
    pub(in crate::backup) fn volumes<'a>(
        &self,
        record: &BackupWriter,
        spec: &BackupSpec,
        (cluster, prepared): (&ClusterInputs, &Prepared),
        (backup, run): (&str, &str),
        log: &'a BackupLog,
        outcomes: &'a Outcomes,
    ) -> (RunVolumes<'a>, Jobs) {
        let length = |duration: GoDuration| duration.get().ok().flatten();
        let annotations = record.object().annotations().clone();
        let files = annotations.get(POD_VOLUME_TIMEOUT).and_then(|text| length(GoDuration(text.clone())));
        let asked = (spec.csi_snapshot_timeout.clone().and_then(length), files);
        let (limits, told) = WaitLimits::new(Instant::now(), asked, self.volumes.files_timeout);
        for message in told {
            log.warning(&ResultsHeading::Velero, "", &message);
        }
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
            limits,
            parallel_files: parallel.filter(|files| *files > 0),
            annotations,
        };
        of_spec(spec, &cluster.types, prepared, log, outcomes, access)
    }
}

/// The same for an effective spec, without a run.
pub(in crate::backup) fn of_spec<'a>(
    spec: &BackupSpec,
    types: &[ResourceType],
    prepared: &Prepared,
    log: &'a BackupLog,
    outcomes: &'a Outcomes,
    access: VolumeAccess,
) -> (RunVolumes<'a>, Jobs) {
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

/// Does the cluster have the kinds of snapshots?
pub(in crate::backup) fn serves_snapshots(types: &[ResourceType]) -> bool {
    let served = |related: Related| types.iter().any(|kind| related.is(kind));
    [Related::Snapshot, Related::SnapshotContent, Related::SnapshotClass].into_iter().all(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_backup_asks_for_counts_from_the_begin_of_its_run_and_too_much_is_told() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let begun = Instant::now();
        let (usual, told) = WaitLimits::new(begun, (None, None), hours(4));
        assert_eq!((usual.files_until, told.len()), (begun + hours(4), 0));
        let (week, told) = WaitLimits::new(begun, (Some(hours(168)), Some(hours(168))), hours(1));
        assert_eq!(week.files_until, begun + hours(4));
        assert!(told.len() == 2 && told[0].contains("csiSnapshotTimeout"), "{told:?}");
        let (day, told) = WaitLimits::new(begun, (Some(hours(12)), None), hours(24));
        assert_eq!((day.files_until, told.len()), (begun + hours(24), 0));
        assert_eq!(day.snapshot_until(begun + hours(1)), begun + hours(13));
        assert_eq!(day.snapshot_until(begun + hours(20)), begun + hours(24));
    }
}
