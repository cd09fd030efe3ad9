//! Pods with hooks, in blocks: the hooks before each pod, what the pods use, the pods themselves,
//! and the hooks after each pod. Pods that share a claim form one block, because the claim's volume
//! is stored while all of them are frozen. Blocks wait for commands in containers, so they do not
//! run on the packers; `--item-block-worker-count` blocks run at one time.
//!
//! What hooks have begun in a pod is undone there, whatever becomes of the backup: when the backup
//! ends early no block begins, and each block that has begun continues to its hooks after the pods.
//! If this process dies instead, the leader that takes the backup up finds the pods recorded on the
//! Backup (see [`super::frozen`]).
//!
//! A pod stays frozen until the last pod of its block is stored, so everything that may take long
//! and freezes nothing happens before the first hook: all pods of the block are recorded and read
//! by then. When the first pod has been frozen for [`limits::BLOCK_STILL`], hooks begin in no other
//! pod.
//!
//! Hooks after a pod that cannot be started, because its kubelet is away, are tried for
//! [`limits::LAST_HOOKS`], as those of a dead run are. After a minute the block gives its worker to
//! others and goes on trying beside them; its pods stay on record until the end.

mod before;

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_core::hook::{Hooks, PodId};
use berth_core::limits;
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::archive::Batch;
use super::exec::HookError;
use super::frozen::FrozenPods;
use super::hold::HeldPod;
use super::hooks::{HookRunner, Insistence};
use super::list::Lister;
use super::progress::Counters;
use super::volumes::{PlannedClaim, RunVolumes};
use before::PreHookResult;

/// Blocks that may be recorded ahead of a free worker: otherwise each worker would wait for that
/// write.
const AHEAD: usize = 32;
/// Pods recorded at one time, in all blocks together, because all of them go into one annotation.
/// At least as many as blocks of one pod that run at one time.
const ON_RECORD: u32 = 512;
/// Delay before hooks after a pod that failed are run once more, if a hook before the pod may still
/// be running in its container.
const AGAIN: Duration = Duration::from_secs(30);

pub struct Blocks<'a> {
    pub runner: HookRunner<'a>,
    pub lister: Lister,
    pub frozen: &'a FrozenPods,
    pub counters: &'a Counters,
    pub volumes: &'a RunVolumes<'a>,
    pub batches: mpsc::Sender<Batch>,
    /// Cancelled when the backup ends early.
    pub ending: &'a CancellationToken,
    /// Cancelled when another process has the backup, which finds on record what is frozen.
    pub lost: &'a CancellationToken,
    /// Cancelled when this process is to end: the next leader finds on record what is still frozen.
    pub stop: &'a CancellationToken,
    pub workers: usize,
}

/// What blocks wait for before they begin, in this order.
struct Queues {
    places: Semaphore,
    /// Pods on record.
    records: Semaphore,
    slots: Semaphore,
}

/// What a block keeps from others.
struct Busy<'b> {
    _place: SemaphorePermit<'b>,
    _slot: SemaphorePermit<'b>,
}

/// By namespace, how long pods whose annotations ask for hooks kept workers busy.
type Spent = Mutex<HashMap<String, Duration>>;

/// A pod of a block after the hooks before all pods of the block have run.
struct BlockPod {
    id: PodId,
    hooks: Hooks,
    container: Option<String>,
    before: PreHookResult,
}

