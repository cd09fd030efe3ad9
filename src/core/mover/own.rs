//! What the leader does next with each movement that berth itself carries out: a DataUpload or
//! DataDownload (`spec.datamover: berth`), or a PodVolumeBackup or PodVolumeRestore that a node
//! agent has handed over because it does not see the files of its node.
//!
//! The leader creates what a movement needs (a claim, where its data is a snapshot's, and the pod
//! that mounts it), allows the pod to start by the phase Prepared, and removes all of it in the
//! end. The pod moves the data, and writes the phase InProgress and the end of the movement. So a
//! movement continues when the leader changes, and each step can be repeated.

use std::collections::HashMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::MoverKind;
use super::grant::MoverPhase;

/// `spec.datamover` of the movements that berth carries out.
pub const DATAMOVER: &str = "berth";

/// Does berth carry it out?
pub fn is_own(datamover: Option<&str>) -> bool {
    datamover == Some(DATAMOVER)
}

/// Does another vendor's data mover carry it out? If not, berth or Velero's node-agents do.
pub fn is_foreign(datamover: Option<&str>) -> bool {
    !matches!(datamover, None | Some("" | "velero" | DATAMOVER))
}

/// Time-out of a movement from Accepted until its pod has started, as with Velero's node-agents,
/// and of a replaced pod until it runs.
pub const PREPARE: SignedDuration = SignedDuration::from_mins(30);
/// Time-out of binding a volume with restored data to its claim.
pub const BIND: SignedDuration = SignedDuration::from_mins(10);
/// How long a running pod may take to end a movement that is canceled. A pod that hangs, or that
/// its node reports as running for ever, would otherwise occupy a data path of that node.
pub const CANCEL: SignedDuration = SignedDuration::from_mins(10);

/// How many pods of a movement are replaced that were evicted or lost their nodes.
pub const MOST_LOST: usize = 3;

/// The pod that moves the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodStage {
    /// There is no pod.
    #[default]
    Absent,
    /// The pod does not run yet, or is being deleted.
    Waiting,
    Running,
    /// The pod has ended, and is not restarted.
    Ended,
    /// The pod was ended from outside: evicted, or its node was shut down.
    Lost,
}

/// What the leader sees of one movement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnMover<'a> {
    pub kind: MoverKind,
    pub name: &'a str,
    pub created_at: Timestamp,
    pub phase: MoverPhase,
    /// `spec.cancel`, or the object is being deleted.
    pub canceled: bool,
    /// When the leader first saw that.
    pub canceled_at: Option<Timestamp>,
    /// It has a grant.
    pub granted: bool,
    pub accepted_at: Option<Timestamp>,
    /// When the leader first saw that all data of a DataDownload is in the volume.
    pub restored_at: Option<Timestamp>,
    /// Objects may exist that were created for it.
    pub has_objects: bool,
    pub pod: PodStage,
    /// When the pod was created or, if it is being deleted, when it should be gone.
    pub pod_since: Option<Timestamp>,
    /// The node of the pod.
    pub node: Option<&'a str>,
    /// The only node on which its pod can run, because the files are there.
    pub bound_node: Option<&'a str>,
    /// How many of its pods were lost before this one.
    pub lost_pods: usize,
}

/// The next step of the leader for one movement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnStep {
    /// Nothing, or something else has to happen first.
    #[default]
    Nothing,
    /// Write the phase Accepted. From then on objects are created for it.
    Accept,
    /// Create its claim, if it needs one, and its pod, as far as they are missing.
    Make,
    /// Record that its pod is lost, and remove the pod, so that it is created again.
    Replace,
    /// Write the phase Prepared, for which its pod waits.
    Begin,
    /// Bind the restored volume to its claim, and write the phase Completed.
    Bind,
    /// Write the phase Failed.
    Fail(OwnFault),
    /// Write the phase Canceled.
    Cancel,
    /// It has ended: remove what was created for it.
    Clear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnFault {
    NotPrepared,
    PodEnded,
    PodLost,
    NotBound,
}

