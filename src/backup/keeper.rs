//! Keeps the checkpoint of a run, by what its upload reports as stored. Checkpoints are written
//! seldom enough to cost little, and often enough that little of the work is done twice.

use std::time::Duration;

use berth_core::claim::FolderClaim;
use berth_core::upload::may_write_over;
use bytes::Bytes;
use object_store::{Error, UpdateVersion};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::begun::{EarlierProgress, RunSite};
use super::checkpoint::{Checkpoint, HEAD, Packed, Remembered, Uploaded};
use super::hooks::Tally;
use super::ledger::{Extents, ObjectLedger};
use super::log::{BackupLog, LogMessage, Untold};
use super::messages::UploadProgress;
use super::movement::Movements;
use super::noted::CheckpointUpload;
use super::revision::Revision;
use super::volumes::outcomes::Outcomes;
use crate::storage::{BackupLayout, ClaimError};
use crate::text::chain;

/// Shortest pause between two checkpoints, and the pause as a share of the run's time: at most that
/// share of the work is done twice, and a long run writes some hundred checkpoints.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;
/// Pause as a multiple of the time that the last checkpoint took, so that a slow store is not kept
/// busy.
const REST: u32 = 10;
/// Most bytes of log lines in a checkpoint. Without the lines, a run that continues begins a new
/// log.
const MOST_LINES: usize = 4 << 20;
/// How often a write is repeated when an unexpected checkpoint is found.
const TRIES: usize = 3;

/// What a run knows, for its checkpoints.
#[derive(Clone, Copy)]
pub struct CheckpointSources<'a> {
    pub log: &'a BackupLog,
    pub ledger: &'a ObjectLedger,
    pub tally: &'a Tally,
    pub operations: &'a Movements,
    pub outcomes: &'a Outcomes,
    pub revision: Option<&'a Revision>,
}

impl<'a> CheckpointSources<'a> {
    /// What earlier runs have left at this place, without a revision, because this run lists
    /// nothing.
    pub fn of_site(site: &'a RunSite, ledger: &'a ObjectLedger, log: &'a BackupLog) -> Self {
        Self {
            log,
            ledger,
            tally: &site.tally,
            operations: &site.operations,
            outcomes: &site.outcomes,
            revision: None,
        }
    }
}

/// Why a checkpoint was not written.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error(transparent)]
    Store(#[from] Error),
    /// This run can write no checkpoint any more.
    #[error("another run has the checkpoint, or made it void: this one writes none any more")]
    Over,
}

/// Keeps the checkpoint of one run.
pub struct CheckpointKeeper<'a> {
    layout: &'a BackupLayout,
    known: CheckpointSources<'a>,
    claim: FolderClaim,
    scope: Packed,
    uploaded: Uploaded,
    tail: Bytes,
    is_whole: bool,
    is_collected: bool,
    /// Version of the checkpoint in the store.
    version: Option<UpdateVersion>,
    /// Number of messages before the first list.
    told_before: usize,
    begun: Instant,
    /// More is stored than the checkpoint in the store says.
    is_behind: bool,
    /// This run has stored objects.
    has_stored: bool,
    /// The checkpoint of `version` is still that of the earlier run.
    goes_on: bool,
    /// Another run has written a checkpoint, or this run can write none.
    is_over: bool,
}

impl<'a> CheckpointKeeper<'a> {
    /// The keeper of a run that begins or restarts its backup.
    pub fn new(
        layout: &'a BackupLayout,
        known: CheckpointSources<'a>,
        claim: &FolderClaim,
        scope: Packed,
    ) -> Self {
        Self {
            layout,
            known,
            claim: claim.clone(),
            scope,
            uploaded: Uploaded::default(),
            tail: Bytes::new(),
            is_whole: false,
            is_collected: false,
            version: None,
            told_before: known.log.told().len(),
            begun: Instant::now(),
            is_behind: false,
            has_stored: false,
            goes_on: false,
            is_over: false,
        }
    }

