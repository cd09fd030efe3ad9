use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(cron: &str) -> Schedule {
    Schedule {
        name: "daily".to_owned(),
        uid: "u1".to_owned(),
        cron: Cron::parse(cron),
        paused: false,
        skip_immediately: None,
        created_at: time("2026-01-01T12:00:00Z"),
        last_backup: None,
        last_skipped: None,
        is_shown: true,
        concurrency: Concurrency::default(),
        deadline: None,
        jitter: SignedDuration::ZERO,
    }
}

fn step(schedule: &Schedule, now: &str) -> ScheduleStep {
    schedule.decide(ScheduleSettings::default(), &[], time(now))
}

fn unfinished(name: &str, phase: QueuePhase) -> UnfinishedBackup {
    UnfinishedBackup { name: name.to_owned(), phase, is_stored: false, is_given_up: false }
}

#[test]
fn a_new_schedule_waits_for_its_first_time() {
    let daily = schedule("0 2 * * *");
    let first = time("2026-01-02T02:00:00Z");
    assert_eq!(step(&daily, "2026-01-01T12:00:00Z"), ScheduleStep::Wait(Some(first)));
    assert_eq!(step(&daily, "2026-01-02T01:59:59.999Z"), ScheduleStep::Wait(Some(first)));
    assert_eq!(step(&daily, "2026-01-02T02:00:00Z"), ScheduleStep::Create(first));
    assert_eq!(backup_name(&daily.name, first), "daily-20260102020000");
}

#[test]
fn a_new_schedule_has_a_backup_at_once_where_that_is_set() {
    let at_once = ScheduleSettings { first_run: FirstRun::AtOnce, ..ScheduleSettings::default() };
    let daily = schedule("0 2 * * *");
    let decide = |schedule: &Schedule, now| schedule.decide(at_once, &[], time(now));
    assert_eq!(decide(&daily, "2026-01-01T12:00:00.5Z"), ScheduleStep::Create(daily.created_at));
    // Whoever is late makes one backup, for the last time.
    let second = time("2026-01-03T02:00:00Z");
    assert_eq!(decide(&daily, "2026-01-03T12:00:00Z"), ScheduleStep::Create(second));
    let done = Schedule { last_backup: Some(daily.created_at), ..daily.clone() };
    assert_eq!(decide(&done, "2026-01-01T13:00:00Z"), ScheduleStep::Wait(Some(time("2026-01-02T02:00:00Z"))));
    let skipped = Schedule { last_skipped: Some(daily.created_at), ..daily };
    assert!(matches!(decide(&skipped, "2026-01-01T13:00:00Z"), ScheduleStep::Wait(_)));
}

#[test]
fn times_that_were_missed_have_one_backup_together() {
    let daily = Schedule { last_backup: Some(time("2026-01-02T02:00:00Z")), ..schedule("0 2 * * *") };
    assert_eq!(step(&daily, "2026-02-10T01:00:00Z"), ScheduleStep::Create(time("2026-02-09T02:00:00Z")));
    let every = Schedule { last_backup: Some(time("2026-01-02T02:00:30Z")), ..schedule("@every 1h") };
    assert_eq!(step(&every, "2026-01-03T01:10:00Z"), ScheduleStep::Create(time("2026-01-03T01:00:30Z")));
}

#[test]
fn a_paused_schedule_is_left_alone() {
    let paused = Schedule { paused: true, is_shown: false, ..schedule("0 2 * * *") };
    assert_eq!(step(&paused, "2026-03-01T00:00:00Z"), ScheduleStep::Wait(None));
    let resumed = Schedule { paused: false, is_shown: true, ..paused };
    assert_eq!(step(&resumed, "2026-03-01T00:00:00Z"), ScheduleStep::Create(time("2026-02-28T02:00:00Z")));
}

