//! Data movers whose node-agent is away.

use super::*;
use crate::mover::grant::orphan::{Circumstances, MAX_RESETS, Remedy, Unrecoverable, remedy};
use crate::mover::grant::view::{GIVEN_UP_AFTER, MoverPod, NodeAgentTimeouts};

/// Accepted on n1, with the agent of n1 in the given state.
fn orphaned(agent: NodeAgentState, pod: Option<(Option<&str>, bool)>) -> GrantView {
    let mover_pod = pod.map(|(node, running)| MoverPod {
        node: node.map(str::to_owned),
        placed_at: node.map(|_| second(NOW - 90)),
        running,
    });
    let mut view = view([Mover { mover_pod, ..upload("du", NOW - 100, MoverPhase::Accepted) }]);
    view.agents.insert("n1".to_owned(), agent);
    view
}

/// The recovered data movers, and whether each keeps its place.
fn recovered(plan: &GrantPlan) -> Vec<(usize, bool)> {
    plan.recover.iter().map(|recover| (recover.mover, recover.keeps_place)).collect()
}

#[test]
fn what_berth_carries_needs_a_place_and_no_agent() {
    let own = |mover: Mover| Mover { own: true, accepted_by: None, ..mover };
    let pod = MoverPod { node: Some("n9".to_owned()), placed_at: Some(second(0)), running: true };
    let holder = Mover { mover_pod: Some(pod), ..own(upload("holds", 1, MoverPhase::Prepared)) };
    let mut view = view([own(new_upload("b", 3)), own(new_upload("a", 2)), holder]);
    // Nobody else would go on with it.
    view.agents.clear();
    let plan = planned(&view);
    assert_eq!((granted(&view, &plan), recovered(&plan)), (vec!["a"], Vec::new()));
    view.limits.limit = None;
    assert!(planned(&view).recover.is_empty());
}

#[test]
fn one_whose_agent_is_away_for_long_is_told_from_one_whose_agent_may_be_back() {
    for (since, expected) in [(OUT_AFTER, false), (GIVEN_UP_AFTER, true)] {
        for ago in [since.as_secs(), since.as_secs() + 60] {
            let expected = expected || ago >= GIVEN_UP_AFTER.as_secs();
            let plan = planned(&orphaned(out(NOW - ago), None));
            assert_eq!(plan.recover[0].for_long, expected, "{ago}");
        }
    }
}

#[test]
fn whoever_has_less_patience_looks_after_it_sooner() {
    let patience = |out_after, given_up_after| {
        let seconds = jiff::SignedDuration::from_secs;
        NodeAgentTimeouts { out_after: seconds(out_after), given_up_after: seconds(given_up_after) }
    };
    for (ago, patience, expected) in [
        (24, NodeAgentTimeouts::default(), None),
        (25, NodeAgentTimeouts::default(), Some(false)),
        (120, NodeAgentTimeouts::default(), Some(true)),
        (4, patience(5, 10), None),
        (5, patience(5, 10), Some(false)),
        (9, patience(5, 10), Some(false)),
        (10, patience(5, 10), Some(true)),
        // Not earlier than it becomes an orphan.
        (4, patience(5, 1), None),
        (5, patience(5, 1), Some(true)),
    ] {
        let plan = planned(&GrantView { patience, ..orphaned(out(NOW - ago), None) });
        assert_eq!(plan.recover.first().map(|orphan| orphan.for_long), expected, "{ago} s of {patience:?}");
    }
}

