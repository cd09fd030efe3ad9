use proptest::prelude::*;

use super::*;

const BOUND: Claim = Claim { policy: None, by_files: false, is_bound: true, is_csi: true, has_class: true };
const AUTO: Wish = Wish { snapshots: None, files: false, moves: false };

#[test]
fn each_claim_gets_the_decision_of_its_row() {
    let by = |action| Claim { policy: Some(action), ..BOUND };
    let wish = |snapshots| Wish { snapshots, ..AUTO };
    let moves = |snapshots| Wish { snapshots, moves: true, ..AUTO };
    for (wish, claim, expected) in [
        (AUTO, BOUND, Decision::Snapshot),
        (wish(Some(true)), BOUND, Decision::Snapshot),
        (wish(Some(false)), BOUND, Decision::Skip(Skip::Unwanted)),
        (moves(None), BOUND, Decision::Move),
        (moves(Some(false)), BOUND, Decision::Skip(Skip::Unwanted)),
        (AUTO, by(Action::Skip), Decision::Skip(Skip::Policy)),
        (wish(Some(true)), by(Action::Skip), Decision::Skip(Skip::Policy)),
        (wish(Some(false)), by(Action::Snapshot), Decision::Snapshot),
        (moves(Some(false)), by(Action::Snapshot), Decision::Move),
        (AUTO, by(Action::Custom), Decision::Nothing(Lack::Plugin)),
        (AUTO, by(Action::FsBackup), Decision::Nothing(Lack::Pod)),
        (AUTO, Claim { by_files: true, ..by(Action::FsBackup) }, Decision::Files),
        (AUTO, Claim { by_files: true, ..BOUND }, Decision::Files),
        (wish(Some(true)), Claim { by_files: true, ..BOUND }, Decision::Files),
        (AUTO, Claim { by_files: true, ..by(Action::Snapshot) }, Decision::Snapshot),
        (AUTO, Claim { by_files: true, ..by(Action::Skip) }, Decision::Skip(Skip::Policy)),
        (AUTO, Claim { is_bound: false, ..BOUND }, Decision::Skip(Skip::Unbound)),
        (AUTO, Claim { is_csi: false, ..BOUND }, Decision::Nothing(Lack::Driver)),
        (AUTO, Claim { has_class: false, ..BOUND }, Decision::Nothing(Lack::Class)),
        (AUTO, Claim { has_class: false, ..by(Action::Snapshot) }, Decision::Nothing(Lack::Class)),
        (AUTO, Claim { is_bound: false, ..by(Action::Snapshot) }, Decision::Skip(Skip::Unbound)),
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
        (None, false, Some(Action::Snapshot), true),
        (None, false, Some(Action::FsBackup), true),
        (None, false, Some(Action::Custom), true),
        (Some(true), true, Some(Action::Skip), false),
    ] {
        let wish = Wish { snapshots, moves, ..AUTO };
        assert_eq!(is_asked_for(&wish, policy), expected, "{wish:?} {policy:?}");
    }
}

const DATA: PodVolume<'_> = PodVolume {
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
    let all = Wish { files: true, ..AUTO };
    let unnamed = PodVolume { is_named: false, ..DATA };
    let by = |action| PodVolume { policy: Some(action), ..unnamed };
    for (wish, volume, expected) in [
        (AUTO, DATA, OfPod::Files),
        (AUTO, unnamed, OfPod::No),
        (AUTO, PodVolume { is_excluded: true, ..DATA }, OfPod::Files),
        (all, unnamed, OfPod::Files),
        (all, PodVolume { is_excluded: true, ..DATA }, OfPod::No),
        (AUTO, by(Action::FsBackup), OfPod::Files),
        (all, by(Action::Skip), OfPod::No),
        (all, by(Action::Snapshot), OfPod::No),
        (AUTO, PodVolume { policy: Some(Action::Skip), ..DATA }, OfPod::No),
        (all, PodVolume { name: "default-token-x", ..DATA }, OfPod::No),
        (all, PodVolume { is_of_untaken_claim: true, ..DATA }, OfPod::No),
        (AUTO, PodVolume { is_stored: true, ..DATA }, OfPod::Skip(Obstacle::Stored)),
        (AUTO, PodVolume { pod: PodPhase::Ended, ..DATA }, OfPod::Skip(Obstacle::Ended)),
        (AUTO, PodVolume { pod: PodPhase::Waiting, ..DATA }, OfPod::Skip(Obstacle::Waiting)),
        (AUTO, PodVolume { is_host_path: true, ..DATA }, OfPod::Skip(Obstacle::HostPath)),
        (AUTO, PodVolume { is_device: true, ..DATA }, OfPod::Skip(Obstacle::Device)),
        (AUTO, PodVolume { is_mounted: false, ..DATA }, OfPod::Skip(Obstacle::Unmounted)),
    ] {
        assert_eq!(of_pod(&wish, &volume), expected, "{wish:?} {volume:?}");
    }
    for kind in NEVER {
        assert_eq!(of_pod(&all, &PodVolume { kind, ..DATA }), OfPod::No, "{kind}");
    }
    let losses = [Obstacle::Waiting, Obstacle::HostPath, Obstacle::Device, Obstacle::Unmounted];
    assert!(losses.into_iter().all(Obstacle::is_loss));
    assert!(!Obstacle::Stored.is_loss() && !Obstacle::Ended.is_loss());
}

#[test]
fn names_of_volumes_are_separated_by_commas() {
    assert_eq!(names("a, b,,c ").collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(names("").count(), 0);
}

fn policy() -> impl Strategy<Value = Option<Action>> {
    prop::option::of(prop::sample::select(Action::ALL.to_vec()))
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
        let wish = Wish { snapshots, moves, files: false };
        let [by_files, is_bound, is_csi, has_class] = flags;
        let claim = Claim { policy, by_files, is_bound, is_csi, has_class };
        let decision = of_claim(&wish, &claim);
        match decision {
            Decision::Files => prop_assert!(by_files),
            Decision::Snapshot | Decision::Move => {
                prop_assert!(is_bound && is_csi && has_class);
                prop_assert_eq!(decision == Decision::Move, moves);
                prop_assert!(snapshots != Some(false) || policy == Some(Action::Snapshot));
            }
            Decision::Skip(_) | Decision::Nothing(_) => {}
        }
        prop_assert_eq!(policy == Some(Action::Skip), decision == Decision::Skip(Skip::Policy));
        // A claim that a pod has backed up is never snapshotted as well, unless a policy says so.
        if by_files && policy.is_none() {
            prop_assert_eq!(decision, Decision::Files);
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
        let volume = PodVolume {
            name: "v", kind, policy, is_named, is_excluded, is_of_untaken_claim, is_stored, is_host_path, is_device,
            is_mounted, pod,
        };
        if of_pod(&Wish { files, ..AUTO }, &volume) == OfPod::Files {
            prop_assert!(pod == PodPhase::Running && is_mounted && !is_device && !is_stored && !is_host_path);
            prop_assert!(!NEVER.contains(&kind) && !is_of_untaken_claim);
            prop_assert!(policy.is_none_or(|action| action == Action::FsBackup));
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
        // This very run may have asked for it, and the answer was lost.
        (Moment::Still, false, false, false, true),
        (Moment::Still, false, true, false, false),
        (Moment::Past, true, false, false, true),
        (Moment::Past, true, true, true, true),
        (Moment::Past, false, true, true, false),
    ] {
        let asked = Asked { is_complete, is_spoiled, is_whole };
        assert_eq!(takes_over(moment, asked), expected, "{moment:?} {asked:?}");
    }
}
