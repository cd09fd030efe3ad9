//! What becomes of a Schedule now: the backup of a time, a time without a backup, or nothing.
//!
//! **One backup for each time.** The name of a backup follows from the Schedule and from the time
//! that it is for, and not from the moment of its creation. So a leader that died after the create
//! and before it recorded that, and two leaders at once, create the same object, and the API server
//! takes it once. Times that passed while nobody led get one backup together, for the last of them,
//! as in Velero.
//!
//! That name can be foretold, so whoever creates Backups could have taken it. A Backup that is
//! there under a name of the time counts as the Schedule's own only if berth made it
//! ([`BackupOrigin::is_of`]). Otherwise the own one gets a second name, and then one that only
//! berth can foretell.
//!
//! The times after one follow from what is recorded in the status: `lastBackup` (the time that the
//! last backup was for) or `lastSkipped`, whichever is later, and the creation of the Schedule
//! before there is either.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::cron::{Cron, CronFault};
use crate::namespace::NamespaceSet;
use crate::queue::QueuePhase;

pub mod preview;

/// Most backups of one Schedule that have not ended, so that a queue that stands still does not
/// fill the API server.
const UNFINISHED: usize = 100;
/// Length of the tag of a third name.
const TAG: usize = 20;
/// A status that is further in the future than this was written by a clock that was wrong.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);

/// When a new Schedule has its first backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstRun {
    /// At the first time of its expression, as in today's Velero.
    #[default]
    NextTick,
    /// When it is created, as in Velero 1.6.
    AtOnce,
}

/// The settings of the controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScheduleSettings {
    pub first_run: FirstRun,
    /// The value for Schedules without `spec.skipImmediately`.
    pub skip_immediately: bool,
}

/// What becomes of a time at which earlier backups of the Schedule have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concurrency {
    /// Its backup is created once none of them is new or running, as in Velero. Those that only
    /// wait in the queue do not count.
    #[default]
    Postpone,
    /// Its backup is created, and the queue decides when it runs.
    Allow,
    /// It has no backup.
    Forbid,
}

/// The part of a Schedule that is decided on.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub name: String,
    pub uid: String,
    pub cron: Result<Cron, CronFault>,
    pub paused: bool,
    pub skip_immediately: Option<bool>,
    pub created_at: Timestamp,
    pub last_backup: Option<Timestamp>,
    pub last_skipped: Option<Timestamp>,
    /// Does its status show whether it is valid, and why not?
    pub is_shown: bool,
    pub concurrency: Concurrency,
    /// A time that is missed by more than this has no backup.
    pub deadline: Option<SignedDuration>,
    /// Most that its backups are created after their times.
    pub jitter: SignedDuration,
}

/// Why a time has no backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Earlier backups have not ended.
    Overlap,
    /// It was missed by more than the deadline.
    Late,
}

impl SkipReason {
    /// In words, after the time.
    pub fn why(self) -> &'static str {
        match self {
            Self::Overlap => "an earlier backup of the schedule has not ended",
            Self::Late => "it was missed by more than the starting deadline",
        }
    }
}

/// A backup of a Schedule that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedBackup {
    pub name: String,
    pub phase: QueuePhase,
    /// Its objects are stored, and its data is still moved, so it has left the queue.
    pub is_stored: bool,
    /// The API server has refused every write to it for so long that it may never end. The Schedule
    /// goes on without it, because otherwise whoever makes one Backup as large as the API server
    /// takes would stop all later ones.
    pub is_given_up: bool,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleStep {
    /// Nothing before this time. `None`: nothing until the Schedule changes.
    Wait(Option<Timestamp>),
    /// Nothing until a backup of the Schedule ends.
    Postpone,
    /// Write to the status whether the Schedule is valid.
    Show,
    /// `spec.skipImmediately` is set: take it back, and record now as skipped.
    SkipNow,
    /// The status is in the future, so the Schedule would be silent: write now in its place.
    Mend,
    /// Create the backup of this time, and record it.
    Create(Timestamp),
    /// The backup of this time is there: record it.
    Record(Timestamp),
    /// Record that this time has no backup.
    Skip(Timestamp, SkipReason),
}

