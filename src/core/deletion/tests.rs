//! What is decided of a deletion, in tables.

use super::*;
use crate::claim::FolderClaim;

mod killed;

const CLUSTER: &str = "this-cluster";
const NAMESPACE: &str = "velero";
const UID: &str = "uid-of-the-backup";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn known() -> BackupIdentity {
    BackupIdentity {
        cluster: CLUSTER.into(),
        namespace: NAMESPACE.into(),
        uid: UID.into(),
        started: Some(at(1)),
        completed: Some(at(2)),
    }
}

fn claim(cluster: &str, uid: &str, run: &str) -> FolderClaim {
    let [cluster, namespace, backup, run] = [cluster, NAMESPACE, uid, run].map(str::to_owned);
    FolderClaim { cluster, namespace, backup, run, before: None }
}

fn metadata(uid: &str, started: i64) -> StoredMetadata {
    StoredMetadata { uid: uid.into(), started: Some(at(started)), completed: Some(at(2)) }
}

#[test]
fn a_folder_is_whose_its_claim_and_its_backup_say() {
    let copy = |uid: &str| Some(metadata(uid, 1));
    let other = |uid: &str| Some(metadata(uid, 99));
    let strange = FolderOwner::Stranger;
    for (found, stored, others, inherits, wanted) in [
        (None, None, false, "", FolderOwner::Nobody),
        (None, None, true, "", strange(ForeignFolderReason::Unknown)),
        (Some(claim(CLUSTER, UID, "r")), None, true, "", FolderOwner::Ours),
        (Some(claim(CLUSTER, UID, "r")), copy(UID), true, "", FolderOwner::Ours),
        (Some(claim(CLUSTER, UID, "deletion-1")), None, false, "", FolderOwner::Claimed),
        (Some(claim(CLUSTER, UID, "deletion-1")), copy("x"), true, "", FolderOwner::Claimed),
        (
            Some(claim(CLUSTER, UID, "deletion-1")),
            other("x"),
            true,
            "",
            strange(ForeignFolderReason::Backup("x".into())),
        ),
        // Made again from the store in this cluster, after its object was lost.
        (Some(claim(CLUSTER, "old", "r")), copy("old"), true, "", FolderOwner::Ours),
        (
            Some(claim(CLUSTER, "old", "r")),
            other("old"),
            true,
            "*",
            strange(ForeignFolderReason::Backup("old".into())),
        ),
        (
            Some(claim(CLUSTER, "old", "r")),
            None,
            true,
            "*",
            strange(ForeignFolderReason::Backup("old".into())),
        ),
        // Synced from another cluster.
        (
            Some(claim("away", "a", "r")),
            copy("a"),
            true,
            "",
            strange(ForeignFolderReason::CopyOfCluster("away".into())),
        ),
        (Some(claim("away", "a", "r")), copy("a"), true, "far, away", FolderOwner::Ours),
        (Some(claim("away", "a", "r")), copy("a"), true, "*", FolderOwner::Ours),
        (
            Some(claim("away", "a", "r")),
            copy("b"),
            true,
            "*",
            strange(ForeignFolderReason::Cluster("away".into())),
        ),
        (
            Some(claim("away", "a", "r")),
            other("a"),
            true,
            "*",
            strange(ForeignFolderReason::Cluster("away".into())),
        ),
        (
            Some(claim("away", UID, "r")),
            None,
            true,
            "*",
            strange(ForeignFolderReason::Cluster("away".into())),
        ),
        // Written by a Velero.
        (None, copy(UID), true, "", FolderOwner::Ours),
        (None, other(UID), true, "", FolderOwner::Ours),
        (None, copy("x"), true, "", strange(ForeignFolderReason::CopyOfBackup("x".into()))),
        (None, copy("x"), true, "away", strange(ForeignFolderReason::CopyOfBackup("x".into()))),
        (None, copy("x"), true, "*", FolderOwner::Ours),
        (None, other("x"), true, "*", strange(ForeignFolderReason::Backup("x".into()))),
    ] {
        let stored = StoredFolder { claim: found, metadata: stored, has_others: others };
        assert_eq!(owner(&known(), &stored, Inherited(inherits)), wanted, "{stored:?} {inherits}");
    }
    // Two namespaces of one cluster that share a place, each with a Backup for what one has
    // written.
    let elsewhere = FolderClaim { namespace: "elsewhere".into(), ..claim(CLUSTER, "a", "r") };
    let stored = StoredFolder { claim: Some(elsewhere), metadata: copy("a"), has_others: true };
    let FolderOwner::Stranger(stranger) = owner(&known(), &stored, Inherited("")) else {
        panic!("it is ours")
    };
    assert!(stranger.is_copied() && stranger.to_string().contains("namespace elsewhere of this cluster"));
    assert!(stranger.to_string().ends_with("berth.dev/inherits=this-cluster"), "{stranger}");
    assert_eq!(owner(&known(), &stored, Inherited(CLUSTER)), FolderOwner::Ours);
    let unknown = BackupIdentity { started: None, completed: None, ..known() };
    let nameless = StoredMetadata { uid: "x".into(), ..StoredMetadata::default() };
    let stored = StoredFolder { metadata: Some(nameless), ..StoredFolder::default() };
    assert_eq!(owner(&unknown, &stored, Inherited("*")), strange(ForeignFolderReason::Backup("x".into())));
}

