use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn candidate<'a>(name: &'a str, phase: &'static str) -> ExpiryCandidate<'a> {
    ExpiryCandidate {
        name,
        phase,
        expiration: Some(at(100)),
        ended: Some(at(10)),
        location: RetentionLocation::Usable,
        is_kept: false,
        is_asked_for: false,
        schedule: None,
        proven: None,
        proven_name: None,
        at: "default",
        keep_last: 0,
        named_keeps: None,
        history: HistoryLimits::default(),
        failure: None,
    }
}

fn verdict(candidate: ExpiryCandidate<'_>) -> RetentionDecision {
    judge(&[candidate], at(101))[0]
}

#[test]
fn only_what_has_ended_and_expired_is_deleted() {
    for (phase, wanted) in [
        ("", RetentionDecision::Leave),
        ("New", RetentionDecision::Leave),
        ("Queued", RetentionDecision::Leave),
        ("ReadyToStart", RetentionDecision::Leave),
        ("InProgress", RetentionDecision::Leave),
        ("WaitingForPluginOperations", RetentionDecision::Leave),
        ("Finalizing", RetentionDecision::Leave),
        ("Unheard", RetentionDecision::Leave),
        ("Completed", RetentionDecision::Delete),
        ("PartiallyFailed", RetentionDecision::Delete),
        ("Failed", RetentionDecision::Delete),
        ("FailedValidation", RetentionDecision::Delete),
        ("Deleting", RetentionDecision::Delete),
    ] {
        assert_eq!(verdict(candidate("b", phase)), wanted, "{phase}");
    }
    let completed = candidate("b", "Completed");
    let later = ExpiryCandidate { expiration: Some(at(101)), ..completed.clone() };
    let never = ExpiryCandidate { expiration: None, ..completed.clone() };
    let kept = ExpiryCandidate { is_kept: true, ..completed.clone() };
    let asked = ExpiryCandidate { is_asked_for: true, ..completed };
    for one in [later, never, kept, asked] {
        assert_eq!(verdict(one.clone()), RetentionDecision::Leave, "{one:?}");
    }
}

#[test]
fn what_cannot_be_deleted_is_labelled_as_by_velero_until_it_can_be() {
    for (location, failure, label) in [
        (RetentionLocation::Missing, GcFailure::NotFound, "BSLNotFound"),
        (RetentionLocation::ReadOnly, GcFailure::ReadOnly, "BSLReadOnly"),
        (RetentionLocation::Unavailable, GcFailure::Unavailable, "BSLUnavailable"),
    ] {
        let blocked = ExpiryCandidate { location, ..candidate("b", "Completed") };
        assert_eq!(verdict(blocked.clone()), RetentionDecision::Blocked(failure));
        assert_eq!(relabel(&blocked, RetentionDecision::Blocked(failure)), Some(Some(label)));
        let labelled = ExpiryCandidate { failure: Some(label), ..blocked };
        assert_eq!(relabel(&labelled, RetentionDecision::Blocked(failure)), None);
        assert_eq!(relabel(&labelled, RetentionDecision::Delete), Some(None));
        assert_eq!(relabel(&labelled, RetentionDecision::Leave), Some(None));
    }
    assert_eq!(relabel(&candidate("b", "Completed"), RetentionDecision::Delete), None);
}

#[test]
fn a_schedule_keeps_its_last_good_backups_however_old_they_are() {
    let of = |name, phase, ended, keep_last| ExpiryCandidate {
        schedule: Some("daily"),
        proven: Some("uid"),
        ended: Some(at(ended)),
        keep_last,
        ..candidate(name, phase)
    };
    let all = [
        of("a", "Completed", 1, 0),
        of("b", "Completed", 2, 0),
        of("c", "PartiallyFailed", 3, 0),
        of("d", "Failed", 4, 2),
        ExpiryCandidate { schedule: Some("weekly"), proven: Some("another"), ..of("e", "Completed", 5, 0) },
        ExpiryCandidate { schedule: None, proven: None, ..of("f", "Completed", 6, 9) },
    ];
    let verdicts = judge(&all, at(101));
    let (delete, last) = (RetentionDecision::Delete, RetentionDecision::Last);
    assert_eq!(verdicts, [last, last, delete, delete, delete, delete]);
    let more = [all[0].clone(), all[2].clone(), of("d", "Failed", 4, 2)];
    assert_eq!(judge(&more, at(101)), [last, last, delete], "PartiallyFailed is better than nothing");
    let later = of("z", "Completed", 9, 0);
    let newer = [of("a", "Completed", 1, 1), later.clone()];
    assert_eq!(judge(&newer, at(101)), [delete, last], "one without the annotation lowers no number");
    let future = ExpiryCandidate { ended: Some(at(999)), ..later.clone() };
    assert_eq!(judge(&[of("a", "Completed", 1, 1), future], at(101)), [last, delete]);
    let elsewhere = ExpiryCandidate { at: "another", ..later };
    assert_eq!(judge(&[of("a", "Completed", 1, 1), elsewhere], at(101)), [last, delete]);
}

