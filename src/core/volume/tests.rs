use proptest::prelude::*;

use super::*;

const BOUND: VolumeClaim =
    VolumeClaim { policy: None, by_files: false, is_bound: true, is_csi: true, has_class: true };
const AUTO: VolumeOptions = VolumeOptions { snapshots: None, files: false, moves: false };

#[test]
fn each_claim_gets_the_decision_of_its_row() {
    let by = |action| VolumeClaim { policy: Some(action), ..BOUND };
    let wish = |snapshots| VolumeOptions { snapshots, ..AUTO };
    let moves = |snapshots| VolumeOptions { snapshots, moves: true, ..AUTO };
    for (wish, claim, expected) in [
        (AUTO, BOUND, ClaimDecision::Snapshot),
        (wish(Some(true)), BOUND, ClaimDecision::Snapshot),
        (wish(Some(false)), BOUND, ClaimDecision::Skip(VolumeSkipReason::Unwanted)),
        (moves(None), BOUND, ClaimDecision::Move),
        (moves(Some(false)), BOUND, ClaimDecision::Skip(VolumeSkipReason::Unwanted)),
        (AUTO, by(VolumeAction::Skip), ClaimDecision::Skip(VolumeSkipReason::Policy)),
        (wish(Some(true)), by(VolumeAction::Skip), ClaimDecision::Skip(VolumeSkipReason::Policy)),
        (wish(Some(false)), by(VolumeAction::Snapshot), ClaimDecision::Snapshot),
        (moves(Some(false)), by(VolumeAction::Snapshot), ClaimDecision::Move),
        (AUTO, by(VolumeAction::Custom), ClaimDecision::Nothing(UnstorableReason::Plugin)),
        (AUTO, by(VolumeAction::FsBackup), ClaimDecision::Nothing(UnstorableReason::Pod)),
        (AUTO, VolumeClaim { by_files: true, ..by(VolumeAction::FsBackup) }, ClaimDecision::Files),
        (AUTO, VolumeClaim { by_files: true, ..BOUND }, ClaimDecision::Files),
        (wish(Some(true)), VolumeClaim { by_files: true, ..BOUND }, ClaimDecision::Files),
        (AUTO, VolumeClaim { by_files: true, ..by(VolumeAction::Snapshot) }, ClaimDecision::Snapshot),
        (
            AUTO,
            VolumeClaim { by_files: true, ..by(VolumeAction::Skip) },
            ClaimDecision::Skip(VolumeSkipReason::Policy),
        ),
        (AUTO, VolumeClaim { is_bound: false, ..BOUND }, ClaimDecision::Skip(VolumeSkipReason::Unbound)),
        (AUTO, VolumeClaim { is_csi: false, ..BOUND }, ClaimDecision::Nothing(UnstorableReason::Driver)),
        (AUTO, VolumeClaim { has_class: false, ..BOUND }, ClaimDecision::Nothing(UnstorableReason::Class)),
        (
            AUTO,
            VolumeClaim { has_class: false, ..by(VolumeAction::Snapshot) },
            ClaimDecision::Nothing(UnstorableReason::Class),
        ),
        (
            AUTO,
            VolumeClaim { is_bound: false, ..by(VolumeAction::Snapshot) },
            ClaimDecision::Skip(VolumeSkipReason::Unbound),
        ),
    ] {
        assert_eq!(of_claim(&wish, &claim), expected, "{wish:?} {claim:?}");
    }
}

#[test]
fn a_backup_asks_for_data_by_its_spec_or_by_a_policy() {
    for (snapshots, moves, policy, expected) in [
        (None, false, None, false),
        (Some(true), false, None, true),
        (Some(false), false, None, false),
        (None, true, None, true),
        (Some(false), true, None, false),
        (None, false, Some(VolumeAction::Snapshot), true),
        (None, false, Some(VolumeAction::FsBackup), true),
        (None, false, Some(VolumeAction::Custom), true),
        (Some(true), true, Some(VolumeAction::Skip), false),
    ] {
        let wish = VolumeOptions { snapshots, moves, ..AUTO };
        assert_eq!(is_asked_for(&wish, policy), expected, "{wish:?} {policy:?}");
    }
}

