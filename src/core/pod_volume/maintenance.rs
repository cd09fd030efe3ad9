//! When a repository is maintained, and which runs its BackupRepository records.

use jiff::{SignedDuration, Timestamp};

/// The default frequency, which is Velero's for repositories of this type.
pub const USUAL: SignedDuration = SignedDuration::from_hours(168);
/// The highest frequency, whatever the BackupRepository says.
const SHORTEST: SignedDuration = SignedDuration::from_hours(1);
/// Time until the next attempt after a maintenance that failed, or that its process did not finish.
const RETRY: SignedDuration = SignedDuration::from_hours(6);
/// How many runs are recorded. As many as Velero's.
const KEPT: usize = 3;

/// A maintenance that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceRun {
    pub began: Timestamp,
    pub ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub at: Timestamp,
    /// Why it failed.
    pub fault: Option<String>,
}

/// The maintenance of a repository, as its BackupRepository records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryHistory {
    pub created: Timestamp,
    /// `None` or not positive: the default.
    pub frequency: Option<SignedDuration>,
    /// When the last successful run ended.
    pub succeeded: Option<Timestamp>,
    /// When one of berth's agents last began one.
    pub tried: Option<Timestamp>,
    /// The oldest first. Those of a Velero are among them, which tries it every few minutes once it
    /// is due, and fails where it has another password. So they say nothing of when it is due.
    pub entries: Vec<MaintenanceRun>,
}

/// Must a maintenance start now? One that still runs delays the next as long as one that failed,
/// because its process may be gone.
pub fn is_due(seen: &RepositoryHistory, now: Timestamp) -> bool {
    let frequency = seen.frequency.filter(|often| *often > SignedDuration::ZERO).unwrap_or(USUAL);
    let since = seen.succeeded.unwrap_or(seen.created);
    let tried = seen.tried.filter(|began| *began > since);
    now.duration_since(since) >= frequency.max(SHORTEST)
        && tried.is_none_or(|began| now.duration_since(began) >= RETRY)
}

/// The entries when a maintenance starts. An earlier run without an end did not end.
pub fn begun(mut entries: Vec<MaintenanceRun>, now: Timestamp) -> Vec<MaintenanceRun> {
    for entry in entries.iter_mut().filter(|entry| entry.ended.is_none()) {
        let fault = Some("the process that did it ended".to_owned());
        entry.ended = Some(Ended { at: now, fault });
    }
    entries.push(MaintenanceRun { began: now, ended: None });
    let first = entries.len().saturating_sub(KEPT);
    entries.split_off(first)
}

/// The entries when the run that started at `began` has ended.
pub fn ended(mut entries: Vec<MaintenanceRun>, began: Timestamp, ended: Ended) -> Vec<MaintenanceRun> {
    if let Some(entry) = entries.iter_mut().find(|entry| entry.began == began) {
        entry.ended = Some(ended);
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(hours: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours)
    }

    fn seen(succeeded: Option<i64>, tried: Option<i64>) -> RepositoryHistory {
        RepositoryHistory {
            created: hours(0),
            frequency: None,
            succeeded: succeeded.map(hours),
            tried: tried.map(hours),
            entries: Vec::new(),
        }
    }

    #[test]
    fn it_is_due_once_a_week_and_again_six_hours_after_a_failure() {
        for (succeeded, tried, now, due) in [
            (None, None, 167, false),
            (None, None, 168, true),
            (Some(100), None, 200, false),
            (Some(100), Some(100), 268, true),
            (Some(100), Some(268), 273, false),
            (Some(100), Some(268), 274, true),
            (Some(100), Some(274), 279, false),
            // The clock was set back.
            (Some(500), None, 300, false),
        ] {
            let seen = seen(succeeded, tried);
            assert_eq!(is_due(&seen, hours(now)), due, "{succeeded:?} {tried:?} {now}");
            // A Velero has tried it just now.
            let fault = Some("wrong password".to_owned());
            let ended = Some(Ended { at: hours(now), fault });
            let entries = vec![MaintenanceRun { began: hours(now), ended }];
            assert_eq!(is_due(&RepositoryHistory { entries, ..seen }, hours(now)), due, "{tried:?} {now}");
        }
        for (frequency, now, due) in [(24, 23, false), (24, 24, true), (0, 24, false), (-1, 168, true)] {
            let frequency = Some(SignedDuration::from_hours(frequency));
            assert_eq!(
                is_due(&RepositoryHistory { frequency, ..seen(None, None) }, hours(now)),
                due,
                "{frequency:?}"
            );
        }
        let often = Some(SignedDuration::from_secs(1));
        assert!(!is_due(
            &RepositoryHistory { frequency: often, ..seen(None, None) },
            Timestamp::UNIX_EPOCH + SignedDuration::from_mins(59)
        ));
    }

    #[test]
    fn the_last_ones_are_remembered_with_their_ends() {
        let mut entries = Vec::new();
        for began in 1..=4 {
            entries = begun(entries, hours(began));
        }
        let of = |entries: &[MaintenanceRun]| {
            entries.iter().map(|one| (one.began, one.ended.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(of(&entries), [(hours(2), true), (hours(3), true), (hours(4), false)]);
        let end = Ended { at: hours(5), fault: None };
        let entries = ended(entries, hours(4), end.clone());
        assert_eq!(entries.last().and_then(|entry| entry.ended.clone()), Some(end.clone()));
        assert_eq!(ended(entries.clone(), hours(9), end), entries, "somebody has taken it away");
    }
}
