//! Runs single hooks, logs the results, and counts them for a backup.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use berth_api::hook::{AnnotatedPod, pods};
use berth_api::velero::backup::HookStatus;
use berth_core::hook::{Hook, HookPhase, OnError, PodId};
use berth_core::limits;
use berth_core::violation::tellable;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::exec::{Exec, HookError};
use super::list::Lister;
use super::log::{BackupLog, ResultsHeading};
use super::names::ResourceList;
use super::related::{is_name, key};
use crate::text::chain;

/// How long each hook after a pod is tried again at least if it could not be started, and the
/// pauses between.
const INSISTS: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The name of pods in the resource list.
const PODS: &str = "v1/Pod";

/// Results of the hooks of one backup.
#[derive(Default)]
pub struct Tally {
    attempted: AtomicU64,
    failed: AtomicU64,
    /// Pods that are not stored because a hook failed.
    left_out: Mutex<BTreeSet<String>>,
}

/// The same, in a checkpoint: the hooks of pods that are stored or left out are not tried again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tried {
    attempted: u64,
    failed: u64,
    left_out: BTreeSet<String>,
}

impl Tried {
    /// Whether a run can have tried so many hooks. The numbers go into a status, and the API server
    /// refuses numbers that its fields cannot hold.
    pub fn is_possible(&self) -> bool {
        self.failed <= self.attempted && u32::try_from(self.attempted).is_ok()
    }
}

impl Tally {
    /// Whether a failed hook has kept this pod out of the backup already, possibly in an earlier
    /// run.
    pub fn has_left_out(&self, pod: &str) -> bool {
        self.left_out.lock().contains(pod)
    }

    pub fn leave_out(&self, pod: &PodId) {
        self.left_out.lock().insert(key(Some(&pod.namespace), &pod.name));
    }

    /// The counts for a checkpoint.
    pub fn tried(&self) -> Tried {
        Tried {
            attempted: self.attempted.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            left_out: self.left_out.lock().clone(),
        }
    }

    /// Adds what an earlier run has tried.
    pub fn add(&self, earlier: Tried) {
        self.attempted.fetch_add(earlier.attempted, Ordering::Relaxed);
        self.failed.fetch_add(earlier.failed, Ordering::Relaxed);
        self.left_out.lock().extend(earlier.left_out);
    }

    /// Removes pods that are left out from the list of what is stored.
    pub fn correct(&self, list: &mut ResourceList) {
        let left_out = self.left_out.lock();
        if let Some(pods) = list.get_mut(PODS).filter(|_| !left_out.is_empty()) {
            pods.remove(&left_out);
            if pods.is_empty() {
                list.remove(PODS);
            }
        }
    }

    /// `status.hookStatus`; nothing if no hook was tried. A 0 is absent, as Velero omits it.
    pub fn status(&self) -> Option<HookStatus> {
        let count = |count: &AtomicU64| i64::try_from(count.load(Ordering::Relaxed)).ok();
        let (attempted, failed) = (count(&self.attempted), count(&self.failed));
        let is_positive = |count: &i64| *count > 0;
        attempted.filter(is_positive).map(|attempted| HookStatus {
            hooks_attempted: Some(attempted),
            hooks_failed: failed.filter(is_positive),
        })
    }
}

/// How hooks that cannot be started are tried again.
pub struct Insistence<'a> {
    /// They are tried again until then, and each for a minute in any case.
    pub until: Instant,
    /// Notified when one could not be started for a minute: whoever waits needs to keep nothing
    /// from others meanwhile.
    pub is_long: &'a Notify,
    /// Cancelled when they are tried no more, because somebody else does it: he may freeze the pod
    /// again.
    pub lost: &'a CancellationToken,
    /// Cancelled when the process is to end: each is tried for a minute then, and no longer,
    /// because the next leader goes on.
    pub stop: &'a CancellationToken,
}

/// Runs hooks, counts them, and logs each.
pub struct HookRunner<'a> {
    pub exec: &'a dyn Exec,
    pub log: &'a BackupLog,
    pub tally: &'a Tally,
}

