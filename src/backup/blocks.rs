//! Pods that have hooks, in blocks: what runs before each of them, what they use, they themselves, what runs after each of them. Those
//! that share a claim are one block, because it is stored while all of them are still. Blocks wait for what happens elsewhere, so they
//! are no work for the packers: `--item-block-worker-count` of them go on at one time.
//!
//! What has begun in a pod is undone in it, whatever becomes of the backup: when it ends early no block begins, and each one that
//! has begun goes on to its hooks after the pod. Should this process end instead, whoever takes the backup up finds the pod on
//! record (see [`super::frozen`]).
//!
//! A pod of a block is still until the last one is, so whatever may take long and freezes nothing comes before the first hook: all of them are
//! on record then, and checked at. And hooks begin in no other pod when the first one has been still for [`limits::BLOCK_STILL`].

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_core::hook::{Hook, Hooks, OnError, PodId, When};
use berth_core::limits;
use futures::StreamExt;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::archive::Batch;
use super::collect::Counters;
use super::exec::HookError;
use super::frozen::Frozen;
use super::hold::Held;
use super::hooks::{HookRunner, read_pod};
use super::list::Lister;
use super::log::About;

/// Blocks that may be put on record ahead of a worker that is free for them: otherwise each worker would wait for that write.
const AHEAD: usize = 32;
/// Pods on record at one time, in whatever blocks: all of them go into one annotation. No fewer than blocks of one pod at one time.
const ON_RECORD: u32 = 512;
/// How long a hook before a pod is waited for when the backup ends early. Were it left at once, what it freezes could freeze
/// behind the hook that thaws it.
const LAST_HOOK: Duration = Duration::from_secs(30);
/// How long one pod is checked at once more while another one of its block is still.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How much later hooks after a pod are run once more that failed behind one that may go on in its container.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Blocks<'a> {
    pub runner: HookRunner<'a>,
    pub lister: Lister,
    pub frozen: &'a Frozen,
    pub counters: &'a Counters,
    pub batches: mpsc::Sender<Batch>,
    /// The backup ends early.
    pub ending: &'a CancellationToken,
    pub workers: usize,
}

/// What went before a pod is stored.
#[derive(Default)]
struct Before {
    is_stored: bool,
    /// There may be something to be undone.
    has_begun: bool,
    /// And it may be done only later.
    may_go_on: bool,
}

/// How long pods whose annotations ask for hooks kept workers busy, by namespace.
type Spent = Mutex<HashMap<String, Duration>>;

/// One pod of a block, when the hooks before all of them have run.
struct Begun {
    id: PodId,
    hooks: Hooks,
    container: Option<String>,
    before: Before,
}

