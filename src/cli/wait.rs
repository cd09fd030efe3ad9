//! What `backup create --wait` shows, and how it ends.

use berth_api::velero::{Backup, BackupPhase};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use super::table::short;

/// How a backup that was waited for ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    Completed,
    PartiallyFailed,
    Failed,
    FailedValidation,
    Canceled,
    Deleted,
}

impl WaitOutcome {
    /// The exit code. 1 and 2 are those of commands that failed, and of flags that are wrong.
    pub fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::PartiallyFailed => 3,
            Self::Failed => 4,
            Self::FailedValidation => 5,
            Self::Canceled => 6,
            Self::Deleted => 7,
        }
    }
}

/// How the backup ended, if it did.
pub fn outcome(backup: &Backup) -> Option<WaitOutcome> {
    let reason = backup.status.as_ref().and_then(|status| status.failure_reason.as_deref());
    match backup.phase() {
        BackupPhase::Completed => Some(WaitOutcome::Completed),
        BackupPhase::PartiallyFailed => Some(WaitOutcome::PartiallyFailed),
        BackupPhase::Failed if reason.is_some_and(|reason| reason.starts_with("Canceled")) => {
            Some(WaitOutcome::Canceled)
        }
        BackupPhase::Failed => Some(WaitOutcome::Failed),
        BackupPhase::FailedValidation => Some(WaitOutcome::FailedValidation),
        BackupPhase::Deleting => Some(WaitOutcome::Deleted),
        _ if backup.metadata.deletion_timestamp.is_some() => Some(WaitOutcome::Deleted),
        _ => None,
    }
}

/// What a watch of one name has shown of one Backup.
pub struct WatchedBackup {
    /// As it was last seen.
    pub last: Backup,
    /// The list that has begun has the Backup.
    is_listed: bool,
}

impl WatchedBackup {
    pub fn new(made: &Backup) -> Self {
        Self { last: made.clone(), is_listed: false }
    }

    /// Takes in what the watch shows. Says how the backup ended, if it did.
    pub fn observe(&mut self, event: Event<Backup>) -> Option<WaitOutcome> {
        match event {
            Event::Init => {
                self.is_listed = false;
                None
            }
            Event::InitApply(backup) => {
                self.is_listed = true;
                self.see(backup)
            }
            Event::Apply(backup) => self.see(backup),
            Event::Delete(_) => Some(WaitOutcome::Deleted),
            Event::InitDone => (!self.is_listed).then_some(WaitOutcome::Deleted),
        }
    }

    fn see(&mut self, backup: Backup) -> Option<WaitOutcome> {
        // Another one of that name, so this one is gone.
        if backup.metadata.uid != self.last.metadata.uid {
            return Some(WaitOutcome::Deleted);
        }
        self.last = backup;
        outcome(&self.last)
    }
}

/// What is written on a terminal to show a line in place of the one before it, or below it. The
/// terminal cuts it at its edge, because of a line that goes on below only the end can be replaced.
pub fn drawn(text: &str, is_below: bool) -> String {
    let start = if is_below { "\n" } else { "\r\x1b[K" };
    format!("{start}\x1b[?7l{text}\x1b[?7h")
}

/// How much of a backup that runs is done, as in `[#####---------------]  25%`.
pub fn bar(backup: &Backup) -> Option<String> {
    if backup.phase() != BackupPhase::InProgress {
        return None;
    }
    let progress = backup.status.as_ref()?.progress?;
    let total = progress.total_items.filter(|total| *total > 0)?;
    let done = i128::from(progress.items_backed_up.unwrap_or(0).clamp(0, total));
    let of = |whole: i128| usize::try_from(done * whole / i128::from(total)).unwrap_or_default();
    Some(format!("[{:-<20}] {:3}%", "#".repeat(of(20)), of(100)))
}