impl Schedule {
    /// Decides. `unfinished`: its backups that have not ended.
    pub fn decide(
        &self,
        settings: ScheduleSettings,
        unfinished: &[UnfinishedBackup],
        now: Timestamp,
    ) -> ScheduleStep {
        self.decide_from(self.first(), settings, unfinished, now)
    }

    /// [`Schedule::decide`] where [`Schedule::first`] is known: the search for it goes through up
    /// to five years of days, and there may be many thousand Schedules.
    pub fn decide_from(
        &self,
        first: Option<Timestamp>,
        settings: ScheduleSettings,
        unfinished: &[UnfinishedBackup],
        now: Timestamp,
    ) -> ScheduleStep {
        if self.paused {
            return ScheduleStep::Wait(None);
        }
        if !self.is_shown {
            return ScheduleStep::Show;
        }
        let Ok(cron) = &self.cron else { return ScheduleStep::Wait(None) };
        if self.skip_immediately.unwrap_or(settings.skip_immediately) {
            return ScheduleStep::SkipNow;
        }
        let ahead = now.saturating_add(AHEAD).unwrap_or(Timestamp::MAX);
        if [self.last_backup, self.last_skipped].into_iter().flatten().any(|at| at > ahead) {
            return ScheduleStep::Mend;
        }
        let Some(tick) = self.due(cron, first, settings, now) else {
            return ScheduleStep::Wait(first.and_then(|first| first.saturating_add(self.offset()).ok()));
        };
        let name = backup_name(&self.name, tick);
        if unfinished.iter().any(|other| is_of_time(&other.name, &name)) {
            return ScheduleStep::Record(tick);
        }
        let missed = now.duration_since(tick) - self.offset();
        if self.deadline.is_some_and(|deadline| missed > deadline) {
            return ScheduleStep::Skip(tick, SkipReason::Late);
        }
        let counted = || unfinished.iter().filter(|backup| !backup.is_given_up);
        let is_open = counted().count() > 0;
        // As with Velero, no time waits for data that is moved.
        let is_run = |one: &UnfinishedBackup| matches!(one.phase, QueuePhase::New | QueuePhase::InProgress);
        let is_busy = counted().any(|one| is_run(one) && !one.is_stored);
        match self.concurrency {
            Concurrency::Forbid if is_open => ScheduleStep::Skip(tick, SkipReason::Overlap),
            // Those that are given up count here, because each of them still fills the API server.
            _ if unfinished.len() >= UNFINISHED => ScheduleStep::Postpone,
            Concurrency::Postpone if is_busy => ScheduleStep::Postpone,
            _ => ScheduleStep::Create(tick),
        }
    }

    /// The time after which the next one counts.
    fn reference(&self) -> Timestamp {
        let last = self.last_backup.unwrap_or(self.created_at);
        self.last_skipped.map_or(last, |skipped| skipped.max(last))
    }

    /// The first of its times that its status does not record. `None`: there is none within five
    /// years.
    pub fn first(&self) -> Option<Timestamp> {
        self.cron.as_ref().ok()?.next(self.reference())
    }

    /// The last time that has come and is not recorded.
    fn due(
        &self,
        cron: &Cron,
        first: Option<Timestamp>,
        settings: ScheduleSettings,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let until = now.saturating_sub(self.offset()).unwrap_or(Timestamp::MIN);
        let has_come = first.is_some_and(|first| first <= until);
        let tick = if has_come { cron.last_until(self.reference(), until) } else { None };
        let is_first = self.last_backup.is_none() && self.last_skipped.is_none();
        let at_once = is_first && settings.first_run == FirstRun::AtOnce && self.created_at <= now;
        tick.or(at_once.then_some(self.created_at))
    }