#[test]
fn one_whose_agent_is_away_begins_anew() {
    let (short, long) = (out(NOW - OUT_AFTER.as_secs() + 1), out(NOW - OUT_AFTER.as_secs()));
    for (agent, pod, expected) in [
        (long, None, true),
        (short, None, false),
        (ready(), None, false),
        // By another clock.
        (out(NOW + 60), None, false),
        // It goes on by itself.
        (long, Some((Some("n2"), true)), false),
        (long, Some((Some("n2"), false)), false),
        (long, Some((None, false)), false),
        // It does not, because the agent that would continue it is away as well.
        (long, Some((Some("n1"), true)), true),
        (long, Some((Some("n9"), true)), true),
        // Or only that agent is away.
        (ready(), Some((Some("n9"), true)), true),
        (ready(), Some((Some("n9"), false)), true),
    ] {
        let plan = planned(&orphaned(agent, pod));
        let expected: Vec<_> = expected.then_some((0, true)).into_iter().collect();
        assert_eq!(recovered(&plan), expected, "{agent:?} {pod:?}");
    }
}

#[test]
fn a_pod_that_never_starts_waits_for_its_dead_agent_only_so_long() {
    let mut view = orphaned(out(0), Some((Some("n2"), false)));
    Arc::make_mut(&mut view.movers[0]).accepted_at = Some(second(NOW - 600));
    assert_eq!(planned(&view).recover.len(), 1);
    Arc::make_mut(&mut view.movers[0]).accepted_at = Some(second(NOW - 599));
    assert_eq!(planned(&view).recover, []);
}

#[test]
fn one_whose_agent_restarted_before_it_made_the_pod_begins_anew() {
    let restarted = |at| NodeAgentState { started_at: Some(second(at)), ..ready() };
    // Accepted 99 seconds ago.
    for (agent, pod, expected) in [
        (restarted(NOW - 98), None, true),
        (restarted(NOW - 99), None, false),
        (restarted(NOW - 24), None, false),
        (restarted(NOW - 25), None, true),
        (restarted(NOW - 98), Some((None, false)), false),
        (NodeAgentState { started_at: None, ..ready() }, None, false),
    ] {
        assert_eq!(planned(&orphaned(agent, pod)).recover.len(), usize::from(expected), "{agent:?} {pod:?}");
    }
}

#[test]
fn one_that_is_bound_to_the_dead_agent_gives_its_place_up() {
    for kind in [PodVolumeBackup, PodVolumeRestore] {
        for phase in [MoverPhase::Accepted, MoverPhase::Prepared] {
            let pod =
                MoverPod { node: Some("n3".to_owned()), placed_at: Some(second(NOW - 1)), running: true };
            let holder = Mover { kind, mover_pod: Some(pod), ..bound("pv", 1, "n3", phase) };
            let mut view = view([holder, upload("du", 2, MoverPhase::Prepared), new_upload("next", 3)]);
            view.agents.insert("n3".to_owned(), out(0));
            let plan = planned(&view);
            assert_eq!(recovered(&plan), [(0, false)]);
            // Not before its place is seen to be free.
            assert_eq!(plan.grant, Vec::<usize>::new());
        }
    }
}

/// The node may be new, and its agent on the way. If an agent goes away, the time counts from then
/// on.
#[test]
fn a_pod_that_has_just_come_to_its_node_waits_for_the_agent_there() {
    let placed = |ago: i64| MoverPod {
        node: Some("n9".to_owned()),
        placed_at: Some(second(NOW - ago)),
        running: true,
    };
    let long = OUT_AFTER.as_secs();
    for (placed_ago, agent, expected) in [
        (long - 1, None, false),
        (long, None, true),
        (long - 1, Some(out(0)), false),
        (long, Some(out(0)), true),
        (90, Some(out(NOW - long + 1)), false),
        (90, Some(out(NOW - long)), true),
        (90, Some(ready()), false),
    ] {
        let mut view = orphaned(ready(), None);
        Arc::make_mut(&mut view.movers[0]).mover_pod = Some(placed(placed_ago));
        view.agents.extend(agent.map(|agent| ("n9".to_owned(), agent)));
        assert_eq!(planned(&view).recover.len(), usize::from(expected), "{placed_ago} {agent:?}");
    }
}

