use proptest::prelude::*;

use super::*;
use crate::stage::{FINALIZING, FINALIZING_PARTIALLY_FAILED, WAITING};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap_or(Timestamp::MAX)
}

#[test]
fn what_a_deleted_backup_has_left_is_removed_again_for_about_an_hour() {
    let minutes = |failures| remove_again(failures).map(|pause| pause.as_secs() / 60);
    let pauses: Vec<u64> = (1..).map_while(minutes).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 15, 15, 15]);
    for failures in [0, 8, u32::MAX] {
        assert_eq!(remove_again(failures), None, "{failures}");
    }
}

#[test]
fn an_operation_is_what_its_object_says_unless_its_time_is_over() {
    use OperationProgress::{Completed, Failed, InProgress, New};
    for (phase, in_time, late) in [
        ("", New, Failed(OperationFault::TimedOut)),
        ("New", New, Failed(OperationFault::TimedOut)),
        ("Accepted", InProgress, Failed(OperationFault::TimedOut)),
        ("Prepared", InProgress, Failed(OperationFault::TimedOut)),
        ("InProgress", InProgress, Failed(OperationFault::TimedOut)),
        ("Canceling", InProgress, Failed(OperationFault::TimedOut)),
        // A phase that this build does not know.
        ("Thinking", InProgress, Failed(OperationFault::TimedOut)),
        ("Completed", Completed, Completed),
        ("Failed", Failed(OperationFault::Reported), Failed(OperationFault::Reported)),
        ("Canceled", Failed(OperationFault::Canceled), Failed(OperationFault::Canceled)),
    ] {
        let seen = OperationObject { phase, created: at(0) };
        assert_eq!(OperationProgress::of(Some(&seen), TIMEOUT, at(4 * 3600 - 1)), in_time, "{phase}");
        assert_eq!(OperationProgress::of(Some(&seen), TIMEOUT, at(4 * 3600)), late, "{phase}");
        assert_eq!(OperationProgress::of(Some(&seen), Duration::MAX, at(4 * 3600)), in_time, "{phase}");
        // The clock of the API server may be ahead.
        assert_eq!(OperationProgress::of(Some(&seen), TIMEOUT, at(-60)), in_time, "{phase}");
    }
    assert_eq!(OperationProgress::of(None, TIMEOUT, at(0)), Failed(OperationFault::Gone));
}

fn waiting(phase: &str, found: OperationCounts) -> BackupOperations<'_> {
    let recorded = OperationCounts { attempted: 3, ..OperationCounts::default() };
    let setting = AfterInterruption::Resume;
    BackupOperations { phase, recorded, found, is_canceled: false, is_own: false, setting }
}

#[test]
fn a_backup_waits_until_all_operations_have_ended_and_remembers_each_that_failed() {
    for (phase, completed, failed, step_is) in [
        (WAITING, 0, 0, OperationStep::Nothing),
        (WAITING, 1, 0, OperationStep::Record(WAITING)),
        (WAITING, 2, 0, OperationStep::Record(WAITING)),
        (WAITING, 0, 1, OperationStep::Record(WAITING_PARTIALLY_FAILED)),
        (WAITING, 3, 0, OperationStep::Finalize(FINALIZING)),
        (WAITING, 2, 1, OperationStep::Finalize(FINALIZING_PARTIALLY_FAILED)),
        (WAITING, 0, 3, OperationStep::Finalize(FINALIZING_PARTIALLY_FAILED)),
        // An object has failed, and no operation.
        (WAITING_PARTIALLY_FAILED, 0, 0, OperationStep::Nothing),
        (WAITING_PARTIALLY_FAILED, 1, 0, OperationStep::Record(WAITING_PARTIALLY_FAILED)),
        (WAITING_PARTIALLY_FAILED, 3, 0, OperationStep::Finalize(FINALIZING_PARTIALLY_FAILED)),
    ] {
        let found = OperationCounts { attempted: 3, completed, failed };
        let usual = waiting(phase, found);
        assert_eq!(step(&usual), step_is, "{usual:?}");
        let canceled = BackupOperations { is_canceled: true, is_own: true, ..usual };
        assert_eq!(step(&canceled), OperationStep::End, "{canceled:?}");
        for setting in [AfterInterruption::Resume, AfterInterruption::Restart, AfterInterruption::Fail] {
            let own = BackupOperations { setting, is_own: true, ..usual };
            assert_eq!(step(&own), step_is, "{own:?}");
            let taken_up = BackupOperations { setting, ..usual };
            let expected = if setting == AfterInterruption::Fail { OperationStep::End } else { step_is };
            assert_eq!(step(&taken_up), expected, "{taken_up:?}");
        }
    }
}

#[test]
fn what_nobody_sees_any_more_has_failed() {
    let one = OperationCounts::of([OperationProgress::Completed], 3);
    assert_eq!(one, OperationCounts { attempted: 3, completed: 1, failed: 2 });
    // One that the Backup does not count yet.
    let more = OperationCounts::of([OperationProgress::New, OperationProgress::InProgress], 1);
    assert_eq!(more, OperationCounts { attempted: 2, ..OperationCounts::default() });
    assert!(OperationCounts::default().have_ended());
}