#[test]
fn what_is_skipped_on_request_is_skipped_once() {
    let now = "2026-03-01T00:00:00Z";
    let asked = Schedule { skip_immediately: Some(true), ..schedule("0 2 * * *") };
    assert_eq!(step(&asked, now), ScheduleStep::SkipNow);
    let skipped =
        Schedule { skip_immediately: Some(false), last_skipped: Some(time(now)), ..schedule("0 2 * * *") };
    assert_eq!(step(&skipped, now), ScheduleStep::Wait(Some(time("2026-03-01T02:00:00Z"))));
    let always = ScheduleSettings { skip_immediately: true, ..ScheduleSettings::default() };
    assert_eq!(schedule("0 2 * * *").decide(always, &[], time(now)), ScheduleStep::SkipNow);
    assert_ne!(skipped.decide(always, &[], time(now)), ScheduleStep::SkipNow);
}

#[test]
fn a_broken_expression_is_shown_and_nothing_else_happens() {
    let broken = Schedule { is_shown: false, skip_immediately: Some(true), ..schedule("0 25 * * *") };
    assert_eq!(step(&broken, "2026-03-01T00:00:00Z"), ScheduleStep::Show);
    let shown = Schedule { is_shown: true, ..broken };
    assert_eq!(step(&shown, "2026-03-01T00:00:00Z"), ScheduleStep::Wait(None));
}

#[test]
fn what_has_not_ended_counts_as_the_policy_says() {
    use Concurrency::{Allow, Forbid, Postpone};
    let tick = time("2026-01-02T02:00:00Z");
    let own = backup_name("daily", tick);
    let second = second_name(&own, "0a1b2c3d");
    assert_eq!(second, "daily-20260102020000-0a1b2");
    for (concurrency, there, expected) in [
        (Postpone, vec![("a", QueuePhase::InProgress)], ScheduleStep::Postpone),
        (Postpone, vec![("a", QueuePhase::Queued), ("b", QueuePhase::New)], ScheduleStep::Postpone),
        (
            Postpone,
            vec![("a", QueuePhase::Queued), ("b", QueuePhase::ReadyToStart)],
            ScheduleStep::Create(tick),
        ),
        (Allow, vec![("a", QueuePhase::InProgress)], ScheduleStep::Create(tick)),
        (Forbid, vec![], ScheduleStep::Create(tick)),
        (Forbid, vec![("a", QueuePhase::New)], ScheduleStep::Skip(tick, SkipReason::Overlap)),
        (Forbid, vec![("a", QueuePhase::Queued)], ScheduleStep::Skip(tick, SkipReason::Overlap)),
        (Forbid, vec![("a", QueuePhase::ReadyToStart)], ScheduleStep::Skip(tick, SkipReason::Overlap)),
        (Forbid, vec![("a", QueuePhase::InProgress)], ScheduleStep::Skip(tick, SkipReason::Overlap)),
        // Created by a leader that did not come to record it.
        (Forbid, vec![(own.as_str(), QueuePhase::Queued)], ScheduleStep::Record(tick)),
        (Postpone, vec![(own.as_str(), QueuePhase::InProgress)], ScheduleStep::Record(tick)),
        (Forbid, vec![(second.as_str(), QueuePhase::Queued)], ScheduleStep::Record(tick)),
    ] {
        let daily = Schedule { concurrency, ..schedule("0 2 * * *") };
        let there: Vec<_> = there.into_iter().map(|(name, phase)| unfinished(name, phase)).collect();
        let found = daily.decide(ScheduleSettings::default(), &there, time("2026-01-02T02:00:01Z"));
        assert_eq!(found, expected, "{concurrency:?} {there:?}");
    }
}