/// Whoever may create Backups may give them the label of a schedule, and whoever may patch them
/// may take it from others.
#[test]
fn a_backup_that_only_has_the_label_of_a_schedule_takes_no_place_from_its_backups() {
    let of = |name, ended, proven| ExpiryCandidate {
        schedule: Some("daily"),
        proven,
        proven_name: proven.map(|_| "daily"),
        ended: Some(at(ended)),
        keep_last: 1,
        ..candidate(name, "Completed")
    };
    let (delete, last) = (RetentionDecision::Delete, RetentionDecision::Last);
    let forged: Vec<_> = ["w", "x", "y"].map(|name| of(name, 50, None)).into();
    let with =
        |ones: &[ExpiryCandidate<'static>]| judge(&[ones, &forged].concat(), at(101))[..ones.len()].to_vec();
    let own = [of("a", 1, Some("uid")), of("b", 2, Some("uid"))];
    assert_eq!(with(&own), [delete, last]);
    let unlabelled = own.clone().map(|one| ExpiryCandidate { schedule: None, ..one });
    assert_eq!(with(&unlabelled), [delete, last], "labels may be patched");
    // One of a Schedule of another UID is none of it, whatever its label.
    assert_eq!(with(&[own[1].clone(), of("c", 3, Some("another"))]), [last, last]);
    // From before there were marks.
    let older = [of("a", 1, None), of("b", 2, None)];
    assert_eq!(with(&older), [last, last], "nobody knows which of all these are the schedule's");
    assert_eq!(with(&[older[0].clone(), older[1].clone(), of("c", 3, Some("uid"))]), [delete, delete, last]);
    for other in [Some("hourly"), None] {
        let labelled = ExpiryCandidate { proven_name: other, ..of("c", 3, Some("uid")) };
        assert_eq!(with(&[older[0].clone(), labelled]), [last, last], "of the Schedule {other:?}");
    }
    let worse = ExpiryCandidate { phase: "PartiallyFailed", ..of("c", 3, Some("uid")) };
    assert_eq!(with(&[older[0].clone(), worse]), [last, last]);
}

/// The number is an annotation, which whoever creates Backups may write as well as the label.
#[test]
fn a_backup_that_only_has_the_label_of_a_schedule_keeps_no_others_of_it() {
    let of = |name, ended, proven, keep_last, named_keeps| ExpiryCandidate {
        schedule: Some("daily"),
        proven,
        proven_name: proven.map(|_| "daily"),
        ended: Some(at(ended)),
        keep_last,
        named_keeps,
        ..candidate(name, "Completed")
    };
    let (delete, last) = (RetentionDecision::Delete, RetentionDecision::Last);
    // From before there were marks, and one that somebody has created.
    let with = |named_keeps, own: usize, forged: usize| {
        let all = [
            of("a", 1, None, own, named_keeps),
            of("b", 2, Some("uid"), 0, named_keeps),
            of("c", 3, None, forged, named_keeps),
        ];
        judge(&all, at(101))
    };
    assert_eq!(with(Some(0), 0, 9), [delete, delete, last], "it says so of itself alone");
    assert_eq!(with(Some(0), 2, 0), [last, delete, delete]);
    assert_eq!(with(Some(1), 0, 9), [delete, delete, last]);
    assert_eq!(with(Some(2), 0, 0), [last, delete, last], "the Schedule says so of all");
    assert_eq!(with(None, 0, 9), [last, delete, last], "nobody else can say it any more");
    // The Schedule itself counts before any of its Backups has the annotation.
    let own = |name, ended, keep_last| of(name, ended, Some("uid"), keep_last, Some(2));
    let all = [own("a", 1, 2), own("b", 2, 2), own("c", 3, 2)];
    assert_eq!(judge(&all, at(101)), [delete, last, last]);
}

#[test]
fn a_clock_that_was_behind_when_a_backup_began_is_known_by_the_creation_of_its_object() {
    let hour = SignedDuration::from_hours;
    let time = |hours: i64| Some(at(hours * 3600));
    for (created, begun, late) in [
        (time(100), time(90), hour(10)),
        (time(100), time(100), hour(0)),
        (time(100), time(101), hour(0)),
        (None, time(1), hour(0)),
        (time(1), None, hour(0)),
    ] {
        assert_eq!(behind(created, begun), late, "{created:?} {begun:?}");
    }
}

#[test]
fn a_schedule_keeps_as_many_as_it_says_of_each_outcome() {
    let of = |name, phase, ended| ExpiryCandidate {
        proven: Some("uid"),
        ended: Some(at(ended)),
        expiration: Some(at(9999)),
        history: HistoryLimits { successful: Some(2), failed: Some(1) },
        ..candidate(name, phase)
    };
    let (delete, leave) = (RetentionDecision::Delete, RetentionDecision::Leave);
    let all = [
        of("a", "Completed", 1),
        of("b", "Completed", 2),
        of("c", "Completed", 3),
        of("d", "PartiallyFailed", 4),
        of("e", "Failed", 5),
        of("f", "InProgress", 6),
        // By a clock that is ahead.
        of("g", "Completed", 999),
        ExpiryCandidate { proven: Some("another"), ..of("h", "Completed", 7) },
        ExpiryCandidate { proven: None, ..of("i", "Completed", 8) },
        ExpiryCandidate { at: "elsewhere", ..of("j", "Completed", 9) },
        of("k", "Deleting", 10),
    ];
    let wanted = [delete, leave, leave, leave, leave, leave, leave, leave, leave, leave, delete];
    assert_eq!(judge(&all, at(101)), wanted);
    // The newest that holds a part stays, whatever stored nothing since, until one holds all.
    let none = |candidate: &ExpiryCandidate<'static>| ExpiryCandidate {
        history: HistoryLimits { successful: None, failed: Some(0) },
        ..candidate.clone()
    };
    let parts = [of("o", "PartiallyFailed", 3), of("p", "PartiallyFailed", 4), of("q", "Failed", 5)];
    let parts = parts.map(|candidate| none(&candidate));
    assert_eq!(judge(&parts, at(101)), [delete, leave, delete]);
    let [o, p, q] = parts;
    let whole = none(&of("r", "Completed", 6));
    assert_eq!(judge(&[o, p, q, whole], at(101)), [delete, delete, delete, leave]);
    // One that goes anyway pushes out none.
    for gone in [
        ExpiryCandidate { is_asked_for: true, ..of("s", "Completed", 7) },
        ExpiryCandidate { expiration: Some(at(50)), ..of("s", "Completed", 7) },
    ] {
        assert_eq!(judge(&[all[1].clone(), all[2].clone(), gone], at(101))[..2], [leave, leave]);
    }
    // What is held, asked for, or one of the last good ones stays as it would if it had
    // expired.
    let again = [
        ExpiryCandidate { is_kept: true, ..all[0].clone() },
        all[1].clone(),
        all[2].clone(),
        ExpiryCandidate { is_asked_for: true, ..all[3].clone() },
        all[4].clone(),
    ];
    assert_eq!(judge(&again, at(101)), [leave; 5]);
    let last = ExpiryCandidate { keep_last: 3, ..all[2].clone() };
    assert_eq!(
        judge(&[all[0].clone(), all[1].clone(), last], at(101)),
        [RetentionDecision::Last, leave, leave]
    );
    let read_only = ExpiryCandidate { location: RetentionLocation::ReadOnly, ..all[0].clone() };
    let blocked = judge(&[read_only, all[1].clone(), all[2].clone()], at(101));
    assert_eq!(blocked[0], RetentionDecision::Blocked(GcFailure::ReadOnly));
    // A limit of none keeps one, and a Schedule without limits all.
    let limited = |successful| HistoryLimits { successful, failed: None };
    for (successful, wanted) in [(Some(0), [delete, leave]), (None, [leave, leave])] {
        let two = [all[0].clone(), all[1].clone()];
        let two = two.map(|one| ExpiryCandidate { history: limited(successful), ..one });
        assert_eq!(judge(&two, at(101)), wanted, "{successful:?}");
    }
}

