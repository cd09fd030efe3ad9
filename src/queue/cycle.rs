//! One cycle of the queue: freeze a view, decide, act. Runs only while this process leads.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use berth_core::queue::{
    EndCause, EndLimits, EndWithoutRun, Plan, QueueView, RenumberBudget, plan, split_ends, starts,
};
use futures::StreamExt;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::BackupCache;
use super::gate::Stopped;
use super::reporter::QueueReporter;
use super::writer::QueueWriter;
use crate::events::EventReason;
use crate::health::Pulse;

/// A cycle runs at least this often, even if the watch shows no change.
const PERIOD: Duration = Duration::from_secs(5);
/// Backups that can start are started at once. Reasons and places of all others are worked out at
/// most this often.
const WHOLE: Duration = Duration::from_millis(200);
/// Pause while there is more to do.
const SOON: Duration = Duration::from_millis(500);
/// After this long without a start, positions may be corrected faster.
const CALM: Duration = Duration::from_secs(2);
const STARTS_AT_ONCE: usize = 8;
/// Failed ends are tried concurrently, so that all of them take no longer than one.
const ENDS: EndLimits = EndLimits { ends: 32, again: ENDS_AT_ONCE };
const ENDS_AT_ONCE: usize = 8;
/// Few, because nothing waits for positions, and starts would wait behind them.
const PLACES_AT_ONCE: usize = 2;
/// If a backup could start and nothing has moved for this long, the cached state of the cluster
/// must be wrong.
const WATCHDOG: Duration = Duration::from_secs(15);
/// A decision takes milliseconds; one that takes this long hangs.
const DECISION: Duration = Duration::from_secs(10);
/// A cycle that takes this long hangs, because each of its writes has a time-out.
const CYCLE: Duration = Duration::from_secs(300);

/// Failure reason of a canceled Backup.
pub const CANCELED: &str = "Canceled: berth.dev/cancel was set, or the Backup was deleted";

pub struct Cycle {
    store: Arc<BackupCache>,
    writer: QueueWriter,
    stopped: watch::Receiver<Option<Stopped>>,
    budget: RenumberBudget,
    reporter: QueueReporter,
    pulse: Pulse,
    /// When a backup was started last.
    started: Option<Instant>,
    /// Since when a backup should have started.
    overdue: Option<Instant>,
    /// Writes of positions under way, which nothing waits for.
    placing: JoinSet<()>,
}

impl Cycle {
    pub fn new(
        store: Arc<BackupCache>,
        writer: QueueWriter,
        stopped: watch::Receiver<Option<Stopped>>,
        reporter: QueueReporter,
        pulse: Pulse,
    ) -> Self {
        let budget = RenumberBudget::new(Timestamp::now());
        Self {
            store,
            writer,
            stopped,
            budget,
            reporter,
            pulse,
            started: None,
            overdue: None,
            placing: JoinSet::new(),
        }
    }