impl fmt::Display for OwnFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPrepared => {
                write!(f, "its data mover pod did not run within {} minutes", PREPARE.as_mins())
            }
            Self::PodEnded => f.write_str("its data mover pod ended before the data was moved"),
            Self::PodLost => {
                write!(f, "{} data mover pods of it were evicted, or lost their nodes", MOST_LOST + 1)
            }
            Self::NotBound => {
                write!(f, "the restored volume could not be bound within {} minutes", BIND.as_mins())
            }
        }
    }
}

/// How many movements may run at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPaths {
    /// The number of data paths of each node.
    pub by_node: HashMap<String, u32>,
    /// `prepareQueueLength` is in force: only movements with a grant may be prepared.
    pub is_limited: bool,
}

impl DataPaths {
    fn of(&self, node: &str) -> u32 {
        self.by_node.get(node).copied().unwrap_or(1)
    }

    /// Without that limit, as many are prepared at the same time as could run.
    fn all(&self) -> usize {
        let all = self.by_node.values().fold(0_u32, |all, one| all.saturating_add(*one));
        usize::try_from(all.max(1)).unwrap_or(usize::MAX)
    }
}

/// The next step of each movement, in the given order. If there is not room for all, the oldest go
/// first. One that is bound to a node is accepted only when that node has a data path for it, and
/// keeps that path until it ends: many may be bound to one node, and those that waited there would
/// hold all places meanwhile, and fail because their time to begin is limited.
pub fn plan(all: &[OwnMover<'_>], paths: &DataPaths, now: Timestamp) -> Vec<OwnStep> {
    let mut order: Vec<(usize, &OwnMover<'_>)> = all.iter().enumerate().collect();
    order.sort_by_key(|(_, one)| (one.created_at, one.kind, one.name));
    let mut preparing = all.iter().filter(|one| one.phase.holds_place()).count();
    let mut load: HashMap<&str, u32> = HashMap::new();
    for node in all.iter().filter_map(loaded_node) {
        *load.entry(node).or_default() += 1;
    }
    let mut steps = vec![OwnStep::Nothing; all.len()];
    for (i, one) in order {
        let wanted = step(one, now);
        let mut takes_path = |node| {
            let load = load.entry(node).or_default();
            let has_room = *load < paths.of(node);
            *load += u32::from(has_room);
            has_room
        };
        let may = match wanted {
            OwnStep::Accept => {
                let has_place = if paths.is_limited { one.granted } else { preparing < paths.all() };
                let has_room = has_place && one.bound_node.is_none_or(&mut takes_path);
                preparing += usize::from(has_room);
                has_room
            }
            // It has had its data path since it was accepted.
            OwnStep::Begin if one.bound_node.is_some() => true,
            OwnStep::Begin => takes_path(one.node.unwrap_or_default()),
            _ => true,
        };
        if let Some(step) = steps.get_mut(i).filter(|_| may) {
            *step = wanted;
        }
    }
    steps
}

/// The node on which it takes a data path: its pod moves data there, or will start shortly, or it
/// is bound to that node.
fn loaded_node<'a>(one: &OwnMover<'a>) -> Option<&'a str> {
    use MoverPhase::{Accepted, Canceling, InProgress, Prepared};
    match one.phase {
        Accepted | Prepared | InProgress | Canceling if one.bound_node.is_some() => one.bound_node,
        Prepared | InProgress | Canceling if one.pod == PodStage::Running => one.node,
        _ => None,
    }
}