impl Blocks<'_> {
    /// Until there are no more pods, or the backup ends early. Nothing is going on in any pod when it returns.
    pub async fn run(self, mut held: mpsc::Receiver<Vec<Held>>) {
        let (slots, records) = (Semaphore::new(self.workers), Semaphore::new(ON_RECORD as usize));
        let spent = Spent::default();
        let (all, slots, records, spent) = (&self, &slots, &records, &spent);
        let blocks = futures::stream::poll_fn(|context| held.poll_recv(context));
        let blocks = blocks.take_until(self.ending.cancelled());
        let at_once = self.workers + self.workers.min(AHEAD);
        blocks.for_each_concurrent(at_once, |block| all.block(block, slots, records, spent)).await;
    }

    async fn block(&self, block: Vec<Held>, slots: &Semaphore, records: &Semaphore, spent: &Spent) {
        let count = u32::try_from(block.len()).unwrap_or(ON_RECORD).min(ON_RECORD);
        // Nobody closes them.
        let Ok(_records) = records.acquire_many(count).await else { return };
        // One after the other, as they came: whoever asks first has the next slot.
        let on_record = join_all(block.iter().map(|held| self.record(held)));
        let (on_record, slot) = tokio::join!(on_record, slots.acquire());
        let Ok(_slot) = slot else { return };
        if self.is_ending() {
            return;
        }
        let checked = self.check_pods(&block, on_record, spent).await;
        let mut begun = Vec::new();
        // Since when one of them is.
        let mut still = None;
        for (held, checked) in block.iter().zip(checked) {
            let before = self.begin(held, checked, still, spent).await;
            let is_still = before.has_begun && !(held.hooks.pre.is_empty() || held.hooks.post.is_empty());
            if is_still {
                still.get_or_insert_with(Instant::now);
            }
            begun.push(before);
        }
        // Here the pods are as still as their hooks make them: the place for the data of their volumes. All objects were read before, so
        // that no pod is kept still for as long as the store is away.
        let (mut batches, mut pods) = (Vec::new(), Vec::new());
        let (mut rooms, mut overs, mut undone) = (Vec::new(), Vec::new(), Vec::new());
        for (held, before) in block.into_iter().zip(begun) {
            let Held { kind, page, item, id, hooks, container, used, room, over } = held;
            let (packed, is_packed) = over.is_some().then(oneshot::channel).unzip();
            // Though the pod itself be left out.
            batches.extend(used.with);
            if before.is_stored {
                pods.push(Batch { kind, page, items: vec![item], packed });
            } else if !self.is_ending() {
                self.runner.tally.leave_out(&id);
                self.counters.total.fetch_sub(1, Ordering::Relaxed);
            }
            rooms.push(room);
            overs.push((over, is_packed));
            undone.push(Begun { id, hooks, container, before });
        }
        batches.append(&mut pods);
        let store = async {
            for batch in batches {
                tokio::select! {
                    // Whoever does not take it any more ends the backup.
                    _ = self.batches.send(batch) => {}
                    () = self.ending.cancelled() => {}
                }
            }
            drop(rooms);
        };
        tokio::join!(store, self.undo(&undone, spent));
        for (over, is_packed) in overs {
            if let Some(is_packed) = is_packed {
                tokio::select! {
                    // If it is left out nobody says so.
                    _ = is_packed => {}
                    () = self.ending.cancelled() => {}
                }
            }
            drop(over);
        }
    }

    /// The hooks before one pod, if they may begin now. `still`: since when another one of its block is.
    async fn begin(
        &self,
        held: &Held,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
        spent: &Spent,
    ) -> Before {
        if self.is_ending() {
            return Before::default();
        }
        let begun = Instant::now();
        let before = self.before(held, checked, still, spent).await;
        if held.hooks.is_annotated {
            spend(spent, &held.id.namespace, begun.elapsed());
        }
        before
    }

    /// The hooks after all pods of a block, side by side: no pod is kept still for what becomes of another one.
    async fn undo(&self, block: &[Begun], spent: &Spent) {
        let begun = Instant::now();
        let each = block.iter().map(|pod| async move {
            if pod.before.has_begun {
                self.after(&pod.id, &pod.hooks, pod.container.as_deref(), pod.before.may_go_on).await;
            }
            self.frozen.remove(&pod.id);
        });
        join_all(each).await;
        if let Some(pod) = block.iter().find(|pod| pod.hooks.is_annotated) {
            spend(spent, &pod.id.namespace, begun.elapsed());
        }
    }

    fn is_ending(&self) -> bool {
        self.ending.is_cancelled() || self.batches.is_closed()
    }

    /// Puts it on record if anything is to be undone in it.
    async fn record(&self, held: &Held) -> Result<(), HookError> {
        if held.hooks.post.is_empty() {
            return Ok(());
        }
        tokio::select! {
            added = self.frozen.add(&held.id) => added,
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    /// All pods of a block as they are now, side by side. Not before their turn has come: others may have their names by then.
    async fn check_pods(
        &self,
        block: &[Held],
        on_record: Vec<Result<(), HookError>>,
        spent: &Spent,
    ) -> Vec<Result<bool, HookError>> {
        let begun = Instant::now();
        let each = block.iter().zip(on_record);
        let checked = join_all(each.map(|(held, on_record)| self.check_pod(held, on_record, spent))).await;
        if let Some(held) = block.iter().find(|held| held.hooks.is_annotated) {
            spend(spent, &held.id.namespace, begun.elapsed());
        }
        checked
    }

    /// Can its hooks be run? `false`: it has come to its end since it was listed, and nothing can run in it.
    async fn check_pod(
        &self,
        held: &Held,
        on_record: Result<(), HookError>,
        spent: &Spent,
    ) -> Result<bool, HookError> {
        on_record?;
        if self.is_spent(held, spent) {
            // Nobody asks for more.
            return Ok(false);
        }
        tokio::select! {
            found = read_pod(&self.lister, &held.id) => found.map(|pod| !pod.has_ended()),
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    async fn before(
        &self,
        held: &Held,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
        spent: &Spent,
    ) -> Before {
        // Those before it may have taken the rest of that time.
        if self.is_spent(held, spent) {
            return Before { is_stored: !held.hooks.may_leave_out(), ..Before::default() };
        }
        match self.check_pod_again(held, checked, still).await {
            Ok(true) => self.run_before(held, still).await,
            Ok(false) => Before { is_stored: true, ..Before::default() },
            Err(error) => Before { is_stored: self.refuse(held, error).await, ..Before::default() },
        }
    }

    /// While another pod of its block is still it may have been made anew: a hook would run in the one that has its name now, and nobody
    /// would find that one on record. Asked once, because the other one waits.
    async fn check_pod_again(
        &self,
        held: &Held,
        checked: Result<bool, HookError>,
        still: Option<Instant>,
    ) -> Result<bool, HookError> {
        if still.is_none() || !matches!(checked, Ok(true)) {
            return checked;
        }
        tokio::select! {
            found = timeout(LOOK_AGAIN, read_pod(&self.lister, &held.id)) => {
                found.map_err(|_| HookError::TooLong(LOOK_AGAIN))?.map(|pod| !pod.has_ended())
            }
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    /// Has its namespace had all the time that annotations may take? That is told once.
    fn is_spent(&self, held: &Held, spent: &Spent) -> bool {
        let most = limits::ANNOTATED_HOOKS;
        if !held.hooks.is_annotated {
            return false;
        }
        let mut spent = spent.lock();
        let Some(time) = spent.get_mut(&held.id.namespace).filter(|time| **time >= most) else {
            return false;
        };
        if *time < Duration::MAX {
            *time = Duration::MAX;
            let message = format!(
                "the hooks that annotations of pods ask for have taken {} minutes, and those of further pods are not run: spec.hooks of a Backup may take longer",
                most.as_secs() / 60
            );
            self.runner.log.lasting_error(&About::Namespace(&held.id.namespace), "pods", &message);
        }
        true
    }

    /// None of its hooks can be run: told once. Is it stored?
    async fn refuse(&self, held: &Held, error: HookError) -> bool {
        let Hooks { pre, post, .. } = &held.hooks;
        let first = pre.first().map(|hook| (When::Pre, hook));
        if let Some((when, hook)) = first.or_else(|| post.first().map(|hook| (When::Post, hook))) {
            let _ = self.runner.tell(when, hook, &held.id, async { Err(error) }).await;
        }
        !held.hooks.may_leave_out()
    }

    /// Runs the hooks before the pod, up to one without which it is not stored.
    async fn run_before(&self, held: &Held, still: Option<Instant>) -> Before {
        let mut before = Before { has_begun: held.hooks.pre.is_empty(), ..Before::default() };
        for hook in &held.hooks.pre {
            if self.is_ending() {
                return before;
            }
            let run = self.run_one_before(held, hook, still, &mut before.has_begun);
            let ran = self.runner.tell(When::Pre, hook, &held.id, run).await;
            if let Err(error) = ran {
                before.may_go_on |= error.may_go_on();
                if hook.on_error == OnError::Fail {
                    return before;
                }
            }
        }
        before.is_stored = !self.is_ending();
        before
    }

    async fn run_one_before(
        &self,
        held: &Held,
        hook: &Hook,
        still: Option<Instant>,
        has_begun: &mut bool,
    ) -> Result<(), HookError> {
        let is_late = || still.is_some_and(|since| since.elapsed() >= limits::BLOCK_STILL);
        if !(held.hooks.post.is_empty() || is_late()) {
            // What is on record may be undone already, by somebody who takes this process for dead.
            tokio::select! {
                renewed = self.frozen.renew() => renewed?,
                () = self.ending.cancelled() => return Err(HookError::Ended),
            }
        }
        if is_late() {
            return Err(HookError::TooLate);
        }
        *has_begun = true;
        tokio::select! {
            done = self.runner.exec.exec(&held.id, held.container.as_deref(), hook) => done,
            () = self.ended(LAST_HOOK) => Err(HookError::Ended),
        }
    }

    async fn after(&self, pod: &PodId, hooks: &Hooks, container: Option<&str>, may_go_on: bool) {
        let again = may_go_on.then_some(AGAIN);
        tokio::select! {
            // What could not be run by now is told, and there is nobody else to try it.
            _ = self.runner.run_after(&hooks.post, pod, container, again) => {}
            () = self.ended(limits::LAST_HOOKS) => self.runner.tell_unended(pod),
        }
    }

    /// So much later than the backup ended early.
    async fn ended(&self, later: Duration) {
        tokio::select! {
            () = self.ending.cancelled() => {}
            () = self.batches.closed() => {}
        }
        sleep(later).await;
    }
}

fn spend(spent: &Spent, namespace: &str, took: Duration) {
    let mut spent = spent.lock();
    let time = spent.entry(namespace.to_owned()).or_default();
    *time = time.saturating_add(took);
}

#[cfg(test)]
mod tests;