/// One line that says what the backup does. `waits`: position and reason, where they are known.
pub fn line(backup: &Backup, waits: Option<(Option<u32>, &str)>, now: Timestamp) -> String {
    let name = backup.name_any();
    let status = backup.status.as_ref();
    match backup.phase() {
        BackupPhase::New => format!("{name} is created, and has no place in the queue yet"),
        BackupPhase::Queued => {
            let told =
                status.and_then(|status| status.queue_position).and_then(|told| u32::try_from(told).ok());
            let (position, why) = waits.unwrap_or((None, ""));
            let position = position.or(told).filter(|position| *position > 0);
            let position = position.map(|position| format!(" at position {position}")).unwrap_or_default();
            let why = if why.is_empty() { String::new() } else { format!(", for {why}") };
            format!("{name} waits{position}{why}")
        }
        BackupPhase::ReadyToStart => format!("{name} starts"),
        BackupPhase::InProgress => format!("{name} runs{}", items(backup, now)),
        BackupPhase::WaitingForPluginOperations | BackupPhase::WaitingForPluginOperationsPartiallyFailed => {
            let count = |count: Option<i64>| count.unwrap_or(0);
            let attempted = count(status.and_then(|status| status.backup_item_operations_attempted));
            let ended = count(status.and_then(|status| status.backup_item_operations_completed))
                + count(status.and_then(|status| status.backup_item_operations_failed));
            format!("{name} waits for operations: {ended} of {attempted} ended")
        }
        BackupPhase::Finalizing | BackupPhase::FinalizingPartiallyFailed => format!("{name} is finalized"),
        phase => format!("{name} is {}", phase.as_str()),
    }
}

/// `: 1200 of 5000 items, 400 per second, 10s left`.
fn items(backup: &Backup, now: Timestamp) -> String {
    let status = backup.status.as_ref();
    let Some(progress) = status.and_then(|status| status.progress) else { return String::new() };
    let (done, total) =
        (progress.items_backed_up.unwrap_or(0).max(0), progress.total_items.unwrap_or(0).max(0));
    let mut text = format!(": {done} of {total} items");
    let started = status.and_then(|status| status.start_timestamp.as_ref()).map(|time| time.0);
    let elapsed = started.map_or(0, |started| now.duration_since(started).as_secs());
    if elapsed > 0 && done > 0 {
        let rate = done / elapsed;
        text += &if rate > 0 {
            format!(", {rate} per second")
        } else {
            format!(", {} per minute", done.saturating_mul(60) / elapsed)
        };
        let left = total.saturating_sub(done).max(0);
        let seconds = i128::from(left) * i128::from(elapsed) / i128::from(done);
        if left > 0 && elapsed >= 3 {
            text += &format!(
                ", about {} left",
                short(SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX)))
            );
        }
    }
    text
}

