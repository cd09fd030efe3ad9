//! Which Backups have expired and are to be deleted, and why some of them cannot be.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

/// The period at which everything is looked at again, where nothing expires earlier. Backups that
/// were created since the last look are found by the next one.
pub const PERIOD: SignedDuration = SignedDuration::from_mins(10);

/// The location of a Backup, as far as its expiry depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionLocation {
    Usable,
    Missing,
    ReadOnly,
    Unavailable,
}

/// Why an expired Backup is not deleted. The values are those of Velero's label
/// `velero.io/gc-failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcFailure {
    NotFound,
    ReadOnly,
    Unavailable,
}

impl GcFailure {
    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "BSLNotFound",
            Self::ReadOnly => "BSLReadOnly",
            Self::Unavailable => "BSLUnavailable",
        }
    }
}

/// How many of its backups a Schedule keeps before they expire. `None`: all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Of those that are Completed. At least one of them stays.
    pub successful: Option<usize>,
    /// Of those that failed, in whole or in part.
    pub failed: Option<usize>,
}

/// What is known of a Backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiryCandidate<'a> {
    pub name: &'a str,
    pub phase: &'a str,
    pub expiration: Option<Timestamp>,
    /// When it ended or, where nobody knows, when it began.
    pub ended: Option<Timestamp>,
    pub location: RetentionLocation,
    /// The annotation `berth.dev/keep` keeps it.
    pub is_kept: bool,
    /// Somebody has asked for its deletion, and that is not done.
    pub is_asked_for: bool,
    /// The name of its schedule, by its label, which whoever creates Backups may write.
    pub schedule: Option<&'a str>,
    /// The UID of the Schedule that it is of (`berth.dev/schedule-uid`), which berth alone writes.
    pub proven: Option<&'a str>,
    /// Name of its location. Backups of a schedule of the same name in another location are another
    /// cluster's.
    pub at: &'a str,
    /// How many good backups of its schedule are kept whatever their age
    /// (`berth.dev/keep-last`).
    pub keep_last: usize,
    /// The limits of the Schedule that it provably is of, if that Schedule is there.
    pub history: HistoryLimits,
    /// The value of the label `velero.io/gc-failure`.
    pub failure: Option<&'a str>,
}

/// What is to be done about one Backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionDecision {
    /// Ask for its deletion.
    Delete,
    /// It has expired and cannot be deleted now.
    Blocked(GcFailure),
    /// Its schedule keeps its last good backups, and it is one of them.
    Last,
    Leave,
}

/// Only what has ended expires. A Backup that is Deleting, and whose deletion nobody has asked for
/// any more, is one whose deletion has failed before.
fn may_expire(phase: &str) -> bool {
    matches!(phase, "Completed" | "PartiallyFailed" | "Failed" | "FailedValidation" | "Deleting")
}

fn has_expired(candidate: &ExpiryCandidate<'_>, now: Timestamp) -> bool {
    may_expire(candidate.phase)
        && candidate.expiration.is_some_and(|expiration| expiration < now)
        && !candidate.is_kept
        && !candidate.is_asked_for
}

/// Names of the backups that their schedules keep. Schedules hand their annotations on to their
/// Backups, and the largest number among these counts, so that no Backup that lacks the annotation
/// has others deleted. Only backups that are provably of a Schedule take a place that others could
/// have: one of a Schedule stays unless so many later ones of the same UID are good, and one that
/// only has the label of a schedule unless so many provable ones with that label are.
fn last_ones<'a>(all: &[ExpiryCandidate<'a>], now: Timestamp) -> HashSet<&'a str> {
    let mut proven: BTreeMap<(&str, &str), Vec<&ExpiryCandidate<'a>>> = BTreeMap::new();
    let mut labelled: BTreeMap<(&str, &str), Vec<&ExpiryCandidate<'a>>> = BTreeMap::new();
    for candidate in all {
        if let Some(uid) = candidate.proven {
            proven.entry((uid, candidate.at)).or_default().push(candidate);
        }
        if let Some(schedule) = candidate.schedule {
            labelled.entry((schedule, candidate.at)).or_default().push(candidate);
        }
    }
    let mut kept = HashSet::new();
    for (groups, is_proven) in [(proven, true), (labelled, false)] {
        for mut group in groups.into_values() {
            let most = group.iter().map(|candidate| candidate.keep_last).max().unwrap_or(0);
            sort_by_worth(&mut group, now);
            let mut taken = 0;
            for candidate in group {
                if taken >= most {
                    break;
                }
                if candidate.proven.is_some() == is_proven {
                    kept.insert(candidate.name);
                }
                taken += usize::from(candidate.proven.is_some());
            }
        }
    }
    kept
}