    /// Runs until `stop`. A write under way is completed, so that the next leader sees it.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut changed = self.store.changed();
        let mut looked: Option<Instant> = None;
        while !stop.is_cancelled() {
            changed.mark_unchanged();
            self.stopped.mark_unchanged();
            let begun = Instant::now();
            let beat = self.pulse.within(CYCLE);
            let mut pace = if self.store.is_synced() { self.start().await } else { PERIOD };
            let since = looked.map_or(WHOLE, |at| at.elapsed());
            if since >= WHOLE && self.store.is_synced() {
                pace = pace.min(self.look_at_all().await);
                looked = Some(Instant::now());
            } else {
                pace = pace.min(WHOLE.saturating_sub(since));
            }
            drop(beat);
            self.reporter.metrics.cycle.observe(begun.elapsed().as_secs_f64());
            // Both senders live as long as this cycle.
            tokio::select! {
                _ = timeout(pace, changed.changed()) => {}
                _ = self.stopped.changed() => {}
                () = stop.cancelled() => {}
            }
        }
        while self.placing.join_next().await.is_some() {}
    }

    fn view(&self) -> QueueView {
        let why = self.stopped.borrow().as_ref().map(|stopped| stopped.why.clone());
        self.store.view(why, Timestamp::now())
    }

    /// Starts the backups that can start, in order, a few writes at a time: backups that start
    /// together are in no conflict, and each has a slot.
    async fn start(&mut self) -> Duration {
        let view = self.view();
        let deciding = self.pulse.within(DECISION);
        let Plan { start: runnable, end, .. } = starts(&view);
        drop(deciding);
        // First, because a backup that supersedes another waits for that one's end.
        let left = self.end(&view, &end).await;
        let (writer, reporter) = (&self.writer, &self.reporter);
        let entries = runnable.iter().filter(|i| !left.contains(i)).filter_map(|i| view.backups.get(*i));
        let started = futures::stream::iter(entries)
            .map(|entry| async move { writer.start(entry).await.then_some(entry) })
            .buffered(STARTS_AT_ONCE)
            .fold(0, |count, started| async move {
                let Some(entry) = started else { return count };
                reporter.dequeued(entry, Timestamp::now());
                count + 1
            })
            .await;
        if started > 0 {
            self.started = Some(Instant::now());
        }
        self.watch_over(runnable.len(), started);
        if started == runnable.len() { PERIOD } else { SOON }
    }

    /// Ends the backups that must end, reports why the others wait, and writes as many positions as
    /// the budget allows.
    async fn look_at_all(&mut self) -> Duration {
        let view = self.view();
        let known: HashSet<&str> = view.backups.iter().map(|entry| entry.uid.as_str()).collect();
        let refusals = &self.store.refusals;
        refusals.keep(|uid| known.contains(uid) || view.unwritable.contains(uid));
        self.reporter.tell_unwritable(&refusals.lasting());
        let deciding = self.pulse.within(DECISION);
        let decided = plan(&view);
        drop(deciding);
        self.reporter.tell(&view, &decided);
        self.end(&view, &decided.end).await;
        let can_queue = self.stopped.borrow().as_ref().is_none_or(|stopped| stopped.can_queue);
        let more = can_queue && self.renumber(&view, &decided);
        if more || !decided.end.is_empty() { SOON } else { PERIOD }
    }

    /// Ends backups. Returns those that supersede one which could not be ended yet.
    async fn end(&self, view: &QueueView, ends: &[EndWithoutRun]) -> HashSet<usize> {
        let (writer, reporter, refusals) = (&self.writer, &self.reporter, &self.store.refusals);
        let end = async |end: &EndWithoutRun| {
            let entry = view.backups.get(end.backup)?;
            let (what, reason) = match &end.cause {
                EndCause::Canceled => (EventReason::Canceled, CANCELED.to_owned()),
                EndCause::Superseded { by } => {
                    let by = view.backups.get(*by).map(|entry| entry.name.as_str()).unwrap_or_default();
                    let reason =
                        format!("Superseded: {by}, a later backup of the same schedule, takes its place");
                    (EventReason::Superseded, reason)
                }
                EndCause::Refused { why } => (EventReason::Refused, why.join("; ")),
            };
            let ended = match &end.cause {
                EndCause::Refused { why } => writer.refuse(entry, why).await,
                EndCause::Canceled | EndCause::Superseded { .. } => writer.end(entry, &reason).await,
            };
            if ended {
                reporter.ended(entry, what, &reason);
            } else {
                refusals.failed(&entry.uid);
            }
            match &end.cause {
                EndCause::Superseded { by } if !ended => Some(*by),
                _ => None,
            }
        };
        // Not all at once, because a start may wait for a write.
        let (now, later) = split_ends(view, ends, ENDS);
        let left = later.iter().filter_map(|end| match &end.cause {
            EndCause::Superseded { by } => Some(*by),
            _ => None,
        });
        let failed = futures::stream::iter(now).map(end).buffer_unordered(ENDS_AT_ONCE);
        failed.filter_map(async |by| by).chain(futures::stream::iter(left)).collect().await
    }

    /// Writes positions. Returns whether more are wrong than the budget allows.
    fn renumber(&mut self, view: &QueueView, decided: &Plan) -> bool {
        while self.placing.try_join_next().is_some() {}
        if !self.placing.is_empty() {
            return true;
        }
        let now = Timestamp::now();
        let calm = self.started.is_none_or(|at| at.elapsed() >= CALM);
        // Each end moves everything behind it, so wrong positions wait for the ends, but not for an
        // end that has failed before, because there may always be one. Places that other decisions
        // wait for do not wait at all.
        let is_fresh = |end: &EndWithoutRun| {
            view.backups.get(end.backup).is_some_and(|entry| !view.failures.contains_key(&entry.uid))
        };
        let budget = if decided.end.iter().any(is_fresh) { 0 } else { self.budget.earn(now, calm) };
        let wrong = decided.renumber(view, usize::MAX).count();
        let writes: Vec<_> = decided.renumber(view, budget).collect();
        self.budget.spend(writes.len());
        let writes: Vec<_> = writes
            .iter()
            .filter_map(|waiting| {
                Some((Arc::clone(view.backups.get(waiting.backup)?), waiting.place, waiting.inherits))
            })
            .collect();
        let left = wrong > writes.len();
        if !writes.is_empty() {
            let writer = self.writer.clone();
            self.placing.spawn(async move {
                futures::stream::iter(&writes)
                    .for_each_concurrent(PLACES_AT_ONCE, |(entry, place, inherits)| {
                        writer.place(entry, *place, *inherits)
                    })
                    .await;
            });
        }
        left
    }

    /// If slots are free and a backup could start, but nothing moved: logs that, and has everything
    /// listed again.
    fn watch_over(&mut self, runnable: usize, started: usize) {
        if runnable == 0 || started > 0 {
            self.overdue = None;
            return;
        }
        let since = *self.overdue.get_or_insert_with(Instant::now);
        if since.elapsed() >= WATCHDOG {
            warn!(runnable, "backups could start, and none has started for long: listing all Backups again");
            self.reporter.metrics.watchdog_trips.inc();
            self.store.ask_for_relist();
            self.overdue = None;
        }
    }
}

#[cfg(test)]
mod tests;