/// The next step of one movement, if there is room for it.
fn step(one: &OwnMover<'_>, now: Timestamp) -> OwnStep {
    use MoverPhase::{Accepted, Canceled, Canceling, Completed, Failed, InProgress, New, Prepared, Unknown};
    let is_over =
        |since: Option<Timestamp>, limit| now.duration_since(since.unwrap_or(one.created_at)) >= limit;
    match (one.phase, one.pod) {
        (New | Accepted | Prepared, _) if one.canceled => OwnStep::Cancel,
        (New, _) => OwnStep::Accept,
        (Accepted | Prepared, PodStage::Ended) => OwnStep::Fail(OwnFault::PodEnded),
        (Accepted | Prepared, _) if is_over(one.accepted_at, PREPARE) => OwnStep::Fail(OwnFault::NotPrepared),
        (Accepted | Prepared, PodStage::Lost) => replace(one),
        // A pod that was allowed to start may have been removed with its node before it did.
        (Accepted | Prepared, PodStage::Absent) => OwnStep::Make,
        (Accepted, PodStage::Running) => OwnStep::Begin,
        (Accepted | Prepared, _) => OwnStep::Nothing,
        (InProgress | Canceling, _) if one.restored_at.is_some() => match is_over(one.restored_at, BIND) {
            true => OwnStep::Fail(OwnFault::NotBound),
            false => OwnStep::Bind,
        },
        // A running pod notices the cancellation by itself, unless it hangs.
        (InProgress | Canceling, PodStage::Running) => {
            let is_hung = one.canceled && one.canceled_at.is_some_and(|at| now.duration_since(at) >= CANCEL);
            if is_hung { OwnStep::Cancel } else { OwnStep::Nothing }
        }
        (InProgress | Canceling, _) if one.canceled => OwnStep::Cancel,
        // Its node was drained. The new pod stores only what the repository lacks.
        (InProgress | Canceling, PodStage::Absent) => OwnStep::Make,
        (InProgress | Canceling, PodStage::Lost) => replace(one),
        (InProgress | Canceling, PodStage::Waiting) => {
            let is_late = one.pod_since.is_some_and(|since| now.duration_since(since) >= PREPARE);
            if is_late { OwnStep::Fail(OwnFault::NotPrepared) } else { OwnStep::Nothing }
        }
        (InProgress | Canceling, PodStage::Ended) => OwnStep::Fail(OwnFault::PodEnded),
        (Canceled | Completed | Failed, _) if one.has_objects => OwnStep::Clear,
        (Canceled | Completed | Failed | Unknown, _) => OwnStep::Nothing,
    }
}

/// What is done about a pod that ended, although nothing of the movement ended it.
fn replace(one: &OwnMover<'_>) -> OwnStep {
    if one.lost_pods < MOST_LOST { OwnStep::Replace } else { OwnStep::Fail(OwnFault::PodLost) }
}

