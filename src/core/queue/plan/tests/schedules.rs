//! Backups of a Schedule that take the place of older ones.

use super::*;

#[test]
fn a_later_backup_of_a_schedule_takes_the_place_of_older_ones_if_it_says_so() {
    let of_schedule = |name: &str, position: u32, supersedes: bool| {
        let mut made = entry(name, QueuePhase::Queued, position, &["a"]);
        let since = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::from(position));
        let entry = Arc::make_mut(&mut made);
        (entry.schedule, entry.supersedes) = (Some("nightly".to_owned()), supersedes);
        (entry.enqueued_at, entry.is_made) = (Some(since), true);
        made
    };
    let mut view = QueueView {
        backups: vec![
            entry("runs", QueuePhase::InProgress, 0, &["a"]),
            of_schedule("monday", 1, true),
            of_schedule("tuesday", 2, true),
            entry("somebody", QueuePhase::Queued, 3, &["b"]),
            of_schedule("wednesday", 4, true),
        ],
        ..QueueView::default()
    };
    let superseded = [1, 2].map(|backup| EndWithoutRun { backup, cause: EndCause::Superseded { by: 4 } });
    Arc::make_mut(&mut view.backups[3]).enqueued_at =
        Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(3));
    let decided = plan(&view);
    assert_eq!(decided.end, [], "its place is taken first");
    let order: Vec<&str> = decided.waiting.iter().map(|w| view.backups[w.backup].name.as_str()).collect();
    assert_eq!(order, ["wednesday", "somebody"]);
    assert_eq!(
        decided.renumber(&view, 0).map(|w| w.inherits).collect::<Vec<_>>(),
        [view.backups[1].enqueued_at]
    );
    Arc::make_mut(&mut view.backups[4]).waits_since = view.backups[1].enqueued_at;
    assert_eq!(plan(&view).end, superseded);
    Arc::make_mut(&mut view.backups[4]).phase = QueuePhase::ReadyToStart;
    assert_eq!(plan(&view).end, superseded, "it may run already");
    Arc::make_mut(&mut view.backups[4]).phase = QueuePhase::Queued;
    Arc::make_mut(&mut view.backups[2]).held = true;
    assert_eq!(plan(&view).end, superseded[..1], "what somebody holds is kept");
    Arc::make_mut(&mut view.backups[4]).supersedes = false;
    assert!(plan(&view).end.is_empty(), "the last one decides");
}

/// Whoever creates Backups may give them the label of a Schedule.
#[test]
fn a_backup_that_only_has_the_label_of_a_schedule_does_not_have_it_pile_up() {
    let labelled = |name: &str, second: i64, is_made: bool, supersedes: bool| {
        let mut made = entry(name, QueuePhase::Queued, 0, &["a"]);
        let entry = Arc::make_mut(&mut made);
        (entry.schedule, entry.supersedes) = (Some("nightly".to_owned()), supersedes);
        entry.is_made = is_made;
        entry.enqueued_at = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second));
        made
    };
    let backups = |later_is_made: bool| {
        let mut tuesday = labelled("tuesday", 2, true, true);
        // The place is taken.
        Arc::make_mut(&mut tuesday).waits_since = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1));
        vec![labelled("monday", 1, true, true), tuesday, labelled("later", 3, later_is_made, false)]
    };
    let ends = |backups| plan(&QueueView { backups, ..QueueView::default() }).end;
    let superseded = EndWithoutRun { backup: 0, cause: EndCause::Superseded { by: 1 } };
    assert_eq!(ends(backups(false)), [superseded], "and none that came later is replaced");
    assert_eq!(ends(backups(true)), [], "the last run decides");
    // One that was created by hand from the Schedule has its annotation, too.
    let mut by_hand = backups(false);
    Arc::make_mut(&mut by_hand[2]).supersedes = true;
    Arc::make_mut(&mut by_hand[2]).waits_since = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1));
    let superseded = [0, 1].map(|backup| EndWithoutRun { backup, cause: EndCause::Superseded { by: 2 } });
    assert_eq!(ends(by_hand), superseded);
}

/// Both have waited since the same moment once one has replaced the other, and there is one slot:
/// only their UIDs decide which one the walk reaches first.
#[test]
fn whose_place_is_taken_ends_before_the_one_starts_that_takes_it() {
    for [earlier, later] in [["a", "b"], ["b", "a"]] {
        let of_schedule = |uid: &str, at: i64| {
            let mut made = entry(uid, QueuePhase::Queued, 1, &["a"]);
            let entry = Arc::make_mut(&mut made);
            (entry.schedule, entry.supersedes) = (Some("hourly".to_owned()), true);
            entry.enqueued_at = Some(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(at));
            entry.waits_since = Some(Timestamp::UNIX_EPOCH);
            made
        };
        let backups = vec![of_schedule(earlier, 0), of_schedule(later, 1)];
        let decided = starts(&QueueView { backups, slots: 1, ..QueueView::default() });
        assert_eq!(decided.start, [1]);
        assert_eq!(
            decided.end,
            [EndWithoutRun { backup: 0, cause: EndCause::Superseded { by: 1 } }],
            "{earlier}, {later}"
        );
    }
}

/// A schedule that comes round sooner than the queue moves, with one slot that another backup takes
/// each time it is free.
#[test]
fn a_schedule_that_is_always_superseded_runs_all_the_same() {
    let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
    let made = |name: String, minutes: i64, schedule: Option<&str>| {
        let mut made = entry(&name, QueuePhase::Queued, 0, &["a"]);
        let entry = Arc::make_mut(&mut made);
        (entry.schedule, entry.supersedes) = (schedule.map(str::to_owned), schedule.is_some());
        (entry.created_at, entry.enqueued_at) = (at(minutes), Some(at(minutes)));
        made
    };
    let mut view = QueueView { backups: vec![made("other".to_owned(), -1, None)], ..QueueView::default() };
    let (mut ends_at, mut started) = (None, Vec::new());
    for now in (0..600).step_by(5) {
        if now % 20 == 0 {
            view.backups.push(made(format!("other-{now}"), now, None));
        }
        if now % 15 == 0 {
            view.backups.push(made(format!("often-{now}"), now, Some("often")));
        }
        if ends_at == Some(now) {
            view.backups.retain(|b| !b.phase.is_running());
        }
        // Until nothing remains to be written.
        for _ in 0..4 {
            write(&mut view);
        }
        for i in plan(&view).start {
            Arc::make_mut(&mut view.backups[i]).phase = QueuePhase::InProgress;
            started.push(view.backups[i].name.clone());
            ends_at = Some(now + 20);
        }
        let waiting = view.backups.iter().filter(|b| b.schedule.is_some() && !b.phase.is_running());
        assert!(waiting.count() <= 1, "at {now}");
    }
    let often = started.iter().filter(|name| name.starts_with("often")).count();
    assert!(often > 5, "{started:?}");
}