#[test]
fn it_looks_again_when_the_next_one_expires_and_after_a_while() {
    let of = |seconds| ExpiryCandidate { expiration: Some(at(seconds)), ..candidate("b", "Completed") };
    assert_eq!(look_again(&[of(50), of(400), of(300)], at(100)), at(300));
    assert_eq!(look_again(&[of(50), of(99_999)], at(100)), at(700));
    let runs = ExpiryCandidate { phase: "InProgress", ..of(300) };
    assert_eq!(look_again(&[runs], at(100)), at(700));
}

#[test]
fn a_deletion_that_fails_is_asked_for_less_and_less_often() {
    let at = |hours: i64| Timestamp::from_second(hours * 3600).unwrap();
    let second = SignedDuration::from_secs(1);
    // Hours from the expiration to the request, and from the request to the next one.
    for (asked, pause) in [(0, 1), (1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (32, 24), (9000, 24), (-5, 1)] {
        let due = at(asked + pause);
        assert!(is_due_again(at(asked), Some(at(0)), due), "{asked}");
        assert!(!is_due_again(at(asked), Some(at(0)), due.checked_sub(second).unwrap()), "{asked}");
    }
    // One that is more than its schedule keeps may have no expiration.
    assert!(is_due_again(at(0), None, at(1)) && !is_due_again(at(1), None, at(1)));
}