/// Completed ones come first, then PartiallyFailed ones, the newest of each first; one that ended
/// in the future is the oldest, because nobody knows when it ended. Others are not good.
fn sort_by_worth(group: &mut Vec<&ExpiryCandidate<'_>>, now: Timestamp) {
    // One whose deletion is asked for will not be there, so it takes no place of another one.
    group.retain(|candidate| {
        matches!(candidate.phase, "Completed" | "PartiallyFailed") && !candidate.is_asked_for
    });
    group.sort_by_key(|candidate| {
        let ended = candidate.ended.filter(|ended| *ended <= now);
        std::cmp::Reverse((candidate.phase == "Completed", ended, candidate.name))
    });
}

/// How much a backup that has ended holds: its outcome.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BackupCompleteness {
    All,
    Part,
    Nothing,
}

/// Names of the backups that are more than their Schedule keeps. Those of one outcome push out only
/// each other, so that no failure costs a backup that can be restored; and of those that hold a
/// part the newest stays until a newer one holds all. One that ended in the future neither pushes
/// others out nor goes, because nobody knows when it ended; one that goes anyway pushes out none.
fn beyond_history<'a>(all: &[ExpiryCandidate<'a>], now: Timestamp) -> HashSet<&'a str> {
    let mut groups: BTreeMap<(&str, &str, BackupCompleteness), Vec<&ExpiryCandidate<'a>>> = BTreeMap::new();
    let mut beyond = HashSet::new();
    for candidate in all {
        let Some(uid) = candidate.proven else { continue };
        let outcome = match candidate.phase {
            "Completed" => BackupCompleteness::All,
            "PartiallyFailed" => BackupCompleteness::Part,
            "Failed" | "FailedValidation" => BackupCompleteness::Nothing,
            // The deletion of what was too many has failed.
            "Deleting" if candidate.history != HistoryLimits::default() => {
                beyond.insert(candidate.name);
                continue;
            }
            _ => continue,
        };
        let goes_anyway = candidate.is_asked_for || has_expired(candidate, now);
        if candidate.ended.is_some_and(|ended| ended <= now) && !goes_anyway {
            groups.entry((uid, candidate.at, outcome)).or_default().push(candidate);
        }
    }
    let newest = |group: &[&ExpiryCandidate<'a>]| group.iter().filter_map(|candidate| candidate.ended).max();
    let whole: BTreeMap<(&str, &str), Option<Timestamp>> = groups
        .iter()
        .filter(|((_, _, outcome), _)| *outcome == BackupCompleteness::All)
        .map(|((uid, at, _), group)| ((*uid, *at), newest(group)))
        .collect();
    for ((uid, at, outcome), mut group) in groups {
        // All are of one Schedule, so all have the same.
        let Some(history) = group.first().map(|first| first.history) else { continue };
        let is_newest = whole.get(&(uid, at)).copied().flatten() < newest(&group);
        let most = match outcome {
            BackupCompleteness::All => history.successful.map(|most| most.max(1)),
            BackupCompleteness::Part if is_newest => history.failed.map(|most| most.max(1)),
            BackupCompleteness::Part | BackupCompleteness::Nothing => history.failed,
        };
        let Some(most) = most else { continue };
        group.sort_by_key(|candidate| std::cmp::Reverse((candidate.ended, candidate.name)));
        beyond.extend(group.iter().skip(most).map(|candidate| candidate.name));
    }
    beyond
}