#[test]
fn data_that_is_still_moved_keeps_no_backup_from_its_time_unless_the_policy_is_to_forbid_it() {
    use Concurrency::{Allow, Forbid, Postpone};
    let tick = time("2026-01-02T02:00:00Z");
    let moved = [UnfinishedBackup { is_stored: true, ..unfinished("a", QueuePhase::InProgress) }];
    for (concurrency, expected) in [
        (Postpone, ScheduleStep::Create(tick)),
        (Allow, ScheduleStep::Create(tick)),
        (Forbid, ScheduleStep::Skip(tick, SkipReason::Overlap)),
    ] {
        let daily = Schedule { concurrency, ..schedule("0 2 * * *") };
        assert_eq!(daily.decide(ScheduleSettings::default(), &moved, tick), expected, "{concurrency:?}");
    }
}

#[test]
fn a_schedule_goes_on_without_a_backup_that_cannot_be_written() {
    let tick = time("2026-01-02T02:00:00Z");
    for concurrency in [Concurrency::Postpone, Concurrency::Forbid, Concurrency::Allow] {
        let daily = Schedule { concurrency, ..schedule("0 2 * * *") };
        let decide = |there: &[UnfinishedBackup]| daily.decide(ScheduleSettings::default(), there, tick);
        for phase in [QueuePhase::New, QueuePhase::Queued, QueuePhase::ReadyToStart, QueuePhase::InProgress] {
            let given_up = UnfinishedBackup { is_given_up: true, ..unfinished("a", phase) };
            assert_eq!(decide(std::slice::from_ref(&given_up)), ScheduleStep::Create(tick), "{phase:?}");
            // Another one still counts.
            let beside = [given_up.clone(), unfinished("b", QueuePhase::InProgress)];
            let expected = match concurrency {
                Concurrency::Postpone => ScheduleStep::Postpone,
                Concurrency::Forbid => ScheduleStep::Skip(tick, SkipReason::Overlap),
                Concurrency::Allow => ScheduleStep::Create(tick),
            };
            assert_eq!(decide(&beside), expected, "{concurrency:?} {phase:?}");
            // They do not pile up without end.
            assert_eq!(decide(&vec![given_up; 100]), ScheduleStep::Postpone, "{concurrency:?} {phase:?}");
        }
    }
}

#[test]
fn a_schedule_does_not_pile_up_without_end() {
    let allow = Schedule { concurrency: Concurrency::Allow, ..schedule("0 2 * * *") };
    let tick = time("2026-01-02T02:00:00Z");
    for (count, expected) in [(99, ScheduleStep::Create(tick)), (100, ScheduleStep::Postpone)] {
        let waiting = vec![unfinished("a", QueuePhase::Queued); count];
        assert_eq!(allow.decide(ScheduleSettings::default(), &waiting, tick), expected, "{count}");
    }
}

#[test]
fn a_time_that_was_missed_by_more_than_the_deadline_has_no_backup() {
    let daily = Schedule { deadline: Some(SignedDuration::from_hours(1)), ..schedule("0 2 * * *") };
    let tick = time("2026-01-02T02:00:00Z");
    assert_eq!(step(&daily, "2026-01-02T03:00:00Z"), ScheduleStep::Create(tick));
    assert_eq!(step(&daily, "2026-01-02T03:00:01Z"), ScheduleStep::Skip(tick, SkipReason::Late));
    let skipped = Schedule { last_skipped: Some(tick), ..daily };
    assert_eq!(
        step(&skipped, "2026-01-02T03:00:01Z"),
        ScheduleStep::Wait(Some(time("2026-01-03T02:00:00Z")))
    );
}

#[test]
fn backups_are_created_later_by_always_the_same_time() {
    let hour = SignedDuration::from_hours(1);
    let offsets: BTreeSet<SignedDuration> = (0..100)
        .map(|i| Schedule { uid: format!("uid-{i}"), jitter: hour, ..schedule("0 2 * * *") }.offset())
        .collect();
    assert!(offsets.len() > 80 && offsets.iter().all(|offset| *offset <= hour), "{offsets:?}");
    let daily = Schedule { jitter: hour, deadline: Some(SignedDuration::ZERO), ..schedule("0 2 * * *") };
    let (tick, offset) = (time("2026-01-02T02:00:00Z"), daily.offset());
    assert!(offset > SignedDuration::ZERO);
    let decide = |now| daily.decide(ScheduleSettings::default(), &[], now);
    assert_eq!(decide(tick), ScheduleStep::Wait(Some(tick + offset)));
    assert_eq!(decide(tick + offset), ScheduleStep::Create(tick));
    assert_eq!(schedule("0 2 * * *").offset(), SignedDuration::ZERO);
}

