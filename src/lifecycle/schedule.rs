//! Creates a Backup at each time of each Schedule. What becomes of a Schedule is decided in
//! `berth_core::schedule`; everything that is remembered is in the Schedules' statuses and in the
//! names of their Backups.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::{Backup, Schedule, ScheduleStatus};
use berth_core::limits;
use berth_core::schedule::{self as core, BackupOrigin, ScheduleSettings, ScheduleStep, SkipReason};
use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use ring::hmac;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::Lifecycle;
use crate::cache::{Cache, SharedCache, Versioned};
use crate::certificates;
use crate::client::is_not_found;
use crate::events::{EventReason, Events};
use crate::patch::digest;
use crate::queue::BackupCache;
use crate::text::chain;
use crate::watch::{WatchEvent, is_older, of_namespace, reflect};
use crate::write::{self, WriteResult};
use cached::{CachedSchedule, DecidedOn};
use listed::ListedSchedules;
use metrics::ScheduleMetrics;
use retries::ScheduleRetries;
use unfinished::UnfinishedBackups;

mod cached;
mod listed;
pub mod metrics;
pub mod plans;
mod retries;
mod unfinished;

/// Schedules are checked this often even if nothing is due, because the clock may be set.
const PERIOD: Duration = Duration::from_secs(10);
/// Changes within this time are handled in one pass.
const SETTLE: Duration = Duration::from_millis(100);
/// How long before they are due many Schedules are listed, because their Backups would wait for
/// the list. It is a part of the time for which a list is used.
const AHEAD: Duration = Duration::from_secs(1);
/// How many Schedules are acted on at the same time, so that a thousand with the same time are soon
/// done.
const AT_ONCE: usize = 64;
/// The same for large Schedules, which come after the others, because each is then in memory
/// several times, with its Backup.
const LARGE_AT_ONCE: usize = 4;
/// The purpose of the key that the third names are derived with.
const PURPOSE: &[u8] = b"berth names of scheduled backups, version 1";
/// Why a Backup cannot be created is reported at the first attempt, and again after so many more,
/// because an Event is kept for an hour.
const TOLD_AGAIN: u32 = 30;
/// A backup that is created this much too late is reported as late.
const LATE: SignedDuration = SignedDuration::from_mins(1);

/// Never returns.
pub async fn run(lifecycle: &Lifecycle) {
    let scheduler = Scheduler::new(lifecycle, Box::new(Timestamp::now));
    tokio::join!(scheduler.follow(), scheduler.keep());
}

/// What remains to be done after a pass.
struct Rest {
    /// Time until something has to be done.
    pause: Duration,
    /// A Schedule waits for the end of a Backup.
    postponed: bool,
}

/// The result of one Schedule.
enum ScheduleResult {
    /// Nothing has to be written.
    Yes,
    /// This has to be written to it.
    Write(DecidedOn, Value),
    /// It is tried again later.
    Failed,
}

/// The result of creating a Backup.
enum CreationResult {
    /// The Schedule's own Backup exists.
    Ours,
    /// A Backup of that name exists that does not belong to the Schedule.
    Strangers,
    /// It could not be created, and why.
    Not(String),
}