#[test]
fn a_backup_is_looked_at_when_something_has_changed_and_ever_more_seldom_where_that_fails() {
    let recorded = OperationCounts { attempted: 3, completed: 1, failed: 0 };
    let quiet = Glance {
        stage: Stage::Waiting,
        recorded,
        shown: recorded,
        there: 3,
        is_canceled: false,
        runs: Runs::default(),
        led: Duration::ZERO,
        since: Some(DAY),
        failures: 0,
    };
    let one_more = OperationCounts { completed: 2, ..recorded };
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    for (glance, due) in [
        (quiet, false),
        (Glance { since: None, ..quiet }, true),
        (Glance { shown: one_more, ..quiet }, true),
        (Glance { shown: one_more, since: seconds(4), ..quiet }, false),
        (Glance { shown: one_more, since: seconds(5), ..quiet }, true),
        (Glance { is_canceled: true, since: seconds(5), ..quiet }, true),
        (Glance { stage: Stage::Finalizing, since: seconds(5), ..quiet }, true),
        (Glance { stage: Stage::Finalizing, since: seconds(39), failures: 3, ..quiet }, false),
        (Glance { stage: Stage::Finalizing, since: seconds(40), failures: 3, ..quiet }, true),
        (Glance { failures: u32::MAX, since: seconds(299), ..quiet }, false),
        (Glance { failures: u32::MAX, since: seconds(300), ..quiet }, true),
        (
            Glance {
                shown: OperationCounts { failed: 1, ..recorded },
                there: 2,
                since: seconds(59),
                ..quiet
            },
            false,
        ),
        (
            Glance {
                shown: OperationCounts { failed: 1, ..recorded },
                there: 2,
                since: seconds(60),
                ..quiet
            },
            true,
        ),
    ] {
        assert_eq!(is_due(&glance), due, "{glance:?}");
    }
}

#[test]
fn a_completion_that_may_have_killed_leaders_is_tried_again_later_and_never_given_up() {
    let counts = OperationCounts { attempted: 1, completed: 1, failed: 0 };
    let first = Glance {
        stage: Stage::Finalizing,
        recorded: counts,
        shown: counts,
        there: 1,
        is_canceled: false,
        runs: Runs::default(),
        led: Duration::ZERO,
        since: None,
        failures: 0,
    };
    let after = |in_vain| Runs { all: in_vain, in_vain, furthest: 0 };
    for (in_vain, seconds) in [(1, 0), (2, 0), (3, 300), (4, 600), (5, 1200), (100, 300 << 8)] {
        let led = Duration::from_secs(seconds);
        let glance = Glance { runs: after(in_vain), led, ..first };
        assert!(is_due(&glance), "{glance:?}");
        if let Some(sooner) = led.checked_sub(Duration::from_secs(1)) {
            assert!(!is_due(&Glance { led: sooner, ..glance }), "{glance:?}");
        }
        assert!(is_due(&Glance { led: Duration::ZERO, is_canceled: true, ..glance }));
        assert!(is_due(&Glance { led: Duration::ZERO, stage: Stage::Waiting, ..glance }));
    }
}

proptest! {
    /// Whatever the data movers do and whenever somebody looks: a Backup that is not canceled comes
    /// to its end exactly when all its operations have ended, an operation that failed is never
    /// forgotten, and no operation lasts longer than its time.
    #[test]
    fn every_backup_comes_to_its_end_and_forgets_no_failure(
        phases in prop::collection::vec(("|New|Accepted|Prepared|InProgress|Canceling|Canceled|Completed|Failed|Odd", any::<bool>()), 0..6),
        is_partially_failed in any::<bool>(),
        elapsed in 0_i64..20_000,
    ) {
        let now = at(elapsed);
        let objects = phases.iter().filter(|(_, there)| *there);
        let standings = objects.map(|(phase, _)| OperationProgress::of(Some(&OperationObject { phase, created: at(0) }), TIMEOUT, now));
        let attempted = phases.len() as u64;
        let found = OperationCounts::of(standings, attempted);
        prop_assert_eq!(found.attempted, attempted);
        prop_assert!(found.ended() <= found.attempted);
        let phase = Stage::Waiting.phase(is_partially_failed);
        let next = step(&BackupOperations { is_own: true, ..waiting(phase, found) });
        let is_late = elapsed >= 4 * 3600;
        prop_assert_eq!(found.have_ended(), matches!(next, OperationStep::Finalize(_)));
        if is_late {
            prop_assert!(found.have_ended());
        }
        let has_failed = is_partially_failed || found.failed > 0;
        match next {
            OperationStep::Finalize(to) => {
                prop_assert_eq!(Stage::of(to), Some(Stage::Finalizing));
                prop_assert_eq!(to == FINALIZING_PARTIALLY_FAILED, has_failed);
            }
            OperationStep::Record(to) => {
                prop_assert_eq!(Stage::of(to), Some(Stage::Waiting));
                prop_assert_eq!(to == WAITING_PARTIALLY_FAILED, has_failed);
            }
            OperationStep::Nothing => prop_assert_eq!(phase == WAITING_PARTIALLY_FAILED, has_failed),
            OperationStep::End => prop_assert!(false, "nobody has canceled it"),
        }
    }
}