    /// How much later than its times its backups are created: always the same, and different for
    /// each Schedule.
    pub fn offset(&self) -> SignedDuration {
        let most = u64::try_from(self.jitter.as_secs()).unwrap_or_default();
        let seconds = most.checked_add(1).map_or(0, |count| hash(&self.uid) % count);
        SignedDuration::from_secs(i64::try_from(seconds).unwrap_or_default())
    }

    /// When its backups of these namespaces will be created. `None`: never, as long as it is as it
    /// is.
    pub fn planned(&self, namespaces: Arc<NamespaceSet>) -> Option<preview::PlannedSchedule> {
        let cron = self.cron.as_ref().ok().filter(|_| !self.paused)?.clone();
        let (name, reference, offset) = (self.name.clone(), self.reference(), self.offset());
        Some(preview::PlannedSchedule { name, cron, reference, offset, namespaces })
    }

    /// From [`Schedule::first`] to the time after it.
    pub fn interval(&self, first: Timestamp) -> Option<SignedDuration> {
        Some(self.cron.as_ref().ok()?.next(first)?.duration_since(first))
    }
}

/// The name of the backup for this time, in Velero's form.
pub fn backup_name(schedule: &str, tick: Timestamp) -> String {
    format!("{schedule}-{}", tick.strftime("%Y%m%d%H%M%S"))
}

/// The name of the backup for a time where a backup of [`backup_name`] is there that is not of the
/// Schedule. It is always the same, too. `digest`: of the Schedule's UID, in hexadecimal.
pub fn second_name(name: &str, digest: &str) -> String {
    format!("{name}-{}", digest.get(..5).unwrap_or(digest))
}

/// The name where both others are there and not of the Schedule. `tag`: of the Schedule's UID and
/// of the first name, in hexadecimal, by a key that only berth has. So it is always the same, and
/// nobody else can take it beforehand.
pub fn third_name(name: &str, tag: &str) -> String {
    format!("{name}-{}", tag.get(..TAG).unwrap_or(tag))
}

/// The name as others are told it before its Backup is there: without what only berth can foretell,
/// because whoever knew that could take the name.
pub fn told_name(name: &str) -> String {
    let is_tag = |tag: &str| tag.len() == TAG && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name.rsplit_once('-') {
        Some((rest, tag)) if is_tag(tag) => format!("{rest}-…"),
        _ => name.to_owned(),
    }
}

/// Is this one of the names of the backup whose first name this is?
pub fn is_of_time(name: &str, first: &str) -> bool {
    name.strip_prefix(first).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Can what was created then be the backup of this time? A clock that was ahead creates one long
/// before, which has nothing of what came until then. `created`: by the API server's clock.
pub fn is_in_time(created: Option<Timestamp>, tick: Timestamp) -> bool {
    created.is_none_or(|created| tick.duration_since(created) <= AHEAD)
}

/// A Backup that is there under a name of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupOrigin<'a> {
    /// `berth.dev/schedule-uid`, which nobody but berth can write on a Backup that has not ended,
    /// and which berth's sync does not bring.
    pub mark: Option<&'a str>,
    pub phase: &'a str,
    /// `metadata.generation`: the API server counts what changes in spec and status.
    pub generation: Option<i64>,
}

impl BackupOrigin<'_> {
    /// Has it had its end from the moment of its creation? So has what came from a store, and
    /// nobody knows who wrote that.
    pub fn came_finished(&self) -> bool {
        let over = ["Completed", "PartiallyFailed", "Failed", "FailedValidation", "Deleting"];
        over.contains(&self.phase) && self.generation == Some(1)
    }

    /// Has berth made it for the Schedule with this UID? Neither its label nor its owner says that,
    /// because whoever creates Backups may write both. One that is being deleted says nothing,
    /// because it may have come from a store.
    pub fn is_of(&self, uid: &str) -> bool {
        self.mark == Some(uid) && !self.came_finished() && self.phase != "Deleting"
    }
}

/// FNV-1a: the same in every version of berth, and spread well enough.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
