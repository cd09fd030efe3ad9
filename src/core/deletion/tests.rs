//! Tables, and a model: a small cluster and a small store, in which a deletion is killed anywhere.

use proptest::prelude::*;

use super::*;
use crate::claim::Claim;

const CLUSTER: &str = "this-cluster";
const NAMESPACE: &str = "velero";
const UID: &str = "uid-of-the-backup";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn known() -> Known {
    Known {
        cluster: CLUSTER.into(),
        namespace: NAMESPACE.into(),
        uid: UID.into(),
        started: Some(at(1)),
        completed: Some(at(2)),
    }
}

fn claim(cluster: &str, uid: &str, run: &str) -> Claim {
    let [cluster, namespace, backup, run] = [cluster, NAMESPACE, uid, run].map(str::to_owned);
    Claim { cluster, namespace, backup, run, before: None }
}

fn metadata(uid: &str, started: i64) -> Metadata {
    Metadata { uid: uid.into(), started: Some(at(started)), completed: Some(at(2)) }
}

#[test]
fn a_folder_is_whose_its_claim_and_its_backup_say() {
    let copy = |uid: &str| Some(metadata(uid, 1));
    let other = |uid: &str| Some(metadata(uid, 99));
    let strange = Owner::Stranger;
    for (found, stored, others, inherits, wanted) in [
        (None, None, false, "", Owner::Nobody),
        (None, None, true, "", strange(Stranger::Unknown)),
        (Some(claim(CLUSTER, UID, "r")), None, true, "", Owner::Ours),
        (Some(claim(CLUSTER, UID, "r")), copy(UID), true, "", Owner::Ours),
        (Some(claim(CLUSTER, UID, "deletion-1")), None, false, "", Owner::Claimed),
        (Some(claim(CLUSTER, UID, "deletion-1")), copy("x"), true, "", Owner::Claimed),
        (
            Some(claim(CLUSTER, UID, "deletion-1")),
            other("x"),
            true,
            "",
            strange(Stranger::Backup("x".into())),
        ),
        // Made again from the store in this cluster, after its object was lost.
        (Some(claim(CLUSTER, "old", "r")), copy("old"), true, "", Owner::Ours),
        (Some(claim(CLUSTER, "old", "r")), other("old"), true, "*", strange(Stranger::Backup("old".into()))),
        (Some(claim(CLUSTER, "old", "r")), None, true, "*", strange(Stranger::Backup("old".into()))),
        // Synced from another cluster.
        (Some(claim("away", "a", "r")), copy("a"), true, "", strange(Stranger::CopyOfCluster("away".into()))),
        (Some(claim("away", "a", "r")), copy("a"), true, "far, away", Owner::Ours),
        (Some(claim("away", "a", "r")), copy("a"), true, "*", Owner::Ours),
        (Some(claim("away", "a", "r")), copy("b"), true, "*", strange(Stranger::Cluster("away".into()))),
        (Some(claim("away", "a", "r")), other("a"), true, "*", strange(Stranger::Cluster("away".into()))),
        (Some(claim("away", UID, "r")), None, true, "*", strange(Stranger::Cluster("away".into()))),
        // Written by a Velero.
        (None, copy(UID), true, "", Owner::Ours),
        (None, other(UID), true, "", Owner::Ours),
        (None, copy("x"), true, "", strange(Stranger::CopyOfBackup("x".into()))),
        (None, copy("x"), true, "away", strange(Stranger::CopyOfBackup("x".into()))),
        (None, copy("x"), true, "*", Owner::Ours),
        (None, other("x"), true, "*", strange(Stranger::Backup("x".into()))),
    ] {
        let stored = Stored { claim: found, metadata: stored, has_others: others };
        assert_eq!(owner(&known(), &stored, Inherited(inherits)), wanted, "{stored:?} {inherits}");
    }
    // Two namespaces of one cluster that share a place, each with a Backup for what one has written.
    let elsewhere = Claim { namespace: "elsewhere".into(), ..claim(CLUSTER, "a", "r") };
    let stored = Stored { claim: Some(elsewhere), metadata: copy("a"), has_others: true };
    let Owner::Stranger(stranger) = owner(&known(), &stored, Inherited("")) else { panic!("it is ours") };
    assert!(stranger.is_copied() && stranger.to_string().contains("namespace elsewhere of this cluster"));
    assert!(stranger.to_string().ends_with("berth.dev/inherits=this-cluster"), "{stranger}");
    assert_eq!(owner(&known(), &stored, Inherited(CLUSTER)), Owner::Ours);
    let unknown = Known { started: None, completed: None, ..known() };
    let nameless = Metadata { uid: "x".into(), ..Metadata::default() };
    let stored = Stored { metadata: Some(nameless), ..Stored::default() };
    assert_eq!(owner(&unknown, &stored, Inherited("*")), strange(Stranger::Backup("x".into())));
}