/// The last line.
pub fn ending(name: &str, backup: Option<&Backup>, outcome: WaitOutcome) -> String {
    let status = backup.and_then(|backup| backup.status.as_ref());
    let count = |count: Option<i64>, what: &str| {
        count.filter(|count| *count > 0).map(|count| format!("{count} {what}"))
    };
    let counts = [
        count(status.and_then(|status| status.errors), "errors"),
        count(status.and_then(|status| status.warnings), "warnings"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    let counts = if counts.is_empty() { String::new() } else { format!(" ({})", counts.join(", ")) };
    let reason = status
        .and_then(|status| status.failure_reason.as_deref())
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    let more = format!(
        " You may check for more information using the commands `berth backup describe {name}` and `berth backup logs {name}`."
    );
    match outcome {
        WaitOutcome::Completed => format!("Backup completed with status: Completed{counts}.{more}"),
        WaitOutcome::PartiallyFailed => {
            format!("Backup completed with status: PartiallyFailed{counts}.{more}")
        }
        WaitOutcome::Failed => format!("Backup completed with status: Failed{reason}.{more}"),
        WaitOutcome::FailedValidation => {
            let faults: Vec<&str> = status
                .iter()
                .flat_map(|status| status.validation_errors.iter().flatten())
                .map(String::as_str)
                .collect();
            format!(
                "Backup completed with status: FailedValidation: {}. Nothing is stored: create it again without these faults.",
                faults.join("; ")
            )
        }
        WaitOutcome::Canceled => {
            format!("Backup {name} was canceled{reason}. The store keeps nothing of it.")
        }
        WaitOutcome::Deleted => format!("Backup {name} was deleted before it ended."),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(status: Value) -> Backup {
        serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": {}, "status": status})).unwrap()
    }

    #[test]
    fn every_phase_has_a_line_and_every_end_a_code() {
        let now: Timestamp = "2026-11-25T16:00:10Z".parse().unwrap();
        let start = "2026-11-25T16:00:00Z";
        for (status, waits, expected, ends) in [
            (json!({}), None, "b is created, and has no place in the queue yet", None),
            (json!({"phase": "Queued", "queuePosition": 2}), None, "b waits at position 2", None),
            (
                json!({"phase": "Queued", "queuePosition": 2}),
                Some((Some(1), "a free slot (all 2 are taken)")),
                "b waits at position 1, for a free slot (all 2 are taken)",
                None,
            ),
            (json!({"phase": "ReadyToStart"}), None, "b starts", None),
            (json!({"phase": "InProgress"}), None, "b runs", None),
            (
                json!({"phase": "InProgress", "startTimestamp": start, "progress": {"totalItems": 500, "itemsBackedUp": 100}}),
                None,
                "b runs: 100 of 500 items, 10 per second, about 40s left",
                None,
            ),
            (
                json!({"phase": "InProgress", "startTimestamp": start, "progress": {"totalItems": 5, "itemsBackedUp": 1}}),
                None,
                "b runs: 1 of 5 items, 6 per minute, about 40s left",
                None,
            ),
            (
                json!({"phase": "InProgress", "startTimestamp": "2027-01-01T00:00:00Z", "progress": {"totalItems": -5, "itemsBackedUp": 9}}),
                None,
                "b runs: 9 of 0 items",
                None,
            ),
            (
                json!({"phase": "WaitingForPluginOperations", "backupItemOperationsAttempted": 3, "backupItemOperationsCompleted": 1}),
                None,
                "b waits for operations: 1 of 3 ended",
                None,
            ),
            (json!({"phase": "Finalizing"}), None, "b is finalized", None),
            (json!({"phase": "Completed"}), None, "b is Completed", Some(0)),
            (json!({"phase": "PartiallyFailed"}), None, "b is PartiallyFailed", Some(3)),
            (json!({"phase": "Failed", "failureReason": "disk"}), None, "b is Failed", Some(4)),
            (json!({"phase": "FailedValidation"}), None, "b is FailedValidation", Some(5)),
            (json!({"phase": "Failed", "failureReason": "Canceled: it was"}), None, "b is Failed", Some(6)),
            (json!({"phase": "Deleting"}), None, "b is Deleting", Some(7)),
        ] {
            let backup = backup(status.clone());
            assert_eq!(line(&backup, waits, now), expected, "{status}");
            assert_eq!(outcome(&backup).map(WaitOutcome::code), ends, "{status}");
        }
    }

    #[test]
    fn a_terminal_is_shown_how_much_is_done_in_one_line_that_it_cuts() {
        let of = |phase: &str, total: i64, done: i64| {
            bar(&backup(json!({"phase": phase, "progress": {"totalItems": total, "itemsBackedUp": done}})))
        };
        for (total, done, shown) in [
            (500, 0, "[--------------------]   0%"),
            (500, 125, "[#####---------------]  25%"),
            (500, 499, "[###################-]  99%"),
            (500, 500, "[####################] 100%"),
            // Estimates may be wrong.
            (5, 9, "[####################] 100%"),
            (i64::MAX, i64::MAX, "[####################] 100%"),
            (5, -1, "[--------------------]   0%"),
        ] {
            assert_eq!(of("InProgress", total, done).as_deref(), Some(shown), "{done} of {total}");
        }
        assert_eq!((of("InProgress", 0, 0), of("Finalizing", 5, 5)), (None, None));
        assert_eq!(bar(&backup(json!({"phase": "InProgress"}))), None);
        assert_eq!(drawn("b waits", false), "\r\x1b[K\x1b[?7lb waits\x1b[?7h");
        assert!(drawn("b runs", true).starts_with("\n\x1b[?7l"));
    }

    #[test]
    fn the_last_line_says_why() {
        let failed = backup(json!({"phase": "Failed", "failureReason": "no route"}));
        assert!(
            ending("b", Some(&failed), WaitOutcome::Failed)
                .starts_with("Backup completed with status: Failed: no route. You may")
        );
        let some = backup(json!({"phase": "PartiallyFailed", "errors": 2, "warnings": 1}));
        assert!(
            ending("b", Some(&some), WaitOutcome::PartiallyFailed)
                .contains("PartiallyFailed (2 errors, 1 warnings).")
        );
        let refused = backup(json!({"phase": "FailedValidation", "validationErrors": ["a", "b"]}));
        assert!(
            ending("b", Some(&refused), WaitOutcome::FailedValidation)
                .contains("FailedValidation: a; b. Nothing")
        );
        assert_eq!(ending("b", None, WaitOutcome::Deleted), "Backup b was deleted before it ended.");
    }
}
