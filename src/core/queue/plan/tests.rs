use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::glob::{Effort, Glob};
use crate::location::Closed;
use crate::namespace::NamespaceSet;
use crate::queue::{FairShare, QueueOrder, explain_newcomer, mark, position_of_newcomer};

mod limits;
mod schedules;

fn set(includes: &[&str]) -> NamespaceSet {
    NamespaceSet::new(includes.iter().filter_map(|t| Glob::parse(t).ok()).collect(), Vec::new())
}

fn entry(name: &str, phase: QueuePhase, position: u32, includes: &[&str]) -> Arc<QueueEntry> {
    Arc::new(QueueEntry {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        phase,
        position,
        created_at: Timestamp::UNIX_EPOCH,
        namespaces: set(includes),
        ..QueueEntry::default()
    })
}

fn newcomer(includes: &[&str]) -> QueueEntry {
    QueueEntry { namespaces: set(includes), ..QueueEntry::default() }
}

fn names<'v>(view: &'v QueueView, plan: &Plan) -> Vec<&'v str> {
    plan.start.iter().map(|i| view.backups[*i].name.as_str()).collect()
}

/// Performs the plan except for its starts: ends backups and writes marks and positions.
fn write(view: &mut QueueView) {
    let decided = plan(view);
    let ended: Vec<String> = decided.end.iter().map(|end| view.backups[end.backup].uid.clone()).collect();
    for waiting in decided.renumber(view, usize::MAX).cloned().collect::<Vec<_>>() {
        let entry = Arc::make_mut(&mut view.backups[waiting.backup]);
        if entry.phase == QueuePhase::New {
            (entry.phase, entry.enqueued_at) = (QueuePhase::Queued, Some(entry.arrived()));
        }
        entry.position = waiting.place;
        entry.waits_since = waiting.inherits.or(entry.waits_since);
    }
    view.backups.retain(|b| !ended.contains(&b.uid));
}

fn waits_for<'p>(view: &QueueView, plan: &'p Plan, name: &str) -> &'p QueueReason {
    let found = plan.waiting.iter().find(|w| view.backups[w.backup].name == name);
    &found.unwrap_or_else(|| unreachable!("{name} does not wait")).reason
}

/// The worked example of Velero's design "Concurrent Backup Processing".
fn worked_example(backup1: QueuePhase) -> QueueView {
    QueueView {
        slots: 2,
        backups: vec![
            entry("backup1", backup1, if backup1 == QueuePhase::Queued { 1 } else { 0 }, &["ns1", "ns2"]),
            entry("backup2", QueuePhase::Queued, 2, &["ns2", "ns3", "ns5"]),
            entry("backup3", QueuePhase::Queued, 3, &["ns4", "ns3"]),
            entry("backup4", QueuePhase::Queued, 4, &["ns5", "ns6"]),
            entry("backup5", QueuePhase::Queued, 5, &["ns8", "ns9"]),
        ],
        ..QueueView::default()
    }
}

fn overlap(with: &str, running: bool, namespaces: &[&str]) -> QueueReason {
    let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
    QueueReason::Overlap { with: with.to_owned(), running, namespaces }
}