fn backup(phase: &'static str) -> Backup<'static> {
    Backup {
        uid: UID,
        created: None,
        phase,
        kept: None,
        leaves_volumes: false,
        files_go: false,
        is_going: false,
    }
}

fn seen() -> Seen<'static> {
    Seen {
        request: Request { backup: "b", uid: Some(UID), created: None, has_begun: false, has_others: false },
        backup: Some(backup("Completed")),
        location: Location::Usable,
        folder: Some(Owner::Ours),
        volumes: Some(Volumes::default()),
        restores: Some(Restores::default()),
    }
}

fn said(seen: &Seen<'_>) -> String {
    match next(seen) {
        Step::End(errors) => errors.join("; "),
        step => panic!("{step:?}"),
    }
}

#[test]
fn what_stands_in_the_way_is_said_before_anything_is_removed() {
    let request = seen().request;
    let cases = [
        (Seen { request: Request { backup: "", ..request }, ..seen() }, "spec.backupName"),
        (Seen { request: Request { backup: "../b", has_begun: true, ..request }, ..seen() }, "no Backup has"),
        (Seen { request: Request { uid: Some("x"), ..request }, ..seen() }, "an earlier Backup"),
        (
            Seen {
                request: Request { uid: None, created: Some(Timestamp::UNIX_EPOCH), ..request },
                backup: Some(Backup { created: Some(Timestamp::MAX), ..backup("Completed") }),
                ..seen()
            },
            "older than Backup b",
        ),
        (Seen { backup: None, ..seen() }, "backup not found"),
        (Seen { backup: Some(Backup { kept: Some("law"), ..backup("Completed") }), ..seen() }, "(law)"),
        (Seen { backup: Some(Backup { kept: Some("law"), ..backup("Queued") }), ..seen() }, "(law)"),
        (Seen { backup: Some(backup("InProgress")), ..seen() }, "still in progress"),
        (Seen { backup: Some(backup("ReadyToStart")), ..seen() }, "still in progress"),
        (Seen { backup: Some(backup("Finalizing")), ..seen() }, "still in progress"),
        (Seen { location: Location::Missing("l"), ..seen() }, "location l is not found"),
        (Seen { location: Location::ReadOnly("l"), ..seen() }, "location l is read-only"),
        (Seen { location: Location::Unavailable("l"), ..seen() }, "location l is currently unavailable"),
        (Seen { folder: Some(Owner::Stranger(Stranger::Unknown)), ..seen() }, "of which nothing says"),
        (Seen { folder: Some(Owner::NobodyInEmpty), ..seen() }, "neither this backup nor any other"),
        (
            Seen { folder: Some(Owner::NobodyInEmpty), backup: Some(backup("Deleting")), ..seen() },
            "neither this backup nor any other",
        ),
        (
            Seen {
                folder: Some(Owner::Stranger(Stranger::CopyOfCluster("c".into()))),
                backup: Some(backup("Failed")),
                ..seen()
            },
            "berth.dev/inherits=c",
        ),
        (
            Seen { volumes: Some(Volumes { out_of_reach: vec!["kopia".into()], snapshots: 1 }), ..seen() },
            "kopia",
        ),
        (
            Seen { restores: Some(Restores { running: vec!["r".into()], ended: 1 }), ..seen() },
            "have not ended: r",
        ),
    ];
    for (seen, text) in cases {
        assert!(said(&seen).contains(text), "{}", said(&seen));
    }
}

