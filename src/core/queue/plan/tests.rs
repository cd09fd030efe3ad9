use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::glob::Glob;
use crate::queue::{next_position, precedence};

fn set(includes: &[&str]) -> NamespaceSet {
    NamespaceSet::new(includes.iter().filter_map(|t| Glob::parse(t).ok()).collect(), Vec::new())
}

fn entry(name: &str, phase: Phase, position: u32, includes: &[&str]) -> Arc<Entry> {
    Arc::new(Entry {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        phase,
        position,
        held: false,
        canceled: false,
        first: None,
        enqueued_at: None,
        created_at: Timestamp::UNIX_EPOCH,
        namespaces: set(includes),
    })
}

fn names<'v>(view: &'v View, plan: &Plan) -> Vec<&'v str> {
    plan.start.iter().map(|i| view.backups[*i].name.as_str()).collect()
}

fn waits_for<'p>(view: &View, plan: &'p Plan, name: &str) -> &'p Reason {
    let found = plan.waiting.iter().find(|w| view.backups[w.backup].name == name);
    &found.unwrap_or_else(|| unreachable!("{name} does not wait")).reason
}

/// The worked example of Velero's design "Concurrent Backup Processing".
fn worked_example(backup1: Phase) -> View {
    View {
        slots: 2,
        backups: vec![
            entry("backup1", backup1, if backup1 == Phase::Queued { 1 } else { 0 }, &["ns1", "ns2"]),
            entry("backup2", Phase::Queued, 2, &["ns2", "ns3", "ns5"]),
            entry("backup3", Phase::Queued, 3, &["ns4", "ns3"]),
            entry("backup4", Phase::Queued, 4, &["ns5", "ns6"]),
            entry("backup5", Phase::Queued, 5, &["ns8", "ns9"]),
        ],
    }
}

fn overlap(with: &str, running: bool, namespaces: &[&str]) -> Reason {
    let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
    Reason::Overlap { with: with.to_owned(), running, namespaces }
}