#[test]
fn backup5_runs_beside_backup1_and_the_others_wait_for_the_one_ahead() {
    let view = worked_example(QueuePhase::InProgress);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup5"]);
    assert_eq!(waits_for(&view, &plan, "backup2"), &overlap("backup1", true, &["ns2"]));
    assert_eq!(waits_for(&view, &plan, "backup3"), &overlap("backup2", false, &["ns3"]));
    assert_eq!(waits_for(&view, &plan, "backup4"), &overlap("backup2", false, &["ns5"]));
    assert_eq!(plan.waiting.iter().map(|w| w.place).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn all_five_at_once_start_with_backup1_and_backup5() {
    let view = worked_example(QueuePhase::Queued);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup1", "backup5"]);
    assert_eq!(waits_for(&view, &plan, "backup2"), &overlap("backup1", true, &["ns2"]));
}

#[test]
fn once_backup1_has_ended_backup2_is_next() {
    let mut view = worked_example(QueuePhase::InProgress);
    Arc::make_mut(&mut view.backups[4]).phase = QueuePhase::InProgress;
    view.backups.remove(0);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup2"]);
}

#[test]
fn once_backup2_has_ended_backup3_and_backup4_run_together() {
    let mut view = worked_example(QueuePhase::InProgress);
    view.backups = view.backups.split_off(2);
    view.backups.pop();
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup3", "backup4"]);
}

#[test]
fn with_every_slot_taken_the_reason_says_so() {
    let mut view = worked_example(QueuePhase::InProgress);
    view.slots = 1;
    let plan = plan(&view);
    assert!(plan.start.is_empty());
    assert_eq!(waits_for(&view, &plan, "backup5"), &QueueReason::NoSlot { slots: 1 });
}

#[test]
fn a_backup_of_everything_waits_for_all_and_all_wait_for_it() {
    let view = QueueView {
        slots: 3,
        backups: vec![
            entry("small", QueuePhase::InProgress, 0, &["ns1"]),
            entry("full", QueuePhase::Queued, 1, &[]),
            entry("other", QueuePhase::Queued, 2, &["ns2"]),
        ],
        ..QueueView::default()
    };
    let plan = plan(&view);
    assert!(plan.start.is_empty());
    assert_eq!(waits_for(&view, &plan, "full"), &overlap("small", true, &["ns1"]));
    assert_eq!(waits_for(&view, &plan, "other"), &overlap("full", false, &["ns2"]));
}

#[test]
fn what_the_webhook_missed_is_queued_first_and_passes_nobody_who_came_before() {
    let mut queued = entry("queued", QueuePhase::Queued, 7, &["a"]);
    Arc::make_mut(&mut queued).enqueued_at = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_millis(900));
    let view = QueueView {
        slots: 1,
        backups: vec![entry("new", QueuePhase::New, 0, &["a"]), Arc::clone(&queued)],
        ..QueueView::default()
    };
    let decided = plan(&view);
    assert_eq!(names(&view, &decided), ["queued"]);
    let written: Vec<_> = decided.renumber(&view, 0).map(|w| (w.backup, w.place)).collect();
    assert_eq!(written, [(0, 1)], "a backup without a place gets one whatever the budget");
    // It is not passed either by a later backup that was created with a position.
    let later = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(2);
    let forged = QueueEntry { created_at: later, enqueued_at: Some(later), ..QueueEntry::clone(&queued) };
    let mut view = QueueView { backups: vec![Arc::clone(&view.backups[0]), Arc::new(forged)], ..view };
    assert_eq!(names(&view, &plan(&view)), Vec::<&str>::new());
    write(&mut view);
    assert_eq!(names(&view, &plan(&view)), ["new"]);
}

#[test]
fn the_order_is_that_of_time_marks_whatever_the_positions_say() {
    let (mut a, mut b) = (entry("a", QueuePhase::Queued, 1, &[]), entry("b", QueuePhase::Queued, 1, &[]));
    let view = QueueView::default();
    assert!(view.precedence(&a, &b).is_lt());
    Arc::make_mut(&mut b).enqueued_at = Some(Timestamp::UNIX_EPOCH - SignedDuration::from_secs(1));
    Arc::make_mut(&mut b).position = 9;
    assert!(view.precedence(&a, &b).is_gt(), "a position that is not rewritten yet decides nothing");
    Arc::make_mut(&mut b).enqueued_at = None;
    assert!(view.precedence(&a, &b).is_lt(), "without marks it does");
    Arc::make_mut(&mut a).position = 0;
    assert!(view.precedence(&a, &b).is_gt(), "a lost position does not jump the queue");
    Arc::make_mut(&mut b).enqueued_at = Some(Timestamp::UNIX_EPOCH);
    Arc::make_mut(&mut a).phase = QueuePhase::New;
    Arc::make_mut(&mut a).enqueued_at = Some(Timestamp::MIN);
    assert!(view.precedence(&a, &b).is_gt(), "nor does a mark that is not ours");
}

#[test]
fn a_newcomer_is_marked_after_all_that_are_known_whatever_the_clock_says() {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
    let mut view = worked_example(QueuePhase::Queued);
    assert_eq!(mark(&view, now), now);
    let ahead = now + SignedDuration::from_secs(30);
    Arc::make_mut(&mut view.backups[0]).enqueued_at = Some(ahead);
    assert_eq!(mark(&view, now), ahead + SignedDuration::from_micros(1), "the clock went back");
    for mistake in [now + SignedDuration::from_hours(23), Timestamp::MAX] {
        Arc::make_mut(&mut view.backups[0]).enqueued_at = Some(mistake);
        assert_eq!(mark(&view, now), now, "nobody follows a mistake");
    }
}

#[test]
fn renumbering_begins_at_the_head_and_keeps_to_its_budget() {
    let view = QueueView {
        slots: 1,
        backups: (1..=5).map(|i| entry(&format!("b{i}"), QueuePhase::Queued, i * 10, &["same"])).collect(),
        ..QueueView::default()
    };
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["b1"]);
    let places = |budget| plan.renumber(&view, budget).map(|w| w.place).collect::<Vec<_>>();
    assert_eq!(places(2), [1, 2]);
    assert_eq!(places(9), [1, 2, 3, 4]);
}