fn backup(phase: &'static str) -> DeletionBackup<'static> {
    DeletionBackup {
        uid: UID,
        created: None,
        phase,
        kept: None,
        leaves_volumes: false,
        files_go: false,
        is_going: false,
        is_elsewhere: false,
    }
}

fn seen() -> DeletionState<'static> {
    DeletionState {
        now: at(100),
        request: DeletionRequest {
            backup: "b",
            uid: Some(UID),
            created: None,
            has_begun: false,
            has_others: false,
            has_data: false,
        },
        backup: Some(backup("Completed")),
        location: DeletionLocation::Usable,
        folder: Some(FolderOwner::Ours),
        is_visible: true,
        is_shown: false,
        lock: Some(StoreLock::None),
        volumes: Some(RemainingVolumeData::default()),
        restores: Some(Restores::default()),
    }
}

fn said(seen: &DeletionState<'_>) -> String {
    match next(seen) {
        DeletionStep::End(errors) => errors.join("; "),
        step => panic!("{step:?}"),
    }
}

#[test]
fn what_stands_in_the_way_is_said_before_anything_is_removed() {
    let request = seen().request;
    let cases = [
        (DeletionState { request: DeletionRequest { backup: "", ..request }, ..seen() }, "spec.backupName"),
        (
            DeletionState {
                request: DeletionRequest { backup: "../b", has_begun: true, ..request },
                ..seen()
            },
            "no Backup has",
        ),
        (
            DeletionState { request: DeletionRequest { uid: Some("x"), ..request }, ..seen() },
            "an earlier Backup",
        ),
        (
            DeletionState {
                request: DeletionRequest { uid: None, created: Some(Timestamp::UNIX_EPOCH), ..request },
                backup: Some(DeletionBackup { created: Some(Timestamp::MAX), ..backup("Completed") }),
                ..seen()
            },
            "older than Backup b",
        ),
        (DeletionState { backup: None, ..seen() }, "backup not found"),
        (
            DeletionState {
                backup: Some(DeletionBackup { kept: Some("law"), ..backup("Completed") }),
                ..seen()
            },
            "(law)",
        ),
        (
            DeletionState {
                backup: Some(DeletionBackup { kept: Some("law"), ..backup("Queued") }),
                ..seen()
            },
            "(law)",
        ),
        (DeletionState { backup: Some(backup("InProgress")), ..seen() }, "still in progress"),
        (DeletionState { backup: Some(backup("ReadyToStart")), ..seen() }, "still in progress"),
        (DeletionState { backup: Some(backup("Finalizing")), ..seen() }, "still in progress"),
        (DeletionState { location: DeletionLocation::Missing("l"), ..seen() }, "location l is not found"),
        (DeletionState { location: DeletionLocation::ReadOnly("l"), ..seen() }, "location l is read-only"),
        (
            DeletionState { location: DeletionLocation::Unavailable("l"), ..seen() },
            "location l is currently unavailable",
        ),
        (
            DeletionState { folder: Some(FolderOwner::Stranger(ForeignFolderReason::Unknown)), ..seen() },
            "of which nothing says",
        ),
        (
            DeletionState { folder: Some(FolderOwner::NobodyInEmpty), ..seen() },
            "neither this backup nor any other",
        ),
        (
            DeletionState {
                folder: Some(FolderOwner::NobodyInEmpty),
                backup: Some(backup("Deleting")),
                ..seen()
            },
            "neither this backup nor any other",
        ),
        (
            DeletionState {
                folder: Some(FolderOwner::Stranger(ForeignFolderReason::CopyOfCluster("c".into()))),
                backup: Some(backup("Failed")),
                ..seen()
            },
            "berth.dev/inherits=c",
        ),
        (
            DeletionState {
                volumes: Some(RemainingVolumeData { out_of_reach: vec!["kopia".into()], snapshots: 1 }),
                ..seen()
            },
            "kopia",
        ),
        (
            DeletionState { restores: Some(Restores { running: vec!["r".into()], ended: 1 }), ..seen() },
            "have not ended: r",
        ),
    ];
    for (seen, text) in cases {
        assert!(said(&seen).contains(text), "{}", said(&seen));
    }
}