#[test]
fn a_status_from_the_future_does_not_silence_a_schedule() {
    let now = "2026-01-05T00:00:00Z";
    for far in ["2027-01-01T00:00:00Z", "2026-01-05T02:00:00Z"] {
        let ahead = Schedule { last_backup: Some(time(far)), ..schedule("0 2 * * *") };
        assert_eq!(step(&ahead, now), ScheduleStep::Mend, "{far}");
        let ahead = Schedule { last_skipped: Some(time(far)), ..schedule("0 2 * * *") };
        assert_eq!(step(&ahead, now), ScheduleStep::Mend, "{far}");
    }
    // Clocks differ.
    let near = Schedule { last_backup: Some(time("2026-01-05T00:30:00Z")), ..schedule("0 2 * * *") };
    assert_eq!(step(&near, now), ScheduleStep::Wait(Some(time("2026-01-05T02:00:00Z"))));
}

/// The API server: it takes each name once, and writes on the version that was read.
struct Server {
    schedule: Schedule,
    version: u32,
    created: BTreeMap<String, Timestamp>,
}

#[derive(Clone, Debug)]
enum Happens {
    /// A leader reads the Schedule.
    Reads(usize),
    /// A leader decides on what it read, at its own clock, and does so much of it: nothing, the
    /// create alone, or all.
    Acts {
        leader: usize,
        ahead: i64,
        does: u8,
    },
    Passes(i64),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        2 => (0_usize..2).prop_map(Happens::Reads),
        4 => (0_usize..2, prop_oneof![6 => Just(0), 2 => -3600_i64..3600, 1 => -400_000_i64..400_000], 0_u8..3)
            .prop_map(|(leader, ahead, does)| Happens::Acts { leader, ahead, does }),
        3 => (1_i64..8000).prop_map(Happens::Passes),
    ]
}

impl Server {
    /// Writes on the version that was read.
    fn write(&mut self, version: u32, change: impl FnOnce(&mut Schedule)) {
        if version == self.version {
            change(&mut self.schedule);
            self.version += 1;
        }
    }

    fn act(&mut self, read: &(Schedule, u32), now: Timestamp, does: u8) {
        let (schedule, version) = read;
        match schedule.decide(ScheduleSettings::default(), &[], now) {
            ScheduleStep::Create(tick) | ScheduleStep::Record(tick) => {
                if does > 0 {
                    self.created.entry(backup_name(&schedule.name, tick)).or_insert(tick);
                }
                if does > 1 {
                    self.write(*version, |schedule| schedule.last_backup = Some(tick));
                }
            }
            ScheduleStep::Mend if does > 1 => self.write(*version, |schedule| {
                schedule.last_backup = schedule.last_backup.map(|at| at.min(now));
                schedule.last_skipped = schedule.last_skipped.map(|at| at.min(now));
            }),
            _ => {}
        }
    }
}