    /// The keeper of a run that continues from a checkpoint, which must be written as this run's
    /// before anything else is stored.
    pub fn going_on(
        layout: &'a BackupLayout,
        known: CheckpointSources<'a>,
        claim: &FolderClaim,
        begun: &EarlierProgress,
    ) -> Self {
        Self {
            uploaded: begun.uploaded.clone(),
            tail: begun.tail.clone(),
            is_whole: begun.is_whole,
            is_collected: begun.is_collected,
            version: Some(begun.version.clone()),
            is_behind: true,
            goes_on: true,
            ..Self::new(layout, known, claim, begun.scope.clone())
        }
    }

    /// Whether a checkpoint of this run is in the store.
    pub fn has_one(&self) -> bool {
        self.version.is_some() && !self.is_over
    }

    /// Whether the checkpoint in the store is this run's and says all that is stored.
    pub fn is_up_to_date(&self) -> bool {
        self.has_one() && !self.is_behind
    }

    /// Whether this run has stored more than it began with.
    pub fn has_stored(&self) -> bool {
        self.has_stored
    }

    /// Runs until the upload has ended. The future may be dropped; the caller decides whether a
    /// last checkpoint is written.
    pub async fn run(&mut self, progress: &mut mpsc::Receiver<UploadProgress>) {
        let mut due = Instant::now();
        loop {
            let next = if self.is_behind && !self.is_over {
                timeout_at(due, progress.recv()).await
            } else {
                Ok(progress.recv().await)
            };
            match next {
                Ok(Some(progress)) => {
                    if let Some(kept) = self.note(progress) {
                        self.write().await;
                        // If the send fails the upload has ended.
                        let _ = kept.send(());
                    }
                }
                Ok(None) => return,
                Err(_) => {
                    let took = Instant::now();
                    self.write().await;
                    let pause = PAUSE.max(self.begun.elapsed() / SHARE).max(took.elapsed() * REST);
                    due = Instant::now() + pause;
                }
            }
        }
    }

    fn note(&mut self, progress: UploadProgress) -> Option<oneshot::Sender<()>> {
        (self.is_behind, self.has_stored) = (true, true);
        match progress {
            UploadProgress::Part { upload, receipt, contents, tail } => {
                self.uploaded.upload = upload;
                self.uploaded.parts.push(receipt);
                self.known.ledger.stored(contents);
                self.tail = tail;
                None
            }
            UploadProgress::Whole { receipts, contents, kept } => {
                self.uploaded.parts.extend(receipts);
                self.known.ledger.stored(contents);
                self.tail = Bytes::new();
                self.is_whole = true;
                Some(kept)
            }
            UploadProgress::Resting { upload, tail, contents, kept } => {
                self.uploaded.upload = upload;
                self.known.ledger.stored(contents);
                self.tail = tail;
                self.is_collected = true;
                Some(kept)
            }
        }
    }

    /// Writes the last checkpoint of a run that leaves its backup to another one: with the messages
    /// and hook results since the previous checkpoint.
    pub async fn finish(&mut self, patience: Duration) {
        if (self.is_behind || self.has_one()) && timeout(patience, self.write()).await.is_err() {
            warn!(
                name = self.layout.backup(),
                "could not write the last checkpoint in time: the next run does again what came after the one before it"
            );
        }
    }

    /// Writes the checkpoint. After a failure the next one tries again.
    async fn write(&mut self) {
        let was_over = self.is_over;
        if let Err(error) = self.try_write().await
            && !was_over
        {
            warn!(
                name = self.layout.backup(),
                error = chain(&error),
                "could not write a checkpoint: the next one is tried in time"
            );
        }
    }

