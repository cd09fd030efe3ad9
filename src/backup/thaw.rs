//! Undoes what a run that is over (its process is gone, or it has failed) has begun in pods that
//! are recorded as maybe frozen (see [`super::frozen`]).

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use berth_api::hook::AnnotatedPod;
use berth_api::keys;
use berth_api::velero::BackupPhase;
use berth_core::hook::{HookRule, PodId, read_frozen, write_frozen};
use berth_core::limits;
use berth_core::violation::{Field, Violations};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Engine, OPENING};
use super::exec::HookError;
use super::hooks::{HookRunner, Insistence, Tally, read_pod};
use super::list::Lister;
use super::log::{BackupLog, ResultsHeading};
use super::status::{BackupWriter, WriteError};
use super::volumes::cancel::cancel_files_of;
use crate::text::chain;

/// How long a command that a dead run began before a pod may go on in its container, at most.
const GOES_ON: Duration = Duration::from_secs(120);
/// How long pods that cannot be read are tried again: as long as hooks that cannot be started. The
/// backup keeps its slot for that time.
const THAWING: Duration = limits::LAST_HOOKS;
const PAUSE: Duration = Duration::from_secs(5);

impl Engine {
    /// Runs the hooks after the pods that a dead run left between their hooks, all concurrently, so
    /// that none waits for another's. Pods that cannot be reached are tried for ten minutes from
    /// now on, here and not by the next call: so they are tried to the end even if the Backup, on
    /// which they are recorded, is deleted meanwhile. Then removes the pods that were tried from
    /// the record. Returns the UIDs of pods whose PodVolumeBackups may go on though they are
    /// thawed; those stay on record until the backup is run again, because that run has to know
    /// them.
    ///
    /// # Errors
    /// When the Backup is not ours any more, or `stop` came first: then pods stay recorded for the
    /// next leader.
    pub(super) fn thaw<'a>(
        &'a self,
        record: &'a mut BackupWriter,
        log: &'a BackupLog,
        tally: &'a Tally,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, WriteError>> {
        async move {
            let Some(frozen) = record.frozen() else { return Ok(BTreeSet::new()) };
            let pods = read_frozen(frozen);
            let mut spoiled: BTreeSet<String> = pods.iter().map(|pod| pod.uid.clone()).collect();
            if cancel_files_of(&self.client, &self.namespace, record.uid(), &spoiled).await {
                spoiled.clear();
            }
            let hooks = record.backup().ok().and_then(|backup| backup.spec.hooks);
            // The hooks were validated when the backup began.
            let at = Field::root("spec").child("hooks");
            let entries = berth_api::hook::entries(hooks.as_ref(), &at, &mut Violations::default());
            let (lister, left) = (self.pod_lister(), Mutex::new(pods.clone()));
            let runner = HookRunner { exec: self.exec.as_ref(), log, tally };
            let (still, lister, runner, entries) = (&left, &lister, &runner, entries.as_slice());
            // It is lost by the first write that is refused.
            let lost = &CancellationToken::new();
            let (until, slots) = (Instant::now() + THAWING, &Semaphore::new(limits::THAWED_AT_ONCE));
            let thaw = |pod: PodId| async move {
                // The semaphore is never closed.
                let slot = slots.acquire().await;
                let is_long = Notify::new();
                let insistence = Insistence { until, is_long: &is_long, lost, stop };
                let mut work = pin!(thaw_pod(runner, lister, &pod, entries, &insistence));
                let is_tried = tokio::select! {
                    is_tried = &mut work => is_tried,
                    () = is_long.notified() => {
                        // Pods that can be reached do not wait for those that cannot.
                        drop(slot);
                        work.await
                    }
                };
                if !is_tried {
                    runner.tell_given_up(&pod);
                }
                still.lock().remove(&pod);
            };
            tokio::select! {
                () = futures::stream::iter(pods).for_each_concurrent(limits::FROZEN, thaw) => {}
                () = stop.cancelled() => {}
            }
            let left = left.into_inner();
            if !spoiled.is_empty() {
                return if left.is_empty() { Ok(spoiled) } else { Err(WriteError::Frozen(left.len())) };
            }
            let frozen = if left.is_empty() { Value::Null } else { write_frozen(&left).into() };
            let patch = json!({"metadata": {"annotations": {keys::FROZEN: frozen}}});
            match record.merge(&patch, BackupPhase::InProgress, OPENING).await {
                // The write that ends the backup removes them as well.
                Err(error @ (WriteError::Refused(_) | WriteError::Time(_))) => {
                    let name = kube::ResourceExt::name_any(record.object());
                    warn!(%name, error = chain(&error), "could not remove thawed pods from the record: the end of the backup removes them");
                }
                done => done?,
            }
            if left.is_empty() { Ok(spoiled) } else { Err(WriteError::Frozen(left.len())) }
        }
        .boxed()
    }
}

/// Runs the hooks after a pod that a dead run left, as the pod is now. `false`: the pod could not
/// be reached until then.
async fn thaw_pod(
    runner: &HookRunner<'_>,
    lister: &Lister,
    pod: &PodId,
    entries: &[HookRule],
    insistence: &Insistence<'_>,
) -> bool {
    info!(%pod, "a run ended between the hooks of this pod: those after it are run now");
    runner.log.info(&format!("the run ended between the hooks of pod {pod}: those after it are run"));
    let found = read_patiently(lister, pod, insistence).await.and_then(|found| {
        let hooks = found.hooks(entries).map_err(|faults| HookError::Failed(faults.to_string()))?;
        Ok((hooks, found.first_container()))
    });
    let (hooks, container) = match found {
        Ok(found) => found,
        Err(HookError::Gone) => {
            runner.log.info(&format!("pod {pod} is gone, and with it what was to be undone in it"));
            return true;
        }
        Err(error) => {
            let why = chain(&error);
            let message = format!("the hooks after pod {} could not be run: {why}", pod.name);
            runner.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
            warn!(%pod, error = why, "could not run the hooks after a pod that a dead run left frozen");
            return !error.passes();
        }
    };
    // A command that ran before the pod when its run died may go on in its container.
    let again = hooks.pre.iter().map(|hook| hook.timeout.min(GOES_ON)).max();
    let run = runner.run_after(&hooks.post, pod, container.as_deref(), again, insistence);
    timeout(limits::LAST_HOOKS, run).await.unwrap_or_else(|_| {
        runner.tell_unended(pod);
        true
    })
}

async fn read_patiently(
    lister: &Lister,
    pod: &PodId,
    insistence: &Insistence<'_>,
) -> Result<AnnotatedPod, HookError> {
    loop {
        match read_pod(lister, pod).await {
            Err(error) if error.passes() && Instant::now() + PAUSE <= insistence.until => {
                warn!(%pod, error = chain(&error), "a pod that a dead run left cannot be read: trying again");
            }
            read => return read,
        }
        insistence.is_long.notify_one();
        sleep(PAUSE).await;
    }
}