impl HookRunner<'_> {
    /// Runs all hooks after a pod, whatever becomes of each. `again`: after this pause the failed
    /// hooks run once more, because a hook before the pod may have done its work after them.
    /// Returns `false` if some hooks could not be started, which may pass.
    pub async fn run_after(
        &self,
        hooks: &[Arc<Hook>],
        pod: &PodId,
        container: Option<&str>,
        again: Option<Duration>,
        insistence: &Insistence<'_>,
    ) -> bool {
        let all: Vec<&Hook> = hooks.iter().map(AsRef::as_ref).collect();
        let failed = self.run_each(all, pod, container, insistence).await;
        // Those that could not be started have been tried for long by now.
        let (mut away, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(|(_, error)| error.passes());
        if let Some(pause) = again.filter(|_| !failed.is_empty()) {
            sleep(pause).await;
            let hooks: Vec<&Hook> = failed.into_iter().map(|(hook, _)| hook).collect();
            let failed = self.run_each(hooks, pod, container, insistence).await;
            away.extend(failed.into_iter().filter(|(_, error)| error.passes()));
        }
        away.is_empty()
    }

    /// Returns the hooks that failed.
    async fn run_each<'h>(
        &self,
        hooks: Vec<&'h Hook>,
        pod: &PodId,
        container: Option<&str>,
        insistence: &Insistence<'_>,
    ) -> Vec<(&'h Hook, HookError)> {
        let mut failed = Vec::new();
        for hook in hooks {
            let run = self.insist(hook, pod, container, insistence);
            if let Err(error) = self.tell(HookPhase::Post, hook, pod, run).await {
                failed.push((hook, error));
            }
        }
        failed
    }

    /// Retries a hook that the API server or the kubelet could not start, because what it should
    /// undo would stay as it is.
    async fn insist(
        &self,
        hook: &Hook,
        pod: &PodId,
        container: Option<&str>,
        insistence: &Insistence<'_>,
    ) -> Result<(), HookError> {
        let (begun, mut pause) = (Instant::now(), PAUSE);
        loop {
            let is_stopping = insistence.stop.is_cancelled();
            let until = begun + INSISTS;
            let until = if is_stopping { until } else { insistence.until.max(until) };
            let error = match self.exec.exec(pod, container, hook).await {
                Err(error) if error.passes() && Instant::now() + pause <= until => error,
                done => return done,
            };
            let name = tellable(&hook.name);
            warn!(%pod, hook = %name, error = chain(&error), "a hook after a pod could not be run: trying again");
            if begun.elapsed() + pause > INSISTS {
                insistence.is_long.notify_one();
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = insistence.lost.cancelled() => return Err(error),
                () = insistence.stop.cancelled(), if !is_stopping => {}
            }
            pause = LONGEST_PAUSE.min(pause * 2);
        }
    }

    /// Logs that the hooks after a pod could not be started, and that nobody tries them again.
    pub fn tell_given_up(&self, pod: &PodId) {
        let message = format!(
            "what was begun in pod {} may be as it was, because the hooks after it could not be run: run them yourself",
            pod.name
        );
        self.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
        warn!(%pod, "gave up running the hooks after a pod: undo by hand what those before it did");
    }

    /// Logs that the hooks after a pod did not end in time.
    pub fn tell_unended(&self, pod: &PodId) {
        let message = format!(
            "the hooks after pod {} had not ended after {} minutes, and nobody waits for them any more: what they were to undo may be as it was",
            pod.name,
            limits::LAST_HOOKS.as_secs() / 60
        );
        self.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
    }

    /// Runs a hook with `run`, counts it and logs its result.
    ///
    /// # Errors
    /// When the hook failed, which is logged.
    pub async fn tell(
        &self,
        when: HookPhase,
        hook: &Hook,
        pod: &PodId,
        run: impl Future<Output = Result<(), HookError>>,
    ) -> Result<(), HookError> {
        self.tally.attempted.fetch_add(1, Ordering::Relaxed);
        let name = tellable(&hook.name);
        let Err(error) = run.await else {
            self.log.info(&format!("{when} hook {name} of pod {pod} went well"));
            return Ok(());
        };
        self.tally.failed.fetch_add(1, Ordering::Relaxed);
        let then = match (when, hook.on_error) {
            (HookPhase::Pre, OnError::Fail) => "; the pod is not stored",
            (HookPhase::Pre, OnError::Continue) => "; the pod is stored all the same",
            (HookPhase::Post, _) => "; what it was to undo may be as it was",
        };
        // The command and its output are not logged, because they may hold a password.
        let why = hook.unquoted(&chain(&error));
        let message = format!("{when} hook {name} of pod {} failed: {why}{then}", pod.name);
        self.log.lasting_error(&ResultsHeading::Namespace(&pod.namespace), "pods", &message);
        warn!(%pod, %when, hook = %name, error = why, "a hook failed");
        Err(error)
    }
}

/// Reads the pod, if it is still the same one: exec knows only names, and a pod may have been
/// recreated.
///
/// # Errors
/// When it is another pod, is gone, or cannot be read.
pub async fn read_pod(lister: &Lister, pod: &PodId) -> Result<AnnotatedPod, HookError> {
    // The names of a recorded pod become part of a URL.
    if !(is_name(&pod.namespace) && is_name(&pod.name)) {
        return Err(HookError::Gone);
    }
    let found = lister.get(&pods(), Some(&pod.namespace), &pod.name).await;
    let found = found.map_err(HookError::Unreadable)?.ok_or(HookError::Gone)?;
    let read = serde_json::from_slice::<AnnotatedPod>(&found.json);
    let read = read.map_err(|error| HookError::Failed(error.to_string()))?;
    if read.id().uid == pod.uid { Ok(read) } else { Err(HookError::Gone) }
}
