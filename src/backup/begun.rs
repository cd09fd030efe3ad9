//! Where a run stores, and what an earlier run of the same Backup has stored there, with which it goes on.

use anyhow::ensure;
use berth_api::velero::BackupStorageLocation;
use berth_core::claim::Claim;
use bytes::Bytes;
use object_store::UpdateVersion;

use super::checkpoint::{Checkpoint, Packed, Remembered, Uploaded};
use super::hooks::{Tally, Tried};
use super::ledger::Ledger;
use super::log::{About, BackupLog};
use crate::storage::{Layout, Parts, Staged};

/// Where a run stores, under its own claim.
pub struct Site {
    pub location: BackupStorageLocation,
    pub layout: Layout,
    pub parts: Parts,
    pub claim: Claim,
    /// What it goes on with.
    pub begun: Option<Begun>,
    /// What it takes, as the Backup knows it: what its checkpoints say, if it writes any.
    pub scope: Option<Packed>,
    /// A later run may go on with what this one has stored, or with what it began with itself.
    pub is_resumable: bool,
    /// It went on from a checkpoint, and the store took nothing more.
    pub is_stuck: bool,
    /// Another run of the backup was there before it.
    pub is_taken_over: bool,
    /// The upload of its archive, once it is begun or gone on with.
    pub staged: Option<Staged>,
    /// Hooks that were tried before.
    pub tally: Tally,
}

/// What an earlier run has stored.
pub struct Begun {
    pub scope: Packed,
    pub ledger: Ledger,
    pub uploaded: Uploaded,
    /// Bytes of the archive behind the parts.
    pub tail: Bytes,
    /// The archive is stored, and has only to be put together if that is not done already.
    pub is_whole: bool,
    /// Hooks that it has tried.
    pub tried: Tried,
    /// Of the checkpoint that says so.
    pub version: UpdateVersion,
    pub staged: Staged,
    /// As the earlier run has it, if it is another one.
    before: Option<Staged>,
}

impl Begun {
    /// Goes on from a checkpoint whose scope is that of the Backup, with the log of the run that wrote it, and `heard` behind that. `policy`: digest of the resource
    /// policy as it is now.
    ///
    /// # Errors
    /// When nobody can go on from it: the backup is to begin anew then.
    pub async fn open(
        layout: &Layout,
        parts: &Parts,
        checkpoint: Checkpoint,
        version: UpdateVersion,
        heard: &BackupLog,
        policy: &str,
    ) -> anyhow::Result<(Self, BackupLog)> {
        let Checkpoint { scope, mut uploaded, tail, is_whole, balance, remembered, lines, .. } = checkpoint;
        let Remembered { told, untold, hooks: tried, moment } = remembered;
        let began_with = scope.open()?;
        ensure!(is_whole || began_with.policy() == policy, "its resource policy has changed since");
        let types = began_with.types();
        let ledger = Ledger::again(&types, balance)?;
        ensure!(
            ledger.lies_in(&types, &began_with.resolved()),
            "it has objects of namespaces that are not the backup's"
        );
        let before = parts.known(&layout.archive(), &uploaded.upload)?;
        let staged =
            if is_whole { before.clone() } else { before.clone().for_another(uploaded.size()).await? };
        let before = Some(before).filter(|before| before.id() != staged.id());
        staged.id().clone_into(&mut uploaded.upload);
        let log = heard.behind(told, lines.to_vec());
        log.count_untold(untold);
        // What is whole has said so itself.
        for (is_warning, sentence) in moment.into_iter().filter(|_| !is_whole) {
            let sentence = format!("of what was stored by then: {sentence}");
            if is_warning {
                log.warning(&About::Cluster, "", &sentence);
            } else {
                log.info(&sentence);
            }
        }
        Ok((Self { scope, ledger, uploaded, tail, is_whole, tried, version, staged, before }, log))
    }

    /// Once it is written down that this run goes on with it: what only the earlier one knew goes.
    pub async fn forget_before(&mut self) {
        if let Some(before) = self.before.take() {
            // Otherwise it goes when the archive is complete.
            let _ = before.abort().await;
        }
    }
}