/// What is to be done about each Backup, in the order in which they are given.
pub fn judge(all: &[ExpiryCandidate<'_>], now: Timestamp) -> Vec<RetentionDecision> {
    let (kept, beyond) = (last_ones(all, now), beyond_history(all, now));
    let is_beyond = |candidate: &ExpiryCandidate<'_>| {
        beyond.contains(candidate.name) && !candidate.is_kept && !candidate.is_asked_for
    };
    let verdict = |candidate: &ExpiryCandidate<'_>| match candidate.location {
        _ if !has_expired(candidate, now) && !is_beyond(candidate) => RetentionDecision::Leave,
        _ if kept.contains(candidate.name) => RetentionDecision::Last,
        RetentionLocation::Usable => RetentionDecision::Delete,
        RetentionLocation::Missing => RetentionDecision::Blocked(GcFailure::NotFound),
        RetentionLocation::ReadOnly => RetentionDecision::Blocked(GcFailure::ReadOnly),
        RetentionLocation::Unavailable => RetentionDecision::Blocked(GcFailure::Unavailable),
    };
    all.iter().map(verdict).collect()
}

/// Whether the label `velero.io/gc-failure` of a Backup is to change; `None` within: it is to go.
/// A label that somebody else has given a value of their own stays as long as nothing fails.
pub fn relabel(candidate: &ExpiryCandidate<'_>, verdict: RetentionDecision) -> Option<Option<&'static str>> {
    let wanted = match verdict {
        RetentionDecision::Blocked(failure) => Some(failure.as_str()),
        RetentionDecision::Delete => None,
        // A Backup whose expiration somebody has moved keeps no failure.
        RetentionDecision::Leave | RetentionDecision::Last if !candidate.is_asked_for => None,
        RetentionDecision::Leave | RetentionDecision::Last => return None,
    };
    (candidate.failure != wanted).then_some(wanted)
}

/// When to look again: when the next Backup expires, and after [`PERIOD`] at the latest.
pub fn look_again(all: &[ExpiryCandidate<'_>], now: Timestamp) -> Timestamp {
    let latest = now.checked_add(PERIOD).unwrap_or(Timestamp::MAX);
    let expirations = all.iter().filter(|candidate| may_expire(candidate.phase));
    let next = expirations.filter_map(|candidate| candidate.expiration).filter(|at| *at >= now).min();
    next.map_or(latest, |next| next.min(latest))
}

#[cfg(test)]
mod tests {
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
            at: "default",
            keep_last: 0,
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
            ExpiryCandidate {
                schedule: Some("weekly"),
                proven: Some("another"),
                ..of("e", "Completed", 5, 0)
            },
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
            ended: Some(at(ended)),
            keep_last: 1,
            ..candidate(name, "Completed")
        };
        let (delete, last) = (RetentionDecision::Delete, RetentionDecision::Last);
        let forged: Vec<_> = ["w", "x", "y"].map(|name| of(name, 50, None)).into();
        let with = |ones: &[ExpiryCandidate<'static>]| {
            judge(&[ones, &forged].concat(), at(101))[..ones.len()].to_vec()
        };
        let own = [of("a", 1, Some("uid")), of("b", 2, Some("uid"))];
        assert_eq!(with(&own), [delete, last]);
        let unlabelled = own.clone().map(|one| ExpiryCandidate { schedule: None, ..one });
        assert_eq!(with(&unlabelled), [delete, last], "labels may be patched");
        // One of a Schedule of another UID is none of it, whatever its label.
        assert_eq!(with(&[own[1].clone(), of("c", 3, Some("another"))]), [last, last]);
        // From before there were marks.
        let older = [of("a", 1, None), of("b", 2, None)];
        assert_eq!(with(&older), [last, last], "nobody knows which of all these are the schedule's");
        assert_eq!(
            with(&[older[0].clone(), older[1].clone(), of("c", 3, Some("uid"))]),
            [delete, delete, last]
        );
        let worse = ExpiryCandidate { phase: "PartiallyFailed", ..of("c", 3, Some("uid")) };
        assert_eq!(with(&[older[0].clone(), worse]), [last, last]);
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
}