#[test]
fn what_the_store_keeps_is_left_alone_until_its_date() {
    let until = |second| DeletionState { lock: Some(StoreLock::Until(at(second))), ..seen() };
    assert_eq!(next(&DeletionState { lock: None, ..seen() }), DeletionStep::LookAtLock);
    assert_eq!(next(&until(101)), DeletionStep::EndLocked(at(101)));
    assert_eq!(next(&until(100)), DeletionStep::Begin);
    assert!(locked(at(0)).contains("until 1970-01-01T00:00:00Z, "), "{}", locked(at(0)));
    // Nobody asks for it where nothing of the store goes, and what has begun goes on.
    let begun = DeletionRequest { has_begun: true, ..seen().request };
    let strange = FolderOwner::Stranger(ForeignFolderReason::Cluster("c".into()));
    for (state, step) in [
        (DeletionState { request: begun, ..until(101) }, DeletionStep::Claim),
        (DeletionState { backup: Some(backup("Deleting")), ..until(101) }, DeletionStep::Begin),
        (DeletionState { folder: Some(FolderOwner::Nobody), ..until(101) }, DeletionStep::Begin),
        (
            DeletionState { folder: Some(strange), backup: Some(backup("Failed")), ..until(101) },
            DeletionStep::Begin,
        ),
        (DeletionState { backup: Some(backup("Queued")), ..until(101) }, DeletionStep::TakeOut),
    ] {
        assert_eq!(next(&state), step, "{state:?}");
        assert_eq!(next(&DeletionState { lock: None, ..state }), step);
    }
}

#[test]
fn an_empty_folder_is_believed_where_others_are_there_or_a_deletion_has_emptied_it() {
    let begun = DeletionRequest { has_begun: true, ..seen().request };
    let deleting = DeletionState { request: begun, backup: Some(backup("Deleting")), ..seen() };
    let nothing = DeletionState { folder: Some(FolderOwner::NobodyInEmpty), ..deleting.clone() };
    assert!(matches!(next(&nothing), DeletionStep::Wait(_)), "a volume may come back");
    let emptied = DeletionBackup { files_go: true, ..backup("Deleting") };
    assert_eq!(next(&DeletionState { backup: Some(emptied), ..nothing.clone() }), DeletionStep::RemoveBackup);
    // Nobody need look for others then.
    assert!(emptied.is_emptied());
    let running = Restores { running: vec!["r".into()], ended: 0 };
    let volumes = RemainingVolumeData { out_of_reach: Vec::new(), snapshots: 1 };
    for seen in [
        DeletionState { backup: Some(emptied), ..nothing.clone() },
        DeletionState { request: seen().request, backup: Some(emptied), lock: None, ..nothing.clone() },
        DeletionState { backup: Some(emptied), volumes: None, ..nothing.clone() },
        DeletionState { backup: Some(emptied), volumes: Some(volumes), ..nothing.clone() },
        DeletionState { backup: Some(emptied), restores: None, ..nothing.clone() },
        DeletionState { backup: Some(emptied), restores: Some(running), ..nothing.clone() },
    ] {
        assert_eq!(next(&DeletionState { folder: Some(FolderOwner::Nobody), ..seen.clone() }), next(&seen));
    }
    for (phase, files_go) in [("Deleting", false), ("Completed", true), ("Failed", true)] {
        assert!(!DeletionBackup { files_go, ..backup(phase) }.is_emptied(), "{phase}");
    }
    assert_eq!(
        next(&DeletionState { folder: Some(FolderOwner::Nobody), ..deleting.clone() }),
        DeletionStep::RemoveBackup
    );
    // One that failed promises nothing.
    let failed = DeletionState { backup: Some(backup("Failed")), ..nothing.clone() };
    assert_eq!(next(&failed), DeletionStep::RemoveBackup);
    assert_eq!(next(&DeletionState { request: seen().request, ..failed }), DeletionStep::Begin);
    // Before the files go, that is written down.
    let claimed = DeletionState { folder: Some(FolderOwner::Claimed), ..deleting };
    assert_eq!(next(&claimed), DeletionStep::Record);
    assert_eq!(next(&DeletionState { backup: Some(emptied), ..claimed }), DeletionStep::RemoveFiles);
}