impl Blocks<'_> {
    /// Runs until there are no more pods or the backup ends early. When it returns, no hook is
    /// running in any pod.
    pub async fn run(self, mut held: mpsc::Receiver<Vec<HeldPod>>) {
        let queues = Queues {
            places: Semaphore::new(self.workers + self.workers.min(AHEAD)),
            records: Semaphore::new(ON_RECORD as usize),
            slots: Semaphore::new(self.workers),
        };
        let spent = Spent::default();
        let (all, queues, spent) = (&self, &queues, &spent);
        let blocks = futures::stream::poll_fn(|context| held.poll_recv(context));
        let blocks = blocks.take_until(self.ending.cancelled());
        // Those that wait for a place, and those that have given theirs back, cost little.
        blocks.for_each_concurrent(ON_RECORD as usize, |block| all.block(block, queues, spent)).await;
    }

    fn block<'s>(
        &'s self,
        mut block: Vec<HeldPod>,
        queues: &'s Queues,
        spent: &'s Spent,
    ) -> BoxFuture<'s, ()> {
        async move {
            // In the order in which they came, because semaphores are fair. None is ever closed.
            let Ok(place) = queues.places.acquire().await else { return };
            if self.is_ending() {
                return;
            }
            let cuts: Vec<PlannedClaim> =
                block.iter_mut().flat_map(|held| std::mem::take(&mut held.used.cuts)).collect();
            // Here, because nobody may wait for it while pods are frozen.
            let admit = async {
                let files: Vec<_> = block.iter().filter_map(|held| held.used.files.as_ref()).collect();
                join_all(files.into_iter().map(|pod| self.volumes.prepare_files(pod))).await;
                self.volumes.admit(cuts).await
            };
            let mut cuts = tokio::select! {
                cuts = admit => cuts,
                () = self.ended(Duration::ZERO) => return,
            };
            let count = u32::try_from(block.len()).unwrap_or(ON_RECORD).min(ON_RECORD);
            let Ok(_records) = queues.records.acquire_many(count).await else { return };
            let on_record = join_all(block.iter().map(|held| self.record(held)));
            let (on_record, slot) = tokio::join!(on_record, queues.slots.acquire());
            let Ok(slot) = slot else { return };
            if self.is_ending() {
                // Nothing has begun in these pods, so nobody has to undo anything.
                block.iter().for_each(|held| self.frozen.remove(&held.id));
                return;
            }
            let look_back = async {
                tokio::select! {
                    () = self.volumes.look_back(&mut cuts) => {}
                    () = self.ended(Duration::ZERO) => {}
                }
            };
            let (checked, ()) = tokio::join!(self.check_pods(&block, on_record, spent), look_back);
            let mut begun = Vec::new();
            // Since when a pod of the block is frozen.
            let mut still = None;
            for (held, checked) in block.iter().zip(checked) {
                let before = self.begin(held, checked, still, spent).await;
                let is_still = before.has_begun && !(held.hooks.pre.is_empty() || held.hooks.post.is_empty());
                if is_still {
                    still.get_or_insert_with(Instant::now);
                }
                begun.push(before);
            }
            // All objects were read before, so no pod stays frozen while the API server is away.
            let (mut batches, mut pods) = (Vec::new(), Vec::new());
            let mut files = Vec::new();
            let (mut rooms, mut overs, mut undone) = (Vec::new(), Vec::new(), Vec::new());
            for (held, before) in block.into_iter().zip(begun) {
                let HeldPod { kind, page, item, id, hooks, container, used, room, over } = held;
                let (packed, is_packed) = over.is_some().then(oneshot::channel).unzip();
                // Even if the pod itself is left out.
                batches.extend(used.with);
                if before.is_stored {
                    files.extend(used.files);
                    pods.push(Batch { kind, page, items: vec![item], packed });
                } else if !self.is_ending() {
                    self.runner.tally.leave_out(&id);
                    self.counters.total.fetch_sub(1, Ordering::Relaxed);
                }
                rooms.push(room);
                overs.push((over, is_packed));
                undone.push(BlockPod { id, hooks, container, before });
            }
            batches.append(&mut pods);
            let read: Vec<String> = files.iter().map(|pod| pod.uid.clone()).collect();
            // Here the pods are frozen.
            let is_taken = tokio::select! {
                () = Box::pin(self.volumes.take_frozen(cuts, files)) => true,
                () = self.ending.cancelled() => false,
                () = self.batches.closed() => false,
            };
            if !is_taken {
                // Another run would take these files for those of frozen pods, and the data of pods
                // that are stored for whole.
                self.volumes.give_up_files(&read).await;
                batches.clear();
            }
            let store = async {
                for batch in batches {
                    tokio::select! {
                        // A closed channel means that the backup ends early.
                        _ = self.batches.send(batch) => {}
                        () = self.ending.cancelled() => {}
                    }
                }
                drop(rooms);
            };
            let (undoing, is_undone) = oneshot::channel();
            let release = async {
                // Nothing is sent; the sender is dropped.
                let _: Result<Infallible, _> = is_undone.await;
                for (over, is_packed) in overs {
                    if let Some(is_packed) = is_packed {
                        tokio::select! {
                            // The sender is dropped without a message if the pod is left out.
                            _ = is_packed => {}
                            () = self.ending.cancelled() => {}
                        }
                    }
                    drop(over);
                }
            };
            let busy = Busy { _place: place, _slot: slot };
            let (_busy, (), ()) = tokio::join!(self.undo(&undone, spent, busy, undoing), store, release);
        }
        .boxed()
    }

    /// Runs the hooks after all pods of a block concurrently, so that no pod stays frozen because
    /// of another one. Gives `busy` back, unless hooks cannot be started for long: then others get
    /// it meanwhile. `undoing` is dropped when nobody is to wait for these hooks any more.
    async fn undo<'b>(
        &self,
        block: &[BlockPod],
        spent: &Spent,
        busy: Busy<'b>,
        undoing: oneshot::Sender<Infallible>,
    ) -> Option<Busy<'b>> {
        let (begun, is_long) = (Instant::now(), Notify::new());
        let until = begun + limits::LAST_HOOKS;
        let insistence = Insistence { until, is_long: &is_long, lost: self.lost, stop: self.stop };
        let insistence = &insistence;
        let each = block.iter().map(|pod| async move {
            if !pod.before.has_begun || self.after(pod, insistence).await {
                self.frozen.remove(&pod.id);
            }
        });
        let mut all = pin!(join_all(each));
        let is_done = tokio::select! {
            _ = &mut all => true,
            () = is_long.notified() => false,
        };
        if let Some(pod) = block.iter().find(|pod| pod.hooks.is_annotated) {
            spend(spent, &pod.id.namespace, begun.elapsed());
        }
        drop(undoing);
        if is_done {
            return Some(busy);
        }
        drop(busy);
        all.await;
        None
    }

    fn is_ending(&self) -> bool {
        self.ending.is_cancelled() || self.batches.is_closed()
    }

    /// Records the pod if it has hooks after it.
    async fn record(&self, held: &HeldPod) -> Result<(), HookError> {
        if held.hooks.post.is_empty() {
            return Ok(());
        }
        tokio::select! {
            added = self.frozen.add(&held.id) => added,
            () = self.ending.cancelled() => Err(HookError::Ended),
        }
    }

    /// `false`: the hooks are left to the next leader.
    async fn after(&self, begun: &BlockPod, insistence: &Insistence<'_>) -> bool {
        let BlockPod { id: pod, hooks, container, before } = begun;
        let again = before.may_go_on.then_some(AGAIN);
        let run = self.runner.run_after(&hooks.post, pod, container.as_deref(), again, insistence);
        tokio::select! {
            // Other hooks that failed are logged; nothing else will try them.
            has_run = run => {
                if !has_run && self.stop.is_cancelled() {
                    return false;
                }
                if !has_run {
                    self.runner.tell_given_up(pod);
                }
            }
            () = self.ended(limits::LAST_HOOKS) => self.runner.tell_unended(pod),
        }
        true
    }

    /// Completes `later` after the backup ended early.
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
