//! What happens to a Backup that is InProgress, or has stored its objects and must be completed,
//! while no process runs it: the leader died or was stopped, or the store failed.

mod ended;
mod runs;

pub use ended::{EndedRun, RunEndCause, RunFollowUp, after};
pub use runs::{MOST_RUNS, MOST_RUNS_AT_ALL, Runs};

use std::fmt;

use crate::claim::{FolderClaim, FolderContents, FolderDecision, judge};
use crate::stage::Stage;

/// The setting for interrupted Backups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterInterruption {
    /// The next leader resumes the Backup from what is stored if it can, or else restarts it.
    #[default]
    Resume,
    /// The next leader restarts the Backup from nothing.
    Restart,
    /// The Backup becomes Failed.
    Fail,
}

/// What a checkpoint claims about itself. It lies in the store, so everyone with write access to
/// the store can forge it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointIdentity<'a> {
    /// The run that wrote it.
    pub run: &'a str,
    /// Digest of the types and namespaces that the backup takes according to this checkpoint.
    pub scope: &'a str,
}

impl CheckpointIdentity<'_> {
    /// May the next run of the Backup continue from this checkpoint? It must be of the run of the
    /// claim, or of the run that the claim names in `before`, because other checkpoints say nothing
    /// about this folder. Its `scope` must equal the digest on the Backup, which only berth writes:
    /// so what is read is decided in the cluster, not in the store.
    pub fn is_believed(&self, claim: &FolderClaim, scope: Option<&str>) -> bool {
        let is_of_claim = self.run == claim.run || claim.before.as_deref() == Some(self.run);
        is_of_claim && scope == Some(self.scope)
    }
}

/// What is known of the interrupted Backup.
#[derive(Clone, Debug)]
pub struct Interrupted<'a> {
    pub phase: &'a str,
    pub is_canceled: bool,
    /// A run of this engine has begun the Backup.
    pub is_begun: bool,
    /// The Backup was taken over, so its former run can no longer get permission to publish. Before
    /// that, its files may be in use.
    pub is_held: bool,
    /// The former run had permission to publish, and all files that are stored before that request
    /// exist.
    pub is_whole: bool,
    /// The archive of the folder exists.
    pub has_archive: bool,
    /// How often the Backup was run so far.
    pub runs: Runs,
    /// The claim of a run that would begin now.
    pub ours: &'a FolderClaim,
    pub folder: &'a FolderContents,
    /// Digest of the scope of the backup, as its latest run wrote it on the Backup.
    pub scope: Option<&'a str>,
    /// The checkpoint in the store, if there is a readable one.
    pub checkpoint: Option<CheckpointIdentity<'a>>,
    pub setting: AfterInterruption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Do nothing: the Backup is not this engine's.
    NotOurs,
    /// A backup is stored in the folder, perhaps this one: adopt its final status.
    Adopt,
    /// All files but the last are stored: write that one.
    Publish,
    /// Continue from the checkpoint.
    Resume,
    /// Remove what the earlier runs stored, and begin from nothing.
    Restart,
    Fail(Why),
}

/// Why the Backup ends as Failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The setting says so, or there is no sign that this engine ever ran the Backup.
    Ended,
    /// The Backup has the annotation `berth.dev/cancel`.
    Canceled,
    /// All runs that are allowed ended early.
    TooOften,
    /// The files in the folder are not provably those of this Backup, so they stay.
    Strange,
    /// A backup is published in the folder, and its archive is not there. Velero stores its archive
    /// last. The files stay.
    NoArchive,
    /// All objects were stored, and there is no checkpoint from which the backup can be completed.
    Lost,
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended | Self::Strange => {
                out.write_str("the controller that ran it ended before the backup did")
            }
            Self::Canceled => out.write_str("berth.dev/cancel was set, or the Backup was deleted"),
            Self::NoArchive => out.write_str(
                "velero-backup.json is in the location and the archive is not, because the controller that stored it ended between \
                 the two, or because the archive was removed: create it again by another name",
            ),
            Self::Lost => out.write_str(
                "what was stored while its data was being moved is not in the location any more, or cannot be continued: create it again",
            ),
            Self::TooOften => write!(
                out,
                "each of its runs ended before the backup did ({MOST_RUNS} in a row that came no further, or {MOST_RUNS_AT_ALL} at all), \
                 because the controller was killed or its store failed: the logs of the controller and the last state of its pods say \
                 why (its memory limit, above all); then create it again"
            ),
        }
    }
}