#[test]
fn a_backup_is_deleting_only_once_the_store_has_taken_the_claim() {
    let request = DeletionRequest { has_begun: true, ..seen().request };
    for (phase, folder, step) in [
        ("Completed", FolderOwner::Ours, DeletionStep::Claim),
        ("Failed", FolderOwner::Ours, DeletionStep::Claim),
        ("Deleting", FolderOwner::Ours, DeletionStep::Claim),
        ("Completed", FolderOwner::Claimed, DeletionStep::Mark { files_go: false }),
        ("Completed", FolderOwner::Nobody, DeletionStep::Mark { files_go: false }),
        ("Deleting", FolderOwner::Claimed, DeletionStep::RemoveSnapshots),
    ] {
        let (backup, folder) = (Some(backup(phase)), Some(folder));
        let volumes = Some(RemainingVolumeData { out_of_reach: Vec::new(), snapshots: 1 });
        let seen = DeletionState { request, backup, folder, volumes, ..seen() };
        assert_eq!(next(&seen), step, "{seen:?}");
    }
}

#[test]
fn that_files_go_is_written_with_deleting_where_nothing_else_goes_before_them() {
    let request = DeletionRequest { has_begun: true, ..seen().request };
    let claimed = DeletionState { request, folder: Some(FolderOwner::Claimed), ..seen() };
    let volumes = |snapshots| Some(RemainingVolumeData { out_of_reach: Vec::new(), snapshots });
    let running = Some(Restores { running: vec!["r".into()], ended: 0 });
    for (state, files_go) in [
        (claimed.clone(), true),
        (DeletionState { volumes: volumes(1), ..claimed.clone() }, false),
        // Nobody has looked.
        (DeletionState { volumes: None, ..claimed.clone() }, false),
        (DeletionState { restores: None, ..claimed.clone() }, false),
        (DeletionState { restores: running, ..claimed.clone() }, false),
        (DeletionState { folder: Some(FolderOwner::Nobody), ..claimed }, false),
    ] {
        assert_eq!(next(&state), DeletionStep::Mark { files_go }, "{state:?}");
    }
}

#[test]
fn what_waits_is_taken_out_and_what_another_has_in_its_folder_stays() {
    for phase in ["", "New", "Queued"] {
        assert_eq!(next(&DeletionState { backup: Some(backup(phase)), ..seen() }), DeletionStep::TakeOut);
    }
    let begun = DeletionRequest { has_begun: true, ..seen().request };
    for phase in ["Failed", "FailedValidation"] {
        let folder = Some(FolderOwner::Stranger(ForeignFolderReason::Cluster("c".into())));
        let of_another = DeletionState { backup: Some(backup(phase)), folder, restores: None, ..seen() };
        assert_eq!(next(&of_another), DeletionStep::Begin);
        assert_eq!(next(&DeletionState { request: begun, ..of_another }), DeletionStep::RemoveBackup);
    }
    let leaves = DeletionBackup { leaves_volumes: true, ..backup("Completed") };
    let volumes = Some(RemainingVolumeData { out_of_reach: vec!["kopia".into()], snapshots: 0 });
    assert_eq!(next(&DeletionState { backup: Some(leaves), volumes, ..seen() }), DeletionStep::Begin);
}

