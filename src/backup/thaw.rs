//! Undoes what a dead run has begun in pods that are recorded as maybe frozen (see
//! [`super::frozen`]).

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::keys;
use berth_api::velero::BackupPhase;
use berth_core::hook::{HookRule, PodId, read_frozen, write_frozen};
use berth_core::limits;
use berth_core::violation::{Field, Violations};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::engine::{Engine, OPENING};
use super::exec::HookError;
use super::hooks::{HookRunner, Tally, read_pod};
use super::list::Lister;
use super::log::{BackupLog, ResultsHeading};
use super::status::{BackupWriter, WriteError};
use super::volumes::clean::cancel_files_of;
use crate::text::chain;

/// How long a command that a dead run began before a pod may go on in its container, at most.
const GOES_ON: Duration = Duration::from_secs(120);
/// How long after its start a leader tries to reach pods that a dead run left. The backup keeps its
/// slot for that time.
const THAWING: Duration = Duration::from_secs(600);

impl Engine {
    /// Runs the hooks after the pods that a dead run left between their hooks, all concurrently, so
    /// that none waits for another's. Then removes the pods that were tried from the record.
    /// Returns the UIDs of pods whose PodVolumeBackups may go on though they are thawed; those stay
    /// on record until the backup is run again, because that run has to know them.
    ///
    /// # Errors
    /// When the Backup is not ours any more, or pods stay recorded to be tried again, because they
    /// could not be reached or `stop` came first.
    pub(super) async fn thaw(
        &self,
        record: &mut BackupWriter,
        log: &BackupLog,
        tally: &Tally,
        stop: &CancellationToken,
    ) -> Result<BTreeSet<String>, WriteError> {
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
        let thaw = |pod: PodId| async move {
            if thaw_pod(runner, lister, &pod, entries).await {
                still.lock().remove(&pod);
            }
        };
        tokio::select! {
            () = futures::stream::iter(pods).for_each_concurrent(limits::THAWED_AT_ONCE, thaw) => {}
            () = stop.cancelled() => {}
        }
        let mut left = left.into_inner();
        if !stop.is_cancelled() && self.since.elapsed() >= THAWING {
            for pod in std::mem::take(&mut left) {
                let message = format!(
                    "what was begun in pod {} may be as it was, because the hooks after it could not be run: run them yourself",
                    pod.name
                );
                log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
                warn!(%pod, "the hooks after a pod that a dead run left could not be run: given up");
            }
        }
        if !spoiled.is_empty() {
            return if left.is_empty() { Ok(spoiled) } else { Err(WriteError::Frozen(left.len())) };
        }
        let frozen = if left.is_empty() { Value::Null } else { write_frozen(&left).into() };
        let patch = json!({"metadata": {"annotations": {keys::FROZEN: frozen}}});
        match record.merge(&patch, BackupPhase::InProgress, OPENING).await {
            // The write that ends the backup removes them as well.
            Err(error @ (WriteError::Refused(_) | WriteError::Time(_))) => {
                warn!(error = chain(&error), "could not remove thawed pods from the record");
            }
            done => done?,
        }
        if left.is_empty() { Ok(spoiled) } else { Err(WriteError::Frozen(left.len())) }
    }
}

/// Runs the hooks after a pod that a dead run left, as the pod is now. `false`: the pod could not
/// be reached, which may pass.
async fn thaw_pod(runner: &HookRunner<'_>, lister: &Lister, pod: &PodId, entries: &[HookRule]) -> bool {
    info!(%pod, "a run ended between the hooks of this pod: those after it are run now");
    runner.log.info(&format!("the run ended between the hooks of pod {pod}: those after it are run"));
    let found = read_pod(lister, pod).await.and_then(|found| {
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
            warn!(%pod, error = why, "the hooks after a pod that a dead run left could not be run");
            return !error.passes();
        }
    };
    // A command that ran before the pod when its run died may go on in its container.
    let again = hooks.pre.iter().map(|hook| hook.timeout.min(GOES_ON)).max();
    let run = runner.run_after(&hooks.post, pod, container.as_deref(), again);
    timeout(limits::LAST_HOOKS, run).await.unwrap_or_else(|_| {
        runner.tell_unended(pod);
        true
    })
}