const DATA: PodVolumeState<'_> = PodVolumeState {
    name: "data",
    kind: "emptyDir",
    policy: None,
    is_named: true,
    is_excluded: false,
    is_of_untaken_claim: false,
    is_stored: false,
    is_host_path: false,
    is_device: false,
    is_mounted: true,
    pod: PodPhase::Running,
};

#[test]
fn each_volume_of_a_pod_gets_the_decision_of_its_row() {
    let all = VolumeOptions { files: true, ..AUTO };
    let unnamed = PodVolumeState { is_named: false, ..DATA };
    let by = |action| PodVolumeState { policy: Some(action), ..unnamed };
    for (wish, volume, expected) in [
        (AUTO, DATA, OfPod::Files),
        (AUTO, unnamed, OfPod::No),
        (AUTO, PodVolumeState { is_excluded: true, ..DATA }, OfPod::Files),
        (all, unnamed, OfPod::Files),
        (all, PodVolumeState { is_excluded: true, ..DATA }, OfPod::No),
        (AUTO, by(VolumeAction::FsBackup), OfPod::Files),
        (all, by(VolumeAction::Skip), OfPod::No),
        (all, by(VolumeAction::Snapshot), OfPod::No),
        (AUTO, PodVolumeState { policy: Some(VolumeAction::Skip), ..DATA }, OfPod::No),
        (all, PodVolumeState { name: "default-token-x", ..DATA }, OfPod::No),
        (all, PodVolumeState { is_of_untaken_claim: true, ..DATA }, OfPod::No),
        (AUTO, PodVolumeState { is_stored: true, ..DATA }, OfPod::Skip(FileBackupObstacle::Stored)),
        (AUTO, PodVolumeState { pod: PodPhase::Ended, ..DATA }, OfPod::Skip(FileBackupObstacle::Ended)),
        (AUTO, PodVolumeState { pod: PodPhase::Waiting, ..DATA }, OfPod::Skip(FileBackupObstacle::Waiting)),
        (AUTO, PodVolumeState { is_host_path: true, ..DATA }, OfPod::Skip(FileBackupObstacle::HostPath)),
        (AUTO, PodVolumeState { is_device: true, ..DATA }, OfPod::Skip(FileBackupObstacle::Device)),
        (AUTO, PodVolumeState { is_mounted: false, ..DATA }, OfPod::Skip(FileBackupObstacle::Unmounted)),
    ] {
        assert_eq!(of_pod(&wish, &volume), expected, "{wish:?} {volume:?}");
    }
    for kind in NEVER {
        assert_eq!(of_pod(&all, &PodVolumeState { kind, ..DATA }), OfPod::No, "{kind}");
    }
    let losses = [
        FileBackupObstacle::Waiting,
        FileBackupObstacle::HostPath,
        FileBackupObstacle::Device,
        FileBackupObstacle::Unmounted,
    ];
    assert!(losses.into_iter().all(FileBackupObstacle::is_loss));
    assert!(!FileBackupObstacle::Stored.is_loss() && !FileBackupObstacle::Ended.is_loss());
}