#[test]
fn a_newcomer_is_told_what_it_would_wait_for() {
    let view = worked_example(QueuePhase::InProgress);
    assert_eq!(explain_newcomer(&view, &newcomer(&["ns3"])), overlap("backup2", false, &["ns3"]));
    // backup5 takes the second slot before the newcomer.
    assert_eq!(explain_newcomer(&view, &newcomer(&["ns99"])), QueueReason::NoSlot { slots: 2 });
    assert_eq!(position_of_newcomer(&view, &newcomer(&[])), 6);
    let empty = QueueView::default();
    assert_eq!(explain_newcomer(&empty, &newcomer(&["ns99"])), QueueReason::Next);
    assert_eq!(position_of_newcomer(&empty, &newcomer(&[])), 1);
}

#[test]
fn a_held_backup_waits_and_is_in_nobodys_way() {
    let mut view = worked_example(QueuePhase::InProgress);
    Arc::make_mut(&mut view.backups[1]).held = true;
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup3"], "backup2 held nothing");
    assert_eq!(waits_for(&view, &plan, "backup2"), &QueueReason::Held);
}

#[test]
fn a_waiting_backup_that_is_canceled_ends_and_is_in_nobodys_way() {
    let mut view = worked_example(QueuePhase::InProgress);
    Arc::make_mut(&mut view.backups[1]).canceled = true;
    let plan = plan(&view);
    assert_eq!(plan.end, [EndWithoutRun { backup: 1, cause: EndCause::Canceled }]);
    assert_eq!(names(&view, &plan), ["backup3"]);
    assert_eq!(plan.waiting.iter().map(|w| w.place).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_backup_moved_to_the_front_goes_before_all_and_the_last_one_moved_before_it() {
    let mut view = worked_example(QueuePhase::InProgress);
    for (i, at) in [(3, 1), (4, 2)] {
        let at = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(at);
        Arc::make_mut(&mut view.backups[i]).first = Some(at);
    }
    view.slots = 1;
    let plan = plan(&view);
    let order: Vec<&str> = plan.waiting.iter().map(|w| view.backups[w.backup].name.as_str()).collect();
    assert_eq!(order, ["backup5", "backup4", "backup2", "backup3"]);
}

#[test]
fn backups_of_a_held_location_wait_and_are_in_nobodys_way() {
    let mut view = worked_example(QueuePhase::InProgress);
    Arc::make_mut(&mut view.backups[1]).location = "cold".to_owned();
    view.closed_locations.insert("cold".to_owned(), Closed::Held);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), ["backup3"]);
    let reason = QueueReason::LocationHeld { location: "cold".to_owned() };
    assert_eq!(waits_for(&view, &plan, "backup2"), &reason);
    let newcomer = QueueEntry { location: "cold".to_owned(), ..newcomer(&["ns1"]) };
    assert_eq!(explain_newcomer(&view, &newcomer), reason);
}

#[test]
fn backups_of_a_store_that_is_away_wait_and_say_why() {
    let mut view = worked_example(QueuePhase::InProgress);
    let away = Closed::Unavailable { why: "no route".to_owned() };
    view.closed_locations.insert(String::new(), away);
    let plan = plan(&view);
    assert_eq!(names(&view, &plan), Vec::<&str>::new());
    let reason = waits_for(&view, &plan, "backup2").to_string();
    assert_eq!(reason, "the default storage location: it is unavailable (no route)");
}

#[test]
fn nothing_starts_while_nobody_is_there_to_run_it() {
    let mut view = worked_example(QueuePhase::Queued);
    view.stopped = Some("no server".to_owned());
    let plan = plan(&view);
    assert!(plan.start.is_empty());
    let reason = QueueReason::NoExecutor { why: "no server".to_owned() };
    assert_eq!(waits_for(&view, &plan, "backup1"), &reason);
    assert_eq!(waits_for(&view, &plan, "backup2"), &overlap("backup1", false, &["ns2"]));
}

/// `high` counts as an hour earlier, and use costs half an hour at most.
fn shifting() -> QueueOrder {
    let hour = SignedDuration::from_hours(1);
    QueueOrder {
        classes: [("high".to_owned(), hour), ("low".to_owned(), -hour)].into(),
        share: Some(FairShare { label: "team".to_owned(), workers: 1, half_life: hour, most: hour / 2 }),
    }
}