#[test]
fn a_deletion_whose_store_is_away_waits_once_it_has_begun() {
    let request = DeletionRequest { has_begun: true, ..seen().request };
    let away = DeletionState { request, location: DeletionLocation::Unavailable("l"), ..seen() };
    assert!(matches!(next(&away), DeletionStep::Wait(_)));
    assert!(matches!(next(&DeletionState { backup: None, ..away }), DeletionStep::Wait(_)));
    // Somebody else removed the Backup meanwhile.
    let gone = DeletionState { request, backup: None, folder: None, ..seen() };
    assert_eq!(next(&gone), DeletionStep::LookAtFolder);
    assert_eq!(
        next(&DeletionState { folder: Some(FolderOwner::Claimed), ..gone.clone() }),
        DeletionStep::RemoveFiles
    );
    let claimed = DeletionState { folder: Some(FolderOwner::Claimed), volumes: None, ..gone.clone() };
    assert_eq!(next(&claimed), DeletionStep::LookAtVolumes, "the files name the snapshots");
    let volumes = RemainingVolumeData { out_of_reach: vec!["kopia".into()], snapshots: 1 };
    let claimed = DeletionState { volumes: Some(volumes), ..claimed };
    assert_eq!(next(&claimed), DeletionStep::RemoveSnapshots);
    let volumes = RemainingVolumeData { out_of_reach: vec!["kopia".into()], snapshots: 0 };
    assert_eq!(next(&DeletionState { volumes: Some(volumes), ..claimed }), DeletionStep::RemoveFiles);
    for folder in [
        FolderOwner::Nobody,
        FolderOwner::NobodyInEmpty,
        FolderOwner::Ours,
        FolderOwner::Stranger(ForeignFolderReason::Unknown),
    ] {
        assert_eq!(next(&DeletionState { folder: Some(folder), ..gone.clone() }), DeletionStep::Done);
    }
    // Nobody else would look for the data that the request records.
    let has_data = DeletionRequest { has_data: true, ..request };
    let with_data = |folder| DeletionState { request: has_data, folder: Some(folder), ..gone.clone() };
    for folder in [FolderOwner::Nobody, FolderOwner::Stranger(ForeignFolderReason::Unknown)] {
        let unseen = with_data(folder);
        assert_eq!(next(&unseen), DeletionStep::ForgetData { once: false });
        let shown = DeletionState { is_shown: true, ..unseen };
        assert_eq!(next(&shown), DeletionStep::Done, "a backup needs its data");
    }
    assert_eq!(next(&with_data(FolderOwner::Ours)), DeletionStep::Done, "it is visible");
    assert!(
        matches!(next(&with_data(FolderOwner::NobodyInEmpty)), DeletionStep::Wait(_)),
        "it may come back"
    );
    let never_visible =
        DeletionState { folder: Some(FolderOwner::Ours), is_visible: false, volumes: None, ..gone.clone() };
    assert_eq!(next(&never_visible), DeletionStep::Claim, "its run has left it");
    let unasked = DeletionState { request: seen().request, ..never_visible };
    assert!(matches!(next(&unasked), DeletionStep::End(_)), "nobody who saw its end has asked for it");
    let later =
        DeletionState { backup: Some(DeletionBackup { uid: "later", ..backup("Completed") }), ..gone };
    assert_eq!(next(&later), DeletionStep::Forget, "it is another Backup");
    let others = DeletionState { request: DeletionRequest { has_others: true, ..later.request }, ..later };
    assert_eq!(next(&others), DeletionStep::Forget, "the others are for the present Backup");
}