#[test]
fn an_empty_folder_is_believed_where_others_are_there_or_a_deletion_has_emptied_it() {
    let begun = Request { has_begun: true, ..seen().request };
    let deleting = Seen { request: begun, backup: Some(backup("Deleting")), ..seen() };
    let nothing = Seen { folder: Some(Owner::NobodyInEmpty), ..deleting.clone() };
    assert!(matches!(next(&nothing), Step::Wait(_)), "a volume may come back");
    let emptied = Backup { files_go: true, ..backup("Deleting") };
    assert_eq!(next(&Seen { backup: Some(emptied), ..nothing.clone() }), Step::RemoveBackup);
    assert_eq!(next(&Seen { folder: Some(Owner::Nobody), ..deleting.clone() }), Step::RemoveBackup);
    // One that failed promises nothing.
    let failed = Seen { backup: Some(backup("Failed")), ..nothing.clone() };
    assert_eq!(next(&failed), Step::RemoveBackup);
    assert_eq!(next(&Seen { request: seen().request, ..failed }), Step::Begin);
    // Before the files go, that is written down.
    let claimed = Seen { folder: Some(Owner::Claimed), ..deleting };
    assert_eq!(next(&claimed), Step::Record);
    assert_eq!(next(&Seen { backup: Some(emptied), ..claimed }), Step::RemoveFiles);
}

#[test]
fn what_waits_is_taken_out_and_what_another_has_in_its_folder_stays() {
    for phase in ["", "New", "Queued"] {
        assert_eq!(next(&Seen { backup: Some(backup(phase)), ..seen() }), Step::TakeOut);
    }
    let begun = Request { has_begun: true, ..seen().request };
    for phase in ["Failed", "FailedValidation"] {
        let folder = Some(Owner::Stranger(Stranger::Cluster("c".into())));
        let of_another = Seen { backup: Some(backup(phase)), folder, restores: None, ..seen() };
        assert_eq!(next(&of_another), Step::Begin);
        assert_eq!(next(&Seen { request: begun, ..of_another }), Step::RemoveBackup);
    }
    let leaves = Backup { leaves_volumes: true, ..backup("Completed") };
    let volumes = Some(Volumes { out_of_reach: vec!["kopia".into()], snapshots: 0 });
    assert_eq!(next(&Seen { backup: Some(leaves), volumes, ..seen() }), Step::Begin);
}

#[test]
fn a_deletion_whose_store_is_away_waits_once_it_has_begun() {
    let request = Request { has_begun: true, ..seen().request };
    let away = Seen { request, location: Location::Unavailable("l"), ..seen() };
    assert!(matches!(next(&away), Step::Wait(_)));
    assert!(matches!(next(&Seen { backup: None, ..away }), Step::Wait(_)));
    // Somebody else removed the Backup meanwhile.
    let gone = Seen { request, backup: None, folder: None, ..seen() };
    assert_eq!(next(&gone), Step::LookAtFolder);
    assert_eq!(next(&Seen { folder: Some(Owner::Claimed), ..gone.clone() }), Step::RemoveFiles);
    for folder in [Owner::Nobody, Owner::NobodyInEmpty, Owner::Ours, Owner::Stranger(Stranger::Unknown)] {
        assert_eq!(next(&Seen { folder: Some(folder), ..gone.clone() }), Step::Done);
    }
    let later = Seen { backup: Some(Backup { uid: "later", ..backup("Completed") }), ..gone };
    assert_eq!(next(&later), Step::Forget, "it is another Backup");
}

#[test]
fn one_request_of_each_backup_is_carried_out_and_old_ones_go() {
    let request = |name, backup, created| Waiting {
        name,
        backup,
        created: at(created),
        has_begun: false,
        is_processed: false,
    };
    let day = 24 * 3600;
    let all = [
        request("a1", "a", 10),
        request("a2", "a", 20),
        Waiting { has_begun: true, ..request("b1", "b", 10) },
        request("b2", "b", 20),
        Waiting { is_processed: true, ..request("c1", "c", 10) },
        Waiting { is_processed: true, ..request("c2", "c", 11) },
        // Stuck for days, and not done.
        request("d1", "d", 0),
    ];
    let done = plan(&all, at(10 + day));
    let carried = ["a2", "b1", "d1"].map(Task::CarryOut);
    assert_eq!(done, [&[Task::Remove("c1")][..], &carried].concat());
}

/// A small cluster and a small store.
#[derive(Clone, Debug)]
struct World {
    request: Option<bool>,
    is_recorded: bool,
    errors: Option<Vec<String>>,
    phase: Option<&'static str>,
    uid: &'static str,
    stored: Stored,
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
    inherits: &'static str,
}

impl World {
    fn stored(&self) -> Stored {
        Stored { has_others: self.files > 0, ..self.stored.clone() }
    }

    fn owner(&self) -> Owner {
        let known = Known { uid: UID.into(), ..known() };
        match owner(&known, &self.stored(), Inherited(self.inherits)) {
            Owner::Nobody if !self.has_neighbours => Owner::NobodyInEmpty,
            owner => owner,
        }
    }