proptest! {
    /// Two leaders, stale reads, crashes after the create, and clocks that jump.
    #[test]
    fn each_time_has_one_backup_whatever_happens(
        cron in prop::sample::select(&["0 * * * *", "*/10 * * * *", "0 2 * * *", "CRON_TZ=Europe/Berlin 30 2 * * *"][..]),
        events in prop::collection::vec(happens(), 1..80),
    ) {
        let schedule = schedule(cron);
        let mut now = schedule.created_at;
        let mut reads = [(schedule.clone(), 0), (schedule.clone(), 0)];
        let mut server = Server { schedule, version: 0, created: BTreeMap::new() };
        for event in events {
            match event {
                Happens::Reads(leader) => reads[leader] = (server.schedule.clone(), server.version),
                Happens::Acts { leader, ahead, does } => {
                    let at = now + SignedDuration::from_secs(ahead);
                    server.act(&reads[leader].clone(), at, does);
                }
                Happens::Passes(seconds) => now += SignedDuration::from_secs(seconds),
            }
        }
        // Each backup is for a time of the expression, and no time has two.
        let cron = server.schedule.cron.clone().unwrap();
        let ticks: BTreeSet<Timestamp> = server.created.values().copied().collect();
        prop_assert_eq!(ticks.len(), server.created.len());
        for tick in &ticks {
            prop_assert_eq!(cron.next(*tick - SignedDuration::from_nanos(1)), Some(*tick));
        }
        // A leader that lives makes what is due, and then waits for a later time.
        for _ in 0..3 {
            server.act(&(server.schedule.clone(), server.version), now, 2);
        }
        let step = server.schedule.decide(ScheduleSettings::default(), &[], now);
        prop_assert!(matches!(step, ScheduleStep::Wait(Some(next)) if next > now), "{:?}", step);
        if let Some(last) = cron.last_until(server.schedule.created_at, now) {
            prop_assert!(server.created.values().any(|tick| *tick >= last), "nothing for {}", last);
        }
    }

    /// The times of `@every` stay on one grid, however late a backup is created.
    #[test]
    fn times_between_which_a_duration_lies_do_not_drift(late in prop::collection::vec(0_i64..500, 1..30)) {
        let mut every = schedule("@every 10m");
        let mut now = every.created_at;
        for late in late {
            let ScheduleStep::Wait(Some(next)) = every.decide(ScheduleSettings::default(), &[], now) else { unreachable!() };
            now = next + SignedDuration::from_secs(late);
            let ScheduleStep::Create(tick) = every.decide(ScheduleSettings::default(), &[], now) else { unreachable!() };
            prop_assert_eq!(tick.duration_since(every.created_at).as_secs() % 600, 0);
            every.last_backup = Some(tick);
        }
    }
}

#[test]
fn only_what_berth_has_made_for_a_schedule_is_its_own() {
    let mark = Some("u1");
    for (phase, generation, mark, is_own) in [
        ("", Some(1), mark, true),
        ("Queued", Some(1), mark, true),
        ("InProgress", Some(3), mark, true),
        ("Completed", Some(4), mark, true),
        ("Completed", None, mark, true),
        // From a store that a Velero syncs, where anybody may have written the mark.
        ("Completed", Some(1), mark, false),
        ("Failed", Some(1), mark, false),
        ("Deleting", Some(1), mark, false),
        ("Deleting", Some(2), mark, false),
        ("Queued", Some(1), Some("u2"), false),
        ("Queued", Some(1), None, false),
    ] {
        let found = BackupOrigin { mark, phase, generation };
        assert_eq!(found.is_of("u1"), is_own, "{found:?}");
    }
    let tick = time("2026-01-02T02:00:00Z");
    for (created, is) in [
        (None, true),
        (Some("2026-01-02T02:00:01Z"), true),
        (Some("2026-01-02T01:00:00Z"), true),
        (Some("2026-01-02T00:59:59Z"), false),
    ] {
        assert_eq!(is_in_time(created.map(time), tick), is, "{created:?}");
    }
    let first = "daily-20260102020000";
    let third = third_name(first, "0123456789abcdef0123456789abcdef");
    assert_eq!(third, "daily-20260102020000-0123456789abcdef0123");
    assert_eq!(told_name(&third), "daily-20260102020000-…");
    for name in [first, "daily-20260102020000-0a1b2", "plain", ""] {
        assert_eq!(told_name(name), name);
    }
    for (name, is_of) in
        [(first, true), (third.as_str(), true), ("daily-202601020200001", false), ("daily-2", false)]
    {
        assert_eq!(is_of_time(name, first), is_of, "{name}");
    }
}
