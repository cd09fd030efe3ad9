//! Operations that continue after a backup has stored its objects: movements of snapshot data. This
//! module decides what their results mean for the Backup, and when the Backup must be checked
//! again.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::run::{AfterInterruption, MOST_RUNS, Runs};
use crate::stage::{Stage, WAITING_PARTIALLY_FAILED};

/// `spec.itemOperationTimeout` of a Backup that has none.
pub const TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// Shortest time between two checks of a Backup.
pub const PAUSE: Duration = Duration::from_secs(5);
/// The same while the watch shows fewer operations than the Backup has started: either somebody has
/// removed one, or the watch is late.
pub const MISSING: Duration = Duration::from_secs(60);
/// Longest time between two checks that fail, because a location may be away for long.
pub const LONGEST: Duration = Duration::from_secs(300);
/// How many Backups are completed at the same time, all but one of them in one location. Each takes
/// as much memory as its checkpoint.
pub const FINALIZATIONS: usize = 5;
/// Time-out of completing a Backup, in which a large archive may be assembled. Without it, a
/// location that hangs would keep its place.
pub const FINALIZATION: Duration = Duration::from_secs(3600);

/// Most tries to remove what a deleted Backup has left, where no request is on record for it.
const REMOVALS: u32 = 8;
/// The pause after the first of them; it doubles up to the longest.
const REMOVAL_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause between two of them.
pub const LONGEST_REMOVAL_PAUSE: Duration = Duration::from_secs(900);

/// How long after so many failed tries what a deleted Backup has left is to be removed again; some
/// 70 minutes in all. `None`: nobody tries any more.
pub fn remove_again(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?;
    let pause = REMOVAL_PAUSE.saturating_mul(2_u32.saturating_pow(doublings));
    (failures < REMOVALS).then_some(pause.min(LONGEST_REMOVAL_PAUSE))
}

/// What an API object says of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationObject<'a> {
    /// `status.phase`, as written.
    pub phase: &'a str,
    pub created: Timestamp,
}

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationProgress {
    New,
    InProgress,
    Completed,
    Failed(OperationFault),
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationFault {
    /// Its data mover says that it failed.
    Reported,
    Canceled,
    /// It took longer than its time-out, so it is canceled.
    TimedOut,
    /// Its object no longer exists.
    Gone,
}

impl OperationFault {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reported => "its data mover failed",
            Self::Canceled => "it was canceled",
            Self::TimedOut => "it was not over within spec.itemOperationTimeout",
            Self::Gone => "its DataUpload was deleted before it ended",
        }
    }
}

impl OperationProgress {
    /// `seen`: the object of the operation; `None` if it does not exist. An unknown phase does not
    /// count as an end.
    pub fn of(seen: Option<&OperationObject<'_>>, timeout: Duration, now: Timestamp) -> Self {
        let Some(seen) = seen else { return Self::Failed(OperationFault::Gone) };
        match seen.phase {
            "Completed" => return Self::Completed,
            "Failed" => return Self::Failed(OperationFault::Reported),
            "Canceled" => return Self::Failed(OperationFault::Canceled),
            _ => {}
        }
        let timeout = SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX);
        match seen.phase {
            _ if now.duration_since(seen.created) >= timeout => Self::Failed(OperationFault::TimedOut),
            "" | "New" => Self::New,
            _ => Self::InProgress,
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_))
    }
}

/// How many operations a backup has started, and their states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    pub attempted: u64,
    pub completed: u64,
    pub failed: u64,
}

impl OperationCounts {
    /// `attempted`: how many operations the backup has started, as far as is known. Those without
    /// an object are gone.
    pub fn of(standings: impl IntoIterator<Item = OperationProgress>, attempted: u64) -> Self {
        let mut counts = Self::default();
        for standing in standings {
            counts.attempted += 1;
            match standing {
                OperationProgress::Completed => counts.completed += 1,
                OperationProgress::Failed(_) => counts.failed += 1,
                OperationProgress::New | OperationProgress::InProgress => {}
            }
        }
        let gone = attempted.saturating_sub(counts.attempted);
        counts.attempted += gone;
        counts.failed += gone;
        counts
    }