#[test]
fn a_class_is_a_head_start_and_waiting_makes_up_for_it() {
    let arrived = |name: &str, class: Option<&str>, minutes: i64| {
        let mut made = entry(name, QueuePhase::Queued, 0, &["a"]);
        let entry = Arc::make_mut(&mut made);
        entry.class = class.map(str::to_owned);
        entry.enqueued_at = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes));
        made
    };
    let view = QueueView {
        backups: vec![
            arrived("patient", None, 0),
            arrived("usual", None, 30),
            arrived("low", Some("low"), 10),
            arrived("high", Some("high"), 80),
        ],
        order: shifting(),
        ..QueueView::default()
    };
    let plan = plan(&view);
    let order: Vec<&str> = plan
        .start
        .iter()
        .copied()
        .chain(plan.waiting.iter().map(|w| w.backup))
        .map(|i| view.backups[i].name.as_str())
        .collect();
    assert_eq!(order, ["patient", "high", "usual", "low"]);
    let mut late = QueueEntry::clone(&arrived("late", Some("high"), 85));
    late.uid = "z".to_owned();
    assert_eq!(position_of_newcomer(&view, &late), 3, "its place, not one past the last");
}

fn any_view() -> impl Strategy<Value = QueueView> {
    let name = prop::sample::select(vec!["a", "b", "c", "d", "a*", "*", "b?"]);
    let backup = (prop::collection::vec(name, 1..4), 0_u32..6, 0_u8..8, 0_i64..4);
    (1_usize..4, prop::collection::vec(backup, 0..12)).prop_map(|(slots, backups)| QueueView {
        slots,
        backups: backups
            .into_iter()
            .enumerate()
            .map(|(i, (includes, position, phase, since))| {
                let phase = if phase == 0 { QueuePhase::New } else { QueuePhase::Queued };
                let mut made = entry(&format!("b{i}"), phase, position, &includes);
                Arc::make_mut(&mut made).enqueued_at =
                    Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(since));
                made
            })
            .collect(),
        ..QueueView::default()
    })
}

proptest! {
    /// A backup that arrives later than the largest shifts together goes behind, so none waits for
    /// ever. Without configuration the order is that of arrival, whatever class or label a backup
    /// has.
    #[test]
    fn nobody_starves_and_the_default_is_the_order_of_arrival(
        class in prop::sample::select(vec![None, Some("high"), Some("low"), Some("unknown")]),
        other in prop::sample::select(vec![None, Some("high"), Some("low")]),
        used in 0_i64..10_000,
        arrived in 0_i64..100_000,
        later in 1_i64..20_000,
    ) {
        let made = |name: &str, class: Option<&str>, seconds: i64| QueueEntry {
            uid: name.to_owned(),
            class: class.map(str::to_owned),
            tenant: Some(name.to_owned()),
            phase: QueuePhase::Queued,
            enqueued_at: Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)),
            ..QueueEntry::default()
        };
        let (first, second) = (made("a", class, arrived), made("b", other, arrived + later));
        let plain = QueueView::default();
        prop_assert!(plain.precedence(&first, &second).is_lt());
        let order = shifting();
        let most = order.share.as_ref().map(|share| share.most).unwrap_or_default();
        let handicap = SignedDuration::from_secs(used).min(most);
        let shifted = QueueView { order, handicaps: [("a".to_owned(), handicap)].into(), ..QueueView::default() };
        // The head start of high over low, plus the largest handicap.
        if later > 2 * 3600 + 1800 {
            prop_assert!(shifted.precedence(&first, &second).is_lt());
        }
    }

    /// Runs a whole queue to its end, one step at a time, and checks every property at each step.
    #[test]
    fn a_queue_lives_to_its_end(mut view in any_view(), picks in prop::collection::vec(any::<prop::sample::Index>(), 64)) {
        let mut order: Vec<usize> = view.ordered();
        let uids: Vec<String> = view.backups.iter().map(|b| b.uid.clone()).collect();
        let mut started: Vec<String> = Vec::new();
        let mut picks = picks.into_iter();
        order.sort_by(|a, b| view.precedence(&view.backups[*a], &view.backups[*b]));
        let line: Vec<String> = order.iter().map(|i| uids[*i].clone()).collect();
        let sets: HashMap<String, NamespaceSet> =
            view.backups.iter().map(|b| (b.uid.clone(), b.namespaces.clone())).collect();
        for _ in 0..60 {
            if view.backups.is_empty() { break; }
            let decided = plan(&view);
            for place in decided.waiting.iter().zip(1..) { prop_assert_eq!(place.0.place, place.1); }
            let writes: Vec<(usize, u32)> = decided.renumber(&view, usize::MAX).map(|w| (w.backup, w.place)).collect();
            for i in &decided.start {
                Arc::make_mut(&mut view.backups[*i]).phase = QueuePhase::ReadyToStart;
                Arc::make_mut(&mut view.backups[*i]).position = 0;
                started.push(view.backups[*i].uid.clone());
            }
            for (i, place) in writes {
                if view.backups[i].phase == QueuePhase::New {
                    let arrived = view.backups[i].arrived();
                    Arc::make_mut(&mut view.backups[i]).enqueued_at = Some(arrived);
                }
                Arc::make_mut(&mut view.backups[i]).phase = QueuePhase::Queued;
                Arc::make_mut(&mut view.backups[i]).position = place;
            }
            let running: Vec<&Arc<QueueEntry>> = view.backups.iter().filter(|b| b.phase.is_running()).collect();
            prop_assert!(running.len() <= view.slots, "more run than there are slots");
            for (i, a) in running.iter().enumerate() {
                for b in &running[i + 1..] {
                    prop_assert!(a.namespaces.meets(&b.namespaces, &Effort::of_decision()).is_none(), "{} meets {}", a.name, b.name);
                }
            }
            let mut places: Vec<u32> =
                view.backups.iter().filter(|b| b.phase == QueuePhase::Queued).map(|b| b.position).collect();
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
                if sets[first].meets(&sets[second], &Effort::of_decision()).is_some() {
                    prop_assert!(place(first) < place(second), "conflicting backups keep their order");
                }
            }
        }
    }
}