#[test]
fn backup5_runs_beside_backup1_and_the_others_wait_for_the_one_ahead() {
    let view = worked_example(Phase::InProgress);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup5"]);
    assert_eq!(waits_for(&view, &plan, "backup2"), &overlap("backup1", true, &["ns2"]));
    assert_eq!(waits_for(&view, &plan, "backup3"), &overlap("backup2", false, &["ns3"]));
    assert_eq!(waits_for(&view, &plan, "backup4"), &overlap("backup2", false, &["ns5"]));
    assert_eq!(plan.waiting.iter().map(|w| w.place).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn all_five_at_once_start_with_backup1_and_backup5() {
    let view = worked_example(Phase::Queued);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup1", "backup5"]);
    assert_eq!(waits_for(&view, &plan, "backup2"), &overlap("backup1", true, &["ns2"]));
}

#[test]
fn once_backup1_has_ended_backup2_is_next() {
    let mut view = worked_example(Phase::InProgress);
    Arc::make_mut(&mut view.backups[4]).phase = Phase::InProgress;
    view.backups.remove(0);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup2"]);
}

#[test]
fn once_backup2_has_ended_backup3_and_backup4_run_together() {
    let mut view = worked_example(Phase::InProgress);
    view.backups = view.backups.split_off(2);
    view.backups.pop();
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup3", "backup4"]);
}

#[test]
fn with_every_slot_taken_the_reason_says_so() {
    let mut view = worked_example(Phase::InProgress);
    view.slots = 1;
    let plan = plan(&view);
    assert!(plan.start.is_empty());
    assert_eq!(waits_for(&view, &plan, "backup5"), &Reason::NoSlot { slots: 1 });
}

#[test]
fn a_backup_of_everything_waits_for_all_and_all_wait_for_it() {
    let view = View {
        slots: 3,
        backups: vec![
            entry("small", Phase::InProgress, 0, &["ns1"]),
            entry("full", Phase::Queued, 1, &[]),
            entry("other", Phase::Queued, 2, &["ns2"]),
        ],
    };
    let plan = plan(&view);
    assert!(plan.start.is_empty());
    assert_eq!(waits_for(&view, &plan, "full"), &overlap("small", true, &["ns1"]));
    assert_eq!(waits_for(&view, &plan, "other"), &overlap("full", false, &["ns2"]));
}

#[test]
fn what_the_webhook_missed_is_queued_first_and_never_overtakes() {
    let view = View {
        slots: 1,
        backups: vec![entry("new", Phase::New, 0, &["a"]), entry("queued", Phase::Queued, 7, &["a"])],
    };
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["queued"]);
    let written: Vec<_> = plan.renumber(&view, 0).map(|w| (w.backup, w.place)).collect();
    assert_eq!(written, [(0, 1)], "a backup without a place gets one whatever the budget");
}

#[test]
fn equal_positions_go_by_time_and_then_by_uid() {
    let (mut a, mut b) = (entry("a", Phase::Queued, 1, &[]), entry("b", Phase::Queued, 1, &[]));
    assert!(precedence(&a, &b).is_lt());
    Arc::make_mut(&mut b).enqueued_at = Some(Timestamp::UNIX_EPOCH - SignedDuration::from_secs(1));
    assert!(precedence(&a, &b).is_gt());
    Arc::make_mut(&mut a).position = 0;
    Arc::make_mut(&mut b).position = 9;
    assert!(precedence(&a, &b).is_gt(), "a lost position does not jump the queue");
}

#[test]
fn renumbering_begins_at_the_head_and_keeps_to_its_budget() {
    let view = View {
        slots: 1,
        backups: (1..=5).map(|i| entry(&format!("b{i}"), Phase::Queued, i * 10, &["same"])).collect(),
    };
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["b1"]);
    let places = |budget| plan.renumber(&view, budget).map(|w| w.place).collect::<Vec<_>>();
    assert_eq!(places(2), [1, 2]);
    assert_eq!(places(9), [1, 2, 3, 4]);
}

#[test]
fn a_newcomer_is_told_what_it_would_wait_for() {
    let view = worked_example(Phase::InProgress);
    assert_eq!(explain_newcomer(&view, &set(&["ns3"])), overlap("backup2", false, &["ns3"]));
    // backup5 takes the second slot before the newcomer.
    assert_eq!(explain_newcomer(&view, &set(&["ns99"])), Reason::NoSlot { slots: 2 });
    assert_eq!(next_position(&view.backups), 6);
    let empty = View { slots: 1, backups: Vec::new() };
    assert_eq!(explain_newcomer(&empty, &set(&["ns99"])), Reason::Next);
    assert_eq!(next_position(&empty.backups), 1);
}

#[test]
fn a_held_backup_waits_and_is_in_nobodys_way() {
    let mut view = worked_example(Phase::InProgress);
    Arc::make_mut(&mut view.backups[1]).held = true;
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup3"], "backup2 held nothing");
    assert_eq!(waits_for(&view, &plan, "backup2"), &Reason::Held);
}

#[test]
fn a_waiting_backup_that_is_canceled_ends_and_is_in_nobodys_way() {
    let mut view = worked_example(Phase::InProgress);
    Arc::make_mut(&mut view.backups[1]).canceled = true;
    let plan = plan(&view);
    assert_eq!(plan.cancel, [1]);
    assert_eq!(names(&view, &plan), ["backup3"]);
    assert_eq!(plan.waiting.iter().map(|w| w.place).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_backup_moved_to_the_front_goes_before_all_and_the_last_one_moved_before_it() {
    let mut view = worked_example(Phase::InProgress);
    for (i, at) in [(3, 1), (4, 2)] {
        let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(at);
        Arc::make_mut(&mut view.backups[i]).first = Some(at);
    }
    view.slots = 1;
    let plan = plan(&view);
    let order: Vec<&str> = plan.waiting.iter().map(|w| view.backups[w.backup].name.as_str()).collect();
    assert_eq!(order, ["backup5", "backup4", "backup2", "backup3"]);
}

fn any_view() -> impl Strategy<Value = View> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "a*", "*", "b?"]);
    let backup = (prop::collection::vec(name, 1..4), 0_u32..6, 0_u8..8, 0_i64..4);
    (1_usize..4, prop::collection::vec(backup, 0..12)).prop_map(|(slots, backups)| View {
        slots,
        backups: backups
            .into_iter()
            .enumerate()
            .map(|(i, (includes, position, phase, since))| {
                let phase = if phase == 0 { Phase::New } else { Phase::Queued };
                let mut made = entry(&format!("b{i}"), phase, position, &includes);
                Arc::make_mut(&mut made).enqueued_at =
                    Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(since));
                made
            })
            .collect(),
    })
}