struct Scheduler {
    lifecycle: Lifecycle,
    schedules: Api<Schedule>,
    backups: Api<Backup>,
    /// Untyped Backups, whatever they contain.
    anything: Api<DynamicObject>,
    store: Arc<BackupCache>,
    cache: SharedCache<Cache<String, CachedSchedule>>,
    settings: ScheduleSettings,
    /// UIDs of Backups that cannot be written, and that were reported to their Schedules.
    told: Mutex<BTreeSet<String>>,
    events: Events,
    metrics: ScheduleMetrics,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Scheduler {
    fn new(lifecycle: &Lifecycle, clock: Box<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        let api = |client: &kube::Client| client.clone();
        Self {
            schedules: Api::namespaced(api(&lifecycle.clients.call), &lifecycle.namespace),
            backups: Api::namespaced(api(&lifecycle.clients.call), &lifecycle.namespace),
            anything: Api::namespaced_with(
                api(&lifecycle.clients.call),
                &lifecycle.namespace,
                &ApiResource::erase::<Backup>(&()),
            ),
            store: Arc::clone(&lifecycle.backups),
            cache: SharedCache::default(),
            settings: lifecycle.schedule,
            told: Mutex::default(),
            events: lifecycle.events.clone(),
            metrics: lifecycle.schedule_metrics.clone(),
            clock,
            lifecycle: lifecycle.clone(),
        }
    }

    /// Fills the watch cache. Never returns.
    async fn follow(&self) {
        let schedules = of_namespace(&self.lifecycle.clients.watch, &self.lifecycle.namespace);
        let keep = |schedule: Schedule| (schedule.name_any(), CachedSchedule::of(&schedule));
        let observe =
            |event: WatchEvent<(String, CachedSchedule)>| self.cache.write(|cache| cache.observe(event));
        reflect(schedules, watcher::Config::default(), keep, observe).await;
    }

    /// Never returns. Acts only after it is known which Backups earlier leaders have created.
    async fn keep(&self) {
        let mut listed = self.lifecycle.known.changed();
        while !self.lifecycle.known.has_backups() {
            if listed.changed().await.is_err() {
                return;
            }
        }
        let mut schedules = self.cache.changed();
        let mut backups = self.store.changed();
        let mut retries = ScheduleRetries::default();
        let (mut known, mut prepared) = (BTreeSet::new(), None);
        loop {
            schedules.mark_unchanged();
            backups.mark_unchanged();
            let rest = self.pass(&mut retries, &mut known, &mut prepared).await;
            tokio::select! {
                _ = schedules.changed() => sleep(SETTLE).await,
                _ = backups.changed(), if rest.postponed => sleep(SETTLE).await,
                () = sleep(rest.pause) => {}
            }
        }
    }

    /// Checks all Schedules once, and does what is due. `prepared`: a list of those that are due
    /// soon.
    async fn pass(
        &self,
        retries: &mut ScheduleRetries,
        known: &mut BTreeSet<String>,
        prepared: &mut Option<ListedSchedules>,
    ) -> Rest {
        let items: Vec<CachedSchedule> = {
            let cache = self.cache.read();
            if !cache.is_synced() {
                return Rest { pause: PERIOD, postponed: false };
            }
            cache.values().cloned().collect()
        };
        let unfinished = self.unfinished();
        let now = (self.clock)();
        let mut rest = Rest { pause: PERIOD, postponed: false };
        retries.retain(items.iter().map(Versioned::uid));
        self.metrics.keep(&items, known, &self.lifecycle.metrics);
        self.tell_unwritable(&items);
        let (mut due, mut soon) = (Vec::new(), Vec::new());
        for item in &items {
            if let Some(pause) = retries.pause(item.uid()) {
                rest.pause = rest.pause.min(pause);
                continue;
            }
            match self.decide(&item.schedule, item.first, &unfinished, now) {
                ScheduleStep::Wait(next) => {
                    let Some(next) = next else { continue };
                    let left = next.duration_since(now).unsigned_abs();
                    let is_soon = left <= AHEAD;
                    rest.pause = rest.pause.min(if is_soon { left } else { left.saturating_sub(AHEAD) });
                    if is_soon && !item.is_large() {
                        soon.push(item);
                    }
                }
                ScheduleStep::Postpone => rest.postponed = true,
                _ => due.push(item),
            }
        }
        if due.is_empty() {
            let is_prepared = prepared.as_ref().is_some_and(|listed| listed.is_for(&soon));
            if !is_prepared {
                let begun = Instant::now();
                *prepared = Some(ListedSchedules::of(&self.lifecycle, &items, &soon).await);
                rest.pause = rest.pause.saturating_sub(begun.elapsed());
            }
            return rest;
        }
        let (large, others): (Vec<_>, Vec<_>) = due.into_iter().partition(|item| item.is_large());
        let listed = match prepared.take() {
            Some(listed) if listed.is_for(&others) => listed,
            _ => ListedSchedules::of(&self.lifecycle, &items, &others).await,
        };
        self.act_on(others, listed, AT_ONCE, &unfinished, retries).await;
        self.act_on(large, ListedSchedules::none(), LARGE_AT_ONCE, &unfinished, retries).await;
        // Another pass, because what is due next follows from what was written.
        Rest { pause: Duration::ZERO, ..rest }
    }

    /// Does what is due: first creates all Backups, then writes to the Schedules.
    async fn act_on(
        &self,
        due: Vec<&CachedSchedule>,
        mut listed: ListedSchedules,
        at_once: usize,
        unfinished: &UnfinishedBackups,
        retries: &mut ScheduleRetries,
    ) {
        let seen = &*retries;
        let acts = due.into_iter().map(|item| {
            let found = listed.take(&item.schedule.name);
            async move { (item.uid(), self.act(item, found, unfinished, seen.count(item.uid())).await) }
        });
        let (mut writes, mut failed) = (Vec::new(), Vec::new());
        let acts: Vec<_> = futures::stream::iter(acts).buffer_unordered(at_once).collect().await;
        for (uid, done) in acts {
            match done {
                ScheduleResult::Yes => retries.forget(uid),
                ScheduleResult::Write(schedule, change) => writes.push((uid, schedule, change)),
                ScheduleResult::Failed => failed.push(uid),
            }
        }
        let writes = writes
            .into_iter()
            .map(|(uid, schedule, change)| async move { (uid, self.write(&schedule, change).await) });
        let writes: Vec<_> = futures::stream::iter(writes).buffer_unordered(at_once).collect().await;
        for (uid, is_written) in writes {
            if is_written { retries.forget(uid) } else { failed.push(uid) }
        }
        for uid in failed {
            retries.failed(uid);
        }
    }

    fn decide(
        &self,
        schedule: &core::Schedule,
        first: Option<Timestamp>,
        unfinished: &UnfinishedBackups,
        now: Timestamp,
    ) -> ScheduleStep {
        let own = unfinished.get(&schedule.uid).map(Vec::as_slice).unwrap_or_default();
        schedule.decide_from(first, self.settings, own, now)
    }

    /// Decides on the Schedule as it is now, and creates the Backup that is due. `listed`: the
    /// Schedule, which is read only if the watch has shown a newer one. `tries`: how often this has
    /// failed.
    async fn act(
        &self,
        item: &CachedSchedule,
        listed: Option<Schedule>,
        unfinished: &UnfinishedBackups,
        tries: u32,
    ) -> ScheduleResult {
        let name = item.schedule.name.as_str();
        let read = match listed.filter(|found| !self.is_outdated(found)) {
            Some(found) => Ok(Ok(Some(found))),
            None => timeout(limits::WRITE, self.schedules.get_opt(name)).await,
        };
        let found = match read {
            Ok(Ok(Some(found))) => found,
            Ok(Ok(None)) => {
                self.cache.write_silently(|cache| cache.forget(name, item.uid()));
                return ScheduleResult::Yes;
            }
            Ok(Err(error)) => {
                warn!(schedule = name, error = chain(&error), "failed to read the Schedule");
                return ScheduleResult::Failed;
            }
            Err(_) => {
                warn!(schedule = name, "failed to read the Schedule: the API server takes too long");
                return ScheduleResult::Failed;
            }
        };
        let (schedule, now) = (found.decided(), (self.clock)());
        let change = match self.decide(&schedule, schedule.first(), unfinished, now) {
            ScheduleStep::Wait(_) | ScheduleStep::Postpone if self.seen(&found) => {
                return ScheduleResult::Yes;
            }
            // The Schedule was replaced by another one of its name, which the watch has not shown
            // yet.
            ScheduleStep::Wait(_) | ScheduleStep::Postpone => return ScheduleResult::Failed,
            ScheduleStep::Show => {
                let (phase, errors) = found.validity();
                if !errors.is_empty() {
                    warn!(schedule = name, ?phase, errors = errors.join("; "), "the Schedule has faults");
                }
                json!({"status": ScheduleStatus::validated(phase, &errors)})
            }
            ScheduleStep::SkipNow => {
                info!(schedule = name, "skips what is due now, because spec.skipImmediately says so");
                json!({"spec": {"skipImmediately": false}, "status": ScheduleStatus::skipped(now)})
            }
            ScheduleStep::Mend => {
                warn!(schedule = name, "the status is in the future: writing the present time in its place");
                let mend = |last: Option<Timestamp>| last.map(|last| last.min(now));
                let (backup, skipped) = (mend(schedule.last_backup), mend(schedule.last_skipped));
                json!({"status": ScheduleStatus::mended(backup, skipped)})
            }
            ScheduleStep::Create(tick) => match self.create(&found, &schedule, tick, tries).await {
                Some(change) => change,
                None => return ScheduleResult::Failed,
            },
            ScheduleStep::Record(tick) => json!({"status": ScheduleStatus::backed_up(tick)}),
            ScheduleStep::Skip(tick, why) => self.skip(&found, tick, why),
        };
        ScheduleResult::Write(DecidedOn::of(&found), change)
    }

    fn skip(&self, schedule: &Schedule, tick: Timestamp, why: SkipReason) -> Value {
        let note = format!("no backup of {tick}: {}", why.why());
        info!(schedule = %schedule.name_any(), %tick, why = why.why(), "skipped a time");
        self.events.tell_about(EventReason::TimeSkipped, schedule.object_ref(&()), note);
        self.metrics.skipped(why);
        json!({"status": ScheduleStatus::skipped(tick)})
    }

    /// Creates the Backup of a time, and returns what has to be recorded. `None`: it could not be
    /// created. `tries`: how many attempts have failed.
    async fn create(
        &self,
        found: &Schedule,
        schedule: &core::Schedule,
        tick: Timestamp,
        tries: u32,
    ) -> Option<Value> {
        let is_told = tries.is_multiple_of(TOLD_AGAIN);
        let mut backup = found.backup(tick);
        let first = backup.name_any();
        let made = || json!({"status": ScheduleStatus::backed_up(tick)});
        if self.lifecycle.known.is_made(&schedule.uid, &first, tick) {
            debug!(schedule = %schedule.name, %first, "an earlier leader made the Backup of that time");
            return Some(made());
        }
        let mut outcome = self.make(&backup, schedule, tick).await;
        let second = core::second_name(&first, &digest(&schedule.uid));
        if matches!(outcome, CreationResult::Strangers) {
            // For example a copy of another cluster's Backup, from a location that both use.
            warn!(
                schedule = %schedule.name, name = %first, %second,
                "a Backup of that name does not belong to the Schedule: its own gets another name"
            );
            if is_told {
                let note = format!(
                    "Backup {first} is there and does not belong to this schedule: the backup of {tick} is to be {second}"
                );
                self.events.tell_about(EventReason::NotScheduled, found.object_ref(&()), note);
            }
            backup.metadata.name = Some(second.clone());
            outcome = self.make(&backup, schedule, tick).await;
        }
        let is_taken = matches!(outcome, CreationResult::Strangers);
        let taken = format!("Backups {first} and {second} are there and do not belong to this schedule");
        if is_taken {
            outcome = match self.third_name(&schedule.uid, &first).await {
                Ok(third) => {
                    backup.metadata.name = Some(third);
                    self.make(&backup, schedule, tick).await
                }
                Err(why) => CreationResult::Not(why),
            };
        }
        let name = backup.name_any();
        let why = match outcome {
            CreationResult::Ours if is_taken => {
                let note = format!("{taken}: the backup of {tick} is {name}");
                warn!(schedule = %schedule.name, %name, "Backups of both names do not belong to the Schedule");
                self.events.tell_about(EventReason::NotScheduled, found.object_ref(&()), note);
                return Some(made());
            }
            CreationResult::Ours => return Some(made()),
            CreationResult::Strangers => {
                let note = format!("no backup of {tick}: {taken}, and neither does {name}");
                warn!(schedule = %schedule.name, %name, "a Backup of that name does not belong to the Schedule");
                self.events.tell_about(EventReason::NotScheduled, found.object_ref(&()), note);
                self.metrics.failed();
                return Some(json!({"status": ScheduleStatus::skipped(tick)}));
            }
            // The third name stays unknown until the Backup exists.
            CreationResult::Not(why) if is_taken => why.replace(&name, "…"),
            CreationResult::Not(why) => why,
        };
        let what = if is_taken { format!("{taken}: the backup of {tick}") } else { format!("Backup {name}") };
        warn!(schedule = %schedule.name, %what, %why, "failed to create a Backup");
        if tries == 0 {
            self.metrics.failed();
        }
        if is_told {
            let note = format!("{what} cannot be created, and is tried again: {why}");
            self.events.tell_about(EventReason::NotScheduled, found.object_ref(&()), note);
        }
        None
    }

    /// The name of the Backup where both others are taken: see [`core::third_name`].
    async fn third_name(&self, uid: &str, first: &str) -> Result<String, String> {
        let Lifecycle { clients, namespace, certificate_secret, .. } = &self.lifecycle;
        let secret = certificates::read(&clients.call, namespace, certificate_secret).await;
        let key = secret
            .and_then(|secret| certificates::derived_key(&secret, certificate_secret, PURPOSE))
            .map_err(|error| format!("its name cannot be made up: {}", chain(&*error)))?;
        let tag = hmac::sign(&key, format!("{uid}\n{first}").as_bytes());
        let tag: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(core::third_name(first, &tag))
    }

    /// Creates this Backup, unless it exists.
    async fn make(&self, backup: &Backup, schedule: &core::Schedule, tick: Timestamp) -> CreationResult {
        let name = backup.name_any();
        match write::create(&self.backups, backup).await {
            WriteResult::Written(written) => {
                // Otherwise the next pass could create another one before the watch shows this one.
                self.lifecycle.known.assume(&written);
                let late = (self.clock)().duration_since(tick) - schedule.offset();
                if late > LATE {
                    warn!(schedule = %schedule.name, %name, late_s = late.as_secs(), "created a Backup late");
                } else {
                    info!(schedule = %schedule.name, %name, "created a Backup");
                }
                self.metrics.created(late);
                CreationResult::Ours
            }
            WriteResult::Conflict(_) => match self.is_ours(&name, schedule, tick).await {
                Ok(true) => {
                    debug!(schedule = %schedule.name, %name, "the Backup is there already");
                    CreationResult::Ours
                }
                Ok(false) => CreationResult::Strangers,
                Err(why) => CreationResult::Not(why),
            },
            WriteResult::Gone(error) | WriteResult::Refused(error) => CreationResult::Not(chain(&error)),
            WriteResult::TimedOut => CreationResult::Not("the API server takes too long".to_owned()),
        }
    }

    /// Did berth create the existing Backup of this name for this time of the Schedule?
    async fn is_ours(&self, name: &str, schedule: &core::Schedule, tick: Timestamp) -> Result<bool, String> {
        let there = asked(self.anything.get(name)).await?;
        let found = BackupOrigin {
            mark: there.annotations().get(keys::SCHEDULE_UID).map(String::as_str),
            phase: there.data.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default(),
            generation: there.metadata.generation,
        };
        let created = there.metadata.creation_timestamp.as_ref().map(|time| time.0);
        Ok(found.is_of(&schedule.uid) && core::is_in_time(created, tick))
    }

    /// Writes to a Schedule, on the version that was decided on.
    async fn write(&self, on: &DecidedOn, change: Value) -> bool {
        let name = on.name.as_str();
        match write::patch(&self.schedules, on.write(), change).await {
            WriteResult::Written(written) => self.seen(&written),
            WriteResult::Conflict(_) => {
                debug!(schedule = %name, "the Schedule has changed: looking at it again");
                false
            }
            WriteResult::Gone(_) => {
                let uid = on.uid.as_deref().unwrap_or_default();
                self.cache.write_silently(|cache| cache.forget(name, uid));
                true
            }
            WriteResult::Refused(error) => {
                warn!(schedule = %name, error = chain(&error), "failed to write the status of the Schedule");
                false
            }
            WriteResult::TimedOut => {
                warn!(schedule = %name, "failed to write the status of the Schedule: the API server takes too long");
                false
            }
        }
    }

    /// Has the Schedule changed since it was listed? It may be paused by now. If the watch is
    /// behind the list, this is not known.
    fn is_outdated(&self, listed: &Schedule) -> bool {
        let cache = self.cache.read();
        cache.get(&listed.name_any()).is_none_or(|known| {
            Some(known.uid()) != listed.metadata.uid.as_deref()
                || is_older(
                    listed.metadata.resource_version.as_deref().unwrap_or_default(),
                    known.resource_version(),
                )
        })
    }

    /// Takes over the API server's answer. `false`: the watch cache does not have that Schedule any
    /// more, or not yet.
    fn seen(&self, schedule: &Schedule) -> bool {
        let name = schedule.name_any();
        self.cache.write_silently(|cache| cache.assume_known(name, CachedSchedule::of(schedule)))
    }
}

/// The answer about a Backup that existed a moment ago.
async fn asked<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, String> {
    match timeout(limits::WRITE, answer).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) if is_not_found(&error) => Err("it was there a moment ago".to_owned()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err("the API server takes too long".to_owned()),
    }
}

#[cfg(test)]
mod tests;
