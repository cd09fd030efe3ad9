//! A model: a small cluster and a small store, in which a deletion is killed anywhere.

use proptest::prelude::*;

use super::*;

/// A small cluster and a small store.
#[derive(Clone, Debug)]
struct World {
    request: Option<bool>,
    is_recorded: bool,
    errors: Option<Vec<String>>,
    phase: Option<&'static str>,
    uid: &'static str,
    stored: StoredFolder,
    files: usize,
    files_go: bool,
    /// Somebody has set a finalizer of the Backup.
    is_finalized: bool,
    is_going: bool,
    /// The location has other backups.
    has_neighbours: bool,
    snapshots: usize,
    out_of_reach: bool,
    restores: usize,
    running: bool,
    /// The store keeps its files for now.
    is_locked: bool,
    inherits: &'static str,
}

impl World {
    fn stored(&self) -> StoredFolder {
        StoredFolder { has_others: self.files > 0, ..self.stored.clone() }
    }

    fn owner(&self) -> FolderOwner {
        let known = BackupIdentity { uid: UID.into(), ..known() };
        match owner(&known, &self.stored(), Inherited(self.inherits)) {
            FolderOwner::Nobody if !self.has_neighbours => FolderOwner::NobodyInEmpty,
            owner => owner,
        }
    }

    /// Files of somebody else.
    fn strangers(&self) -> Option<StoredFolder> {
        matches!(self.owner(), FolderOwner::Stranger(_)).then(|| self.stored())
    }

    fn step(&self) -> DeletionStep {
        let mut seen = DeletionState {
            now: at(100),
            request: DeletionRequest {
                backup: "b",
                uid: self.is_recorded.then_some(UID),
                created: None,
                has_begun: self.request.unwrap(),
                has_others: false,
                has_data: false,
            },
            backup: self.phase.map(|phase| DeletionBackup {
                uid: self.uid,
                files_go: self.files_go,
                is_going: self.is_going,
                ..backup(phase)
            }),
            location: DeletionLocation::Usable,
            folder: None,
            is_visible: self.stored.metadata.is_some(),
            is_shown: false,
            lock: None,
            volumes: None,
            restores: None,
        };
        loop {
            match next(&seen) {
                DeletionStep::LookAtFolder => seen.folder = Some(self.owner()),
                DeletionStep::LookAtLock => {
                    seen.lock =
                        Some(if self.is_locked { StoreLock::Until(at(101)) } else { StoreLock::None });
                }
                DeletionStep::LookAtVolumes => {
                    // What a Velero has moved is known by files of the folder alone.
                    let is_known = self.out_of_reach && self.files > 0;
                    let out_of_reach = if is_known { vec!["kopia".into()] } else { Vec::new() };
                    seen.volumes = Some(RemainingVolumeData { out_of_reach, snapshots: self.snapshots });
                }
                DeletionStep::LookAtRestores => {
                    let running = if self.running { vec!["r".into()] } else { Vec::new() };
                    seen.restores = Some(Restores { running, ended: self.restores });
                }
                step => return step,
            }
        }
    }

    /// Does at most `most` of the parts of a step.
    fn act(&mut self, step: &DeletionStep, most: usize) {
        for _ in 0..most {
            match step {
                // The Backup, and then its request.
                DeletionStep::TakeOut if self.phase.is_none() => self.request = None,
                DeletionStep::TakeOut | DeletionStep::RemoveBackup if !self.is_finalized => self.phase = None,
                DeletionStep::TakeOut if self.is_going => self.request = None,
                DeletionStep::TakeOut | DeletionStep::RemoveBackup => self.is_going = true,
                DeletionStep::Begin => (self.request, self.is_recorded) = (Some(true), true),
                DeletionStep::Mark { files_go } => {
                    self.phase = Some("Deleting");
                    self.files_go |= files_go;
                }
                DeletionStep::Record => self.files_go = true,
                DeletionStep::Claim => self.stored.claim = Some(claim(CLUSTER, UID, "deletion-1")),
                DeletionStep::RemoveSnapshots => self.snapshots = self.snapshots.saturating_sub(1),
                DeletionStep::RemoveFiles => match &self.stored.metadata {
                    Some(_) => self.stored.metadata = None,
                    None if self.files > 0 => self.files -= 1,
                    None => self.stored.claim = None,
                },
                DeletionStep::RemoveRestores => self.restores = self.restores.saturating_sub(1),
                DeletionStep::Done | DeletionStep::Forget => self.request = None,
                DeletionStep::End(errors) => self.errors = Some(errors.clone()),
                DeletionStep::EndLocked(until) => self.errors = Some(vec![locked(*until)]),
                step => panic!("{step:?} is nothing to do"),
            }
        }
    }
}