proptest! {
    /// Lives a whole queue to its end, one step at a time, and checks every promise at each step.
    #[test]
    fn a_queue_lives_to_its_end(mut view in any_view(), picks in prop::collection::vec(any::<prop::sample::Index>(), 64)) {
        let mut order: Vec<usize> = view.line();
        let uids: Vec<String> = view.backups.iter().map(|b| b.uid.clone()).collect();
        let mut started: Vec<String> = Vec::new();
        let mut picks = picks.into_iter();
        order.sort_by(|a, b| precedence(&view.backups[*a], &view.backups[*b]));
        let line: Vec<String> = order.iter().map(|i| uids[*i].clone()).collect();
        let sets: HashMap<String, NamespaceSet> =
            view.backups.iter().map(|b| (b.uid.clone(), b.namespaces.clone())).collect();
        for _ in 0..60 {
            if view.backups.is_empty() { break; }
            let decided = plan(&view);
            for place in decided.waiting.iter().zip(1..) { prop_assert_eq!(place.0.place, place.1); }
            let writes: Vec<(usize, u32)> = decided.renumber(&view, usize::MAX).map(|w| (w.backup, w.place)).collect();
            for i in &decided.start {
                Arc::make_mut(&mut view.backups[*i]).phase = Phase::ReadyToStart;
                Arc::make_mut(&mut view.backups[*i]).position = 0;
                started.push(view.backups[*i].uid.clone());
            }
            for (i, place) in writes {
                Arc::make_mut(&mut view.backups[i]).phase = Phase::Queued;
                Arc::make_mut(&mut view.backups[i]).position = place;
            }
            let running: Vec<&Arc<Entry>> = view.backups.iter().filter(|b| b.phase.is_running()).collect();
            prop_assert!(running.len() <= view.slots, "more run than there are slots");
            for (i, a) in running.iter().enumerate() {
                for b in &running[i + 1..] {
                    prop_assert!(a.namespaces.meets(&b.namespaces).is_none(), "{} meets {}", a.name, b.name);
                }
            }
            let mut places: Vec<u32> =
                view.backups.iter().filter(|b| b.phase == Phase::Queued).map(|b| b.position).collect();
            places.sort_unstable();
            prop_assert_eq!(&places, &(1..=places.len() as u32).collect::<Vec<_>>(), "unique and dense");
            let ends: Vec<usize> =
                (0..view.backups.len()).filter(|i| view.backups[*i].phase.is_running()).collect();
            if let (false, Some(pick)) = (ends.is_empty(), picks.next()) {
                view.backups.remove(ends[pick.index(ends.len())]);
            }
        }
        prop_assert!(view.backups.is_empty(), "everything drains");
        prop_assert_eq!(started.len(), uids.len(), "each starts once");
        let place = |uid: &String| started.iter().position(|s| s == uid);
        for (i, first) in line.iter().enumerate() {
            for second in &line[i + 1..] {
                if sets[first].meets(&sets[second]).is_some() {
                    prop_assert!(place(first) < place(second), "conflicting backups keep their order");
                }
            }
        }
    }
}