#[cfg(test)]
mod tests {
    use MoverPhase::*;
    use OwnStep::*;

    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    fn upload(name: &str, phase: MoverPhase, pod: PodStage) -> OwnMover<'_> {
        OwnMover {
            kind: MoverKind::DataUpload,
            name,
            created_at: at(0),
            phase,
            canceled: false,
            canceled_at: None,
            granted: false,
            accepted_at: Some(at(1)),
            restored_at: None,
            has_objects: true,
            pod,
            pod_since: (pod != PodStage::Absent).then_some(at(1)),
            node: (pod == PodStage::Running).then_some("n1"),
            bound_node: None,
            lost_pods: 0,
        }
    }

    fn paths(count: u32) -> DataPaths {
        DataPaths { by_node: [("n1".to_owned(), count)].into(), is_limited: false }
    }

    #[test]
    fn every_phase_has_its_step_whatever_became_of_the_pod() {
        let ended = Fail(OwnFault::PodEnded);
        let stages = [PodStage::Absent, PodStage::Waiting, PodStage::Running, PodStage::Ended];
        for (phase, wanted, canceled) in [
            (New, [Accept; 4], [Cancel; 4]),
            (Accepted, [Make, Nothing, Begin, ended], [Cancel; 4]),
            (Prepared, [Make, Nothing, Nothing, ended], [Cancel; 4]),
            (InProgress, [Make, Nothing, Nothing, ended], [Cancel, Cancel, Nothing, Cancel]),
            (Canceling, [Make, Nothing, Nothing, ended], [Cancel, Cancel, Nothing, Cancel]),
            (Completed, [Clear; 4], [Clear; 4]),
            (Failed, [Clear; 4], [Clear; 4]),
            (Canceled, [Clear; 4], [Clear; 4]),
            (Unknown, [Nothing; 4], [Nothing; 4]),
        ] {
            let found = stages.map(|pod| step(&upload("u", phase, pod), at(2)));
            assert_eq!(found, wanted, "{phase:?}");
            let found =
                stages.map(|pod| step(&OwnMover { canceled: true, ..upload("u", phase, pod) }, at(2)));
            assert_eq!(found, canceled, "{phase:?}, canceled");
        }
        let cleared = OwnMover { has_objects: false, ..upload("u", Completed, PodStage::Absent) };
        assert_eq!(step(&cleared, at(2)), Nothing);
    }

    #[test]
    fn a_canceled_movement_whose_pod_does_not_end_it_ends_without_it() {
        for phase in [InProgress, Canceling] {
            let running = upload("u", phase, PodStage::Running);
            let canceled = OwnMover { canceled: true, canceled_at: Some(at(10)), ..running };
            assert_eq!(step(&canceled, at(19)), Nothing, "{phase:?}");
            assert_eq!(step(&canceled, at(20)), Cancel, "{phase:?}");
            assert_eq!(step(&OwnMover { canceled: false, ..canceled }, at(99)), Nothing, "{phase:?}");
        }
    }

    #[test]
    fn a_pod_that_is_lost_is_made_again_a_few_times() {
        for (phase, of_canceled) in [
            (New, Cancel),
            (Accepted, Cancel),
            (Prepared, Cancel),
            (InProgress, Cancel),
            (Canceling, Cancel),
            (Completed, Clear),
        ] {
            let lost = |lost_pods| OwnMover { lost_pods, ..upload("u", phase, PodStage::Lost) };
            let (replaced, failed) = match phase {
                New => (Accept, Accept),
                Completed => (Clear, Clear),
                _ => (Replace, Fail(OwnFault::PodLost)),
            };
            assert_eq!(step(&lost(0), at(2)), replaced, "{phase:?}");
            assert_eq!(step(&lost(MOST_LOST - 1), at(2)), replaced, "{phase:?}");
            assert_eq!(step(&lost(MOST_LOST), at(2)), failed, "{phase:?}");
            let canceled = OwnMover { canceled: true, ..lost(0) };
            assert_eq!(step(&canceled, at(2)), of_canceled, "{phase:?}");
        }
        // All data is already in the volume.
        let restored = OwnMover { restored_at: Some(at(1)), ..upload("d", InProgress, PodStage::Lost) };
        assert_eq!(step(&restored, at(2)), Bind);
        assert_eq!(
            step(&upload("u", Accepted, PodStage::Lost), at(31)),
            Fail(OwnFault::NotPrepared),
            "which has one limit for all pods"
        );
    }

    #[test]
    fn what_is_not_prepared_or_bound_in_time_fails() {
        let mut found = upload("u", Accepted, PodStage::Waiting);
        assert_eq!(step(&found, at(30)), Nothing);
        assert_eq!(step(&found, at(31)), Fail(OwnFault::NotPrepared));
        found.phase = Prepared;
        assert_eq!(step(&found, at(31)), Fail(OwnFault::NotPrepared));
        // A movement that had started, and whose node was lost, has the same time for its new pod.
        found.phase = InProgress;
        found.pod_since = Some(at(100));
        assert_eq!(step(&found, at(129)), Nothing);
        assert_eq!(step(&found, at(130)), Fail(OwnFault::NotPrepared));
        // A running pod has no time-out here.
        assert_eq!(step(&upload("u", InProgress, PodStage::Running), at(999)), Nothing);
        for pod in [PodStage::Absent, PodStage::Running, PodStage::Ended] {
            let restored = OwnMover { restored_at: Some(at(100)), ..upload("d", InProgress, pod) };
            assert_eq!(step(&restored, at(109)), Bind, "{pod:?}");
            assert_eq!(step(&restored, at(110)), Fail(OwnFault::NotBound), "{pod:?}");
        }
    }

    #[test]
    fn the_oldest_are_prepared_first_and_no_more_than_can_run() {
        let older = OwnMover { created_at: at(-1), ..upload("z", New, PodStage::Absent) };
        let all = [
            upload("a", New, PodStage::Absent),
            upload("b", New, PodStage::Absent),
            older,
            upload("c", Accepted, PodStage::Waiting),
        ];
        assert_eq!(plan(&all, &paths(3), at(2)), [Accept, Nothing, Accept, Nothing]);
        assert_eq!(plan(&all, &DataPaths::default(), at(2)), [Nothing; 4]);
        // With a limit only the leader's grants count.
        let limited = DataPaths { is_limited: true, ..paths(1) };
        let granted = [
            OwnMover { granted: true, ..upload("a", New, PodStage::Absent) },
            upload("b", New, PodStage::Absent),
        ];
        assert_eq!(plan(&granted, &limited, at(2)), [Accept, Nothing]);
    }

    #[test]
    fn no_node_gets_more_than_it_has_data_paths_for() {
        let running = |name| upload(name, Accepted, PodStage::Running);
        let all = [running("a"), upload("b", InProgress, PodStage::Running), running("c")];
        assert_eq!(plan(&all, &paths(2), at(2)), [Begin, Nothing, Nothing]);
        assert_eq!(plan(&all, &paths(1), at(2)), [Nothing; 3]);
        assert_eq!(plan(&all, &paths(3), at(2)), [Begin, Nothing, Begin]);
        let elsewhere = OwnMover { node: Some("unheard"), ..running("a") };
        assert_eq!(plan(&[elsewhere.clone(), elsewhere], &paths(9), at(2)), [Begin, Nothing]);
    }

    #[test]
    fn what_is_bound_to_a_node_has_a_data_path_from_its_acceptance_on() {
        let bound = |name, phase, node| OwnMover {
            kind: MoverKind::PodVolumeBackup,
            bound_node: Some(node),
            ..upload(name, phase, PodStage::Absent)
        };
        let two_nodes = |count| {
            let by_node = [("n1", count), ("n2", count)].map(|(node, count)| (node.to_owned(), count));
            DataPaths { by_node: by_node.into(), is_limited: false }
        };
        // Those that wait for their own node leave the places to others.
        let all = [bound("a", New, "n1"), bound("b", New, "n1"), bound("c", New, "n2")];
        assert_eq!(plan(&all, &two_nodes(1), at(2)), [Accept, Nothing, Accept]);
        let unheard = [bound("a", New, "n9"), bound("b", New, "n9")];
        assert_eq!(plan(&unheard, &two_nodes(1), at(2)), [Accept, Nothing]);
        for phase in [Accepted, Prepared, InProgress, Canceling] {
            let all = [bound("a", phase, "n1"), bound("b", New, "n1")];
            assert_eq!(plan(&all, &two_nodes(1), at(2))[1], Nothing, "{phase:?}");
        }
        for phase in [Completed, Failed, Canceled, Unknown] {
            let all = [bound("a", phase, "n1"), bound("b", New, "n1")];
            assert_eq!(plan(&all, &two_nodes(1), at(2))[1], Accept, "{phase:?}");
        }
        // A grant is no data path.
        let granted = |name| OwnMover { granted: true, ..bound(name, New, "n1") };
        let limited = DataPaths { is_limited: true, ..two_nodes(1) };
        let all = [granted("a"), granted("b"), bound("c", New, "n2")];
        assert_eq!(plan(&all, &limited, at(2)), [Accept, Nothing, Nothing]);
        // It begins when its pod runs, and nobody else takes its path meanwhile.
        let ready = OwnMover { pod: PodStage::Running, node: Some("n1"), ..bound("b", Accepted, "n1") };
        let older = upload("a", Accepted, PodStage::Running);
        let all = [older.clone(), ready.clone()];
        assert_eq!(plan(&all, &two_nodes(1), at(2)), [Nothing, Begin]);
        assert_eq!(plan(&all, &two_nodes(2), at(2)), [Begin, Begin]);
        // The number was lowered meanwhile.
        let busy = upload("a", InProgress, PodStage::Running);
        assert_eq!(plan(&[busy, ready], &two_nodes(1), at(2)), [Nothing, Begin]);
        let running = [upload("a", InProgress, PodStage::Running), bound("b", New, "n1")];
        assert_eq!(plan(&running, &two_nodes(1), at(2)), [Nothing, Nothing]);
        assert_eq!(plan(&running, &two_nodes(2), at(2)), [Nothing, Accept]);
    }

    #[test]
    fn nobody_elses_movement_is_taken_for_our_own() {
        for (datamover, own, foreign) in [
            (None, false, false),
            (Some(""), false, false),
            (Some("velero"), false, false),
            (Some("berth"), true, false),
            (Some("acme"), false, true),
        ] {
            assert_eq!((is_own(datamover), is_foreign(datamover)), (own, foreign), "{datamover:?}");
        }
    }
}