pub fn recover(found: &Interrupted<'_>) -> Recovery {
    let stage = Stage::of(found.phase);
    if found.phase != "InProgress" && stage.is_none() {
        return Recovery::NotOurs;
    }
    if found.folder.published {
        return if found.has_archive { Recovery::Adopt } else { Recovery::Fail(Why::NoArchive) };
    }
    if !found.is_held {
        return Recovery::Fail(Why::Strange);
    }
    let claim = found.folder.claim.as_ref().filter(|claim| claim.is_of_backup_of(found.ours));
    let may_claim =
        || matches!(judge(found.ours, found.folder), FolderDecision::Free | FolderDecision::IfGone);
    match (claim, found.setting) {
        (Some(_), _) if found.is_whole => Recovery::Publish,
        (None, _) if !may_claim() => Recovery::Fail(Why::Strange),
        _ if found.is_canceled => Recovery::Fail(Why::Canceled),
        (_, AfterInterruption::Fail) => Recovery::Fail(Why::Ended),
        // A Velero may be running it.
        (None, _) if !found.is_begun => Recovery::Fail(Why::Ended),
        // Nothing has interrupted it.
        _ if stage == Some(Stage::Waiting) => Recovery::NotOurs,
        // It takes no slot, so it is tried for as long as it takes: see `operation::is_due`.
        _ if stage.is_none() && !found.runs.may_go_on() => Recovery::Fail(Why::TooOften),
        (Some(claim), setting)
            if (setting == AfterInterruption::Resume || stage.is_some())
                && found.checkpoint.is_some_and(|checkpoint| checkpoint.is_believed(claim, found.scope)) =>
        {
            Recovery::Resume
        }
        // It holds no slot and no namespaces any more, so it cannot begin again.
        _ if stage.is_some() => Recovery::Fail(Why::Lost),
        _ => Recovery::Restart,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(cluster: &str, backup: &str, run: &str) -> FolderClaim {
        let [cluster, backup, run] = [cluster, backup, run].map(str::to_owned);
        FolderClaim { cluster, backup, run, ..FolderClaim::default() }
    }

    fn folder(claim: Option<FolderClaim>, others: bool) -> FolderContents {
        FolderContents { published: false, claim, others }
    }

    /// A leader died in the middle of the first run, and there is a checkpoint.
    fn usual<'a>(ours: &'a FolderClaim, folder: &'a FolderContents) -> Interrupted<'a> {
        Interrupted {
            phase: "InProgress",
            is_canceled: false,
            is_begun: true,
            is_held: true,
            is_whole: false,
            has_archive: true,
            runs: Runs::default(),
            ours,
            folder,
            scope: Some("frozen"),
            checkpoint: Some(FROZEN),
            setting: AfterInterruption::Resume,
        }
    }

    const MOST: Runs = Runs { all: MOST_RUNS, in_vain: MOST_RUNS, furthest: 0 };
    /// The checkpoint of the run that died.
    const FROZEN: CheckpointIdentity<'static> = CheckpointIdentity { run: "dead", scope: "frozen" };

    #[test]
    fn a_run_that_died_goes_on_begins_anew_or_fails_as_people_want_it() {
        use AfterInterruption::{Fail, Restart, Resume};
        let ours = claim("here", "b", "next");
        let dead = folder(Some(claim("here", "b", "dead")), true);
        for (setting, checkpoint, recovery) in [
            (Resume, Some(FROZEN), Recovery::Resume),
            (Resume, Some(CheckpointIdentity { run: "an earlier one", ..FROZEN }), Recovery::Restart),
            (Resume, Some(CheckpointIdentity { scope: "all Secrets", ..FROZEN }), Recovery::Restart),
            (Resume, None, Recovery::Restart),
            (Restart, Some(FROZEN), Recovery::Restart),
            (Restart, None, Recovery::Restart),
            (Fail, Some(FROZEN), Recovery::Fail(Why::Ended)),
            (Fail, None, Recovery::Fail(Why::Ended)),
        ] {
            let found = Interrupted { setting, checkpoint, ..usual(&ours, &dead) };
            assert_eq!(recover(&found), recovery, "{found:?}");
            let most = Interrupted { runs: MOST, ..found.clone() };
            let expected = if setting == Fail { recovery } else { Recovery::Fail(Why::TooOften) };
            assert_eq!(recover(&most), expected, "{most:?}");
            for (changed, expected) in [
                (Interrupted { is_canceled: true, ..found.clone() }, Recovery::Fail(Why::Canceled)),
                (Interrupted { is_held: false, ..found.clone() }, Recovery::Fail(Why::Strange)),
                (Interrupted { is_whole: true, is_canceled: true, ..most }, Recovery::Publish),
                (Interrupted { phase: "Completed", ..found.clone() }, Recovery::NotOurs),
                (Interrupted { phase: "Deleting", ..found.clone() }, Recovery::NotOurs),
                // The claim proves it all the same.
                (Interrupted { is_begun: false, ..found }, recovery),
            ] {
                assert_eq!(recover(&changed), expected, "{changed:?}");
            }
        }
    }

    #[test]
    fn what_has_stored_its_objects_is_completed_and_never_begins_again() {
        use AfterInterruption::{Fail, Restart, Resume};
        let ours = claim("here", "b", "next");
        let dead = folder(Some(claim("here", "b", "dead")), true);
        let strange = Some(CheckpointIdentity { scope: "all Secrets", ..FROZEN });
        for phase in ["Finalizing", "FinalizingPartiallyFailed"] {
            for (setting, checkpoint, recovery) in [
                (Resume, Some(FROZEN), Recovery::Resume),
                (Restart, Some(FROZEN), Recovery::Resume),
                (Fail, Some(FROZEN), Recovery::Fail(Why::Ended)),
                (Resume, None, Recovery::Fail(Why::Lost)),
                (Restart, None, Recovery::Fail(Why::Lost)),
                (Resume, strange, Recovery::Fail(Why::Lost)),
            ] {
                let found = Interrupted { phase, setting, checkpoint, ..usual(&ours, &dead) };
                assert_eq!(recover(&found), recovery, "{found:?}");
                let often = Interrupted { runs: MOST, ..found.clone() };
                assert_eq!(recover(&often), recovery, "it waits, and is not given up");
                let canceled = Interrupted { is_canceled: true, ..found.clone() };
                assert_eq!(recover(&canceled), Recovery::Fail(Why::Canceled));
                assert_eq!(recover(&Interrupted { is_whole: true, ..canceled }), Recovery::Publish);
            }
        }
        for phase in ["WaitingForPluginOperations", "WaitingForPluginOperationsPartiallyFailed"] {
            let waits = Interrupted { phase, ..usual(&ours, &dead) };
            assert_eq!(recover(&waits), Recovery::NotOurs);
            let canceled = Interrupted { is_canceled: true, ..waits.clone() };
            assert_eq!(recover(&canceled), Recovery::Fail(Why::Canceled));
            assert_eq!(recover(&Interrupted { setting: Fail, ..waits }), Recovery::Fail(Why::Ended));
        }
    }

    /// The run was interrupted between its claim and its first checkpoint, so it has stored
    /// nothing.
    #[test]
    fn the_checkpoint_from_which_the_run_of_the_claim_goes_on_is_believed_and_no_earlier_one() {
        let ours = claim("here", "b", "next");
        let interrupted =
            FolderClaim { before: Some("dead".to_owned()), ..claim("here", "b", "interrupted") };
        let found = folder(Some(interrupted), true);
        for (run, recovery) in [
            ("dead", Recovery::Resume),
            ("interrupted", Recovery::Resume),
            ("an earlier one", Recovery::Restart),
            ("", Recovery::Restart),
        ] {
            let checkpoint = Some(CheckpointIdentity { run, ..FROZEN });
            assert_eq!(recover(&Interrupted { checkpoint, ..usual(&ours, &found) }), recovery, "{run}");
        }
    }

    /// Everyone with write access to the store can write any checkpoint, but not the annotations of
    /// the Backup.
    #[test]
    fn what_is_read_is_never_for_a_checkpoint_to_say() {
        let ours = claim("here", "b", "next");
        let dead = folder(Some(claim("here", "b", "dead")), true);
        for (stands, says, recovery) in [
            (Some("frozen"), "frozen", Recovery::Resume),
            (Some("frozen"), "another", Recovery::Restart),
            (Some("frozen"), "", Recovery::Restart),
            (Some(""), "frozen", Recovery::Restart),
            // Begun by a run that wrote no checkpoints.
            (None, "frozen", Recovery::Restart),
            (None, "", Recovery::Restart),
        ] {
            let checkpoint = Some(CheckpointIdentity { scope: says, ..FROZEN });
            let found = Interrupted { scope: stands, checkpoint, ..usual(&ours, &dead) };
            assert_eq!(recover(&found), recovery, "{found:?}");
        }
    }

    #[test]
    fn what_lies_in_the_folder_decides_whether_it_may_be_touched() {
        let ours = claim("here", "b", "next");
        for (found, others, recovery) in [
            // The run died before it had claimed the folder, which may still have the claim of a
            // deleted Backup.
            (None, false, Recovery::Restart),
            (Some(claim("here", "an earlier one", "dead")), true, Recovery::Restart),
            (None, true, Recovery::Fail(Why::Strange)),
            (Some(claim("elsewhere", "b", "dead")), true, Recovery::Fail(Why::Strange)),
            (Some(claim("elsewhere", "c", "dead")), false, Recovery::Fail(Why::Strange)),
        ] {
            let mut folder = folder(found, others);
            let begun = usual(&ours, &folder);
            assert_eq!(recover(&begun), recovery, "{begun:?}");
            let theirs = Interrupted { is_begun: false, ..begun };
            assert!(matches!(recover(&theirs), Recovery::Fail(_)), "{theirs:?}");
            folder.published = true;
            for is_held in [false, true] {
                let found = Interrupted { is_held, ..usual(&ours, &folder) };
                assert_eq!(recover(&found), Recovery::Adopt);
                // A Velero that ends there has stored its velero-backup.json, and not its archive.
                let torn = Interrupted { has_archive: false, is_whole: true, ..found };
                assert_eq!(recover(&torn), Recovery::Fail(Why::NoArchive));
            }
        }
    }

    fn claims() -> impl Strategy<Value = Option<FolderClaim>> {
        let before = proptest::option::of("dead|other");
        let one = ("here|elsewhere", "b|c", "dead|next|other", before);
        proptest::option::of(one.prop_map(|(c, b, r, before)| FolderClaim { before, ..claim(&c, &b, &r) }))
    }

    proptest! {
        /// In every situation: files that are not of this Backup are neither resumed nor published,
        /// a Backup that was run often enough is not run again, and a stored backup is never thrown
        /// away.
        #[test]
        fn nothing_is_touched_that_is_not_provably_ours(
            phase in "InProgress|Completed|Queued|Finalizing|WaitingForPluginOperations",
            flags in prop::array::uniform4(any::<bool>()),
            (published, others, has_archive) in any::<(bool, bool, bool)>(),
            found in claims(),
            runs in (0_u32..6, 0_u32..12, 0_u64..4).prop_map(|(in_vain, all, furthest)| Runs { all, in_vain, furthest }),
            checkpoint in proptest::option::of(("dead|next|other", "frozen|other")),
            scope in proptest::option::of("frozen|other"),
            setting in prop::sample::select(vec![
                AfterInterruption::Resume, AfterInterruption::Restart, AfterInterruption::Fail,
            ]),
        ) {
            let ours = claim("here", "b", "next");
            let [is_canceled, is_begun, is_held, is_whole] = flags;
            let folder = FolderContents { published, claim: found, others };
            let situation = Interrupted {
                phase: &phase, is_canceled, is_begun, is_held, is_whole, has_archive, runs,
                ours: &ours, folder: &folder,
                scope: scope.as_deref(), setting,
                checkpoint: checkpoint.as_ref().map(|(run, scope)| CheckpointIdentity { run, scope }),
            };
            let recovery = recover(&situation);
            let is_ours = folder.claim.as_ref().is_some_and(|claim| claim.cluster == "here" && claim.backup == "b");
            let runs_again = matches!(recovery, Recovery::Resume | Recovery::Restart);
            prop_assert!(recovery != Recovery::Adopt || published && has_archive);
            if matches!(recovery, Recovery::Resume | Recovery::Publish) {
                prop_assert!(is_ours && is_held && !published);
            }
            if runs_again {
                prop_assert!((runs.may_go_on() || phase == "Finalizing") && setting != AfterInterruption::Fail && !is_canceled && is_held);
                prop_assert!(phase == "InProgress" || recovery == Recovery::Resume && phase == "Finalizing");
                let is_of_another_cluster = folder.claim.as_ref().is_some_and(|claim| claim.cluster != "here");
                prop_assert!(!(published || is_of_another_cluster || is_ours && is_whole));
                prop_assert!(folder.claim.is_some() || !others);
            }
            if recovery == Recovery::Resume {
                let (by, claim) = (checkpoint.as_ref().map(|(run, _)| run), folder.claim.as_ref());
                let before = claim.and_then(|claim| claim.before.as_ref());
                prop_assert!(by.is_some() && (by == claim.map(|claim| &claim.run) || by == before));
                prop_assert_eq!(checkpoint.as_ref().map(|(_, scope)| scope), scope.as_ref());
            }
            if phase == "WaitingForPluginOperations" {
                prop_assert!(!runs_again);
            } else {
                let is_there = matches!(&*phase, "InProgress" | "Finalizing");
                prop_assert_eq!(recovery == Recovery::NotOurs, !is_there);
            }
        }
    }
}