#[test]
fn what_cannot_be_read_ends_and_takes_no_slot() {
    let mut odd = QueueEntry::clone(&entry("odd", QueuePhase::Queued, 1, &[]));
    (odd.namespaces, odd.refused) = (NamespaceSet::default(), vec!["spec.includedNamespaces: …".to_owned()]);
    let held =
        Arc::new(QueueEntry { held: true, name: "held".into(), uid: "uid-held".into(), ..odd.clone() });
    let view = QueueView {
        backups: vec![Arc::new(odd), held, entry("b", QueuePhase::Queued, 2, &["b"])],
        ..QueueView::default()
    };
    for plan in [plan(&view), starts(&view)] {
        assert_eq!(plan.start, [2]);
        let why = vec!["spec.includedNamespaces: …".to_owned()];
        assert_eq!(plan.end, [EndWithoutRun { backup: 0, cause: EndCause::Refused { why } }]);
    }
    assert_eq!(plan(&view).waiting.iter().map(|w| &w.reason).collect::<Vec<_>>(), [&QueueReason::Held]);
}

#[test]
fn what_cannot_be_written_is_out_of_the_line_and_in_nobodys_way() {
    let backups = vec![entry("a", QueuePhase::Queued, 9, &["a"]), entry("b", QueuePhase::Queued, 9, &["a"])];
    let view = QueueView { backups, unwritable: ["uid-a".to_owned()].into(), ..QueueView::default() };
    let plan = plan(&view);
    assert_eq!(plan.start, [1]);
    assert_eq!(plan.waiting.iter().map(|w| &w.reason).collect::<Vec<_>>(), [&QueueReason::Unwritable]);
    assert_eq!(plan.renumber(&view, usize::MAX).count(), 0, "nothing is written to it");
}

/// An end that is planned in every cycle would take the turn of those that can be written.
#[test]
fn what_is_canceled_and_cannot_be_written_ends_when_it_can_be_tried_again() {
    let mut canceled = QueueEntry::clone(&entry("a", QueuePhase::Queued, 9, &["a"]));
    canceled.canceled = true;
    let backups = vec![Arc::new(canceled), entry("b", QueuePhase::Queued, 9, &["a"])];
    let mut view = QueueView { backups, unwritable: ["uid-a".to_owned()].into(), ..QueueView::default() };
    for decided in [plan(&view), starts(&view)] {
        assert_eq!((decided.end, decided.start), (Vec::new(), vec![1]));
    }
    assert_eq!(waits_for(&view, &plan(&view), "a"), &QueueReason::Unwritable);
    view.unwritable.clear();
    assert_eq!(plan(&view).end, [EndWithoutRun { backup: 0, cause: EndCause::Canceled }]);
}