fn world() -> impl Strategy<Value = World> {
    let claims = prop_oneof![
        2 => Just(None),
        3 => Just(Some(claim(CLUSTER, UID, "r"))),
        1 => Just(Some(claim(CLUSTER, UID, "deletion-0"))),
        1 => Just(Some(claim(CLUSTER, "old", "r"))),
        1 => Just(Some(claim("away", "a", "r"))),
    ];
    let stored = prop_oneof![
        Just(None),
        Just(Some(metadata(UID, 1))),
        Just(Some(metadata("old", 1))),
        Just(Some(metadata("a", 1))),
        Just(Some(metadata("a", 99))),
    ];
    let phases = prop_oneof![
        1 => Just("Queued"),
        1 => Just("InProgress"),
        1 => Just("Failed"),
        4 => Just("Completed"),
        1 => Just("Deleting")
    ];
    let inherits = prop_oneof![Just(""), Just("away"), Just("*")];
    let counts = (0..4usize, 0..3usize, 0..3usize);
    let rarely = || prop::bool::weighted(0.1);
    let flags = (rarely(), rarely(), prop::bool::ANY, rarely(), rarely());
    (claims, stored, phases, inherits, counts, flags).prop_map(
        |(claim, metadata, phase, inherits, (files, snapshots, restores), flags)| World {
            request: Some(false),
            is_recorded: true,
            errors: None,
            phase: Some(phase),
            uid: UID,
            stored: StoredFolder { claim, metadata, has_others: false },
            files,
            files_go: false,
            is_finalized: flags.3,
            is_going: false,
            has_neighbours: flags.2,
            snapshots,
            out_of_reach: flags.0,
            restores,
            running: flags.1,
            is_locked: flags.4,
            inherits,
        },
    )
}

proptest! {
    /// Whoever carries the deletion out is killed in the middle of any step, and somebody else
    /// begins by looking.
    #[test]
    fn a_deletion_that_is_killed_anywhere_ends_and_removes_nothing_of_others(
        start in world(),
        kills in prop::collection::vec(0..4usize, 0..40),
    ) {
        let mut world = start.clone();
        let strangers = start.strangers();
        let mut kills = kills.into_iter();
        let mut is_begun = false;
        for round in 0.. {
            prop_assert!(round < 200, "it does not end: {world:?}");
            if world.request.is_none() || world.errors.is_some() {
                break;
            }
            let step = world.step();
            let before = world.clone();
            // One part of a step is enough for progress; none is a crash before the first.
            world.act(&step, kills.next().unwrap_or(9));
            is_begun |= world.request == Some(true);
            let lost_files = world.files < before.files || world.stored.metadata != before.stored.metadata;
            if lost_files {
                prop_assert_eq!(before.phase, Some("Deleting"));
                prop_assert_eq!(before.owner(), FolderOwner::Claimed);
                prop_assert_eq!(before.snapshots, 0, "the files name them");
                prop_assert!(before.files_go, "an empty folder is believed afterwards");
                prop_assert!(before.stored.metadata.is_none() || world.stored.metadata.is_none(), "it is hidden first");
            }
            if world.stored.claim.is_none() && before.stored.claim.is_some() {
                prop_assert_eq!((world.files, &world.stored.metadata), (0, &None), "the claim goes last");
            }
        }
        if let Some(strangers) = strangers {
            prop_assert_eq!(world.stored(), strangers);
        }
        match &world.errors {
            Some(errors) => {
                prop_assert!(!errors.is_empty());
                prop_assert!(!is_begun, "it was known before: {errors:?}");
                prop_assert_eq!(world.stored(), start.stored());
                prop_assert_eq!((world.snapshots, world.restores), (start.snapshots, start.restores));
                // The crash came after a Backup was taken out of the queue: it is gone, as was
                // asked.
                let is_taken_out = start.phase == Some("Queued") && world.phase.is_none();
                prop_assert!(is_taken_out || world.phase == start.phase, "{:?}", world.phase);
            }
            None => {
                prop_assert!(world.phase.is_none() || world.is_going, "{:?}", world.phase);
                if start.strangers().is_none() && start.phase != Some("Queued") {
                    prop_assert_eq!(world.stored(), StoredFolder::default());
                    prop_assert_eq!((world.snapshots, world.restores), (0, 0));
                }
            }
        }
    }

    #[test]
    fn nothing_that_a_store_says_makes_a_message_long_or_unprintable(text in "\\PC*") {
        for stranger in [
            ForeignFolderReason::CopyOfCluster(text.clone()),
            ForeignFolderReason::CopyOfBackup(text.clone()),
            ForeignFolderReason::Cluster(text.clone()),
            ForeignFolderReason::Backup(text.clone()),
        ] {
            let said = stranger.to_string();
            prop_assert!(said.len() < 500 && said.is_ascii(), "{said}");
        }
    }
}