#[test]
fn beside_a_later_backup_of_its_name_a_deletion_ends_what_nobody_else_would() {
    let request = DeletionRequest { has_begun: true, has_data: true, has_others: true, ..seen().request };
    let later = DeletionBackup { uid: "later", ..backup("Queued") };
    let found = DeletionState { request, backup: Some(later), folder: None, ..seen() };
    let next_in =
        |seen: &DeletionState<'_>, folder| next(&DeletionState { folder: Some(folder), ..seen.clone() });
    // In the same place its run takes the folder over, and after that only the data is left.
    assert_eq!(next(&found), DeletionStep::LookAtFolder);
    let stranger = FolderOwner::Stranger(ForeignFolderReason::Backup("later".into()));
    for (folder, once) in [
        (stranger.clone(), false),
        (FolderOwner::Nobody, false),
        // Its run waits for a deletion that has claimed the folder.
        (FolderOwner::Claimed, true),
    ] {
        assert_eq!(next_in(&found, folder), DeletionStep::ForgetData { once });
    }
    assert!(matches!(next_in(&found, FolderOwner::Ours), DeletionStep::Wait(_)));
    let shown = DeletionState { is_shown: true, ..found.clone() };
    for folder in [stranger.clone(), FolderOwner::Ours] {
        assert_eq!(next_in(&shown, folder), DeletionStep::Forget, "a backup needs its data");
    }
    let empty = next_in(&found, FolderOwner::NobodyInEmpty);
    assert!(matches!(empty, DeletionStep::Wait(_)), "a volume may come back");
    let away = DeletionState { location: DeletionLocation::Unavailable("l"), ..found.clone() };
    assert!(matches!(next(&away), DeletionStep::Wait(_)));
    let gone = DeletionState { location: DeletionLocation::Missing("l"), ..found.clone() };
    assert_eq!(next(&gone), DeletionStep::Forget);
    let nothing = DeletionState { request: DeletionRequest { has_data: false, ..request }, ..found.clone() };
    assert_eq!(next(&nothing), DeletionStep::Forget);

    // Elsewhere it takes nothing over.
    let elsewhere = DeletionBackup { is_elsewhere: true, ..later };
    let mut found = DeletionState { backup: Some(elsewhere), is_visible: false, volumes: None, ..found };
    for has_data in [true, false] {
        found.request.has_data = has_data;
        assert_eq!(next(&found), DeletionStep::LookAtFolder);
        assert_eq!(next_in(&found, FolderOwner::Ours), DeletionStep::Claim);
        assert_eq!(next_in(&found, FolderOwner::Claimed), DeletionStep::LookAtVolumes);
        // Other requests stay, and what this one records is forgotten, because nobody else would.
        let step = if has_data { DeletionStep::ForgetData { once: false } } else { DeletionStep::Forget };
        assert_eq!(next_in(&found, stranger.clone()), step);
        let empty = next_in(&found, FolderOwner::NobodyInEmpty);
        assert_eq!(matches!(empty, DeletionStep::Wait(_)), has_data, "{empty:?}");
    }
}

#[test]
fn a_restore_that_begins_while_its_backup_is_deleted_is_waited_for() {
    let running = Restores { running: vec!["r".into()], ended: 0 };
    let restores = DeletionState { restores: Some(running), ..seen() };
    assert!(matches!(next(&restores), DeletionStep::End(_)), "nothing has begun");
    let request = DeletionRequest { has_begun: true, ..seen().request };
    for (phase, folder) in [("Completed", FolderOwner::Ours), ("Deleting", FolderOwner::Claimed)] {
        let begun =
            DeletionState { request, backup: Some(backup(phase)), folder: Some(folder), ..restores.clone() };
        let DeletionStep::Wait(why) = next(&begun) else { panic!("{:?}", next(&begun)) };
        assert!(why.ends_with("have not ended: r"), "{why}");
    }
    // With the claim of a deletion the backup is none any more, whatever its phase says.
    let out_of_reach = Some(RemainingVolumeData { out_of_reach: vec!["kopia".into()], snapshots: 0 });
    for volumes in [restores.volumes.clone(), out_of_reach] {
        let folder = Some(FolderOwner::Claimed);
        let claimed = DeletionState { request, folder, volumes, ..restores.clone() };
        assert_eq!(next(&claimed), DeletionStep::Mark { files_go: false });
    }
}

#[test]
fn one_request_of_each_backup_is_carried_out_and_old_ones_go() {
    let request = |name, backup, created| PendingDeletionRequest {
        name,
        backup,
        created: at(created),
        has_begun: false,
        is_processed: false,
        is_earlier: false,
    };
    let day = 24 * 3600;
    let all = [
        request("a1", "a", 10),
        request("a2", "a", 20),
        PendingDeletionRequest { has_begun: true, ..request("b1", "b", 10) },
        request("b2", "b", 20),
        PendingDeletionRequest { is_processed: true, ..request("c1", "c", 10) },
        PendingDeletionRequest { is_processed: true, ..request("c2", "c", 11) },
        // Stuck for days, and not done.
        request("d1", "d", 0),
        // For two Backups of one name.
        PendingDeletionRequest { has_begun: true, is_earlier: true, ..request("e1", "e", 10) },
        request("e2", "e", 20),
    ];
    let done = plan(&all, at(10 + day));
    let carried = ["a2", "b1", "d1", "e2", "e1"].map(RequestTask::CarryOut);
    assert_eq!(done, [&[RequestTask::Remove("c1")][..], &carried].concat());
}