    /// Writes the checkpoint; replaces only a checkpoint that this run wrote or took over.
    ///
    /// # Errors
    /// When the checkpoint was not written.
    pub async fn try_write(&mut self) -> Result<(), KeepError> {
        if self.is_over {
            return Err(KeepError::Over);
        }
        let content = self.checkpoint().and_then(Checkpoint::content);
        let content =
            content.map_err(|error| Error::Generic { store: "checkpoint", source: error.into() })?;
        // The process may have been paused before its first checkpoint, and lost its claim.
        if self.version.is_none() && !self.is_claimed().await? {
            self.is_over = true;
            return Err(KeepError::Over);
        }
        for _ in 0..TRIES {
            match self.layout.put_checkpoint(content.clone(), self.version.clone()).await {
                Ok(version) => {
                    self.stands(version);
                    return Ok(());
                }
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let (found, version) = self.layout.read_checkpoint_start(HEAD).await?.unzip();
            // The answer to this very write may have been lost: the first line holds a digest of
            // the rest. An earlier checkpoint of this run says less.
            if let (Some(found), Some(version)) = (&found, &version)
                && content.iter().flatten().take(HEAD).eq(found.iter())
            {
                self.stands(version.clone());
                return Ok(());
            }
            let is_claimed = self.is_claimed().await?;
            if !may_write_over(
                &self.claim.run,
                self.goes_on,
                is_claimed,
                &CheckpointUpload::of(found).standing(),
            ) {
                self.is_over = true;
                return Err(KeepError::Over);
            }
            self.version = version;
        }
        let source = "another process wrote it between all attempts".into();
        Err(Error::Generic { store: "checkpoint", source }.into())
    }

    fn stands(&mut self, version: UpdateVersion) {
        (self.version, self.is_behind, self.goes_on) = (Some(version), false, false);
        self.known.ledger.keep();
    }

    async fn is_claimed(&self) -> Result<bool, Error> {
        match self.layout.confirm(&self.claim).await {
            Ok(()) => Ok(true),
            Err(ClaimError::Store(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn checkpoint(&self) -> std::io::Result<Checkpoint> {
        // Lists and hooks before messages, because then all messages of a complete list and of a
        // pod that is left out are included.
        let balance = self.known.ledger.balance()?;
        let hooks = self.known.tally.tried();
        let remembered = Remembered {
            told: self.told(&balance.extents),
            untold: self.untold(&balance.extents),
            hooks,
            operations: self.known.operations.all(),
            volumes: self.known.outcomes.all(),
            moment: Revision::sentences(self.known.revision),
        };
        let lines = Bytes::from(self.known.log.lines()?);
        Ok(Checkpoint {
            run: self.claim.run.clone(),
            scope: self.scope.clone(),
            uploaded: self.uploaded.clone(),
            tail: self.tail.clone(),
            is_whole: self.is_whole,
            is_collected: self.is_collected,
            balance,
            remembered,
            lines: if lines.len() > MOST_LINES { Bytes::new() } else { lines },
        })
    }

    /// Messages that a run which continues does not find again: those before the first list, those
    /// of lists that are not read again, and those of what is done once.
    fn told(&self, extents: &Extents) -> Vec<LogMessage> {
        let told = self.known.log.told();
        if self.is_whole || self.is_collected {
            return told;
        }
        let is_kept = |told: &LogMessage| told.lasts || self.known.ledger.is_through(&told.resource, extents);
        let kept = told.into_iter().enumerate();
        kept.filter(|(i, told)| *i < self.told_before || is_kept(told)).map(|(_, told)| told).collect()
    }

    /// The same for counts of messages for which there was no room.
    fn untold(&self, extents: &Extents) -> Untold {
        let mut untold = self.known.log.untold();
        let is_kept = |name: &String| name.is_empty() || self.known.ledger.is_through(name, extents);
        untold.retain(|name, _| self.is_whole || self.is_collected || is_kept(name));
        untold
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use berth_core::selection::{ResourceType, Selection};
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;
    use crate::backup::checkpoint::BackupScope;
    use crate::backup::log::{MessageCounts, ResultsHeading};

    /// What a run knows that has run no hooks and backed up no volumes.
    #[derive(Default)]
    struct Run {
        tally: Tally,
        outcomes: Outcomes,
        operations: Movements,
    }

    impl Run {
        fn known<'a>(&'a self, log: &'a BackupLog, ledger: &'a ObjectLedger) -> CheckpointSources<'a> {
            let Self { tally, outcomes, operations } = self;
            CheckpointSources { log, ledger, tally, outcomes, operations, revision: None }
        }
    }

    /// A type that is listed again is told of again, and so each of its errors counts once.
    #[test]
    fn what_there_was_no_room_for_is_kept_of_types_alone_that_are_not_listed_again() {
        let kind = |resource: &str| ResourceType {
            group: String::new(),
            version: "v1".into(),
            kind: resource.into(),
            resource: resource.into(),
            singular: String::new(),
            short_names: Vec::new(),
            namespaced: true,
        };
        let (through, again) = (kind("configmaps"), kind("secrets"));
        let ledger = ObjectLedger::new(&[through.clone(), again]);
        ledger.whole(&through, false);
        let log = BackupLog::new("velero/b".into());
        let run = Run::default();
        let untold = |names: &[&str]| {
            let of = |name: &&str| ((*name).to_owned(), MessageCounts { warnings: 0, errors: 2 });
            names.iter().map(of).collect::<Untold>()
        };
        log.count_untold(untold(&["", "configmaps", "secrets"]));
        let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
        let selection = Selection::of(std::iter::empty(), true);
        let scope = Packed::new(&BackupScope::of(&[], &selection, &HashSet::new(), "")).unwrap();
        let known = run.known(&log, &ledger);
        let mut keeper = CheckpointKeeper::new(&layout, known, &FolderClaim::default(), scope.clone());
        assert_eq!(keeper.checkpoint().unwrap().remembered.untold, untold(&["", "configmaps"]));
        keeper.is_whole = true;
        assert_eq!(keeper.checkpoint().unwrap().remembered.untold, untold(&["", "configmaps", "secrets"]));
        // What says that there are more does not stand for any of them.
        let log = BackupLog::new("velero/b".into());
        let keeper = CheckpointKeeper::new(
            &layout,
            CheckpointSources { log: &log, ..known },
            &FolderClaim::default(),
            scope,
        );
        for i in 0..6000 {
            log.error(&ResultsHeading::Cluster, "configmaps", &format!("error {i}"));
        }
        let Remembered { told, untold, .. } = keeper.checkpoint().unwrap().remembered;
        let next = BackupLog::new("velero/b".into()).behind(told, Vec::new());
        next.count_untold(untold);
        assert_eq!(next.counts(), log.counts());
    }

    #[tokio::test]
    async fn what_stands_there_is_written_over_by_the_run_of_the_claim_alone_and_a_void_one_by_nobody() {
        let layout = BackupLayout::new(Arc::new(InMemory::new()), None, "b");
        let claim = |run: &str| FolderClaim { run: run.to_owned(), ..FolderClaim::default() };
        layout.claim(&claim("ours"), None).await.unwrap();
        let (log, ledger, run) = (BackupLog::new("velero/b".into()), ObjectLedger::new(&[]), Run::default());
        let known = run.known(&log, &ledger);
        let selection = Selection::of(std::iter::empty(), true);
        let scope = Packed::new(&BackupScope::of(&[], &selection, &HashSet::new(), "")).unwrap();
        let keeper = |run: &str| CheckpointKeeper::new(&layout, known, &claim(run), scope.clone());
        let (mut ours, mut old) = (keeper("ours"), keeper("old"));
        assert!(matches!(old.try_write().await, Err(KeepError::Over)));
        ours.try_write().await.unwrap();
        // An old run has removed it, or written over it where the store knows no conditions.
        layout.remove_checkpoint().await.unwrap();
        ours.try_write().await.unwrap();
        layout.store().put(&layout.checkpoint_path(), "of another".into()).await.unwrap();
        ours.try_write().await.unwrap();
        let (content, _) = layout.read_checkpoint().await.unwrap().unwrap();
        assert_eq!(Checkpoint::read(content).unwrap().run, "ours");
        layout.void_checkpoint(&claim("ours"), 4096).await.unwrap();
        assert!(matches!(ours.try_write().await, Err(KeepError::Over)));
        assert!(!ours.has_one());
        let (content, _) = layout.read_checkpoint().await.unwrap().unwrap();
        assert!(content.is_empty());
    }
}