#[test]
fn names_of_volumes_are_separated_by_commas() {
    assert_eq!(names("a, b,,c ").collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(names("").count(), 0);
}

fn policy() -> impl Strategy<Value = Option<VolumeAction>> {
    prop::option::of(prop::sample::select(VolumeAction::ALL.to_vec()))
}

proptest! {
    /// What a decision needs is there, and what a policy skips is never stored.
    #[test]
    fn no_claim_is_given_to_what_cannot_store_it(
        snapshots in prop::option::of(any::<bool>()),
        moves in any::<bool>(),
        policy in policy(),
        flags in any::<[bool; 4]>(),
    ) {
        let wish = VolumeOptions { snapshots, moves, files: false };
        let [by_files, is_bound, is_csi, has_class] = flags;
        let claim = VolumeClaim { policy, by_files, is_bound, is_csi, has_class };
        let decision = of_claim(&wish, &claim);
        match decision {
            ClaimDecision::Files => prop_assert!(by_files),
            ClaimDecision::Snapshot | ClaimDecision::Move => {
                prop_assert!(is_bound && is_csi && has_class);
                prop_assert_eq!(decision == ClaimDecision::Move, moves);
                prop_assert!(snapshots != Some(false) || policy == Some(VolumeAction::Snapshot));
            }
            ClaimDecision::Skip(_) | ClaimDecision::Nothing(_) => {}
        }
        prop_assert_eq!(policy == Some(VolumeAction::Skip), decision == ClaimDecision::Skip(VolumeSkipReason::Policy));
        // A claim that a pod has backed up is never snapshotted as well, unless a policy says so.
        if by_files && policy.is_none() {
            prop_assert_eq!(decision, ClaimDecision::Files);
        }
    }

    #[test]
    fn files_are_read_of_mounted_volumes_in_running_pods_only(
        files in any::<bool>(),
        policy in policy(),
        flags in any::<[bool; 7]>(),
        kind in prop::sample::select(vec!["emptyDir", "secret", "persistentVolumeClaim", "hostPath"]),
        pod in prop::sample::select(vec![PodPhase::Running, PodPhase::Ended, PodPhase::Waiting]),
    ) {
        let [is_named, is_excluded, is_of_untaken_claim, is_stored, is_host_path, is_device, is_mounted] = flags;
        let volume = PodVolumeState {
            name: "v", kind, policy, is_named, is_excluded, is_of_untaken_claim, is_stored, is_host_path, is_device,
            is_mounted, pod,
        };
        if of_pod(&VolumeOptions { files, ..AUTO }, &volume) == OfPod::Files {
            prop_assert!(pod == PodPhase::Running && is_mounted && !is_device && !is_stored && !is_host_path);
            prop_assert!(!NEVER.contains(&kind) && !is_of_untaken_claim);
            prop_assert!(policy.is_none_or(|action| action == VolumeAction::FsBackup));
        }
    }
}

#[test]
fn files_of_an_earlier_run_are_taken_over_where_they_are_of_the_moment_of_the_rest() {
    for (moment, is_complete, is_spoiled, is_whole, expected) in [
        (Moment::Any, true, false, false, true),
        (Moment::Any, false, false, false, true),
        (Moment::Any, true, true, false, false),
        // Other volumes of its block are read anew.
        (Moment::Still, true, false, false, false),
        (Moment::Still, true, false, true, true),
        (Moment::Still, true, true, true, true),
        (Moment::Still, false, false, true, false),
        (Moment::Still, false, true, false, false),
        (Moment::Past, true, false, false, true),
        (Moment::Past, true, true, true, true),
        (Moment::Past, false, true, true, false),
    ] {
        let asked = Asked { is_complete, is_spoiled, is_whole, is_ours: false };
        assert_eq!(takes_over(moment, asked), expected, "{moment:?} {asked:?}");
    }
    // A run that dies before its checkpoint forgets which pods were thawed too early. Where hooks
    // freeze a pod once more, nothing depends on it.
    for (is_complete, is_whole) in [(false, false), (false, true), (true, false), (true, true)] {
        let [known, forgotten] = [true, false].map(|is_spoiled| {
            takes_over(Moment::Still, Asked { is_complete, is_spoiled, is_whole, is_ours: false })
        });
        assert_eq!(known, forgotten, "{is_complete} {is_whole}");
    }
    // This very run may have asked for it, and the answer was lost.
    for (is_spoiled, expected) in [(false, true), (true, false)] {
        let asked = Asked { is_complete: false, is_spoiled, is_whole: false, is_ours: true };
        assert_eq!(takes_over(Moment::Still, asked), expected);
    }
}
