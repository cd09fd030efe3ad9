//! Where a run stores, and what an earlier run of the same Backup has stored there.

use std::collections::BTreeSet;

use anyhow::ensure;
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::FolderClaim;
use berth_core::sync::is_name;
use bytes::Bytes;
use object_store::UpdateVersion;

use super::checkpoint::{Checkpoint, Packed, Remembered, Uploaded};
use super::hooks::{Tally, Tried};
use super::ledger::ObjectLedger;
use super::log::{BackupLog, ResultsHeading};
use super::movement::{Movement, Movements};
use super::volumes::outcomes::{Outcomes, VolumeOutcomes};
use crate::storage::{BackupLayout, MultipartTarget, Staged};

/// Where a run stores, under its own claim.
pub struct RunSite {
    pub location: BackupStorageLocation,
    pub layout: BackupLayout,
    pub parts: MultipartTarget,
    pub claim: FolderClaim,
    /// What it continues from.
    pub begun: Option<EarlierProgress>,
    /// The scope of the backup, for checkpoints, if the run writes any.
    pub scope: Option<Packed>,
    /// Pods are frozen that this run could not reach before its process ends: they stay on record.
    pub leaves_frozen: bool,
    /// A later run may continue from what this run has stored, or from what it itself continued
    /// from.
    pub is_resumable: bool,
    /// The run continued from a checkpoint, and the store accepted nothing more.
    pub is_stuck: bool,
    /// Another run of the backup had the folder before.
    pub is_taken_over: bool,
    /// The upload of its archive, once it is begun or continued.
    pub staged: Option<Staged>,
    /// Results of hooks that earlier runs tried.
    pub tally: Tally,
    /// Movements of data that earlier runs have begun.
    pub operations: Movements,
    /// What became of the data of volumes in earlier runs.
    pub outcomes: Outcomes,
    /// The run may have made snapshots or PodVolumeBackups.
    pub has_data: bool,
}

impl RunSite {
    /// Of a run before which there was none.
    pub fn new(
        location: BackupStorageLocation,
        layout: BackupLayout,
        parts: MultipartTarget,
        claim: FolderClaim,
    ) -> Self {
        Self {
            location,
            layout,
            parts,
            claim,
            begun: None,
            scope: None,
            leaves_frozen: false,
            is_resumable: false,
            is_stuck: false,
            is_taken_over: false,
            staged: None,
            tally: Tally::default(),
            operations: Movements::default(),
            outcomes: Outcomes::default(),
            has_data: false,
        }
    }

    /// In which namespaces the backup may have data in repositories, as far as this run knows.
    pub fn data_namespaces(&self) -> BTreeSet<String> {
        let moved = self.operations.all().into_iter().map(|movement| movement.namespace);
        moved.chain(self.outcomes.all().file_namespaces).filter(|namespace| is_name(namespace)).collect()
    }

    /// Whether a checkpoint that an earlier run wrote may name more of them.
    pub fn may_have_earlier_data(&self) -> bool {
        self.is_taken_over && self.is_resumable
    }
}

/// What an earlier run has stored, from its checkpoint.
pub struct EarlierProgress {
    pub scope: Packed,
    pub ledger: ObjectLedger,
    pub uploaded: Uploaded,
    /// Bytes of the archive behind the stored parts.
    pub tail: Bytes,
    /// The whole archive is stored; at most the upload must be completed.
    pub is_whole: bool,
    /// All objects are stored, or are in `tail`.
    pub is_collected: bool,
    /// Movements of data that the earlier run has begun.
    pub operations: Vec<Movement>,
    /// Hooks that the earlier run has tried.
    pub tried: Tried,
    /// What became of the data of volumes.
    pub volumes: VolumeOutcomes,
    /// Version of the checkpoint that was read.
    pub version: UpdateVersion,
    pub staged: Staged,
    /// The upload as the earlier run knows it, if it is a different one.
    before: Option<Staged>,
}

impl EarlierProgress {
    /// Continues from a checkpoint whose scope is that of the Backup. The log is that of the run
    /// which wrote it, followed by `heard`. `policy`: digest of the resource policy as it is now.
    ///
    /// # Errors
    /// When it is impossible to continue from this checkpoint: then the backup must restart.
    pub async fn open(
        layout: &BackupLayout,
        parts: &MultipartTarget,
        checkpoint: Checkpoint,
        version: UpdateVersion,
        heard: &BackupLog,
        policy: &str,
    ) -> anyhow::Result<(Self, BackupLog)> {
        let Checkpoint {
            scope, mut uploaded, tail, is_whole, is_collected, balance, remembered, lines, ..
        } = checkpoint;
        let Remembered { told, untold, hooks: tried, operations, volumes, moment } = remembered;
        // No list is read again.
        let is_through = is_whole || is_collected;
        let began_with = scope.open()?;
        ensure!(is_through || began_with.policy() == policy, "its resource policy has changed since");
        let types = began_with.types();
        let ledger = ObjectLedger::again(&types, balance)?;
        ensure!(
            ledger.lies_in(&types, &began_with.resolved()),
            "it names objects of namespaces that are not the backup's"
        );
        let before = parts.known(&layout.archive(), &uploaded.upload)?;
        let staged =
            if is_whole { before.clone() } else { before.clone().for_another(uploaded.size()).await? };
        let before = Some(before).filter(|before| before.id() != staged.id());
        staged.id().clone_into(&mut uploaded.upload);
        let log = heard.behind(told, lines.to_vec());
        log.count_untold(untold);
        // A complete archive has logged its revision itself.
        for (is_warning, sentence) in moment.into_iter().filter(|_| !is_through) {
            let sentence = format!("of what was stored by then: {sentence}");
            if is_warning {
                log.warning(&ResultsHeading::Cluster, "", &sentence);
            } else {
                log.info(&sentence);
            }
        }
        let begun = Self {
            scope,
            ledger,
            uploaded,
            tail,
            is_whole,
            is_collected,
            operations,
            tried,
            volumes,
            version,
            staged,
            before,
        };
        Ok((begun, log))
    }

    /// Aborts what only the earlier run knew, once this run has written its own checkpoint.
    pub async fn forget_before(&mut self) {
        if let Some(before) = self.before.take() {
            // Otherwise it is removed when the archive is complete.
            let _ = before.abort().await;
        }
    }
}