#[test]
fn one_that_begins_anew_keeps_no_place_that_there_is_not() {
    let mut view = orphaned(out(0), None);
    view.movers.push(Arc::new(upload("prepared", 1, MoverPhase::Prepared)));
    assert!(planned(&view).recover[0].keeps_place);
    view.limits.limit = Some(1);
    assert!(!planned(&view).recover[0].keeps_place);
    view.limits.limit = Some(2);
    Arc::make_mut(&mut view.movers[0]).canceled = true;
    assert!(!planned(&view).recover[0].keeps_place);
}

#[test]
fn one_that_is_prepared_is_left_to_the_agent_of_its_node() {
    let prepared =
        |name, age| Mover { running_on: Some("n2".to_owned()), ..upload(name, age, MoverPhase::Prepared) };
    let mut view = view([prepared("du", 1)]);
    for (node, agent, expected) in [
        // The agent has done its part.
        ("n1", out(0), false),
        ("n2", ready(), false),
        ("n2", out(NOW - OUT_AFTER.as_secs() + 1), false),
        ("n2", out(NOW - OUT_AFTER.as_secs()), true),
    ] {
        view.agents.insert(node.to_owned(), agent);
        let expected: Vec<_> = expected.then_some((0, true)).into_iter().collect();
        assert_eq!(recovered(&planned(&view)), expected, "{node} {agent:?}");
    }
}

#[test]
fn whoever_runs_or_has_ended_is_no_orphan() {
    use MoverPhase::*;
    for phase in [New, InProgress, Canceling, Canceled, Completed, Failed, Unknown] {
        let mut view = view([Mover { running_on: Some("n2".to_owned()), ..upload("du", 1, phase) }]);
        view.agents.extend(["n1", "n2"].map(|node| (node.to_owned(), out(0))));
        assert_eq!(planned(&view).recover, [], "{phase:?}");
    }
}

#[test]
fn what_helps_an_orphan() {
    use MoverPhase::{Accepted, Prepared};
    let (taken, often) = (Remedy::Fail(Unrecoverable::SnapshotTaken), Remedy::Fail(Unrecoverable::TooOften));
    for (kind, phase, is_running, snapshot_taken, expected) in [
        (DataUpload, Accepted, false, false, Remedy::Reset),
        (DataUpload, Accepted, false, true, taken),
        (DataUpload, Accepted, true, true, taken),
        (DataUpload, Prepared, true, true, Remedy::MarkInProgress),
        (DataUpload, Prepared, false, true, taken),
        (DataDownload, Accepted, true, false, Remedy::Reset),
        (DataDownload, Prepared, true, false, Remedy::Reset),
        (PodVolumeBackup, Prepared, true, false, Remedy::Reset),
        (PodVolumeRestore, Accepted, false, false, Remedy::Reset),
    ] {
        let text = format!("{kind} {phase:?} {is_running}");
        let pod = MoverPod { running: is_running, ..MoverPod::default() };
        let orphan = Mover { mover_pod: Some(pod), ..mover(kind, "m", 1, phase) };
        let for_long = Circumstances { snapshot_taken, for_long: true, ..Circumstances::default() };
        assert_eq!(remedy(&orphan, for_long), expected, "{text}");
        // A data mover that may still end well is not failed at once.
        let soon = Circumstances { for_long: false, ..for_long };
        assert_eq!(remedy(&orphan, soon), if expected == taken { Remedy::Wait } else { expected }, "{text}");
        // An agent ends it, and cleans up after it.
        let canceled = Mover { canceled: true, resets: MAX_RESETS, ..orphan.clone() };
        assert_eq!(remedy(&canceled, for_long), Remedy::Reset);
        let nowhere = Circumstances { node_gone: true, ..for_long };
        let ended = if kind.is_bound() { Remedy::Fail(Unrecoverable::NodeGone) } else { expected };
        assert_eq!(remedy(&orphan, nowhere), ended, "{text}");
        let again = Mover { resets: MAX_RESETS, ..orphan };
        let expected = if expected == Remedy::Reset { often } else { expected };
        assert_eq!(remedy(&again, for_long), expected, "{text}, again");
    }
}
