//! Which Backups have expired and are to be deleted, and why some of them cannot be.

use std::collections::{BTreeMap, HashSet};

use jiff::{SignedDuration, Timestamp};

/// The period at which everything is looked at again, where nothing expires earlier. Backups that
/// were created since the last look are found by the next one.
pub const PERIOD: SignedDuration = SignedDuration::from_mins(10);

/// From a deletion that has failed to the next one, at least (as with Velero) and at most.
const RETRY: SignedDuration = SignedDuration::from_hours(1);
const LONGEST_RETRY: SignedDuration = SignedDuration::from_hours(24);

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
    /// The name of that Schedule, if it is there.
    pub proven_name: Option<&'a str>,
    /// Name of its location. Backups of a schedule of the same name in another location are another
    /// cluster's.
    pub at: &'a str,
    /// How many good backups of its schedule are kept whatever their age: the larger number of its
    /// own and of the Schedule that it provably is of (`berth.dev/keep-last`).
    pub keep_last: usize,
    /// The number of the Schedule that has the name in its label, if that Schedule is there.
    pub named_keeps: Option<usize>,
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

/// By how much the clock of a node was behind when a backup began. No backup begins before its
/// object is created, and that time is the API server's. What the same clock wrote as the
/// expiration is too early by as much.
pub fn behind(created: Option<Timestamp>, begun: Option<Timestamp>) -> SignedDuration {
    let behind = created.zip(begun).map(|(created, begun)| created.duration_since(begun));
    behind.unwrap_or_default().max(SignedDuration::ZERO)
}

/// Is a deletion that has failed to be asked for again? The pause is as long as the Backup had been
/// expired when that deletion was asked for, so it doubles each time: some fail for ever, such as
/// those of copies of what another cluster has written.
pub fn is_due_again(failed: Timestamp, expiration: Option<Timestamp>, now: Timestamp) -> bool {
    let expired = expiration.map_or(RETRY, |expiration| failed.duration_since(expiration));
    now.duration_since(failed) >= expired.clamp(RETRY, LONGEST_RETRY)
}

/// Names of the backups that their schedules keep. Schedules hand their annotations on to their
/// Backups, and the largest number among these counts, so that no Backup that lacks the annotation
/// has others deleted. Only backups that are provably of a Schedule take a place that others could
/// have: one of a Schedule stays unless so many later ones of the same UID are good, and one that
/// only has the label of a schedule unless so many provable ones with that label are. The number on
/// a Backup that only has the label counts for others as long as no Schedule of that name is there
/// to say one, because whoever creates Backups could have all of them stay.
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
            // Whoever has a Schedule of another name may label its Backups as he likes.
            let counts = |candidate: &ExpiryCandidate<'a>| {
                candidate.proven.is_some() && (is_proven || candidate.proven_name == candidate.schedule)
            };
            let named = group.iter().find_map(|candidate| candidate.named_keeps).filter(|_| !is_proven);
            let says = |candidate: &&ExpiryCandidate<'a>| named.is_none() || counts(candidate);
            let said = group.iter().copied().filter(says).map(|candidate| candidate.keep_last);
            let most = said.chain(named).max().unwrap_or(0);
            sort_by_worth(&mut group, now);
            let mut taken = 0;
            for candidate in group {
                let has_place = taken < most.max(candidate.keep_last);
                if has_place && candidate.proven.is_some() == is_proven {
                    kept.insert(candidate.name);
                }
                taken += usize::from(counts(candidate));
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
mod tests;
