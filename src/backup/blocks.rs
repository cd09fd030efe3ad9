//! Pods that have hooks, each as a block: what runs before it, the pod, what runs after it. Blocks wait for what happens elsewhere, so
//! they are no work for the packers: `--item-block-worker-count` of them go on at one time.
//!
//! What has begun in a pod is undone in it, whatever becomes of the backup: when it ends early no block begins, and each one that
//! has begun goes on to its hooks after the pod. Should this process end instead, whoever takes the backup up finds the pod on
//! record (see [`super::frozen`]).

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_core::hook::{Hook, OnError, PodId, When};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::archive::Batch;
use super::collect::Counters;
use super::exec::HookError;
use super::frozen::Frozen;
use super::hooks::{Held, Runner};
use super::list::Lister;

/// Pods that may be put on record ahead of a worker that is free for them: otherwise each worker would wait for that write.
const AHEAD: usize = 32;
/// How long a hook before a pod is waited for when the backup ends early. Were it left at once, what it freezes could freeze
/// behind the hook that thaws it.
const LAST_HOOK: Duration = Duration::from_secs(30);

pub struct Blocks<'a> {
    pub runner: Runner<'a>,
    pub client: Client,
    pub lister: Lister,
    pub frozen: &'a Frozen,
    pub counters: &'a Counters,
    pub batches: mpsc::Sender<Batch>,
    /// The backup ends early.
    pub ending: &'a CancellationToken,
    pub workers: usize,
}

impl Blocks<'_> {
    /// Until there are no more pods, or the backup ends early. Nothing is going on in any pod when it returns.
    pub async fn run(self, mut held: mpsc::Receiver<Held>) {
        let slots = Semaphore::new(self.workers);
        let (blocks, slots) = (&self, &slots);
        let pods = futures::stream::poll_fn(|context| held.poll_recv(context));
        let pods = pods.take_until(self.ending.cancelled());
        let at_once = self.workers + self.workers.min(AHEAD);
        pods.for_each_concurrent(at_once, |pod| blocks.block(pod, slots)).await;
    }

    async fn block(&self, held: Held, slots: &Semaphore) {
        // One after the other, as they came: whoever asks first has the next slot.
        let (is_there, slot) = tokio::join!(self.prepare(&held), slots.acquire());
        // Nobody closes it.
        let Ok(_slot) = slot else { return };
        if self.is_ending() {
            return;
        }
        let (is_stored, has_begun) = match is_there {
            Ok(()) => self.before(&held).await,
            Err(error) => (self.refuse(&held, error).await, false),
        };
        let Held { kind, page, item, id, hooks, container, room } = held;
        if is_stored {
            // Here the pod is as still as its hooks make it: the place for its volumes.
            let batch = Batch { kind, page, items: vec![item], packed: None };
            tokio::select! {
                // Whoever does not take it any more ends the backup.
                _ = self.batches.send(batch) => {}
                () = self.ending.cancelled() => {}
            }
        } else if !self.is_ending() {
            self.runner.tally.leave_out(&id);
            self.counters.total.fetch_sub(1, Ordering::Relaxed);
        }
        drop(room);
        if has_begun {
            for hook in &hooks.post {
                self.runner.run(When::Post, hook, &id, container.as_deref()).await;
            }
        }
        self.frozen.remove(&id);
    }

    fn is_ending(&self) -> bool {
        self.ending.is_cancelled() || self.batches.is_closed()
    }

    /// Looks whether it is that pod still, and puts it on record if anything is to be undone in it.
    async fn prepare(&self, held: &Held) -> Result<(), HookError> {
        let record = async {
            if held.hooks.post.is_empty() {
                return Ok(());
            }
            tokio::select! {
                added = self.frozen.add(&held.id) => added,
                () = self.ending.cancelled() => Err(HookError::Ended),
            }
        };
        let (is_there, is_on_record) = tokio::join!(self.look(&held.id), record);
        is_there.and(is_on_record)
    }

    /// Exec knows names alone, and a pod may have been made anew since it was listed.
    async fn look(&self, pod: &PodId) -> Result<(), HookError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let read = self.lister.patiently("a pod with hooks", || api.get_metadata_opt(&pod.name));
        let found = tokio::select! {
            read = read => read.map_err(HookError::Unreadable)?,
            () = self.ending.cancelled() => return Err(HookError::Ended),
        };
        let uid = found.and_then(|found| found.metadata.uid);
        if uid.as_ref() == Some(&pod.uid) { Ok(()) } else { Err(HookError::Gone) }
    }

    /// None of its hooks can be run: told once. Is it stored?
    async fn refuse(&self, held: &Held, error: HookError) -> bool {
        if let Some(hook) = held.hooks.pre.first() {
            self.runner.tell(When::Pre, hook, &held.id, async { Err(error) }).await;
        } else if let Some(hook) = held.hooks.post.first() {
            self.runner.tell(When::Post, hook, &held.id, async { Err(error) }).await;
        }
        !held.hooks.may_leave_out()
    }

    /// Runs the hooks before the pod, up to one without which it is not stored. Is it stored, and is there anything to be undone?
    async fn before(&self, held: &Held) -> (bool, bool) {
        let mut has_begun = held.hooks.pre.is_empty();
        for hook in &held.hooks.pre {
            if self.is_ending() {
                return (false, has_begun);
            }
            let went_well = {
                let run = self.run_before(held, hook, &mut has_begun);
                self.runner.tell(When::Pre, hook, &held.id, run).await
            };
            if !went_well && hook.on_error == OnError::Fail {
                return (false, has_begun);
            }
        }
        (!self.is_ending(), has_begun)
    }

    async fn run_before(&self, held: &Held, hook: &Hook, has_begun: &mut bool) -> Result<(), HookError> {
        if !held.hooks.post.is_empty() {
            // What is on record may be undone already, by somebody who takes this process for dead.
            tokio::select! {
                renewed = self.frozen.renew() => renewed?,
                () = self.ending.cancelled() => return Err(HookError::Ended),
            }
        }
        *has_begun = true;
        let last = async {
            self.ending.cancelled().await;
            tokio::time::sleep(LAST_HOOK).await;
        };
        tokio::select! {
            done = self.runner.exec.exec(&held.id, held.container.as_deref(), hook) => done,
            () = last => Err(HookError::Ended),
        }
    }
}

#[cfg(test)]
mod tests;