    /// Files of somebody else.
    fn strangers(&self) -> Option<Stored> {
        matches!(self.owner(), Owner::Stranger(_)).then(|| self.stored())
    }

    fn step(&self) -> Step {
        let mut seen = Seen {
            request: Request {
                backup: "b",
                uid: self.is_recorded.then_some(UID),
                created: None,
                has_begun: self.request.unwrap(),
                has_others: false,
            },
            backup: self.phase.map(|phase| Backup {
                uid: self.uid,
                files_go: self.files_go,
                is_going: self.is_going,
                ..backup(phase)
            }),
            location: Location::Usable,
            folder: None,
            volumes: None,
            restores: None,
        };
        loop {
            match next(&seen) {
                Step::LookAtFolder => seen.folder = Some(self.owner()),
                Step::LookAtVolumes => {
                    // What a Velero has moved is known by files of the folder alone.
                    let is_known = self.out_of_reach && self.files > 0;
                    let out_of_reach = if is_known { vec!["kopia".into()] } else { Vec::new() };
                    seen.volumes = Some(Volumes { out_of_reach, snapshots: self.snapshots });
                }
                Step::LookAtRestores => {
                    let running = if self.running { vec!["r".into()] } else { Vec::new() };
                    seen.restores = Some(Restores { running, ended: self.restores });
                }
                step => return step,
            }
        }
    }

    /// Does at most `most` of the parts of a step.
    fn act(&mut self, step: &Step, most: usize) {
        for _ in 0..most {
            match step {
                // The Backup, and then its request.
                Step::TakeOut if self.phase.is_none() => self.request = None,
                Step::TakeOut | Step::RemoveBackup if !self.is_finalized => self.phase = None,
                Step::TakeOut if self.is_going => self.request = None,
                Step::TakeOut | Step::RemoveBackup => self.is_going = true,
                Step::Begin => (self.request, self.is_recorded) = (Some(true), true),
                Step::Mark => self.phase = Some("Deleting"),
                Step::Record => self.files_go = true,
                Step::Claim => self.stored.claim = Some(claim(CLUSTER, UID, "deletion-1")),
                Step::RemoveSnapshots => self.snapshots = self.snapshots.saturating_sub(1),
                Step::RemoveFiles => match &self.stored.metadata {
                    Some(_) => self.stored.metadata = None,
                    None if self.files > 0 => self.files -= 1,
                    None => self.stored.claim = None,
                },
                Step::RemoveRestores => self.restores = self.restores.saturating_sub(1),
                Step::Done | Step::Forget => self.request = None,
                Step::End(errors) => self.errors = Some(errors.clone()),
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
    let flags = (rarely(), rarely(), prop::bool::ANY, rarely());
    (claims, stored, phases, inherits, counts, flags).prop_map(
        |(claim, metadata, phase, inherits, (files, snapshots, restores), flags)| World {
            request: Some(false),
            is_recorded: true,
            errors: None,
            phase: Some(phase),
            uid: UID,
            stored: Stored { claim, metadata, has_others: false },
            files,
            files_go: false,
            is_finalized: flags.3,
            is_going: false,
            has_neighbours: flags.2,
            snapshots,
            out_of_reach: flags.0,
            restores,
            running: flags.1,
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
                prop_assert_eq!(before.owner(), Owner::Claimed);
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
                // The crash came after a Backup was taken out of the queue: it is gone, as was asked.
                let is_taken_out = start.phase == Some("Queued") && world.phase.is_none();
                prop_assert!(is_taken_out || world.phase == start.phase, "{:?}", world.phase);
            }
            None => {
                prop_assert!(world.phase.is_none() || world.is_going, "{:?}", world.phase);
                if start.strangers().is_none() && start.phase != Some("Queued") {
                    prop_assert_eq!(world.stored(), Stored::default());
                    prop_assert_eq!((world.snapshots, world.restores), (0, 0));
                }
            }
        }
    }

    #[test]
    fn nothing_that_a_store_says_makes_a_message_long_or_unprintable(text in "\\PC*") {
        for stranger in [
            Stranger::CopyOfCluster(text.clone()),
            Stranger::CopyOfBackup(text.clone()),
            Stranger::Cluster(text.clone()),
            Stranger::Backup(text.clone()),
        ] {
            let said = stranger.to_string();
            prop_assert!(said.len() < 500 && said.is_ascii(), "{said}");
        }
    }
}