    pub fn ended(&self) -> u64 {
        self.completed.saturating_add(self.failed)
    }

    pub fn have_ended(&self) -> bool {
        self.ended() >= self.attempted
    }
}

/// A Backup that waits for its operations.
#[derive(Clone, Copy, Debug)]
pub struct BackupOperations<'a> {
    pub phase: &'a str,
    /// According to the status of the Backup.
    pub recorded: OperationCounts,
    /// According to the operations themselves.
    pub found: OperationCounts,
    pub is_canceled: bool,
    /// This process has stored its objects, so nothing has interrupted the backup.
    pub is_own: bool,
    pub setting: AfterInterruption,
}

/// The next step for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStep {
    Nothing,
    /// Write the counts, and this phase.
    Record(&'static str),
    /// All operations have ended: write the counts, and this phase, in which the backup is
    /// completed.
    Finalize(&'static str),
    /// Cancel the operations, and end the Backup.
    End,
}

/// The setting `restart` changes nothing here, because a Backup that waits holds neither a slot nor
/// namespaces: it cannot start again, and nothing that it has stored would be stored twice.
pub fn step(waiting: &BackupOperations<'_>) -> OperationStep {
    let is_interrupted = !waiting.is_own && waiting.setting == AfterInterruption::Fail;
    if waiting.is_canceled || is_interrupted {
        return OperationStep::End;
    }
    let is_partially_failed = waiting.phase == WAITING_PARTIALLY_FAILED || waiting.found.failed > 0;
    let phase = Stage::Waiting.phase(is_partially_failed);
    if waiting.found.have_ended() {
        OperationStep::Finalize(Stage::Finalizing.phase(is_partially_failed))
    } else if waiting.found != waiting.recorded || phase != waiting.phase {
        OperationStep::Record(phase)
    } else {
        OperationStep::Nothing
    }
}

/// What is known of a Backup that waits, or is being completed, without asking the API server or
/// the store.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    pub stage: Stage,
    /// According to the status of the Backup.
    pub recorded: OperationCounts,
    /// According to the watch of the operations; those that it does not show count as gone.
    pub shown: OperationCounts,
    /// How many operations the watch shows.
    pub there: u64,
    pub is_canceled: bool,
    /// How often it was run. Runs that complete a backup count only if they died.
    pub runs: Runs,
    /// For how long this process has led.
    pub led: Duration,
    /// Time since this process last checked it; `None`: it never did.
    pub since: Option<Duration>,
    /// How many checks in a row have failed.
    pub failures: u32,
}

/// Must the Backup be checked now?
pub fn is_due(glance: &Glance) -> bool {
    let Some(since) = glance.since else { return glance.led >= caution(glance) };
    let pause = PAUSE.saturating_mul(1 << glance.failures.min(10)).min(LONGEST);
    if since < pause {
        return false;
    }
    if glance.stage == Stage::Finalizing || glance.is_canceled || glance.failures > 0 {
        return true;
    }
    let differs = glance.shown != glance.recorded || glance.shown.have_ended();
    let is_missing = glance.there < glance.recorded.attempted;
    differs && (!is_missing || since >= MISSING)
}

/// How long a new leader leaves a Backup alone whose completion may have killed leaders before.
/// Such a Backup never ends as Failed for that, because its data is moved, but everything else
/// continues meanwhile.
fn caution(glance: &Glance) -> Duration {
    if glance.stage != Stage::Finalizing || glance.is_canceled || glance.runs.may_go_on() {
        return Duration::ZERO;
    }
    let more = glance.runs.in_vain.saturating_sub(MOST_RUNS).min(8);
    LONGEST.saturating_mul(1 << more)
}

#[cfg(test)]
mod tests;
